"""Tasks `synthetic` and `synthetic_joint`: paper A's attention classifier (Vasudeva et al., TMLR 2025).

In the first the decoder is fixed, on random tokens; in the second it is trained too, on a mixture of tokens.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from optimizers.groups import Role
from optimizers.step_size import check_range
from tasks.core.order import derive_seed
from tasks.core.training_step import Outcome
from tasks.theory.max_margin import Optimum, or_reason, separator
from tasks.theory.saturated import attended_mean, logistic_loss
from tasks.theory.token_classifier import (
    AttentionHead,
    Sequences,
    TokenClassifier,
    TokenData,
    check_sizes,
    on_sphere,
    towards,
)

# -- fixed decoder ----------------------------------------------------------------------------------------------------


class ScoredSequences(NamedTuple):
    """Sequences whose tokens have fixed scores.

    Attributes:
        tokens: shape (n, T, d).
        gaps: the optimal token's score minus each token's, exactly 0 at the optimal one, shape (n, T).
        sigmoid: sigmoid(-best), shape (n,).
        best: the optimal token's score, shape (n,).
        labels: 0 or 1, shape (n,).
    """

    tokens: Tensor
    gaps: Tensor
    sigmoid: Tensor
    best: Tensor
    labels: Tensor


class FixedDecoderData(TokenData):
    """Random tokens and labels with a fixed decoder u of norm 1: one problem instance per seed.

    The score of token t is gamma_{i,t} = y_i u.x_{i,t}; the optimal token has the largest. With all attention on the
    optimal tokens the loss is at its infimum f_star = mean_i log(1 + exp(-gamma_{i,opt_i})).

    Sizes and distributions of paper A are not published. The default is ours: it meets the assumption of the theory
    that all tokens but the optimal one have equal scores, and its constants were chosen so that its NGD, PS and GD runs
    agree with the values known for n=20, T=6, d=64.

    Args:
        root: unused; nothing is read.
        seed: decides tokens, labels and decoder.
        n: number of training sequences, at least 1 (ours).
        n_test: number of test sequences, at least 1 (ours).
        T: tokens per sequence, at least 2 (ours).
        d: width of a token, at least 2 (ours).
        recipe: "equal_scores": Gaussian tokens orthogonal to u, and one optimal token at a random position, shifted
            by y gap u (ours); "sphere": tokens uniform on the unit sphere (Tarzanagh et al.).
        sigma: standard deviation of a token's coordinates under "equal_scores", in [0, 1e100] (ours).
        gap: score of the optimal token under "equal_scores", in [0, 1e100] (ours).
    """

    def __init__(
        self,
        root: Any = None,
        seed: int = 0,
        *,
        n: int = 20,
        n_test: int = 100,
        T: int = 6,
        d: int = 64,
        recipe: Literal["equal_scores", "sphere"] = "equal_scores",
        sigma: float = 0.375,
        gap: float = 1.0,
    ) -> None:
        check_sizes(n=(n, 1), n_test=(n_test, 1), T=(T, 2), d=(d, 2))
        check_range("sigma", sigma, 0, 1e100)
        check_range("gap", gap, 0, 1e100)
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
        self.samples = {name: self._score(sequences) for name, sequences in self.splits.items()}
        self.loss_offset = {
            name: float(nn.functional.softplus(-scored.best).mean()) for name, scored in self.samples.items()
        }
        self.f_star = self.loss_offset["train"]

    def _score(self, sequences: Sequences) -> ScoredSequences:
        scores = sequences.signs[:, None] * (sequences.tokens @ self.decoder)
        best = scores.gather(1, sequences.optimal[:, None])
        return scored(sequences, best - scores, best.squeeze(1))

    def facts(self) -> dict[str, Any]:
        """The infimum of the loss, and the facts of all tasks of paper A."""
        return super().facts() | {"f_star": self.f_star}

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device."""
        super().to(device, dtype)
        self.decoder = self.decoder.to(device, dtype)
        for split, (_, gaps, _, best, _) in self.samples.items():
            self.samples[split] = scored(self.splits[split], gaps.to(device, dtype), best.to(device, dtype))


def scored(sequences: Sequences, gaps: Tensor, best: Tensor) -> ScoredSequences:
    """The sequences with their scores."""
    return ScoredSequences(sequences.tokens, gaps, torch.sigmoid(-best), best, sequences.labels)


