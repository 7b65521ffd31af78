"""Tasks `synthetic` and `synthetic_joint`: paper A's attention classifier (Vasudeva et al., TMLR 2025).

In the first the decoder is fixed, on random tokens; in the second it is trained too, on a mixture of tokens.
"""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from optimizers.groups import Role
from optimizers.step_size import check_ranges
from tasks.theory.max_margin import Optimum, or_reason, separator
from tasks.theory.token_classifier import (
    Sequences,
    TokenClassifier,
    TokenData,
    logistic_loss,
    on_sphere,
    towards,
)


class ScoredSequences(NamedTuple):
    """`Sequences` whose tokens have fixed scores."""

    tokens: Tensor
    labels: Tensor
    optimal: Tensor
    gaps: Tensor  # the optimal token's score minus each token's, exactly 0 at the optimal one, (n, T)
    best: Tensor  # the optimal token's score, (n,)
    sigmoid: Tensor  # sigmoid(-best), (n,)


class FixedDecoderData(TokenData):
    """Random tokens and labels with a fixed decoder u of norm 1, the `direction`.

    The score of token t is gamma_{i,t} = y_i u.x_{i,t}; the optimal token has the largest. With all attention on the
    optimal tokens the loss is at its infimum f_star = mean_i log(1 + exp(-gamma_{i,opt_i})).

    Sizes and distributions of paper A are not published. The default is ours: it meets the assumption of the theory
    that all tokens but the optimal one have equal scores, and its NGD, PS and GD runs have the known values.

    Args:
        recipe: "equal_scores": Gaussian tokens orthogonal to u, and one optimal token at a random position, shifted
            by y gap u (ours); "sphere": tokens uniform on the unit sphere (Tarzanagh et al.).
        sigma: standard deviation of a token's coordinates under "equal_scores", in [0, 1e100] (ours).
        gap: score of the optimal token under "equal_scores", in [0, 1e100] (ours).
    """

    stream = "tokens"

    def __init__(
        self,
        root: Any = None,
        seed: int = 0,
        *,
        recipe: Literal["equal_scores", "sphere"] = "equal_scores",
        sigma: float = 0.375,
        gap: float = 1.0,
        **sizes: int,
    ) -> None:
        check_ranges(sigma=(sigma, "[0, 1e100]"), gap=(gap, "[0, 1e100]"))
        self.recipe, self.sigma, self.gap = recipe, sigma, gap
        super().__init__(root, seed, **sizes)
        self.loss_offset = {
            name: float(nn.functional.softplus(-sequences.best).mean()) for name, sequences in self.splits.items()
        }
        self.f_star = self.loss_offset["train"]

    def draw(self, generator: torch.Generator, n: int, T: int) -> ScoredSequences:
        """Tokens by the recipe, with their scores."""
        u = self.direction
        labels = torch.randint(0, 2, (n,), generator=generator)
        signs = (2 * labels - 1).double()[:, None]
        if self.recipe == "sphere":
            tokens = on_sphere(generator, n, T, len(u))
        else:
            noise = self.sigma * torch.randn(n, T, len(u), generator=generator, dtype=torch.float64)
            tokens = noise - (noise @ u)[..., None] * u
            place = torch.randint(0, T, (n,), generator=generator)
            tokens[torch.arange(n), place] += self.gap * signs * u
        scores = signs * (tokens @ u)
        optimal = scores.argmax(dim=1)
        best = scores.gather(1, optimal[:, None])
        return ScoredSequences(tokens, labels, optimal, best - scores, best[:, 0], torch.sigmoid(-best[:, 0]))

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the samples to the device, with sigmoids in the precision of the run."""
        super().to(device, dtype)
        for split, samples in self.splits.items():
            self.splits[split] = samples._replace(sigmoid=torch.sigmoid(-samples.best))

    def facts(self) -> dict[str, Any]:
        """The infimum of the loss, and the facts of all tasks of paper A."""
        return super().facts() | {"f_star": self.f_star}


class AttentionClassifier(TokenClassifier):
    """Phi(X) = u^T X^T softmax(X W x_1): one attention head W, shape (d, d), trained; the linear decoder u is fixed.

    The loss is the logistic loss of the margin m_i = y_i Phi(X_i), less its infimum (`FixedDecoderData.f_star`),
    computed as log1p(sigmoid(-gamma_opt) expm1(gamma_opt - m)), where gamma_opt - m = sum_t p_t (gamma_opt - gamma_t):
    exact to rounding however small. Curves and metrics report the loss itself. Model of Vasudeva et al. (TMLR 2025).
    """

    def values(self, batch: ScoredSequences, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """How far each token's score is below the optimal one."""
        return batch.gaps if weights is None else batch.gaps[:, :, None]

    def judge(self, batch: ScoredSequences, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Suboptimality gap and margin of each sequence."""
        return torch.log1p(batch.sigmoid * torch.expm1(mean)), batch.best - mean.detach()


class MixtureTokenData(TokenData):
    """Sequences with one token around y mu among tokens of noise: a Gaussian mixture with one optimal token each.

    Token t of sequence i is noise z_{i,t} with independent coordinates, and at one random place opt_i it is y_i mu + z.
    Paper A's own distribution and constants are not published in what we could read.

    Args:
        sigma: standard deviation of the noise's coordinates, at least 0 (ours).
        mu_norm: ||mu||, at least 0 (ours).
    """

    stream = "mixture"
    f_star = 0.0
    loss_offset = MappingProxyType({"train": 0.0, "test": 0.0})

    def __init__(
        self, root: Any = None, seed: int = 0, *, sigma: float = 0.25, mu_norm: float = 2.0, **sizes: int
    ) -> None:
        check_ranges(sigma=(sigma, "[0, inf)"), mu_norm=(mu_norm, "[0, inf)"))
        self.sigma, self.mu_norm = sigma, mu_norm
        super().__init__(root, seed, **sizes)

    def draw(self, generator: torch.Generator, n: int, T: int) -> Sequences:
        """Noise, with y mu added to one token of each sequence."""
        mu = self.mu_norm * self.direction
        labels = torch.randint(0, 2, (n,), generator=generator)
        tokens = self.sigma * torch.randn(n, T, len(mu), generator=generator, dtype=torch.float64)
        optimal = torch.randint(0, T, (n,), generator=generator)
        tokens[torch.arange(n), optimal] += (2 * labels - 1)[:, None] * mu
        return Sequences(tokens, labels, optimal)

    @cached_property
    def separator(self) -> Optimum | str:
        """The max-margin separator of the optimal training tokens through the origin, or why there is none."""
        tokens, labels, optimal = self.splits["train"]
        chosen = tokens[torch.arange(len(optimal)), optimal]
        return or_reason(len(optimal), lambda: separator(chosen, 2 * labels - 1))

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
    """

    roles: Mapping[str, Role] = {"decoder.u": "head"}

    def __init__(self, data: MixtureTokenData, *, init_std: float = 0.0) -> None:
        super().__init__(data, init_std=init_std)
        self.decoder = Decoder(len(data.direction), init_std)

    def values(self, batch: Sequences, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """u^T x of each token."""
        return self.decoder(batch.tokens) if weights is None else batch.tokens @ weights["decoder.u"].T

    def judge(self, batch: Sequences, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Logistic loss and margin of each sequence."""
        margin = batch.signs * mean
        return logistic_loss(margin), margin

    def measure_at(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The measurements of all tasks of paper A, and the direction of u.

        Keys:
            norm_u: ||u||.
            alignment_u, distance_u: between u and the max-margin separator of the optimal tokens, as for W.
        """
        return super().measure_at(weights) | towards(self._goals["separator"], weights["decoder.u"], "u")
