"""From a class or a spec to a name for `--opt` or `--task`, and a digest of the source of one that has no file."""

import dataclasses
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from bench.errors import UserError
from optimizers import OptimizerSpec
from optimizers.plugins import SESSION, session
from tasks import TaskSpec


def name_of(value: Any) -> str:
    """The name of an optimizer or a task: the given one, or that of a class or a spec.

    A class of a package is `module:Class`, one of a file `file.py:Class`. Any other, such as one of a notebook or the
    running script, is kept under `__main__:Class` for this process and its workers, with a digest of its source.

    Args:
        value: a name as `bench list` prints it, `module:Class`, `file.py:Class`, a class, or a spec.

    Raises:
        UserError: it is none of these, or has no source.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, type | OptimizerSpec | TaskSpec):
        raise UserError(f"{value!r} is no optimizer or task: pass a name, 'file.py:MyClass', a class or a spec")
    if isinstance(value, type) and not _is_of_session(value):
        module, file = value.__module__, getattr(sys.modules[value.__module__], "__file__", None)
        folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        in_package = sys.modules[module].__package__ or file is None
        if in_package or any(Path(str(file)).is_relative_to(folder) for folder in folders):
            return f"{module}:{value.__qualname__}"
        path = Path(str(file)).resolve()
        short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{short}:{value.__qualname__}"
    name = f"{SESSION}:{value.__name__ if isinstance(value, type) else value.name}"
    try:
        session[name] = f"source {digest_of(value)}", value
    except OSError:
        raise UserError(
            f"{name} has no source that Python can find; write it into a file and pass 'file.py:NAME'"
        ) from None
    return name


def _is_of_session(value: Any) -> bool:
    """Whether a class or a function cannot be imported by its name in another process."""
    at: Any = sys.modules.get(value.__module__) if value.__module__ != "__main__" else None
    for part in value.__qualname__.split("."):
        at = getattr(at, part, None)
    return at is not value


def digest_of(value: Any) -> str:
    """A digest of the source of a class or a spec, with all that it uses of its session.

    Raises:
        OSError: Python does not find the source.
    """
    texts: list[str] = []
    known: set[int] = set()

    def add(piece: Any) -> None:
        piece = getattr(piece, "fget", getattr(piece, "__func__", piece))
        piece = inspect.unwrap(piece) if callable(piece) else piece
        if id(piece) in known:
            return
        known.add(id(piece))
        if isinstance(piece, ModuleType):
            texts.append(piece.__name__)
        elif isinstance(piece, type | FunctionType) and not _is_of_session(piece):
            texts.append(f"{piece.__module__}.{piece.__qualname__}")
        elif isinstance(piece, FunctionType):
            texts.append(inspect.getsource(piece))
            for name in _names(piece.__code__):
                if name in piece.__globals__:
                    add(piece.__globals__[name])
            for cell in piece.__closure__ or ():
                add(cell.cell_contents)
        elif isinstance(piece, type):
            texts.append(piece.__qualname__)
            for member in (*piece.__bases__, *_members(piece)):
                add(member)
        elif dataclasses.is_dataclass(piece) or isinstance(piece, Mapping | list | tuple):
            items = vars(piece) if dataclasses.is_dataclass(piece) else piece
            for item in items.items() if isinstance(items, Mapping) else items:
                add(item)
        elif isinstance(piece, int | float | complex | str | bytes | None):
            texts.append(repr(piece))
        else:  # such as a tensor, whose text is not all of it
            texts.append(hashlib.sha256(cloudpickle.dumps(piece)).hexdigest())

    add(value)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _names(code: CodeType) -> set[str]:
    """The global names that code may use."""
    return {*code.co_names}.union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))


def _members(cls: type) -> list[Any]:
    """Names and values of what a class defines; torch adds a wrapped `step` to a class that inherits it."""
    special = ("__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__qualname__", "step")
    step = [inspect.unwrap(cls.step)] if "step" in vars(cls) else []  # pyright: ignore[reportAttributeAccessIssue]
    own = [function for function in step if function.__qualname__ == f"{cls.__qualname__}.step"]
    return [*own, *(item for name, value in vars(cls).items() if name not in special for item in (name, value))]
