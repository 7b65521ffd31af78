"""Sensitivity: medians, quartiles, intervals, divergence, usable ranges and edges by hand; readable files."""

import csv
import json
import math
import re
from pathlib import Path

import altair as alt
import numpy as np
import pytest
from PIL import Image

from bench.api.results import Sweep
from bench.api.runs import Runs
from bench.errors import UserError
from bench.plots.sweep import sweep_spec
from bench.plots.theme import picture
from bench.results.selection import good_range
from bench.store.record import RunResult
from bench.sweeps.sensitivity import Curve, Point, Sensitivity, analyse, as_json, lines, write
from tests.conftest import Cli

SEEDS = 6


def run(opt="gd", seed=0, final=None, status=None, metric="loss", split="train", **settings) -> RunResult:
    """A run; settings are named `opt__lr` or `task__sigma`."""
    groups: dict[str, dict] = {"opt": {}, "task": {}}
    for name, value in settings.items():
        group, _, option = name.partition("__")
        groups[group][option] = value
    config = {
        "task": "synthetic",
        "opt": opt,
        "opt_options": groups["opt"],
        "task_options": groups["task"],
        "trainer": {"max_steps": 100, "max_seconds": None},
        "seed": seed,
        "data_seed": seed,
        "device": "cpu",
    }
    name = f"synthetic-{opt}-{seed}-" + "-".join(map(str, settings.values()))
    status = status or ("diverged" if final is None else "completed")
    return RunResult(
        name,
        config,
        status,
        metric=metric,
        split=split,
        final=final,
        best=final,
        environment={"cpu": "A fine CPU", "gpu": None},
        versions={"torch": "2.15.0"},
    )


def at(lr: float, *finals: float | None, opt="gd", **rest) -> list[RunResult]:
    return [run(opt, seed, final, opt__lr=lr, **rest) for seed, final in enumerate(finals)]


def grid(*medians: float | None, first=0.1) -> list[RunResult]:
    """One seed at each of the learning rates 0.1, 0.2, 0.4, ..."""
    return [one for i, median in enumerate(medians) for one in at(first * 2**i, median)]


def only(results, varied=("opt.lr",), mode="min") -> Curve:
    (curve,) = analyse(results, varied, mode).curves
    return curve


def point(*finals: float | None, mode="min") -> Point:
    (one,) = only(at(0.1, *finals), mode=mode).points
    return one


# -- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finals", "mode", "diverged", "median", "quartiles"),
    [
        ([3.0, 1.0, 2.0], "min", 0, 2, (1, 3)),
        ([4.0, 1.0, 3.0, 2.0], "min", 0, 2.5, (1.5, 3.5)),
        ([1.0], "min", 0, 1, (1, 1)),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "min", 0, 4.5, (2.5, 6.5)),
        ([1.0, 2.0, 3.0, None], "min", 1, 2.5, (1.5, 3)),  # one of the pair around the upper quartile diverged
        ([1.0, 2.0, 3.0, None, None], "min", 2, 3, (2, None)),
        ([1.0, 2.0, None, None], "min", 2, 2, (1.5, None)),  # exactly half
        ([1.0, None, None], "min", 2, None, (1, None)),
        ([None, None], "min", 2, None, (None, None)),
        ([0.5, 0.7, 0.9, None], "max", 1, 0.6, (0.5, 0.8)),
        ([0.5, 0.7, None, None], "max", 2, 0.5, (None, 0.6)),
        ([0.9, None, None], "max", 2, None, (None, 0.9)),
        ([0.0, 0.0, 0.0], "max", 0, 0, (0, 0)),
    ],
)
def test_median_and_quartiles_with_divergence_as_worst(finals, mode, diverged, median, quartiles):
    one = point(*finals, mode=mode)
    assert (one.seeds, one.diverged) == (len(finals), diverged)
    assert one.median == (None if median is None else pytest.approx(median))
    assert one.quartiles == tuple(None if q is None else pytest.approx(q) for q in quartiles)
    assert "-0" not in str(one.median)


