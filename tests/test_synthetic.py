"""The tasks of paper A against independent references: losses, gradients, measurements, trajectories, check values."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from bench.config.options import stored
from bench.config.run_config import resolve
from bench.train.runner import run
from optimizers import NGD, PS
from tasks import TASKS
from tasks.theory.synthetic import AttentionClassifier, FixedDecoderData, JointClassifier, MixtureTokenData
from tasks.theory.token_classifier import TokenClassifier, TokenData, attended_mean, stacked_logits
from tests.stored import Store, read_curve, read_tables

pytestmark = pytest.mark.numeric

F64 = torch.float64
BOTH = ((AttentionClassifier, FixedDecoderData), (JointClassifier, MixtureTokenData))


def randomised(task: TokenClassifier, scale: float = 1.0) -> TokenClassifier:
    generator = torch.Generator().manual_seed(0)
    task = task.double()
    for p in task.parameters():
        p.data = scale * torch.randn(p.shape, dtype=F64, generator=generator)
    return task


def test_loss_of_joint_training_equals_its_definition() -> None:
    data = MixtureTokenData(seed=2, n=7, T=5, d=6)
    task = randomised(JointClassifier(data))
    W, u = (p.detach().clone().requires_grad_() for p in (task.head.W, task.decoder.u))
    total = torch.zeros((), dtype=F64)
    for x, label in zip(data.splits["train"].tokens, data.splits["train"].labels, strict=True):
        total = total + torch.log1p(torch.exp(-(2 * label - 1) * (u @ x.T @ torch.softmax(x @ W @ x[0], dim=0))))
    (total / 7).backward()
    outcome = task.loss(data.batch("train", torch.arange(7)))
    outcome.loss.backward()
    torch.testing.assert_close(outcome.loss, total / 7, rtol=1e-13, atol=0)
    torch.testing.assert_close(task.head.W.grad, W.grad, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(task.decoder.u.grad, u.grad, rtol=1e-12, atol=1e-15)


def test_a_tiny_joint_loss_keeps_its_digits() -> None:
    data = MixtureTokenData(seed=0)
    task = JointClassifier(data).double()
    u, _ = data.separator
    task.decoder.u.data = 300 * 6 * u  # attention is uniform, so margins are a sixth, minus the noise
    margins = data.splits["train"].signs * (data.splits["train"].tokens.mean(dim=1) @ task.decoder.u.detach())
    loss = task.loss(data.batch("train", slice(None))).loss
    assert float(margins.min()) > 50
    torch.testing.assert_close(loss, torch.exp(-margins).mean(), rtol=1e-12, atol=0)


def test_saturated_attention_keeps_an_exact_gradient() -> None:
    # One sequence whose optimal token leads by 100 logits: naive float64 gives 0 for both.
    gaps = torch.tensor([[0.0, 0.5, 0.25]], dtype=F64)
    logits = torch.tensor([[100.0, 0.0, -3.0]], dtype=F64, requires_grad=True)
    below = attended_mean(logits, gaps)
    below.sum().backward()
    p = torch.exp(torch.tensor([-100.0, -103.0], dtype=F64))
    expected = p[0] * 0.5 + p[1] * 0.25
    torch.testing.assert_close(below[0], expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(logits.grad, torch.tensor([[-expected, p[0] * 0.5, p[1] * 0.25]]), rtol=1e-12, atol=0)


@pytest.mark.parametrize("in_dims", [(0, 0), (1, 2), (0, None), (None, 0)])
def test_stacked_logits_equal_their_definition(in_dims: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    both = [torch.randn(shape, dtype=F64, generator=generator) for shape in ((3, 5, 4, 6), (3, 2, 6, 6))]
    tokens, W = (x[0] if dim is None else x.movedim(0, dim) for x, dim in zip(both, in_dims, strict=True))
    W.requires_grad_()
    X, heads = (
        x[None].expand(3, *x.shape) if i is None else x.movedim(i, 0) for x, i in zip((tokens, W), in_dims, strict=True)
    )
    expected = torch.einsum("gbtd,gkde,gbe->gbtk", X, heads, X[:, :, 0])
    logits = vmap(stacked_logits, in_dims)(tokens, W)
    torch.testing.assert_close(logits, expected, rtol=1e-13, atol=1e-13)
    some = torch.randn(logits.shape, dtype=F64, generator=generator)
    (grad,), (wanted,) = (torch.autograd.grad((x * some).sum(), W) for x in (logits, expected))
    torch.testing.assert_close(grad, wanted, rtol=1e-13, atol=1e-13)
    assert grad.is_contiguous() == W.is_contiguous()  # optimizers traverse both together


def test_the_infimum_has_all_attention_on_optimal_tokens() -> None:
    for recipe in ("equal_scores", "sphere"):
        data = FixedDecoderData(seed=0, recipe=recipe)
        for split in ("train", "test"):
            tokens, labels, optimal = data.splits[split][:3]
            scores = (2 * labels - 1)[:, None] * (tokens @ data.direction)
            assert torch.equal(scores.argmax(dim=1), optimal)
            infimum = float(torch.log1p(torch.exp(-scores.max(dim=1).values)).mean())
            assert data.loss_offset[split] == pytest.approx(infimum, abs=1e-15)
        assert data.f_star == data.loss_offset["train"]


@pytest.mark.parametrize("data_cls", [FixedDecoderData, MixtureTokenData])
def test_a_problem_instance_belongs_to_its_seed(data_cls: Any) -> None:
    one, same, other = (data_cls(seed=seed).splits["train"].tokens for seed in (4, 4, 5))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def by_hand(task: TokenClassifier, data: TokenData) -> dict[str, float]:
    """All measurements of the tasks of paper A, sample by sample in numpy."""
    W = task.head.W.detach().numpy()
    u = (task.decoder.u.detach() if isinstance(task, JointClassifier) else data.direction).numpy()
    W_mm = data.att_svm[0].numpy()
    values: dict[str, float] = {
        "norm_W": np.sqrt((W**2).sum()),
        "alignment": (W * W_mm).sum() / np.sqrt((W**2).sum() * (W_mm**2).sum()),
    }
    values["distance"] = np.sqrt(2 - 2 * values["alignment"])
    x, optimal = data.splits["train"].tokens.numpy(), data.splits["train"].optimal.numpy()
    leads = [
        (x[i, optimal[i]] - x[i, t]) @ W @ x[i, 0] for i in range(len(x)) for t in range(x.shape[1]) if t != optimal[i]
    ]
    values |= {"min_margin": min(leads), "mean_margin": np.mean(leads)}
    weights = softmax(np.einsum("ntd,de,ne->nt", x, W, x[:, 0]))
    on = weights[np.arange(len(x)), optimal]
    values |= {"on_optimal": on.mean(), "off_optimal": weights.sum() / len(x) - on.mean()}
    values["entropy"] = -(weights * np.log(weights)).sum(axis=1).mean()
    for split in ("train", "test"):
        x, signs = data.splits[split].tokens.numpy(), 2 * data.splits[split].labels.numpy() - 1
        weights = softmax(np.einsum("ntd,de,ne->nt", x, W, x[:, 0]))
        margins = signs * np.einsum("nt,ntd,d->n", weights, x, u)
        values[f"{split}_error"] = (margins <= 0).mean()
        values[f"{split}_loss"] = np.log1p(np.exp(-margins)).mean()
    del values["train_loss"]  # it is in the curve
    if isinstance(task, JointClassifier):
        goal = data.separator[0].numpy()
        values["norm_u"] = np.linalg.norm(u)
        values["alignment_u"] = u @ goal / np.linalg.norm(u) / np.linalg.norm(goal)
        values["distance_u"] = np.sqrt(2 - 2 * values["alignment_u"])
    return values


@pytest.mark.parametrize(("cls", "data_cls"), BOTH)
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_measurements_are_those_of_a_computation_by_hand(cls: Any, data_cls: Any, scale: float) -> None:
    data = data_cls(seed=5, n=8, T=4, d=7)
    task = randomised(cls(data), scale)
    with torch.no_grad():
        measured = task.measure()
    expected = by_hand(task, data)
    assert measured.keys() == expected.keys()
    for name, value in expected.items():
        assert float(measured[name]) == pytest.approx(value, rel=1e-10, abs=1e-12), name
        assert measured[name].shape == (), name


def test_the_weight_off_the_optimum_is_never_rounded() -> None:
    data = FixedDecoderData(seed=0)
    task = AttentionClassifier(data).double()
    task.head.W.data = 600 * data.att_svm[0]
    with torch.no_grad():
        measured = task.measure()
    assert float(measured["min_margin"]) == pytest.approx(600)
    assert float(measured["on_optimal"]) == 1
    assert 5 * np.exp(-600 * 1.2) < float(measured["off_optimal"]) <= 5 * np.exp(-600) * (1 + 1e-9)
    assert float(measured["alignment"]) == pytest.approx(1, abs=1e-15)
    assert float(measured["distance"]) < 1e-14


def train(task: TokenClassifier, optimizer: torch.optim.Optimizer, steps: int) -> None:
    batch = task.data.batch("train", torch.arange(task.data.sizes["train"]))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = task.loss(batch).loss
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)  # type: ignore[arg-type]


def numpy_run(data: FixedDecoderData, steps: int, size: Callable[[float, float], float]) -> np.ndarray:
    """Gradient descent in numpy, softmax derivative as sum_s p_s (v_t - v_s); `size(excess, norm)` is the step."""
    x, labels, optimal = (part.numpy() for part in data.splits["train"][:3])
    y = 2 * labels - 1
    rows = np.arange(len(x))
    scores = y[:, None] * (x @ data.direction.numpy())
    best = scores[rows, optimal]
    W = np.zeros((x.shape[2], x.shape[2]))
    for _ in range(steps):
        p = softmax(np.einsum("ntd,nd->nt", x, x[:, 0] @ W.T))
        below = (p * (best[:, None] - scores)).sum(axis=1)
        excess = np.log1p(np.expm1(below) / (1 + np.exp(best))).mean()
        pull = p * np.einsum("ns,nts->nt", p, scores[:, :, None] - scores[:, None, :])
        pull *= (1 / (1 + np.exp(best - below)))[:, None]
        gradient = -np.einsum("nt,ntd,ne->de", pull, x, x[:, 0]) / len(x)
        W = W - size(excess, np.sqrt((gradient**2).sum())) * gradient
    return W


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("recipe", ["equal_scores", "sphere"])
def test_two_implementations_of_ngd_agree_after_1000_steps(recipe: Any) -> None:
    data = FixedDecoderData(seed=0, recipe=recipe)
    task = AttentionClassifier(data).double()
    train(task, NGD(task.parameters(), lr=0.02), 1000)
    expected = numpy_run(data, 1000, lambda excess, norm: 0.02 / norm)
    assert np.abs(task.head.W.detach().numpy() - expected).max() < 1e-8


def test_two_implementations_of_ps_agree_to_the_infimum() -> None:
    data = FixedDecoderData(seed=0)
    task = AttentionClassifier(data).double()
    train(task, PS(task.parameters(), c=1.0), 150)
    expected = numpy_run(data, 150, lambda excess, norm: excess / norm**2)
    assert float(task.loss(data.batch("train", slice(None))).loss.detach()) < 1e-60
    assert np.abs(task.head.W.detach().numpy() - expected).max() < 1e-8


# -- uninterrupted runs ---------------------------------------------------------------------------------------------


def test_a_ps_run_converges_when_its_gradient_underflows(store: Any) -> None:
    settings = {"task": "synthetic", "opt": "ps", "opt.c": 1, "trainer.max_steps": 1000, "store": store}
    result = run(resolve(settings), progress=False)
    assert (result.status, result.reason) == ("completed", "converged: the norm of the gradient is 0 in this precision")
    assert result.steps < 1000
    assert not any(value is None for row in read_curve(store / result.run_id) for value in row)
    measurements = read_tables(store / result.run_id)["measurements"]
    assert all(np.isfinite(column).all() for column in measurements.values())
    assert measurements["alignment"][-1] > 0.9999
    assert result.facts["att_svm"]["solved"]


MISSING = {"mha_dm1": {"align_W", "align_U"}, "mha_planted": {"attn_score", "off_relevant"}}


@pytest.mark.parametrize("task", [name for name, spec in TASKS.items() if spec.measure_every])
def test_a_task_measures_the_declared_metric(task: str, store: Any) -> None:
    result = run(resolve({"task": task, "opt": "gd", "trainer.max_steps": 1, "store": store}), progress=False)
    columns = read_tables(store / result.run_id)["measurements"].keys() - {"step"}
    described = stored("measurements")[str(TASKS[task].module)].keys()
    assert columns == described - (MISSING.get(task, set()))


def test_a_run_on_an_infeasible_instance_says_so(cli: Any) -> None:
    words = "--task synthetic --task.recipe sphere --task.n 6 --task.T 4 --task.d 3 --seed 3 --trainer.max_steps 5"
    answer = cli("fit", *words.split(), "--opt", "ngd")
    assert answer.code == 0
    assert "note: no comparison with att_svm, which is infeasible: no direction meets all constraints" in answer.out


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_measure_what_one_process_measures(strategy: str, store: Any) -> None:
    settings = {"task": "synthetic_joint", "opt": "ngd", "trainer.max_steps": 40, "device": "cpu", "store": store}
    alone = run(resolve(settings), progress=False)
    shared = settings | {"trainer.devices": 2, "trainer.strategy": strategy}
    words = [word for name, value in shared.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "bench", "fit", *words], check=True, capture_output=True)
    (run_id,) = {result.run_id for result in Store(store).runs()} - {alone.run_id}
    one, two = (read_tables(store / name)["measurements"] for name in (alone.run_id, run_id))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=0, atol=1e-12)
