"""Small models to step on; each has `rows(parts)`, `loss(rows)` and `reduced(loss)`."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

SAMPLES, TOKENS, WIDTH = 12, 4, 5


def _draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Attention(nn.Module):
    """An attention head with a linear readout and a logistic loss with learnable labels.

    Args:
        dtype: of weights and data.
        seed: of the weights.
        matrices: whether all parameters are matrices; else there are vectors among them.
    """

    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 0, *, matrices: bool = False) -> None:
        super().__init__()
        column = (1,) if matrices else ()
        self.keys = nn.Parameter(0.5 * _draw(seed + 1, WIDTH, WIDTH).to(dtype))
        self.values = nn.Parameter(0.5 * _draw(seed + 2, WIDTH, 3).to(dtype))
        self.readout = nn.Parameter(0.5 * _draw(seed + 3, 3, *column).to(dtype))
        self.bias = nn.Parameter(0.5 * _draw(seed + 4, 1, *column).to(dtype))
        self.inputs = _draw(5, SAMPLES, TOKENS, WIDTH).to(dtype)
        self.labels = torch.sign(self.inputs[:, 0, 0] + self.inputs[:, 0, 1])

    def rows(self, parts: int) -> list[slice]:
        """The batch, cut into micro-batches of different sizes."""
        cuts = [SAMPLES * part * (part + 1) // (parts * (parts + 1)) for part in range(parts + 1)]
        return [slice(a, b) for a, b in pairwise(cuts)]

    def forward(self, rows: slice) -> Tensor:
        """Sum of the rows' losses over the number of all rows, so that micro-batches add up to the mean."""
        x = self.inputs[rows]
        scores = torch.einsum("nd,de,nte->nt", x[:, 0], self.keys, x)
        seen = torch.einsum("nt,ntd->nd", scores.softmax(-1), x)
        margin = self.labels[rows] * ((seen + x[:, 0]) @ self.values @ self.readout.flatten() + self.bias.flatten())
        return softplus(-margin).sum() / SAMPLES

    def loss(self, rows: slice) -> Tensor:
        """`forward`."""
        return self(rows)

    def reduced(self, loss: Tensor) -> Tensor:
        """The loss of the batch, from the loss of this process."""
        return loss


class Quadratic(nn.Module):
    """Half of the sum of a_i y_i^2 with a from 1 to 10 and y = turn^T w; all components of the start are nonzero.

    Args:
        turn: an orthogonal matrix, shape (6, 6); the identity if None.
        matrices: whether w is a matrix with one column, else a vector.
    """

    def __init__(self, turn: Tensor | None = None, *, matrices: bool = False) -> None:
        super().__init__()
        self.turn = torch.eye(6, dtype=torch.float64) if turn is None else turn
        self.curvature = torch.linspace(1, 10, 6, dtype=torch.float64)
        start = self.turn @ torch.tensor([1.0, -0.8, 1.2, 0.9, -1.1, 0.7], dtype=torch.float64)
        self.weight = nn.Parameter(start.view(6, 1) if matrices else start)
        self.factor = 1.0

    def rows(self, parts: int) -> list[slice]:
        """One micro-batch."""
        return [slice(None)]

    def loss(self, rows: slice) -> Tensor:
        """The value, times `factor`."""
        return self.factor * 0.5 * (self.curvature * (self.turn.T @ self.weight.flatten()).square()).sum()

    def reduced(self, loss: Tensor) -> Tensor:
        """The loss itself."""
        return loss
