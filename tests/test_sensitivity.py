"""Sensitivity: medians, quartiles, intervals, divergence, usable ranges and edges by hand; readable files."""

import csv
import errno
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from bench.api.results import Sweep
from bench.api.runs import Runs
from bench.errors import UserError
from bench.results import draw
from bench.results.selection import good_range
from bench.store.record import RunResult
from bench.sweeps import sensitivity
from bench.sweeps.sensitivity import Curve, Point, Sensitivity, analyse, as_json, lines, write
from bench.sweeps.sensitivity_plot import describe
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


def make(sweep: Sensitivity) -> Figure:
    return draw.make(describe(sweep))


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


def test_a_run_that_diverged_counts_as_worst_even_if_it_has_a_value():
    results = [run(seed=0, final=1e-9, status="diverged", opt__lr=1.0), run(seed=1, final=2.0, opt__lr=1.0)]
    one = only(results).points[0]
    assert (one.diverged, one.median) == (1, 2.0)


def test_a_completed_run_without_a_value_counts_as_diverged():
    assert only([run(status="completed", opt__lr=1.0)]).points[0].diverged == 1


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


def test_thousands_of_seeds_are_no_trouble():
    assert point(*map(float, range(3000))).interval == (1445, 1554)


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


def test_the_best_has_less_than_half_of_its_seeds_diverged():
    curve = only([*at(0.1, 5.0, 6.0, 7.0), *at(0.2, 0.1, None, None), *at(0.4, 4.0, 4.0, None)])
    assert [p.median for p in curve.points] == [6, None, 4]
    assert curve.best == 2


@pytest.mark.parametrize("mode", ["min", "max"])
def test_if_exactly_half_diverged_the_median_is_shown_but_not_chosen_nor_usable(mode):
    good, bad = (0.1, 5.0) if mode == "min" else (5.0, 0.1)
    curve = only([*at(0.1, bad, bad), *at(0.2, bad, bad), *at(0.4, good, good, None, None)], mode=mode)
    assert [p.median for p in curve.points] == [bad, bad, good]
    assert (curve.best, curve.usable) == (0, (0, 1))


def test_a_point_is_not_chosen_where_half_diverged_though_the_others_were_evaluated():
    results = [*at(0.1, 5.0, 5.0), *at(0.2, 0.1, None)]
    for result in results:
        result.validations = [{"step": 1, "train_s": 0.0, "loss": 0.01 if result.final is None else result.final / 2}]
    curve = only(results)
    assert [(p.median, p.choice) for p in curve.points] == [(5, 2.5), (0.1, None)]
    assert curve.best == 0


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
def test_x_is_logarithmic_where_it_is_positive_and_spans_a_decade(values, log):
    assert analyse([one for v in values for one in at(v, 1.0)], ["opt.lr"], "min").log == log


def test_x_is_in_order_and_curves_are_in_the_order_of_the_runs():
    sweep = analyse([*at(0.4, 1.0, opt="ngd"), *at(0.1, 1.0, opt="ngd"), *at(0.2, 1.0, opt="gd")], ["opt.lr"], "min")
    assert [(curve.name, [p.x for p in curve.points]) for curve in sweep.curves] == [("ngd", [0.1, 0.4]), ("gd", [0.2])]


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


def test_a_setting_of_one_value_is_passed_over_as_x():
    results = [run(seed=s, final=v, opt__lr=0.1, task__sigma=v) for v in (1.0, 2.0) for s in range(2)]
    sweep = analyse(results, ["opt.lr", "task.sigma"], "min")
    assert sweep.x == "task.sigma"
    assert [p.x for p in sweep.curves[0].points] == [1, 2]


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
def test_words_are_in_the_order_of_the_runs_and_have_no_range(values, xs, tmp_path):
    results = [run(seed=s, final=1.0 + i, task__recipe=v) for i, v in enumerate(values) for s in range(SEEDS)]
    sweep = analyse(results, ["task.recipe"], "min")
    (curve,) = sweep.curves
    assert not sweep.numeric
    assert [p.x for p in curve.points] == xs
    assert (curve.best, curve.usable, curve.at_edge) == (0, None, False)
    assert [text.get_text() for text in make(sweep).axes[1].get_xticklabels()] == xs
    write(tmp_path, sweep)


def test_numbers_are_preferred_to_words_that_come_first():
    results = [r for recipe in ("a", "b") for lr in (0.1, 0.2) for r in at(lr, 1.0, task__recipe=recipe)]
    sweep = analyse(results, ["task.recipe", "opt.lr"], "min")
    assert (sweep.x, [curve.name for curve in sweep.curves]) == ("opt.lr", ["gd, recipe a", "gd, recipe b"])


