"""Hard-margin problems solved through their Gram matrix: the attention SVM, and the separator of optimal tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, optimize
from torch import Tensor

ACCURACY = 1e-8  # largest violation and relative duality gap of a returned answer
NO_MARGIN = 1e-7  # largest margin, relative to the constraints' norms, that counts as none: its square is rounding
MOST_CONSTRAINTS = 3000  # that `or_reason` solves: they take a minute, and the Gram matrix much memory. Ours.


@dataclass(frozen=True)
class MaxMargin:
    """The solution w = sum_k weights_k c_k of min ||w||^2 subject to <c_k, w> >= 1, with its certificate."""

    weights: NDArray[np.float64]  # dual solution, (m,), at least 0; w is unique, they need not be
    norm: float  # ||w||; the margin of w/||w|| is 1/norm
    violation: float  # max_k (1 - <c_k, w>), or 0 where all constraints hold
    duality_gap: float  # (primal - dual) / primal, with the primal at w scaled until it is feasible; 0 up to rounding
    support: int  # how many weights are positive


Optimum = tuple[Tensor, MaxMargin]
"""The vector or matrix of largest margin, float64, and its dual solution."""


def solve(gram: ArrayLike) -> MaxMargin | None:
    """Solve min ||w||^2 subject to <c_k, w> >= 1 for k = 1..m, given only the products <c_k, c_l>, the Gram matrix K.

    As least-distance programming by non-negative least squares (Lawson and Hanson 1974, chapter 23): with u >= 0 that
    minimises ||sum_k u_k c_k||^2 + (1 - sum_k u_k)^2, w = sum_k u_k c_k / (1 - sum_k u_k), whose denominator is
    1 / (1 + ||w||^2). The result is None if no solution exists, or only with a margin of at most `NO_MARGIN`, and an
    ArithmeticError if no answer within `ACCURACY` was found: for margins below about 1e-4 of the constraints' norms,
    which drown in the rounding of K.
    """
    K = np.asarray(gram, dtype=np.float64)
    lengths = np.sqrt(K.diagonal())
    shortest = float(lengths.min())
    if shortest == 0:
        return None
    # Constraints of length 1 with right sides b in (0, 1]; their weights are the true ones times shortest * lengths.
    G = (K + K.T) / 2 / lengths[:, None] / lengths
    b = shortest / lengths
    squares, vectors = linalg.eigh(G)
    kept = squares > len(G) * np.finfo(float).eps * squares[-1]
    rows = np.vstack([(vectors[:, kept] * np.sqrt(squares[kept])).T, b])
    try:
        u, _ = optimize.nnls(rows, np.append(np.zeros(len(rows) - 1), 1.0), maxiter=50 * len(G))
    except RuntimeError as error:
        raise ArithmeticError(f"no max-margin solution of {len(K)} constraints: {error}") from None
    rest = 1 - float(b @ u)
    if rest <= NO_MARGIN**2:
        return None
    scaled = u / rest
    products = G @ scaled
    norm2 = float(scaled @ products)
    violation = max(0.0, float((1 - products / b).max()))
    primal = norm2 / 2 / max(1 - violation, ACCURACY) ** 2
    gap = (primal - (float(b @ scaled) - norm2 / 2)) / primal
    if violation > ACCURACY or abs(gap) > ACCURACY:
        raise ArithmeticError(
            f"no max-margin solution of {len(K)} constraints was found within {ACCURACY:.0e}: violation"
            f" {violation:.1e}, relative duality gap {gap:.1e}, margin {rest**0.5:.1e} of the constraints' norms"
        )
    weights, support = scaled / (shortest * lengths), int(np.count_nonzero(scaled))
    return MaxMargin(weights, float(np.sqrt(norm2)) / shortest, violation, gap, support)


def attention_svm(tokens: Tensor, optimal: Tensor) -> Optimum | None:
    """Solve min ||W||_F subject to (x_{i,opt_i} - x_{i,t})^T W x_{i,1} >= 1 for every i and t != opt_i, as `solve`.

    The problem of Tarzanagh et al. (Transformers as Support Vector Machines) and Vasudeva et al. (TMLR 2025), for a
    query that is the first token. A constraint is the outer product of a token difference with the query, so the Gram
    matrix is the elementwise product of theirs. Tokens x have the shape (n, T, d), `optimal` has the places opt_i, and
    W the shape (d, d); the weight of sequence i's k-th token other than the optimal one is `weights[i * (T - 1) + k]`.
    """
    n, T = tokens.shape[:2]
    x_nTd = tokens.detach().to("cpu", torch.float64)
    optimal = optimal.to("cpu")
    rows = torch.arange(n)
    others = torch.arange(T)[None] != optimal[:, None]
    differences_md = (x_nTd[rows, optimal][:, None] - x_nTd)[others]
    queries_md = x_nTd[:, 0].repeat_interleave(T - 1, dim=0)
    solution = solve(((differences_md @ differences_md.T) * (queries_md @ queries_md.T)).numpy())
    if solution is None:
        return None
    weights_m = torch.from_numpy(solution.weights)
    return (weights_m[:, None] * differences_md).T @ queries_md, solution


def separator(tokens: Tensor, labels: Tensor) -> Optimum | None:
    """Solve min ||v||^2 subject to y_i <x_i, v> >= 1, as `solve`: the separator through the origin of largest margin.

    Tokens x have the shape (n, d), labels y, +1 or -1, the shape (n,); v is float64 of shape (d,).
    """
    c_nd = labels.detach().to("cpu", torch.float64)[:, None] * tokens.detach().to("cpu", torch.float64)
    solution = solve((c_nd @ c_nd.T).numpy())
    return None if solution is None else (c_nd.T @ torch.from_numpy(solution.weights), solution)


def or_reason(constraints: int, solve: Callable[[], Optimum | None]) -> Optimum | str:
    """The solution of a max-margin problem with this many constraints, or the reason why there is no solution."""
    if constraints > MOST_CONSTRAINTS:
        return f"not solved: {constraints} constraints, more than the limit of {MOST_CONSTRAINTS}"
    try:
        return solve() or "infeasible: no direction meets all constraints"
    except ArithmeticError as error:
        return f"not solved: {error}"


def fact(optimum: Optimum | str) -> dict[str, Any]:
    """The result of `or_reason` for a run's record."""
    if isinstance(optimum, str):
        return {"solved": False, "reason": optimum}
    facts = vars(optimum[1])
    return {"solved": True} | {name: facts[name] for name in ("norm", "support", "violation", "duality_gap")}
