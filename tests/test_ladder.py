"""`bench ladder`: rungs, budgets, predictions before their rungs, interruptions, and the page from stored rungs."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cli import main
from bench.errors import RunFailed, UserError
from bench.execute import Effort
from bench.grammar.commands import parse as parse_command
from bench.grammar.parse import Args
from bench.ladder import show
from bench.ladder.cli import _asked, _plan
from bench.ladder.findings import _is_same, _usable, findings, scores, was_before
from bench.ladder.rungs import Ladder, begun, climb, winners_of
from bench.ladder.show import boards, charts, cut, verdict
from bench.ladder.sizes import Rule, Size, in_words, rule_of, sizes_of
from bench.ladder.statistics import Estimate, StepRatio
from bench.results.chart import caption
from bench.results.stats import Interval
from bench.store.load import Damaged, parse
from bench.store.merge import merge
from bench.store.reports import LadderRecord, study_path
from bench.store.stores import Stores
from bench.tuning.studies import Studies
from bench.tuning.suite import Suite, carry_out
from bench.tuning.worker import Worker
from tests.conftest import Cli
from tests.daemons import until

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "results" / "ladder"
WORDS = {"task": "synthetic", "trainer.max_steps": 10, "device": "cpu"}


class Here:
    """Trains in this process."""

    def __init__(self, places: dict[str, Path]) -> None:
        self.places = places

    def work(self, studies: Any, progress: Any) -> bool:
        """Work until no trial is left."""
        return Worker(self.places, lambda event: None, Effort("lanes", 16)).work(studies)


def places_in(folder: Path) -> dict[str, Path]:
    return {"data": folder / "data", "store": folder / "store"}


def ladder_of(**changes: Any) -> Ladder:
    words = {name: value for name, value in WORDS.items() if name != "task"}
    usual = Ladder(
        "synthetic", ["gd", "adam"], "gd", words, {"gd": {}, "adam": {}},
        rule_of(WORDS, "width", 4.0, None, None), 3, 0.5, "grid", False, [1000], [0, 1, 2],
    )  # fmt: skip
    return replace(usual, **changes)


def climbed(
    folder: Path, rungs: int, ladder: Ladder | None = None, stop: Callable[[Suite], bool] = lambda suite: False
) -> LadderRecord:
    """The record of a ladder that this process trained."""
    ladder, places = ladder or ladder_of(), places_in(folder)
    places["store"].mkdir(parents=True, exist_ok=True)
    studies = Studies(f"sqlite:///{places['store']}/studies.db")
    sizes = sizes_of(ladder.rule, WORDS, "gd", rungs, places)

    def train(suite: Suite) -> Any:
        if stop(suite):
            return None
        return carry_out(suite, studies, places, Here(places), progress=False)  # type: ignore[arg-type]

    climb(ladder, sizes, studies, places, train)
    return begun(ladder, sizes, places["store"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ladder of three rungs."""
    folder = tmp_path_factory.mktemp("ladder")
    climbed(folder, 3)
    return folder


@pytest.fixture(scope="module")
def record(folder: Path) -> LadderRecord:
    return climbed(folder, 3)


# -- sizes ------------------------------------------------------------------------------------------------------------


@cache
def sizes(axis: Any, rungs: int = 3, **words: Any) -> list[Size]:
    settings = {**WORDS, **{name.replace("__", "."): value for name, value in words.items()}}
    return sizes_of(rule_of(settings, axis, 4.0, None, None), settings, "gd", rungs, places_in(Path("nowhere")))


def test_rungs_grow_by_the_ratio_and_begin_below_the_model_of_the_task():
    found = sizes("width")
    assert [size.parameters for size in found] == [size.at for size in found]
    for size, wanted in zip(found, [64**2 / 27, 4 * 64**2 / 27, 16 * 64**2 / 27], strict=True):
        assert size.parameters == size.settings["task.d"] ** 2
        others = [d**2 for d in range(2, 200, 2)]
        assert abs(np.log(size.parameters / wanted)) == min(abs(np.log(other / wanted)) for other in others)


def test_a_further_rung_changes_none_before_it():
    assert sizes("width", 2) == sizes("width", 3)[:2]


def test_longer_runs_and_more_samples_leave_the_model():
    longer, more = sizes("epochs"), sizes("data")
    assert [size.steps for size in longer] == [10, 40, 160]
    assert [size.settings["task.n"] for size in more] == [20, 80, 320]
    assert len({size.parameters for size in (*longer, *more)}) == 1