@pytest.mark.parametrize(("n", "k"), [(5, 0), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (32, 10), (100, 40)])
def test_the_interval_is_of_the_order_statistics_that_tables_give(n, k):
    one = point(*map(float, range(1, n + 1)))
    assert one.interval == ((k, n + 1 - k) if k else None)
    covered = sum(math.comb(n, i) for i in range(k, n - k + 1)) / 2**n
    assert covered >= 0.95
    assert sum(math.comb(n, i) for i in range(k + 1, n - k)) / 2**n < 0.95


@pytest.mark.parametrize(("mode", "interval"), [("min", (1, None)), ("max", (None, 5))])
def test_an_interval_may_end_in_divergence(mode, interval):
    assert point(1.0, 2.0, 3.0, 4.0, 5.0, None, mode=mode).interval == interval


def test_suboptimality_gaps_are_usable_up_to_twice_the_best():
    assert good_range([9, 2, 1, 2.001, 1], "min", 2, gap=True) == (1, 2)
    assert good_range([9, 2, 1, 1.05, 1.06], "min", 2) == (2, 3)
    assert good_range([0.1, 0, 0.1], "min", 1, gap=True) == (1, 1)


@pytest.mark.parametrize(
    ("medians", "mode", "best", "usable", "at_edge", "may_be_wider"),
    [
        ([9, 1.05, 1, 1.05, 9], "min", 2, (1, 3), False, False),
        ([9, 1.06, 1, 1.05, 9], "min", 2, (2, 3), False, False),
        ([1.04, 9, 1, 1.04, 9], "min", 2, (2, 3), False, False),  # the range is contiguous
        ([3, 1.05, 1], "min", 2, (1, 2), True, True),
        ([1, 3, 9], "min", 0, (0, 0), True, True),
        ([9, 1, 1.04], "min", 1, (1, 2), False, True),
        ([9, 1, None, 1.02], "min", 1, (1, 1), False, False),
        ([5, 1, 1, 1, 5], "min", 2, (1, 3), False, False),  # the middle one of equals
        ([5, 1, 1, 5], "min", 1, (1, 2), False, False),
        ([1, 1, 1], "min", None, None, False, False),
        ([0.1, 0, 0.1], "min", 1, (1, 1), False, False),
        ([-1, -2, -1.9], "min", 1, (1, 2), False, True),
        ([0.5, 0.96, 1, 0.94, 0.99], "max", 2, (1, 2), False, False),
        ([0.5, 0.8, None], "max", 1, (1, 1), False, False),
    ],
)
def test_best_usable_range_and_edge(medians, mode, best, usable, at_edge, may_be_wider):
    curve = only(grid(*medians), mode=mode)
    assert (curve.best, curve.usable) == (best, usable)
    assert (curve.at_edge, curve.may_be_wider) == (at_edge, may_be_wider)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_half_diverged_shows_a_median_that_cannot_win(mode):
    good, bad = (0.1, 5.0) if mode == "min" else (5.0, 0.1)
    curve = only([*at(0.1, bad, bad), *at(0.2, bad, bad), *at(0.4, good, good, None, None)], mode=mode)
    assert [p.median for p in curve.points] == [bad, bad, good]
    assert (curve.best, curve.usable) == (0, (0, 1))


@pytest.mark.parametrize("few", [(None, 1.0, None), (None, 1.0)])
def test_nothing_is_best_where_half_diverged_or_more(few):
    curve = only([*at(0.1, None, None), *at(0.2, *few)])
    assert (curve.best, curve.usable, curve.at_edge, curve.may_be_wider) == (None, None, False, False)
    assert lines(analyse(at(0.2, *few), ["opt.lr"], "min"))[-2].startswith(
        "no best: half of the seeds or more diverged"
    )


# -- axes and curves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "log"), [((1.0, 9.0), False), ((1.0, 10.0), True), ((0.0, 100.0), False), ((1, 20), True)]
)
def test_x_is_logarithmic_over_a_positive_decade(values, log):
    assert analyse([one for v in values for one in at(v, 1.0)], ["opt.lr"], "min").log == log


