"""Paper B's multi-head attention classifier, all heads in one matrix product, on its two kinds of synthetic data."""

from collections.abc import Mapping
from functools import cached_property
from math import log, sqrt
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import BinaryAccuracy

from optimizers.groups import Role
from optimizers.step_size import check_ranges
from tasks.core.data import TensorData
from tasks.core.order import derive_seed
from tasks.core.task import Task
from tasks.core.training_step import Outcome
from tasks.theory.token_classifier import logistic_loss


class Samples(NamedTuple):
    """Tokens (N, T, d), signs +1 or -1 (N,), labels 1 or 0 (N,)."""

    tokens: Tensor
    signs: Tensor
    labels: Tensor


# Attention logits computed at a time: on a CPU they stay in its cache (up to twice as fast), elsewhere in memory.
_CPU_LOGITS, _LOGITS = 2**17, 2**24


class SequenceData(TensorData):
    """Sequences of tokens with binary labels, in the splits "train", "val" and "test".

    The paper studies generalisation, so the test loss is ranked, and settings are chosen on a separate split with as
    many sequences as the test split (ours). Each split has its own stream of random numbers.

    Args:
        n: number of training sequences, at least 1; by default the paper's.
        n_test: number of test sequences, at least 1; by default the paper's. The selection split has as many (ours).
    """

    f_star = 0.0
    loss_offset = MappingProxyType({"train": 0.0, "val": 0.0, "test": 0.0})
    relevant: Tensor | None = None  # (N, T), 1 at training tokens that carry the label and 0 at others
    planted: tuple[Tensor, Tensor] | None = None  # the head that defines the labels, W* (d, d) and U* (T, d)


class MixtureData(SequenceData):
    """DM1, the tokenized mixture of Deora et al. (TMLR 2024): a few tokens carry the label, the others distract.

    A sequence with label y, +1 or -1 with equal probability, has round(zeta T) relevant tokens at random places, all
    equal to the mean mu_y. Each other token is an irrelevant mean nu_j, j uniform on 1..M, plus Gaussian noise. All the
    means are orthogonal, in random directions.

    Args:
        T: tokens per sequence, at least 2; the paper's 10.
        zeta: share of relevant tokens, in (0, 1] with round(zeta T) at least 1; the paper's 0.1.
        d: width of a token, at least M + 2 (ours: the paper leaves it open).
        M: number of irrelevant means, at least 1 (ours: the paper leaves it open).
        S: norm of the relevant means, in (0, inf) (ours: the paper leaves it open).
        nu_norm: norm of the irrelevant means, in [0, inf) (ours: the paper leaves it open).
        sigma: standard deviation of each coordinate of the noise, in [0, inf) (ours: the paper leaves it open).
    """

    def __init__(
        self,
        root: Any = None,
        seed: int = 0,
        *,
        n: int = 100,
        n_test: int = 300,
        T: int = 10,
        zeta: float = 0.1,
        d: int = 20,
        M: int = 5,
        S: float = 1.0,
        nu_norm: float = 1.0,
        sigma: float = 0.2,
    ) -> None:
        check_ranges(n=(n, "[1, inf)"), n_test=(n_test, "[1, inf)"), T=(T, "[2, inf)"), M=(M, "[1, inf)"))
        check_ranges(d=(d, f"[{M + 2}, inf)"), zeta=(zeta, "(0, 1]"), S=(S, "(0, inf)"))
        check_ranges(nu_norm=(nu_norm, "[0, inf)"), sigma=(sigma, "[0, inf)"))
        if round(zeta * T) < 1:
            raise ValueError(f"zeta={zeta} is out of range: round(zeta T) must be at least 1, with T={T}")
        directions = torch.randn(d, M + 2, generator=_generator(seed, "means"), dtype=torch.float64)
        means = torch.linalg.qr(directions).Q.T
        # Relevant means by label 0 and 1, shape (2, d); irrelevant means, shape (M, d).
        self.mu, self.nu = S * means[:2], nu_norm * means[2:]

        def draw(split: str, n: int) -> tuple[Samples, Tensor]:
            generator = _generator(seed, split)
            labels = torch.randint(0, 2, (n,), generator=generator)
            relevant = torch.rand(n, T, generator=generator, dtype=torch.float64).argsort(dim=1) < round(zeta * T)
            kinds = torch.randint(0, M, (n, T), generator=generator)
            noise = torch.randn(n, T, d, generator=generator, dtype=torch.float64)
            tokens = torch.where(relevant[..., None], self.mu[labels][:, None], self.nu[kinds] + sigma * noise)
            return Samples(tokens, 2 * labels.double() - 1, labels), relevant.double()

        train, self.relevant = draw("train", n)
        super().__init__({"train": train, **{split: draw(split, n_test)[0] for split in ("val", "test")}})


