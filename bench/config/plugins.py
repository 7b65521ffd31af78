"""Which code named in a record may run: installed code, and code that the user names on the command line."""

import base64
import pickle
import shlex
from collections.abc import Mapping, Sequence

from bench.errors import UserError
from bench.text import clean
from optimizers import OPTIMIZERS
from optimizers.plugins import bare, provenance, session
from tasks import TASKS

_REGISTRIES = {"task": TASKS, "opt": OPTIMIZERS}

Names = Mapping[str, str]
"""A `task` and an `opt`."""


def allowed(
    recorded: Names,
    versions: Mapping[str, object],
    named: Mapping[str, Sequence[str]],
    what: str,
    command: Sequence[str],
) -> dict[str, str]:
    """The names under which the task and the optimizer of a record (`what`) may be imported; nothing is imported yet.

    Records are untrusted. So a file or a module is imported only if the user names it too (`named`, by kind; errors
    complete the user's `command`) and its digest is the one in the record's `versions`.
    """
    names: dict[str, str] = {}
    for kind in _REGISTRIES:
        same = (name for name in named.get(kind, ()) if bare(name) == bare(recorded[kind]))
        name = recorded[kind] if _installed(kind, recorded[kind]) else next(same, None)
        names |= {kind: name} if name is not None else {}
    if unnamed := {kind: recorded[kind] for kind in _REGISTRIES if kind not in names}:
        words = shlex.join([*command, *(word for kind, name in unnamed.items() for word in (f"--{kind}", name))])
        why = f"{what} names {' and '.join(unnamed.values())}, and imports it only if you name it too: {words}"
        raise UserError(clean(why))
    for kind, name in names.items():
        then = versions.get(f"{kind}_package")
        if _installed(kind, name):
            if name not in _REGISTRIES[kind]:
                raise UserError(clean(f"{what} was trained with {name} of {then or '?'}; install that version"))
        # The record has torch's version anyway.
        elif (now := provenance(name)) != then and not (then is None and now.startswith("torch ")):
            why = f"{what} began with {name} as {then or 'an unrecorded package'}, and here it is {now}"
            raise UserError(clean(f"{why}, so it is not imported; name the original, or start a new one"))
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
