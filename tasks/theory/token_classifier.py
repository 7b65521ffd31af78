"""Common parts of paper A's synthetic attention classifiers: labelled token sequences, the head, the measurements.

Paper A is Vasudeva, Deora, Thrampoulidis (TMLR 2025). One head attends from the first token of a sequence, and a linear
decoder u reads its output: Phi(X) = u^T X^T softmax(X W x_1). All formulas stay exact when attention saturates.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy

from optimizers.step_size import check_ranges
from tasks.core.data import TensorData
from tasks.core.order import derive_seed
from tasks.core.task import Task
from tasks.core.training_step import Outcome
from tasks.theory.max_margin import Optimum, attention_svm, fact, or_reason


class Sequences(NamedTuple):
    """Labelled sequences."""

    tokens: Tensor  # (n, T, d); the first token of a sequence is also its query
    labels: Tensor  # 0 for y = -1 and 1 for y = +1, (n,)
    optimal: Tensor  # place of the optimal token in each sequence, (n,)

    @property
    def signs(self) -> Tensor:
        """The labels y as +1 or -1, in the tokens' dtype."""
        return (2 * self.labels - 1).to(self.tokens.dtype)


class TokenData(TensorData):
    """Sequences of random tokens, each with one optimal token, for the tasks of paper A: a problem for each seed.

    Subclasses draw the splits "train" and "test" around a random unit vector, `direction`. The training loss is ranked,
    and settings are chosen by it (`TaskSpec.ranks_training`), since the theory is about optimization: 20 sequences do
    not teach `synthetic` which tokens of others are optimal. Test sequences are only measured during training.

    Args:
        n: number of training sequences, at least 1 (ours).
        n_test: number of test sequences, at least 1 (ours).
        T: tokens per sequence, at least 2 (ours).
        d: width of a token, at least 2 (ours).
    """

    select = report = "train"
    stream: ClassVar[str]

    def __init__(
        self, root: Any = None, seed: int = 0, *, n: int = 20, n_test: int = 100, T: int = 6, d: int = 64
    ) -> None:
        check_ranges(n=(n, "[1, inf)"), n_test=(n_test, "[1, inf)"), T=(T, "[2, inf)"), d=(d, "[2, inf)"))
        generator = torch.Generator().manual_seed(derive_seed(seed, self.stream))
        self.direction = on_sphere(generator, d)
        super().__init__({split: self.draw(generator, size, T) for split, size in (("train", n), ("test", n_test))})

    @abstractmethod
    def draw(self, generator: torch.Generator, n: int, T: int) -> Any:
        """Sequences, with the fields of `Sequences` and maybe more."""

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
    """One attention head and a linear decoder, with the measurements of the tasks of paper A.

    Args:
        init_std: standard deviation of all parameters at the start, at least 0 (ours).
    """

    data: TokenData

    def __init__(self, data: TokenData, *, init_std: float = 0.0) -> None:
        super().__init__(data)
        check_ranges(init_std=(init_std, "[0, inf)"))
        self.head = AttentionHead(len(data.direction), init_std)

    def metrics(self) -> dict[str, Metric]:
        """Share of sequences with a positive margin."""
        return {"accuracy": BinaryAccuracy(validate_args=False)}

    @abstractmethod
    def values(self, batch: Any, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """What the decoder reads in each token, shape (B, T); with the weights of K points (B, T, K or 1)."""

    @abstractmethod
    def judge(self, batch: Any, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Loss (less `data.loss_offset`) and margin y Phi(X) of each sequence, from its attended mean value."""

    def loss(self, batch: Any) -> Outcome:
        """Mean loss; predictions are classes, shape (B,)."""
        return self._outcome(batch, attended_mean(self.head(batch.tokens), self.values(batch)))

    def loss_at(self, weights: Mapping[str, Tensor], batch: Any) -> Outcome:
        """`loss` at K points."""
        logits_BTK = stacked_logits(batch.tokens, weights["head.W"])
        return self._outcome(batch, attended_mean(logits_BTK, self.values(batch, weights), dim=1).T)

    def _outcome(self, batch: Any, mean: Tensor) -> Outcome:
        loss, margin = self.judge(batch, mean)
        labels = batch.labels.expand_as(margin)
        return Outcome(loss.mean(-1), torch.where(margin > 0, labels, 1 - labels), labels)

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
        mean_BK = (weights_BTK * self.values(everything, weights)).sum(1)
        loss_KB, margin_KB = self.judge(everything, mean_BK.T)
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


def attended_mean(logits: Tensor, values: Tensor, dim: int = -1) -> Tensor:
    """sum_t softmax(logits)_t values_t over a dimension, the last by default, with a gradient that survives saturation.

    The textbook gradient with respect to the logits, p_t (v_t - mean), cancels once one weight is within rounding of 1.
    The sum is therefore taken over differences from a constant, which changes neither sum nor gradient: the mean
    itself, correctly rounded. At saturation this is the value under the largest weight, without a search for it.
    """
    weights = logits.softmax(dim)
    fixed, known = weights.detach(), values.detach()
    mean = (fixed * known).sum(dim, keepdim=True)
    mean = mean + (fixed * (known - mean)).sum(dim, keepdim=True)  # corrects the rounding of the first
    return mean.squeeze(dim) + (weights * (values - mean)).sum(dim)


def logistic_loss(margins: Tensor) -> Tensor:
    """log(1 + exp(-margin)) of each, exact to rounding for all margins (torch's `softplus` only to 1e-9)."""
    return -logsigmoid(margins)
