"""Errors that a user can fix; the command line prints their message on one line and exits with their code."""

import os
import traceback
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from bench.near import meant, nearest

ANYTHING = "task, optimizer, experiment or run"
"""What `bench show` describes, as the kind of an unknown name."""
MAKE_ROOM = "; free some space, then repeat the command"
"""What to do about a full disk."""


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


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = list(known)
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}" if known else "there is none"
    if kind in ("optimizer", "task", ANYTHING) and not near and "." in name:
        example = "SPEC" if kind == "task" else "MyClass"
        hint = f"name your own as my_file.py:{example} or my_package.module:{example}"
    return UserError(f"unknown {kind} {name!r}; {hint}")


def unknown_option(option: str, known: Iterable[str], command: str = "fit --task TASK --opt OPTIMIZER") -> UserError:
    """The error for an option that a command does not have, with the closest one; all with their dashes."""
    near = meant(option, known)
    hint = f"did you mean {near!r}?" if near else f"`{f'bench {command}'.strip()} -h` lists the options"
    return UserError(f"unknown option {option!r}; {hint}")


def unknown_setting(name: str, known: Iterable[str]) -> UserError:
    """The error for a setting, in dotted form, that does not exist."""
    return unknown_option(f"--{name}", known)


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
    return error is not None and (
        isinstance(error, KeyboardInterrupt) or was_interrupted(error.__cause__ or error.__context__)
    )
