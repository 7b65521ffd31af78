"""Multi-head attention as a factor of the benchmark: one implementation of each kind.

Heads are `standard`, of size width / num_heads (Vaswani et al., NeurIPS 2017); `fixed_head`, of any size (Bhojanapalli
et al., ICML 2020, "paper C"); or `dcmha`, composed for each pair of tokens (Xiao et al., ICML 2024, "paper D").

Dimensions: B rows, T queries, S keys, D width, H heads, K head size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tasks.core.batching import with_batching_rule
from tasks.core.composition import Block, HeadComposition, Parts, composed_attention

Kind = Literal["standard", "fixed_head", "dcmha"]
_ROTARY_BASE = 10_000
QUERY_CHUNK = 64  # queries whose heads `dcmha` composes at a time; it changes memory and time, not results


class Maps(NamedTuple):
    """The linear maps of a layer's heads: W_Q, W_K, W_V of shape (H, K, D) each, W_O of shape (H, D, K)."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor


class MultiHeadAttention(nn.Module):
    """Self-attention of one layer.

    `qkv` projects the input to queries, keys and values with heads of size K; logits are divided by sqrt(K); `proj`
    maps the concatenated heads, of size H K, back to the width.

    Args:
        width: D, the size of a token.
        num_heads: H, at least 1.
        head_dim: K, at least 1. None for width / num_heads; `fixed_head` needs a number.
        kind: `standard`, `fixed_head` or `dcmha`.
        bias: of `qkv` and `proj`.
        causal: tokens do not attend to later tokens.
        window: tokens attend to at most this many tokens on each side, and to themselves; None for all.
        rotary: queries and keys are rotated by their position (`rotated`); K must be even.
        dropout: rate in [0, 1) on attention weights.
        proj_dropout: rate in [0, 1) on the output.
        composition: the parts of the composition of `dcmha`, as for `HeadComposition`.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        kind: Kind = "standard",
        bias: bool = True,
        causal: bool = False,
        window: int | None = None,
        rotary: bool = False,
        dropout: float = 0.0,
        proj_dropout: float = 0.0,
        composition: Parts = "all",
    ) -> None:
        super().__init__()
        head_dim = head_size(kind, width, num_heads, head_dim)
        check_counts(window=window)
        if rotary and head_dim % 2:
            raise ValueError(
                f"head_dim={head_dim} is odd, but rotary embeddings need pairs of features; use an even one"
            )
        self.num_heads, self.head_dim = num_heads, head_dim
        self.causal, self.window, self.rotary = causal, window, rotary
        # Names and order follow timm's attention, so initial values and checkpoints do too.
        self.qkv = nn.Linear(width, 3 * num_heads * head_dim, bias=bias)
        self.attn_drop = nn.Dropout(dropout)
        self.proj = nn.Linear(num_heads * head_dim, width, bias=bias)
        self.proj_drop = nn.Dropout(proj_dropout)
        if composition != "all" and kind != "dcmha":
            raise ValueError(f"composition={composition} needs attention=dcmha, not attention={kind}")
        self.composition = HeadComposition(width, num_heads, composition) if kind == "dcmha" else None

    def maps(self, qkv: Tensor, proj: Tensor) -> Maps:
        """The heads' maps, given the weights of `qkv`, shape (3 H K, D), and of `proj`, shape (D, H K)."""
        q, k, v = qkv.view(3, self.num_heads, self.head_dim, -1)
        return Maps(q, k, v, proj.view(len(proj), self.num_heads, self.head_dim).transpose(0, 1))

    def forward(self, x_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let every token of the normalised input attend; the result has its shape.

        The mask is bool, broadcastable to (B, 1, T, S), True where a query may see a key; None for everywhere.
        """
        B, T, _ = x_BTD.shape
        qkv = self.qkv(x_BTD).reshape(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHTK, v_BHTK = qkv.unbind(0)
        if self.rotary:
            q_BHTK, k_BHTK = rotated(q_BHTK), rotated(k_BHTK)
        if self.composition is None:
            fused = self.causal and mask is None and self.window is None  # torch has a faster kernel for these
            seen = None if fused else visible(T, self.causal, self.window, mask, x_BTD.device)
            out_BHTK = plain_attention(q_BHTK, k_BHTK, v_BHTK, seen, causal=fused, dropout=self.attn_drop)
        else:
            seen = visible(T, self.causal, self.window, mask, x_BTD.device)
            drop = self.attn_drop
            keep = drop(x_BTD.new_ones(B, self.num_heads, T, T)) if drop.p and drop.training else None
            blocks = query_blocks(T, QUERY_CHUNK, self.causal, self.window)
            out_BHTK = composed_attention(q_BHTK, k_BHTK, v_BHTK, self.composition(x_BTD), seen, blocks, keep)
        return self.proj_drop(self.proj(out_BHTK.transpose(1, 2).reshape(B, T, -1)))


def check_counts(**values: int | None) -> None:
    """Raise a ValueError with the first value below 1; None is legal."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} is out of range: it must be at least 1")


