"""Observers of the operations of a step: synchronisations with a GPU, and allocated memory."""

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that need values on the host, to return them or to know the size of the result.
_READS = {
    *("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"),
    *("equal", "bincount"),
}
# Methods without an operation if the tensor is already on the host.
_METHODS = {"cpu", "numpy", "tolist", "__array__"}
_SUITE = str(Path(__file__).parent.parent) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep


def place() -> str:
    """`FILE, line N` of the running code, outside the kit, torch and Python; else in torch's optimizers, or nothing."""
    frame: Any = sys._getframe(1)
    within = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH):
            if not within and file.startswith(f"{_TORCH}optim{os.sep}"):
                within = f"{file}, line {frame.f_lineno}"
        elif "site-packages" in file or not file.startswith(("<", _SUITE, _PYTHON)):
            return f"{file}, line {frame.f_lineno}"
        frame = frame.f_back
    return within


class Reads(TorchDispatchMode):
    """Counts reads of values that would be on a GPU if the parameters were.

    These are the given tensors, results of operations on them, and tensors created on an explicit device, since that
    is then a parameter's. A counter made by `torch.tensor(0.0)` stays on the host, free to read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, Any] = {}  # kept alive, so that no other takes their address
        self.reads: list[str] = []
        self.methods = _Methods(self)

    def __enter__(self) -> Any:
        self.methods.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.methods.__exit__(*error)

    def note(self, name: str) -> None:
        """Count a read."""
        where = place()
        self.reads.append(f"{name} ({where})" if where else name)

    def given(self, tensors: list[Tensor]) -> None:
        """Mark tensors as on the device."""
        self.storages |= {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}

    def on_device(self, tensors: list[Tensor]) -> bool:
        """Whether one of them is on the device."""
        return any(t.untyped_storage()._cdata in self.storages for t in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note it."""
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::").partition(".")[0]
        inputs = _tensors((args, kwargs))
        on_device = self.on_device(inputs)
        if on_device and (name in _READS or _masked(name, args)):
            self.note(name)
        out = func(*args, **kwargs)
        if on_device or (not inputs and kwargs.get("device") is not None):
            self.given(_tensors(out) + (inputs if on_device and func._schema.is_mutable else []))
        return out


class _Methods(TorchFunctionMode):
    """Reports methods that dispatch no operation to `Reads`."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.of = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the call and execute it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        to_host = name == "to" and "cpu" in [a for a in (*args, *kwargs.values()) if isinstance(a, str)]
        if (name in _METHODS or to_host) and self.of.on_device(_tensors(args[:1])):
            self.of.note(name)
        return func(*args, **kwargs)


def _masked(name: str, args: Any) -> bool:
    """Whether a mask selects elements, so that the host must know their number."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])


class Memory(TorchDispatchMode):
    """Sums the bytes of live tensors created by operations; `peak` is the largest sum since it was last set."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and record its results."""
        kwargs = kwargs or {}
        inputs = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        out = func(*args, **kwargs)
        for t in _tensors(out):
            storage = t.untyped_storage()
            if storage._cdata not in inputs:
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.now())
        return out

    def now(self) -> int:
        """Live bytes."""
        self.alive = {key: value for key, value in self.alive.items() if not value[0].expired()}
        return sum(size for _, size in self.alive.values())


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors among arguments or results of an operation; torch's own pytrees take as long as a small operation."""
    if isinstance(tree, Tensor):
        return [tree] if tree.layout == torch.strided else []
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [tensor for branch in tree for tensor in _tensors(branch)]
