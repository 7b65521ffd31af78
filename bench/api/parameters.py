"""Parameters that several functions share: the type of each, and its help on the command line and in Python."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

if TYPE_CHECKING:
    from torch.optim import Optimizer

    Opt = str | type[Optimizer]
else:
    Opt = str  # the command line takes a name

Place = str | Path
Names = str | Sequence[str]
Seeds = int | str | Sequence[int]
Settings = Mapping[str, Any]

Hidden = Parameter(parse=False)
"""Of parameters that the command line fills in or does not have."""


def option(text: str, alias: str | None = None) -> Parameter:
    """A parameter that cyclopts converts to its type."""
    return Parameter(help=text, alias=alias)


def word(text: str, alias: str | None = None) -> Parameter:
    """A parameter that the command line passes as a word, which the function reads as it reads Python values."""
    return Parameter(help=text, alias=alias, n_tokens=1)


def words(text: str, alias: str | None = None) -> Parameter:
    """The same for one that may be given several times."""
    return Parameter(help=text, alias=alias, n_tokens=-1)


def on_command_line(parameter: inspect.Parameter) -> inspect.Parameter | None:
    """A parameter with the type that the command line converts to; None if the command line does not have it."""
    hint = next(iter(getattr(parameter.annotation, "__metadata__", ())), None)
    if hint is None or hint.parse is False:
        return None
    if hint.n_tokens is not None:
        kind = list[str] if hint.n_tokens < 0 else str
        repeated = parameter.name not in ("task", "opt") or kind is not str
        plain = Parameter(help=hint.help, alias=hint.alias, allow_repeating=repeated)
        default = parameter.default if parameter.default is parameter.empty else None
        parameter = parameter.replace(annotation=Annotated[kind | None, plain], default=default)
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
        is_option = parameter.name in ("task", "opt", "board")
        parameter = parameter.replace(kind=parameter.KEYWORD_ONLY if is_option else parameter.POSITIONAL_ONLY)
    return parameter


Task = Annotated[str | None, word("A task: a name of `bench list tasks`, or `file.py:SPEC`.")]
OneOpt = Annotated[Opt | None, word("An optimizer: a name of `bench list optimizers`, `file.py:Class`, or a class.")]
Opts = Annotated[
    Opt | Sequence[Opt] | None, words("One or more optimizers, each as for `fit`: `ngd,my_file.py:MyOpt`.")
]
Data = Annotated[Place | None, word("Folder of the data sets (default: $BENCH_DATA, else ./data).")]
Store = Annotated[Place | None, word("Folder of the runs (default: $BENCH_STORE, else ./runs).")]
Stores = Annotated[
    Sequence[Place] | Place | None,
    words("Folder of the runs; may be given several times (default: $BENCH_STORE, else ./runs)."),
]
Config = Annotated[Place | None, word("YAML file of settings; options override it.")]
Seed = Annotated[int | None, word("Seed of problem instance, initialisation and dropout, from 0 (default 0).")]
DataSeed = Annotated[int | None, word("Seed of the order of the samples (default: the run's seed).")]
Precision = Annotated[str | None, word("32-true, bf16-mixed, 16-mixed or 64-true (default: the task's).")]
Device = Annotated[str | None, word("cpu, cuda, mps or auto (default auto).")]
Logger = Annotated[str | None, word("Also log to tensorboard, csv or wandb (extras).")]
Engine = Annotated[
    Literal["auto", "lanes", "lightning"] | None,
    option("lanes: vectorised runs; lightning: one by one; auto (default): the faster in a short measurement."),
]
Workers = Annotated[
    int | str | None,
    word("Number of processes that share the runs, or auto: one per GPU, or else one per CPU core."),
]
Cluster = Annotated[str | None, word("Train on a Dask cluster: its address, or its scheduler's file.")]
Width = Annotated[int | None, word("Number of lanes at once (default: measured).")]
Budget = Annotated[
    str | None,
    word("Stop after this time (6h, 90min) and continue on the next call, or refuse more than N runs (200runs)."),
]
TuningSeeds = Annotated[
    Seeds | None, word("Tuning seeds of each trial: a number (2: seeds 1000 and 1001) or a list (default 2).")
]
ReportSeeds = Annotated[
    Seeds | None,
    word("Fresh seeds of each winner: a number (default 7: 0 to 6) or a list; fewer than 7 decide no verdict."),
]
Trials = Annotated[
    int | None,
    word("Number of trials (default nine). A grid adds up to 8 points beyond an edge while the best is there."),
]
DryRun = Annotated[bool, option("Print what would be trained, and exit.")]
OnlyTasks = Annotated[Names | None, words("Only these tasks: A,B.")]
OnlyOpts = Annotated[Names | None, words("Only these optimizers: A,B.")]
Only = Annotated[
    Mapping[str, Any] | Sequence[str] | None,
    words(
        "Only runs with this setting (trainer.max_steps=1000), version (versions.torch=2.15.0) or engine; may be"
        " given several times."
    ),
]
Which = Annotated[
    Literal["best", "tuned", "default", "all"],
    option("Settings to show of each optimizer: best takes the tuned ones, else the defaults, else the one set by hand"
          " if there is exactly one."),
]  # fmt: skip
NoReference = Annotated[bool, option("Leave out the shipped reference results.")]
Mixed = Annotated[bool, option("Compare runs of different versions.")]
Reference = Annotated[
    str | None, word("Optimizer to compare the others with (default: adamw, or gd for full batches).")
]
Target = Annotated[
    float | str | None,
    word("Value of the metric that counts as reached, for `speed` and profiles (default: the task's)."),
]
Out = Annotated[Place | None, word("File or folder to write.", "-o")]

TaskSettings = Annotated[Settings | None, Hidden]
TrainerSettings = Annotated[Settings | None, Hidden]
AllSettings = Annotated[Settings | None, Hidden]
Progress = Annotated[bool, Hidden]
Command = Annotated[Sequence[str] | None, Hidden]

_HIDDEN = {
    "task_options": "options of the task by name (`bench show TASK` lists them).",
    "trainer": 'budget, batch and schedule by name: `{"max_epochs": 2, "batch_size": 64}`.',
    "settings": 'further settings in dotted form, `{"opt.matrix.lr": 0.01}`; they override the others.',
    "progress": "show progress on standard error.",
    "hyperparameters": 'of the optimizer: `lr=0.1`; `matrix={"lr": 0.01}` for the parameters of one role.',
}
"""Parameters of Python alone; `command`, the words of the command line, is for the suite's own use."""

F = TypeVar("F", bound=Callable[..., Any])


def documented(function: F) -> F:
    """Add the shared parameters to the section `Args:` of a docstring, in the order of the signature."""
    doc = inspect.getdoc(function) or ""
    lines = []
    for name, parameter in inspect.signature(function).parameters.items():
        hints = [each.help for each in getattr(parameter.annotation, "__metadata__", ()) if each.help]
        text = hints[0] if hints else _HIDDEN.get(name)
        if text and f"\n    {name}: " not in doc:
            lines.append(f"    {name}: {text if text[1:2].isupper() else text[:1].lower() + text[1:]}")
    head, mark, tail = doc.partition("\nArgs:\n")
    if not mark:
        head, _, tail = doc.partition("\nRaises:")
        tail = f"\nRaises:{tail}" if tail else ""
    function.__doc__ = "\n".join([head.rstrip("\n"), "", "Args:", *lines, tail.lstrip("\n") if mark else tail])
    return function
