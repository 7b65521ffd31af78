"""From Python arguments to the words and values of commands."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.api.runs import Run, Runs
from bench.api.source import name_of
from bench.errors import UserError, unknown
from bench.grammar.commands import COMMANDS, parse
from bench.grammar.parse import Args, Option
from bench.grammar.values import place
from bench.progress import SweepProgress, hearing
from optimizers.plugins import PluginError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from bench.config.run_config import RunConfig
    from bench.config.tuned import Sources

    Opt = str | type[Optimizer]
    Place = str | Path
    Seeds = int | Sequence[int]
    Settings = Mapping[str, Any]
    Engine = Literal["auto", "lanes", "lightning"]


@contextmanager
def session(progress: bool, **switches: bool) -> Iterator[None]:
    """Convert errors of plug-ins into user errors; without `progress`, hide status lines.

    Raises:
        UserError: `progress` or another switch is neither True nor False.
    """
    for name, value in {"progress": progress, **switches}.items():
        if not isinstance(value, bool):
            raise UserError(f"{name}={value!r}: write True or False")
    with nullcontext() if progress else hearing(lambda what: None), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # tqdm's warning in a notebook; its bars are not used
        try:
            yield
        except PluginError as error:
            raise UserError(str(error)) from error


@contextmanager
def training(progress: bool, **switches: bool) -> Iterator[None]:
    """A session after which torch has as many threads as before: the suite uses one for small models."""
    from bench.train.threads import same_threads

    with session(progress, **switches), same_threads():
        yield


def results_of_runs(
    configs: "Sequence[RunConfig]",
    shown: SweepProgress,
    plan: str,
    effort: "Settings",
    sources: "Sources | None" = None,
) -> Runs:
    """The results of runs, after training the missing ones."""
    from bench.execute import Effort
    from bench.execute.command import results_of

    args = arguments_of("sweep", {}, {}, effort)
    results = results_of(configs, shown, Effort.of(args), plan=plan, sources=sources)
    if results is None:
        raise KeyboardInterrupt("the runs were stopped; finished ones are stored, and the same call continues")
    return Runs([Run(result, configs[0].store) for result in results])


def places_of(data: "Place | None", store: "Place | None") -> dict[str, Path]:
    """The folders of data and store."""
    given = {"data": data, "store": store}
    return {name: _place(name, where) for name, where in given.items()}


def words_of(
    task: str,
    opts: "Sequence[Opt]",
    store: Path,
    task_options: "Settings | None",
    trainer: "Settings | None",
    settings: "Settings | None",
    hyperparameters: "Settings",
    top: "Settings",
) -> dict[str, Any]:
    """Settings in dotted form."""
    found: dict[str, Any] = {"task": task, "opt": ",".join(name_of(opt, store) for opt in opts)}
    found |= _flat("task", _named("task_options", task_options))
    found |= _flat("opt", hyperparameters)
    found |= _flat("trainer", _named("trainer", trainer))
    found |= {name: value for name, value in top.items() if value is not None}
    return found | {name: _plain(value) for name, value in _named("settings", settings).items()}


def _named(argument: str, values: "Settings | None") -> "Settings":
    """Values by name; none for None.

    Raises:
        UserError: they are neither.
    """
    if values is None or (isinstance(values, Mapping) and all(isinstance(name, str) for name in values)):
        return values or {}
    raise UserError(f"{argument}={values!r}: write a dictionary with names as keys: {argument}={{NAME: VALUE}}")


def _flat(group: str, settings: "Settings") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{group}.{name}"
        found |= _flat(key, value) if isinstance(value, Mapping) else {key: _plain(value)}
    return found


def _plain(value: Any) -> Any:
    """A value as plain Python types; ranges and arrays become lists."""
    if hasattr(value, "tolist"):  # numpy or a tensor
        return value.tolist()
    return list(value) if isinstance(value, range) else value


def words_of_seeds(name: str, seeds: "Seeds") -> str:
    """Seeds in the form of the command line: how many, or which.

    Raises:
        UserError: they are neither.
    """
    seeds = _plain(seeds)
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return str(seeds)
    own = [_plain(seed) for seed in seeds] if isinstance(seeds, Iterable) and not isinstance(seeds, str) else []
    if not own or not all(type(seed) is int for seed in own):
        raise UserError(f"{name}={seeds!r}: write how many ({name}=5), or which ({name}=[3, 5, 8])")
    return f"{own[0]}:{own[0] + 1}" if len(own) == 1 else ",".join(map(str, own))


def listed_optimizers(opt: "Opt | Sequence[Opt]") -> "list[Opt]":
    """Optimizers as a list.

    Raises:
        UserError: they are no sequence.
    """
    if isinstance(opt, str | type):
        return [opt]
    if not isinstance(opt, Sequence):
        raise UserError(f"opt={opt!r}: write a name, a class, or a list of them")
    return list(opt)


def arguments_of(command: str, words: dict[str, Any], where: Mapping[str, Path], given: "Settings") -> Args:
    """The arguments of a command: the given values, and its defaults for None.

    Raises:
        UserError: a value is illegal.
    """
    args, options = parse(command, []), {option.key: option for option in COMMANDS[command].options}
    read = {name: _read(options[name], value) for name, value in given.items() if value is not None}
    vars(args).update(read, **where, of_runs=words)
    return args


def _read(option: Option, value: Any) -> Any:
    """A value as the command line reads it; switches, and options that may be repeated, as they are."""
    if option.value == "SEEDS":
        value = words_of_seeds(option.key, value)
    elif option.value == "A,B":
        return names_of(option.key, value)
    elif not option.value or option.many:
        return value
    if not isinstance(value, str) and isinstance(value, Iterable):
        raise UserError(f"{option.key}={value!r}: write one value")
    if option.choices and value not in option.choices:
        raise unknown(option.key, str(value), option.choices)
    try:
        return option.read(str(value))
    except ValueError as error:
        raise UserError(f"{option.key}={value!r}: {error}") from None


def names_of(argument: str, given: "str | Sequence[str]") -> list[str]:
    """One name or several as a list.

    Raises:
        UserError: they are neither.
    """
    own = [given] if isinstance(given, str) else given
    if isinstance(own, Sequence) and all(isinstance(name, str) for name in own):
        return list(own)
    raise UserError(f"{argument}={given!r}: write a name or a list of names")


def folders_of(store: "Place | Sequence[Place] | None") -> list[Path]:
    """The folders of one store or several."""
    folders = [store] if store is None or isinstance(store, str | Path) or not isinstance(store, Sequence) else store
    return [_place("store", each) for each in folders]


def _place(name: str, where: "Place | None") -> Path:
    """A folder, or its default.

    Raises:
        UserError: it is no path.
    """
    if where is not None and not isinstance(where, str | Path):
        raise UserError(f"{name}={where!r}: write a path")
    return place(name, None if where is None else str(where))


def board_input(
    store: "Place | Sequence[Place] | None",
    only: "Settings | None",
    choice: "Settings",
    mixed_versions: bool,
    reference_results: bool,
) -> tuple[Any, Any]:
    """The stores, and the input of their boards."""
    from bench.boards.cli import requested
    from bench.text import word_of

    given = {
        "store": [] if store is None else folders_of(store),
        "only": [f"{name}={word_of(value)}" for name, value in _named("only", only).items()],
        "mixed_versions": mixed_versions,
        "no_reference": not reference_results,
    }
    return requested(arguments_of("leaderboard", {}, {}, given | dict(choice)))
