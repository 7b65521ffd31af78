"""Sensitivity: medians, quartiles, intervals, divergence and edges by hand; readable files."""

import json
import re
from typing import Any

import numpy as np
import pytest

from bench.api.results import Runs, Sweep
from bench.errors import UserError
from bench.store.record import RunResult
from bench.sweeps.sensitivity import Curve, analyse, as_json, lines, sweep_figure


def run(opt="gd", seed=0, final=None, status=None, **settings) -> RunResult:
    """A run; settings are named `opt__lr` or `task__sigma`."""
    groups: dict[str, dict] = {"opt": {}, "task": {}}
    for name, value in settings.items():
        group, _, option = name.partition("__")
        groups[group][option] = value
    config = {"task": "synthetic", "opt": opt, "seed": seed, "data_seed": seed, "trainer": {"max_steps": 100}}
    config |= {"opt_options": groups["opt"], "task_options": groups["task"]}
    name = f"synthetic-{opt}-{seed}-" + "-".join(map(str, settings.values()))
    status = status or ("diverged" if final is None else "completed")
    return RunResult(name, config, status, metric="loss", split="train", final=final, best=final)


def at(lr: float, *finals: float | None, opt="gd", **settings) -> list[RunResult]:
    return [run(opt, seed, final, opt__lr=lr, **settings) for seed, final in enumerate(finals)]


def grid(*medians: float | None) -> list[RunResult]:
    """One seed at each of the learning rates 0.1, 0.2, 0.4, ..."""
    return [one for i, median in enumerate(medians) for one in at(0.1 * 2**i, median)]


def only(results, varied=("opt.lr",), mode: Any = "min") -> Curve:
    (curve,) = analyse(results, varied, mode).curves
    return curve


# -- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finals", "mode", "diverged", "median", "quartiles"),
    [
        ([3.0, 1.0, 2.0], "min", 0, 2, (1, 3)),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "min", 0, 4.5, (2.5, 6.5)),
        ([1.0, 2.0, 3.0, None], "min", 1, 2.5, (1.5, 3)),  # one of the pair around the upper quartile diverged
        ([1.0, 2.0, None, None], "min", 2, 2, (1.5, None)),  # exactly half
        ([1.0, None, None], "min", 2, None, (1, None)),
        ([0.5, 0.7, 0.9, None], "max", 1, 0.6, (0.5, 0.8)),
    ],
)
def test_median_and_quartiles_with_divergence_as_worst(finals, mode, diverged, median, quartiles) -> None:
    (point,) = only(at(0.1, *finals), mode=mode).points
    assert (point.seeds, point.diverged) == (len(finals), diverged)
    assert (point.median, *point.quartiles) == pytest.approx((median, *quartiles))


@pytest.mark.parametrize(
    ("medians", "mode", "best"),
    [
        ([9, 1, None, 1.02], "min", 1),
        ([5, 1, 1, 1, 5], "min", 1),  # the smallest of equals
        ([1, 1, 1], "min", None),
        ([None, None], "min", None),
        ([-1, -2, -1.9], "min", 1),
        ([0.5, 0.96, 1, 0.94, 0.99], "max", 2),
    ],
)
def test_the_best_of_a_curve(medians, mode, best) -> None:
    assert only(grid(*medians), mode=mode).best == best


def test_a_loss_whose_infimum_is_known_is_shown_above_it() -> None:
    results = at(0.1, 1.25, 1.5) + at(1.0, 1.125, 1.25)
    for result in results:
        result.metrics = {"final": {"loss": result.final, "excess": result.final - 1}}
    sweep = analyse(results, ["opt.lr"], "min")
    assert sweep.metric == "train loss (suboptimality gap)"
    assert [point.median for point in sweep.curves[0].points] == [0.375, 0.1875]
    for result, excess in zip(results, [1e-30, 1e-30, 1e-17, 1e-20], strict=True):
        result.metrics["final"]["excess"] = excess
    assert only(results).best is None  # all are equal
    del results[0].metrics["final"]["excess"]  # a record without it
    assert analyse(results, ["opt.lr"], "min").metric == "train loss"


