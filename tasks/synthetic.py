"""The synthetic single-head attention classifier of paper A, in forms that stay exact when attention saturates."""

from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy

from tasks.attention import attended_mean
from tasks.base import Outcome, Task, TaskData
from tasks.dropout import BatchRandomness
from tasks.seeding import derive_seed


class TokenData(TaskData):
    """Random tokens and labels with a fixed decoder: one problem instance per seed.

    Tokens x_{i,t} and the decoder u are uniform on the unit sphere of R^d, labels y_i are +1 or -1 at random: the
    recipe of Tarzanagh et al. (Transformers as Support Vector Machines), on which Vasudeva et al. (TMLR 2025) build.
    The sizes are ours; the paper's own are not published. The loss is evaluated on the training samples.

    The score of token t is gamma_{i,t} = y_i u.x_{i,t}; the optimal token has the greatest. With all attention on the
    optimal tokens the loss is at its infimum f_star = mean_i log(1 + exp(-gamma_{i,opt_i})).

    Args:
        root: unused; nothing is read.
        seed: decides tokens, labels and decoder.
        n: number of sequences, at least 1.
        T: tokens per sequence, at least 2.
        d: width of a token, at least 1.
    """

    select = "train"
    report = "train"

    def __init__(self, root: Any = None, seed: int = 0, *, n: int = 20, T: int = 6, d: int = 64) -> None:
        for name, value, least in (("n", n, 1), ("T", T, 2), ("d", d, 1)):
            if value < least:
                raise ValueError(f"{name}={value} is out of range: it must be at least {least}")
        generator = torch.Generator().manual_seed(derive_seed(seed, "tokens"))

        def sphere(*shape: int) -> Tensor:
            x = torch.randn(*shape, generator=generator, dtype=torch.float64)
            return x / x.norm(dim=-1, keepdim=True)

        self.tokens = sphere(n, T, d)
        self.decoder = sphere(d)
        self.labels = torch.randint(0, 2, (n,), generator=generator)
        self.scores = (2 * self.labels - 1)[:, None] * (self.tokens @ self.decoder)
        self.optimal = self.scores.argmax(dim=1)
        best = self.scores.gather(1, self.optimal[:, None]).squeeze(1)
        self.sizes = {"train": n}
        self.f_star = float(nn.functional.softplus(-best).mean())
        self.loss_offset = self.f_star
        # How far each score is below the optimal one; exactly 0 there.
        self._gaps = best[:, None] - self.scores
        self._sigmoid = torch.sigmoid(-best)
        self._best = best

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device."""
        for name in ("tokens", "decoder", "scores", "_gaps", "_sigmoid", "_best"):
            setattr(self, name, getattr(self, name).to(device, dtype))
        self.labels, self.optimal = self.labels.to(device), self.optimal.to(device)

    def batch(
        self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Tokens (B, T, d), gaps (B, T), sigmoid and score of the optimal token (B,), labels in {0, 1} (B,)."""
        parts = (self.tokens, self._gaps, self._sigmoid, self._best, self.labels)
        if isinstance(rows, Tensor) and len(rows) == len(self.labels):
            return parts  # the full batch keeps its order, so nothing needs gathering
        return tuple(part[rows] for part in parts)  # type: ignore[return-value]


class AttentionHead(nn.Module):
    """The key-query matrix W, shape (d, d), of one head whose query is the first token."""

    def __init__(self, d: int, init_std: float) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(d, d) * init_std if init_std else torch.zeros(d, d))

    def forward(self, tokens_BTd: Tensor) -> Tensor:
        """Attention logits X W x_1, shape (B, T)."""
        query_Bd = tokens_BTd[:, 0] @ self.W.T
        return torch.bmm(tokens_BTd, query_Bd[:, :, None]).squeeze(-1)


class AttentionClassifier(Task):
    """Phi(X) = u^T X^T softmax(X W x_1): one attention head W, shape (d, d), trained; the linear decoder u is fixed.

    The loss is the logistic loss of the margin m_i = y_i Phi(X_i), less its infimum (`TokenData.f_star`), computed as
    log1p(sigmoid(-gamma_opt) expm1(gamma_opt - m)), where gamma_opt - m = sum_t p_t (gamma_opt - gamma_t): exact to
    rounding however small. Curves and metrics report the loss itself. Model of Vasudeva et al. (TMLR 2025).

    Args:
        data: tokens, labels and decoder.
        init_std: standard deviation of W at the start; the paper starts at 0.
    """

    def __init__(self, data: TokenData, *, init_std: float = 0.0) -> None:
        super().__init__(data)
        if init_std < 0:
            raise ValueError(f"init_std={init_std} is out of range: it must be at least 0")
        self.head = AttentionHead(data.decoder.numel(), init_std)

    def loss(self, batch: tuple[Tensor, ...]) -> Outcome:
        """Mean logistic loss above its infimum; predictions are classes, shape (B,)."""
        tokens_BTd, gaps_BT, sigmoid_B, best_B, labels_B = batch
        below_B = attended_mean(self.head(tokens_BTd), gaps_BT)
        excess = torch.log1p(sigmoid_B * torch.expm1(below_B)).mean()
        margin_B = (best_B - below_B).detach()
        return Outcome(excess, torch.where(margin_B > 0, labels_B, 1 - labels_B), labels_B)

    def metrics(self) -> dict[str, Metric]:
        """Share of sequences with a positive margin."""
        return {"accuracy": BinaryAccuracy(validate_args=False)}
