"""The multi-head attention classifier against plain loops, the exact one-head oracle, and its data and measurements."""

from math import log, sqrt

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import tasks.theory.multihead
from tasks.theory.multihead import Heads, MixtureData, MultiHeadClassifier, PlantedData, Samples, SequenceData

pytestmark = pytest.mark.numeric

HEADS = (2, 5, 16)
ALL = slice(None)


def mixture(
    seed: int = 3, n: int = 12, n_test: int = 9, T: int = 4, zeta: float = 0.25, d: int = 6, M: int = 2
) -> SequenceData:
    return MixtureData(seed=seed, n=n, n_test=n_test, T=T, zeta=zeta, d=d, M=M)


def make_task(data: SequenceData, H: int, std: float = 0.0) -> MultiHeadClassifier:
    torch.manual_seed(7)
    task = MultiHeadClassifier(data, H=H, init_std=std)
    task.heads.double()
    return task


def plain_output(tokens: Tensor, W: Tensor, U: Tensor) -> Tensor:
    """The definition, by a loop over sequences and heads."""
    outputs = []
    for x in tokens:
        heads = [(u * (torch.softmax(x @ w @ x.T, dim=1) @ x)).sum() for w, u in zip(W, U, strict=True)]
        outputs.append(sum(heads) / sqrt(len(W)))
    return torch.stack(outputs)


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("at_once", [1, 10**6])
def test_loss_and_gradients_are_those_of_a_loop_over_heads(
    H: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.theory.multihead, "_CPU_LOGITS", at_once)  # one sequence at a time, or all at once
    data = mixture()
    task = make_task(data, H, std=0.7)
    tokens, signs, labels = data.batch("train", ALL)
    W, U = (p.detach().clone().requires_grad_() for p in (task.heads.W, task.heads.U))
    output = plain_output(tokens, W, U)
    expected = torch.log1p(torch.exp(-signs * output)).mean()
    expected.backward()
    outcome = task.loss(Samples(tokens, signs, labels))
    outcome.loss.backward()
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(task.heads.W.grad, W.grad, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(task.heads.U.grad, U.grad, rtol=1e-12, atol=1e-15)
    assert torch.equal(outcome.predictions, (output > 0).long())
    assert torch.equal(outcome.labels, labels)


@pytest.mark.parametrize("lead", [30.0, 36.7, 40.0, 100.0, 600.0])
def test_saturated_attention_keeps_an_exact_gradient(lead: float) -> None:
    # Tokens e_1, e_2, e_3 and the query weights `logits` for each of them; autograd through a plain softmax gives 0.
    logits = torch.tensor([lead, 0.0, -1.0], dtype=torch.float64)
    values = torch.tensor([0.3, 0.7, -0.4], dtype=torch.float64)
    heads = Heads(1, 3, 3, 0.0).double()
    heads.W.data[0], heads.U.data[0] = logits.expand(3, 3), values.expand(3, 3)
    heads(torch.eye(3, dtype=torch.float64)[None]).sum().backward()
    weights = torch.exp(logits - lead) / torch.exp(logits - lead).sum()
    expected = weights * (weights * (values[:, None] - values)).sum(1)
    torch.testing.assert_close(heads.W.grad, expected.expand(1, 3, 3), rtol=1e-12, atol=0)
    torch.testing.assert_close(heads.U.grad, weights.expand(1, 3, 3), rtol=1e-12, atol=0)


def gradient_descent(data: SequenceData, H: int, eta_U: float, eta_W: float, steps: int) -> MultiHeadClassifier:
    task = make_task(data, H)
    groups = [{"params": [task.heads.U], "lr": eta_U}, {"params": [task.heads.W], "lr": eta_W}]
    optimizer = torch.optim.SGD(groups)
    batch = data.batch("train", ALL)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(batch).loss.backward()
        optimizer.step()
    return task


@pytest.mark.parametrize("H", HEADS)
def test_many_heads_from_zero_are_one_slower_head(H: int) -> None:
    data, eta, steps = mixture(), 0.8, 100
    many = gradient_descent(data, H, eta, eta, steps)
    one = gradient_descent(data, 1, eta, eta / H, steps)
    assert float(one.heads.W.detach().abs().max()) > 0.01
    batch = data.batch("train", ALL)
    for h in range(H):
        torch.testing.assert_close(many.heads.W[h], one.heads.W[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(many.heads.U[h] * sqrt(H), one.heads.U[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(many.loss(batch).loss, one.loss(batch).loss, rtol=0, atol=1e-12)


def test_the_mixture_has_the_papers_sizes_and_its_constants() -> None:
    data = MixtureData()
    assert data.sizes == {"train": 100, "val": 300, "test": 300}
    assert data.batch("train", ALL)[0].shape == (100, 10, 20)
    assert (data.select, data.report, data.f_star) == ("val", "test", 0.0)
    means = torch.cat([data.mu, data.nu])
    torch.testing.assert_close(means @ means.T, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-14)
    scaled = MixtureData(S=3.0, nu_norm=0.5, M=4)
    means = torch.cat([scaled.mu, scaled.nu])
    norms = torch.tensor([9.0] * 2 + [0.25] * 4, dtype=torch.float64)
    # 20 rounding errors of products up to the squared norm, 9: 2e-14.
    torch.testing.assert_close(means @ means.T, norms.diag(), rtol=0, atol=9e-14)


@pytest.mark.parametrize(("T", "zeta", "count"), [(10, 0.3, 3), (5, 0.5, 2), (4, 1.0, 4)])
def test_tokens_are_means_of_labels_or_near_irrelevant_means(T: int, zeta: float, count: int) -> None:
    data = MixtureData(seed=1, n=400, T=T, zeta=zeta, d=12, M=3, S=2.0, nu_norm=1.5, sigma=0.1)
    tokens, signs, labels = data.batch("train", ALL)
    assert data.relevant is not None
    relevant = data.relevant.bool()
    assert (relevant.sum(1) == count).all()
    assert ((relevant.sum(0) > 0) | (count == T)).all()  # at random places
    assert torch.equal(signs, 2.0 * labels - 1)
    assert 150 < int(labels.sum()) < 250
    assert torch.equal(tokens[relevant], data.mu[labels].repeat_interleave(count, dim=0))
    others = tokens[~relevant]
    if len(others):
        distances = torch.cdist(others, data.nu)
        nearest = distances.argmin(dim=1)
        assert torch.bincount(nearest).min() > len(others) / 3 * 0.8
        noise = others - data.nu[nearest]
        assert float(noise.std()) == pytest.approx(0.1, rel=0.03)
        assert float(noise.mean(dim=0).abs().max()) < 0.03


def test_planted_labels_are_the_signs_of_the_planted_head() -> None:
    data = PlantedData(seed=2, n=300, n_test=200, T=4, d=3, W_norm=2.5, U_norm=4.0)
    assert data.planted is not None
    W, U = data.planted
    assert (float(W.norm()), float(U.norm())) == pytest.approx((2.5, 4.0))
    for split, n in (("train", 300), ("val", 200), ("test", 200)):
        tokens, signs, labels = data.batch(split, ALL)
        assert tokens.shape == (n, 4, 3)
        assert torch.equal(signs, plain_output(tokens, W[None], U[None]).sign())
        assert torch.equal(labels, (signs > 0).long())
        assert float(tokens.mean()) == pytest.approx(0, abs=0.1)
        assert float(tokens.std()) == pytest.approx(1, abs=0.1)
    assert PlantedData().sizes == {"train": 1000, "val": 3000, "test": 3000}


@pytest.mark.parametrize("cls", [MixtureData, PlantedData])
def test_a_problem_belongs_to_its_seed(cls: type[MixtureData] | type[PlantedData]) -> None:
    first, again, other = cls(seed=4), cls(seed=4), cls(seed=5)
    for split in ("train", "val", "test"):
        assert all(map(torch.equal, first.batch(split, ALL), again.batch(split, ALL)))
        assert not torch.equal(first.batch(split, ALL)[0], other.batch(split, ALL)[0])
    rows = torch.cat([first.batch(split, slice(50))[0] for split in ("train", "val", "test")]).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows) == 150  # no sequence is in two splits


def test_bad_values_name_the_value_and_the_legal_range() -> None:
    for cls, options, message in (
        (MixtureData, {"T": 1}, r"T=1 is out of range: .*\[2, inf\)"),
        (MixtureData, {"zeta": 0.04}, "zeta=0.04 is out of range: .*at least 1"),
        (MixtureData, {"S": 0.0}, r"S=0.0 is out of range: .*\(0, inf\)"),
        (PlantedData, {"U_norm": 0.0}, r"U_norm=0.0 is out of range: .*\(0, inf\)"),
    ):
        with pytest.raises(ValueError, match=message):
            cls(**options)
    with pytest.raises(ValueError, match="H=0 is out of range"):
        MultiHeadClassifier(mixture(), H=0)


def recomputed(task: MultiHeadClassifier) -> dict[str, float]:
    """The measurements from their definitions, in numpy, by a loop over sequences, heads and query tokens."""
    W, U = (p.detach().numpy() for p in (task.heads.W, task.heads.U))
    H = len(W)
    values: dict[str, float] = {
        "avg_norm_W": sum(np.linalg.norm(w) for w in W) / H,
        "avg_norm_U": sum(np.linalg.norm(u) for u in U) / sqrt(H),
    }
    rows, on, off = [], [], []
    for split in ("train", "test"):
        tokens, signs, _ = (part.numpy() for part in task.data.batch(split, ALL))
        margins = []
        for i, (x, sign) in enumerate(zip(tokens, signs, strict=True)):
            output = 0.0
            for w, u in zip(W, U, strict=True):
                logits = x @ w @ x.T
                for t in range(len(x)):
                    weights = np.exp(logits[t] - logits[t].max())
                    weights /= weights.sum()
                    output += u[t] @ (weights @ x) / sqrt(H)
                    if split == "train":
                        rows.append(-sum(p * log(p) for p in weights if p > 0))
                        if task.data.relevant is not None:
                            relevant = task.data.relevant[i].numpy() == 1
                            on.append(weights[relevant].sum())
                            off.append(weights[~relevant].sum())
            margins.append(sign * output)
        values[f"{split}_error"] = float(np.mean(np.array(margins) <= 0))
        if split == "test":
            values["test_loss"] = float(np.mean([np.logaddexp(0, -m) for m in margins]))
    values["entropy"] = float(np.mean(rows))
    if on:
        values |= {"attn_score": float(np.mean(on)), "off_relevant": float(np.mean(off))}
    if task.data.planted is not None:
        for name, parts, part in zip(("align_W", "align_U"), (W, U), task.data.planted, strict=True):
            vector, planted = np.concatenate([p.ravel() for p in parts]), np.tile(part.numpy().ravel(), H)
            values[name] = float(vector @ planted / np.linalg.norm(vector) / np.linalg.norm(planted))
    return values


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("at_once", [1, 10**6])
@pytest.mark.parametrize("data", [mixture(), PlantedData(seed=1, n=15, n_test=20, T=3, d=4)])
def test_measurements_are_their_definitions(
    data: SequenceData, at_once: int, H: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.theory.multihead, "_CPU_LOGITS", at_once)
    task = make_task(data, H, std=0.8)
    measured, expected = {name: float(value) for name, value in task.measure().items()}, recomputed(task)
    assert measured.pop("test_loss") == pytest.approx(expected.pop("test_loss"), rel=1e-6)  # in float32
    assert measured == pytest.approx(expected, rel=1e-12)
    assert {value.dtype for value in task.measure().values()} == {torch.float64}
    assert not any(value.requires_grad for value in task.measure().values())


@pytest.mark.parametrize("std", [1e-9, 1.0, 100.0])
@pytest.mark.parametrize("H", [1, 3])
def test_the_entropy_is_that_of_50_digits(H: int, std: float) -> None:
    data = mixture(n=3)
    task = make_task(data, H, std)
    with mpmath.workdps(50):
        rows = []
        for x in data.batch("train", ALL)[0].numpy():
            for w in task.heads.W.detach().numpy():
                for logits in (mpmath.matrix(x) * mpmath.matrix(w) * mpmath.matrix(x).T).tolist():
                    weights = [mpmath.exp(z) for z in logits]
                    weights = [z / sum(weights) for z in weights]
                    rows.append(-sum(z * mpmath.log(z) for z in weights))
        expected = float(sum(rows) / len(rows))
    assert float(task.measure()["entropy"]) == pytest.approx(expected, rel=1e-13 * max(10, std))
