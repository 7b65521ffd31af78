"""Hard-margin problems: agreement with another solver in the primal variables, optimality, infeasible problems."""

import math

import numpy as np
import pytest
import quadprog
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from tasks.theory.max_margin import NO_MARGIN, attention_svm, fact, or_reason, solve

pytestmark = pytest.mark.numeric

SHAPES = [(1, 2, 1), (1, 5, 3), (3, 2, 2), (5, 3, 3), (10, 4, 4), (12, 4, 4), (20, 3, 8), (40, 2, 5), (30, 4, 7),
          (8, 8, 3), (20, 6, 4)]  # fmt: skip


def draw(kind: str, n: int, T: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and optimal tokens: those of a decoder for odd seeds, arbitrary for even ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, T, d, generator=generator, dtype=torch.float64)
    if kind == "sphere":
        x /= x.norm(dim=-1, keepdim=True)
    elif kind == "signs":
        x = x.sign()
    elif kind == "positive":
        x = x.abs()
    elif kind == "uneven":
        x *= torch.exp(torch.randn(n, T, 1, generator=generator, dtype=torch.float64))
    decoder = torch.randn(d, generator=generator, dtype=torch.float64)
    return x, (x @ decoder).argmax(1) if seed % 2 else torch.randint(0, T, (n,), generator=generator)


def constraints(tokens: Tensor, optimal: Tensor) -> np.ndarray:
    """vec((x_opt - x_t) x_1^T) for every sequence and other token, shape (m, d^2), by a loop."""
    rows = [
        torch.outer(x[best] - x[t], x[0]).flatten()
        for x, best in zip(tokens, optimal.tolist(), strict=True)
        for t in range(len(x))
        if t != best
    ]
    return torch.stack(rows).numpy()


def primal(C: np.ndarray) -> np.ndarray | None:
    """The w of least norm with C w >= 1, by the method of Goldfarb and Idnani in the primal variables."""
    m, size = C.shape
    try:
        return quadprog.solve_qp(np.eye(size), np.zeros(size), C.T.copy(), np.ones(m))[0]
    except ValueError as error:
        if "inconsistent" not in str(error):
            raise
        return None


def assert_optimal(C: np.ndarray, w: np.ndarray, weights: np.ndarray) -> None:
    """The Karush-Kuhn-Tucker conditions, which only the optimal w meets."""
    slack = C @ w - 1
    assert slack.min() >= -1e-9
    assert weights.min() >= 0
    assert weights.max() > 0
    assert np.abs(weights * slack).max() <= 1e-9 * weights.sum()
    np.testing.assert_allclose(w, weights @ C, rtol=0, atol=1e-10 * np.linalg.norm(w))


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize("kind", ["normal", "sphere", "signs", "positive", "uneven"])
def test_the_attention_svm_equals_the_primal_solution(kind: str) -> None:
    solved = unsolvable = 0
    for n, T, d in SHAPES:
        for seed in range(12):
            tokens, optimal = draw(kind, n, T, d, seed)
            C = constraints(tokens, optimal)
            ours, theirs = attention_svm(tokens, optimal), primal(C)
            if theirs is None:
                assert ours is None, (n, T, d, seed)
                unsolvable += 1
                continue
            assert ours is not None, (n, T, d, seed)
            assert np.linalg.norm(ours[0].flatten().numpy() - theirs) <= 1e-6 * np.linalg.norm(theirs), (n, T, d, seed)
            assert ours[1].norm == pytest.approx(np.linalg.norm(theirs), rel=1e-8)
            assert_optimal(C, ours[0].flatten().numpy(), ours[1].weights)
            solved += 1
    assert solved >= 30
    assert unsolvable >= 5


small_matrices = st.tuples(st.integers(1, 8), st.integers(1, 4)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.integers(-3, 3))
)


