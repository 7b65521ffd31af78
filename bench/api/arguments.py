"""From values of Python, or words of the command line, to checked values."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from bench.api.parameters import Names, Opt, Place, Seeds, Settings
from bench.api.source import name_of
from bench.config.values import parts, place, read_budget, read_seeds
from bench.errors import UserError, unknown
from bench.execute import ENGINES, Effort, Engine
from bench.progress import hearing
from optimizers.plugins import PluginError

MOST_WORKERS = 10_000
"""More are probably a typo. Ours."""


@contextmanager
def session(*, progress: bool = True) -> Iterator[None]:
    """Convert errors of plug-ins into user errors; without `progress`, hide status lines."""
    with nullcontext() if progress else hearing(lambda what: None), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # tqdm's warning in a notebook; its bars are not used
        try:
            yield
        except PluginError as error:
            raise UserError(str(error)) from error


def effort_of(
    engine: str | None = None,
    workers: int | str | None = None,
    cluster: str | None = None,
    width: int | str | None = None,
    budget: str | None = None,
) -> Effort:
    """How runs are executed; UserError for an illegal value."""
    if engine not in (None, *ENGINES):
        raise unknown("engine", str(engine), ENGINES)
    if workers not in (None, "auto") and not (str(workers).isdecimal() and 0 < int(workers) <= MOST_WORKERS):
        raise UserError(f"--workers {repr('') if workers == '' else workers}: write how many (--workers 2), or auto")
    if cluster is not None and not str(cluster).strip():
        raise UserError(f"--cluster {cluster!r}: it is empty")
    try:
        spent = None if budget is None else read_budget(str(budget))
    except ValueError as error:
        raise UserError(f"--budget {budget or repr('')}: {error}") from None
    crew = None if workers is None else str(workers)
    return Effort(cast(Engine, engine or "auto"), number("width", width, 1), crew, cluster, spent)


def number(name: str, value: int | str | None, least: int | None = None) -> Any:
    """A whole number of at least `least`, also as a word (UserError); None stays."""
    if value is None:
        return None
    try:
        result = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except ValueError:
        result = None
    if result is None:
        raise UserError(f"--{name} {value if isinstance(value, str) else repr(value)}: it must be a whole number")
    if least is not None and result < least:
        raise UserError(f"--{name} {value}: it must be at least {least}")
    return result


def places_of(data: Place | None, store: Place | None) -> dict[str, Path]:
    """The folders of data and store."""
    return {"data": folder_of("data", data), "store": folder_of("store", store)}


def folder_of(name: str, where: Place | None) -> Path:
    """A folder, or its default."""
    return place(name, None if where is None else str(where))


def path_of(name: str, where: Place | None) -> Path | None:
    """A path of a file or a folder (UserError); None stays."""
    if where is not None and not str(where).strip():
        raise UserError(f"--{name} {where!r}: it must name a folder or file")
    return None if where is None else Path(where)


def folders_of(store: Place | Sequence[Place] | None) -> list[Path]:
    """The folders of one store or several; none if not given."""
    several = store if isinstance(store, Sequence) and not isinstance(store, str) else [store]
    return [folder_of("store", folder) for folder in several if folder is not None]


def settings_of_call(
    task: Any = None,
    opts: Sequence[Any] = (),
    task_options: Settings | None = None,
    trainer: Settings | None = None,
    settings: Settings | None = None,
    hyperparameters: Settings | None = None,
    **top: Any,
) -> dict[str, Any]:
    """Settings in dotted form, from arguments of `bench.fit`; `top` are those without a group, None if not given."""
    names = {"opt": ",".join(map(name_of, opts)) or None, "task": task if task is None else name_of(task)}
    dotted = {name: value for name, value in (names | top).items() if value is not None}
    dotted |= _flat("task", task_options or {})
    dotted |= _flat("opt", hyperparameters or {})
    dotted |= _flat("trainer", trainer or {})
    return dotted | {name: _plain(value) for name, value in (settings or {}).items()}


def pairs_of(argument: str, values: Mapping[str, Any] | Sequence[str] | None, example: str) -> dict[str, str]:
    """Values by name, from a mapping or from words NAME=VALUE (UserError)."""
    from bench.text import word_of

    if values is None or isinstance(values, Mapping):
        return {name.removeprefix("--"): word_of(value) for name, value in (values or {}).items()}
    pairs: dict[str, str] = {}
    for word in [values] if isinstance(values, str) else values:
        name, equals, value = word.rpartition("=") if argument == "label" else word.partition("=")
        if not (equals and name and (value or argument != "label")):
            raise UserError(f"--{argument} {word}: write {example}")
        pairs[name.removeprefix("--")] = value
    return pairs


def _flat(group: str, settings: Settings) -> dict[str, Any]:
    dotted: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{group}.{name}"
        dotted |= _flat(key, value) if isinstance(value, Mapping) else {key: _plain(value)}
    return dotted


def _plain(value: Any) -> Any:
    """A value as plain Python types; ranges, arrays and tensors become lists or numbers."""
    return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, range) else value


def seeds_text(name: str, seeds: Seeds) -> str:
    """Seeds in the form of the command line: how many, or which (UserError)."""
    seeds = _plain(seeds)
    if isinstance(seeds, str) or (isinstance(seeds, int) and not isinstance(seeds, bool)):
        return str(seeds)
    several = [_plain(seed) for seed in seeds] if isinstance(seeds, Iterable) else []
    if not several or not all(type(seed) is int for seed in several):
        raise UserError(f"{name}={seeds!r}: write how many ({name}=5), or which ({name}=[3, 5, 8])")
    return f"{several[0]}:{several[0] + 1}" if len(several) == 1 else ",".join(map(str, several))


def seeds_of(seeds: Seeds) -> list[int]:
    """Seeds as a list: `5` and `"5"` are 0 to 4; errors as for `seeds_text`."""
    return read_seeds(seeds_text("seeds", seeds))


def optimizers_of(opt: Opt | Sequence[Opt] | None) -> list[Opt]:
    """Optimizers as a list."""
    several = list(opt) if isinstance(opt, Sequence) and not isinstance(opt, str) else [opt]
    return [name for item in several for name in (parts(item or "") if isinstance(item, str | None) else [item])]


def names_of(argument: str, given: Names | None) -> list[str] | None:
    """Names as a list, from `A,B` or a sequence (UserError); None stays."""
    if given is None:
        return None
    words = [given] if isinstance(given, str) else given
    names = [name for word in words for name in parts(word)]
    if not names:
        raise UserError(f"--{argument} {','.join(words) or repr('')}: it is empty; write A,B")
    return names
