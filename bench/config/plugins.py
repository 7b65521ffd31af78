"""Which code named in a record may run: installed code, and code that the user names on the command line."""

import pickle
from collections.abc import Mapping, Sequence

from bench.errors import UserError
from bench.text import clean
from optimizers import OPTIMIZERS
from optimizers.plugins import bare, session
from tasks import TASKS


def allowed(recorded: Mapping[str, str], named: Mapping[str, Sequence[str]], what: str) -> dict[str, str]:
    """The names under which the `task` and the `opt` of a record (`what`) may be imported; nothing is imported yet.

    Records are untrusted. So a file or a module that no installed package announces is imported only if the user names
    it too (`named`, by kind; else a UserError).
    """
    names: dict[str, str] = {}
    for kind, registry in (("task", TASKS), ("opt", OPTIMIZERS)):
        announced = {point.value for point in registry.announced.values()}
        known = [recorded[kind]] if ":" not in recorded[kind] or recorded[kind] in announced else named.get(kind, ())
        name = next((name for name in known if bare(name) == bare(recorded[kind])), None)
        if name is None:
            why = "which is imported only if you name it too: repeat the command with"
            raise UserError(clean(f"{what} names {recorded[kind]}, {why} --{kind} {recorded[kind]}"))
        names[kind] = name
    return names


def packed() -> bytes:
    """The objects of this session, for `adopt` in another process."""
    if not session:
        return b""
    import cloudpickle

    return cloudpickle.dumps(session)


def adopt(objects: bytes) -> None:
    """Take over the objects of another process's session, from a job of its own."""
    if objects:
        session.update(pickle.loads(objects))