@pytest.mark.parametrize("varied", [["opt.lr", "opt.momentum"], ["opt", "opt.lr", "opt.momentum", "task.recipe"]])
def test_further_settings_make_curves_of_their_own(varied):
    results = [r for m in (0.0, 0.9) for lr in (0.1, 0.2) for r in at(lr, 1.0, opt__momentum=m, task__recipe="plain")]
    sweep = analyse(results, varied, "min")
    assert (sweep.x, sweep.numeric) == ("opt.lr", True)
    assert [curve.name for curve in sweep.curves] == ["gd, momentum 0", "gd, momentum 0.9"]


def test_hyperparameters_by_role_and_of_the_rest_keep_their_names():
    results = [r for m in (0.1, 0.2) for lr in (0.1, 0.2) for r in at(lr, 1.0, **{"opt__rest.lr": m})]
    sweep = analyse(results, ["opt.lr", "opt.rest.lr"], "min")
    assert [curve.name for curve in sweep.curves] == ["gd, rest.lr 0.1", "gd, rest.lr 0.2"]
    alone = [run(final=1.0, **{"opt__vector.lr": lr}) for lr in (0.1, 0.2)]
    assert analyse(alone, ["opt.vector.lr"], "min").x == "opt.vector.lr"


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize(
    ("values", "xs"),
    [
        (("plain", "augmented"), ["plain", "augmented"]),
        ((True, False), ["True", "False"]),
        (([0.9, 0.99], [0.9, 0.999]), ["[0.9, 0.99]", "[0.9, 0.999]"]),
        ((0.5, "inf"), ["0.5", "inf"]),
        ((None, 3), ["None", "3"]),
    ],
)
def test_words_keep_their_order_and_have_no_range(values, xs, tmp_path):
    results = [run(seed=s, final=1.0 + i, task__recipe=v) for i, v in enumerate(values) for s in range(SEEDS)]
    sweep = analyse(results, ["task.recipe"], "min")
    (curve,) = sweep.curves
    assert not sweep.numeric
    assert [p.x for p in curve.points] == xs
    assert (curve.best, curve.usable, curve.at_edge) == (0, None, False)
    assert sweep_spec(sweep)["vconcat"][1]["encoding"]["x"]["sort"] == xs
    write(tmp_path, sweep)


def test_runs_that_have_not_ended_are_left_out_and_named():
    unended = [run(seed=9, status=status, opt__lr=0.1) for status in ("failed", "killed", "killed")]
    unended[0].metric = unended[0].split = ""
    late = [run(seed=5, final=3.0, status="timeout", opt__lr=0.1)]
    sweep = analyse([*unended, *at(0.1, 1.0, 2.0), *late], ["opt.lr"], "min")
    assert (sweep.curves[0].points[0].seeds, sweep.curves[0].points[0].diverged) == (3, 0)
    assert sweep.metric == "train loss"
    assert lines(sweep)[-2:] == [
        "note: unfinished runs excluded: 1 failed, 2 killed",
        "note: runs with values at the time limit: 1",
    ]
    with pytest.raises(UserError, match="none of the 3 runs of the sweep has finished"):
        analyse(unended, ["opt.lr"], "min")


# -- words and files ------------------------------------------------------------------------------------------------


def realistic(mode="min", seeds=SEEDS) -> Sensitivity:
    """Losses that fall with the learning rate until runs diverge; accuracies computed from them."""
    draw, results = np.random.default_rng(0), []
    for opt, limit in (("ngd", 3.0), ("ps", 30.0), ("gd", 1.0), ("adam", 0.1)):
        for lr in np.geomspace(1e-3, 10, 9):
            loss = 0.7 / (1 + 100 * lr / limit) * np.exp(draw.normal(0, 0.3, seeds))
            lost = lr * np.exp(draw.normal(0, 0.7, seeds)) > limit
            finals = loss if mode == "min" else 1 - loss
            results += at(
                float(lr), *(None if gone else float(x) for x, gone in zip(finals, lost, strict=True)), opt=opt
            )
    for one in results:
        one.metric, one.split = ("loss", "train") if mode == "min" else ("accuracy", "test")
    return analyse(results, ["opt.lr"], mode)


