"""Multi-head attention as a factor of the benchmark: one implementation of each kind, for all models of the suite.

- `standard`: heads of size width / num_heads (Vaswani et al., NeurIPS 2017).
- `fixed_head`: heads of any size (Bhojanapalli et al., ICML 2020, "paper C").
- `dcmha`: heads that are composed for each pair of tokens (Xiao et al., ICML 2024, "paper D").

Dimensions: B rows, T queries, S keys, D width, H heads, K head size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tasks.core.composition import Block, HeadComposition, composed_attention

Kind = Literal["standard", "fixed_head", "dcmha"]
_ROTARY_BASE = 10_000


class Maps(NamedTuple):
    """The linear maps of a layer's heads: W_Q, W_K, W_V of shape (H, K, D) each, W_O of shape (H, D, K)."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor


class MultiHeadAttention(nn.Module):
    """Self-attention of one layer.

    Queries, keys and values are heads of size K, made of the input by `qkv`; logits are divided by sqrt(K); `proj` maps
    the heads, of size H K together, back to the width.

    Args:
        width: D, of a token.
        num_heads: H, at least 1.
        head_dim: K, at least 1. None for width / num_heads, which `fixed_head` has no default for: see `head_size`.
        kind: `standard`, `fixed_head` or `dcmha`.
        bias: whether the linear maps to and from the heads have one.
        causal: tokens see none that come later.
        window: tokens see no more than so many to each side, and themselves; None for all.
        rotary: queries and keys are turned by their position (`rotated`); K must be even.
        dropout: rate in [0, 1) on attention weights.
        proj_dropout: rate in [0, 1) on the output.
        query_chunk: `dcmha` composes the heads of so many queries at a time, which changes memory and time but no
            result.

    Raises:
        ValueError: a number is out of range, or heads and width do not fit.
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
        query_chunk: int = 64,
    ) -> None:
        super().__init__()
        head_dim = head_size(kind, width, num_heads, head_dim)
        for name, value in dict(window=window, query_chunk=query_chunk).items():
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} is out of range: it must be at least 1")
        if rotary and head_dim % 2:
            raise ValueError(
                f"head_dim={head_dim} (width={width}, num_heads={num_heads}) is odd, but rotary embeddings need pairs"
                " of features; use an even one"
            )
        self.num_heads, self.head_dim = num_heads, head_dim
        self.causal, self.window, self.rotary, self.query_chunk = causal, window, rotary, query_chunk
        # Names and order are those of timm's attention, and so are initial values and checkpoints.
        self.qkv = nn.Linear(width, 3 * num_heads * head_dim, bias=bias)
        self.attn_drop = nn.Dropout(dropout)
        self.proj = nn.Linear(num_heads * head_dim, width, bias=bias)
        self.proj_drop = nn.Dropout(proj_dropout)
        self.composition = HeadComposition(width, num_heads) if kind == "dcmha" else None

    def maps(self, qkv: Tensor, proj: Tensor) -> Maps:
        """The linear maps of the heads.

        Args:
            qkv: weights of `qkv`, shape (3 H K, D).
            proj: weights of `proj`, shape (D, H K).
        """
        q, k, v = qkv.view(3, self.num_heads, self.head_dim, -1)
        return Maps(q, k, v, proj.view(len(proj), self.num_heads, self.head_dim).transpose(0, 1))

    def forward(self, x_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let every token attend.

        Args:
            x_BTD: the layer's input, normed.
            mask: bool, broadcastable to (B, 1, T, S), True where a query may see a key; None for everywhere.

        Returns:
            Shape (B, T, D).
        """
        B, T, _ = x_BTD.shape
        qkv = self.qkv(x_BTD).reshape(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHTK, v_BHTK = qkv.unbind(0)
        if self.rotary:
            q_BHTK, k_BHTK = rotated(q_BHTK), rotated(k_BHTK)
        if self.composition is None:
            fused = self.causal and mask is None and self.window is None  # torch has a faster way for these
            seen = None if fused else visible(T, self.causal, self.window, mask, x_BTD.device)
            out_BHTK = plain_attention(q_BHTK, k_BHTK, v_BHTK, seen, causal=fused, dropout=self.attn_drop)
        else:
            seen = visible(T, self.causal, self.window, mask, x_BTD.device)
            drop = self.attn_drop
            keep = drop(x_BTD.new_ones(B, self.num_heads, T, T)) if drop.p and drop.training else None
            blocks = query_blocks(T, self.query_chunk, self.causal, self.window)
            out_BHTK = composed_attention(q_BHTK, k_BHTK, v_BHTK, self.composition(x_BTD), seen, blocks, keep)
        return self.proj_drop(self.proj(out_BHTK.transpose(1, 2).reshape(B, T, -1)))


def head_size(
    kind: str, width: int, num_heads: int, head_dim: int | None, *, length: int | None = None, shown: str = ""
) -> int:
    """The size of a head.

    By default it is width / num_heads, but for `fixed_head` the length of the sequences, from which on every pattern of
    attention can be reached (Theorem 1 of paper C).

    Args:
        kind: of attention.
        width: of a token.
        num_heads: at least 1.
        head_dim: what the user asks for; None for the default.
        length: greatest number of tokens; None if it is not known, and then `fixed_head` has no default.
        shown: the width with its name, for error messages.

    Raises:
        ValueError: a number is out of range, or heads and width do not fit.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"attention={kind} is not known: it must be one of {', '.join(get_args(Kind))}")
    for what, value in {"num_heads": num_heads, "head_dim": head_dim}.items():
        if value is not None and value < 1:
            raise ValueError(f"{what}={value} is out of range: it must be at least 1")
    if kind == "fixed_head" and head_dim is None:
        if length is None:
            raise ValueError("head_dim is missing: fixed_head has no default where the sequences' length is not known")
        return length
    if width % num_heads and (head_dim is None or kind == "standard"):
        raise ValueError(f"num_heads={num_heads} does not divide {shown or f'width={width}'}")
    if kind == "standard" and head_dim is not None and head_dim * num_heads != width:
        raise ValueError(
            f"head_dim={head_dim} is not {width // num_heads}, the size of {num_heads} standard heads of"
            f" {shown or f'width={width}'}; other sizes need attention=fixed_head"
        )
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
    """softmax(q k^T scale) v of each head.

    Args:
        q_BHTK: queries.
        k_BHSK: keys.
        v_BHSK: values.
        mask: bool, broadcastable to (B, 1, T, S), True where a query may see a key; not with `causal`.
        causal: tokens see none that come later.
        scale: factor of the logits; 1 / sqrt(K) by default.
        dropout: dropout of the attention weights, with its rate as `p`. It is a module of the model, since torch's
            fused attention draws from a global stream.

    Returns:
        Shape (B, H, T, K).
    """
    drop = dropout if dropout is not None and dropout.p and dropout.training else None
    if drop is None and _watched is None:
        return scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, mask, is_causal=causal, scale=scale)
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


class Watched(NamedTuple):
    """Logits of a layer, shape (B, H, T, S), minus infinity where a query sees no key; what it sees, (B, T, S)."""

    logits: Tensor
    seen: Tensor


_watched: list[Watched] | None = None


@contextmanager
def watched_attention() -> Iterator[list[Watched]]:
    """Collect what `plain_attention` computes inside, by plain operations, which can be differentiated twice."""
    global _watched
    before, _watched = _watched, []
    try:
        yield _watched
    finally:
        _watched = before


def visible(length: int, causal: bool, window: int | None, mask: Tensor | None, device: torch.device) -> Tensor | None:
    """Which keys each query sees: bool, (length, length) or what that broadcasts to with the mask; None for all."""
    if not causal and window is None:
        return mask
    ahead = torch.arange(length, device=device)
    behind_TS = ahead[:, None] - ahead  # how far the key lies behind the query
    seen_TS = behind_TS >= (0 if causal else -(window or 0))
    if window is not None:
        seen_TS &= behind_TS <= window
    return seen_TS if mask is None else mask & seen_TS


def query_blocks(length: int, size: int, causal: bool, window: int | None) -> list[Block]:
    """Queries, so many at a time, with the keys that they see at most."""
    blocks = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        first = 0 if window is None else max(0, start - window)
        last = stop if causal else length if window is None else min(length, stop + window)
        blocks.append(Block(slice(start, stop), slice(first, last)))
    return blocks


def rotated(x_BHTK: Tensor) -> Tensor:
    """Turn queries or keys by their position, so that their product depends on the distance only.

    This is RoPE (Su et al., Neurocomputing 2024).

    Features i and i + K/2 make a pair, which token t turns by t / 10000^(2i/K).

    Args:
        x_BHTK: K must be even.

    Returns:
        The same shape and dtype.
    """
    T, K = x_BHTK.shape[-2:]
    exact = torch.promote_types(x_BHTK.dtype, torch.float32)
    rates = _ROTARY_BASE ** -torch.arange(0, 1, 2 / K, device=x_BHTK.device, dtype=exact)
    angles_TF = torch.arange(T, device=x_BHTK.device, dtype=exact)[:, None] * rates
    cos_TF, sin_TF = angles_TF.cos().to(x_BHTK.dtype), angles_TF.sin().to(x_BHTK.dtype)
    first, second = x_BHTK.chunk(2, -1)
    return torch.cat([first * cos_TF - second * sin_TF, first * sin_TF + second * cos_TF], -1)
