"""The multi-head attention classifier against plain loops, the exact one-head oracle, and its data and measurements."""

from math import exp, isfinite, log, log1p, sqrt

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import tasks.theory.multihead
from bench.config.options import read_options
from tasks.core.seeding import derive_seed
from tasks.theory.multihead import Heads, MixtureData, MultiHeadClassifier, PlantedData, SequenceData
from tasks.theory.saturated import logistic_loss

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


# -- model ----------------------------------------------------------------------------------------------------------


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
    outcome = task.loss((tokens, signs, labels))
    outcome.loss.backward()
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(task.heads.W.grad, W.grad, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(task.heads.U.grad, U.grad, rtol=1e-12, atol=1e-15)
    assert torch.equal(outcome.predictions, (output > 0).long())
    assert torch.equal(outcome.labels, labels)


def test_the_output_passes_gradcheck() -> None:
    tokens = mixture(n=3).batch("train", ALL)[0]
    heads = make_task(mixture(), 2, std=1.0).heads

    def output(W: Tensor, U: Tensor) -> Tensor:
        return torch.func.functional_call(heads, {"W": W, "U": U}, (tokens,))

    assert gradcheck(output, (heads.W, heads.U))


@pytest.mark.parametrize("lead", [30.0, 36.7, 40.0, 100.0, 600.0])
def test_saturated_attention_keeps_its_gradient_to_full_relative_precision(lead: float) -> None:
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


def test_the_loss_is_exact_for_large_margins() -> None:
    for margin in (-700.0, -25.0, 0.0, 25.0, 700.0):
        expected = np.logaddexp(0, -margin) if margin < 700 else exp(-700)
        loss = logistic_loss(torch.tensor([margin], dtype=torch.float64))
        assert float(loss) == pytest.approx(expected, rel=1e-14)


def test_all_parameters_start_at_zero_unless_asked_otherwise() -> None:
    data = mixture()
    assert not any(p.any() for p in make_task(data, 3).parameters())
    drawn = make_task(data, 50, std=0.5)
    assert [tuple(p.shape) for p in drawn.parameters()] == [(50, 6, 6), (50, 4, 6)]
    assert all(p.std().item() == pytest.approx(0.5, rel=0.1) for p in drawn.parameters())


# -- B's exact oracle -----------------------------------------------------------------------------------------------


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


def plain_descent(data: SequenceData, eta_V: float, eta_W: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """One head from zero in numpy, with gradients written out by hand."""
    X, y, _ = (part.numpy() for part in data.batch("train", ALL))
    n, T, d = X.shape
    V, W = np.zeros((T, d)), np.zeros((d, d))
    for _ in range(steps):
        grad_V, grad_W = np.zeros_like(V), np.zeros_like(W)
        for x, sign in zip(X, y, strict=True):
            P = np.exp(x @ W @ x.T)
            P /= P.sum(axis=1, keepdims=True)
            values = V @ x.T
            slope = -sign / (1 + np.exp(sign * (P * values).sum())) / n
            grad_V += slope * P @ x
            grad_W += slope * x.T @ (P * (values - (P * values).sum(axis=1, keepdims=True))) @ x
        V, W = V - eta_V * grad_V, W - eta_W * grad_W
    return V, W


@pytest.mark.parametrize("H", HEADS)
def test_from_zero_many_heads_are_one_head_with_a_slower_attention(H: int) -> None:
    data, eta, steps = mixture(), 0.8, 100
    many = gradient_descent(data, H, eta, eta, steps)
    one = gradient_descent(data, 1, eta, eta / H, steps)
    V, W = plain_descent(data, eta, eta / H, steps)
    assert np.abs(W).max() > 0.01
    batch = data.batch("train", ALL)
    for h in range(H):
        for expected_W, expected_V in ((one.heads.W[0], one.heads.U[0]), (torch.tensor(W), torch.tensor(V))):
            torch.testing.assert_close(many.heads.W[h], expected_W, rtol=0, atol=1e-12)
            torch.testing.assert_close(many.heads.U[h] * sqrt(H), expected_V, rtol=0, atol=1e-12)
    torch.testing.assert_close(many.loss(batch).loss, one.loss(batch).loss, rtol=0, atol=1e-12)


@pytest.mark.parametrize("H", HEADS)
def test_with_a_constant_step_many_heads_slow_attention_by_their_number(H: int) -> None:
    data, eta = mixture(), 1.0
    # The first step changes only U, since the gradient for W has U as a factor.
    for steps, slower in ((1, 0.0), (2, 1.0)):
        many, one = (gradient_descent(data, heads, eta, eta, steps) for heads in (H, 1))
        for h in range(H):
            torch.testing.assert_close(many.heads.W[h] * H, one.heads.W[0] * slower, rtol=1e-12, atol=1e-17)
        assert bool(one.heads.W.any()) == (slower > 0)
    late_many, late_one = (
        float(gradient_descent(data, heads, eta, eta, 30).measure()["attn_score"]) for heads in (H, 1)
    )
    assert 0.25 < late_many < late_one  # from 1 of 4 tokens


# -- data -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("T", "zeta", "count"), [(10, 0.1, 1), (10, 0.3, 3), (5, 0.5, 2), (4, 1.0, 4)])
def test_relevant_tokens_are_the_labels_mean_and_the_others_are_drawn_around_irrelevant_ones(
    T: int, zeta: float, count: int
) -> None:
    data = MixtureData(seed=1, n=400, T=T, zeta=zeta, d=12, M=3, S=2.0, nu_norm=1.5, sigma=0.1)
    tokens, signs, labels = data.batch("train", ALL)
    assert data.relevant_NT is not None
    relevant = data.relevant_NT.bool()
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


def test_the_margin_keeps_only_clear_samples_in_the_order_drawn() -> None:
    every, clear = (PlantedData(seed=2, n=200, n_test=50, T=4, d=3, U_norm=4.0, margin=margin) for margin in (0.0, 1.0))
    assert clear.planted is not None
    scores = [plain_output(data.batch("train", ALL)[0], *(p[None] for p in clear.planted)) for data in (every, clear)]
    assert float(scores[0].abs().min()) < 0.1
    assert float(scores[1].abs().min()) >= 1.0
    assert clear.sizes == {"train": 200, "val": 50, "test": 50}
    kept = scores[0].abs() >= 1.0
    assert torch.equal(clear.batch("train", slice(int(kept.sum())))[0], every.batch("train", ALL)[0][kept])


@pytest.mark.parametrize("cls", [MixtureData, PlantedData])
def test_a_problem_belongs_to_its_seed(cls: type[MixtureData] | type[PlantedData]) -> None:
    first, again, other = cls(seed=4), cls(seed=4), cls(seed=5)
    for split in ("train", "val", "test"):
        assert all(map(torch.equal, first.batch(split, ALL), again.batch(split, ALL)))
        assert not torch.equal(first.batch(split, ALL)[0], other.batch(split, ALL)[0])
    rows = torch.cat([first.batch(split, slice(50))[0] for split in ("train", "val", "test")]).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows) == 150  # no sequence is in two splits


@pytest.mark.parametrize("seed", [0, 7])
def test_the_mixture_draws_training_and_test_sequences_as_it_did_without_a_selection_split(seed: int) -> None:
    def stream(purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(seed, purpose))

    data = MixtureData(seed=seed, n=30, n_test=20, T=6, zeta=0.3, d=9, M=4, S=1.5, nu_norm=0.5, sigma=0.3)
    means = torch.linalg.qr(torch.randn(9, 6, generator=stream("means"), dtype=torch.float64)).Q.T
    mu, nu = 1.5 * means[:2], 0.5 * means[2:]
    for split, n in (("train", 30), ("test", 20)):
        generator = stream(split)
        labels = torch.randint(0, 2, (n,), generator=generator)
        relevant = torch.rand(n, 6, generator=generator, dtype=torch.float64).argsort(dim=1) < 2
        kinds = torch.randint(0, 4, (n, 6), generator=generator)
        noise = torch.randn(n, 6, 9, generator=generator, dtype=torch.float64)
        tokens = torch.where(relevant[..., None], mu[labels][:, None], nu[kinds] + 0.3 * noise)
        assert all(map(torch.equal, data.batch(split, ALL), (tokens, 2 * labels.double() - 1, labels)))
        if split == "train":
            assert torch.equal(data.relevant_NT, relevant.double())


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_a_planted_problem_draws_training_and_test_sequences_as_it_did_without_a_selection_split(margin: float) -> None:
    def stream(purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(3, purpose))

    data = PlantedData(seed=3, n=30, n_test=20, T=4, d=3, W_norm=2.0, U_norm=4.0, margin=margin)
    generator = stream("head")
    W = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    U = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    W, U = W * (2.0 / W.norm()), U * (4.0 / U.norm())
    assert data.planted is not None
    assert all(map(torch.equal, data.planted, (W, U)))
    for split, n in (("train", 30), ("test", 20)):
        generator, kept, signs = stream(split), torch.empty(0, 4, 3, dtype=torch.float64), torch.empty(0)
        while len(kept) < n:
            tokens = torch.randn(n, 4, 3, generator=generator, dtype=torch.float64)
            scores = plain_output(tokens, W[None], U[None])
            clear = scores.abs() >= margin
            kept, signs = torch.cat([kept, tokens[clear]]), torch.cat([signs, scores[clear].sign()])
        expected = kept[:n], signs[:n].double(), (signs[:n] > 0).long()
        assert all(map(torch.equal, data.batch(split, ALL), expected))


def test_batches_are_the_rows_asked_for_in_the_dtype_asked_for() -> None:
    data = mixture()
    tokens = data.splits["train"][0]
    assert data.batch("train", torch.arange(12))[0] is tokens
    assert torch.equal(data.batch("train", torch.tensor([4, 1]))[0], tokens[[4, 1]])
    for problem in (data, PlantedData(n=5, n_test=5)):
        problem.to(torch.device("cpu"), torch.float32)
        assert [part.dtype for part in problem.batch("test", slice(3))] == [torch.float32, torch.float32, torch.int64]
        task = MultiHeadClassifier(problem, H=2, init_std=0.1)
        assert {value.dtype for value in task.measure().values()} == {torch.float32}
        assert {value.shape for value in task.measure().values()} == {()}


def test_bad_values_name_the_value_and_the_legal_range() -> None:
    for cls, options, message in (
        (MixtureData, {"n": 0}, r"n=0 is out of range: .*\[1, inf\)"),
        (MixtureData, {"n_test": 0}, "n_test=0 is out of range"),
        (MixtureData, {"T": 1}, r"T=1 is out of range: .*\[2, inf\)"),
        (MixtureData, {"M": 0}, "M=0 is out of range"),
        (MixtureData, {"d": 6}, r"d=6 is out of range: .*\[7, inf\)"),
        (MixtureData, {"zeta": 0.04}, "zeta=0.04 is out of range: .*at least 1"),
        (MixtureData, {"zeta": 1.1}, r"zeta=1.1 is out of range: .*\(0, 1\]"),
        (MixtureData, {"S": 0.0}, r"S=0.0 is out of range: .*\(0, inf\)"),
        (MixtureData, {"nu_norm": -1.0}, "nu_norm=-1.0 is out of range"),
        (MixtureData, {"sigma": float("nan")}, "sigma=nan is out of range"),
        (PlantedData, {"n": 0}, "n=0 is out of range"),
        (PlantedData, {"n_test": -1}, "n_test=-1 is out of range"),
        (PlantedData, {"T": 1}, "T=1 is out of range"),
        (PlantedData, {"d": 0}, "d=0 is out of range"),
        (PlantedData, {"W_norm": -1.0}, "W_norm=-1.0 is out of range"),
        (PlantedData, {"U_norm": 0.0}, "U_norm=0.0 is out of range"),
        (PlantedData, {"margin": -0.5}, "margin=-0.5 is out of range"),
        (PlantedData, {"margin": 1e3, "n": 10}, "margin=1000.0 is out of range: fewer than 1 in 100 samples"),
    ):
        with pytest.raises(ValueError, match=message):
            cls(**options)
    for options, message in (({"H": 0}, "H=0 is out of range"), ({"init_std": -1.0}, "init_std=-1.0 is out of range")):
        with pytest.raises(ValueError, match=message):
            MultiHeadClassifier(mixture(), **options)


@pytest.mark.parametrize("name", ["MixtureData", "PlantedData", "MultiHeadClassifier"])
def test_every_option_is_explained_and_says_whose_constant_it_is(name: str) -> None:
    for option in read_options(f"tasks.theory.multihead:{name}", ("root", "seed", "data")).values():
        assert "the paper" in option.help, option.name


# -- measurements ---------------------------------------------------------------------------------------------------


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
                        if task.data.relevant_NT is not None:
                            relevant = task.data.relevant_NT[i].numpy() == 1
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


@pytest.mark.parametrize("data", [mixture(), PlantedData(seed=1, n=15, n_test=20, T=3, d=4)])
def test_many_points_are_measured_as_one_after_the_other(data: SequenceData) -> None:
    tasks = [make_task(data, 3, std) for std in (0.0, 0.1, 0.8, 5.0)]
    together = tasks[0].measure_at(
        {f"heads.{name}": torch.stack([task.heads.get_parameter(name).detach() for task in tasks]) for name in "WU"}
    )
    for k, task in enumerate(tasks):
        alone = {name: float(value) for name, value in task.measure().items()}
        point = {name: float(values[k]) for name, values in together.items()}
        assert point.pop("test_loss") == pytest.approx(alone.pop("test_loss"), rel=1e-6)
        assert point == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("std", [1e-9, 0.1, 1.0, 10.0, 100.0])
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


def test_attention_that_saturates_for_good_has_no_entropy() -> None:
    data = MixtureData(n=20, n_test=5, T=10, d=8, M=3, sigma=0.0)
    task = make_task(data, 2, 1.0)
    task.heads.W.data[:] = 1e5 * torch.outer(torch.cat([data.mu, data.nu]).sum(0), data.mu.sum(0))
    measured = {name: float(value) for name, value in task.measure().items()}
    assert (measured["entropy"], measured["attn_score"], measured["off_relevant"]) == (0, 1, 0)
    assert all(isfinite(value) for value in measured.values())


def test_measurements_at_zero_weights_are_those_of_uniform_attention() -> None:
    measured = make_task(mixture(), 3).measure()
    assert float(measured["entropy"]) == pytest.approx(log(4), rel=1e-14)
    assert float(measured["attn_score"]) == pytest.approx(0.25, rel=1e-14)
    assert float(measured["test_loss"]) == pytest.approx(log(2), rel=1e-14)
    measured = make_task(PlantedData(n=5, n_test=5), 3).measure()
    assert [float(measured[f"{kind}_{part}"]) for kind in ("align", "avg_norm") for part in "WU"] == [0] * 4


def test_heads_along_the_planted_one_are_aligned() -> None:
    data = PlantedData(n=50, n_test=60)
    assert data.planted is not None
    task = make_task(data, 4)
    task.heads.W.data, task.heads.U.data = (part * torch.ones(4, 1, 1) * 2 for part in data.planted)
    task.heads.W.data /= 2
    measured = task.measure()
    assert [float(measured[name]) for name in ("align_W", "align_U")] == pytest.approx([1, 1], rel=1e-14)
    assert [float(measured[name]) for name in ("train_error", "test_error")] == [0, 0]
    task.heads.W.data *= -1
    assert float(task.measure()["align_W"]) == pytest.approx(-1, rel=1e-14)


@pytest.mark.parametrize("lead", [5.0, 60.0, 600.0])
def test_saturated_attention_is_measured_without_rounding_to_0(lead: float) -> None:
    # Without noise every token's product with the sum of all means is 1: every query attends to the relevant token.
    data = MixtureData(n=20, n_test=5, T=10, d=8, M=3, sigma=0.0)
    task = make_task(data, 2)
    task.heads.W.data[:] = lead * torch.outer(torch.cat([data.mu, data.nu]).sum(0), data.mu.sum(0))
    measured = task.measure()
    other = exp(-lead) / (1 + 9 * exp(-lead))
    assert float(measured["off_relevant"]) == pytest.approx(9 * other, rel=1e-11)
    assert float(measured["attn_score"]) == pytest.approx(1 - 9 * other, rel=1e-12)
    entropy = 9 * other * lead + log1p(9 * exp(-lead))
    assert float(measured["entropy"]) == pytest.approx(entropy, rel=1e-11)


def test_training_on_the_mixture_learns_to_attend_and_to_generalise() -> None:
    data = MixtureData(seed=0)
    task = gradient_descent(data, 2, 1.0, 1.0, 200)
    measured = {name: float(value) for name, value in task.measure().items()}
    assert measured["train_error"] == 0
    assert measured["test_error"] < 0.05
    assert measured["attn_score"] > 0.2
    accuracy = task.metrics()["accuracy"](*task.loss(data.batch("test", ALL))[1:])
    assert 1 - float(accuracy) == pytest.approx(measured["test_error"], abs=1e-6)
