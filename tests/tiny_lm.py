"""A generated stream of tokens and a tiny decoder on it: the task `tiny_lm`; and the decoder implemented again."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import gelu, silu

from tasks.language.corpus import CorpusData
from tasks.language.lm import Decoder
from tasks.language.vocabulary import BYTES, Vocabulary, characters
from tests.tiny import TINY

ALPHABET = "abcdefghijkl"
LENGTH = 6


class TinyCorpus(CorpusData):
    """64 training rows of 6 predictions, the last with 2, and 30 validation rows.

    Half of the tokens follow from the ones before.

    Args:
        root: unused.
        seed: unused.
    """

    def __init__(self, root: Any = None, seed: int = 0) -> None:
        draw = np.random.default_rng(0)

        def stream(rows: int, rest: int) -> np.ndarray:
            ids = draw.integers(0, len(ALPHABET), 1 + (rows - 1) * LENGTH + rest)
            for i in np.flatnonzero(draw.random(len(ids)) < 0.5):
                ids[i] = (ids[i - 1] + 1) % len(ALPHABET)
            return ids.astype(np.uint16)

        self.vocabulary = characters(ALPHABET)
        self._place({"train": stream(64, 2), "val": stream(30, LENGTH)}, LENGTH)

    def facts(self) -> dict[str, Any]:
        """Nothing."""
        return {}


TINY_LM = replace(
    TINY,
    name="tiny_lm",
    title="a tiny decoder on made-up tokens",
    module="tasks.language.lm:LanguageModel",
    data="tests.tiny_lm:TinyCorpus",
    metric="loss",
    mode="min",
    target=None,
    lanes=True,
)
SIZES = {"task.layers": 2, "task.width": 8, "task.num_heads": 2, "task.mlp_width": 12}


def decoded(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """The text of tokens."""
    if vocabulary.text == BYTES.text:
        return bytes(ids).decode(errors="replace")
    content = json.loads(vocabulary.text)
    return (
        Tokenizer.from_str(vocabulary.text).decode([*ids])
        if isinstance(content, dict)
        else "".join(map(content.__getitem__, ids))
    )


def plain_logits(model: Decoder, ids: Tensor, heads: int = 2, window: int | None = None) -> Tensor:
    """Logits of a decoder with standard attention for tokens (B, T), computed from the weights alone."""
    w = dict(model.named_parameters())
    B, T = ids.shape
    x = w["embedding.weight"][ids]
    D = x.shape[-1]
    x = x * D**0.5
    behind = torch.arange(T)[:, None] - torch.arange(T)

    def normed(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * w[name]

    def turned(x: Tensor) -> Tensor:
        K = x.shape[-1]
        # In float64: frequencies rounded to float32, differently on each CPU, would be visible after 20 steps.
        angles = torch.arange(T)[:, None, None] * 10_000.0 ** (-2 * torch.arange(K // 2, dtype=torch.float64) / K)
        z = torch.complex(x[..., : K // 2], x[..., K // 2 :]) * torch.exp(1j * angles)
        return torch.cat([z.real, z.imag], -1)

    for i in range(len(model.blocks)):
        name = f"blocks.{i}"
        h = normed(x, f"{name}.attention_norm.weight")
        q, k, v = (h @ w[f"{name}.attention.qkv.weight"].T).view(B, T, 3, heads, -1).unbind(2)
        logits = torch.einsum("bthk,bshk->bhts", turned(q), turned(k)) / q.shape[-1] ** 0.5
        seen = behind >= 0
        if window is not None and i % 2 == 0:
            seen &= behind <= window
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = torch.einsum("bhts,bshk->bthk", weights, v).reshape(B, T, -1)
        x = x + mixed @ w[f"{name}.attention.proj.weight"].T
        h = normed(x, f"{name}.mlp_norm.weight") @ w[f"{name}.mlp.up.weight"].T
        down = w[f"{name}.mlp.down.weight"].T
        M = len(down)
        x = x + (gelu(h) if h.shape[-1] == M else silu(h[..., :M]) * h[..., M:]) @ down
    return normed(x, "norm.weight") @ w.get("head.weight", w["embedding.weight"]).T
