"""Reference results beside the user's, and `bench verify`, which repeats runs of them."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.api.verification import judge
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.text import word_of
from optimizers import OPTIMIZERS
from tasks import TASKS
from tests.conftest import Answer, Cli
from tests.entered import keep, make_run, seeds
from tests.test_cli import strict_json

ROOT = Path(__file__).parents[1]
HERE = {
    "torch": "2.15.0",
    "lightning": "2.6.6",
    "task": TASKS["mnist"].version,
    "opt": OPTIMIZERS["adam"].version,
}
SWEEP = "sweep --task synthetic --opt ngd,gd --opt.lr 0.1,0.3 --seeds 3 --trainer.max_steps 30 --engine lanes"

PLUGIN = """
from pathlib import Path
import torch

Path("imported").touch()


class Halved(torch.optim.SGD):
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr / 2)
"""


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of reference results: seven seeds of adam and sgd on MNIST."""
    folder = tmp_path / "reference"
    monkeypatch.setenv("BENCH_REFERENCE", str(folder))
    shown = [make_run("adam", seed, 0.9 + seed / 100, versions=HERE) for seed in range(7)]
    keep(folder, *shown, *(make_run("sgd", seed, 0.5 + seed / 100, versions=HERE) for seed in range(7)))
    return folder


def last_line(answer: Answer) -> str:
    return answer.err.strip().splitlines()[-1]


def board(cli: Cli, *words: object) -> dict[str, dict]:
    answer = cli("leaderboard", "--json", *words)
    assert answer.code == 0, answer.err
    return {row["opt"]: row for table in strict_json(answer.out)[0]["tables"] for row in table["rows"]}


# -- reference results beside the user's ------------------------------------------------------------------------------


def test_reference_results_are_shown_without_a_store_and_say_what_they_are(cli: Cli, reference: Path) -> None:
    rows = board(cli, "--reference", "adam")
    assert rows["sgd"]["verdict"] == "worse"
    assert rows["adam"]["flags"][0] == "shipped (torch 2.15.0, abacus, 1 thread, lightning)"
    assert "there is no store" in cli("leaderboard", "--no-reference").err
    assert "there is no store" in cli("leaderboard", "--store", "nowhere").err  # a store that is named must exist
    counted = strict_json(cli("sql", "select opt, shipped, count(*) as n from runs group by all", "--json").out)
    assert {tuple(row.values()) for row in counted} == {("adam", True, 7), ("sgd", True, 7)}


def test_an_own_optimizer_is_compared_with_them_whatever_the_version_of_torch(
    cli: Cli, reference: Path, store: Path
) -> None:
    newer = HERE | {"torch": "2.99.0", "lightning": "2.99.0"}
    keep(store, *seeds("adam", [0.95 + seed / 100 for seed in range(7)], name="mine", versions=newer))
    rows = board(cli, "--reference", "adam")
    assert rows["mine"]["verdict"] == "better"
    assert not any("shipped" in flag or "mixed" in flag for flag in rows["mine"]["flags"])
    assert board(cli, "--reference", "adam", "--only", "versions.torch=2.99.0").keys() == {"mine", "adam", "sgd"}
    assert board(cli, "--no-reference").keys() == {"mine"}


def test_an_own_run_takes_the_place_of_the_shipped_one_and_more_seeds_join(
    cli: Cli, reference: Path, store: Path
) -> None:
    keep(store, make_run("adam", 0, 0.2, versions=HERE), make_run("adam", 7, 0.97, versions=HERE))
    answer = cli("leaderboard", "--json", "--reference", "adam")
    assert answer.code == 0
    assert "different results" not in answer.err  # it is no conflict
    row = {row["opt"]: row for row in strict_json(answer.out)[0]["tables"][0]["rows"]}["adam"]
    assert row["n"] == 8
    assert row["flags"][0].startswith("6 of 8 shipped")
    finals = cli("sql", "select final from runs where opt = 'adam' and seed = 0", "--json").out
    assert strict_json(finals) == [{"final": 0.2}]


def test_a_damaged_reference_is_named(cli: Cli, reference: Path) -> None:
    next(reference.glob("mnist-sgd-*/done/runs.jsonl")).write_text("{")
    answer = cli("leaderboard", "--reference", "adam")
    assert answer.code == 1
    assert "it is ignored" in answer.err


