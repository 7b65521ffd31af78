"""Decisions about a run from its numbers alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.config.run_config import resolve
from bench.store.record import RunResult
from bench.train.watch import DIVERGED_FACTOR, Summary, Watch, summarize
from tests.tiny import TINY

NAN, INF = float("nan"), float("inf")


def rows_of(**columns: Any) -> np.ndarray:
    """Steps of one run, shape (steps, 1, 4); missing values are 1."""
    steps = len(next(iter(columns.values())))
    names = ("loss", "norm", "raw", "applied")
    return np.stack([np.array(columns.get(name, [1.0] * steps), dtype=float) for name in names], axis=1)[:, None]


_LOOK = Summary(
    steps=4, bad=False, first=1.0, median=1.0, capped=0, skipped=0, last_norm=1.0, norm_before=1.0, greatest_norm=1.0
)


def seen(**changes: Any) -> Summary:
    return replace(_LOOK, **changes)


def watch(full_batch: bool = False, **spec: Any) -> Watch:
    result = RunResult(**resolve({"task": "mnist", "opt": "sgd", "device": "cpu"}).record_fields)
    task = replace(TINY, **spec)
    own = {name: getattr(task, name) for name in ("metric", "mode", "target")}
    return Watch(replace(result, select_split="val", **own), full_batch)


# -- look -----------------------------------------------------------------------------------------------------------


def test_finite_steps_all_count() -> None:
    rows = rows_of(loss=[5, 1, 4, 2], norm=[3, 2, 1, 7], raw=[2, 2, 2, 2], applied=[2, 1, 2, 1])
    assert summarize(rows, full_batch=False) == [Summary(4, False, 5.0, 4.0, 2, 0, 7.0, 1.0, 7.0)]
    assert repr(summarize(rows[:1], full_batch=True)) == repr([Summary(1, False, 5.0, 5.0, 0, 0, 3.0, NAN, 3.0)])


@pytest.mark.parametrize("full_batch", [False, True])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("column", ["loss", "norm"])
def test_steps_count_up_to_the_first_that_is_not_finite(column: str, bad: float, full_batch: bool) -> None:
    values = [1.0, 2.0, bad, 4.0, bad]
    rows = rows_of(**{"loss": [1.0] * 5, "norm": [1.0] * 5, column: values}, raw=[2] * 5, applied=[1] * 5)
    (found,) = summarize(rows, full_batch=full_batch)
    assert (found.steps, found.bad, found.capped) == (3, True, 3)
    (found,) = summarize(rows[:2], full_batch=full_batch)
    assert (found.steps, found.bad, found.capped) == (2, False, 2)


@pytest.mark.parametrize(
    ("norms", "steps", "last"),
    [([2, 1, 0, 0], 3, 0), ([2, 1, 1, 0], 4, 0), ([0, 0, 0, 0], 1, 0), ([0, 0, 1, 1], 4, 1), ([0, 1, 0, 0], 3, 0)],
)
def test_in_the_full_batch_steps_count_up_to_the_first_of_the_last_zero_gradients(
    norms: list[float], steps: int, last: float
) -> None:
    rows = rows_of(loss=[4, 3, 2, 1], norm=norms, raw=[2] * 4, applied=[1] * 4)
    (found,) = summarize(rows, full_batch=True)
    assert (found.steps, found.bad, found.capped, found.last_norm) == (steps, False, steps, last)
    assert found.median == sorted([4, 3, 2, 1][:steps])[steps // 2]
    (found,) = summarize(rows, full_batch=False)
    assert (found.steps, found.median, found.last_norm) == (4, 3, norms[-1])


def test_a_cap_that_equals_the_step_does_not_bind_and_nan_is_no_cap() -> None:
    (found,) = summarize(rows_of(raw=[1, 2, INF, NAN, 1], applied=[1, 1, 1, 1, NAN]), full_batch=False)
    assert found.capped == 2


def test_under_a_scaler_an_overflowed_gradient_is_a_skipped_step() -> None:
    rows = rows_of(norm=[INF, 1, NAN, 1], raw=[0, 1, 0, 1], applied=[0, 1, 0, 1])
    (found,) = summarize(rows, full_batch=False, scaled=True)
    assert (found.steps, found.bad, found.skipped) == (4, False, 2)
    (found,) = summarize(rows, full_batch=False)
    assert (found.steps, found.bad, found.skipped) == (1, True, 1)
    (found,) = summarize(rows_of(loss=[1, NAN, 1], norm=[INF, 1, INF]), full_batch=False, scaled=True)
    assert (found.steps, found.bad, found.skipped) == (2, True, 1)
    (found,) = summarize(rows_of(norm=[1, INF, 0]), full_batch=True, scaled=True)
    assert (found.steps, found.bad, found.skipped) == (3, False, 1)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("full_batch", [False, True])
def test_runs_are_looked_at_each_for_itself(full_batch: bool, scaled: bool) -> None:
    draw = np.random.default_rng(0)
    rows = draw.choice([0.0, 1.0, 2.0, NAN, INF], size=(5, 300, 4), p=[0.3, 0.3, 0.3, 0.05, 0.05])
    rows[2:, :50, 1] = 0
    alone = [summarize(rows[:, i : i + 1], full_batch=full_batch, scaled=scaled)[0] for i in range(300)]
    assert repr(summarize(rows, full_batch=full_batch, scaled=scaled)) == repr(alone)
    assert len({found.steps for found in alone}) == 5
    assert {found.bad for found in alone} == {False, True}


# -- Watch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 4])
def test_a_run_without_a_step_that_counts_has_no_cap_share(steps: int) -> None:
    run = watch()
    run.take(seen(steps=steps, skipped=steps))
    run.close()
    assert run.result.cap_share is None


@pytest.mark.parametrize("first", [0.0, 0.5, -3.0])
def test_a_loss_that_grows_beyond_the_factor_has_diverged(first: float) -> None:
    bound, run = DIVERGED_FACTOR * (1 + abs(first)), watch()
    run.take(seen(first=first, median=first))
    run.take(seen(first=1e9, median=bound))
    assert run.running
    run.take(seen(first=1e9, median=bound * 1.001))
    assert (run.result.status, run.result.steps) == ("diverged", 12)
    assert run.result.reason == f"the loss grew from {first:.3g} to {bound * 1.001:.3g} by step 12"


NORMS = {
    "at once": ([1.0, 0.0], 1),
    "from the heights": ([1.0, 50.0, 0.0], 2),
    "after a while": ([1.0, 2.0, 3.0, 2.0, 1.6, 0.0], 5),
    "through all magnitudes": ([10.0**-i for i in range(160)] + [0.0], None),
    "a share at a time": ([1.0, 0.8, 0.5, 0.0], None),
    "not at all": ([1.0, 0.5, 1e-300], None),
    "never moved": ([0.0], None),
    "after a step that was not made": ([1.0, INF, 0.0], None),
}


@pytest.mark.parametrize("cut", [1, 2, 1000], ids=["looks of one step", "of two", "one look"])
@pytest.mark.parametrize(("norms", "step"), NORMS.values(), ids=NORMS)
def test_a_step_that_alone_takes_the_gradient_to_zero_is_noted(norms: list[float], step: int | None, cut: int) -> None:
    for full_batch in (True, False):
        run = watch(full_batch)
        for first in range(0, len(norms), cut):
            resumed = watch(full_batch)
            resumed.load_state_dict(run.state_dict())
            run = resumed
            (found,) = summarize(rows_of(norm=norms[first : first + cut]), full_batch=full_batch, scaled=True)
            run.take(found)
        assert run.result.saturated_at == (step if full_batch else None)
        assert run.result.steps == len(norms)


@pytest.mark.parametrize(
    ("mode", "values", "kept", "reached"),
    [("max", [0.1, 0.3, 0.2, 0.5, 0.5], [1, 1, 0, 1, 0], 16), ("min", [0.9, 0.7, 0.8, 0.5, 0.4], [1, 1, 0, 1, 1], 16)],
)
def test_the_best_step_is_the_first_of_the_best_and_the_target_is_reached_once(
    mode: str, values: list[float], kept: list[int], reached: int
) -> None:
    run, counts = watch(mode=mode, target=0.5), watch(mode=mode, target=0.5)
    for value, keep in zip(values, kept, strict=True):
        for one in (run, counts):
            one.take(seen())
            one.result.train_s += 1.5
        counts.computed(100)
        assert run.validated({"accuracy": value, "loss": 0.0}) == keep
        counts.validated({"accuracy": value, "loss": 0.0})
    result = run.result
    assert (result.steps_to_target, result.seconds_to_target) == (reached, 6.0)
    assert counts.result.steps_to_target == reached + 100  # gradients, where a step computes several
    assert result.best_step == [4, 8, 12, 16, 20][max(i for i, keep in enumerate(kept) if keep)]
    assert result.validations[1] == {"step": 8, "train_s": 3.0, "accuracy": values[1], "loss": 0.0}


@pytest.mark.parametrize("bad", [NAN, INF])
def test_metrics_that_are_not_finite_end_the_run_and_are_not_kept(bad: float) -> None:
    run = watch()
    run.take(seen())
    assert not run.validated({"accuracy": 1.0, "loss": bad})
    assert (run.result.status, run.result.validations, run.result.best_step) == ("diverged", [], None)
    assert run.result.reason == "the val metrics are not finite at step 4"
    run = watch()
    run.reported("best", {"accuracy": bad}, {})
    assert run.running
    run.reported("final", {"accuracy": 0.25}, {"train": {"accuracy": bad}})
    assert (run.result.metrics, run.result.final) == ({}, None)
    assert run.result.reason == "the final weights give values that are not finite"
    run = watch()
    run.reported("final", {"accuracy": 0.25}, {"train": {"accuracy": 0.5}})
    assert run.result.final == 0.25
    assert run.result.metrics == {"final": {"accuracy": 0.25, "train": {"accuracy": 0.5}}}


def test_a_watch_goes_on_from_its_state() -> None:
    steps = [
        seen(first=2.0, median=2.0, capped=1, steps=3),
        seen(first=9.0, capped=2),
        seen(first=9.0, median=250.0, skipped=1),
        seen(first=9.0, median=301.0),
    ]
    whole, parts = watch(), watch()
    for i, step in enumerate(steps):
        resumed = watch()
        resumed.load_state_dict(parts.state_dict())
        parts = resumed
        for run in (whole, parts):
            run.take(step)
            run.validated({"accuracy": [0.2, 0.6, 0.4, 0.6][i]})
    for run in (whole, parts):
        run.close()
    assert vars(whole.result) == vars(parts.result)
    assert (whole.result.status, whole.result.best_step, whole.result.cap_share) == ("diverged", 7, 3 / 14)
