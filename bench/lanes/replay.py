"""Replay: the tensor operations of a pure function, recorded once and made again without the Python around them.

`vmap` and autograd find out anew at each call what follows from shapes alone, which takes a small model longer than its
arithmetic does. The same kernels run in the same order, so results are equal bit for bit.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from bench.memory import ran_out

SLOW_SECONDS = 0.01
"""A call that takes longer is not recorded: there is little to gain, and a recording keeps all that it computes."""
MOST_PROGRAMS = 16
"""Recordings of one function at most, one for each combination of shapes."""

_aten = torch.ops.aten
_SAME = {_aten.alias.default, _aten.detach.default}
_RESHAPING = {_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.permute.default}

Pure = Callable[..., tuple[Sequence[Tensor], Any]]


@dataclass
class _Program:
    """What is known of the function for some shapes: the rest of its result, its first times, and how it is run."""

    rest: Any
    seconds: list[float] = field(default_factory=list)
    run: Callable[..., Sequence[Tensor]] | None = None


class Replay:
    """A pure function that is recorded at its third call with the same shapes, and then replayed.

    Args:
        function: of tensors; gives tensors without gradients, and something that follows from the shapes alone. What it
            does in Python follows from the shapes too, and it draws no random numbers.
    """

    def __init__(self, function: Pure) -> None:
        self.function = function
        self._programs: dict[object, _Program] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Sequence[Tensor], Any]:
        """What the function gives."""
        key = tuple([(x.shape, x.stride(), x.dtype) for x in tensors])
        program = self._programs.get(key)
        if program is not None and program.run is not None:
            return program.run(*tensors), program.rest
        if program is not None and len(program.seconds) == 2:  # the first call of all may be slow for other reasons
            program.run = self._recorded(tensors) if min(program.seconds) < SLOW_SECONDS else self._plain
            return program.run(*tensors), program.rest
        begun = time.perf_counter()
        found, rest = self.function(*tensors)
        if program is None and len(self._programs) < MOST_PROGRAMS:
            program = self._programs[key] = _Program(rest)
        if program is not None:
            program.seconds.append(time.perf_counter() - begun)
        return found, rest

    def _plain(self, *tensors: Tensor) -> Sequence[Tensor]:
        return self.function(*tensors)[0]

    def _recorded(self, tensors: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        """The operations alone; the function itself where they cannot be told, or do not give the same."""
        try:
            program = make_fx(self._plain)(*tensors)
            _tidy(program.graph)
            program.recompile()
            forward = torch.no_grad()(program.forward)
            same = all(_equal(a, b) for a, b in zip(forward(*tensors), self._plain(*tensors), strict=True))
        except Exception as error:  # Python that asks for values, or an operation that cannot be recorded
            if ran_out(error):
                raise
            return self._plain
        return forward if same else self._plain


def _tidy(graph: fx.Graph) -> None:
    """Leave out what changes nothing and what nobody uses."""
    for node in graph.nodes:
        if node.op != "call_function" or not (node.args and isinstance(source := node.args[0], fx.Node)):
            continue
        old, new = (each.meta.get("tensor_meta") for each in (source, node))
        as_it_was = old is not None and new is not None and (old.shape, old.stride) == (new.shape, new.stride)
        if node.target in _SAME or (node.target in _RESHAPING and as_it_was):
            node.replace_all_uses_with(source)
    graph.eliminate_dead_code()


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
