"""Errors that a user can fix; the command line prints their message on one line and exits with their code."""

import os
import traceback
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

ANYTHING = "task, optimizer, experiment or run"
"""What `bench show` describes, as the kind of an unknown name."""
MAKE_ROOM = "; free some space, then repeat the command"
"""What to do about a full disk."""
_COMMANDS = {
    "fit": "train run", "sweep": "grid", "tune": "optimize search hpo", "leaderboard": "results ranking evaluate",
    "plot": "chart graph figure", "check": "test", "verify": "validate", "reproduce": "replicate", "show": "info",
    "reproduce --claims": "claims", "list": "ls", "list runs": "status", "data prepare": "download fetch prepare",
    "sql": "query", "merge": "import", "compare": "diff", "new": "init create", "--version": "version",
}  # fmt: skip
FOREIGN_COMMANDS = {word: name for name, words in _COMMANDS.items() for word in words.split()}
"""Commands of other programs, and ours."""
FOREIGN_OPTIONS = {
    "trainer.max_epochs": "epochs", "trainer.max_steps": "steps step iterations iters", "trainer.batch_size": "bs",
    "opt.lr": "learning_rate", "opt.weight_decay": "wd", "opt.momentum": "momentum", "opt.betas": "momentum",
    "opt": "optimizer optimiser", "task": "model dataset", "task.depth": "layers", "workers": "gpus jobs n_jobs j",
    "trainer.devices": "gpus", "device": "gpu cpu cuda accelerator", "precision": "fp16 bf16 amp", "seed": "seed",
    "logger": "wandb tensorboard", "out": "output output_dir format", "store": "output output_dir", "budget": "timeout",
    "trials": "n_trials n", "seeds": "seed n", "runs": "n cells", "rerun": "force overwrite", "anyway": "force",
}  # fmt: skip
"""Our options in order of preference, and their names in other programs."""


class UserError(Exception):
    """An invalid or impossible request; the message names the value at fault and what to do."""

    exit_code = 2


class RunFailed(UserError):
    """A run failed after it had started (disk full, out of memory); the store keeps its record."""

    exit_code = 1


class RunBroke(RunFailed):
    """The code of a plug-in failed in a run; `runs` says why runs failed, by id, if several were requested."""

    runs: Mapping[str, str] = MappingProxyType({})


class RunBusy(UserError):
    """Another process trains this run now."""


def nearest(word: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """The known name closest to a misspelt word; None if none has this similarity, in [0, 1]."""
    return next(iter(several(word, known, 1, least)), None)


def several(word: str, known: Iterable[str], most: int = 3, least: float = 0.6) -> list[str]:
    """The known names closest to a misspelt word, at most so many. Dashes equal underscores, and case is ignored."""
    names = {_plain(name): name for name in known}
    begins = [name for name in names if len(word) > 2 and name.startswith(_plain(word))]
    return [names[near] for near in get_close_matches(_plain(word), names, most, least) or begins[:most]]


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_").lower()


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = list(known)
    near = nearest(name, known)
    names = "see `bench list tasks|optimizers|experiments|runs`" if kind == ANYTHING else f"known: {', '.join(known)}"
    hint = f"did you mean {near!r}?" if near else names if known else "there is none"
    hint = "give one; `bench compare` takes several" if kind in ("optimizer", "task") and "," in name else hint
    if kind in ("optimizer", "task", ANYTHING) and not near and "." in name:
        example = "SPEC" if kind == "task" else "MyClass"
        hint = f"name your own as my_file.py:{example} or my_package.module:{example}"
    return UserError(f"unknown {kind} {name!r}; {hint}")


def unknown_option(option: str, known: Iterable[str], command: str = "fit --task TASK --opt OPTIMIZER") -> UserError:
    """The error for an option that a command does not have, with a synonym or the closest one; all with dashes."""
    names = {_plain(name): name for name in known}
    group, dot, rest = _plain(option).partition(".")
    word = rest if dot else group
    inside = {name.partition(".")[2]: full for name, full in names.items() if name.startswith(f"{group}.")}
    bare = {name.rpartition(".")[2]: names[name] for name in reversed(names)}
    ours = [ours for ours, words in FOREIGN_OPTIONS.items() if word in words.split()]
    foreign = [f"--{name}" for name in ours if dot and name.startswith("trainer.")]  # which all runs have
    candidates = [names[name] for name in (_plain(option), *ours) if name in names]
    among = inside if dot and inside else bare  # a near name of another group would be a coincidence
    top_level = {} if dot else {name: full for name, full in names.items() if "." not in name}
    of_group = [f"--{group}.NAME"] * bool(inside and not dot)
    close = of_group or [among[n] for plain in (top_level, among) for n in several(word, plain, 1, 0.65)]
    same = [inside[name] for name in several(word, inside, 1, 0.85)] if dot else []
    near = next(iter([*candidates, *same, *filter(None, [bare.get(word)]), *close, *foreign]), None)
    hint = f"did you mean {near!r}?" if near else f"`{f'bench {command}'.strip()} -h` lists the options"
    return UserError(f"unknown option {option!r}; {hint}")


def check_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that do not exist."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


def described(error: BaseException) -> str:
    """An exception in one line, with the last place outside the suite, torch and Lightning."""
    suite = os.path.dirname(__file__)  # noqa: PTH120 - compared with names of frames
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [p for p in frames if not p[0].startswith(suite) and not {"torch", "lightning"} & {*Path(p[0]).parts}]
    return first_line(error)[:350] + "".join(f" ({file}, line {line})" for file, line in places[-1:])


def first_line(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no message')}"


def was_interrupted(error: BaseException | None) -> bool:
    """Whether a KeyboardInterrupt caused the error: a library may fail when one passes through it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