class AttentionClassifier(TokenClassifier):
    """Phi(X) = u^T X^T softmax(X W x_1): one attention head W, shape (d, d), trained; the linear decoder u is fixed.

    The loss is the logistic loss of the margin m_i = y_i Phi(X_i), less its infimum (`FixedDecoderData.f_star`),
    computed as log1p(sigmoid(-gamma_opt) expm1(gamma_opt - m)), where gamma_opt - m = sum_t p_t (gamma_opt - gamma_t):
    exact to rounding however small. Curves and metrics report the loss itself. Model of Vasudeva et al. (TMLR 2025).

    Args:
        data: tokens, labels and decoder.
        init_std: standard deviation of W at the start, at least 0 (ours).
    """

    def __init__(self, data: FixedDecoderData, *, init_std: float = 0.0) -> None:
        super().__init__(data)
        check_range("init_std", init_std, 0)
        self.head = AttentionHead(data.decoder.numel(), init_std)

    def loss(self, batch: ScoredSequences) -> Outcome:
        """Mean logistic suboptimality gap; predictions are classes, shape (B,)."""
        excess_B, margin_B = excess(batch, attended_mean(self.head(batch.tokens), batch.gaps))
        return Outcome(excess_B.mean(), torch.where(margin_B > 0, batch.labels, 1 - batch.labels), batch.labels)

    def judge(
        self, batch: ScoredSequences, weights: Mapping[str, Tensor], mean: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Suboptimality gap and margin y Phi(X) of each sequence at K points, shape (K, B) each."""
        return excess(batch, mean(batch.gaps[:, :, None].expand(-1, -1, len(weights["head.W"]))).T)


def excess(batch: ScoredSequences, below: Tensor) -> tuple[Tensor, Tensor]:
    """Suboptimality gaps and margins at scores this far below the optimal one; shape (..., B) each."""
    return torch.log1p(batch.sigmoid * torch.expm1(below)), batch.best - below.detach()


# -- trained decoder --------------------------------------------------------------------------------------------------


class MixtureTokenData(TokenData):
    """Sequences with one token around y mu among tokens of noise: a Gaussian mixture with one optimal token each.

    Token t of sequence i is noise z_{i,t} with independent coordinates, and at one random place opt_i it is y_i mu + z.
    Paper A's own distribution and constants are not published in what we could read.

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
    loss_offset = MappingProxyType({"train": 0.0, "test": 0.0})

    def __init__(
        self,
        root: Any = None,
        seed: int = 0,
        *,
        n: int = 20,
        n_test: int = 100,
        T: int = 6,
        d: int = 64,
        sigma: float = 0.25,
        mu_norm: float = 2.0,
    ) -> None:
        check_sizes(n=(n, 1), n_test=(n_test, 1), T=(T, 2), d=(d, 2))
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
    def separator(self) -> Optimum | str:
        """The max-margin separator of the optimal training tokens through the origin, or why there is none."""
        tokens, _, optimal = train = self.splits["train"]
        chosen = tokens[torch.arange(len(optimal)), optimal]
        return or_reason(len(optimal), lambda: separator(chosen, train.signs))

    def directions(self) -> dict[str, Optimum | str]:
        """The Att-SVM's direction, and the separator of the optimal tokens."""
        return super().directions() | {"separator": self.separator}


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

    The loss is the logistic loss log(1 + exp(-y Phi(X))), whose infimum is 0 on separable data. Model of Vasudeva
    et al. (TMLR 2025). At 0, where training starts, W has no gradient until u has moved.

    Args:
        data: sequences with one optimal token each.
        init_std: standard deviation of W and u at the start, at least 0 (ours).
    """

    roles: Mapping[str, Role] = {"decoder.u": "head"}

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

    def judge(
        self, batch: Sequences, weights: Mapping[str, Tensor], mean: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Loss and margin y Phi(X) of each sequence at K points, shape (K, B) each."""
        margin_KB = batch.signs * mean(batch.tokens @ weights["decoder.u"].T).T
        return logistic_loss(margin_KB), margin_KB

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The measurements of all tasks of paper A, and the direction of u.

        Keys:
            norm_u: ||u||.
            alignment_u, distance_u: between u and the max-margin separator of the optimal tokens, as for W.
        """
        return super().measure_at(weights) | towards(self._goals["separator"], weights["decoder.u"], "u")