def test_the_table_reads_like_this():
    sweep = analyse(
        [*at(0.1, *[4.0] * 6), *at(0.2, 1.0, 2.0, 3.0, 4.0, 5.0, None), *at(0.4, 9.0, *[None] * 5)], ["opt.lr"], "min"
    )
    assert lines(sweep) == [
        "gd",
        "   opt.lr  median train loss  middle half of the seeds  95 % interval  diverged",
        "      0.1                  4                    [4, 4]         [4, 4]       0/6",
        "*     0.2                3.5                    [2, 5]  [1, diverged]       1/6",
        "      0.4           diverged      [diverged, diverged]  [9, diverged]       5/6",
        "best opt.lr 0.2: median train loss 3.5, 95 % interval [1, diverged] (6 seeds, which also chose it)",
        "usable opt.lr (median at most 5% above the best; our rule): that value alone, on this grid",
        "",
    ]


def test_the_closing_lines_say_what_the_grid_cannot():
    *_, edge, empty = lines(analyse(grid(8, 4, 1), ["opt.lr"], "min"))
    assert (edge, empty) == ("the best value is at the edge of the grid: widen it", "")
    text = "\n".join(lines(analyse(grid(9, 1, 9), ["opt.lr"], "min")))
    assert "that value alone, on this grid" in text
    assert "edge" not in text
    text = "\n".join(lines(analyse(grid(0.1, 0.9, 0.88, 0.1), ["opt.lr"], "max")))
    assert "(median at most 5% below the best; our rule): 0.2 to 0.4, a factor of 2" in text
    assert "no best: half of the seeds or more diverged at every opt.lr" in lines(
        analyse(grid(None, None), ["opt.lr"], "min")
    )


def test_a_quasi_random_design_is_one_series_without_lines():
    design = [(0.1, 3.0, 1.0), (0.4, 1.0, 2.0), (0.1, 2.0, 5.0)]
    results = [run("sps", 0, final, opt__lr=lr, opt__c=c) for lr, c, final in design] + grid(4.0, 3.0)
    sweep = analyse(results, ["opt.lr", "opt.c"], "min")
    scattered, line = sweep.curves
    assert [(p.x, p.others, p.median) for p in scattered.points] == [
        (0.1, {"opt.c": 3.0}, 1.0),
        (0.1, {"opt.c": 2.0}, 5.0),
        (0.4, {"opt.c": 1.0}, 2.0),
    ]
    assert (scattered.name, scattered.best, scattered.usable, scattered.joined) == ("sps", 0, None, False)
    assert (line.name, line.usable is not None, line.joined) == ("gd", True, True)
    text = "\n".join(lines(sweep))
    assert re.search(r"^\*     +0.1 +3 +1 ", text, re.MULTILINE), text
    assert "best opt.lr 0.1, opt.c 3: median train loss 1" in text
    chart = sweep_spec(sweep)
    assert {(row["name"], row["joined"]) for row in chart["data"]["values"]} == {("sps", False), ("gd", True)}
    assert "Points without a line differ in further settings." in " ".join(chart["title"]["text"])
    assert Sweep(Runs([]), sweep).best == {"sps": {"opt.lr": 0.1, "opt.c": 3.0}, "gd": 0.2}
    failed = run("sps", 0, None, "failed", opt__lr=0.2, opt__c=7.0)
    assert analyse([*results, failed], ["opt.lr", "opt.c"], "min").curves[0].unscored == {"0.2, c 7": "failed"}
    # A grid of which one value of each c is finished is not such a design.
    begun = [run("sps", 0, 1.0, opt__lr=lr, opt__c=c) for lr, c in ((0.1, 1.0), (0.2, 2.0))]
    left = [run("sps", 0, None, "killed", opt__lr=lr, opt__c=c) for lr, c in ((0.2, 1.0), (0.1, 2.0))]
    names = [curve.name for curve in analyse([*begun, *left], ["opt.lr", "opt.c"], "min").curves]
    assert names == ["sps, c 1", "sps, c 2"]


