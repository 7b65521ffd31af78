"""Boards from fabricated runs, against values computed by hand or by other implementations."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from bench.boards import BOARDS
from bench.boards.collect import Collected
from bench.boards.matrix import headline
from bench.boards.rows import entries_of
from bench.errors import UserError
from bench.results.group import HUGE
from bench.results.render import as_json, json_text
from bench.results.selection import End
from bench.results.stats import Interval
from bench.store.record import RunResult
from tests.entered import (
    VERSIONS,
    add_tried,
    add_tuned,
    board,
    collect_from,
    keep,
    keep_block,
    make_run,
    rows,
    seeds,
    study,
)
from tests.stored import begin

A, B = [0.81, 0.84, 0.80, 0.86, 0.83], [0.70, 0.72, 0.69, 0.77, 0.71]
HIGH, LOW = [*A, 0.82, 0.85], [*B, 0.70, 0.74]  # enough seeds for a decision
LOSS: dict[str, Any] = {"task": "synthetic"}


def everything(*folders: Path) -> str:
    """All boards as JSON."""
    return json_text(as_json([board(name, *folders) for name in BOARDS]))


# -- quality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [keep, keep_block])
def test_means_and_effects_are_those_of_independent_code(store, write):
    write(store, *seeds("adam", HIGH), *seeds("sgd", LOW))
    row = rows("quality", store)["sgd"]
    low, high = reference.t.interval(0.95, 6, mean(LOW), reference.sem(LOW))
    assert (row["final"].mean, row["final"].low, row["final"].high) == pytest.approx((mean(LOW), low, high))
    gains = np.subtract(LOW, HIGH)
    effect = row["effect"]
    assert (effect.mean, effect.low, effect.high) == pytest.approx((np.median(gains), gains.min(), gains.max()))
    assert (row["verdict"], row["won"]) == ("worse", "0 of 7")


def test_a_diverged_run_is_worse_than_every_number(store):
    keep(store, *seeds("adam", HIGH), *seeds("sgd", [0.99, 0.99, None, *[0.99] * 4]), *seeds("adamw", [None] * 7))
    table = board("quality", store).tables[-1]
    assert [row["opt"] for row in table.rows] == ["adam", "sgd", "adamw"]
    by_opt = {row["opt"]: row for row in table.rows}
    assert (by_opt["sgd"]["final"], by_opt["sgd"]["n"]) == ("1 of 7 diverged", 7)
    assert by_opt["sgd"]["runs"] == {"completed": 6, "diverged": 1}
    assert by_opt["adamw"]["runs"] == {"diverged": 7}
    assert (by_opt["sgd"]["won"], by_opt["sgd"]["verdict"]) == ("6 of 7", "no difference found")
    assert by_opt["sgd"]["effect"].low == -math.inf
    assert (by_opt["adamw"]["effect"], by_opt["adamw"]["verdict"]) == (None, "worse")


def test_collapsed_runs_are_counted_beside_the_median(store):
    wide = [0.5, 0.9, 0.7, 0.75, 0.85, 0.6, 0.8]
    keep(store, *seeds("adam", HIGH), *seeds("sgd", [*HIGH[:6], 0.1]), *seeds("muon", [*HIGH[:5], 0.1, 0.11]))
    keep(store, *seeds("adamw", wide), *seeds("sgdm", [*HIGH[:5], 0.1]))
    finals = {opt: row["final"] for opt, row in rows("quality", store).items()}
    assert (finals["sgd"], finals["muon"]) == ("median 0.82, 1 of 7 collapsed", "median 0.81, 2 of 7 collapsed")
    assert [finals[opt].mean for opt in ("adam", "adamw", "sgdm")] == pytest.approx(
        [mean(HIGH), mean(wide), mean([*HIGH[:5], 0.1])]  # six are too few to tell
    )


SGD, ADAM = ("sgd", 4), ("adam", 4)


@pytest.mark.parametrize("unfinished", [[SGD], [ADAM], [SGD, ("sgd", 6)], [SGD, ("adam", 6)], [ADAM, ("sgd", 6)]])
def test_only_seeds_before_the_first_unfinished_one_decide(store, unfinished):
    runs = [*seeds("adam", HIGH), *seeds("sgd", LOW)]
    keep(store, *(run for run in runs if (run.config["opt"], run.config["seed"]) not in unfinished))
    training = [begin(store, make_run(opt, seed)) for opt, seed in unfinished]
    row = rows("quality", store)["sgd"]
    for writer in training:
        writer.close()
    assert row["n"] == 7 - sum(opt == "sgd" for opt, _ in unfinished)
    assert (row["won"], row["verdict"]) == ("0 of 4", "too few seeds (4 of 7)")


@pytest.mark.parametrize(
    "strange", [{"final": None}, {"final": float("nan")}, {"final": 1e308}, {"final": -1e308}, {"final": 2 * HUGE}]
)
def test_a_completed_run_without_a_sensible_value_is_counted(store, strange):
    keep(store, *seeds("adam", HIGH), *seeds("sgd", LOW[:4]), make_run("sgd", 4, **strange))
    row = rows("quality", store)["sgd"]
    assert (row["final"], row["n"], row["runs"]) == ("a run without a value", 5, {"completed": 5})
    assert json.loads(everything(store))[0]["tables"][0]["rows"][1]["opt"] == "sgd"


def test_equal_seeds_are_decided_and_equal_runs_tie(store):
    keep(store, *seeds("adam", [0.5] * 7), *seeds("sgd", [0.25] * 7), *seeds("adamw", [0.5] * 7))
    by_opt = rows("quality", store)
    assert (by_opt["sgd"]["effect"].low, by_opt["sgd"]["effect"].high) == (-0.25, -0.25)
    verdicts = {"adam": "reference", "adamw": "no difference found", "sgd": "worse"}
    assert {opt: row["verdict"] for opt, row in by_opt.items()} == verdicts
    assert by_opt["adamw"]["won"] == "0 of 7 (7 ties)"


def test_settings_that_were_tuned_for_another_metric_are_not_compared(store):
    add_tuned(store, "adam", HIGH, metric="accuracy")
    add_tuned(store, "sgd", LOW, metric="loss")
    by_opt = rows("quality", store)
    assert by_opt["sgd"]["verdict"] == "not compared: tuned for loss"
    assert rows("quality", store, reference="sgd")["adam"]["verdict"] == "not compared: the reference: tuned for loss"
    (grid,) = board("pairs", store).tables
    assert ([row["opt"] for row in grid.rows], grid.notes) == (["adam"], ["sgd is not compared: tuned for loss"])


def test_settings_that_training_data_chose_are_not_compared_on_held_out_data(store):
    add_tuned(store, "sngd", LOW, select_split="train")
    elsewhere = {"words": {"opt.lr": 0.1}, "tuned_by": "unknown", "select_split": "val"}
    keep(store, *seeds("sgd", LOW, tuned_on="train", **elsewhere), *seeds("adamw", LOW, tuned_on="val", **elsewhere))
    keep(store, *seeds("adam", HIGH))
    verdicts = {opt: row["verdict"] for opt, row in rows("quality", store).items()}
    assert verdicts["sngd"] == verdicts["sgd"] == "not compared: tuned on training data and compared on held-out data"
    assert verdicts["adamw"] == "worse"


def test_better_and_worse_allow_for_the_search_of_the_loser_alone(store):
    for opt, fresh in (("sgd", LOW), ("sngd", [x + 0.1 for x in HIGH])):
        add_tried(store, {0.1: [0.4]}, {0.1: [0.4]}, fresh, won=0.1, opt=opt, name=opt)  # may have missed anything
    keep(store, *seeds("adam", HIGH))
    within = "no difference found (within tuning)"
    expected = {"adam": {"sngd": "better", "sgd": within}, "sgd": {"sngd": within, "adam": within}}
    for name, others in expected.items():
        verdicts = {opt: row["verdict"] for opt, row in rows("quality", store, reference=name).items()}
        assert verdicts == {name: "reference"} | others


def test_rows_at_the_floor_are_compared_by_steps(store):
    def runs(opt: str, steps: list[int | None]) -> list[RunResult]:
        floor = {"metrics": {"final": {"loss": 1e-20, "excess": 1e-20}}}
        return [make_run(opt, i, 1e-20, **LOSS, **floor, target=0.1, steps_to_target=n) for i, n in enumerate(steps)]

    keep(store, *runs("gd", [80] * 7), *runs("ngd", [20] * 7), *runs("adam", [20, *[None] * 6]))
    table = board("quality", store, reference=None).tables[-1]
    by_opt = {row["opt"]: row for row in table.rows}
    verdicts = {"ngd": "better", "gd": "reference", "adam": "no difference found"}
    assert {opt: row["verdict"] for opt, row in by_opt.items()} == verdicts
    assert by_opt["ngd"]["effect"] == Interval(0.25, 0.25, 0.25, 7)
    assert "gd is at the floor of the metric (1e-16) on 7 of 7 seeds" in table.notes[0]


def test_a_diverged_disjoint_or_absent_reference(store, tmp_path):
    keep(store, *seeds("adam", [None] * 7), *seeds("sgd", LOW))
    row = rows("quality", store)["sgd"]
    assert (row["verdict"], row["won"], row["effect"]) == ("better", "7 of 7", None)
    keep(tmp_path / "b", *seeds("adam", HIGH, first=50), *seeds("sgd", LOW))
    assert rows("quality", tmp_path / "b")["sgd"]["verdict"] == "no common seeds"
    keep(tmp_path / "c", *seeds("sgd", LOW))
    (alone,) = board("quality", tmp_path / "c").tables
    assert "no verdicts, since the reference adam has no runs in these stores" in alone.notes[0]


def test_the_grid_of_pairs_has_holms_correction_and_rank_intervals(store):
    entrants = {"adam": HIGH, "sgd": LOW, "adamw": [x + 0.001 for x in HIGH], "sngd": [x - 0.001 for x in LOW]}
    keep(store, *(run for opt, ends in entrants.items() for run in seeds(opt, [*ends, ends[0]])))
    (table,) = board("pairs", store).tables
    assert table.title == "mnist, max_steps 100: Holm over 6 pairs"
    # Eight wins of eight decide a single pair, and any of three or four, but none of six pairs.
    assert [column.key for column in table.columns] == ["opt", "n"]
    assert table.notes == ["8 seeds cannot decide any of 6 pairs; it takes 9 seeds or more"]
    for opt, ends in entrants.items():
        keep(store, *seeds(opt, ends, first=8))
    (table,) = board("pairs", store).tables
    places = [("adamw", "1"), ("adam", "2"), ("sgd", "3"), ("sngd", "4")]
    assert [(row["opt"], row["places"]) for row in table.rows] == places
    heads = [f"against {name}" for name, _ in places]
    assert [table.rows[0].get(head) for head in heads] == [None, "better", "better", "better"]
    assert [table.rows[2].get(head) for head in heads] == ["worse", "worse", None, "better"]
    assert not table.notes


# -- the noise of tuning ----------------------------------------------------------------------------------------------


def widened(store: Path) -> tuple[Any, list[str]]:
    """The column's value in the only row, and the notes of its table."""
    (table,) = board("quality", store).tables
    return table.rows[0]["final_tuned"], [note for note in table.notes if "noise of tuning" in note]