@pytest.mark.parametrize("varied", [[], ["opt"]])
def test_optimizers_alone_can_be_compared(varied, tmp_path):
    sweep = analyse([*at(0.1, 1.0, 2.0), *at(0.1, 3.0, opt="adam")], varied, "min")
    assert [(curve.name, curve.points[0].x) for curve in sweep.curves] == [("gd", "gd"), ("adam", "adam")]
    write(tmp_path, sweep)


def test_a_single_value_and_seed_has_a_table_and_a_figure(tmp_path):
    sweep = analyse(at(0.1, 1.5), ["opt.lr"], "min")
    assert sweep.curves[0] == Curve("gd", "opt.lr", [Point(0.1, 1, 0, 1.5, (1.5, 1.5), None)], 0, None, opt="gd")
    assert lines(sweep)[-2] == "best opt.lr 0.1: median train loss 1.5"
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


def test_the_table_shows_the_score_that_chose_the_best():
    results = [*at(0.1, 5.0, 5.0), *at(0.2, 1.0, 1.0), *at(0.4, 9.0, None)]
    for result, score in zip(results, (1.0, 1.0, 3.0, 3.0, 9.0, 9.0), strict=True):
        result.validations = [{"step": 1, "train_s": 0.0, "loss": score}]
    text = lines(analyse(results, ["opt.lr"], "min"))
    assert text[1].endswith("diverged  median selection score")
    assert [line.split()[-1] for line in text[2:5]] == ["1", "3", "-"]
    assert text[2].startswith("*")
    assert text[5].startswith("best opt.lr 0.1 (median selection score 1): median train loss 5")
    assert text[6].startswith("usable opt.lr (median selection score at most 5% above the best; our rule): that value")
    assert text[-1] == (
        "note: the best value was chosen by the median selection score: the last evaluation during training, on the"
        " selection split"
    )


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
    above = describe(sweep).panels[0].traces
    assert [trace.joined for trace in above] == [False, True]
    assert "Points without a line differ in further settings." in describe(sweep).caption
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
        assert image.width == 990
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
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_mixed_machines_and_engines_are_counted():
    results = at(0.1, 1.0, 2.0, 3.0)
    results[0].environment = {"cpu": "other", "gpu": "H200"}
    results[1].environment = {}
    results[2].engine = "lanes"
    text = sensitivity._page(analyse(results, ["opt.lr"], "min"), "c")
    assert "Machine: other, H200 (1 run), unknown (1 run), A fine CPU (1 run)." in text
    assert "Engine: lightning (2 runs), lanes (1 run)." in text


@pytest.mark.parametrize(("mode", "best"), [("min", "smallest"), ("max", "largest")])
def test_the_caption_below_the_figure_explains_the_star(mode, best):
    text = sensitivity._page(analyse(at(0.1, 1.0, 2.0), ["opt.lr"], mode), "c")
    caption = text[text.index("![figure]") : text.index("\n## ")].splitlines()[2]
    assert caption.startswith(f"`*` marks the best opt.lr, with the {best} median")
    text = sensitivity._page(analyse(at(0.1, 1e-20, 1e-18), ["opt.lr"], "min"), "c")
    caption = text[text.index("![figure]") : text.index("\n## ")].splitlines()[2]
    assert caption.endswith(
        "; suboptimality gaps below 1e-16 count as equal, and the middle of equal values counts as best (our rule)."
    )


@pytest.mark.parametrize(("metric", "said"), [("loss", True), ("error", False)])
def test_only_losses_below_rounding_are_said_to_count_as_equal(metric, said):
    sweep = analyse([*at(0.1, 0.0, metric=metric), *at(0.2, 0.5, metric=metric)], ["opt.lr"], "min")
    assert any("count as equal" in line for line in lines(sweep)) == said


def test_a_read_only_folder_is_named_with_its_option(tmp_path):
    sweep = analyse(at(0.1, 1.0), ["opt.lr"], "min")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=rf"cannot write to {tmp_path}/file: .*--out DIR"):
        write(tmp_path / "file", sweep)


@pytest.mark.parametrize("kind", ["md", "csv", "png", "pdf"])
def test_a_full_disk_is_told_in_one_sentence(tmp_path, kind, monkeypatch):
    whole = Path.open

    def full(self, *args, **kwargs):
        if self.suffix == f".{kind}":
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match=rf"cannot write to {tmp_path}: No space left on device; .*--out DIR"):
        write(tmp_path, analyse(at(0.1, 1.0), ["opt.lr"], "min"))


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