def test_settings_whose_cap_sets_the_step_are_marked():
    results = grid(1.0, 2.0, 3.0)
    results[0].cap_share, results[1].cap_share = 0.99, 0.5
    curve = only(results)
    assert (curve.best, [point.capped for point in curve.points]) == (1, [True, False, False])
    text = "\n".join(lines(analyse(results, ["opt.lr"], "min")))
    assert re.search(r"^cap   +0.1 +1 ", text, re.MULTILINE), text
    assert "1 setting excluded from the choice (cap): the cap set more than 90% of the steps" in text


def test_json_is_strict_and_says_what_the_table_says():
    sweep = analyse([*at(0.1, 1.0, 2.0), *at(0.2, None, None)], ["opt.lr"], "min")
    assert json.loads(json.dumps(as_json(sweep), allow_nan=False)) == {
        "x": "opt.lr", "varied": ["opt.lr"], "metric": "train/loss", "mode": "min",
        "runs": {"completed": 2, "diverged": 2},
        "curves": [{
            "name": "gd", "opt": "gd", "x": "opt.lr", "best": 0, "usable": [0, 0], "at_edge": True,
            "may_be_wider": True,
            "unscored": {}, "points": [
                {"x": 0.1, "seeds": 2, "diverged": 0, "median": 1.5, "quartiles": [1, 2], "interval": None,
                 "choice": None, "capped": False, "saturated": 0, "others": {}},
                {"x": 0.2, "seeds": 2, "diverged": 2, "median": None, "quartiles": [None, None], "interval": None,
                 "choice": None, "capped": False, "saturated": 0, "others": {}},
            ],
        }],
    }  # fmt: skip


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("mode", ["min", "max"])
def test_files_are_written_and_the_same_every_time(tmp_path, mode):
    sweep = realistic(mode)
    paths = write(tmp_path / "new" / "folder", sweep, "bench sweep --task synthetic")
    assert [path.name for path in paths] == [f"sensitivity.{kind}" for kind in ("md", "csv", "png", "pdf")]
    md, table, png, pdf = paths
    with Image.open(png) as image:
        image.load()
        assert image.width > 900
    assert pdf.read_bytes().startswith(b"%PDF")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(sweep.results)
    names = ["opt", "opt.lr", "seed", "status", "final", "best", "steps_to_target", "run_id", "final_excess"]
    assert list(rows[0]) == names
    for row, result in zip(rows, sweep.results, strict=True):
        assert float(row["opt.lr"]) == result.config["opt_options"]["lr"]
        assert (float(row["final"]) if row["final"] else None) == result.final
        assert row["run_id"] == result.run_id
    text = md.read_text("utf-8")
    for words in (
        "Made by `bench sweep --task synthetic`",
        "216 runs, seeds 0 to 5",
        "Machine: A fine CPU (216 runs)",
        "torch: 2.15.0 (216 runs)",
        "Engine: lightning (216 runs)",
        "--task synthetic --device cpu --trainer.max_steps 100",
        "chosen on these seeds",
        "## adam",
        "best opt.lr",
    ):
        assert words in text
    assert {row.count("|") for row in re.findall(r"^\|.*", text, re.M)} == {7}
    again = write(tmp_path / "again", sweep, "bench sweep --task synthetic")
    assert [path.read_bytes() for path in again[:3]] == [path.read_bytes() for path in paths[:3]]


def test_a_loss_whose_infimum_is_known_is_shown_above_it():
    results = at(0.1, 1.25, 1.5) + at(1.0, 1.125, 1.25)
    for result in results:
        result.metrics = {"final": {"loss": result.final, "excess": result.final - 1}}
    sweep = analyse(results, ["opt.lr"], "min")
    assert sweep.metric == "train loss (suboptimality gap)"
    assert [point.median for point in sweep.curves[0].points] == [0.375, 0.1875]
    for result, excess in zip(results, [1e-30, 1e-30, 1e-17, 1e-20], strict=True):
        result.metrics["final"]["excess"] = excess
    (curve,) = analyse(results, ["opt.lr"], "min").curves
    assert (curve.best, curve.usable) == (None, None)  # equals
    del results[0].metrics["final"]["excess"]  # a record without it
    assert analyse(results, ["opt.lr"], "min").metric == "train loss"


