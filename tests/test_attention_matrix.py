"""The attention weights that a head can represent: data, loss and measurements against numpy, and theorem 1 itself."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.config.run_config import resolve
from bench.train.runner import run
from tasks.theory.attention_matrix import AttentionMatrix, AttentionMatrixData
from tests.stored import Store

pytestmark = pytest.mark.numeric


def head(seed: int = 0, head_dim: int = 3, **options: Any) -> AttentionMatrix:
    torch.manual_seed(seed)
    return AttentionMatrix(AttentionMatrixData(seed=seed, **options), head_dim=head_dim).double()


def weights_of(task: AttentionMatrix) -> dict[str, torch.Tensor]:
    return {name: p.detach()[None] for name, p in task.named_parameters()}


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax of each column, in long double."""
    e = np.exp(logits.astype(np.longdouble) - logits.max(0))
    return e / e.sum(0)


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_measurements_are_those_of_a_plain_reference(seed: int) -> None:
    task = head(seed, n=7, d=9, rank=3, spread=2.0)
    X, P = task.wanted.tokens_dn.numpy(), np.exp(task.wanted.log_target_nn.numpy())
    np.testing.assert_allclose(P.sum(0), 1, rtol=1e-14)
    W_k, W_q = task.key.weight.detach().numpy(), task.query.weight.detach().numpy()
    A = softmax(X.T @ W_k.T @ W_q @ X / np.sqrt(3))
    divergence = float((P * np.log(P / A)).sum(0).mean())
    outcome = task.loss(task.wanted.batch("train", slice(0, 7)))
    assert outcome.loss.item() == pytest.approx(divergence, rel=1e-12)
    assert outcome.loss.item() + task.wanted.loss_offset["train"] == pytest.approx(
        float(-(P * np.log(A)).sum(0).mean()), rel=1e-12
    )
    np.testing.assert_allclose(outcome.predictions.detach(), A.T.astype(float), rtol=1e-12)
    measured = {name: value.item() for name, value in task.measure_at(weights_of(task)).items()}
    assert measured["error"] == pytest.approx(float(abs(A - P).max()), rel=1e-12)
    assert measured["divergence"] == pytest.approx(divergence, rel=1e-12)
    assert measured["construction_error"] < 1e-13  # the rank is the head's size


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9])
def test_a_small_divergence_keeps_its_digits(distance: float) -> None:
    task = head(n=5, head_dim=5)
    logits = task.wanted.best_logits(5).numpy()
    moved = logits + distance * np.random.default_rng(0).standard_normal(logits.shape)
    p, q = softmax(logits), softmax(moved)
    x = np.log(q / p)
    exact = float((p * np.where(abs(x) < 1e-3, x**2 / 2 + x**3 / 6 + x**4 / 24, np.expm1(x) - x)).sum(0).mean())
    inverse = np.linalg.pinv(task.wanted.tokens_dn.numpy())
    with torch.no_grad():  # a head whose logits are these: W_k^T W_q = sqrt(5) (X^+)^T M X^+, with W_k = X^+ turned
        task.key.weight.copy_(torch.from_numpy(inverse))
        task.query.weight.copy_(torch.from_numpy(np.sqrt(5) * moved @ inverse))
    divergence = task.measure_at(weights_of(task))["divergence"].item()
    assert 0 <= divergence == pytest.approx(exact, rel=1e-2, abs=1e-22)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_theorem_1_holds_for_heads_as_large_as_sequences(n: int) -> None:
    for seed in range(5):
        task = head(seed, n=n, d=n + 3, spread=3.0, head_dim=n)
        assert task.measure_at(weights_of(task))["construction_error"].item() < 1e-12


def test_the_construction_is_weights_that_a_head_can_have() -> None:
    for head_dim in (1, 2, 4, 6):
        task = head(head_dim=head_dim, n=6, d=8)
        X = task.wanted.tokens_dn.numpy()
        u, s, v = np.linalg.svd(task.wanted.logits_nn.numpy())
        inverse, r = np.linalg.pinv(X), head_dim
        with torch.no_grad():
            task.key.weight.copy_(torch.from_numpy((u[:, :r] * np.sqrt(s[:r])).T @ inverse))
            task.query.weight.copy_(torch.from_numpy(np.sqrt(r) * (np.sqrt(s[:r, None]) * v[:r]) @ inverse))
        measured = task.measure_at(weights_of(task))
        for name in ("error", "divergence"):
            assert measured[name].item() == pytest.approx(measured[f"construction_{name}"].item(), rel=1e-9, abs=1e-14)
        assert (measured["error"].item() < 1e-12) == (head_dim >= 5)  # log P minus its column means has rank n - 1


def test_the_counterexample_leaves_the_second_column_alone() -> None:
    for head_dim in (1, 2, 9):
        task = head(head_dim=head_dim, tokens="counterexample")
        for scale in (0.1, 1.0, 100.0):
            weights = [scale * w[0] for w in weights_of(task).values()]
            with torch.no_grad():
                for p, w in zip(task.parameters(), weights, strict=True):
                    p.copy_(w)
            shares = task.loss(task.wanted.batch("train", slice(0, 2))).predictions
            assert shares[1].tolist() == [0.5, 0.5]


def test_training_ends_where_the_rank_says(store) -> None:
    words = {"task": "attention_matrix", "opt": "adam", "opt.lr": 0.03, "device": "cpu", "task.n": 4, "task.d": 5}
    words |= {"task.rank": 2, "trainer.max_steps": 600, "trainer.schedule": "cosine"}
    errors = {}
    for head_dim in (1, 2):
        result = run(resolve({**words, "task.head_dim": head_dim}, fallback={"store": store}), progress=False)
        errors[head_dim] = Store(store).tables(result.run_id)["measurements"]["error"][-1]
        assert len(result.facts["singular_values"]) == 4
        assert sum(value > 1e-12 for value in result.facts["singular_values"]) == 2
        assert result.metrics["final"]["excess"] >= 0
    assert errors[1] > 0.01
    assert errors[2] < 1e-5
