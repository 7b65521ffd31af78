"""The Euclidean norm of many tensors at once, over all shards, without a host synchronisation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def scalar_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which step sizes and norms of tensors of this dtype are kept: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def to_local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor (DTensor) that this rank holds; an ordinary tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def whole(value: Any) -> Any:
    """A sharded tensor (DTensor) gathered, on all ranks at once; anything else unchanged."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def cut_like(tensor: Tensor, like: Tensor, source: int | None = 0) -> Tensor:
    """A tensor, sharded as `like` is; itself if it is sharded already, or `like` is not.

    All ranks call this at once: they get their parts from the rank `source`, or, with None, cut their own copies.
    """
    if hasattr(tensor, "full_tensor") or not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=source)


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all elements of all dense real tensors together, over all shards; 0 for an empty list.

    It is 0-dim on the device of the first tensor, float32 or, for float64 input, float64; nothing is copied to the
    host. Squares are summed without scaling: numbers below about 1e-19 in float32 (1e-154 in float64) lose precision
    and then count as 0.
    """
    if not tensors:
        return torch.zeros(())
    first = tensors[0]
    if len(tensors) == 1 and first.numel() < 16 * _ROW and not hasattr(first, "to_local"):
        # `no_grad` would slow down a small model's step.
        return torch.linalg.vector_norm(first.detach(), dtype=scalar_dtype(first.dtype))
    return _global_norm(tensors)


@torch.no_grad()
def global_dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Sum of the products of all elements of all dense real tensors, pair by pair, over all shards; 0 for empty lists.

    It is 0-dim on the device of the first tensor, float32 or, for float64 input, float64; nothing is copied to the
    host. On a CPU a float32 sum over a tensor of 1e7 elements is off by about 1e-4; sums by rows, as in `global_norm`,
    would change the last digits of stored runs.
    """
    if not first:
        return torch.zeros(())
    dtype = scalar_dtype(max((t.dtype for t in first), key=lambda d: torch.finfo(d).bits))
    total: Tensor | None = None
    for a, b in zip(first, second, strict=True):
        if hasattr(a, "to_local"):
            part = whole((a.to(dtype) * b.to(dtype)).sum())
        else:
            part = torch.dot(a.to(dtype).reshape(-1), b.to(dtype).reshape(-1))
        total = part if total is None else total + part.to(total.device, non_blocking=True)
    assert total is not None
    return total


@torch.no_grad()
def _global_norm(tensors: Sequence[Tensor]) -> Tensor:
    dtype = scalar_dtype(max((t.dtype for t in tensors), key=lambda d: torch.finfo(d).bits))
    by_device: dict[torch.device, list[Tensor]] = {}
    shards: dict[object, list[Tensor]] = {}  # by mesh
    for tensor in tensors:
        if hasattr(tensor, "to_local"):
            # torch reduces over the mesh; `whole` returns the sum over all shards.
            shards.setdefault(tensor.device_mesh, []).append(tensor)  # type: ignore[attr-defined]
        else:
            by_device.setdefault(tensor.device, []).append(tensor)
    norms = [_norms(group, dtype) for group in by_device.values()]
    norms += [whole(torch.nn.utils.get_total_norm([t.to(dtype) for t in group])).view(1) for group in shards.values()]
    if len(norms) == 1:
        return torch.linalg.vector_norm(norms[0])
    device = norms[0].device
    return torch.linalg.vector_norm(torch.cat([norm.to(device, non_blocking=True) for norm in norms]))


_ROW = 4_096


def _norms(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """A vector whose norm is the norm of all the tensors, which share a device."""
    rest, norms = [], []
    for tensor in tensors:
        if tensor.device.type == "cpu" and tensor.numel() >= 16 * _ROW and tensor.is_contiguous():
            # A norm over a whole tensor runs on one thread and its float32 sum is off by 1e-3 at 3e7 elements; short
            # rows run on all threads, reach the memory's speed and keep the error below 1e-5.
            flat, end = tensor.view(-1), tensor.numel() // _ROW * _ROW
            norms.append(torch.linalg.vector_norm(flat[:end].view(-1, _ROW), dim=1, dtype=dtype))
            if end < tensor.numel():
                rest.append(flat[end:])
        else:
            rest.append(tensor)
    if rest:
        norms.append(torch.stack(torch._foreach_norm(rest, 2, dtype=dtype)))
    return norms[0] if len(norms) == 1 else torch.cat(norms)