def test_runs_are_evaluated_twenty_times():
    assert [size.steps // size.settings["trainer.val_every"] for size in sizes("epochs")] == [10, 20, 20]
    assert "trainer.val_every" not in sizes("epochs", trainer__val_every=7)[0].settings


@pytest.mark.parametrize(
    ("words", "axis", "options", "says"),
    [
        ({"task": "synthetic"}, "depth", {}, "does not declare which option is its depth"),
        ({"task": "synthetic"}, "width", {"ratio": 1.0}, "--ratio 1"),
        ({"task": "synthetic"}, "width", {"tokens": 20.0}, "not rows of tokens"),
        ({"task": "lm"}, "size", {"tokens": 0.0}, "--tokens 0: it must be above 0"),
        ({"task": "lm"}, "epochs", {"tokens": 20.0}, "--axis epochs does not change the model"),
        ({"task": "lm", "trainer.max_steps": 9}, "size", {"tokens": 20.0}, "both set the length"),
    ],
)
def test_rules_that_make_no_sense_are_refused(words: dict[str, Any], axis: Any, options: dict[str, Any], says: str):
    with pytest.raises(UserError, match=says):
        rule_of(words, axis, options.get("ratio", 3.0), options.get("tokens"), options.get("start"))


def test_a_language_model_gets_tokens_by_its_parameters_unless_something_else_is_said():
    assert rule_of({"task": "lm"}, "size", 3.0, None, None).tokens == 20
    assert rule_of({"task": "lm", "trainer.max_steps": 9}, "size", 3.0, None, None).tokens is None
    assert rule_of({"task": "cifar10"}, "size", 3.0, None, None).tokens is None


@pytest.mark.parametrize(
    ("rule", "words", "says"),
    [
        (Rule("width", 1.01), {}, "rungs 1 and 2 have the same size .* increase --ratio or --start"),
        (
            Rule("epochs", 1.2),
            {"trainer.max_epochs": 2},
            "have the same size .2 and 2.; increase --ratio$",
        ),
    ],
)
def test_two_rungs_of_one_size_are_refused(rule: Rule, words: dict[str, Any], says: str):
    with pytest.raises(UserError, match=says):
        sizes_of(rule, WORDS | words, "gd", 2, places_in(Path("nowhere")))


def test_the_rule_is_told_in_words():
    said = " ".join(in_words(Rule("size", 3.0, 20.0), "lm"))
    assert all(word in said for word in ("width", "layers", "num_heads", "mlp_width", "20 tokens for each parameter"))


# -- rungs ------------------------------------------------------------------------------------------------------------


def test_every_optimizer_has_the_same_budget_at_each_rung(folder: Path, record: LadderRecord):
    found = findings(record, Stores([folder / "store"]))
    assert [rung.number for rung in found.rungs] == [1, 2, 3]
    for rung in found.rungs:
        assert len({len(method.study.trials) for method in rung.methods.values()}) == 1
        assert len({len(method.trials) for method in rung.methods.values()}) == 1
        assert {len(method.runs) for method in rung.methods.values()} == {3}
        for method in rung.methods.values():
            tuning, fresh = ({run.config["seed"] for run in runs} for runs in (method.trials, method.runs))
            assert tuning == {1000}
            assert fresh == {0, 1, 2}


def test_unequal_budgets_end_the_ladder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from bench.ladder import rungs

    class Found:
        def __init__(self, opt: str, trials: int) -> None:
            self.study, self.trials, self.missing = self, [None] * trials, 0
            self.spec, self.opt = self, opt

    counts = iter([3, 4, 3])
    monkeypatch.setattr(rungs, "study_result", lambda study: Found(study, next(counts)))
    ladder, places = ladder_of(), places_in(tmp_path)
    studies = Studies(f"sqlite:///{tmp_path}/studies.db")
    opts: Any = [*ladder.opts]
    with pytest.raises(RunFailed, match="gd 3, adam 4 trials"):
        climb(ladder, sizes("width", 1), studies, places, lambda suite: opts)


def test_ranges_lie_around_what_won_before(folder: Path, record: LadderRecord):
    ladder, places = ladder_of(), places_in(folder)
    winners = winners_of(record, 0, places["store"])
    suite = ladder.suite(record.rungs[1]["settings"], winners, places)
    for spec in suite.specs(places):
        (axis,) = spec.axes.values()
        best = winners[spec.opt]["opt.lr"]
        assert axis.low == pytest.approx(best / 10**0.5, rel=1e-3)  # type: ignore[union-attr]
        assert axis.high == pytest.approx(best * 10**0.5, rel=1e-3)  # type: ignore[union-attr]
        points = [each.point["opt.lr"] for each in spec.design.wanted(suite.tune.trials or 0)]
        assert points[0] == best  # to measure the previous rung's settings at this rung


def test_the_winner_of_a_rung_is_the_first_point_of_a_quasi_random_design_too(folder: Path):
    own = {"gd": {}, "sngd": {}}
    ladder, places = ladder_of(opts=["gd", "sngd"], own=own, sampler="qmc", reference="gd"), places_in(folder)
    winners = {"gd": {"opt.lr": 0.1234}, "sngd": {"opt.lr": 0.03162, "opt.max_step": 7.5}}
    suite = ladder.suite(sizes("width", 2)[1].settings, winners, places)
    for spec in suite.specs(places):
        first = spec.design.wanted(suite.tune.trials or 0)[0].point
        assert _is_same(first, winners[spec.opt]), first
        assert not _is_same(first, {name: 1.01 * value for name, value in first.items()})
        for axis in spec.design.ranges.values():
            assert axis.high / axis.low == pytest.approx(10 ** (2 * ladder.margin), rel=1e-3)


@pytest.mark.parametrize("sampler", ["grid", "qmc"])
def test_a_range_ends_where_values_are_illegal(sampler: Any):
    own = {"gd": {}, "sgdm": {"opt.momentum": "0.05:0.98"}}
    ladder = ladder_of(opts=["gd", "sgdm"], own=own, sampler=sampler, reference="gd", margin=1.0)
    winners = {"gd": {"opt.lr": 0.1}, "sgdm": {"opt.lr": 0.1, "opt.momentum": 0.6}}
    places = places_in(Path("nowhere"))
    suite = ladder.suite(sizes("width", 2)[1].settings, winners, places)
    (spec,) = (spec for spec in suite.specs(places) if spec.opt == "sgdm")
    axis = spec.design.ranges["opt.momentum"]
    points = [each.point for each in spec.design.wanted(suite.tune.trials or 0)]
    assert all(0 < point["opt.momentum"] <= 0.98 for point in points)
    if sampler == "qmc":
        assert axis.high == 0.98
        assert _is_same(points[0], winners["sgdm"])
    else:
        assert (axis.low, axis.high) == (0.05, 0.98)


def test_methods_with_lists_of_values_get_whole_combinations():
    ladder = ladder_of(opts=["gd", "sgdm"], own={"gd": {}, "sgdm": {}}, trials=4)
    suite = ladder.suite(sizes("width", 1)[0].settings, {}, places_in(Path("nowhere")))
    assert suite.tune.trials == 6  # sgdm has three values of momentum


def test_other_settings_are_another_ladder_and_more_rungs_are_not():
    assert ladder_of().name == ladder_of().name
    for change in ({"trials": 5}, {"margin": 1.0}, {"fresh": [0, 1]}, {"reference": "adam"}):
        assert ladder_of(**change).name != ladder_of().name


# -- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_predictions_are_on_the_disk_before_any_run_of_their_rung(tmp_path: Path):
    seen = list[dict[str, Any]]()

    def look(suite: Suite) -> bool:
        path = next((tmp_path / "store" / "ladders").glob("*.json"))
        seen.append(json.loads(path.read_text("utf-8")))
        there = {run.config["task_options"]["d"] for run in Stores([tmp_path / "store"]).runs}
        assert suite.tasks["synthetic"]["task.d"] not in there  # type: ignore[call-overload,index]
        return False

    record = climbed(tmp_path, 2, stop=look)
    assert seen[0]["rungs"][0]["predicted"] is None
    said = seen[1]["rungs"][1]["predicted"]
    assert said == record.rungs[1]["predicted"]
    assert said["rungs"] == 1
    assert set(said["order"]) == {"gd", "adam"}
    found = findings(record, Stores([tmp_path / "store"]))
    assert was_before(found.rungs[0]) is None
    assert was_before(found.rungs[1]) is True
    assert said["made"] <= found.rungs[1].begun


def test_a_prediction_that_came_after_its_runs_is_called_none(folder: Path, record: LadderRecord):
    late = json.loads(json.dumps(record.rungs))
    late[1]["predicted"]["made"] = "2999-01-01T00:00:00Z"
    found = findings(replace(record, rungs=late), Stores([folder / "store"]))
    assert was_before(found.rungs[1]) is False
    notes = [note for board in boards(found) for table in board.tables for note in table.notes]
    assert any("rung 2: it had runs before the prediction" in note for note in notes)


def test_a_prediction_that_came_after_its_runs_counts_nowhere():
    stores = Stores([SHIPPED / "cifar10" / "runs"])
    record = stores.ladders[0]
    late = json.loads(json.dumps(record.rungs))
    late[1]["predicted"]["made"] = "2999-01-01T00:00:00Z"
    for rungs, count in ((record.rungs, 12), (late, 8)):
        found = findings(replace(record, rungs=rungs), stores)
        assert f" of {count} measured ratios are within" in boards(found)[1].tables[0].notes[0]
        assert f"Of {count} predictions" in verdict(found)[-1]


def test_scores_say_whether_the_measured_ratio_was_in_the_interval(folder: Path, record: LadderRecord):
    rung = findings(record, Stores([folder / "store"])).rungs[1]
    for each in scores(rung):
        mean, low, high = rung.record["predicted"]["ratios"][each.opt]  # type: ignore[index]
        assert each.said == Interval(mean or 0.0, -np.inf if low is None else low, np.inf if high is None else high, 0)
        measured = rung.ratios[each.opt]
        if isinstance(measured, StepRatio):
            assert each.held == (each.said.low <= measured.interval.mean <= each.said.high)


@pytest.mark.parametrize(
    ("value", "bound", "held"),
    [
        (2.0, ">=", None), (0.5, ">=", None), (4.0, ">=", False),
        (2.0, "<=", None), (4.0, "<=", None), (0.5, "<=", False), (4.0, "", False),
    ],
)  # fmt: skip
def test_a_bound_decides_only_if_it_excludes_the_predicted_interval(
    folder: Path, record: LadderRecord, value: float, bound: str, held: bool | None
):
    own = json.loads(json.dumps(record.rungs))
    own[1]["predicted"]["ratios"] = {"adam": [2.0, 1.0, 3.0]}
    rung = findings(replace(record, rungs=own), Stores([folder / "store"])).rungs[1]
    ratio = StepRatio(Estimate(value, math.inf, 4), Interval(value, -math.inf, math.inf, 5, bound), 3)
    rung.ratios["adam"] = ratio
    assert [each.held for each in scores(rung)] == [held]


def test_a_prediction_that_this_version_would_not_make_is_noted(folder: Path, record: LadderRecord):
    def notes(rungs: list[Any]) -> list[str]:
        found = findings(replace(record, rungs=rungs), Stores([folder / "store"]))
        return [note for note in boards(found)[1].tables[0].notes if "this version predicts" in note]

    assert notes(record.rungs) == []
    other = json.loads(json.dumps(record.rungs))
    mean, low, high = other[2]["predicted"]["ratios"]["adam"]
    other[2]["predicted"]["ratios"]["adam"] = [mean + 0.02, low, high]
    assert [note.partition(":")[0] for note in notes(other)] == ["rung 3"]


def test_a_rung_without_an_error_is_left_out_of_the_trend_and_the_sentence_says_so():
    stores = Stores([SHIPPED / "cifar10" / "runs"])
    found = findings(stores.ladders[0], stores)
    slope = found.trend("muon")
    of = found.rungs[-1].ratios["muon"]
    assert isinstance(of, StepRatio)
    bound = Interval(3.0, 1.0, math.inf, 5, ">=")
    found.rungs[-1].ratios["muon"] = StepRatio(replace(of.estimate, value=3.0, error=math.inf), bound, 3)
    (line,) = (line for line in verdict(found) if line.startswith("muon needs"))
    assert " and >=20.1 [2.72, inf] at 208 k; trend without 208 k: " in line
    assert found.trend("muon") != slope
    assert any(
        "rung 4: muon: seeds with a ratio beyond the evaluations, or diverged: 3 of 5" in note
        for note in boards(found)[0].tables[0].notes
    )


def test_a_choice_costs_the_rungs_on_which_it_depends(folder: Path, record: LadderRecord):
    found = findings(record, Stores([folder / "store"]))
    seconds = [rung.seconds for rung in found.rungs]
    assert found.cost(1) == pytest.approx((seconds[0] + seconds[1]) / sum(seconds))
    assert found.cost(2) == pytest.approx(1)


# -- interruptions ----------------------------------------------------------------------------------------------------


def numbers(record: LadderRecord, store: Path) -> str:
    """The record of a ladder without times."""
    found = findings(record, Stores([store]))
    shown = [
        (board.name, table.title, [{k: v for k, v in row.items() if k in KEPT} for row in table.rows])
        for board in boards(found)
        for table in board.tables
    ]
    return repr(shown) + repr([sorted(rung.ratios.items()) for rung in found.rungs])


KEPT = {
    "opt", "rung", "rung 1", "rung 2", "trend", "called", "said", "measured", "held", "order", "tau", "chosen",
    "regret", "best", "usable", "regrets", "trials", "fresh", "parameters", "steps", "settings",
}  # fmt: skip


@pytest.mark.deep
def test_a_ladder_that_was_stopped_goes_on(tmp_path: Path, folder: Path):
    count = iter(range(9))
    stopped = climbed(tmp_path, 2, stop=lambda suite: next(count) == 1)
    assert [bool(rung["done"]) for rung in stopped.rungs] == [True, False]
    said = stopped.rungs[1]["predicted"]
    done = climbed(tmp_path, 2)
    assert [bool(rung["done"]) for rung in done.rungs] == [True, True]
    assert done.rungs[0] == stopped.rungs[0]
    assert done.rungs[1]["predicted"] == said  # unchanged by the interruption
    whole = climbed(folder, 2)
    assert numbers(replace(whole, rungs=whole.rungs[:2]), folder / "store") == numbers(done, tmp_path / "store")


@pytest.mark.deep
def test_a_rung_that_is_added_later_changes_no_earlier_number(tmp_path: Path):
    before = climbed(tmp_path, 1)
    after = climbed(tmp_path, 2)
    assert after.rungs[0] == before.rungs[0]
    assert after.begun == before.begun
    first = replace(after, rungs=after.rungs[:1])
    assert numbers(first, tmp_path / "store") == numbers(before, tmp_path / "store")


def test_rungs_that_are_done_are_not_trained_again(folder: Path):
    def refuse(suite: Suite) -> bool:
        raise AssertionError("nothing is left to train")

    assert len(climbed(folder, 3, stop=refuse).done) == 3


def test_a_damaged_record_is_named(tmp_path: Path):
    ladder, rungs = ladder_of(), sizes("width")
    path = ladder.record(rungs).places(tmp_path)[0]
    path.parent.mkdir()
    path.write_text('{"name": "x"}', "utf-8")
    with pytest.raises(RunFailed, match=r"\.json.*move it away"):
        begun(ladder, rungs, tmp_path)
    assert Stores([tmp_path]).damaged


ODD = (None, -1, 0, 2**62, 1e308, 1e-308, True, "", "x", "\x1b[31m", [], {}, [[]], {"a": {}})
"""Values that a hostile record may have anywhere."""


def spots(value: Any) -> Iterator[list[Any]]:
    """The paths of all values within a value of JSON."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield [key]
        yield from ([key, *rest] for rest in spots(value[key]))


def test_a_hostile_record_is_refused_or_shown(folder: Path, record: LadderRecord):
    """Each value is replaced by an odd one, or removed, one at a time; other errors than the usual one are crashes."""
    stores, whole = Stores([folder / "store"]), json.dumps(vars(record))
    refused, paths = 0, [*spots(vars(record))]
    cases = [(path, odd) for i, path in enumerate(paths) for odd in ("remove", *ODD[i % 3 :: 3])]
    for path, odd in cases:
        mutant = json.loads(whole)
        *way, last = path
        inside = reduce(getitem, way, mutant)
        if odd == "remove":
            del inside[last]
        else:
            inside[last] = odd
        try:
            there = parse(json.dumps(mutant).encode(), LadderRecord, Path("x.json"))
        except Damaged:
            refused += 1
            continue
        found = findings(there, stores)
        assert boards(found)
        assert charts(found)
        assert verdict(found)
    assert len(cases) / 4 < refused < len(cases)


def test_rungs_that_do_not_grow_are_refused(record: LadderRecord):
    content = json.loads(json.dumps(vars(record)))
    content["rungs"][1]["at"] = content["rungs"][0]["at"]
    with pytest.raises(Damaged, match=r"rungs: .*must be in ascending size"):
        parse(json.dumps(content).encode(), LadderRecord, Path("x.json"))


@pytest.mark.parametrize(("key", "odd"), [("step", 0), ("step", 1e30), ("loss", None)])
def test_odd_evaluations_are_left_out(folder: Path, record: LadderRecord, tmp_path: Path, key: str, odd: float | None):
    store = Path(shutil.copytree(folder / "store", tmp_path / "store"))
    for path in store.glob("*/done/runs.jsonl"):
        runs = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for row in (row for run in runs for row in run["validations"]):
            row.pop("excess", None)
            row.pop(key)
            row.update({} if odd is None else {key: odd})
        path.write_text("".join(json.dumps(run) + "\n" for run in runs), "utf-8")
    found = findings(record, Stores([store]))
    assert found.rungs
    assert boards(found)
    assert not any(isinstance(ratio, StepRatio) for rung in found.rungs for ratio in rung.ratios.values())


def test_a_study_that_is_missing_or_damaged_is_named(folder: Path, record: LadderRecord, tmp_path: Path):
    store = Path(shutil.copytree(folder / "store", tmp_path / "store"))
    path = study_path(store, record.rungs[1]["studies"]["gd"])
    path.unlink()
    assert findings(record, Stores([store])).rungs[1].ratios == {"adam": "gd: its study is not in the store"}
    with pytest.raises(RunFailed, match=r"\.json is missing; it contains the winners of rung 2"):
        winners_of(record, 1, store)
    path.write_text('{"name": "x"}', "utf-8")
    with pytest.raises(RunFailed, match=r"\.json: .*; it contains the winners of rung 2"):
        winners_of(record, 1, store)


def test_a_rung_whose_runs_are_missing_hides_no_other(folder: Path, record: LadderRecord):
    rungs = [rung if k != 1 else {**rung, "fresh": {}} for k, rung in enumerate(record.rungs)]
    found = findings(replace(record, rungs=rungs), Stores([folder / "store"]))
    assert [rung.number for rung in found.rungs] == [1, 3]
    assert set(found.final_from or ()) <= {1, 3}
    assert any(line.startswith("Rung 2 is not shown") for line in cut(found))
    assert found.sizes == [rung["at"] for rung in record.rungs[::2]]


def test_a_merge_takes_the_ladder_with_it(folder: Path, record: LadderRecord, tmp_path: Path):
    merged = merge([folder / "store"], tmp_path / "other", lambda line: None)
    assert merged.records["ladders"] == 1
    assert Stores([tmp_path / "other"]).ladders == [record]
    assert numbers(record, tmp_path / "other") == numbers(record, folder / "store")


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_page_is_made_again_from_the_store_without_a_database(
    folder: Path, record: LadderRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    merge([folder / "store"], tmp_path / "other", lambda line: None)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "other").rglob("*")}
    for out in ("a", "b"):
        with pytest.raises(SystemExit) as ended:
            main(["ladder", "--from", str(tmp_path / "other"), "-o", str(tmp_path / out)])
        assert ended.value.code == 0
    text = capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "other").rglob("*")} == before
    made = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {"ladder.html", "ladder.md", "efficiency.png", "efficiency.pdf"} <= {*made}
    for name in made:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    found = findings(record, Stores([tmp_path / "other"]))
    page = (tmp_path / "a" / "ladder.html").read_text("utf-8")
    for line in verdict(found):
        assert line in text
        assert line.split("(")[0].strip() in (tmp_path / "a" / "ladder.md").read_text("utf-8")
    assert "Efficiency against size" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_ladder_without_a_rung_says_so(tmp_path: Path):
    record = climbed(tmp_path, 2, stop=lambda suite: True)
    found = findings(record, Stores([tmp_path / "store"]))
    assert verdict(found) == ["No rung is done yet."]
    assert not any(panel.traces for chart in charts(found).values() for panel in chart.panels)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--opt is missing; name two optimizers or more"),
        (["--opt", "adam,ngd"], "the reference, gd, is missing from the list"),
        (["--opt", "gd"], "needs two optimizers or more"),
        (["--opt", "gd,adam", "--report_seeds", "1"], "one seed gives no estimate"),
        (["--opt", "gd,adam", "--budget", "20runs"], "takes a time"),
        (["--opt", "gd,adam", "--margin", "0.1"], "write decades from 0.5 to 4"),
        (["--opt", "gd,adm"], "adm"),
        (["--opt", "gd,adam", "--start", "0"], "--start 0: the first rung needs one parameter or more"),
        (["--opt", "gd,adam", "--start", "1e12"], "--start 1e+12: the last rung would be more than 1000 times"),
        (["--opt", "gd,adam", "--ratio", "1e300"], "1e+300: the last rung would be more than 1000 times"),
        (["--opt", "gd,adam", "--name", "x"], "--name x: it selects a ladder of --from STORE"),
        (["--from", "x"], "--task: with --from, everything is read from the store; remove it"),
    ],
)
def test_words_that_make_no_sense_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["ladder", "--task", "synthetic", "--axis", "width", *words])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("values", [(0, 0.1, 0.2), (True, 0.1, 0.2), (0.1, None, 0.2)])
def test_the_usable_range_counts_only_positive_numbers(folder: Path, record: LadderRecord, values: tuple[Any, ...]):
    method = next(iter(findings(record, Stores([folder / "store"])).rungs[0].methods.values()))
    trials = [{**method.study.trials[0], "point": {"opt.x": value}, "score": 1.0} for value in values]
    found = _usable(replace(method, study=replace(method.study, trials=trials)), "opt.x", above=True)
    assert found == (pytest.approx(np.log10(2)), True)


def test_the_captions_say_what_bands_cover_and_name_settings_as_written(monkeypatch: pytest.MonkeyPatch):
    stores = Stores([SHIPPED / "cifar10" / "runs"])  # with five fresh seeds
    found = findings(stores.ladders[0], stores)
    assert caption(charts(found)["settings"].panels).startswith("Settings: opt.lr of")

    def ends(low: float, high: float) -> str:
        points = [(1.0, Interval(1.0, 0.5, 2.0, 5)), (3.0, Interval(1.0, low, high, 5))]
        monkeypatch.setattr(show, "_factors", lambda *_: points)
        return caption(charts(found)["efficiency"].panels)

    assert "Bands: 93.75 % interval over 5 fresh seeds; below 1: fewer steps" in ends(0.5, 2.0)
    for low, high in ((0.0, 2.0), (0.5, math.inf)):
        assert "a band that reaches the edge ends at 0 or infinity" in ends(low, high)


def test_several_ladders_are_not_one_json_document(folder: Path, tmp_path: Path, cli: Cli):
    merge([folder / "store"], tmp_path / "store", lambda line: None)
    climbed(tmp_path, 1, ladder_of(trials=4))
    answer = cli("ladder", "--from", tmp_path / "store", "--json")
    assert answer.code == 2
    assert "has 2 ladders; add --name, such as --name synthetic-ladder-" in answer.err


def test_a_store_without_a_ladder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["ladder", "--from", str(tmp_path)])
    assert ended.value.code == 2
    assert "there is no ladder in it" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--opt.lr", "1e-2:1e0"], ["--opt.lr", "1e-3:1e3", "--opt.gd.lr", "1e-2:1e0"]])
def test_a_range_for_all_optimizers_is_searched_unless_one_has_its_own(words: list[str]):
    args = parse_command("ladder", ["--task", "synthetic", "--opt", "gd,ngd", "--axis", "width", *words])
    ladder = _asked(args)
    assert ladder.own["gd"] == {"opt.lr": "1e-2:1e0"}
    assert ladder.own["ngd"] == {"opt.lr": words[1]}
    places = {"data": args.data, "store": args.store}
    specs = ladder.suite({}, {}, places).specs(places)
    assert [spec.design.ranges["opt.lr"].low for spec in specs] == [0.01, float(words[1].partition(":")[0])]


def test_an_array_gives_the_same_command_without_what_each_task_has_of_its_own(capsys: pytest.CaptureFixture[str]):
    words = ["--task", "synthetic", "--opt", "gd,ngd", "--axis", "width", "--rungs", "2", "--trainer.max_steps", "9"]
    own = ["--slurm", "--print", "--workers=3", "--sbatch=--time=1", "-o", "x", "--store", "y", "--engine", "lanes"]
    with pytest.raises(SystemExit) as ended:
        main(["ladder", *words, *own])
    assert ended.value.code == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "bench ladder" in line]
    given = line.partition("bench ladder ")[2].split()
    assert given[: 1 + len(words)] == ["--train-only", *words]
    assert "--slurm" not in given
    assert given.count("--workers") == given.count("--store") == given.count("--engine") == 1
    assert given[given.index("--shared-by") + 1] == "3"


@pytest.mark.deep
def test_a_killed_ladder_continues_and_a_dry_run_states_its_cost(tmp_path: Path):
    environment = {**os.environ, "BENCH_STORE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    words = ["ladder", "--task", "synthetic", "--opt", "gd,ngd", "--axis", "width", "--rungs", "2", "--ratio", "4",
             "--trainer.max_steps", "30", "--trials", "3", "--margin", "0.5", "--seeds", "1", "--report_seeds", "2",
             "--workers", "1", "--engine", "lightning", "--device", "cpu", "-o", "out"]  # fmt: skip
    command = [sys.executable, "-P", "-m", "bench", *words]
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    store = tmp_path / "store"
    try:
        until(
            lambda: any(run.finished for run in Stores([store]).runs) if store.is_dir() else False,
            "a run that has ended",
            300,
        )
    finally:
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    (before,) = Stores([store]).ladders
    assert not before.done
    kept = {run.run_id for run in Stores([store]).runs if run.finished}
    again = subprocess.run([*command, "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["ladder"] == before.name
    (after,) = Stores([store]).ladders
    assert len(after.done) == 2
    assert after.begun == before.begun
    moments = {run.run_id: run.begun for run in Stores([store]).runs}
    assert all(moments[run_id] <= after.rungs[0]["done"] for run_id in kept)
    planned = subprocess.run(
        [*command, "--dry-run", "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    rungs = json.loads(planned.stdout)["rungs"]
    assert [rung["runs"] for rung in rungs] == [2 * (3 + 2)] * 2
    assert all(rung["stored"] and rung["seconds"] == 0 for rung in rungs)


def test_a_dry_run_counts_only_the_time_of_rungs_that_are_not_stored(
    folder: Path, record: LadderRecord, capsys: pytest.CaptureFixture[str]
):
    places = places_in(folder)
    sizes = sizes_of(ladder_of().rule, WORDS, "gd", 4, places)
    assert _plan(Args(json=True), ladder_of(), sizes, places, 1, 1) == 0
    rungs = json.loads(capsys.readouterr().out)["rungs"]
    assert [rung["stored"] for rung in rungs] == [True, True, True, False]
    assert [rung["seconds"] > 0 for rung in rungs] == [False, False, False, True]
    assert _plan(Args(json=False), ladder_of(), sizes, places, 1, 1) == 0
    assert capsys.readouterr().out.count("stored") == 3
    assert begun(ladder_of(), sizes[:3], places["store"]) == record


@pytest.mark.parametrize(("seeds", "said"), [(4, "with 4 fresh seeds, ratios of steps have no intervals"), (5, "")])
def test_too_few_fresh_seeds_for_intervals_are_noted(cli: Cli, tmp_path: Path, seeds: int, said: str):
    words = ["--task", "synthetic", "--opt", "gd,ngd", "--rungs", 1, "--report_seeds", seeds, "--dry-run"]
    done = cli("ladder", *words, "--store", tmp_path)
    assert done.code == 0
    assert said in done.err
    assert ("intervals" in done.err) == bool(said)


@pytest.mark.parametrize("task", sorted(path.name for path in SHIPPED.iterdir()))
def test_a_shipped_page_is_what_its_runs_say(task: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    shipped = SHIPPED.relative_to(ROOT) / task
    assert cli("ladder", "--from", shipped / "runs", "-o", tmp_path).code == 0
    assert (tmp_path / "ladder.md").read_text("utf-8") == (shipped / "ladder.md").read_text("utf-8")
    again = cli("ladder", "--from", shipped, "-o", tmp_path)  # a folder with a store, as a bundle is
    assert again.code == 0
    assert f"Made by `bench ladder --from results/ladder/{task}`." in (tmp_path / "ladder.md").read_text("utf-8")


def test_optimizers_at_the_floor_of_the_loss_tie(folder: Path, record: LadderRecord):
    found = findings(record, Stores([folder / "store"]))
    first, *_ = found.rungs
    assert first.above
    opts = list(first.methods)
    for run in first.runs:
        run.metrics["final"]["excess"] = 1e-17
        run.validations = [row | {"excess": 1e-17} for row in run.validations]
    assert len(opts) == 2
    assert first.ordered(opts) == " = ".join(sorted(opts))
    assert set(first.places(opts).values()) == {0}
    assert found.regret(0) is None
    assert all("at the floor of the loss" in str(why) for why in first.ratios.values())