@pytest.mark.parametrize(("mode", "scale"), [("min", "log"), ("max", "linear")])
def test_the_figure_shows_medians_and_shares(mode, scale):
    sweep = realistic(mode)
    above, below = make(sweep).axes
    assert (above.get_xscale(), above.get_yscale(), below.get_yscale()) == ("log", scale, "linear")
    drawn = [line for line in above.get_lines() if len(line.get_xdata()) == 9]
    for curve, line, share in zip(sweep.curves, drawn, below.get_lines(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), [math.nan if p.median is None else p.median for p in curve.points])
        np.testing.assert_allclose(share.get_ydata(), [p.diverged / p.seeds for p in curve.points])
        assert line.get_label() == curve.name
    assert len({(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in drawn}) == 4
    metric = "train loss" if mode == "min" else "test accuracy"
    assert above.get_ylabel().replace("\n", " ") == f"{metric} at the last step"
    assert below.get_xlabel() == "opt.lr"


def test_nothing_is_too_small_outside_or_over_the_data():
    figure = make(realistic())
    figure.draw_without_rendering()
    assert min(text.get_fontsize() for text in figure.findobj(Text)) >= 7
    caption = next(text for text in figure.texts if text.get_text().startswith("Lines"))
    parts = [caption, figure.axes[1], figure.axes[0], figure.legends[0]]
    boxes = [part.get_tightbbox() if hasattr(part, "get_xlim") else part.get_window_extent() for part in parts]
    assert boxes[0].y0 >= 0
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))
    assert boxes[-1].y1 <= figure.bbox.y1


@pytest.mark.parametrize("opposite", [False, True])
def test_a_band_goes_on_to_the_edge_where_a_quartile_diverged(opposite):
    mode, finals = ("max", (0.5, 0.6)) if opposite else ("min", (5.0, 6.0))
    figure = make(analyse([*at(0.1, *finals), *at(0.2, *finals, None)], ["opt.lr"], mode))
    above = figure.axes[0]
    (band,) = above.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min() if opposite else heights.max()) == above.get_ylim()[0 if opposite else 1]


def test_zero_losses_lie_on_the_lower_edge_of_a_logarithmic_axis():
    figure = make(analyse(grid(1.0, 1e-3, 0.0), ["opt.lr"], "min"))
    above = figure.axes[0]
    assert above.get_yscale() == "log"
    assert above.get_lines()[0].get_ydata()[2] == above.get_ylim()[0]
    assert "Values of 0" in figure.get_supxlabel()


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
    assert bool(make(sweep).axes[0].texts) == (medians == (None, None))


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("xs", [(0.1, 1e6, 1e300), (1e-320, 1e-300, 1.0), (5e-324, 1.7e308)])
def test_odd_settings_can_be_drawn(xs, tmp_path):
    sweep = analyse([result for i, x in enumerate(xs) for result in at(x, i + 1.0)], ["opt.lr"], "min")
    assert all(path.is_file() for path in write(tmp_path, sweep))
    assert len(make(sweep).axes[0].get_lines()[0].get_xdata()) == len(xs)


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


def test_the_best_is_chosen_on_the_selection_split_and_shown_on_the_other():
    results = at(0.1, 0.5, 0.6, opt="gd") + at(1.0, 0.4, 0.4, opt="gd")  # better on the test set
    for result, value in zip(results, (0.1, 0.2, 0.3, 0.3), strict=True):
        result.validations = [{"step": 1, "train_s": 0.0, result.metric: value}]
    sweep = analyse(results, ["opt.lr"], "min")
    (curve,) = sweep.curves
    assert [(p.median, round(p.choice, 6)) for p in curve.points] == [(0.55, 0.15), (0.4, 0.3)]
    assert (curve.best, curve.usable) == (0, (0, 0))
    assert any("chosen by the median selection score" in line for line in lines(sweep))


def test_the_learning_rate_is_the_axis_before_other_settings():
    results = [run("gd", 0, 1.0, opt__lr=lr, task__d=d) for lr in (0.1, 1.0) for d in (2, 4)]
    sweep = analyse(results, ["task.d", "opt.lr"], "min")
    assert (sweep.x, sweep.log, [curve.name for curve in sweep.curves]) == ("opt.lr", True, ["gd, d 2", "gd, d 4"])


FAILS = """
import torch
class Fails(torch.optim.SGD):
    def step(self, closure=None):
        if self.param_groups[0]["lr"] > 0.5:
            raise RuntimeError("too large")
        return super().step(closure)
"""


def test_failed_runs_of_a_sweep_are_in_its_table_and_are_no_edge(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fails.py").write_text(FAILS, "utf-8")
    words = ("--task", "synthetic", "--opt", "fails.py:Fails", "--opt.lr", "0.1,0.3,1", "--trainer.max_steps", 5)
    answer = cli("sweep", *words, "--seeds", 1, "--engine", "lightning", "-o", "swept")
    assert answer.code == 1
    assert "note: unfinished runs excluded: 1 failed" in answer.out
    assert "at the edge of the grid" not in answer.out
    assert len(Path("swept/sensitivity.csv").read_text("utf-8").splitlines()) == 4