def test_the_selection_split_chooses_and_the_other_is_shown() -> None:
    results = at(0.1, 0.5, 0.6) + at(1.0, 0.4, 0.4)  # better on the test set
    for result, value in zip(results, (0.1, 0.2, 0.3, 0.3), strict=True):
        result.validations = [{"step": 1, "train_s": 0.0, "loss": value}]
    sweep = analyse(results, ["opt.lr"], "min")
    (curve,) = sweep.curves
    assert [(point.median, round(point.score or 0, 6)) for point in curve.points] == [(0.55, 0.15), (0.4, 0.3)]
    assert curve.best == 0


# -- axes and curves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("varied", [["opt.lr", "opt.momentum"], ["opt", "opt.lr", "opt.momentum", "task.recipe"]])
def test_further_settings_make_curves_of_their_own(varied: list[str]) -> None:
    results = [r for m in (0.0, 0.9) for lr in (0.1, 1.0) for r in at(lr, 1.0, opt__momentum=m, task__recipe="plain")]
    sweep = analyse(results, varied, "min")
    assert (sweep.x, sweep.numeric, sweep_figure(sweep).panels[0].log) == ("opt.lr", True, "x")
    assert [curve.name for curve in sweep.curves] == ["gd, momentum 0", "gd, momentum 0.9"]


@pytest.mark.parametrize(
    ("values", "xs"),
    [
        (([0.9, 0.99], [0.9, 0.999]), ["0.9; 0.99", "0.9; 0.999"]),
        ((0.5, "inf"), ["0.5", "inf"]),
        ((None, 3), ["-", "3"]),
    ],
)
def test_words_keep_their_order_and_have_no_range(values, xs) -> None:
    sweep = analyse([run(final=1.0 + i, task__recipe=v) for i, v in enumerate(values)], ["task.recipe"], "min")
    (curve,) = sweep.curves
    assert (sweep.numeric, [point.x for point in curve.points]) == (False, xs)
    assert curve.best == 0
    assert sweep_figure(sweep).panels[0].ticks == xs


def test_optimizers_that_vary_different_settings_have_axes_of_their_own() -> None:
    results = at(0.1, 2.0) + at(1.0, 1.0)
    results += at(1.0, 3.0, opt="sps", opt__max_step=0.5) + at(1.0, 4.0, opt="sps", opt__max_step=5.0)
    sweep = analyse(results, ["opt.lr", "opt.max_step"], "min")
    assert [(c.name, c.x, [p.x for p in c.points], c.best) for c in sweep.curves] == [
        ("gd", "opt.lr", [0.1, 1.0], 1),
        ("sps", "opt.max_step", [0.5, 5.0], 0),
    ]
    assert sweep.x == "opt.lr or opt.max_step"


def test_a_quasi_random_design_is_one_series_without_lines() -> None:
    design = [(0.1, 3.0, 1.0), (0.4, 1.0, 2.0), (0.1, 2.0, 5.0)]
    results = [run("sps", 0, final, opt__lr=lr, opt__c=c) for lr, c, final in design] + grid(4.0, 3.0)
    sweep = analyse(results, ["opt.lr", "opt.c"], "min")
    scattered, line = sweep.curves
    assert [(p.x, p.others, p.median) for p in scattered.points] == [
        (0.1, {"opt.c": 3.0}, 1.0),
        (0.1, {"opt.c": 2.0}, 5.0),
        (0.4, {"opt.c": 1.0}, 2.0),
    ]
    assert (scattered.name, scattered.best, scattered.joined) == ("sps", 0, False)
    assert (line.name, line.joined) == ("gd", True)
    assert "  note: best opt.lr 0.1, opt.c 3: median train loss 1" in lines(sweep)
    (panel,) = sweep_figure(sweep).panels
    assert [(line.name, len(line.x)) for line in panel.lines] == [*[("sps", 1)] * 3, ("gd", 2)]
    assert Sweep(Runs([]), sweep).best == {"sps": {"opt.lr": 0.1, "opt.c": 3.0}, "gd": {"opt.lr": 0.2}}


