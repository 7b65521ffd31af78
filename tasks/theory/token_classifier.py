"""Common parts of paper A's synthetic attention classifiers: labelled token sequences, the head, the measurements.

Paper A is Vasudeva, Deora, Thrampoulidis (TMLR 2025). One head attends from the first token of a sequence, and a linear
decoder u reads its output: Phi(X) = u^T X^T softmax(X W x_1). All formulas stay exact when attention saturates.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy

from optimizers.step_size import check_range
from tasks.core.data import TaskData
from tasks.core.randomness import BatchRandomness
from tasks.core.task import Task
from tasks.core.training_step import Outcome
from tasks.theory.max_margin import Optimum, attention_svm, fact, or_reason
from tasks.theory.saturated import attended_mean


class Sequences(NamedTuple):
    """Labelled sequences.

    Attributes:
        tokens: shape (n, T, d); the first token of a sequence is also its query.
        labels: 0 for y = -1 and 1 for y = +1, shape (n,).
        optimal: place of the optimal token in each sequence, shape (n,).
    """

    tokens: Tensor
    labels: Tensor
    optimal: Tensor

    @property
    def signs(self) -> Tensor:
        """The labels y as +1 or -1, in the tokens' dtype."""
        return (2 * self.labels - 1).to(self.tokens.dtype)


class TokenData(TaskData):
    """Sequences of random tokens, each with one optimal token, for the tasks of paper A.

    Subclasses define the splits "train" and "test", and `samples` if batches have another form. The training loss is
    ranked, and settings are chosen by it (`TaskSpec.ranks_training`), since the theory is about optimization. Test
    sequences are only measured during training. Held-out ones cannot select settings here: 20 sequences do not teach
    `synthetic` which tokens of other sequences are optimal, and on `synthetic_joint` the held-out loss of normalised
    methods grows while the training loss goes to 0.
    """

    select = report = "train"

    def __init__(self, splits: dict[str, Sequences]) -> None:
        self.splits = splits
        self.samples: dict[str, Any] = splits
        self.sizes = {split: len(sequences.labels) for split, sequences in splits.items()}

    @cached_property
    def att_svm(self) -> Optimum | str:
        """W_mm = argmin ||W||_F subject to (x_{i,opt_i} - x_{i,t})^T W x_{i,1} >= 1 on the training samples.

        See Tarzanagh et al., Transformers as Support Vector Machines. A string with the reason if it was not solved.
        """
        train = self.splits["train"]
        constraints = train.tokens[..., 0].numel() - len(train.labels)
        return or_reason(constraints, lambda: attention_svm(train.tokens, train.optimal))

    def directions(self) -> dict[str, Optimum | str]:
        """The max-margin directions that training is compared with, by name, or the reason why one is missing."""
        return {"att_svm": self.att_svm}

    def facts(self) -> dict[str, Any]:
        """Whether the max-margin problems were solved, and the solutions' norms and accuracy."""
        return {name: fact(direction) for name, direction in self.directions().items()}

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device."""
        for split, sequences in self.splits.items():
            tokens, labels, optimal = sequences
            self.splits[split] = Sequences(tokens.to(device, dtype), labels.to(device), optimal.to(device))

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Any:
        """The samples of these rows."""
        samples = self.samples[split]
        if isinstance(rows, Tensor) and len(rows) == self.sizes[split]:
            return samples  # the full batch keeps its order, so nothing needs gathering
        return type(samples)(*(part[rows] for part in samples))


def check_sizes(**sizes: tuple[int, int]) -> None:
    """Raise ValueError with the first value that is below its minimum, which follows it."""
    for name, (value, least) in sizes.items():
        check_range(name, value, least)


def on_sphere(generator: torch.Generator, *shape: int) -> Tensor:
    """Points uniform on the unit sphere of the last dimension, float64."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


class AttentionHead(nn.Module):
    """The key-query matrix W, shape (d, d), of one head whose query is the first token."""

    def __init__(self, d: int, init_std: float) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(d, d) * init_std if init_std else torch.zeros(d, d))

    def forward(self, tokens_BTd: Tensor) -> Tensor:
        """Attention logits X W x_1, shape (B, T)."""
        query_Bd = tokens_BTd[:, 0] @ self.W.T
        return torch.bmm(tokens_BTd, query_Bd[:, :, None]).squeeze(-1)


class _StackedLogits(torch.autograd.Function):
    """`stacked_logits` with a gradient of W in W's memory layout; tokens, which are data, get none.

    Torch's own gradients of W and of the queries are transposed: one slows down optimizers, and the other is copied.
    """

    @staticmethod
    def forward(tokens_BTd: Tensor, W_Kdd: Tensor) -> Tensor:
        query_BKd = (tokens_BTd[..., 0, :] @ W_Kdd.flatten(-3, -2).mT).unflatten(-1, W_Kdd.shape[-3:-1])
        return tokens_BTd @ query_BKd.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (tokens_BTd,), (grad_BTK,) = ctx.saved_tensors, grads
        grad_BKd = grad_BTK.mT @ tokens_BTd
        return None, (grad_BKd.flatten(-2).mT @ tokens_BTd[..., 0, :]).unflatten(-2, grad_BKd.shape[-2:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], *args: Tensor) -> tuple[Tensor, int]:
        """The same with one more leading dimension; torch's generated rule takes 0.3 ms longer."""
        stacked = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(args, in_dims, strict=True)
        )
        return _StackedLogits.apply(*stacked), 0