@pytest.mark.deep
def test_a_row_is_explained_with_all_that_was_searched(cli: Cli, tmp_path: Path) -> None:
    words = ("--task", "synthetic", "--opt", "gd", "--trainer.max_steps", "5", "--device", "cpu", "--workers", "1")
    assert cli("tune", *words, "--trials", 3, "--seeds", "7,8", "--report_seeds", 3).code == 0
    answer = cli("leaderboard", "--explain", "gd")
    assert answer.code == 0
    lines = (line[2:] for line in answer.out.splitlines() if line.startswith("  ") and line[2] != " ")
    said = {
        label: text for label, _, text in (re.split(r"(\s{2,})", line, maxsplit=1) for line in lines if "  " in line)
    }
    (study,) = Stores([tmp_path / "runs"]).studies
    trials = [trial for trial in study.trials if trial["runs"]]
    assert f"{len(trials)} trials (3 design" in said["searched"]
    assert said["searched"].endswith("each on seeds 7, 8")
    assert "on the split `train`" in said["chosen by"]
    steps = sum(run.steps for run in Stores([tmp_path / "runs"]).runs if run.run_id in study.run_ids)
    assert said["tuning cost"].startswith(f"{2 * len(trials)} runs, {steps:,} gradients of a batch")
    assert said["their cost"].startswith("3 runs, 15 gradients of a batch")
    assert said["shown"] == "train loss of 3 runs, seeds 0 to 2: 3 completed"
    tried = cli("show", study.name).out
    assert all(f"opt.lr {word_of(trial['point']['opt.lr'])} " in tried for trial in trials)
    # Its commands reproduce the stored runs.
    again = next(line.split()[1:] for line in answer.out.splitlines() if "bench tune" in line)
    assert study.name in cli(*again, "--report_seeds", 3, "--workers", 1, "--json").out
    assert "unknown row 'dg'; known: gd" in cli("leaderboard", "--explain", "dg").err


# -- verify -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of twelve runs."""
    from bench.cli import main

    folder = tmp_path_factory.mktemp("swept")
    with pytest.raises(SystemExit) as stop:
        main([*SWEEP.split(), "--store", str(folder / "runs"), "-o", str(folder / "out")])
    assert stop.value.code == 0
    return folder / "runs"


def tampered(store: Path, change: float) -> None:
    """Change the final loss of each run in a store, everywhere in its record."""
    for path in store.glob("*/done/runs.jsonl"):
        lines = []
        for line in path.read_text().splitlines():
            run = json.loads(line)
            run["final"] += change
            run["best"] += change
            for values in run["metrics"].values():
                values["excess"] += change
                values["loss"] += change
            lines.append(json.dumps(run))
        path.write_text("\n".join(lines) + "\n")


def test_runs_are_confirmed_and_invented_numbers_refuted(cli: Cli, swept: Path, tmp_path: Path, store: Path) -> None:
    shutil.copytree(swept, tmp_path / "b")
    answer = cli("verify", tmp_path / "b", "--runs", 2, "--json")
    assert answer.code == 0, answer.err
    assert [each["verdict"] for each in strict_json(answer.out)] == ["confirmed"] * 2
    assert not store.exists()  # they are trained elsewhere
    tampered(tmp_path / "b", 10)
    answer = cli("verify", tmp_path / "b", "--runs", 4, "--json")
    assert answer.code == 1
    assert {each["verdict"] for each in strict_json(answer.out)} == {"refuted"}
    assert all(each["claimed"] > each["repeated"] + 9 for each in strict_json(answer.out))


