"""What a public function is: flat parameters with their meaning, values of the declared types, and a session."""

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from typing_extensions import TypedDict

from bench.api.source import name_of
from bench.config.values import Seeds as Seeds
from bench.config.values import parts, place, read_budget
from bench.errors import UserError, unknown
from bench.execute import Effort
from bench.progress import silenced
from bench.text import why_wrong, word_of
from optimizers.plugins import PluginError

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from optimizers import OptimizerSpec
    from tasks import TaskSpec

    Opt = str | type[Optimizer] | OptimizerSpec
    Task = str | TaskSpec
else:
    Opt = Task = Any  # `bench.api.source.name_of` judges them

Place = str | Path
Names = str | Sequence[str]
Folders = Sequence[Place] | Place | None
Settings = Mapping[str, Any]
Which = Literal["best", "all"]

MEANINGS = {
    "task": "a name of `bench list tasks`, or `file.py:SPEC`.",
    "opt": "a name of `bench list optimizers`, `file.py:Class`, or a class; if several are allowed: A,B.",
    "trials": "number of trials (default nine). A grid adds up to 8 points beyond an edge while the best is there.",
    "report_seeds": "fresh seeds of each winner: a number (default 7: 0 to 6) or a list; fewer decide no verdict.",
    "seed": "seed of problem instance, initialisation and dropout, from 0 (default 0).",
    "logger": "also log to tensorboard, csv or wandb (extras).",
    "config": "YAML file of settings; options override it.",
    "data_seed": "seed of the order of the samples (default: the run's seed).",
    "precision": "32-true, bf16-mixed, 16-mixed or 64-true (default: the task's; lanes need 32-true or 64-true).",
    "device": "cpu, cuda, mps or auto (default auto).",
    "task_options": "options of the task by name (`bench show TASK` lists them).",
    "trainer": 'budget, batch and schedule by name: `{"max_epochs": 2, "batch_size": 64}`.',
    "settings": 'further settings in dotted form, `{"opt.matrix.lr": 0.01}`; they override the others.',
    "engine": "lanes: vectorised runs; lightning: one by one; auto (default): the faster in a short measurement.",
    "workers": "number of processes that share the runs, or auto: one per GPU, or else one per CPU core.",
    "cluster": "train on a Dask cluster: its address, or its scheduler's file.",
    "width": "number of lanes at once (default: measured).",
    "budget": "stop after this time (6h, 90min); the next call continues.",
    "dry_run": "print what would be trained, and exit.",
    "command": "words of the command line, for the suite's own use.",
    "data": "folder of the data sets (default: $BENCH_DATA, else ./data).",
    "store": "folder of the runs (default: $BENCH_STORE, else ./runs).",
    "progress": "show progress and notes on standard error.",
    "only": "only runs with this setting (trainer.max_steps=1000), version (versions.torch=2.15.0) or engine; may be"
    " given several times.",
    "which": "those to show of each optimizer: best takes the tuned ones, else the defaults, else the one set by hand"
    " if there is exactly one.",
    "reference": "optimizer to compare the others with (default: adamw, or gd for full batches).",
    "no_reference": "leave out the shipped reference results.",
    "hyperparameters": 'of the optimizer: `lr=0.1`; `matrix={"lr": 0.01}` for the parameters of one role.',
}
"""The meaning of parameters by name, where a docstring does not say it; `which` is that of `settings: Which`."""


class Executing(TypedDict, total=False):
    """Of functions that train a given plan."""

    engine: Literal["auto", "lanes", "lightning"] | None
    workers: int | str | None
    cluster: str | None
    width: int | None
    budget: str | None
    dry_run: bool
    command: Sequence[str] | None
    data: Place | None
    store: Place | None
    progress: bool


class Fitting(Executing, total=False, extra_items=Any):
    """Of functions that train settings of the call; other names are hyperparameters."""

    config: Place | None
    data_seed: int | None
    precision: str | None
    device: str | None
    task_options: Settings | None
    trainer: Settings | None
    settings: Settings | None


class Choice(TypedDict, total=False):
    """Of functions that compare stored runs."""

    task: Names | None
    opt: Names | None
    only: Mapping[str, Any] | Sequence[str] | None
    settings: Which
    reference: str | None
    no_reference: bool
    store: Folders
    progress: bool