@given(C=small_matrices)
@example(C=np.array([[1, 0], [0, 0]]))
@example(C=np.array([[1, 0], [-1, 0], [1, 3], [-2, 2]]))  # the origin lies in a face of the hull
@example(C=np.array([[-1, 0, 0], [-1, 0, 0], [-1, 0, 0], [1, 0, 0], [0, 2, 0], [2, 0, 0]]))
@example(C=np.array([[0, 1, -1], [0, -1, 1], [1, 0, -1], [1, 1, 1]]))
@example(C=np.array([[-1, 0], [-1, 1], [1, 1], [-1, 1], [-1, 0], [-1, 0], [-1, -1], [-1, -1]]))
@settings(max_examples=300, deadline=None)
def test_degenerate_problems_are_solved_or_refused_as_in_the_primal(C: np.ndarray) -> None:
    C = C.astype(np.float64)
    ours, theirs = solve(C @ C.T), primal(C)
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        np.testing.assert_allclose(ours.weights @ C, theirs, rtol=0, atol=1e-8 * np.linalg.norm(theirs))
        assert_optimal(C, ours.weights @ C, ours.weights)


@pytest.mark.parametrize(("n", "T", "d"), [(20, 6, 64), (100, 10, 64)])
def test_an_instance_of_the_suite_is_solved_exactly_and_reproducibly(n: int, T: int, d: int) -> None:
    tokens, optimal = draw("sphere", n, T, d, 3)
    once, twice = attention_svm(tokens, optimal), attention_svm(tokens.clone(), optimal.clone())
    assert once is not None
    assert twice is not None
    W, solution = once
    assert torch.equal(W, twice[0])
    assert 0 <= solution.violation <= 1e-12
    assert abs(solution.duality_gap) <= 1e-12
    assert solution.norm == pytest.approx(float(W.norm()), rel=1e-12)
    # Strong duality: ||W||^2 is the sum of the weights.
    assert solution.norm**2 == pytest.approx(solution.weights.sum(), rel=1e-12)
    assert solution.support == int((solution.weights > 0).sum()) < n * (T - 1)
    assert solution.weights.shape == (n * (T - 1),)
    assert_optimal(constraints(tokens, optimal), W.flatten().numpy(), solution.weights)


def test_thin_margins_are_solved_right_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def between(angle: float) -> np.ndarray:
        """Gram matrix of two unit vectors at angle pi - `angle`; their margin is sin(angle / 2)."""
        return np.array([[1.0, -math.cos(angle)], [-math.cos(angle), 1.0]])

    thin = solve(between(2e-3))
    assert thin is not None
    assert thin.norm == pytest.approx(1 / math.sin(1e-3), rel=1e-8)
    assert solve(between(0.0)) is None
    assert solve(between(0.1 * NO_MARGIN)) is None
    # Whether the solver succeeds there depends on the machine's rounding: it may refuse, but must not be wrong.
    solved = []
    for angle in np.geomspace(3 * NO_MARGIN, 1e-2, 40):
        try:
            answer = solve(between(angle))
        except ArithmeticError:
            continue
        assert answer is not None
        assert answer.norm == pytest.approx(1 / math.sin(angle / 2), rel=1e-8 + 1e-15 / angle**2)
        solved.append(angle)
    assert max(solved) == pytest.approx(1e-2)
    monkeypatch.setattr("tasks.theory.max_margin.ACCURACY", -1.0)
    with pytest.raises(ArithmeticError, match=r"2 constraints was found within -1e\+00: .* margin 1.0e-03 of"):
        solve(between(2e-3))


def test_a_problem_without_an_answer_gives_the_reason() -> None:
    def solve_hopeless() -> None:
        raise ArithmeticError("no luck")

    assert or_reason(3001, lambda: None) == "not solved: 3001 constraints, more than the limit of 3000"
    assert or_reason(3000, lambda: None) == "infeasible: no direction meets all constraints"
    assert or_reason(1, solve_hopeless) == "not solved: no luck"
    assert fact("not solved: no luck") == {"solved": False, "reason": "not solved: no luck"}
