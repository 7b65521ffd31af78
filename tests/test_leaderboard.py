"""`bench leaderboard`: its output for people, programs and pages; refusals; a real study."""

import json
import re
from pathlib import Path

import pytest
import torch

from bench.api.boards import BOARD_NAMES
from bench.check import catalogue
from bench.check.run import report_of, verdict_of, write
from bench.config.values import community_folders
from bench.results.render import FORMATS
from bench.store.stores import Stores
from tests.entered import add_tuned, keep, make_run, seeds
from tests.stored import Store
from tests.test_cli import strict_json

A, B = [0.81, 0.84, 0.80, 0.86, 0.83], [0.70, 0.72, 0.69, 0.77, 0.71]


@pytest.fixture
def filled(store: Path) -> Path:
    add_tuned(store, "adam", A)
    keep(store, *seeds("sgd", B), *seeds("adam", B))
    return store


# -- for people and programs ------------------------------------------------------------------------------------------


def test_the_table_shows_settings_scores_verdicts_and_the_reference(cli, filled):
    answer = cli("leaderboard", "--reference", "adam", "--board", "quality")
    assert (answer.code, answer.err) == (0, "")
    title, _, _, problem, _, head, first, second, *notes = answer.out.splitlines()
    assert (title, problem) == ("Quality at a fixed budget", "mnist, max_steps 100")
    heads = ["optimizer", "settings", "test accuracy", "against adam (tuned)", "won", "gain over adam (tuned)"]
    assert re.split(r"\s{2,}", head.strip())[:6] == heads
    assert re.split(r"\s{2,}", first.strip())[:6] == ["adam", "tuned", "0.828 [0.7984, 0.8576]", "reference", "-", "-"]
    sgd = ["sgd", "default", "0.718 [0.6793, 0.7567]", "too few seeds (5 of 7)", "0 of 5", "-0.11", "after 7 to 10"]
    assert re.split(r"\s{2,}", second.strip())[:7] == sgd
    assert "  note: not tuned, so at a disadvantage: sgd" in notes


def test_the_verdicts_come_first_and_fit_forty_lines(cli, filled):
    for i in range(45):
        keep(filled, *seeds("sgd", B, name=f"own.py:Opt{i}"))
    out = cli("leaderboard", "--reference", "adam").out
    assert len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 100
    assert re.search(r"● own.py:Opt0 +\? 0\.718", out)
    assert "further optimizers: bench leaderboard --all" in out
    assert "Quality at a fixed budget" in cli("leaderboard", "--all").out


def test_rows_of_the_community_are_shown_on_request_and_marked(cli, filled, tmp_path, monkeypatch):
    submitted = tmp_path / "community" / "someone" / "runs"
    add_tuned(submitted, "ngd", A)
    monkeypatch.setattr("bench.output.community_folders", lambda: [submitted])
    words = ("leaderboard", "--board", "quality", "--reference", "adam", "--json")
    assert "ngd" not in cli(*words).out
    (board,) = strict_json(cli(*words, "--community").out)
    flags = {row["opt"]: " ".join(row["flags"]) for table in board["tables"] for row in table["rows"]}
    assert flags.keys() == {"adam", "sgd", "ngd (community: someone)"}
    assert flags["ngd (community: someone)"].startswith("submitted (torch")
    assert "ngd (community: someone)" in cli("leaderboard", "--community").out


@pytest.mark.parametrize("runs", community_folders(), ids=lambda runs: runs.parent.name)
def test_submissions_have_finished_runs_of_the_named_tasks(runs):
    fields = dict(line.split(": ", 1) for line in (runs.parent / "README.md").read_text().splitlines()[:3])
    assert list(fields) == ["optimizer", "packages", "tasks"]
    stores = Stores([runs])
    assert {run.config["task"] for run in stores.runs if run.finished} == {*fields["tasks"].split(",")}
    assert {(study.opt, study.missing) for study in stores.studies} == {(fields["optimizer"], 0)}
    assert not stores.damaged


@pytest.mark.parametrize("ending", [".txt", *(f".{kind}" for kind in FORMATS if kind != "table")])
def test_all_boards_have_the_same_bytes_in_every_format(cli, filled, tmp_path, ending):
    files = [tmp_path / f"{name}{ending}" for name in ("first", "second")]
    assert [cli("leaderboard", "--all", "-o", file).code for file in files] == [0, 0]
    assert files[0].read_bytes() == files[1].read_bytes() != b""


def check(store: Path, opt: str, word: str, *, version: int = 1, of: str = "groups", **options: str) -> None:
    write(store, report_of(opt, options, [verdict_of(catalogue()[of], {"verdict": word})], {"version": version}))