def test_a_run_that_cannot_be_trained_here_stops_no_other(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    assert cli("fit", "--task", "synthetic", "--opt", "gd", "--trainer.max_steps", 20, "--store", store).code == 0
    keep(store, make_run("gd", task="synthetic", words={"device": "mps"}))
    answer = cli("verify", store, "--runs", 2, "--json")
    assert answer.code == 0, answer.err
    found = {each["verdict"]: each["why"] for each in strict_json(answer.out)}
    assert found.keys() == {"confirmed", "undecided"}
    assert "cannot be trained here" in found["undecided"]


def test_verify_imports_a_plug_in_only_if_it_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/my.py").write_text(PLUGIN)
    store, opt = tmp_path / "runs", "mine/my.py:Halved"
    fitted = cli("fit", "--task", "synthetic", "--opt", opt, "--trainer.max_steps", 20, "--store", store)
    assert fitted.code == 0, fitted.err
    Path("imported").unlink()
    answer = cli("verify", store, "--json")
    (row,) = strict_json(answer.out)
    assert (answer.code, row["verdict"]) == (1, "undecided")  # nothing was repeated
    assert "imported only if you name it too" in row["why"]
    assert not Path("imported").exists()
    (row,) = strict_json(cli("verify", store, "--json", "--opt", opt).out)
    assert row["verdict"] == "confirmed"
    Path("mine/my.py").write_text(PLUGIN + "\n")
    (row,) = strict_json(cli("verify", store, "--json", "--opt", opt).out)
    assert row["verdict"] == "undecided"
    assert "has a different version here" in row["why"]


def runs_of(*finals: float) -> list[RunResult]:
    return [replace(run, metrics={"final": {"accuracy": run.final or 0.0}}) for run in seeds("adam", list(finals))]


def other(run: RunResult, **changes: Any) -> RunResult:
    """The repeated run."""
    again = replace(run, **changes)
    return replace(again, metrics={"final": {"accuracy": again.final or 0.0}})


def test_a_verdict_follows_from_rounding_and_the_noise_of_seeds() -> None:
    claimed, *others = runs_of(0.90, 0.91, 0.92, 0.93, 0.94)
    assert judge(claimed, claimed, others) == ("confirmed", "bit for bit")
    assert judge(claimed, other(claimed, final=0.90 + 1e-8), others)[0] == "confirmed"
    assert judge(claimed, other(claimed, final=0.93), others)[0] == "confirmed"
    assert judge(claimed, other(claimed, final=0.5), others)[0] == "refuted"
    assert judge(other(claimed, final=0.99), claimed, others)[0] == "confirmed"
    assert judge(other(claimed, final=99.0), claimed, others)[0] == "refuted"  # it says nothing about the noise
    assert judge(claimed, other(claimed, final=0.93), others[:1])[0] == "undecided"
    assert judge(claimed, other(claimed, status="diverged", final=None), others)[0] == "refuted"
    lost = [replace(others[0], status="diverged", final=None), *others[1:]]
    assert judge(claimed, other(claimed, status="diverged", final=None), lost)[0] == "undecided"


# -- what is published ------------------------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.deep
def test_the_readme_is_what_the_shipped_results_give() -> None:
    assert subprocess.run([sys.executable, "-m", "tools.publish", "--check"], cwd=ROOT, check=False).returncode == 0


def test_the_report_of_the_shipped_results_is_below_5_megabytes(cli: Cli, tmp_path: Path) -> None:
    shipped = ROOT / "results" / "reference" / "runs"
    assert cli("report", "-o", tmp_path / "r.html", "--store", shipped, "--no-reference").code == 0
    assert (tmp_path / "r.html").stat().st_size < 5e6


def test_shipped_results_are_small_sound_and_without_a_place_of_a_machine() -> None:
    stores = Stores([ROOT / "results" / "reference" / "runs"])
    assert not stores.damaged
    files = [path for path in (ROOT / "results" / "reference").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20e6
    text = b"".join(path.read_bytes() for path in files if path.suffix in (".jsonl", ".json"))
    assert b'"/' not in text
    schedules = {run.run_id: run.config["trainer"]["schedule"] for run in stores.runs}
    budgets: dict[tuple[str, str], set[object]] = {}
    for study in stores.studies:
        (schedule,) = {schedules[run_id] for run_id in study.run_ids}
        fresh = {
            run.run_id
            for run in stores.runs
            if run.run_id not in study.run_ids
            and (run.config["opt"], run.task, schedules[run.run_id]) == (study.opt, study.task, schedule)
        }
        own = budgets.setdefault((study.task, schedule), set())
        own.add((len(study.trials), tuple(study.seeds)))
        if study.winner is None:  # all settings were excluded
            assert not fresh
        else:
            own.add(len(fresh))
    # Equal budgets: trials, tuning seeds and fresh seeds.
    assert budgets
    assert all(len(own) == 2 for own in budgets.values()), budgets