F = TypeVar("F", bound=Callable[..., Any])
MOST_WORKERS = 10_000
"""More are probably a typo. Ours."""
LEAST = {"trials": 1, "width": 1, "runs": 1}
"""The smallest values of numbers by name."""


def public(function: F) -> F:
    """Complete a function: its shared parameters appear one by one, and values become those of the declared types."""
    signature = _flat(inspect.signature(function))

    @wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        try:
            bound = signature.bind(*args, **more)
        except TypeError as error:
            raise UserError(f"bench.{function.__name__.rstrip('_')}: {error}") from None
        for name, value in bound.arguments.items():
            kind = signature.parameters[name]
            if kind.kind is kind.VAR_POSITIONAL:
                bound.arguments[name] = tuple(_typed(name, item, kind.annotation) for item in value)
            elif kind.kind is not kind.VAR_KEYWORD:
                bound.arguments[name] = _typed(name, value, kind.annotation)
        with _session(bound.arguments.get("progress", True)):
            return function(*bound.args, **bound.kwargs)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _documented(function, signature)
    return call  # type: ignore[return-value]


@contextmanager
def _session(progress: bool) -> Iterator[None]:
    """Errors of plug-ins become UserError, and torch has as many threads as before; without progress, be silent."""
    torch: Any = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()  # the suite uses one for small models
    with silenced(not progress), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # tqdm's warning in a notebook; its bars are not used
        try:
            yield
        except PluginError as error:
            raise UserError(str(error)) from error
        finally:
            if threads is not None:
                from bench.train.threads import set_threads

                set_threads(threads)


def _flat(signature: inspect.Signature) -> inspect.Signature:
    """The signature with the keys of `**more: Unpack[...]` as parameters."""
    *parameters, last = signature.parameters.values()
    if not (last.kind is last.VAR_KEYWORD and get_args(last.annotation)):
        return signature
    (shared,) = get_args(last.annotation)
    kinds = get_type_hints(shared)
    for name in sorted(kinds, key=list(MEANINGS).index):
        default = name == "progress" if kinds[name] is bool else None
        parameters.append(inspect.Parameter(name, last.KEYWORD_ONLY, default=default, annotation=kinds[name]))
    if getattr(shared, "__extra_items__", None) is Any:
        parameters.append(last.replace(name="hyperparameters", annotation=Any))
    return signature.replace(parameters=parameters)


def _documented(function: Callable[..., Any], signature: inspect.Signature) -> str:
    """The docstring, with the meaning of shared parameters at the end of its section `Args:`."""
    head, mark, tail = (inspect.getdoc(function) or "").partition("\n\nRaises:")
    names = {"which" if kind.annotation is Which else name: name for name, kind in signature.parameters.items()}
    lines = [f"    {names[key]}: {text}" for key, text in MEANINGS.items() if key in names and key != "command"]
    lines = [line for line in lines if f"\n{line.partition(': ')[0]}: " not in head]
    if lines and "\n\nArgs:\n" not in head:
        lines = ["\nArgs:", *lines]
    return "\n".join([head, *lines]) + mark + tail


# -- values -----------------------------------------------------------------------------------------------------------


def _typed(name: str, value: Any, kind: Any) -> Any:
    """A value of Python, or a word of the command line, as the declared type (UserError)."""
    from pydantic import TypeAdapter, ValidationError  # takes 0.1 s, which usage errors need not wait for

    value = plain(value)
    for text in value if isinstance(value, list) and name != "command" else [value]:
        if isinstance(text, str) and not text.strip() and name not in ("data", "store"):
            raise UserError(f"--{name} {text!r}: it is empty; write a value, or leave it out")
        if isinstance(text, str | Path) and re.search("[\0\ud800-\udfff]", str(text)):
            raise UserError(f"--{name} {text!r}: it is not text in UTF-8; rename it")
    try:
        typed = TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        for member in (kind, *get_args(kind)):
            if get_origin(member) is Literal:
                raise unknown(name, str(value), get_args(member)) from None
        reasons = [why_wrong(one["msg"]).removeprefix("it must be ") for one in error.errors()]
        known = dict.fromkeys(why.replace("an instance of Sequence", "a list") for why in reasons if "path" not in why)
        given = value if isinstance(value, str) else repr(value)
        raise UserError(f"--{name} {given}: it must be {' or '.join(known) or 'text or a path'}") from None
    if isinstance(typed, int) and typed < LEAST.get(name, typed):
        raise UserError(f"--{name} {typed}: it must be at least {LEAST[name]}")
    return typed