def test_verdicts_of_this_version_of_an_optimizer_are_shown(cli, filled, tmp_path):
    check(filled, "adam", "fail", of="syncs")  # a minor failure: it neither changes results nor blocks a set-up
    check(filled, "adam", "fail", version=2)
    check(filled, "adam", "fail", rest="sgd")  # on both methods together, beside the report on adam alone
    check(filled, "sgd", "pass")
    check(tmp_path / "other", "sgd", "error")  # if the results of two machines differ, the worse one counts
    words = ["leaderboard", "--store", str(filled), "--store", str(tmp_path / "other"), "--json"]
    rows = strict_json(cli(*words).out)[0]["tables"][0]["rows"]
    assert {row["opt"]: row["conformance"] for row in rows} == {"adam": "pass", "sgd": "fails groups"}


def test_boards_are_asked_for_by_name(cli, filled):
    (one, other) = strict_json(cli("leaderboard", "--board", "theory,speed,theory", "--json").out)
    assert (one["board"], other["board"]) == ("theory", "speed")
    every = strict_json(cli("leaderboard", "--all", "--json").out)
    assert [item["board"] for item in every] == list(BOARD_NAMES)
    refused = cli("leaderboard", "--board", "qualty")
    assert (refused.code, refused.err) == (2, "bench: error: unknown board 'qualty'; did you mean 'quality'?\n")


def test_a_function_of_ones_own_is_a_board(cli, filled, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def board(runs):\n    table = runs.groupby(['problem', 'name'])[['final']].max()\n"
        "    table.attrs['notes'] = [f'{runs[\"opt.lr\"].nunique()} rates']\n    return table\n\n\n"
        "def none(runs):\n    return 1\n\n\ndef broken(runs):\n    return runs['x']\n\n\n"
        "def twice(runs):\n    return runs[['name', 'name']]\n"
    )
    (board,) = strict_json(cli("leaderboard", "--board", f"{path}:board", "--json").out)
    problem = "mnist, max_steps 100"
    assert [[*row.values()] for row in board["tables"][0]["rows"]] == [[problem, "adam", 0.86], [problem, "sgd", 0.77]]
    assert board["notes"] == ["2 rates"]
    wrong = {"none": "a pandas DataFrame", "broken": "raises KeyError", "bord": "'board'", "twice": "'name' twice"}
    for name, message in wrong.items():
        answer = cli("leaderboard", "--board", f"{path}:{name}")
        assert (answer.code, message in answer.err.splitlines()[-1]) == (2, True), answer.err


# -- damaged stores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "says"), [(False, "there is no store"), (True, "there are no runs in")])
def test_an_empty_store_says_what_to_run(cli, store, make, says):
    if make:
        store.mkdir()
    answer = cli("leaderboard")
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
    assert "bench fit --task synthetic --opt ngd" in answer.err


def test_a_store_without_finished_runs_says_so(cli, store):
    keep(store, make_run("sgd", 0, None, status="killed"))
    answer = cli("leaderboard")
    assert (answer.code, answer.out) == (2, "")
    assert "note: mnist, max_steps 100: no run of sgd has finished (1 killed)" in answer.err
    why = "no optimizer has finished runs at one setting here; `bench list runs` shows all runs"
    assert f"nothing to compare: {why}" in answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--only", "lr"), "write NAME=VALUE"),
        (("--only", "opt.lrr=1"), "did you mean 'opt.lr'"),
        (("--opt", "addam"), "did you mean 'adam'"),
        (("--task", ","), "it is empty"),
        (("--target", "nan"), "not a finite number"),
        (("--target", "x"), "--target x: it must be a number"),
        (("--reference", "sgdd"), "did you mean 'sgd'"),
        (("--settings", "worst"), "unknown settings 'worst'"),
    ],
)
def test_misspelt_words_are_one_line(cli, filled, words, says):
    answer = cli("leaderboard", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert says in answer.err


# -- from tuning to a board -------------------------------------------------------------------------------------------

SMALL = ("--task", "synthetic", "--opt", "sgd", "--opt.lr", "1e1:1e4", "--trainer.max_steps", 40, "--device", "cpu")


@pytest.mark.deep
def test_a_study_and_seeds_by_hand_are_one_row(cli, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    study = ("tune", *SMALL, "--trials", 3, "--seeds", 2, "--report_seeds", 3, "--workers", 1, "--engine", "lanes")
    assert cli(*study).code == 0
    lr = json.loads(cli("list", "studies", "--json").out)[0]["best"].split()[-1]
    (row,) = strict_json(cli("leaderboard", "--json").out)[0]["tables"][0]["rows"]
    assert (row["opt"], row["settings"], row["n"], row["trials"]) == ("sgd", "tuned", 3, 3)

    hand = [word if word != "1e1:1e4" else lr for word in SMALL]
    for seed in (7, 8, 1000):  # the last is a tuning seed
        assert cli("fit", *hand, "--seed", seed).code == 0
    answer = cli("leaderboard", "--json")
    (row,) = strict_json(answer.out)[0]["tables"][0]["rows"]
    assert (answer.code, row["settings"], row["n"]) == (0, "tuned", 5)
    used = {run.run_id: run.config["seed"] for run in Store(store).runs()}
    assert sorted(used[run_id] for run_id in row["run_ids"]) == [0, 1, 2, 7, 8]
