"""Dynamically composable heads (Xiao et al., ICML 2024, "paper D"): heads that mix differently for each pair of tokens.

A_ts is the vector of query t's logits at key s over the M heads. Composition replaces it by A_ts (I + C(t) + C'(s)),
where C(t) = w1(t)^T w2(t) + diag gate(t) is computed from token t, and C'(s) likewise from token s. The attention
weights are composed in the same way.

Dimensions: B rows, T queries, S keys, D width, M heads, K head size, R rank.
"""

from collections.abc import Iterator
from math import prod, sqrt
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

RANK = 2
Parts = Literal["all", "pre", "post", "query", "key", "mix", "gate"]
_PLACES = ("pre", "query"), ("pre", "key"), ("post", "query"), ("post", "key")
_EPSILON = 1e-6
_IN_CACHE = 2**18
"""Number of token pairs, times heads, whose composition fits in a CPU's cache."""


class Composers(NamedTuple):
    """The compositions of a layer's logits (`pre`) and attention weights (`post`), by query and by key.

    A query's is a matrix. A key's stays in factors, since the layout of token pairs allows no matrix product for it.

    Attributes:
        pre_q: C, shape (B, T, M, M); without I, since I + C in half precision would lose the small entries of C.
        pre_k: the rows of w1, of w2, and the gate, shape (B, 2R + 1, M, T).
        post_q: as `pre_q`.
        post_k: as `pre_k`.
    """

    pre_q: Tensor
    pre_k: Tensor
    post_q: Tensor
    post_k: Tensor


