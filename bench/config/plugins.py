"""Which code named in a record may run: installed code, and code that the user names on the command line."""

import base64
import pickle
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.errors import UserError
from bench.text import clean
from optimizers import OPTIMIZERS
from optimizers.plugins import bare, provenance, session
from tasks import TASKS

_REGISTRIES = {"task": TASKS, "opt": OPTIMIZERS}

Names = Mapping[str, str]
"""A `task` and an `opt`."""


def naming(*recorded: Names) -> list[str]:
    """Command-line words for code that records name and that is not installed: `--opt my_file.py:MyOpt`."""
    pairs = dict.fromkeys((kind, names[kind]) for names in recorded for kind in _REGISTRIES if kind in names)
    return [word for kind, name in pairs if not _installed(kind, name) for word in (f"--{kind}", name)]


def allowed(
    recorded: Names,
    versions: Mapping[str, object],
    named: Mapping[str, Sequence[str]],
    what: str,
    command: Sequence[str],
) -> dict[str, str]:
    """The names under which the task and the optimizer of a record may be imported; nothing is imported yet.

    Records are untrusted. So a file or a module is imported only if the user names it too (`named`, by kind) and its
    digest is the one in the record's `versions`. Entry points of installed packages need not be named. An error names
    the record (`what`) and adds the missing names to the user's `command`.
    """
    names: dict[str, str] = {}
    unnamed: dict[str, str] = {}
    for kind, registry in _REGISTRIES.items():
        name, package = recorded[kind], versions.get(f"{kind}_package") or "an unrecorded package"
        if _installed(kind, name):
            if name not in registry:
                raise UserError(clean(f"{what} was trained with {name} of {package}; install that version"))
            names[kind] = name
        elif same := [given for given in named.get(kind, ()) if bare(given) == bare(name)]:
            names[kind] = same[0]
        else:
            unnamed[kind] = name
    if unnamed:
        words = shlex.join([*command, *naming(unnamed)])
        raise UserError(
            clean(f"{what} names {' and '.join(unnamed.values())}, and imports it only if you name it too: {words}")
        )
    for kind, name in names.items():
        file, _, _ = name.rpartition(":")
        if _installed(kind, name):
            continue
        if file.endswith(".py") and not Path(file).is_file():
            raise UserError(clean(f"{what} needs {file}, and there is no such file; name it with its folder"))
        then, now = versions.get(f"{kind}_package"), provenance(name)
        if now != then and not (then is None and now.startswith("torch ")):  # the record has torch's version anyway
            raise UserError(
                clean(
                    f"{what} began with {name} as {then or 'an unrecorded package'}, and here it is {now}, so it is not"
                    " imported; name the original, or start a new one"
                )
            )
    return names


def _installed(kind: str, name: str) -> bool:
    """Whether a name needs no file or module, or an installed package announces exactly that module."""
    points = (point.value for several in _REGISTRIES[kind].announced.values() for point in several)
    return ":" not in name or name in points


def packed() -> str:
    """The objects of this session, for `adopt` in another process."""
    if not session:
        return ""
    import cloudpickle

    return base64.b64encode(cloudpickle.dumps(session)).decode()


def adopt(text: str) -> None:
    """Take over the objects of another process's session, from a job of its own."""
    if text:
        session.update(pickle.loads(base64.b64decode(text)))