# -- the figure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "scale"), [("min", "log"), ("max", None)])
def test_the_figure_shows_medians_and_shares(mode, scale):
    sweep = realistic(mode)
    chart = sweep_spec(sweep)
    alt.Chart.from_dict(chart, validate=True)
    above, below = chart["vconcat"]
    y = above["layer"][0]["encoding"]["y"]
    assert (above["encoding"]["x"]["scale"]["type"], y["scale"].get("type")) == ("log", scale)
    for curve in sweep.curves:
        rows = [row for row in chart["data"]["values"] if row["name"] == curve.name]
        assert [row["y"] for row in rows] == [pytest.approx(point.median) for point in curve.points]
        assert [row["share"] for row in rows] == [p.diverged / p.seeds for p in curve.points]
        assert [row["best"] for row in rows] == [i == curve.best for i in range(len(rows))]
    metric = "train loss" if mode == "min" else "test accuracy"
    assert " ".join(y["axis"]["title"]) == f"{metric} at the last step"
    assert below["encoding"]["x"]["axis"]["title"] == ["opt.lr"]


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize(
    "medians",
    [
        (None, None),
        (0.0, 0.0),
        (1e305, 1e306),
        (1e-320, 1.0),
        (5e-324, 0.0),
        (-3.0, 4.0),
        (1.0, None, 1.0),
        (1e-300, 1e300),
    ],
)
def test_odd_values_can_be_drawn(medians, tmp_path):
    sweep = analyse(grid(*medians), ["opt.lr"], "min")
    write(tmp_path, sweep)
    svg = picture(sweep_spec(sweep), ".svg").decode()
    assert ("no median" in svg) == (medians == (None, None))
    assert not re.search("NaN|Infinity|undefined", svg)


@pytest.mark.deep
def test_optimizers_that_vary_different_settings_go_over_their_own(tmp_path):
    results = at(0.1, 2.0) + at(1.0, 1.0)
    results += at(1.0, 3.0, opt="sps", opt__max_step=0.5) + at(1.0, 4.0, opt="sps", opt__max_step=5.0)
    sweep = analyse(results, ["opt.lr", "opt.max_step"], "min")
    assert [(c.name, c.x, [p.x for p in c.points], c.best) for c in sweep.curves] == [
        ("gd", "opt.lr", [0.1, 1.0], 1),
        ("sps", "opt.max_step", [0.5, 5.0], 0),
    ]
    assert sweep.x == "opt.lr or opt.max_step"
    assert "best opt.max_step 0.5: median train loss 3" in "\n".join(lines(sweep))
    assert all(path.is_file() for path in write(tmp_path, sweep))


def test_the_selection_split_chooses_and_the_other_is_shown():
    results = at(0.1, 0.5, 0.6, opt="gd") + at(1.0, 0.4, 0.4, opt="gd")  # better on the test set
    for result, value in zip(results, (0.1, 0.2, 0.3, 0.3), strict=True):
        result.validations = [{"step": 1, "train_s": 0.0, result.metric: value}]
    sweep = analyse(results, ["opt.lr"], "min")
    (curve,) = sweep.curves
    assert [(p.median, round(p.choice, 6)) for p in curve.points] == [(0.55, 0.15), (0.4, 0.3)]
    assert (curve.best, curve.usable) == (0, (0, 0))
    assert any("chosen by the median selection score" in line for line in lines(sweep))


FAILS = """
import torch
class Fails(torch.optim.SGD):
    def step(self, closure=None):
        if self.param_groups[0]["lr"] > 0.5:
            raise RuntimeError("too large")
        return super().step(closure)
"""


def test_failed_runs_are_listed_and_are_no_edge(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fails.py").write_text(FAILS, "utf-8")
    words = ("--task", "synthetic", "--opt", "fails.py:Fails", "--opt.lr", "0.1,0.3,1", "--trainer.max_steps", 5)
    answer = cli("sweep", *words, "--seeds", 1, "--engine", "lightning", "-o", "swept")
    assert answer.code == 1
    assert "note: unfinished runs excluded: 1 failed" in answer.out
    assert "at the edge of the grid" not in answer.out
    assert len(Path("swept/sensitivity.csv").read_text("utf-8").splitlines()) == 4