class HeadComposition(nn.Module):
    """Computes the compositions from the layer's input.

    It has 4 D J + 8 R J M + 4 D M parameters, where J = 4 M is the width of its hidden layer. Their initial
    values are so small that the heads start nearly uncomposed.

    Args:
        width: D, of a token.
        num_heads: M.
        parts: `all`; or, without the parameters of the others, those before (`pre`) or after (`post`) the softmax, by
            `query` or by `key`, or in all four places only w1^T w2 (`mix`) or only the diagonal (`gate`).
    """

    def __init__(self, width: int, num_heads: int, parts: Parts = "all") -> None:
        super().__init__()
        if parts not in get_args(Parts):
            raise ValueError(f"composition={parts} is not known: it must be one of {', '.join(get_args(Parts))}")
        M, J = num_heads, 4 * num_heads
        self.num_heads = M
        self.places = [i for i, place in enumerate(_PLACES) if parts in ("all", "mix", "gate", *place)]
        C, mixes, gates = len(self.places), parts != "gate", parts != "mix"
        self.dw1 = nn.Parameter(torch.empty(width, C, J)) if mixes else None
        self.qkw = nn.Parameter(torch.empty(C, J, 2 * RANK, M)) if mixes else None
        self.dd = nn.Parameter(torch.empty(width, C, M)) if gates else None
        if self.dw1 is not None and self.qkw is not None:
            nn.init.normal_(self.dw1, std=sqrt(2 / (width + J)))
            nn.init.normal_(self.qkw, std=0.02 / (sqrt(J) * (M + RANK)))
        if self.dd is not None:
            nn.init.normal_(self.dd, std=0.005 * sqrt(2 / (width + M)))

    def forward(self, x_BTD: Tensor) -> Composers:
        """The compositions for these tokens."""
        w1_CBTRM, w2_CBTRM = self._factors(x_BTD)
        gate_CBTM = self._gates(x_BTD)
        # A sum of outer products: many products of tiny matrices take several times as long.
        q = torch.diag_embed(gate_CBTM[::2])
        for r in range(RANK):
            q = torch.addcmul(q, w1_CBTRM[::2, :, :, r, :, None], w2_CBTRM[::2, :, :, r, None])
        k = torch.cat([w1_CBTRM[1::2], w2_CBTRM[1::2], gate_CBTM[1::2, :, :, None]], -2).permute(0, 1, 3, 4, 2)
        return Composers(q[0], k[0], q[1], k[1])

    def _factors(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """w1, with rows of mean square 1, and w2, in the four places."""
        M = self.num_heads
        if self.dw1 is None or self.qkw is None:
            zero_CBTRM = x_BTD.new_zeros(len(_PLACES), *x_BTD.shape[:2], RANK, M)
            return zero_CBTRM, zero_CBTRM
        C = len(self.places)
        hidden_CNJ = gelu(x_BTD.flatten(0, 1) @ self.dw1.flatten(1)).unflatten(-1, (C, -1)).transpose(0, 1)
        w_CBTIM = (hidden_CNJ @ self.qkw.flatten(2)).unflatten(-1, (-1, M)).unflatten(1, x_BTD.shape[:2])
        w1_CBTRM, w2_CBTRM = w_CBTIM.chunk(2, -2)
        exact_CBTRM = w1_CBTRM.to(_exact(w1_CBTRM))  # the gradient of the root's inverse overflows in float16
        w1_CBTRM = exact_CBTRM * (exact_CBTRM.square().mean(-1, keepdim=True) + _EPSILON).rsqrt()
        w1_CBTRM = w1_CBTRM.to(w2_CBTRM.dtype)
        return self._in_place(w1_CBTRM), self._in_place(w2_CBTRM)

    def _gates(self, x_BTD: Tensor) -> Tensor:
        """The diagonals in the four places, shape (4, B, T, M)."""
        if self.dd is None:
            return x_BTD.new_zeros(len(_PLACES), *x_BTD.shape[:2], self.num_heads)
        gate_BTX = (x_BTD @ self.dd.flatten(1)).tanh()
        return self._in_place(gate_BTX.unflatten(-1, (len(self.places), -1)).movedim(2, 0))

    def _in_place(self, x_C: Tensor) -> Tensor:
        """The parts of the four places, given those that there are: 0 for the others."""
        if len(self.places) == len(_PLACES):
            return x_C
        parts = dict(zip(self.places, x_C, strict=True))
        return torch.stack([parts[i] if i in parts else torch.zeros_like(x_C[0]) for i in range(len(_PLACES))])


def composed(A_BTMS: Tensor, q_BTMN: Tensor, k_BIMS: Tensor) -> Tensor:
    """A (I + C(t) + C'(s)) for all pairs of queries t and keys s: the shape of A."""
    w1_RBTMS, w2_RBTMS, gate_BTMS = _parts(k_BIMS)
    out_BTMS = A_BTMS + q_BTMN.mT @ A_BTMS + A_BTMS * gate_BTMS
    for w1_BTMS, w2_BTMS in zip(w1_RBTMS, w2_RBTMS, strict=True):
        out_BTMS = out_BTMS + w2_BTMS * (A_BTMS * w1_BTMS).sum(2, keepdim=True)
    return out_BTMS


def _parts(k_BIMS: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """The rows of w1, of w2, and the gate: shape (B, 1, M, S) each."""
    *factors, gate = k_BIMS[:, :, None].unbind(1)
    return tuple(factors[:RANK]), tuple(factors[RANK:]), gate


class Block(NamedTuple):
    """Queries that are processed together, and the range of keys that they can see."""

    queries: slice
    keys: slice


class Inputs(NamedTuple):
    """The inputs of attention with composed heads: q / sqrt(K), k and v by head, and the fields of `Composers`.

    Attributes:
        mask: bool, shape (B or 1, T, 1, S), True where a query sees a key; or None.
        keep: factors of the attention weights, shape (B, T, M, S), for dropout; or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    pre_q: Tensor
    pre_k: Tensor
    post_q: Tensor
    post_k: Tensor
    mask: Tensor | None = None
    keep: Tensor | None = None

    def part(self, rows: slice, block: Block) -> "Inputs":
        """The inputs for some rows and queries, as views."""
        t, s = block
        seen = None if self.mask is None else self.mask[rows if len(self.mask) > 1 else slice(None), t, :, s]
        keep = None if self.keep is None else self.keep[rows, t, :, s]
        return Inputs(
            self.q[rows, :, t],
            self.k[rows, :, s],
            self.v[rows, :, s],
            self.pre_q[rows, t],
            self.pre_k[rows, ..., s],
            self.post_q[rows, t],
            self.post_k[rows, ..., s],
            seen,
            keep,
        )


def composed_attention(
    q_BMTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    composers: Composers,
    mask: Tensor | None,
    blocks: list[Block],
    keep_BMTS: Tensor | None = None,
) -> Tensor:
    """Attention with composed heads, shape (B, M, T, K).

    In this order: q / sqrt(K), logits, composition, mask, softmax in at least float32, composition, mask again,
    dropout, times v. The blocks are all queries, in order.

    The mask is bool, broadcastable to (B, 1, T, S), True where a query may see a key; None for everywhere. `keep_BMTS`
    are factors of the attention weights, for dropout.
    """
    if mask is not None:
        shape = torch.broadcast_shapes(mask.shape, (1, 1, q_BMTK.shape[2], k_BMSK.shape[2]))
        mask = mask.expand(shape).transpose(1, 2)
    keep = None if keep_BMTS is None else keep_BMTS.transpose(1, 2)
    with torch.autocast(q_BMTK.device.type, enabled=False):  # it has already chosen the inputs' dtype
        parts = [part.to(q_BMTK.dtype) for part in composers]
        scaled = q_BMTK * q_BMTK.shape[-1] ** -0.5
        inputs = Inputs(scaled, k_BMSK, v_BMSK, *parts, mask=mask, keep=keep)
        if torch.compiler.is_compiling():  # the compiler generates its own loops
            return _plain(inputs, blocks)
        return _Composed.apply(*inputs, blocks)


def _plain(inputs: Inputs, blocks: list[Block]) -> Tensor:
    """By operations that torch can differentiate any number of times, and compile."""
    outs = []
    for block in blocks:
        part = inputs.part(slice(None), block)
        A_BTMS = composed((part.q @ part.k.mT).transpose(1, 2), part.pre_q, part.pre_k)
        if part.mask is not None:
            A_BTMS = A_BTMS + _bias(part.mask, A_BTMS)
        A_BTMS = A_BTMS.softmax(-1, dtype=_exact(A_BTMS)).to(A_BTMS.dtype)
        if part.mask is not None:  # composition keeps zeros, so one mask is enough
            A_BTMS = A_BTMS * part.mask
        A_BTMS = composed(A_BTMS, part.post_q, part.post_k)
        if part.keep is not None:
            A_BTMS = (A_BTMS * part.keep).to(A_BTMS.dtype)
        outs.append(A_BTMS.transpose(1, 2) @ part.v)
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _bias(mask: Tensor, like: Tensor) -> Tensor:
    """A bias that masks logits where the mask is False.

    Adding it is far faster than filling, and it is small enough not to overflow.
    """
    return (~mask).to(like.dtype) * (torch.finfo(like.dtype).min / 2)


class _Composed(torch.autograd.Function):
    """`_plain`, computed in place and some rows at a time, so that the data stay in the cache.

    Only the inputs are kept for the gradient; the rest is recomputed.
    """

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        """Shape (B, M, T, K)."""
        *tensors, blocks = arguments
        inputs = Inputs(*tensors)
        out = torch.empty_like(inputs.q, memory_format=torch.contiguous_format)
        pairs = _Pairs(inputs.q)
        for rows, block in _pieces(inputs.q, blocks):
            part = inputs.part(rows, block)
            out[rows, :, block.queries] = _times(pairs.weigh(part).attention.transpose(1, 2), part.v)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the inputs."""
        *tensors, ctx.blocks = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients with respect to the inputs."""
        (grad,), inputs = grad_outputs, Inputs(*ctx.saved_tensors)
        if torch.is_grad_enabled():  # the gradient will be differentiated
            wanted = [x for x, needed in zip(inputs[:7], ctx.needs_input_grad, strict=False) if needed]
            grads = iter(torch.autograd.grad(_plain(inputs, ctx.blocks), wanted, grad, create_graph=True))
            return *(next(grads) if needed else None for needed in ctx.needs_input_grad[:7]), None, None, None
        totals = Inputs(*(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in inputs[:7]))
        pairs = _Pairs(inputs.q)
        for rows, block in _pieces(inputs.q, ctx.blocks):
            pairs.add_gradients(totals.part(rows, block), inputs.part(rows, block), grad[rows, :, block.queries])
        return *totals, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        """Fold the new dimension into the rows."""
        *tensors, blocks = arguments
        n, q, mask = info.batch_size, tensors[0], tensors[7]
        rows, folded = q.shape[1 if in_dims[0] == 0 else 0], []
        for x, dim in zip(tensors, in_dims, strict=False):
            if x is None or (x is mask and dim is None and len(x) == 1):
                folded.append(x)
            else:
                x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
                folded.append(x.expand(n, rows, *x.shape[2:]).flatten(0, 1))  # a mask may be one for all rows
        return _Composed.apply(*folded, blocks).unflatten(0, (n, -1)), 0


def _pieces(q_BMTK: Tensor, blocks: list[Block]) -> Iterator[tuple[slice, Block]]:
    """Rows and blocks that are processed together."""
    B, M, T, _ = q_BMTK.shape
    for block in blocks:
        pairs = M * len(range(T)[block.queries]) * len(range(T)[block.keys])
        rows = max(1, _IN_CACHE // pairs) if q_BMTK.device.type == "cpu" else B
        for start in range(0, B, rows):
            yield slice(start, min(start + rows, B)), block


def _times(pairs: Tensor, x: Tensor) -> Tensor:
    """The product of two tensors of shape (B, M, ...), row by row: one product of all rows would copy `pairs`."""
    return torch.stack([torch.bmm(*row) for row in zip(pairs, x, strict=True)])


class _Weights(NamedTuple):
    """Attention weights and the steps to them, for the gradient: shape (B, T, M, S), `taken` (B, T, 1, S)."""

    logits: Tensor
    logits_taken: list[Tensor]
    softmax: Tensor
    softmax_taken: list[Tensor]
    attention: Tensor


class _Pairs:
    """The arithmetic on pairs of queries and keys, in the dtype and on the device of `like`.

    Its buffers are allocated once: new memory costs more than the arithmetic.
    """

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.memory: dict[str, Tensor] = {}

    def space(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor in the buffer of this name."""
        count = prod(shape)
        if name not in self.memory or len(self.memory[name]) < count:
            self.memory[name] = self.like.new_empty(count)
        return self.memory[name][:count].view(shape)

    def products(self, a_BMTK: Tensor, b_BMSK: Tensor, name: str) -> Tensor:
        """The products a b^T of each head, as shape (B, T, M, S)."""
        (B, M, T, K), S = a_BMTK.shape, b_BMSK.shape[2]
        # Heads first, so that the (heads x keys) of a query are a matrix with equally spaced rows.
        a, b = (x.transpose(0, 1).reshape(M * B, -1, K) for x in (a_BMTK, b_BMSK))
        return torch.bmm(a, b.mT, out=self.space(name, M * B, T, S)).view(M, B, T, S).permute(1, 2, 0, 3)

    def weigh(self, part: Inputs) -> _Weights:
        """All attention weights."""
        logits = self.products(part.q, part.k, "logits")
        A, logits_taken = self.compose(logits, part.pre_q, part.pre_k)
        if part.mask is not None:
            A += _bias(part.mask, A)
        if A.dtype == _exact(A):
            softmax = torch.softmax(A, -1, out=self.space("softmax", *A.shape))
        else:
            softmax = A.softmax(-1, dtype=_exact(A)).to(A.dtype)
        if part.mask is not None:
            softmax *= part.mask
        attention, softmax_taken = self.compose(softmax, part.post_q, part.post_k)
        if part.keep is not None:
            attention *= part.keep
        return _Weights(logits, logits_taken, softmax, softmax_taken, attention)

    def compose(self, A: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, list[Tensor]]:
        """`composed`, and the product of each row of w1 with the heads."""
        w1, w2, gate = _parts(k)
        flat = A.flatten(0, 1)
        out = torch.baddbmm(flat, q.flatten(0, 1).mT, flat, out=self.space("composed", *flat.shape)).view(A.shape)
        product, taken = self.space("product", *A.shape), []
        for take, give in zip(w1, w2, strict=True):
            taken.append(torch.mul(A, take, out=product).sum(2, keepdim=True))
            out.addcmul_(give, taken[-1])
        return out.addcmul_(A, gate), taken

    def add_gradients(self, totals: Inputs, part: Inputs, grad: Tensor) -> None:
        """Add the gradients of some rows and queries, given that of their output."""
        logits, logits_taken, softmax, softmax_taken, attention = self.weigh(part)
        totals.v.add_(_times(attention.permute(0, 2, 3, 1), grad))
        G = self.products(grad, part.v, "gradient")
        if part.keep is not None:
            G *= part.keep
        G = self.compose_back(
            G, softmax, softmax_taken, part.post_q, part.post_k, totals.post_q, totals.post_k, "composed"
        )
        G -= torch.mul(G, softmax, out=self.space("product", *G.shape)).sum(-1, keepdim=True)
        G *= softmax
        G = self.compose_back(G, logits, logits_taken, part.pre_q, part.pre_k, totals.pre_q, totals.pre_k, "gradient")
        totals.q.add_(_times(G.transpose(1, 2), part.k))
        totals.k.add_(_times(G.permute(0, 2, 3, 1), part.q))

    def compose_back(
        self,
        G: Tensor,
        A: Tensor,
        taken: list[Tensor],
        q: Tensor,
        k: Tensor,
        total_q: Tensor,
        total_k: Tensor,
        name: str,
    ) -> Tensor:
        """The gradient of A, from that of the composed A; gradients of the composition are added to the totals."""
        w1, w2, gate = _parts(k)
        g, a = G.flatten(0, 1), A.flatten(0, 1)
        total_q.add_(torch.bmm(a, g.mT).view(q.shape))
        out = torch.baddbmm(g, q.flatten(0, 1), g, out=self.space(name, *g.shape)).view(A.shape)
        product = self.space("product", *A.shape)
        for r in range(RANK):
            dtaken = torch.mul(G, w2[r], out=product).sum(2, keepdim=True)
            out.addcmul_(dtaken, w1[r])
            total_k[:, r].add_(torch.mul(A, dtaken, out=product).sum(1))
            total_k[:, RANK + r].add_(torch.mul(G, taken[r], out=product).sum(1))
        total_k[:, -1].add_(torch.mul(A, G, out=product).sum(1))
        return out.addcmul_(G, gate)
