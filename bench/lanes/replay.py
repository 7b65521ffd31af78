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
from torch.utils._pytree import TreeSpec, tree_leaves, tree_structure, tree_unflatten

# Longer calls are not recorded on a CPU: there is little to gain, and a recording keeps all intermediate results.
SLOW_SECONDS = 0.01
MAX_PROGRAMS = 16  # recordings of a function, one for each combination of shapes

_aten = torch.ops.aten
_IDENTITY = {_aten.alias.default, _aten.detach.default}
_RESHAPING = {_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.permute.default}


@dataclass
class _Program:
    """The state of the function for one combination of shapes."""

    plain: Callable[..., Sequence[Tensor]]  # the function of the tensors in its arguments, and to those in its result
    structure: TreeSpec  # of its result
    first_seconds: float  # of its first call
    second: Sequence[Tensor] | None = None  # arguments of its second call
    run: Callable[..., Sequence[Tensor]] | None = None  # from the third call on


class Replay:
    """A pure function that is recorded at its third call with the same shapes, and then replayed.

    Args:
        function: takes and returns tensors in containers (pytrees), whose structure depends on number and shapes of the
            tensors alone; results have no gradients. Its control flow must depend on shapes alone too, and it must not
            draw random numbers. With other values than tensors it is just called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._programs: dict[object, _Program] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The function's result."""
        tensors = _leaves(arguments)
        if not all(isinstance(x, Tensor) for x in tensors):
            return self.function(*arguments)
        key = tuple([(x.shape, x.stride(), x.dtype) for x in tensors])
        program = self._programs.get(key)
        if program is not None and program.second is not None:
            program.run, program.second = _recorded(program.plain, program.second, tensors), None
        if program is not None and program.run is not None:
            return tree_unflatten([*program.run(*tensors)], program.structure)
        versions = [x._version for x in tensors]
        begun = time.perf_counter()
        result = self.function(*arguments)
        seconds = time.perf_counter() - begun
        if program is None:
            if len(self._programs) < MAX_PROGRAMS:
                plain = _of_tensors(self.function, tree_structure(arguments))
                program = self._programs[key] = _Program(plain, tree_structure(result), seconds)
        # The very first call may be slow for other reasons. On a GPU, seconds are those of the launches alone.
        elif tensors[0].is_cuda or min(program.first_seconds, seconds) < SLOW_SECONDS:
            program.second = [x.clone() for x in tensors]
        else:
            program.run = program.plain
        if program is not None and versions != [x._version for x in tensors]:
            program.run, program.second = (
                program.plain,
                None,
            )  # it works in place, so a call to record it would be wrong
        return result


def _leaves(value: Any) -> list[Any]:
    """As torch's `tree_leaves`, which takes five times as long."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict | list | tuple):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(part)]
    return tree_leaves(value)


def _of_tensors(function: Callable[..., Any], structure: TreeSpec) -> Callable[..., Sequence[Tensor]]:
    return lambda *tensors: tree_leaves(function(*tree_unflatten([*tensors], structure)))


def _recorded(
    plain: Callable[..., Sequence[Tensor]], second: Sequence[Tensor], third: Sequence[Tensor]
) -> Callable[..., Sequence[Tensor]]:
    """The recorded operations of the second call, verified on the third; the function itself if they fail there."""
    try:
        forward = _graph(plain, second) if second[0].is_cuda else _traced(plain, second)
        same = all(_equal(a, b) for a, b in zip(forward(*third), plain(*third), strict=True))
    except Exception:  # data-dependent control flow, an operation that cannot be recorded, or too little memory
        return plain
    return forward if same else plain


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