def plain(value: Any) -> Any:
    """A value as plain Python types: arrays and tensors become lists or numbers, a range a list."""
    if isinstance(value, list | range):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def path_of(where: Place | None) -> Path | None:
    """A path; None stays."""
    return None if where is None else Path(where)


def folders(store: Folders) -> list[Path]:
    """The folders of one store or several; none if not given."""
    several = [store] if store is None or isinstance(store, str | Path) else store
    return [place("store", str(folder)) for folder in several if folder is not None]


def names(argument: str, given: Any) -> list[Any] | None:
    """Names, or classes, as a list, from `A,B` or a sequence (UserError); None stays."""
    if given is None:
        return None
    several = given if isinstance(given, list | tuple) else [given]
    listed = [name for item in several for name in (parts(item, f"--{argument}") if isinstance(item, str) else [item])]
    if not listed:
        raise UserError(f"--{argument} {','.join(several) or repr('')}: it is empty; write A,B")
    return listed


def pairs(argument: str, values: Mapping[str, Any] | Sequence[str] | None) -> dict[str, str]:
    """Values by name, from a mapping or from words NAME=VALUE (UserError)."""
    if isinstance(values, Mapping):
        return {name: word_of(value) for name, value in values.items()}
    words = [word.partition("=") for word in (values or ())]
    for name, equals, value in words:
        if not (name and equals):
            raise UserError(f"--{argument} {name}{equals}{value}: write NAME=VALUE, as in trainer.max_steps=1000")
    return {name.removeprefix("--"): value for name, _, value in words}


class Call:
    """The shared arguments of a call, read; those that are no shared parameter are hyperparameters.

    `words` are its settings in dotted form, among them `top`, those without a group, such as `seed`. `places` are the
    folders of data and store, `folders` those that the call names; `efforts` are its arguments for `effort`.
    """

    def __init__(self, more: Mapping[str, Any], task: Any = None, opts: Iterable[Any] = (), **top: Any) -> None:
        rest, shared = dict(more), Fitting.__annotations__
        given: dict[str, Any] = {name: value for name in shared if (value := rest.pop(name, None)) is not None}
        self.places = {name: place(name, str(given[name]) if name in given else None) for name in ("data", "store")}
        self.folders = {name: folder for name, folder in self.places.items() if name in given}
        self.efforts = {name: given[name] for name in vars(Effort()) if name in given}
        effort = dict(self.efforts)
        if (workers := effort.get("workers", "auto")) != "auto":
            if not str(workers).isdecimal() or not 0 < int(workers) <= MOST_WORKERS:
                raise UserError(f"--workers {workers}: write how many (--workers 2), or auto")
            effort["workers"] = str(workers)
        if "budget" in effort:
            effort["budget"] = read_budget(effort["budget"])
        self.effort = Effort(**effort)
        self.dry_run, self.progress = given.get("dry_run", False), given.get("progress", True)
        self.config, self.command = path_of(given.get("config")), given.get("command")
        top |= {name: given.get(name) for name in ("data_seed", "precision", "device")}
        named = {"opt": ",".join(map(name_of, opts)) or None, "task": task if task is None else name_of(task), **top}
        self.words: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        self.words |= _dotted("task", given.get("task_options", {})) | _dotted("opt", rest)
        self.words |= _dotted("trainer", given.get("trainer", {}))
        self.words |= {name: plain(value) for name, value in given.get("settings", {}).items()}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the file `config`, and those of the call, which override them."""
        from bench.sweeps.grid import settings_in  # imports pydantic

        return settings_in(self.config) | self.words


def _dotted(group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    dotted: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{group}.{name}"
        dotted |= _dotted(key, value) if isinstance(value, Mapping) else {key: plain(value)}
    return dotted
