"""Dynamically composed heads against standard attention: time and memory of loss and gradient, eager and compiled.

On a GPU the same in bfloat16.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import Row, alternate, timed
from tasks.core.attention import MultiHeadAttention

LAYERS, WIDTH, HEADS, ROWS = 6, 256, 8, 4
LENGTHS = (64, 128, 256, 512)
BOUNDS = {"eager": 2.5, "compiled": 1.8}
MEMORY = 6.5
BOUND_AT = 256
_CUDA = torch.cuda.is_available()


class Block(nn.Module):
    """A pre-norm transformer block, or its attention alone."""

    def __init__(self, kind: Literal["standard", "dcmha"], mlp: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), MultiHeadAttention(WIDTH, HEADS, kind=kind, causal=True)
        parts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(*parts) if mlp else None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x if self.mlp is None else x + self.mlp(x)


class Step:
    """Loss and gradient of `LAYERS` layers; the loss is the mean square of their output."""

    def __init__(self, kind: Literal["standard", "dcmha"], length: int, *, mlp: bool, compiled: bool = False) -> None:
        torch.manual_seed(0)
        device, dtype = ("cuda", torch.bfloat16) if _CUDA else ("cpu", torch.float32)
        self.model = nn.Sequential(*(Block(kind, mlp) for _ in range(LAYERS))).to(device, dtype)
        self.x = torch.randn(ROWS, length, WIDTH, device=device, dtype=dtype)
        self.forward = torch.compile(self.model) if compiled else self.model

    def __call__(self) -> None:
        self.model.zero_grad()
        self.forward(self.x).square().mean().backward()
        if _CUDA:
            torch.cuda.synchronize()

    def peak(self) -> float:
        """Peak bytes that a step allocates beyond those in use before it."""
        self()
        if _CUDA:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self()
            return torch.cuda.max_memory_allocated() - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            self()
        results: Any = seen.profiler and seen.profiler.kineto_results  # not in torch's types
        events = [e for e in results.events() if e.name() == "[memory]"]
        return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def measure(quick: bool) -> list[Row]:
    """Ratios by length, for attention layers alone and whole blocks: time, memory and, at one length, compiled time."""
    rounds = 2 if quick else 7
    rows = []
    for length in LENGTHS[:1] if quick else LENGTHS:
        rows += list(at(length, rounds))
    return rows


def at(length: int, rounds: int) -> Iterable[Row]:
    """The rows of one length; only `BOUND_AT` has bounds."""
    size = f"L={LAYERS} D={WIDTH} H={HEADS} T={length}"
    held = length == BOUND_AT
    for how, bound in BOUNDS.items():
        if how == "compiled" and not held:
            continue  # compiling takes minutes
        for mlp, part in ((False, "attention layers"), (True, "blocks with MLP")):
            plain, composed = (
                Step(kind, length, mlp=mlp, compiled=how == "compiled") for kind in ("standard", "dcmha")
            )
            ratios = alternate(timed(plain), {"dcmha": timed(composed)}, rounds)["dcmha"].ratios
            yield Row(f"dcmha, {part}, {how}, {size}", "standard", ratios, bound if held else None)
            if how == "eager":
                memory = [composed.peak() / plain.peak()]
                yield Row(f"dcmha, {part}, memory, {size}", "standard", memory, MEMORY if held else None)
            torch.compiler.reset()