def test_runs_that_have_not_ended_are_left_out_and_named() -> None:
    unended = [run(seed=9, status=status, opt__lr=0.1) for status in ("failed", "killed", "killed")]
    sweep = analyse([*unended, *at(0.1, 1.0, 2.0)], ["opt.lr"], "min")
    assert (sweep.curves[0].points[0].seeds, sweep.curves[0].points[0].diverged) == (2, 0)
    assert lines(sweep)[-1] == "note: unfinished runs excluded: 1 failed, 2 killed"
    with pytest.raises(UserError, match="none of the 3 runs of the sweep has finished"):
        analyse(unended, ["opt.lr"], "min")


# -- words, files and the figure --------------------------------------------------------------------------------------


def test_the_table_reads_like_this() -> None:
    sweep = analyse(
        [*at(0.1, *[4.0] * 6), *at(0.2, 1.0, 2.0, 3.0, 4.0, 5.0, None), *at(0.4, 9.0, *[None] * 5)], ["opt.lr"], "min"
    )
    assert lines(sweep) == [
        "train loss against opt.lr",
        "=========================",
        "",
        "gd",
        "--",
        "   opt.lr  median train loss  lower quartile  upper quartile  diverged",
        "      0.1                  4               4               4       0/6",
        "*     0.2                3.5               2               5       1/6",
        "      0.4           diverged        diverged        diverged       5/6",
        "  note: best opt.lr 0.2: median train loss 3.5",
    ]


@pytest.mark.parametrize(
    ("medians", "words"),
    [
        ((8, 4, 1), "the best value is at the edge of the grid: widen it"),
        ((None, None), "no best: all are equally good or diverged"),
    ],
)
def test_the_closing_lines_say_what_the_grid_shows(medians: Any, words: str) -> None:
    assert words in "\n".join(lines(analyse(grid(*medians), ["opt.lr"], "min")))


def test_json_is_strict_and_says_what_the_table_says() -> None:
    sweep = analyse([*at(0.1, 1.0, 2.0), *at(0.2, None, None)], ["opt.lr"], "min")
    end = {"others": {}}
    assert json.loads(json.dumps(as_json(sweep), allow_nan=False)) == {
        "x": "opt.lr", "varied": ["opt.lr"], "metric": "train/loss", "mode": "min",
        "runs": {"completed": 2, "diverged": 2},
        "curves": [{
            "name": "gd", "opt": "gd", "x": "opt.lr", "best": 0, "joined": True,
            "points": [
                {"x": 0.1, "seeds": 2, "diverged": 0, "median": 1.5, "quartiles": [1, 2], "score": 1.5, **end},
                {"x": 0.2, "seeds": 2, "diverged": 2, "median": None, "quartiles": [None, None], "score": None, **end},
            ],
        }],
    }  # fmt: skip


@pytest.mark.parametrize(("mode", "log"), [("min", "xy"), ("max", "x")])
def test_the_figure_shows_medians(mode: Any, log: str) -> None:
    results = [*at(0.001, 0.5, 0.7), *at(0.1, 0.01, 0.02), *at(10.0, None, None)]
    (panel,) = sweep_figure(analyse(results, ["opt.lr"], mode)).panels
    assert (panel.log, panel.x, panel.y) == (log, "opt.lr", "train loss at the last step")
    np.testing.assert_allclose(panel.lines[0].y, [0.6, 0.015, np.nan])


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize(
    "medians", [(None, None), (0.0, 0.0), (1e-320, 1.0), (5e-324, 0.0), (-3.0, 4.0), (1.0, None, 1.0), (1e-300, 1e300)]
)
def test_odd_values_can_be_drawn(medians: Any) -> None:
    svg = sweep_figure(analyse(grid(*medians), ["opt.lr"], "min")).picture(".svg").decode()
    assert not re.search("NaN|Infinity|undefined", svg)
