"""The synthetic attention classifiers of Vasudeva, Deora and Thrampoulidis (TMLR 2025), "paper A", and their science.

One head attends from the first token of a sequence, and a linear decoder u reads what it attends to:
Phi(X) = u^T X^T softmax(X W x_1). The tasks are `synthetic`, where u is fixed and W is trained, and `synthetic_joint`,
where both are. All is computed in forms that stay exact when attention saturates.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy

from optimizers.step_size import check_range
from tasks.attention import attended_mean, logistic_loss
from tasks.base import Outcome, Task, TaskData
from tasks.dropout import BatchRandomness
from tasks.max_margin import AttentionSVM, MaxMargin, attention_svm, separator
from tasks.seeding import derive_seed


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
    """Sequences of random tokens, each with one optimal token: what the tasks of paper A share.

    Subclasses make the splits "train" and "test"; the loss is reported on the training samples, since the theory is on
    optimization.
    """

    select = "train"
    report = "train"

    def __init__(self, splits: dict[str, Sequences]) -> None:
        self.splits = splits
        self.sizes = {split: len(sequences.labels) for split, sequences in splits.items()}

    @cached_property
    def att_svm(self) -> AttentionSVM | str:
        """W_mm = argmin ||W||_F subject to (x_{i,opt_i} - x_{i,t})^T W x_{i,1} >= 1 on the training samples.

        Tarzanagh et al., Transformers as Support Vector Machines. Or, in words, why there is none.
        """
        train = self.splits["train"]
        constraints = train.tokens[..., 0].numel() - len(train.labels)
        if constraints > MOST_CONSTRAINTS:
            return f"not solved: {constraints} constraints are more than {MOST_CONSTRAINTS}"
        return or_reason(lambda: attention_svm(train.tokens.cpu().double(), train.optimal.cpu()))

    def facts(self) -> dict[str, Any]:
        """Whether the Att-SVM was solved, its norm, and how exactly."""
        svm = self.att_svm
        return {"att_svm": fact(svm if isinstance(svm, str) else svm.solution)}

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device."""
        for split, sequences in self.splits.items():
            tokens, labels, optimal = sequences
            self.splits[split] = Sequences(tokens.to(device, dtype), labels.to(device), optimal.to(device))


MOST_CONSTRAINTS = 3000
"""A greater Gram matrix takes long and much memory: 2970 constraints take 7 s. Ours."""

Solution = TypeVar("Solution")


def or_reason(solve: Callable[[], Solution | None]) -> Solution | str:
    """What the max-margin solver gives, or in words why it gives nothing."""
    try:
        return solve() or "infeasible: no direction meets all constraints"
    except ArithmeticError as error:
        return f"not solved: {error}"


def fact(solution: MaxMargin | str) -> dict[str, Any]:
    """A max-margin problem as a run's record keeps it."""
    if isinstance(solution, str):
        return {"solved": False, "reason": solution}
    return {
        "solved": True, "norm": float(solution.norm), "support": int(solution.support),
        "violation": float(solution.violation), "duality_gap": float(solution.duality_gap),
    }  # fmt: skip


def _check_sizes(n: int, n_test: int, T: int, d: int) -> None:
    for name, value, least in (("n", n, 1), ("n_test", n_test, 1), ("T", T, 2), ("d", d, 2)):
        check_range(name, value, least)


def on_sphere(generator: torch.Generator, *shape: int) -> Tensor:
    """Points uniform on the unit sphere of the last dimension, float64."""
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


