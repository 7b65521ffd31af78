"""`--trainer.observe`: measurements of attention, against slow references in float64."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from bench.config.run_config import resolve
from bench.errors import UserError
from bench.train import runner
from tasks import TASKS
from tasks.core.attention import watched_attention
from tasks.core.observatory import Observer
from tasks.core.quantities import HEADS, observed_steps
from tests import tiny, tiny_lm, tiny_text
from tests.stored import Store

SIZES = {"tiny_lm": tiny_lm.SIZES, "tiny": tiny.SIZES, "tiny_text": tiny_text.SIZES}
each_task = pytest.mark.parametrize("name", SIZES)


@pytest.fixture(autouse=True)
def the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (replace(tiny.TINY, lanes=True), tiny_text.TINY_TEXT, tiny_lm.TINY_LM):
        monkeypatch.setitem(TASKS.built_in, spec.name, spec)


def settings(name: str, store: Path, **more: Any) -> dict[str, Any]:
    words = {"task": name, **SIZES[name], "opt": "sgdm", "opt.lr": 0.05, "precision": "64-true", "device": "cpu"}
    return words | {"store": store, "trainer.max_steps": 12, "trainer.observe": 4} | more


def trained(name: str, store: Path, **more: Any) -> dict[str, np.ndarray]:
    """The measurements of a run."""
    config = resolve(settings(name, store, **more))
    assert runner.run(config, progress=False).status == "completed"
    return Store(store).tables(config.run_id)["measurements"]


Followed = Callable[[str], tuple[Any, list[dict[str, Tensor]], dict[str, Tensor]]]


@pytest.fixture
def follow(store: Path) -> Followed:
    """A task in float64, two points of its weights, and the observations at the second."""

    def make(name: str) -> tuple[Any, list[dict[str, Tensor]], dict[str, Tensor]]:
        torch.manual_seed(0)
        task, _ = runner.build(resolve(settings(name, store)))
        task.double().data.to(torch.device("cpu"), torch.float64)
        start = {name: p.detach().clone() for name, p in task.named_parameters()}
        end = {name: w + 0.3 * torch.randn_like(w) for name, w in start.items()}
        observer = Observer(task, [0, 1, 10])
        observer.note(0, lambda: start)
        assert observer.note(9, lambda: end) is None
        observed = observer.note(10, lambda: end)
        assert observed is not None
        return task.eval(), [start, end], observed

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
            cosine = float((whole * old).sum() / whole.norm() / old.norm())
            assert float(observed[f"direction_at_0_l{i}_h{h}"]) == pytest.approx(cosine, rel=1e-10)


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
    last = {key: float(values[-1]) for key, values in table.items() if key.startswith("direction_at_")}
    assert all(-1 - 1e-9 <= value <= 1 + 1e-9 for value in last.values())
    assert last["direction_at_12_l1_h1"] == pytest.approx(1)


@pytest.mark.matrix(keep=1)
@pytest.mark.numeric
@pytest.mark.parametrize("name", ["tiny_lm", "tiny"])
def test_lanes_are_observed_as_fit_is(name: str, store: Path, tmp_path: Path) -> None:
    from bench.execute import Effort
    from bench.execute.request import results_of
    from bench.progress import SweepProgress

    rates = (0.01, 0.5)
    configs = [resolve(settings(name, store, **{"opt.lr": lr, "seed": s})) for lr in rates for s in (0, 1)]
    effort = Effort("lanes", width=4)
    assert results_of(configs, SweepProgress("test", "max"), effort, plan="test") is not None
    for config in configs:
        lane = Store(store).tables(config.run_id)["measurements"]
        alone = trained(name, tmp_path / "alone", **{"opt.lr": config.opt_options["lr"], "seed": config.seed})
        assert lane.keys() == alone.keys()
        for key, values in alone.items():
            np.testing.assert_allclose(lane[key], values, rtol=1e-9, atol=1e-9, err_msg=key)


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
    chosen = settings("tiny", store) if "task" not in words else {"opt": "ngd", "trainer.observe": 4}
    with pytest.raises(UserError, match=message):
        runner.run(resolve(chosen | words), progress=False)
