"""Language modelling: a decoder-only transformer that predicts the next token of a text."""

from collections.abc import Mapping
from math import log
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, linear, silu
from torchmetrics import Metric

from optimizers.groups import Role
from optimizers.step_size import check_range
from tasks.core.attention import MultiHeadAttention, check_counts, head_size
from tasks.core.roles import COMPOSITION
from tasks.core.task import Task
from tasks.core.training_step import Outcome
from tasks.language.corpus import IGNORED, CorpusData, TokenBatch


class MLP(nn.Module):
    """Two linear maps with a hidden width and a nonlinearity between them.

    It is GELU (`gelu`), or SiLU of one half times the other (`swiglu`; Shazeer 2020).
    """

    def __init__(self, width: int, hidden: int, kind: str) -> None:
        super().__init__()
        self.gated = kind == "swiglu"
        self.up = nn.Linear(width, 2 * hidden if self.gated else hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Token by token: shape (B, T, D)."""
        hidden = self.up(x_BTD)
        if self.gated:
            gate, value = hidden.chunk(2, -1)
            return self.down(silu(gate) * value)
        return self.down(gelu(hidden))


class Block(nn.Module):
    """A pre-norm transformer block: x + attention(norm(x)), then x + MLP(norm(x)), with dropout after each."""

    def __init__(self, attention: MultiHeadAttention, mlp: MLP, width: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), attention
        self.mlp_norm, self.mlp = nn.RMSNorm(width), mlp
        self.attention_dropout, self.mlp_dropout = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Shape (B, T, D)."""
        x_BTD = x_BTD + self.attention_dropout(self.attention(self.attention_norm(x_BTD)))
        return x_BTD + self.mlp_dropout(self.mlp(self.mlp_norm(x_BTD)))


class Decoder(nn.Module):
    """Tokens to logits of the next token: embedding, blocks, norm, linear head; `tied`: it has the embedding's weights.

    Linear maps start with standard deviation 0.2 / sqrt(D), about that of paper D (0.006) at its width, 1024.
    Embeddings start with 1 / D and are multiplied by sqrt(D) (Vaswani et al. 2017, section 3.4). So logits start small,
    tied or not, and the loss starts near log V.
    """

    def __init__(self, vocab_size: int, width: int, blocks: list[Block], tied: bool, dropout: float) -> None:
        super().__init__()
        self.scale = width**0.5
        self.embedding = nn.Embedding(vocab_size, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width)
        self.head = None if tied else nn.Linear(width, vocab_size, bias=False)
        nn.init.normal_(self.embedding.weight, std=1 / width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.2 / self.scale)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits of shape (B, T, V)."""
        x_BTD = self.dropout(self.embedding(ids_BT) * self.scale)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        x_BTD = self.norm(x_BTD)
        return linear(x_BTD, self.embedding.weight) if self.head is None else self.head(x_BTD)


class LanguageModel(Task):
    """A decoder-only transformer (pre-norm with RMSNorm, RoPE, no biases); the loss is nats per token.

    The loss of a batch is the sum over its predictions, divided by its rows and by the split's mean number of
    predictions per row. It is the mean over predictions, except in the batch with the split's last row, which may have
    fewer; over a whole split it is the mean.

    Args:
        layers: number of transformer blocks, at least 1.
        width: width D of a token, at least 1.
        num_heads: attention heads of a block, at least 1.
        head_dim: size of a head, even; by default width / num_heads, and with fixed_head the length of a row.
        attention: `standard`; `fixed_head`, heads of any size (Bhojanapalli et al. 2020); or `dcmha`, heads that are
            composed for each pair of tokens (Xiao et al. 2024).
        composition: the parts of the composition of `dcmha`: `all`, or only those before the softmax (`pre`), after it
            (`post`), by `query`, by `key`, the mixing of heads (`mix`), or the gates (`gate`).
        window: maximum number of preceding tokens to which the first, third, ... block attend; by default all.
        mlp: nonlinearity of the MLPs: `gelu` or `swiglu`.
        mlp_width: hidden width of an MLP, at least 1.
        tied: whether the output head and the embedding share their weights.
        dropout: rate in [0, 1) on the embedding, on attention weights, and after attention and MLP.
    """

    roles: Mapping[str, Role] = {"model.head.weight": "head", **COMPOSITION}

    def __init__(
        self,
        data: CorpusData,
        *,
        layers: int = 4,
        width: int = 128,
        num_heads: int = 4,
        head_dim: int | None = None,
        attention: Literal["standard", "fixed_head", "dcmha"] = "standard",
        composition: Literal["all", "pre", "post", "query", "key", "mix", "gate"] = "all",
        window: int | None = None,
        mlp: Literal["gelu", "swiglu"] = "swiglu",
        mlp_width: int = 256,
        tied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(data)
        check_counts(layers=layers, width=width, window=window, mlp_width=mlp_width)
        check_range("dropout", dropout, 0, 1, open_high=True)
        # Queries, keys and values, each of all heads; the gate and the values that it multiplies.
        self.pieces = {"*.qkv.weight": 3} | ({"*.mlp.up.weight": 2} if mlp == "swiglu" else {})
        head_dim = head_size(attention, width, num_heads, head_dim, length=data.length)
        blocks = [
            Block(
                MultiHeadAttention(
                    width,
                    num_heads,
                    head_dim,
                    kind=attention,
                    bias=False,
                    causal=True,
                    window=window if i % 2 == 0 else None,
                    rotary=True,
                    dropout=dropout,
                    composition=composition,
                ),
                MLP(width, mlp_width, mlp),
                width,
                dropout,
            )
            for i in range(layers)
        ]
        self.model = Decoder(data.vocab_size, width, blocks, tied, dropout)

    def loss(self, batch: TokenBatch) -> Outcome:
        """Nats per token; as predictions the nats of each row, shape (rows,), and as labels `TokenBatch.sizes`."""
        logits_BTV = self.model(batch.ids)
        nats = cross_entropy(
            logits_BTV.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="none"
        ).unflatten(0, batch.ids.shape)
        rows = nats.sum(1)
        return Outcome(rows.mean() / batch.per_row, rows.detach(), batch.sizes)

    def metrics(self) -> dict[str, Metric]:
        """Perplexity, e to the nats per token, and bits per byte, which is comparable across kinds of tokens."""
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        return {name: PerPrediction(name, exact) for name in ("perplexity", "bits_per_byte")}


class PerPrediction(Metric):
    """`perplexity`, e to the mean nats per prediction, or `bits_per_byte`, the mean bits per byte of text.

    From the nats of rows and `TokenBatch.sizes`; sums of nats have the dtype.
    """

    nats: Tensor
    sizes: Tensor

    def __init__(self, name: Literal["perplexity", "bits_per_byte"], dtype: torch.dtype) -> None:
        super().__init__()
        self.name = name
        self.add_state("nats", torch.zeros((), dtype=dtype), dist_reduce_fx="sum")
        self.add_state("sizes", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nats: Tensor, sizes: Tensor) -> None:
        """Add rows."""
        self.nats = self.nats + nats.to(self.nats).sum()
        self.sizes = self.sizes + sizes.sum(0)

    def compute(self) -> Tensor:
        """Shape ()."""
        predictions, size = self.sizes
        return (self.nats / predictions).exp() if self.name == "perplexity" else self.nats / size / log(2)