FRESH = [0.7, 0.8, 0.9]


def test_tuning_noise_comes_from_resampled_tuning_seeds(store):
    add_tried(store, CHOICE, {0.1: [0.8, 0.6], 1.0: [0.7, 0.3]}, FRESH, won=0.1)
    (interval, notes), plain = widened(store), rows("quality", store)["adam"]["final"]
    # One resample of four chooses the other setting, whose reported mean over both seeds is lower by 0.2.
    parts = [(0.01 / 3, 2), (0.2**2 * 0.25 * 0.75, 1)]
    total = sum(of for of, _ in parts)
    half = reference.t.ppf(0.975, total**2 / sum(of**2 / df for of, df in parts)) * math.sqrt(total)
    expected = 0.8, 0.8 - half, min(1, 0.8 + half), 3
    assert (interval.mean, interval.low, interval.high, interval.n) == pytest.approx(expected)
    assert interval.low < plain.low < plain.high <= interval.high
    assert notes == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kept": False}, "the runs of its trials are not in these stores"),
        ({"won": 1.0}, "the runs of its trials do not choose its winner"),
        ({"seeds": [1000]}, "one tuning seed"),
        ({"metric": "loss"}, "tuned for loss"),
    ],
)
def test_a_missing_tuning_noise_interval_is_explained_once(store, changes, why):
    add_tried(store, CHOICE, CHOICE, FRESH, **{"won": 0.1} | changes)
    assert widened(store) == (None, [f"no interval with the noise of tuning: adam ({why})"])