class PlantedData(SequenceData):
    """Gaussian tokens labelled by a planted head, y = sign(<U*, softmax(X W* X^T) X>), of Deora et al. (TMLR 2024).

    Tokens are standard Gaussian; W* and U* are Gaussian matrices, scaled to their norms.

    Args:
        T: tokens per sequence, at least 2 (ours: the paper leaves it open).
        d: width of a token, at least 1 (ours: the paper leaves it open).
        W_norm: Frobenius norm of W*, in [0, inf): how sharp its attention is (ours: the paper leaves it open).
        U_norm: Frobenius norm of U*, in (0, inf); the labels do not depend on it (ours: the paper leaves it open).
    """

    def __init__(
        self,
        root: Any = None,
        seed: int = 0,
        *,
        n: int = 1000,
        n_test: int = 3000,
        T: int = 5,
        d: int = 5,
        W_norm: float = 5.0,
        U_norm: float = 5.0,
    ) -> None:
        check_ranges(n=(n, "[1, inf)"), n_test=(n_test, "[1, inf)"), T=(T, "[2, inf)"), d=(d, "[1, inf)"))
        check_ranges(W_norm=(W_norm, "[0, inf)"), U_norm=(U_norm, "(0, inf)"))
        generator = _generator(seed, "head")
        W = torch.randn(d, d, generator=generator, dtype=torch.float64)
        U = torch.randn(T, d, generator=generator, dtype=torch.float64)
        W, U = W * (W_norm / W.norm()), U * (U_norm / U.norm())

        def draw(split: str, n: int) -> Samples:
            generator = _generator(seed, split)
            tokens = torch.randn(n, T, d, generator=generator, dtype=torch.float64)
            scores = attended(tokens, attention_logits(tokens, W).softmax(1), U).sum((1, 2))
            labels = (scores > 0).long()
            return Samples(tokens, 2 * labels.double() - 1, labels)

        self.planted = W, U
        sizes = {"train": n, "val": n_test, "test": n_test}
        super().__init__({split: draw(split, size) for split, size in sizes.items()})


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, purpose))


# -- model ----------------------------------------------------------------------------------------------------------
#
# Letters of shapes: B sequences, H heads, T tokens, d width; S the attended tokens, Q = T H the rows of attention,
# query token by query token; K points of the run. With the attended tokens before the rows, a softmax runs over whole
# vectors of rows at once.


def side_by_side(W_Hdd: Tensor) -> Tensor:
    """All W_h in one matrix, shape (d, H d)."""
    return W_Hdd.transpose(0, 1).flatten(1)


def by_row(U_HTd: Tensor) -> Tensor:
    """All U_h in one matrix, shape (Q, d)."""
    return U_HTd.transpose(0, 1).flatten(0, 1)


def attention_logits(tokens_BTd: Tensor, W_dHd: Tensor) -> Tensor:
    """X W_h X^T of all heads, one product for all X W_h, shape (B, S, Q): softmax over S gives the attention."""
    B, _, d = tokens_BTd.shape
    return torch.bmm(tokens_BTd, (tokens_BTd.flatten(0, 1) @ W_dHd).view(B, -1, d).transpose(1, 2))


def attended(tokens_BTd: Tensor, weights_BSQ: Tensor, U_Qd: Tensor) -> Tensor:
    """Terms of sum_h <U_h, weights_h X>, shape (B, S, Q); its gradient for saturated logits would cancel."""
    return (tokens_BTd.flatten(0, 1) @ U_Qd.T).view_as(weights_BSQ).mul_(weights_BSQ)