def head_size(
    kind: str, width: int, num_heads: int, head_dim: int | None, *, length: int | None = None, shown: str = ""
) -> int:
    """The size of a head, by default width / num_heads.

    For `fixed_head` the default is the sequences' largest length, if known: then a head can represent every attention
    pattern (Theorem 1 of paper C). `shown` is the width with its name, for error messages.
    """
    check_counts(num_heads=num_heads, head_dim=head_dim)
    if kind == "fixed_head" and head_dim is None:
        if length is None:
            raise ValueError("head_dim is missing: fixed_head has no default where the sequences' length is not known")
        return length
    if width % num_heads and (head_dim is None or kind == "standard"):
        raise ValueError(f"num_heads={num_heads} does not divide {shown or f'width={width}'}")
    if kind == "standard" and head_dim is not None and head_dim * num_heads != width:
        needed = f"{width // num_heads}, the size of {num_heads} standard heads of {shown or f'width={width}'}"
        raise ValueError(f"head_dim={head_dim} is not {needed}; other sizes need attention=fixed_head")
    return head_dim or width // num_heads


def plain_attention(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout: nn.Module | None = None,
) -> Tensor:
    """softmax(q k^T scale) v of each head, shape (B, H, T, K); the scale is 1 / sqrt(K) by default.

    The mask is bool, broadcastable to (B, 1, T, S), True where a query may see a key; not with `causal`. The dropout of
    the attention weights is a module of the model with its rate as `p`: torch's fused attention draws from the global
    generator.
    """
    drop = dropout if dropout is not None and dropout.p and dropout.training else None
    if drop is None and _watched is None:
        return _fused(q_BHTK, k_BHSK, v_BHSK, mask, causal, scale)
    logits_BHTS = q_BHTK @ k_BHSK.mT * (scale or q_BHTK.shape[-1] ** -0.5)
    if causal:
        mask = visible(q_BHTK.shape[-2], True, None, None, q_BHTK.device)
    if mask is not None:
        logits_BHTS = logits_BHTS.masked_fill(~mask, -torch.inf)
    if _watched is not None:
        seen = torch.ones_like(logits_BHTS[:, :1], dtype=torch.bool)
        _watched.append(Watched(logits_BHTS, (seen if mask is None else seen & mask)[:, 0]))
    a_BHTS = logits_BHTS.softmax(-1)
    return (a_BHTS if drop is None else drop(a_BHTS)) @ v_BHSK


def _over_lanes(lanes: int, in_dims: tuple[int | None, ...], *inputs: Any) -> Tensor:
    """`_fused` of all lanes in one call, with lanes as further rows.

    Torch's own rule calls the kernel for each lane on a CPU, and its backward fails on CUDA ("LSE is not correctly
    aligned", torch 2.11).
    """
    *given, causal, scale = inputs
    parts: list[Any] = [
        x if x is None else x.expand(lanes, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(given, in_dims, strict=False)
    ]
    q, _, _, mask = parts
    rows = q.shape[1]
    if mask is not None:  # (lanes, B or 1, 1, T, S)
        mask = mask.reshape(lanes, *[1] * (q.ndim - mask.ndim), *mask.shape[1:]).expand(-1, rows, -1, -1, -1)
        mask = mask.flatten(0, 1)
    q, k, v = (x.flatten(0, 1) for x in parts[:3])
    return _fused(q, k, v, mask, causal, scale).unflatten(0, (lanes, rows))


@with_batching_rule(_over_lanes)
def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    return scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


class Watched(NamedTuple):
    """A layer's logits, shape (B, H, T, S), minus infinity at masked keys; and the mask, shape (B, T, S)."""

    logits: Tensor
    seen: Tensor


_watched: list[Watched] | None = None


@contextmanager
def watched_attention() -> Iterator[list[Watched]]:
    """Collect the logits of `plain_attention` within."""
    global _watched
    before, _watched = _watched, []
    try:
        yield _watched
    finally:
        _watched = before


def visible(length: int, causal: bool, window: int | None, mask: Tensor | None, device: torch.device) -> Tensor | None:
    """The keys that each query sees: bool, (length, length) or its broadcast with the mask; None for all."""
    if not causal and window is None:
        return mask
    ahead = torch.arange(length, device=device)
    behind_TS = ahead[:, None] - ahead  # distance from the query back to the key
    seen_TS = behind_TS >= (0 if causal else -(window or 0))
    if window is not None:
        seen_TS &= behind_TS <= window
    return seen_TS if mask is None else mask & seen_TS


def query_blocks(length: int, size: int, causal: bool, window: int | None) -> list[Block]:
    """All queries in blocks of this size."""
    blocks = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        first = 0 if window is None else max(0, start - window)
        last = stop if causal else length if window is None else min(length, stop + window)
        blocks.append((slice(start, stop), slice(first, last)))
    return blocks


def rotated(x_BHTK: Tensor) -> Tensor:
    """Queries or keys rotated by their position, so that their product depends only on the distance; K must be even.

    This is RoPE (Su et al., Neurocomputing 2024): features i and i + K/2 form a pair, rotated by t / 10000^(2i/K) for
    token t.
    """
    T, K = x_BHTK.shape[-2:]
    exact = torch.promote_types(x_BHTK.dtype, torch.float32)
    # `arange` has one element more where K / 2 rounds up, as for K = 98.
    rates = _ROTARY_BASE ** -torch.arange(0, 1, 2 / K, device=x_BHTK.device, dtype=exact)[: K // 2]
    angles_TF = torch.arange(T, device=x_BHTK.device, dtype=exact)[:, None] * rates
    cos_TF, sin_TF = angles_TF.cos().to(x_BHTK.dtype), angles_TF.sin().to(x_BHTK.dtype)
    first, second = x_BHTK.chunk(2, -1)
    return torch.cat([first * cos_TF - second * sin_TF, first * sin_TF + second * cos_TF], -1)