# -- what must not matter ---------------------------------------------------------------------------------------------

CHOICE = {0.1: [0.9, 0.5], 1.0: [0.6, 0.7]}
"""Both seeds together and the first one choose 0.1, the second one 1."""
# -- entries ----------------------------------------------------------------------------------------------------------


def test_tuning_seeds_stay_out_and_seeds_by_hand_come_in(store):
    add_tuned(store, "adam", A)
    keep(store, *seeds("adam", [0.9, 0.9], first=70, words={"opt.lr": 0.1}))
    keep(store, make_run("adam", 1001, 0.9, words={"opt.lr": 0.1}, environment={"gpu": "H"}, versions={}))  # elsewhere
    (entry,) = collect_from(store).entries
    assert (entry.kind, sorted(seed for seed, _ in entry.runs)) == ("tuned", [0, 1, 2, 3, 4, 70, 71])
    (row,) = rows("quality", store).values()
    assert (row["n"], row["settings"], row["trials"]) == (7, "tuned", 3)


def test_of_several_records_of_a_study_the_one_with_most_trials_counts(store, tmp_path):
    add_tuned(store, "adam", A)
    older, first = tmp_path / "older", seeds("adam", [0.4] * 2, 1000, words={"opt.lr": 0.01})
    study(older, {0.01: 0.3}, {0.01: first}, first[0], name="of-adam")
    for folders in ((store, older), (older, store)):
        (row,) = rows("quality", *folders).values()
        assert (row["n"], row["settings"], row["trials"]) == (5, "tuned", 3)


