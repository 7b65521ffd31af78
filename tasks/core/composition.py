"""Dynamically composable heads (Xiao et al., ICML 2024, "paper D"): heads that mix differently for each pair of tokens.

A_ts is the vector of query t's logits at key s over the M heads. Composition replaces it by A_ts (I + C(t) + C'(s)),
where C(t) = w1(t)^T w2(t) + diag gate(t) is computed from token t, and C'(s) likewise from token s. The attention
weights are composed in the same way.

Dimensions: B rows, T queries, S keys, D width, M heads, K head size, R rank.
"""

from math import sqrt
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

RANK = 2
Block = tuple[slice, slice]  # queries that are processed together, and the range of keys that they can see
Parts = Literal["all", "pre", "post", "query", "key", "mix", "gate"]
_PLACES = ("pre", "query"), ("pre", "key"), ("post", "query"), ("post", "key")
_EPSILON = 1e-6


class Composers(NamedTuple):
    """The compositions of a layer's logits (`pre`) and attention weights (`post`), by query and by key.

    A query's is a matrix. A key's stays in factors, since the layout of token pairs allows no matrix product for it.
    """

    pre_q: Tensor  # C, (B, T, M, M); without I, since I + C in half precision would lose the small entries of C
    pre_k: Tensor  # the rows of w1, of w2, and the gate, (B, 2R + 1, M, T)
    post_q: Tensor
    post_k: Tensor


class HeadComposition(nn.Module):
    """Computes the compositions from the layer's input.

    It has 4 D J + 8 R J M + 4 D M parameters, where J = 4 M is the width of its hidden layer. Their initial
    values are so small that the heads start nearly uncomposed.

    The `parts` are `all`; or, without the parameters of the others, those before (`pre`) or after (`post`) the softmax,
    by `query` or by `key`, or in all four places only w1^T w2 (`mix`) or only the diagonal (`gate`).
    """

    def __init__(self, width: int, num_heads: int, parts: Parts = "all") -> None:
        super().__init__()
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
        pre_q, pre_k, post_q, post_k = (part.to(q_BMTK.dtype) for part in composers)
        scaled = q_BMTK * q_BMTK.shape[-1] ** -0.5
        outs = []
        for t, s in blocks:
            parts = scaled[:, :, t], k_BMSK[:, :, s], v_BMSK[:, :, s]
            composition = Composers(pre_q[:, t], pre_k[..., s], post_q[:, t], post_k[..., s])
            masks = (None if x is None else x[:, t, :, s] for x in (mask, keep))
            outs.append(_attended(*parts, composition, *masks))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)


def _attended(q: Tensor, k: Tensor, v: Tensor, by: Composers, mask: Tensor | None, keep: Tensor | None) -> Tensor:
    """Composed attention of one block; the mask is (B or 1, T, 1, S), `keep` (B, T, M, S)."""
    A_BTMS = composed((q @ k.mT).transpose(1, 2), by.pre_q, by.pre_k)
    if mask is not None:
        # Adding a bias is far faster than filling; this one is small enough not to overflow.
        A_BTMS = A_BTMS + (~mask).to(A_BTMS.dtype) * (torch.finfo(A_BTMS.dtype).min / 2)
    A_BTMS = A_BTMS.softmax(-1, dtype=_exact(A_BTMS)).to(A_BTMS.dtype)
    if mask is not None:  # composition keeps zeros, so one mask is enough
        A_BTMS = A_BTMS * mask
    A_BTMS = composed(A_BTMS, by.post_q, by.post_k)
    if keep is not None:
        A_BTMS = (A_BTMS * keep).to(A_BTMS.dtype)
    return A_BTMS.transpose(1, 2) @ v


def composed(A_BTMS: Tensor, q_BTMN: Tensor, k_BIMS: Tensor) -> Tensor:
    """A (I + C(t) + C'(s)) for all pairs of queries t and keys s: the shape of A."""
    *factors, gate_BTMS = k_BIMS[:, :, None].unbind(1)
    out_BTMS = A_BTMS + q_BTMN.mT @ A_BTMS + A_BTMS * gate_BTMS
    for w1_BTMS, w2_BTMS in zip(factors[:RANK], factors[RANK:], strict=True):
        out_BTMS = out_BTMS + w2_BTMS * (A_BTMS * w1_BTMS).sum(2, keepdim=True)
    return out_BTMS


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
