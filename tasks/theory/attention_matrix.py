"""One head fitted to given attention weights: what a head of a given size can represent (paper C, theorem 1)."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.regression import MeanAbsoluteError

from optimizers.step_size import check_range
from tasks.core.data import TaskData
from tasks.core.order import derive_seed
from tasks.core.randomness import BatchRandomness
from tasks.core.task import Task
from tasks.core.training_step import Outcome

MOST_TOKENS = 256


class Columns(NamedTuple):
    """Some columns of a target: the sequence's tokens (d, n), its queries (d, B), log of the wanted weights (n, B)."""

    tokens: Tensor
    queries: Tensor
    log_target: Tensor


class AttentionMatrixData(TaskData):
    """A sequence X (d, n) and a positive column-stochastic matrix P (n, n): the target attention of each token.

    A column of P is the softmax of a column of logits, which may be shifted by any constant without changing P. So what
    matters is the rank of log P after its column means are removed, at most n - 1: weights W_k, W_q of shape
    (head_dim, d) with softmax(X^T W_k^T W_q X / sqrt(head_dim)) = P exist if head_dim is at least that rank, and only
    if log P + 1 c^T has rank at most head_dim for some c (Bhojanapalli et al., ICML 2020, theorem 1, which states it
    for head_dim >= n, and X of full column rank).

    Args:
        n: tokens, in [2, 256].
        d: width of a token, at least n (ours).
        rank: of log P minus its column means, in [1, n - 1]; by default n - 1.
        spread: root mean square of these logits, in (0, inf) (ours).
        tokens: `gaussian`, independent standard normal entries, or `counterexample`, the paper's X = [1, 0] with n = 2
            and d = 1, where every W gives the second column the weights 1/2, 1/2.
    """

    select = report = "train"  # the columns of P are all the data: nothing to generalise to

    def __init__(
        self,
        root: Any = None,
        seed: int = 0,
        *,
        n: int = 8,
        d: int = 16,
        rank: int | None = None,
        spread: float = 1.0,
        tokens: Literal["gaussian", "counterexample"] = "gaussian",
    ) -> None:
        if tokens == "counterexample":
            n, d = 2, 1
        check_range("n", n, 2, MOST_TOKENS)
        if tokens == "gaussian":
            check_range("d", d, n)  # else X has no full column rank
        rank = n - 1 if rank is None else rank
        check_range("rank", rank, 1, n - 1)
        check_range("spread", spread, 0, open_low=True)
        draw = torch.Generator().manual_seed(derive_seed(seed, "attention matrix"))

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        gaussian_dn = normal(d, n)
        self.tokens_dn = gaussian_dn if tokens == "gaussian" else torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        logits_nn = normal(n, rank) @ normal(rank, n)
        logits_nn -= logits_nn.mean(0)
        logits_nn *= spread / logits_nn.square().mean().sqrt()
        self.logits_nn = logits_nn
        self.log_target_nn = logits_nn.log_softmax(0)
        self.sizes = {"train": n}
        # The loss is the divergence from P, 0 at P; the cross-entropy is larger by this entropy.
        self.loss_offset = {"train": -float((self.log_target_nn.exp() * self.log_target_nn).sum(0).mean())}
        self.f_star = self.loss_offset["train"]  # reached by heads that are large enough; a lower bound for all

    def facts(self) -> dict[str, Any]:
        """The singular values of log P minus its column means: a head needs as many dimensions as are not zero."""
        return {"singular_values": torch.linalg.svdvals(self.logits_nn).tolist()}

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move X and P."""
        self.tokens_dn, self.log_target_nn, self.logits_nn = (
            x.to(device, dtype) for x in (self.tokens_dn, self.log_target_nn, self.logits_nn)
        )

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Columns:
        """The columns of P for these tokens as queries."""
        return Columns(self.tokens_dn, self.tokens_dn[:, rows], self.log_target_nn[:, rows])

    def best_logits(self, head_dim: int) -> Tensor:
        """Logits (n, n) of rank at most head_dim nearest to P's minus its column means, in the Frobenius norm."""
        left, values, right = torch.linalg.svd(self.logits_nn)
        return (left[:, :head_dim] * values[:head_dim]) @ right[:head_dim]


class AttentionMatrix(Task):
    """W_k and W_q of one head; the loss is the mean over queries of the divergence KL(P || softmax(logits)).

    Args:
        head_dim: rows of W_k and W_q, at least 1; logits are divided by its square root.
    """

    def __init__(self, data: AttentionMatrixData, *, head_dim: int = 8) -> None:
        super().__init__(data)
        check_range("head_dim", head_dim, 1)
        self.wanted = data
        self.head_dim = head_dim
        d = len(data.tokens_dn)
        self.query, self.key = (nn.Linear(d, head_dim, bias=False) for _ in range(2))
        for linear in (self.query, self.key):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(d))

    def loss(self, batch: Columns) -> Outcome:
        """Divergence, the weights of shape (B, n), and their targets."""
        keys_Kn, queries_KB = self.key(batch.tokens.T).T, self.query(batch.queries.T).T
        log_weights_nB = (keys_Kn.T @ queries_KB / math.sqrt(self.head_dim)).log_softmax(0)
        target_nB = batch.log_target.exp()
        divergence = _divergence(log_weights_nB, batch.log_target)
        return Outcome(divergence, log_weights_nB.exp().T.contiguous(), target_nB.T.contiguous())

    def metrics(self) -> dict[str, Metric]:
        """Mean |weight - P|."""
        return {"mean_error": MeanAbsoluteError()}

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Distances of the weights from P.

        Keys:
            error: the largest |weight - P|.
            divergence: the loss.
            construction_error, construction_divergence: the same without training, for a truncated singular value
                decomposition of log P minus its column means, which every head of this size can represent.
        """
        tokens_dn, log_target_nn = self.wanted.tokens_dn, self.wanted.log_target_nn
        keys_PKn, queries_PKn = weights["key.weight"] @ tokens_dn, weights["query.weight"] @ tokens_dn
        points = len(keys_PKn)
        trained = (keys_PKn.mT @ queries_PKn / math.sqrt(self.head_dim)).log_softmax(1)
        constructed = self._construction().log_softmax(0).expand(points, *log_target_nn.shape)
        values = {}
        for name, log_weights in (("", trained), ("construction_", constructed)):
            values[f"{name}error"] = (log_weights.exp() - log_target_nn.exp()).abs().amax((1, 2))
            values[f"{name}divergence"] = _divergence(log_weights, log_target_nn)
        return values

    def _construction(self) -> Tensor:
        """Logits (n, n) of weights with W_k^T W_q = sqrt(head_dim) (X^+)^T M X^+ and M of rank at most head_dim.

        With X of full column rank, X^+ X = 1, so the logits are M.
        """
        tokens_dn = self.wanted.tokens_dn
        inverse_nd = torch.linalg.pinv(tokens_dn)
        weights_dd = inverse_nd.T @ self.wanted.best_logits(self.head_dim) @ inverse_nd
        return tokens_dn.T @ weights_dd @ tokens_dn


def _divergence(log_weights: Tensor, log_target: Tensor) -> Tensor:
    """KL(target || weights), the mean over the columns of (..., n, B); shape (...).

    Weights and targets both sum to 1, so e^x - 1 of x = log(weight / target) can be added: then no term is negative,
    and each stays exact near 0.
    """
    x = log_weights - log_target
    return (log_target.exp() * (x.expm1() - x)).sum(-2).mean(-1)