@pytest.mark.parametrize("lr", [0.001, 50.0])
def test_of_several_studies_the_winner_of_the_largest_is_shown(store, lr):
    add_tuned(store, "adam", A, lr)
    add_tried(store, CHOICE, CHOICE, FRESH, won=0.1, name="a-small")
    winner = make_run("adam", 1000, words={"opt.lr": lr})
    study(store, {lr: 0.5}, {lr: [winner]}, winner, name="a-smaller")  # with the winner of the largest
    (entry,) = collect_from(store).entries
    assert (entry.options["lr"], [len(study.trials) for study in entry.studies]) == (lr, [3, 1])


def test_a_study_that_was_cut_short_has_no_row(store):
    keep(store, *seeds("adam", A))
    for lr in (0.1, 1.0):
        keep(store, *seeds("adamw", [0.9, 0.9], 1000, words={"opt.lr": lr}, plan="study cut"))
    collected = collect_from(store)
    assert [entry.opt for entry in collected.entries] == ["adam"]
    assert collected.notes == ["the study cut has not ended: 4 runs left out"]


def test_a_study_that_gives_no_row_is_named(store):
    lost, won = make_run("sgd", 1000, None, status="diverged"), make_run("adamw", 1000)
    keep(store, *seeds("adam", A), lost, won)
    study(store, {1.0: None}, {1.0: [lost]}, None, name="all-lost", opt="sgd")
    study(store, {1.0: 0.5}, {1.0: [won]}, won, name="no-seeds", opt="adamw")
    study(store, {1.0: 0.5}, {}, make_run("sngd", 1000), name="elsewhere", opt="adam")
    assert collect_from(store).notes == [
        "mnist: sgd has no row from its study all-lost: no trial of 1 has a score",
        "mnist: adam has no row from its study elsewhere: the runs of its trials are not in these stores, so its"
        " winner is unknown",
        "mnist: adamw has no row from its study no-seeds: no run of its winner on fresh seeds has finished",
    ]


FLAGS = [
    ({"part": "100 of 55,000 training images"}, "not the whole task"),
    ({"status": "timeout"}, "stopped by time"),
    ({"cap_share": 0.998}, "mostly SGD at the cap (100% of steps)"),
    ({"saturated_at": 1}, "saturated by one step"),
]


@pytest.mark.parametrize(("change", "flag"), FLAGS)
def test_limitations_of_a_row_are_flagged(store, change, flag):
    keep(store, *seeds("adam", A, words={"opt.lr": 0.2}, **change))
    (row,) = rows("quality", store).values()
    assert row["flags"] == [flag]