def stacked_logits(tokens_BTd: Tensor, W_Kdd: Tensor) -> Tensor:
    """Attention logits X W x_1 of K heads, shape (B, T, K), with as few and as large products as possible."""
    return _StackedLogits.apply(tokens_BTd, W_Kdd)


class TokenClassifier(Task):
    """One attention head and a linear decoder, with the measurements of the tasks of paper A."""

    data: TokenData
    head: AttentionHead

    def metrics(self) -> dict[str, Metric]:
        """Share of sequences with a positive margin."""
        return {"accuracy": BinaryAccuracy(validate_args=False)}

    @abstractmethod
    def judge(
        self, batch: Any, weights: Mapping[str, Tensor], mean: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Loss (less `data.loss_offset`) and margin y Phi(X) of each sequence at K points, shape (K, B) each.

        `mean` maps values of tokens to their mean under the attention, shape (B, T, K) to (B, K).
        """

    def loss_at(self, weights: Mapping[str, Tensor], batch: Any) -> Outcome:
        """`loss` at K points."""
        logits_BTK = stacked_logits(batch.tokens, weights["head.W"])
        loss_KB, margin_KB = self.judge(batch, weights, lambda values: attended_mean(logits_BTK, values, dim=1))
        labels_KB = batch.labels.expand_as(margin_KB)
        return Outcome(loss_KB.mean(1), torch.where(margin_KB > 0, labels_KB, 1 - labels_KB), labels_KB)

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Measurements of W and its attention on the training samples, and the test loss.

        Keys:
            norm_W: ||W||_F.
            alignment: <W, W_mm> / (||W|| ||W_mm||), 0 for W = 0; absent where the Att-SVM is infeasible.
            distance: ||W / ||W|| - W_mm / ||W_mm|| || = sqrt(2 - 2 alignment), computed from the difference.
            min_margin, mean_margin: smallest and mean (x_{i,opt_i} - x_{i,t})^T W x_{i,1} over i and t != opt_i.
            on_optimal: softmax weight on the optimal token, mean over samples.
            off_optimal: its complement, as the sum of the other weights, so that it does not round to 0.
            entropy: of the softmax weights, in nats, mean over samples.
            train_error, test_error: share of sequences whose margin is not positive.
            test_loss: mean logistic loss.
        """
        everything, order_nT1 = self._measured
        n = len(order_nT1)
        logits_BTK = stacked_logits(everything.tokens, weights["head.W"])
        weights_BTK = logits_BTK.softmax(dim=1)
        loss_KB, margin_KB = self.judge(everything, weights, lambda values: (weights_BTK * values).sum(1))
        wrong_KB = (margin_KB <= 0).to(loss_KB.dtype)
        logits_nTK = logits_BTK[:n].gather(1, order_nT1.expand(-1, -1, len(loss_KB)))
        log_weights_nTK = logits_nTK.log_softmax(dim=1)
        weights_nTK = log_weights_nTK.exp()
        leads = logits_nTK[:, :1] - logits_nTK[:, 1:]
        off_K = weights_nTK[:, 1:].sum((0, 1)) / n
        return {
            **towards(self._goals["att_svm"], weights["head.W"].flatten(1), "W"),
            "min_margin": leads.amin((0, 1)),
            "mean_margin": leads.mean((0, 1)),
            "on_optimal": 1 - off_K,
            "off_optimal": off_K,
            "entropy": -(weights_nTK * log_weights_nTK).sum((0, 1)) / n,
            "train_error": wrong_KB[:, :n].mean(1),
            "test_loss": loss_KB[:, n:].mean(1) + self.data.loss_offset.get("test", 0.0),
            "test_error": wrong_KB[:, n:].mean(1),
        }

    @cached_property
    def _measured(self) -> tuple[Any, Tensor]:
        """All training, then all test sequences as one batch; the order of the training tokens, optimal one first."""
        train, test = (self.data.batch(split, slice(None)) for split in ("train", "test"))
        optimal = self.data.splits["train"].optimal[:, None, None]
        others = torch.arange(train.tokens.shape[1], device=optimal.device)[:, None] != optimal
        return type(train)(*map(torch.cat, zip(train, test, strict=True))), others.int().argsort(dim=1, stable=True)

    @cached_property
    def _goals(self) -> dict[str, Tensor | None]:
        """The directions that training is compared with, as unit vectors; None for those that do not exist."""
        goals = {k: None if isinstance(v, str) else v[0].flatten() for k, v in self.data.directions().items()}
        return {name: None if x is None else (x / x.norm()).to(self.head.W) for name, x in goals.items()}


def towards(goal: Tensor | None, x_Kp: Tensor, name: str) -> dict[str, Tensor]:
    """Norms of x and, if there is a goal (a unit vector), alignment with it and distance of the directions, shape (K,).

    The distance comes from the difference, since 2 - 2 alignment would cancel. At x = 0 the alignment is 0.
    """
    norm_K = torch.linalg.vector_norm(x_Kp, dim=1)
    values, suffix = {f"norm_{name}": norm_K}, "" if name == "W" else f"_{name}"
    if goal is not None:
        half_square = torch.linalg.vector_norm((x_Kp / norm_K[:, None]).sub_(goal), dim=1).square() / 2
        half_square = torch.where(norm_K == 0, 1, half_square)
        values |= {f"alignment{suffix}": 1 - half_square, f"distance{suffix}": (2 * half_square).sqrt()}
    return values
