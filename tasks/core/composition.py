"""Dynamically composable heads (Xiao et al., ICML 2024, "paper D"): heads that mix differently for each pair of tokens.

A_ts is the vector of query t's logits at key s over the M heads. Composition replaces it by A_ts (I + C(t) + C'(s)),
where C(t) = w1(t)^T w2(t) + diag gate(t) is computed from token t, and C'(s) likewise from token s. The attention
weights are composed in the same way.

Dimensions: B rows, T queries, S keys, D width, M heads, K head size, R rank.
"""

from math import sqrt
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint

RANK = 2
Parts = Literal["all", "pre", "post", "query", "key", "mix", "gate"]
_PLACES = ("pre", "query"), ("pre", "key"), ("post", "query"), ("post", "key")
_EPSILON = 1e-6


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
        mask = mask.expand(torch.broadcast_shapes(mask.shape, (1, 1, q_BMTK.shape[2], k_BMSK.shape[2])))
    keep = None if keep_BMTS is None else keep_BMTS.transpose(1, 2)
    seen = None if mask is None else mask.transpose(1, 2)
    # The pairs of long sequences take much memory, so they are computed again for the gradient; lanes cannot do that.
    again = len(blocks) > 1 and not torch.compiler.is_compiling() and not is_batchedtensor(q_BMTK)
    outs = []
    with torch.autocast(q_BMTK.device.type, enabled=False):  # it has already chosen the inputs' dtype
        pre_q, pre_k, post_q, post_k = (part.to(q_BMTK.dtype) for part in composers)
        q_BMTK = q_BMTK * q_BMTK.shape[-1] ** -0.5
        for t, s in blocks:
            before, after = (pre_q[:, t], pre_k[..., s]), (post_q[:, t], post_k[..., s])
            masks = (None if seen is None else seen[:, t, :, s], None if keep is None else keep[:, t, :, s])
            block = q_BMTK[:, :, t], k_BMSK[:, :, s], v_BMSK[:, :, s], before, after, *masks
            how = {"use_reentrant": False, "preserve_rng_state": False}
            outs.append(checkpoint(_attend, *block, **how) if again else _attend(*block))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def _attend(
    q_BMTK: Tensor,
    k_BMSK: Tensor,
    v_BMSK: Tensor,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    seen_BTMS: Tensor | None,
    keep_BTMS: Tensor | None,
) -> Tensor:
    A_BTMS = composed((q_BMTK @ k_BMSK.mT).transpose(1, 2), *before)
    if seen_BTMS is not None:
        A_BTMS = A_BTMS + _bias(seen_BTMS, A_BTMS)
    A_BTMS = A_BTMS.softmax(-1, dtype=_exact(A_BTMS)).to(A_BTMS.dtype)
    if seen_BTMS is not None:  # composition keeps zeros, so one mask is enough
        A_BTMS = A_BTMS * seen_BTMS
    A_BTMS = composed(A_BTMS, *after)
    if keep_BTMS is not None:
        A_BTMS = (A_BTMS * keep_BTMS).to(A_BTMS.dtype)
    return A_BTMS.transpose(1, 2) @ v_BMSK


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _bias(mask: Tensor, like: Tensor) -> Tensor:
    """A bias that masks logits where the mask is False.

    Adding it is far faster than filling, and it is small enough not to overflow.
    """
    return (~mask).to(like.dtype) * (torch.finfo(like.dtype).min / 2)