def test_entries_with_a_rest_have_short_names_and_its_version(store):
    muon = partial(make_run, "muon", final=0.8)
    keep(store, muon(), muon(seed=1, words={"opt.rest": "sgd"}), muon(words={"opt.rest": "sgd", "opt.rest.lr": 0.5}))
    names = [entry.name for entry in collect_from(store, settings="all").entries]
    assert names == ["muon (rest adamw)", "muon (rest sgd, rest.lr 0.3162)", "muon (rest sgd, rest.lr 0.5)"]
    keep(store, muon(seed=2, versions=VERSIONS | {"rest": 1}), muon(seed=3, versions=VERSIONS | {"rest": 2}))
    with pytest.raises(UserError, match=r"several versions of optimizer adamw: 1 \(1 run\), 2 .*versions\.rest="):
        collect_from(store, only={"opt.rest": "adamw"})


@pytest.mark.parametrize("what", ["torch", "lightning", "task", "contents", "opt", "opt_package", "rest"])
def test_mixed_versions_are_refused_unless_asked_for(store, what):
    keep(store, *seeds("adam", A))
    keep(store, *seeds("adam", A[:2], first=90, versions=make_run().versions | {what: 0}))
    with pytest.raises(UserError, match=rf"several versions of .*0 \(2 runs\).*--only versions\.{what}="):
        collect_from(store)
    (row,) = rows("quality", store, mixed_versions=True).values()
    assert (row["n"], row["flags"]) == (7, [f"mixed versions of {what}"])
    (entry,) = collect_from(store, only={f"versions.{what}": "0"}).entries
    assert len(entry.runs) == 2


def test_budgets_parts_and_task_settings_separate_problems(store):
    epochs = {"trainer.max_steps": None, "trainer.max_epochs": 1}
    for words in ({}, {"trainer.max_steps": 200}, epochs, {"task.depth": 3}):
        keep(store, *seeds("adam", A, words=words))
    keep(store, *(replace(run, run_id=f"{run.run_id}-p", identity={}, part="10 of 20") for run in seeds("adam", A)))
    assert [table.title for table in board("quality", store).tables[1:]] == [
        "mnist, depth 3, max_steps 100",
        "mnist, max_epochs 1",
        "mnist, max_steps 100",
        "mnist, max_steps 100, not the whole task: 10 of 20",
        "mnist, max_steps 200",
    ]


def test_settings_by_hand_are_shown_if_there_is_one_or_on_request(store):
    keep(store, *seeds("adamw", A, words={"opt.lr": 0.1}), *seeds("sgd", A), *seeds("sgd", B, words={"opt.lr": 0.1}))
    keep(store, *seeds("adam", A, words={"opt.lr": 0.1}), *seeds("adam", B, words={"opt.lr": 0.2}))
    collected = collect_from(store)
    assert [(entry.name, entry.kind) for entry in collected.entries] == [("adamw", "by hand"), ("sgd", "default")]
    assert collected.notes == [
        "mnist, max_steps 100: adam is not shown, since it has 2 settings by hand and no rule to choose one: tune it"
        " (bench tune --task mnist --opt adam); --settings all shows all",
        "mnist, max_steps 100: sgd is shown at its default settings, without 1 other setting; --settings all shows all",
    ]
    every = collect_from(store, settings="all", opts=["adam"]).entries
    assert [entry.name for entry in every] == ["adam (lr 0.1)", "adam (lr 0.2)"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"metric": "f1"}, "metric f1"), ({"mode": "min"}, "mode min"), ({"target": 0.5}, "target 0.5")],
)
def test_a_changed_task_of_one_name_is_another_problem(store, change, words):
    keep(store, *seeds("adam", A), *seeds("sgd", B, **change))
    what = words.split()[0]
    names = [problem.name for problem in collect_from(store).problems]
    before = {"metric": "accuracy", "mode": "max", "target": make_run().target}[what]
    assert sorted(names) == sorted(f"mnist, max_steps 100, {item}" for item in (words, f"{what} {before}"))
    assert everything(store)


@pytest.mark.parametrize(
    ("only", "n"),
    [({"trainer.max_steps": "1e2"}, 5), ({"opt.lr": "0.001778"}, 5), ({"engine": "lanes"}, 2), ({"seed": "3"}, 1)],
)
def test_runs_are_chosen_by_settings(store, only, n):
    keep(store, *seeds("adam", A[:3]), *seeds("adam", A[3:], first=3, engine="lanes"))
    (entry,) = collect_from(store, only=only).entries
    assert len(entry.runs) == n


