"""`--trainer.observe`: measurements of attention, curvature and noise, against slow references in float64."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from bench.config.run_config import resolve
from bench.errors import UserError
from bench.store.store import Store
from bench.train import runner
from tasks import TASKS
from tasks.core.attention import watched_attention
from tasks.core.observatory import Observer, cosine_of_products, greatest_eigenvalue
from tasks.core.quantities import HEADS, MODEL, observed_steps
from tests import tiny, tiny_lm, tiny_text

SIZES = {"tiny_lm": tiny_lm.SIZES, "tiny": tiny.SIZES, "tiny_text": tiny_text.SIZES}
each_task = pytest.mark.parametrize("name", SIZES)


@pytest.fixture(autouse=True)
def the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (replace(tiny.TINY, lanes=True), tiny_text.TINY_TEXT, tiny_lm.TINY_LM):
        monkeypatch.setitem(TASKS, spec.name, spec)


def settings(name: str, store: Path, **more: Any) -> dict[str, Any]:
    words = {"task": name, **SIZES[name], "opt": "sgdm", "opt.lr": 0.05, "precision": "64-true", "device": "cpu"}
    return words | {"store": store, "trainer.max_steps": 12, "trainer.observe": 4} | more


def trained(name: str, store: Path, **more: Any) -> dict[str, np.ndarray]:
    """The measurements of a run."""
    config = resolve(settings(name, store, **more))
    assert runner.run(config, progress=False).status == "completed"
    return Store(store).tables(config.run_id)["measurements"]


@pytest.fixture
def follow(store: Path) -> Callable[[str], tuple[Any, list[dict[str, Tensor]], dict[str, Tensor]]]:
    """A task in float64, weights after the steps 8, 9 and 10, and the observations after the last."""

    def make(name: str) -> tuple[Any, list[dict[str, Tensor]], dict[str, Tensor]]:
        torch.manual_seed(0)
        task, plan = runner.build(resolve(settings(name, store)))
        task.plan = plan
        task.double()
        task.data.to(torch.device("cpu"), torch.float64)
        start = {name: p.detach().clone() for name, p in task.named_parameters()}
        points = [start]
        for _ in range(2):
            points.append({name: w + 0.3 * torch.randn_like(w) for name, w in points[-1].items()})
        observer = Observer(task, [0, 1, 10])
        observed = [observer.note(done, lambda at=at: at) for done, at in zip((8, 9, 10), points, strict=True)]
        assert observed[:2] == [None, None]
        assert observed[2] is not None
        return task.eval(), points, observed[2]

    return make


@each_task
def test_attention_is_what_its_definitions_say(name: str, follow) -> None:
    task, points, observed = follow(name)
    batch = task.data.batch("train", slice(0, 32))
    with torch.no_grad(), watched_attention() as layers:
        functional_call(task, points[-1], (batch,))
    assert len(layers) == 2
    for i, (logits, seen) in enumerate(layers):
        for h in range(2):
            by_query: dict[str, list[float]] = {key: [] for key in ("entropy", "greatest", "saturated", "spread")}
            top, ranks = [], []
            for b in range(32):
                queries = [t for t in range(logits.shape[2]) if seen[b, t, t]]  # padding attends but is not attended to
                rows = []
                for t in queries:
                    keys = seen[b, t].nonzero().flatten()
                    z = logits[b, h, t, keys].numpy()
                    a = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
                    by_query["entropy"].append(-(a * np.log(a)).sum())
                    by_query["greatest"].append(a.max())
                    by_query["saturated"].append(float(a.max() > 0.99))
                    by_query["spread"].append(z.var())
                    rows.append(np.zeros(logits.shape[3]))
                    rows[-1][keys.numpy()] = a
                top.append(np.sum(rows, axis=0).max() / len(queries))
                squares = np.linalg.svd(np.array(rows), compute_uv=False) ** 2
                ranks.append(1 + int((squares.cumsum() / squares.sum() < 0.99).sum()))
            expected = {key: np.mean(values) for key, values in by_query.items()}
            expected |= {"logit_scale": expected.pop("spread") ** 0.5, "top_token": np.mean(top)}
            expected["rank"] = np.mean(ranks[:4])
            for key, value in expected.items():
                assert float(observed[f"{key}_l{i}_h{h}"]) == pytest.approx(value, rel=1e-10), key


def test_norms_and_directions_are_those_of_the_whole_matrices(follow) -> None:
    task, points, observed = follow("tiny_lm")
    maps = [task.maps(weights) for weights in points]
    for i in range(2):
        q, k, v, o = maps[-1][i]
        assert (q.shape, o.shape) == ((2, 4, 8), (2, 8, 4))
        for h in range(2):
            whole = q[h].T @ k[h]
            s = torch.linalg.svdvals(whole)
            expected = {"norm_Q": q[h], "norm_K": k[h], "norm_V": v[h], "norm_O": o[h], "norm_QK": whole}
            for key, matrix in expected.items():
                assert float(observed[f"{key}_l{i}_h{h}"]) == pytest.approx(float(matrix.norm()), rel=1e-12)
            stable = float(s.square().sum() / s[0] ** 2)
            assert float(observed[f"stable_rank_QK_l{i}_h{h}"]) == pytest.approx(stable, rel=1e-10)
            assert math.isnan(observed[f"direction_at_1_l{i}_h{h}"])  # there was no such earlier point
            assert float(observed[f"direction_at_10_l{i}_h{h}"]) == pytest.approx(1, abs=1e-12)
            old = maps[0][i].q[h].T @ maps[0][i].k[h]
            cosine = cosine_of_products((q, k), (maps[0][i].q, maps[0][i].k))[h]
            assert float(cosine) == pytest.approx(float((whole * old).sum() / whole.norm() / old.norm()), rel=1e-10)


@each_task
def test_the_maps_of_heads_are_those_that_attention_uses(name: str, follow) -> None:
    """Scaling W_Q of one head scales the logits of that head alone; scaling W_O scales its output alone."""
    task, points, _ = follow(name)
    batch = task.data.batch("train", slice(0, 8))

    def logits(weights: dict[str, Tensor]) -> Tensor:
        with torch.no_grad(), watched_attention() as layers:
            functional_call(task, weights, (batch,))
        return layers[0].logits.nan_to_num(neginf=0.0)

    now = {name: torch.zeros_like(w) if "bias" in name else w.clone() for name, w in points[-1].items()}
    before = logits(now)
    for kind in ("q", "k"):
        scaled = {name: w.clone() for name, w in now.items()}
        getattr(task.maps(scaled)[0], kind)[1].mul_(3)  # views of the weights
        after = logits(scaled)
        torch.testing.assert_close(after[:, 0], before[:, 0])
        torch.testing.assert_close(after[:, 1], 3 * before[:, 1])


@pytest.mark.matrix(keep=1)
@each_task
def test_curvature_is_that_of_the_whole_hessian(name: str, follow) -> None:
    task, points, observed = follow(name)
    batch = task.data.batch("train", slice(0, 4))  # a quarter of a batch
    names, shapes = list(points[-1]), [w.shape for w in points[-1].values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = flat.split([shape.numel() for shape in shapes])
        weights = {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
        with watched_attention():
            return functional_call(task, weights, (batch,)).loss

    def flat(weights: dict[str, Tensor]) -> Tensor:
        return torch.cat([w.flatten() for w in weights.values()])

    now, before = flat(points[-1]), flat(points[-2])
    hessian = torch.autograd.functional.hessian(loss, now, vectorize=True)
    start, u = torch.autograd.functional.jacobian(loss, now), now - before
    assert float(observed["curvature"]) == pytest.approx(float(u @ hessian @ u / (u @ u)), rel=1e-8)
    before_step = start @ u - u @ hessian @ u  # slope along the update at its start, to second order
    assert float(observed["edge"]) == pytest.approx(float(-(u @ hessian @ u) / before_step), rel=1e-8)
    exact = float(torch.linalg.eigvalsh(hessian)[-1])
    assert exact * 0.95 < float(observed["sharpness"]) <= exact * (1 + 1e-9)
    many = greatest_eigenvalue(lambda v: hessian @ v, start, 60)
    assert float(many) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("spectrum", [[3.0, 1.0, -7.0], [0.0, 0.0, 0.0], [-1.0, -1.0, -3.0]], ids=str)
def test_the_greatest_eigenvalue_is_not_the_largest_in_size(spectrum: list[float]) -> None:
    torch.manual_seed(0)
    q = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    matrix = q @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ q.T
    observed = greatest_eigenvalue(lambda v: matrix @ v, torch.randn(3, dtype=torch.float64), 3)
    assert float(observed) == pytest.approx(max(spectrum), abs=1e-9)


def test_the_greatest_eigenvalue_of_a_large_model_is_precise() -> None:
    # float32 norms of so many elements are wrong by 1e-4, which makes Lanczos' basis inexact. With exact ones, it is
    # orthogonal up to the rounding of its products, which differs between processors (2e-6 on one with AVX2).
    diagonal, start = torch.randn(2, 5_000_000, generator=torch.Generator().manual_seed(0))
    observed = greatest_eigenvalue(lambda v: diagonal * v, start, 5)
    exact = greatest_eigenvalue(lambda v: diagonal.double() * v, start.double(), 5)
    assert float(observed) == pytest.approx(float(exact), rel=1e-5)


@each_task
def test_gradient_noise_is_unbiased_by_its_own_samples(name: str, follow) -> None:
    task, points, observed = follow(name)

    def gradient(rows: slice) -> Tensor:
        leaves = {name: w.clone().requires_grad_() for name, w in points[-1].items()}
        loss = functional_call(task, leaves, (task.data.batch("train", rows),)).loss
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])

    whole, parts = gradient(slice(0, 32)), [gradient(slice(8 * i, 8 * i + 8)) for i in range(4)]
    deviations = torch.stack([part - whole for part in parts]).square().sum() / 3  # variance of the mean of 8
    assert float(observed["gradient_noise"]) == pytest.approx(8 * float(deviations), rel=1e-8)
    square = float(whole.square().sum() - deviations / 4)
    assert float(observed["gradient_square"]) == pytest.approx(square, rel=1e-8)
    if square > 0:
        assert float(observed["noise_scale"]) == pytest.approx(8 * float(deviations) / square, rel=1e-8)
    else:
        assert math.isnan(observed["noise_scale"])


def test_updates_are_compared_with_each_other_and_with_the_weights(follow) -> None:
    task, points, observed = follow("tiny")
    u, v = (torch.cat([(b[n] - a[n]).flatten() for n in a]) for a, b in pairwise(points))
    assert float(observed["update_cosine"]) == pytest.approx(float(u @ v / u.norm() / v.norm()), rel=1e-10)
    for role in ("matrix", "embedding", "head", "vector"):
        names = [p.name for p in task.parameter_roles() if p.role == role]
        moved, size = (
            math.hypot(*(float((points[-1][n] - since * points[-2][n]).norm()) for n in names)) for since in (1, 0)
        )
        assert float(observed[f"update_ratio_{role}"]) == pytest.approx(moved / size, rel=1e-10)


@pytest.mark.parametrize(
    ("total", "expected"),
    [(1, [0, 1]), (2, [0, 1, 2]), (12, [0, 1, 2, 3, 6, 10, 12]), (100, [0, 1, 2, 3, 6, 10, 18, 32, 56, 100])],
)
def test_steps_are_even_in_the_logarithm(total: int, expected: list[int]) -> None:
    assert observed_steps(total, 4) == expected


@pytest.mark.matrix(keep=1)
@each_task
def test_observation_does_not_change_a_run(name: str, store: Path, tmp_path: Path) -> None:
    config = resolve(settings(name, store))
    table = trained(name, store)
    assert table["step"].tolist() == [0, 1, 2, 3, 6, 10, 12]
    plain = resolve(settings(name, tmp_path / "plain", **{"trainer.observe": None}))
    runner.run(plain, progress=False)
    assert plain.run_id != config.run_id
    assert "observe" not in plain.identity["trainer"]
    mine, theirs = (Store(settings_.store).tables(settings_.run_id)["curve"] for settings_ in (config, plain))
    assert all(np.array_equal(mine[key], theirs[key], equal_nan=True) for key in mine)
    heads = {key.partition("_l0_h0")[0] for key in table if key.endswith("_l0_h0")}
    assert {"direction_at_N" if key.startswith("direction_at_") else key for key in heads} == {*HEADS}
    model = {key for key in table if "_l" not in key and key not in ("step", "lane")}
    assert {"update_ratio_ROLE" if key.startswith("update_ratio_") else key for key in model} == {*MODEL}
    last = {key: float(values[-1]) for key, values in table.items() if key.startswith("direction_at_")}
    assert all(-1 - 1e-9 <= value <= 1 + 1e-9 for value in last.values())
    assert last["direction_at_12_l1_h1"] == pytest.approx(1)
    assert np.isfinite(table["sharpness"][::-2]).all()
    assert np.isnan(table["sharpness"][-2::-2]).all()


@pytest.mark.deep
@pytest.mark.parametrize("name", ["tiny_lm", "tiny"])
def test_lanes_are_observed_as_fit_is(name: str, store: Path, tmp_path: Path) -> None:
    from bench.execute import Effort
    from bench.execute.command import results_of
    from bench.progress import SweepProgress

    rates = (0.01, 0.05)
    configs = [resolve(settings(name, store, **{"opt.lr": lr, "seed": s})) for lr in rates for s in (0, 1)]
    effort = Effort("lanes", width=4)
    assert results_of(configs, SweepProgress("test", "max"), effort, plan="test") is not None
    for config in configs:
        lane = Store(store).tables(config.run_id)["measurements"]
        alone = trained(name, tmp_path / "alone", **{"opt.lr": config.opt_options["lr"], "seed": config.seed})
        assert lane.keys() == alone.keys()
        for key, values in alone.items():
            np.testing.assert_allclose(lane[key], values, rtol=1e-6, atol=1e-9, err_msg=key)


def test_weights_that_are_not_finite_give_no_number(follow) -> None:
    task, points, observed = follow("tiny")
    observer = Observer(task, [0])
    broken = {name: torch.full_like(w, math.nan) for name, w in points[0].items()}
    values = observer.note(0, lambda: broken)
    assert values is not None
    assert all(math.isnan(value) for value in values.values())
    huge = {name: torch.full_like(w, 1e200) for name, w in points[0].items()}
    values = Observer(task, [0]).note(0, lambda: huge)
    assert values is not None
    assert values.keys() == {key for key in observed if not key.startswith("direction_at_")} | {
        f"direction_at_0_l{i}_h{h}" for i in range(2) for h in range(2)
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"task": "synthetic"}, "--trainer.observe 4: the task synthetic has its own measurements"),
        ({"trainer.strategy": "fsdp"}, "--trainer.observe needs whole weights"),
        ({"task.attention": "dcmha"}, "--trainer.observe 4: tiny has no heads with their own attention"),
        ({"trainer.observe": 0}, "--trainer.observe 0"),
    ],
    ids=str,
)
def test_impossible_observations_are_refused(words: dict[str, Any], message: str, store: Path) -> None:
    chosen = settings("tiny", store) | words
    if words.get("task"):
        chosen = {key: value for key, value in chosen.items() if not key.startswith("task.")} | {
            "opt": "ngd",
            "opt.lr": 0.1,
        }
    with pytest.raises(UserError, match=message):
        runner.run(resolve(chosen), progress=False)
