"""Replay: record the tensor operations of a pure function once and repeat them without their Python overhead.

At each call, `vmap` and autograd recompute what depends on shapes alone; for a small model this takes longer than the
arithmetic. A replay runs the same kernels in the same order, so results are bitwise equal. On a GPU it is a CUDA graph.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

# Longer calls are not recorded on a CPU: there is little to gain, and a recording keeps all intermediate results.
SLOW_SECONDS = 0.01
MAX_PROGRAMS = 16  # recordings of a function, one for each combination of shapes

_aten = torch.ops.aten
_IDENTITY = {_aten.alias.default, _aten.detach.default}
_RESHAPING = {_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.permute.default}

Pure = Callable[..., tuple[Sequence[Tensor], Any]]


@dataclass
class _Program:
    """The state of the function for one combination of shapes."""

    rest: Any  # its result beside the tensors
    first_seconds: float  # of its first call
    second: Sequence[Tensor] | None = None  # arguments of its second call
    run: Callable[..., Sequence[Tensor]] | None = None  # from the third call on


class Replay:
    """A pure function that is recorded at its third call with the same shapes, and then replayed.

    Args:
        function: takes tensors; returns tensors without gradients, and a value that depends on shapes alone. Its
            control flow must depend on shapes alone too, and it must not draw random numbers.
    """

    def __init__(self, function: Pure) -> None:
        self.function = function
        self._programs: dict[object, _Program] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Sequence[Tensor], Any]:
        """The function's result."""
        key = tuple([(x.shape, x.stride(), x.dtype) for x in tensors])
        program = self._programs.get(key)
        if program is not None and program.run is not None:
            return program.run(*tensors), program.rest
        if program is not None and program.second is not None:
            program.run, program.second = self._recorded(program.second, tensors), None
            return program.run(*tensors), program.rest
        versions = [x._version for x in tensors]
        begun = time.perf_counter()
        outputs, rest = self.function(*tensors)
        seconds = time.perf_counter() - begun
        if program is None:
            if len(self._programs) < MAX_PROGRAMS:
                self._programs[key] = _Program(rest, seconds)
        # The very first call may be slow for other reasons. On a GPU, seconds are those of the launches alone.
        elif tensors[0].is_cuda or min(program.first_seconds, seconds) < SLOW_SECONDS:
            program.second = [x.clone() for x in tensors]
        else:
            program.run = self._plain
        if key in self._programs and versions != [x._version for x in tensors]:
            self._programs[key].run = self._plain  # it works in place, so an extra call to record it would be wrong
        return outputs, rest

    def _plain(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self.function(*tensors)[0]

    def _recorded(self, second: Sequence[Tensor], third: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        """The recorded operations of the second call, verified on the third; the function itself if they fail there."""
        try:
            forward = _graph(self._plain, second) if second[0].is_cuda else _traced(self._plain, second)
            same = all(_equal(a, b) for a, b in zip(forward(*third), self._plain(*third), strict=True))
        except Exception:  # data-dependent control flow, an operation that cannot be recorded, or too little memory
            return self._plain
        return forward if same else self._plain


def _traced(function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The operations of the function, called one after the other."""
    program = make_fx(function)(*tensors)
    _simplify(program.graph)
    program.recompile()
    return torch.no_grad()(program.forward)


def _graph(function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The function as a CUDA graph, which reads copies of the arguments and keeps its memory."""
    inputs, graph = [x.clone() for x in tensors], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [x.detach() for x in function(*inputs)]

    @torch.no_grad()
    def replay(*tensors: Tensor) -> Sequence[Tensor]:
        torch._foreach_copy_(inputs, tensors)
        graph.replay()
        return [x.clone() for x in results]

    return replay


def _simplify(graph: fx.Graph) -> None:
    """Remove operations that change nothing or whose results are unused."""
    for node in graph.nodes:
        if node.op != "call_function" or not (node.args and isinstance(source := node.args[0], fx.Node)):
            continue
        old, new = (item.meta.get("tensor_meta") for item in (source, node))
        as_it_was = old is not None and new is not None and (old.shape, old.stride) == (new.shape, new.stride)
        if node.target in _IDENTITY or (node.target in _RESHAPING and as_it_was):
            node.replace_all_uses_with(source)
    graph.eliminate_dead_code()


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