# -- speed ------------------------------------------------------------------------------------------------------------


def reaching(opt: str, steps: list[int | None], **changes: Any) -> list[RunResult]:
    return [
        make_run(opt, seed, 0.9, steps_to_target=at, seconds_to_target=at and at / 10, **changes)
        for seed, at in enumerate(steps)
    ]


@pytest.mark.parametrize(("task", "metric", "target"), [("mnist", "accuracy", 0.6), ("synthetic", "loss", 0.4)])
def test_another_target_is_read_from_the_evaluations(store, task, metric, target):
    evaluated = {metric: 0.5}, {metric: target}, {}
    values = [{"step": 10 * t, "train_s": t, **found} for t, found in enumerate(evaluated, 1)]
    twice = [row | {"evaluations": 2 * row["step"]} for row in values]
    keep(store, *seeds("adam", A, task=task, validations=values))
    keep(store, *seeds("sgd", A, task=task, validations=twice, evaluations=200))
    shown = [(row["count"], row["steps"].median, row["budget"]) for row in rows("speed", store, target=target).values()]
    assert shown == [("5 of 5", 20, 100), ("5 of 5", 40, 200)]


def test_converged_runs_reach_targets_at_the_next_regular_evaluation(store):
    """Else it would need fewer steps than a faster run whose first evaluation is later than its own end."""
    row = {"train_s": 1.0, "loss": 1e-9}
    late = {"steps": 2000, "validations": [{"step": 100, **row}, {"step": 2000, **row}]}
    early = {"steps": 63, "validations": [{"step": 63, **row}], "reason": "converged: the norm of the gradient is 0"}
    words = {"trainer.max_steps": 2000}
    for opt, group in (("gd", late), ("ngd", early)):
        keep(store, *seeds(opt, [1e-9] * 8, task="synthetic", split="train", words=words, **group))
    of = rows("speed", store, target=1e-6)
    assert of["ngd"]["steps"].median == of["gd"]["steps"].median == 100


def test_seconds_stay_within_a_type_of_machine(store):
    keep(store, *reaching("adam", [10, 20, 30]))
    keep(store, *reaching("sgd", [10, 20, 60], environment={"gpu": "H"}, engine="lanes"))
    table = board("speed", store).tables[0]
    by_opt = {row["opt"]: row for row in table.rows}
    here, present = "seconds on abacus, 1 thread, lightning", "seconds on H, lanes"
    assert by_opt["adam"][here].median == 2
    assert by_opt["adam"][present] is by_opt["sgd"][here] is None
    assert by_opt["sgd"][present].median == 2
    assert "machine: (1) H, lanes; (2) abacus, 1 thread, lightning" in table.notes
    (seconds, *_) = [column.title for column in table.columns if column.key == here]
    assert seconds == "median seconds (2)"
    keep(store, *reaching("gd", [10], words={"trainer.num_nodes": 2}))
    keep(store, *reaching("ngd", [10], words={"trainer.devices": 2}))
    by_opt = rows("speed", store)
    for opt in ("gd", "ngd"):
        assert [key for key, value in by_opt[opt].items() if "seconds on" in key and value] == [f"{here}, 2 devices"]


def test_an_optimizer_whose_study_has_no_winner_is_not_compared(store):
    runs = {lr: [make_run("momo", 1000, words={"opt.lr": lr}, status="diverged")] for lr in (0.1, 1.0)}
    keep(store, *(run for group in runs.values() for run in group), *seeds("adam", A))
    study(store, dict.fromkeys(runs), runs, None, name="all-lost", opt="momo")
    ((record, why),) = collect_from(store).unranked
    assert (record.name, why) == ("all-lost", "no trial of 2 has a score")
    assert collect_from(store).notes == [f"mnist: momo has no row from its study all-lost: {why}"]
    keep(store, *seeds("adam", A, task="cifar10"))
    whole, _, mnist = board("quality", store, reference="adam").tables
    assert f"momo is not compared: {why}" in mnist.notes
    keep(store, *seeds("sgd", A))
    assert f"momo is not compared: {why}" in board("pairs", store).tables[0].notes
    (row,) = (row for row in whole.rows if row["opt"] == "momo")
    assert [row[name] for name in row if name != "opt"] == ["no runs", f"not compared: {why}"]
    collected = collect_from(store, reference="adam")
    sentences = {problem.name: headline(collected, problem) for problem in collected.problems}
    assert sentences[mnist.title].endswith("Not compared: momo.")
    keep(store, *seeds("momo", A))  # a row by other means
    assert not any("no trial of" in note for note in board("quality", store, reference="adam").tables[2].notes)


