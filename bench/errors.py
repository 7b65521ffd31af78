"""Errors that a user can mend; the command line prints their message on one line and exits with their code."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something that the user asked for cannot be done; the message says what, with which value, and what to do."""

    exit_code = 2


class RunFailed(UserError):
    """A run broke after it had started (disk full, out of memory); the store keeps its record."""

    exit_code = 1


class RunBusy(UserError):
    """Another process trains this run now."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return UserError(f"unknown {kind} {name!r}; {hint}")
