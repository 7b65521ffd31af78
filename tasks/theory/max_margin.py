"""Hard-margin problems solved through their Gram matrix: the attention SVM, and the separator of optimal tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, sparse
from torch import Tensor

from tasks.core.extras import not_installed

ACCURACY = 1e-8  # largest violation and relative duality gap of a returned answer
# Largest margin, relative to the constraints' norms, that an infeasible problem may still have. Squared it must stay
# above the rounding of a Gram matrix, 1e-16.
NO_MARGIN = 1e-7
_TOLERANCE = 1e-12  # of the interior-point method, on the scaled problem; `_polish` removes the remaining error
_RANK = 1e-13  # least-squares systems count singular values below this share of the largest as 0
MOST_CONSTRAINTS = 3000  # that `or_reason` solves: 2970 take 7 s, and the Gram matrix much memory. Ours.
_ROUNDS = 20  # of the active set; two are usual, more only where constraints are active with weight 0
_INFEASIBLE = ("DualInfeasible", "AlmostDualInfeasible")
NO_SOLVER = not_installed("clarabel", "papers")
"""The reason if the solver is not installed."""


@dataclass(frozen=True)
class MaxMargin:
    """The solution w = sum_k weights_k c_k of min ||w||^2 subject to <c_k, w> >= 1, with its certificate.

    Args:
        weights: dual solution, float64, shape (m,), at least 0; w is unique, they need not be.
        norm: ||w||; the margin of w/||w|| is 1/norm.
        violation: max_k (1 - <c_k, w>), or 0 where all constraints hold.
        duality_gap: (primal - dual) / primal, with the primal at w scaled until it is feasible; 0 up to rounding.
        support: how many weights are positive.
    """

    weights: NDArray[np.float64]
    norm: float
    violation: float
    duality_gap: float
    support: int


Optimum = tuple[Tensor, MaxMargin]
"""The vector or matrix of largest margin, float64, and its dual solution."""


def solve(gram: ArrayLike) -> MaxMargin | None:
    """Solve min ||w||^2 subject to <c_k, w> >= 1 for k = 1..m, given only the products <c_k, c_l>, the Gram matrix K.

    The dual, min 1/2 a^T K a - 1^T a over a >= 0 with K scaled to unit diagonal, goes to the interior-point solver
    Clarabel (Goulart and Chen 2024); then K_AA a_A = 1 is solved on the active set A, which makes the answer exact to
    rounding. The same Gram matrix gives the same answer.

    Returns:
        The solution, or None if none exists: a constraint is 0, or Clarabel found a certificate, checked here:
        weights z >= 0 of sum 1 with ||sum_k z_k c_k / ||c_k|| || at most `NO_MARGIN`. No w has a larger margin.

    Raises:
        ArithmeticError: neither a certificate nor an answer within `ACCURACY` was found. This happens for
            margins below about 1e-4 of the constraints' norms, which drown in the rounding of K, and for larger ones
            if these norms spread over several powers of ten.
    """
    K = np.asarray(gram, dtype=np.float64)
    lengths = np.sqrt(K.diagonal())
    shortest = float(lengths.min())
    if shortest == 0:
        return None
    # Constraints of length 1 with right sides b in (0, 1]; their weights are the true ones times shortest * lengths.
    G = (K + K.T) / 2 / lengths[:, None] / lengths
    b = shortest / lengths
    start, active, status = _interior_point(G, b)
    if str(status) in _INFEASIBLE and _least_margin(G, start, active) <= NO_MARGIN:
        return None
    scaled = _polish(G, b, start, active)
    norm2, violation, gap = _quality(G, b, scaled)
    if violation <= ACCURACY and abs(gap) <= ACCURACY:
        support = int(np.count_nonzero(scaled))
        return MaxMargin(scaled / (shortest * lengths), float(np.sqrt(norm2)) / shortest, violation, gap, support)
    # Clarabel may stop short of a certificate. The point of the hull nearest to 0 always exists and is one too.
    bound = _least_margin(G, *_interior_point(G)[:2])
    if bound <= NO_MARGIN:
        return None
    raise ArithmeticError(
        f"no max-margin solution of {len(K)} constraints was found within {ACCURACY:.0e}, nor a proof of "
        f"infeasibility: violation {violation:.1e}, relative duality gap {gap:.1e}, margin at most {bound:.1e} of the "
        f"constraints' norms; Clarabel says {status}"
    )


def _interior_point(G: NDArray, b: NDArray | None = None) -> tuple[NDArray, NDArray, Any]:
    """Weights, a mask of those larger than their slacks, both of shape (m,), and the status.

    The program is min 1/2 a^T G a - b^T a over a >= 0, whose weights are a ray of descent where it is unbounded;
    without b it is min 1/2 a^T G a over a >= 0 of sum 1.
    """
    clarabel: Any = import_module("clarabel")  # compiled: a type checker cannot see its names
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas", "tol_infeas_abs", "tol_infeas_rel"):
        setattr(settings, name, _TOLERANCE)
    m = len(G)
    upper = sparse.triu(sparse.csc_matrix(G), format="csc")
    rows, right, cones = -sparse.identity(m, format="csc"), np.zeros(m), [clarabel.NonnegativeConeT(m)]
    if b is None:
        rows = sparse.vstack([np.ones((1, m)), rows], format="csc")
        right, cones = np.append(1.0, right), [clarabel.ZeroConeT(1), *cones]
    answer = clarabel.DefaultSolver(upper, np.zeros(m) if b is None else -b, rows, right, cones, settings).solve()
    weights, slack = (np.nan_to_num(v[-m:], posinf=0, neginf=0) for v in (answer.x, answer.z))
    return np.maximum(weights, 0), weights > slack, answer.status


def _least_margin(G: NDArray, ray: NDArray, active: NDArray) -> float:
    """Upper bound of the margin: ||sum_k z_k c_k|| for weights z >= 0 of sum 1, minimised from the ray."""
    bound, size = np.inf, 0
    z = np.where(active, ray, 0.0)
    for _ in range(_ROUNDS):
        if not z.any():
            break
        z /= z.sum()
        rows = np.flatnonzero(z)
        products = G @ z
        # ||sum_k z_k c_k||^2 = z^T G z, at most max |G z| since z sums to 1.
        now = float(np.sqrt(np.abs(products).max()))
        if now >= bound and len(rows) == size:
            break
        bound, size = min(bound, now), len(rows)
        z[rows] -= _least_norm(G, rows, products)
        z = np.maximum(z, 0)
    return bound


def _polish(G: NDArray, b: NDArray, start: NDArray, active: NDArray) -> NDArray:
    """Weights, shape (m,), at least 0, with G a = b on the active set, starting from nearly optimal weights.

    Constraints whose weight becomes negative leave the set, violated ones enter. Corrections have least norm, so
    dependent constraints keep their positive weights.
    """
    best, least = start, np.inf
    a = np.where(active, start, 0.0)
    for _ in range(_ROUNDS):
        rows = np.flatnonzero(active)
        a[rows] += _least_norm(G, rows, b - G @ a)
        leaving, a = a < 0, np.maximum(a, 0)
        entering = ~active & (G @ a < (1 - ACCURACY) * b)
        _, violation, gap = _quality(G, b, a)
        error = max(violation, abs(gap))
        if not (leaving.any() or entering.any() or error < least / 2):
            break
        if error < least:
            best, least = a.copy(), error
        active = (active & ~leaving) | entering
    return best


def _least_norm(G: NDArray, rows: NDArray, right: NDArray) -> NDArray:
    """The least-squares solution of least norm of G x = right on these rows and columns."""
    answer: Any = linalg.lstsq(G[np.ix_(rows, rows)], right[rows], cond=_RANK, lapack_driver="gelsy")
    return np.asarray(answer[0])


def _quality(G: NDArray, b: NDArray, a: NDArray) -> tuple[float, float, float]:
    """||w||^2, violation and relative duality gap of w = sum_k a_k c_k."""
    products = G @ a
    norm2 = float(a @ products)
    violation = max(0.0, float((1 - products / b).max()))
    if norm2 <= 0 or violation >= 1:
        return norm2, violation, np.inf
    primal = norm2 / 2 / (1 - violation) ** 2
    return norm2, violation, (primal - (float(b @ a) - norm2 / 2)) / primal


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
        import_module("clarabel")
    except ImportError:
        return f"not solved: {NO_SOLVER}"
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