ENTRANTS = ("adam", "sgd", "sngd", "momo")
few = st.sampled_from([None, 0.25, 0.5, 0.75])


@settings(deadline=None, max_examples=40)
@given(st.fixed_dictionaries({opt: st.lists(few, min_size=8, max_size=12) for opt in ENTRANTS}))
def test_no_entrant_changes_the_row_of_another(values: dict[str, list[End]]) -> None:
    def of(some: tuple[str, ...]) -> dict[str, Any]:
        runs = [run for opt in some for run in seeds(opt, values[opt])]
        entries = entries_of(runs, {run.run_id: run for run in runs}, [])
        (table,) = BOARDS["quality"](Collected(entries, entries, {}, lambda *_: {}, reference="adam")).tables
        return {row["opt"]: {k: v for k, v in row.items() if k != "flags"} for row in table.rows}

    every = of(ENTRANTS)
    for count in range(1, len(ENTRANTS)):
        for others in combinations(ENTRANTS[1:], count - 1):
            some = of(("adam", *others))
            assert some == {opt: every[opt] for opt in some}


def test_a_timeout_before_the_target_gives_no_verdict(store):
    keep(store, *(replace(run, steps_to_target=60) for run in seeds("adam", A)))
    keep(store, *(replace(run, status="timeout", steps=10) for run in seeds("sgd", B)))
    table = board("speed", store, target=None).tables[-1]
    verdicts = {"adam": "reference", "sgd": "not compared: a time limit ended runs before the target"}
    assert {row["opt"]: row["verdict"] for row in table.rows} == verdicts


# -- headline ---------------------------------------------------------------------------------------------------------


def test_the_headline_says_in_words_what_the_verdicts_say(store):
    noise = [0.01 * math.sin(seed) for seed in range(9)]
    for opt, shift in (("adamw", 0.0), ("sngd", 0.1), ("sgd", -0.2)):
        keep(store, *seeds(opt, [0.7 + shift + x for x in noise]))
    keep(store, *seeds("adam", [0.7 - x for x in noise]), *seeds("sps", [0.6] * 2))
    keep(store, *seeds("sgd", [0.6 + x for x in noise], name="mine"))
    collected = collect_from(store)
    (problem,) = collected.problems
    assert problem.name == "mnist, max_steps 100"
    first, *others = headline(collected, problem).removesuffix(".").split(". ")
    assert re.fullmatch(r"sngd \(gain 0\.1 \[0\.1, 0\.1\]\) is better than adamw \(default, test accuracy .*\)", first)
    said = ["No difference found: adam", "Worse: mine", "Too few seeds: sps"]
    assert [part.partition(" (gain")[0] for part in others] == said


# -- theory -----------------------------------------------------------------------------------------------------------


def align(store: Path, opt: str, at: list[int | None], **changes: Any) -> None:
    for seed, first in enumerate(at):
        curve = [1.0 if first is not None and step >= first else 0.5 for step in (0, 20, 40, 60)]
        run = make_run(opt, seed, 0.25, **LOSS, **changes)
        keep(store, run, measured={"step": [0, 20, 40, 60], "alignment": curve, "distance": [1.0] * 4})


def test_steps_to_alignment_are_those_of_the_measurements(store):
    align(store, "adam", [20, 40, 60])
    align(store, "ngd", [20, 20, None], facts={"W_mm": {"solved": False, "reason": "infeasible"}})
    table = board("theory", store).tables[0]
    by_opt = {row["opt"]: row for row in table.rows}
    adam, ngd = by_opt["adam"], by_opt["ngd"]
    assert (adam["aligned"], adam["steps"].median, adam["alignment"].mean) == ("3 of 3", 40, 1)
    assert (ngd["aligned"], ngd["steps"].median, ngd["solved"]) == ("2 of 3", 20, "0 of 3")
    assert "no comparison: W_mm is infeasible" in table.notes
    assert (ngd["alignment"].low, ngd["alignment"].high) == (pytest.approx(0.116, abs=1e-3), 1)