class FixedDecoderData(TokenData):
    """Random tokens and labels with a fixed decoder u of norm 1: one problem instance per seed.

    The score of token t is gamma_{i,t} = y_i u.x_{i,t}; the optimal token has the greatest. With all attention on the
    optimal tokens the loss is at its infimum f_star = mean_i log(1 + exp(-gamma_{i,opt_i})).

    Sizes and distributions of paper A are not published. The default is ours: it meets the assumption of the theory that
    all tokens but the optimal one have equal scores, and its constants were chosen so that its NGD, PS and GD runs agree
    with the values known for n=20, T=6, d=64.

    Args:
        root: unused; nothing is read.
        seed: decides tokens, labels and decoder.
        n: number of training sequences, at least 1 (ours).
        n_test: number of test sequences, at least 1 (ours).
        T: tokens per sequence, at least 2 (ours).
        d: width of a token, at least 2 (ours).
        recipe: "equal_scores": Gaussian tokens orthogonal to u, and one optimal token at a random place moved by y gap u
            (ours); "sphere": tokens uniform on the unit sphere (Tarzanagh et al.).
        sigma: standard deviation of a token's coordinates under "equal_scores", at least 0 (ours).
        gap: score of the optimal token under "equal_scores", at least 0 (ours).
    """

    def __init__(
        self, root: Any = None, seed: int = 0, *, n: int = 20, n_test: int = 100, T: int = 6, d: int = 64,
        recipe: Literal["equal_scores", "sphere"] = "equal_scores", sigma: float = 0.375, gap: float = 1.0,
    ) -> None:  # fmt: skip
        _check_sizes(n, n_test, T, d)
        check_range("sigma", sigma, 0)
        check_range("gap", gap, 0)
        generator = torch.Generator().manual_seed(derive_seed(seed, "tokens"))
        self.decoder = u = on_sphere(generator, d)

        def split(n: int) -> Sequences:
            labels = torch.randint(0, 2, (n,), generator=generator)
            signs = (2 * labels - 1).double()[:, None]
            if recipe == "sphere":
                tokens = on_sphere(generator, n, T, d)
            else:
                noise = sigma * torch.randn(n, T, d, generator=generator, dtype=torch.float64)
                tokens = noise - (noise @ u)[..., None] * u
                place = torch.randint(0, T, (n,), generator=generator)
                tokens[torch.arange(n), place] += gap * signs * u
            scores = signs * (tokens @ u)
            return Sequences(tokens, labels, scores.argmax(dim=1))

        super().__init__({"train": split(n), "test": split(n_test)})
        self._scored = {name: self._score(sequences) for name, sequences in self.splits.items()}
        self.loss_offset = {
            name: float(nn.functional.softplus(-best).mean()) for name, (_, best) in self._scored.items()
        }
        self.f_star = self.loss_offset["train"]
        self.whole = {split: self.batch(split, slice(None)) for split in self.splits}

    def _score(self, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """How far each score is below the optimal one, shape (n, T), exactly 0 there; the optimal score, shape (n,)."""
        scores = sequences.signs[:, None] * (sequences.tokens @ self.decoder)
        best = scores.gather(1, sequences.optimal[:, None])
        return best - scores, best.squeeze(1)

    def facts(self) -> dict[str, Any]:
        """The infimum of the loss beside what all tasks of paper A tell."""
        return super().facts() | {"f_star": self.f_star}

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device."""
        super().to(device, dtype)
        self.decoder = self.decoder.to(device, dtype)
        self._scored = {k: (gaps.to(device, dtype), best.to(device, dtype)) for k, (gaps, best) in self._scored.items()}
        self.whole = {split: self.batch(split, slice(None)) for split in self.splits}

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> "ScoredBatch":
        """The samples of these rows with their scores."""
        if isinstance(rows, Tensor) and len(rows) == self.sizes[split]:
            return self.whole[split]  # the full batch keeps its order, so nothing needs gathering
        tokens, labels, _ = self.splits[split]
        gaps, best = self._scored[split]
        return ScoredBatch(tokens[rows], gaps[rows], torch.sigmoid(-best[rows]), best[rows], labels[rows])


class ScoredBatch(NamedTuple):
    """Tokens (B, T, d), gaps to the optimal score (B, T), sigmoid(-best) (B,), optimal score (B,), labels 0 or 1 (B,)."""

    tokens: Tensor
    gaps: Tensor
    sigmoid: Tensor
    best: Tensor
    labels: Tensor


class AttentionHead(nn.Module):
    """The key-query matrix W, shape (d, d), of one head whose query is the first token."""

    def __init__(self, d: int, init_std: float) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(d, d) * init_std if init_std else torch.zeros(d, d))

    def forward(self, tokens_BTd: Tensor) -> Tensor:
        """Attention logits X W x_1, shape (B, T)."""
        query_Bd = tokens_BTd[:, 0] @ self.W.T
        return torch.bmm(tokens_BTd, query_Bd[:, :, None]).squeeze(-1)


def many_logits(tokens_BTd: Tensor, W_Kdd: Tensor) -> Tensor:
    """Attention logits X W x_1 of K heads, shape (K, B, T)."""
    query_KBd = torch.einsum("kde,be->kbd", W_Kdd, tokens_BTd[:, 0])
    return torch.einsum("btd,kbd->kbt", tokens_BTd, query_KBd)


class TokenClassifier(Task):
    """One attention head and a linear decoder: what the tasks of paper A share, with their measurements."""

    data: TokenData
    head: AttentionHead

    def metrics(self) -> dict[str, Metric]:
        """Share of sequences with a positive margin."""
        return {"accuracy": BinaryAccuracy(validate_args=False)}

    @abstractmethod
    def judge(self, batch: Any, logits_KBT: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Loss and margin y Phi(X) of these sequences with these logits at K points, shape (K, B) each."""

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Measurements of W and its attention on the training samples, and the test loss.

        Keys:
            norm_W: ||W||_F.
            alignment: <W, W_mm> / (||W|| ||W_mm||), 0 for W = 0; absent where the Att-SVM is infeasible.
            distance: ||W / ||W|| - W_mm / ||W_mm|| || = sqrt(2 - 2 alignment), computed from the difference.
            min_margin, mean_margin: smallest and mean (x_{i,opt_i} - x_{i,t})^T W x_{i,1} over i and t != opt_i.
            on_optimal: softmax weight on the optimal token, mean over samples.
            off_optimal: its complement, as the sum of the other weights: never rounded to 0.
            entropy: of the softmax weights, in nats, mean over samples.
            train_error, test_error: share of sequences whose margin is not positive; test_loss.
        """
        W_Kdd = weights["head.W"]
        everything, order_nT = self._measured
        n = len(order_nT)
        logits_KBT = many_logits(everything.tokens, W_Kdd)
        loss_KB, margin_KB = self.judge(everything, logits_KBT, weights)
        wrong_KB = (margin_KB <= 0).to(W_Kdd.dtype)
        logits_KnT = logits_KBT[:, :n].gather(2, order_nT.expand(len(W_Kdd), -1, -1))
        log_weights_KnT = logits_KnT.log_softmax(dim=2)
        weights_KnT = log_weights_KnT.exp()
        leads = logits_KnT[..., :1] - logits_KnT[..., 1:]
        off_K = weights_KnT[..., 1:].sum((1, 2)) / n
        return {
            **towards(self._W_mm, W_Kdd.flatten(1), "W"),
            "min_margin": leads.amin((1, 2)),
            "mean_margin": leads.mean((1, 2)),
            "on_optimal": 1 - off_K,
            "off_optimal": off_K,
            "entropy": -(weights_KnT * log_weights_KnT).sum((1, 2)) / n,
            "train_error": wrong_KB[:, :n].mean(1),
            "test_loss": loss_KB[:, n:].mean(1),
            "test_error": wrong_KB[:, n:].mean(1),
        }

    @cached_property
    def _measured(self) -> tuple[Any, Tensor]:
        """All training sequences and then all test sequences as one batch; the training tokens' order, optimal one first."""
        train, test = (self.data.batch(split, slice(None)) for split in ("train", "test"))
        optimal = self.data.splits["train"].optimal[:, None]
        others = torch.arange(train.tokens.shape[1], device=optimal.device) != optimal
        return type(train)(*map(torch.cat, zip(train, test, strict=True))), others.int().argsort(dim=1, stable=True)

    @cached_property
    def _W_mm(self) -> Tensor | None:
        svm = self.data.att_svm
        return None if isinstance(svm, str) else unit(svm.W.flatten()).to(self.head.W.device, self.head.W.dtype)


def unit(x: Tensor) -> Tensor:
    """The vector divided by its norm."""
    return x / x.norm()


def towards(goal: Tensor | None, x_Kp: Tensor, name: str) -> dict[str, Tensor]:
    """Norms of x and, if there is a goal (a unit vector), alignment with it and distance of the directions, shape (K,).

    The distance comes from the difference, since 2 - 2 alignment would cancel. At x = 0 the alignment is 0.
    """
    norm_K = torch.linalg.vector_norm(x_Kp, dim=1)
    values, suffix = {f"norm_{name}": norm_K}, "" if name == "W" else f"_{name}"
    if goal is not None:
        half_square = (x_Kp / norm_K[:, None] - goal).square().sum(1) / 2
        half_square = torch.where(norm_K == 0, 1, half_square)
        values |= {f"alignment{suffix}": 1 - half_square, f"distance{suffix}": (2 * half_square).sqrt()}
    return values


class AttentionClassifier(TokenClassifier):
    """Phi(X) = u^T X^T softmax(X W x_1): one attention head W, shape (d, d), trained; the linear decoder u is fixed.

    The loss is the logistic loss of the margin m_i = y_i Phi(X_i), less its infimum (`FixedDecoderData.f_star`), computed
    as log1p(sigmoid(-gamma_opt) expm1(gamma_opt - m)), where gamma_opt - m = sum_t p_t (gamma_opt - gamma_t): exact to
    rounding however small. Curves and metrics report the loss itself. Model of Vasudeva et al. (TMLR 2025).

    Args:
        data: tokens, labels and decoder.
        init_std: standard deviation of W at the start, at least 0 (ours).
    """

    data: FixedDecoderData  # type: ignore[assignment]

    def __init__(self, data: FixedDecoderData, *, init_std: float = 0.0) -> None:
        super().__init__(data)
        check_range("init_std", init_std, 0)
        self.head = AttentionHead(data.decoder.numel(), init_std)

    def loss(self, batch: ScoredBatch) -> Outcome:
        """Mean logistic loss above its infimum; predictions are classes, shape (B,)."""
        excess_B, margin_B = excess(batch, attended_mean(self.head(batch.tokens), batch.gaps))
        return Outcome(excess_B.mean(), torch.where(margin_B > 0, batch.labels, 1 - batch.labels), batch.labels)

    def judge(self, batch: ScoredBatch, logits_KBT: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Loss and margin y Phi(X) of these sequences with these logits at K points, shape (K, B) each."""
        above_KB, margin_KB = excess(batch, attended_mean(logits_KBT, batch.gaps.expand_as(logits_KBT)))
        return above_KB + nn.functional.softplus(-batch.best), margin_KB


def excess(batch: ScoredBatch, below: Tensor) -> tuple[Tensor, Tensor]:
    """How far losses are above the least ones, and the margins, if scores are so far below the optimal; shape (..., B)."""
    return torch.log1p(batch.sigmoid * torch.expm1(below)), batch.best - below.detach()


# -- W and u trained jointly ------------------------------------------------------------------------------------------


class MixtureTokenData(TokenData):
    """Sequences with one token around y mu among tokens of noise: a Gaussian mixture with one optimal token each.

    Token t of sequence i is noise z_{i,t} with independent coordinates, and at one random place opt_i it is y_i mu + z. Paper
    A's own distribution and constants are not published in what we could read.

    Args:
        root: unused; nothing is read.
        seed: decides tokens, labels and mu.
        n: number of training sequences, at least 1 (ours).
        n_test: number of test sequences, at least 1 (ours).
        T: tokens per sequence, at least 2 (ours).
        d: width of a token, at least 2 (ours).
        sigma: standard deviation of the noise's coordinates, at least 0 (ours).
        mu_norm: ||mu||, at least 0 (ours).
    """

    f_star = 0.0

    def __init__(
        self, root: Any = None, seed: int = 0, *, n: int = 20, n_test: int = 100, T: int = 6, d: int = 64,
        sigma: float = 0.25, mu_norm: float = 2.0,
    ) -> None:  # fmt: skip
        _check_sizes(n, n_test, T, d)
        check_range("sigma", sigma, 0)
        check_range("mu_norm", mu_norm, 0)
        generator = torch.Generator().manual_seed(derive_seed(seed, "mixture"))
        self.mu = mu_norm * on_sphere(generator, d)

        def split(n: int) -> Sequences:
            labels = torch.randint(0, 2, (n,), generator=generator)
            tokens = sigma * torch.randn(n, T, d, generator=generator, dtype=torch.float64)
            optimal = torch.randint(0, T, (n,), generator=generator)
            tokens[torch.arange(n), optimal] += (2 * labels - 1)[:, None] * self.mu
            return Sequences(tokens, labels, optimal)

        super().__init__({"train": split(n), "test": split(n_test)})

    @cached_property
    def separator(self) -> tuple[Tensor, MaxMargin] | str:
        """The max-margin separator of the optimal training tokens through the origin, or why there is none."""
        tokens, _, optimal = train = self.splits["train"]
        if len(optimal) > MOST_CONSTRAINTS:
            return f"not solved: {len(optimal)} constraints are more than {MOST_CONSTRAINTS}"
        chosen = tokens[torch.arange(len(optimal)), optimal]
        return or_reason(lambda: separator(chosen.cpu().double(), train.signs.cpu().double()))

    def facts(self) -> dict[str, Any]:
        """How the Att-SVM and the separator of the optimal tokens were solved."""
        return super().facts() | {
            "separator": fact(self.separator if isinstance(self.separator, str) else self.separator[1])
        }

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> Sequences:
        """The sequences of these rows."""
        sequences = self.splits[split]
        if isinstance(rows, Tensor) and len(rows) == self.sizes[split]:
            return sequences  # the full batch keeps its order, so nothing needs gathering
        return Sequences(*(part[rows] for part in sequences))


class Decoder(nn.Module):
    """The linear decoder u, shape (d,)."""

    def __init__(self, d: int, init_std: float) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.randn(d) * init_std if init_std else torch.zeros(d))

    def forward(self, tokens_BTd: Tensor) -> Tensor:
        """Each token's value u^T x, shape (B, T)."""
        return tokens_BTd @ self.u


class JointClassifier(TokenClassifier):
    """Phi(X) = u^T X^T softmax(X W x_1) with the head W, shape (d, d), and the decoder u, shape (d,), trained together.

    The loss is the logistic loss log(1 + exp(-y Phi(X))), whose infimum is 0 on separable data. Model of Vasudeva et al.
    (TMLR 2025). At 0, where training starts, W has no gradient until u has moved.

    Args:
        data: sequences with one optimal token each.
        init_std: standard deviation of W and u at the start, at least 0 (ours).
    """

    data: MixtureTokenData  # type: ignore[assignment]

    def __init__(self, data: MixtureTokenData, *, init_std: float = 0.0) -> None:
        super().__init__(data)
        check_range("init_std", init_std, 0)
        self.head = AttentionHead(data.mu.numel(), init_std)
        self.decoder = Decoder(data.mu.numel(), init_std)

    def loss(self, batch: Sequences) -> Outcome:
        """Mean logistic loss; predictions are classes, shape (B,)."""
        margin_B = batch.signs * attended_mean(self.head(batch.tokens), self.decoder(batch.tokens))
        predictions_B = torch.where(margin_B.detach() > 0, batch.labels, 1 - batch.labels)
        return Outcome(logistic_loss(margin_B).mean(), predictions_B, batch.labels)

    def judge(self, batch: Sequences, logits_KBT: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Loss and margin y Phi(X) of these sequences with these logits at K points, shape (K, B) each."""
        values_KBT = torch.einsum("btd,kd->kbt", batch.tokens, weights["decoder.u"])
        margin_KB = batch.signs * attended_mean(logits_KBT, values_KBT)
        return logistic_loss(margin_KB), margin_KB

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What all tasks of paper A measure, and norm_u, alignment_u, distance_u against the max-margin separator."""
        return super().measure_at(weights) | towards(self._separator, weights["decoder.u"], "u")

    @cached_property
    def _separator(self) -> Tensor | None:
        solution, u = self.data.separator, self.decoder.u
        return None if isinstance(solution, str) else unit(solution[0]).to(u.device, u.dtype)