def pieces(tokens_NTd: Tensor, H: int) -> tuple[Tensor, ...]:
    """The sequences in pieces small enough for H heads at once."""
    T = tokens_NTd.shape[1]
    most = _CPU_LOGITS if tokens_NTd.device.type == "cpu" else _LOGITS
    return tokens_NTd.split(max(1, most // (H * T * T)))


class Heads(nn.Module):
    """The parameters of H heads, W of shape (H, d, d) and U of shape (H, T, d)."""

    def __init__(self, H: int, T: int, d: int, init_std: float) -> None:
        super().__init__()
        self.W, self.U = (
            nn.Parameter(torch.randn(shape) * init_std if init_std else torch.zeros(shape))
            for shape in ((H, d, d), (H, T, d))
        )

    def forward(self, tokens_BTd: Tensor) -> Tensor:
        """Phi(X), shape (B,)."""
        return model_outputs(tokens_BTd, self.W[None], self.U[None]).squeeze(1)


def model_outputs(tokens_BTd: Tensor, W_KHdd: Tensor, U_KHTd: Tensor) -> Tensor:
    """Phi(X) at K points, shape (B, K): the heads of all points are computed as one model.

    As in `attended_mean`, whose gradient survives saturation too, the sum over tokens is taken of differences to a
    constant, here to the rounded mean.
    """
    K, H, T, _ = U_KHTd.shape
    W_dHd, U_Qd = side_by_side(W_KHdd.flatten(0, 1)), by_row(U_KHTd.flatten(0, 1))
    parts = []
    for tokens in pieces(tokens_BTd, K * H):
        weights_BSQ = attention_logits(tokens, W_dHd).softmax(1)
        values_BSQ = (tokens.flatten(0, 1) @ U_Qd.T).view_as(weights_BSQ)
        mean_B1Q = (weights_BSQ.detach() * values_BSQ.detach()).sum(1, keepdim=True)
        rest_BQ = (weights_BSQ * (values_BSQ - mean_B1Q)).sum(1)
        parts.append((mean_B1Q.squeeze(1) + rest_BQ).view(-1, T, K, H).sum((1, 3)))
    return torch.cat(parts) / sqrt(H)


class MultiHeadClassifier(Task):
    """Phi(X) = (1/sqrt(H)) sum_h <U_h, softmax(X W_h X^T) X>, W_h of shape (d, d) and U_h of shape (T, d) trained.

    The softmax is over rows; the loss is the logistic loss of the margin y Phi(X). Model of Deora, Ghaderi,
    Taheri, Thrampoulidis: On the Optimization and Generalization of Multi-head Attention (TMLR 2024).

    Args:
        H: number of heads, at least 1; the paper's list is not published.
        init_std: standard deviation of all parameters at the start, in [0, inf); the paper starts at 0.
    """

    roles: Mapping[str, Role] = {"heads.U": "head"}  # W is a stack of matrices, one per head

    data: SequenceData

    def __init__(self, data: SequenceData, *, H: int = 1, init_std: float = 0.0) -> None:
        super().__init__(data)
        check_ranges(H=(H, "[1, inf)"), init_std=(init_std, "[0, inf)"))
        T, d = data.splits["train"][0].shape[1:]
        self.heads = Heads(H, T, d, init_std)

    def loss(self, batch: Samples) -> Outcome:
        """Mean logistic loss; predictions are classes, shape (B,)."""
        return _outcome(batch, self.heads(batch.tokens))

    def loss_at(self, weights: Mapping[str, Tensor], batch: Samples) -> Outcome:
        """`loss` at K points."""
        return _outcome(batch, model_outputs(batch.tokens, weights["heads.W"], weights["heads.U"]).T)

    def metrics(self) -> dict[str, Metric]:
        """Share of sequences on the right side of 0; 0 itself counts as label -1."""
        return {"accuracy": BinaryAccuracy(validate_args=False)}

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The paper's measurements, over all samples.

        Test sequences in float64, most of the work, are evaluated in float32: test_loss has a relative error of about
        1e-6, and test_error may miscount a sequence whose output is that close to 0. The rest has the precision of the
        weights, even if attention is saturated.

        Keys:
            avg_norm_W: (1/H) sum_h ||W_h||_F.
            avg_norm_U: (1/sqrt(H)) sum_h ||U_h||_F.
            entropy: of the attention in nats, in [0, log T], mean over training samples, heads and query tokens.
            attn_score: attention on the relevant tokens, in [0, 1], mean over the same, if the data have them.
            off_relevant: 1 - attn_score, as a sum over the other tokens, so that it does not round to 0.
            train_error, test_error: share of sequences on the wrong side of 0.
            test_loss: mean logistic loss.
            align_W, align_U: cosine between all W_h (U_h) as one vector and W* (U*) repeated H times, for planted
                data; 0 at zero weights.
        """
        W_KHdd, U_KHTd = weights["heads.W"], weights["heads.U"]
        (train, test, coarse_NTd, relevant_NT, planted), (K, H, T, _) = self._measured, U_KHTd.shape
        # The heads of all points as one model; `apart` splits its rows into query token, point and head.
        W_dHd, U_Qd, apart = side_by_side(W_KHdd.flatten(0, 1)), by_row(U_KHTd.flatten(0, 1)), (-1, T, T, K, H)
        base2_dHd = W_dHd / log(2)  # logits in base 2, since `exp2` takes a third of the time of `exp`
        outputs, masses, entropies = [], [], []
        for tokens in pieces(train.tokens, K * H):
            logits_BSQ = attention_logits(tokens, base2_dHd)
            below_BSQ = logits_BSQ.sub_(logits_BSQ.amax(1, keepdim=True))
            powers_BSQ = below_BSQ.exp2()
            sum_B1Q = powers_BSQ.sum(1, keepdim=True)
            weights_BSQ = powers_BSQ * sum_B1Q.reciprocal()
            outputs.append(attended(tokens, weights_BSQ, U_Qd).view(apart).sum((1, 2, 4)))
            if relevant_NT is not None:
                masses.append(weights_BSQ.view(apart).mean((2, 4)))
            # -sum_s w_s log w_s with log w_s = log(2) below_s - log(sum)
            far_K = below_BSQ.mul_(weights_BSQ).view(apart).sum((0, 1, 2, 4))
            near_K = log_sum_(powers_BSQ, sum_B1Q).view(-1, T, K, H).sum((0, 1, 3))
            entropies.append(near_K - log(2) * far_K)
        W_dHd, U_Qd = W_dHd.to(coarse_NTd), U_Qd.to(coarse_NTd)
        test_outputs = [
            attended(tokens, attention_logits(tokens, W_dHd).softmax(1), U_Qd).view(apart).sum((1, 2, 4))
            for tokens in pieces(coarse_NTd, K * H)
        ]
        outputs_NK, tests_NK = torch.cat(outputs), torch.cat(test_outputs).to(W_KHdd.dtype) / sqrt(H)
        values = {
            "avg_norm_W": W_KHdd.norm(dim=(2, 3)).mean(1),
            "avg_norm_U": U_KHTd.norm(dim=(2, 3)).sum(1) / sqrt(H),
            "entropy": torch.stack(entropies).sum(0) / (len(outputs_NK) * T * H),
            "train_error": _error(outputs_NK, train.labels),
            "test_loss": logistic_loss(test.signs[:, None] * tests_NK).mean(0),
            "test_error": _error(tests_NK, test.labels),
        }
        if relevant_NT is not None:
            mass_NTK, relevant_NT1 = torch.cat(masses), relevant_NT[..., None]
            values["attn_score"] = (mass_NTK * relevant_NT1).sum(1).mean(0)
            values["off_relevant"] = (mass_NTK * (1 - relevant_NT1)).sum(1).mean(0)
        if planted:
            values["align_W"], values["align_U"] = map(_cosine, (W_KHdd, U_KHTd), planted)
        return values

    @cached_property
    def _measured(self) -> tuple[Samples, Samples, Tensor, Tensor | None, list[Tensor]]:
        """Training and test samples, coarse test tokens, marks of relevant tokens, the planted head; on the device."""
        (train, test), data = (self.data.splits[split] for split in ("train", "test")), self.data
        coarse_NTd = test.tokens.float() if test.tokens.dtype == torch.float64 else test.tokens
        relevant_NT = None if data.relevant is None else data.relevant.to(train.tokens)
        return train, test, coarse_NTd, relevant_NT, [part.to(train.tokens) for part in data.planted or ()]


def _outcome(batch: Samples, outputs: Tensor) -> Outcome:
    loss = logistic_loss(batch.signs * outputs).mean(-1)
    return Outcome(loss, (outputs.detach() > 0).long(), batch.labels.expand_as(outputs))


def log_sum_(powers_BSQ: Tensor, sum_B1Q: Tensor) -> Tensor:
    """Log of sums over S, shape (B, 1, Q), exact near 0, of powers in [0, 1] with a 1 among them; overwrites both."""
    rest_B1Q = powers_BSQ.frac_().sum(1, keepdim=True)  # without the ones, next to which it would lose digits
    ones_B1Q = sum_B1Q.sub_(rest_B1Q).round_()
    return ones_B1Q.sub_(1).add_(rest_B1Q).log1p_()


def _error(outputs_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Share of sequences on the wrong side of 0, shape (K,)."""
    return ((outputs_NK > 0) != labels_N[:, None]).to(outputs_NK.dtype).mean(0)


def _cosine(parts_KH: Tensor, part: Tensor) -> Tensor:
    """Cosine between all the parts of a point as one vector and `part` repeated as often, shape (K,); 0 if one is 0."""
    norms_K = parts_KH.flatten(1).norm(dim=1) * part.norm() * sqrt(parts_KH.shape[1])
    return (parts_KH * part).flatten(1).sum(1) / norms_K.clamp(min=torch.finfo(norms_K.dtype).tiny)
