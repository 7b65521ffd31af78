"""`bench list runs` and `bench show RUN`: lines, folding, filters, orders, narrow terminals, harmless text."""

import json
import re
import shlex
import subprocess
import sys
import time

import pytest

from tests.entered import keep, keep_block, make_run, seeds, study
from tests.stored import WILD, add_run, begin, record
from tests.test_cli import fails

FIT = ("fit", "--task", "synthetic", "--opt", "sngd", "--device", "cpu", "--trainer.max_steps", 20)


def day(number: int) -> str:
    return f"2026-11-{number:02}T12:00:00Z"


def rows(answer) -> list[list[str]]:
    """The cells of the lines, without the head."""
    _, *lines = answer.out.splitlines()
    cells = [re.split(r"\s{2,}", line, maxsplit=7) for line in lines]
    return [[*row, *[""] * (8 - len(row))] for row in cells]


def names(answer) -> list[str]:
    assert answer.code == 0, answer
    return [row[0] for row in rows(answer)]


# -- lines and folding ----------------------------------------------------------------------------------------------


def test_the_newest_comes_first_with_date_seconds_and_metric(cli, store, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    old = make_run("sgd", begun=day(1), wall_s=200.0)
    new = make_run("adam", begun=day(3), wall_s=1.5, final=0.875)
    keep(store, old, new, make_run("sngd", begun=day(2), final=None, best=None, status="diverged"))
    answer = cli("list", "runs")
    monkeypatch.undo()
    time.tzset()
    assert " ".join(answer.out.splitlines()[0].split()) == "run status begun time steps seed result settings"
    first, second, third = rows(answer)
    assert first[:7] == [new.run_id, "completed", "2026-11-03 13:00", "1.5 s", "100", "0", "test accuracy 0.875"]
    assert (second[1], second[6]) == ("diverged", "-")
    assert third[0] == old.run_id
    assert third[3] == "3 min"


def test_runs_that_differ_in_their_seeds_alone_share_a_line(cli, store):
    keep(store, *seeds("adam", [0.5, 0.7, 0.6], begun=day(1), wall_s=5.0), make_run("adam", 7, None, status="diverged"))
    keep(store, make_run("adam", 3, words={"opt.lr": 0.5}), make_run("adam", 8, None, status="failed"))
    answer = cli("list", "runs")
    alike = next(row for row in rows(answer) if row[0] == "mnist-adam-*")
    assert alike[1] == "3 completed, 1 diverged, 1 failed"
    assert alike[3] == "15 s"
    assert alike[5:] == ["5 seeds", "test accuracy 0.55 median", "trainer.max_steps 100"]
    other = next(row for row in rows(answer) if row[0] != "mnist-adam-*")
    assert other[5:] == ["3", "test accuracy 0.5", "opt.lr 0.5  trainer.max_steps 100"]
    assert len(names(cli("list", "runs", "--all"))) == 6


def test_the_runs_of_a_sweep_share_a_line_with_the_best_setting(cli, store):
    def swept(lr: float, final: float, **changes):
        words = {"opt.lr": lr}
        return [make_run("sgd", seed, final, words=words, plan="sweep", begun=day(2), **changes) for seed in (0, 1, 2)]

    keep_block(store, *swept(0.1, 0.5), *swept(0.25, 0.75), *swept(0.5, 0.6))
    keep(store, make_run("sgd", 5, words={"opt.lr": 0.1}, begun=day(1)))
    first, second = rows(cli("list", "runs"))
    assert first[:2] == ["sweep of mnist-sgd", "9 completed"]
    assert first[5:] == ["0 to 2", "test accuracy 0.75 best", "opt.lr 0.25  trainer.max_steps 100"]
    assert second[7] == "opt.lr 0.1  trainer.max_steps 100"
    assert len(rows(cli("list", "runs", "--all"))) == 10


@pytest.fixture
def studied(store):
    """A study of two points with a run that is not recorded in it yet, fresh seeds of the winner, and another run."""
    trials = {lr: [make_run("adam", seed, lr, words={"opt.lr": lr}) for seed in (1000, 1001)] for lr in (0.25, 0.5)}
    for runs in trials.values():
        keep(store, *runs)
    keep(store, make_run("adam", 1000, None, words={"opt.lr": 0.75}, plan="study lr-of-adam", status="failed"))
    study(store, {0.25: 0.25, 0.5: 0.5}, trials, trials[0.5][0], name="lr-of-adam")
    keep(store, *seeds("adam", [0.4, 0.6], words={"opt.lr": 0.5}), make_run("sgd"))
    return store


def test_the_runs_of_a_study_share_a_line(cli, studied):
    lines = {row[0]: row for row in rows(cli("list", "runs"))}
    line = lines["study lr-of-adam"]
    assert line[1] == "4 completed, 1 failed"
    assert line[6:] == ["test accuracy 0.5 best", "opt.lr 0.5  trainer.max_steps 100"]
    assert lines["mnist-adam-*"][5:] == ["0, 1", "test accuracy 0.5 median", "opt.lr 0.5  trainer.max_steps 100"]
    assert len(lines) == 3
    keep(studied, *seeds("adam", [0.7, 0.8, 0.9], words={"opt.lr": 0.5}, plan="study lr-of-adam"))
    lines = {row[0]: row for row in rows(cli("list", "runs"))}
    assert lines["study lr-of-adam"][6] == "test accuracy 0.8 best"  # of its fresh seeds alone


# -- filters, orders, limits ----------------------------------------------------------------------------------------


@pytest.fixture
def several(store):
    kept = {
        "sgd": make_run("sgd", begun=day(1), wall_s=3.0, steps=10, final=0.5),
        "adam": make_run("adam", begun=day(3), wall_s=1.0, steps=30, final=0.25),
        "ngd": make_run("ngd", begun=day(2), wall_s=2.0, steps=20, final=0.125, task="synthetic"),
        "ps": make_run("ps", begun=day(4), wall_s=0.5, steps=5, final=None, status="failed", reason="broke"),
    }
    keep(store, *kept.values())
    return {run.run_id: name for name, run in kept.items()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "ps adam ngd sgd"), ("--task synthetic", "ngd"), ("--task mnist,synthetic --opt sgd,ngd", "ngd sgd"),
        ("--status failed", "ps"), ("--status completed,running", "adam ngd sgd"),
        ("--all --status failed --task mnist", "ps"),
    ],
)  # fmt: skip
def test_filters_and_orders(cli, several, words, expected):
    answer = cli("list", "runs", *words.split())
    assert [several[name] for name in names(answer)] == expected.split()
    assert answer.err == ""
    listed = json.loads(cli("list", "runs", "--json", *words.split()).out)
    assert [several[run["run_id"]] for run in listed] == expected.split()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--task mnst", "no runs of the task 'mnst' in {store}; did you mean 'mnist'?"),
        ("--opt xyz", "no runs of the optimizer 'xyz' in {store}; there are runs of adam, ngd, ps, sgd"),
        ("--status complete", "unknown status 'complete'; did you mean 'completed'?"),
        ("--status x", "unknown status 'x'; known: running, completed, diverged, timeout, failed, killed"),
        ("--task ,", "--task ,: it is empty; write A,B"),
        ("--seed 1", "unknown option '--seed'; "),
    ],
)
def test_bad_words(cli, several, store, words, error):
    assert error.format(store=store) in fails(cli, "list", "runs", *words.split())


# -- terminals ------------------------------------------------------------------------------------------------------


# -- show -----------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_run_is_shown_with_all_that_one_can_do_with_it(cli, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = json.loads(cli(*FIT, "--opt.lr", 0.25, "--json").out)
    out = cli("show", run["run_id"]).out
    assert out.startswith(f"{run['run_id']}: completed\n  task       synthetic: train loss (min)\n")
    assert re.search(r"^  begun      20\d\d-\d\d-\d\d \d\d:\d\d$", out, re.MULTILINE)
    assert re.search(rf"^  train loss +{run['final']:.6g} ", out, re.MULTILINE)
    assert "\nsettings beyond the defaults:\n  --opt.lr 0.25\n" in out
    assert "  opt.max_step inf  " in out
    (repeat,) = (line.strip() for line in out.split("\ncommands:\n")[1].splitlines() if "bench" in line.split()[0])
    assert cli(*shlex.split(repeat)[1:]).code == 0
    assert json.loads(cli("show", tmp_path / "again" / run["run_id"], "--json").out)["final"] == run["final"]
    assert cli("show", store / run["run_id"]).out == out


def test_an_interrupted_run_says_how_it_goes_on(cli, store):
    attempt = begin(store, record("a"))
    attempt.checkpoint.write_bytes(b"")
    attempt.leave([record("a", status="killed", reason="stopped by SIGTERM at step 3", final=None, best=None)])
    out = cli("show", "a").out
    assert re.search(rf"continue it[^\n]*\n? *bench fit --task .* --store {store}\n", out)
    assert "notes:\n  stopped by SIGTERM at step 3\n" in out


def test_nothing_in_a_record_harms_the_terminal_or_the_shell(cli, store):
    evil = "\x1b[31m\n$(touch harmed) `touch harmed`; touch harmed #'\" "
    run = make_run("sgd", name=evil, on=WILD, reason=evil, formula=evil, specimen=f"{evil}\n\x07")
    keep(store, run, make_run("sgd", 1, name=evil, on=WILD, plan=f"study {evil}"))
    for words in (["list", "runs"], ["list", "runs", "--all"], ["list", "runs", "--json"], ["show", run.run_id]):
        answer = cli(*words)
        assert answer.code == 0
        assert not any(sign in answer.out for sign in ("\x1b", "\x07", "\r"))
    commands = [line.strip() for line in cli("show", run.run_id).out.splitlines() if line.startswith("  bench ")]
    (command,) = commands
    program = ["sh", "-c", f"bench() {{ printf '%s\\n' \"$@\"; }}; {command}"]
    words = subprocess.run(program, cwd=store.parent, capture_output=True, text=True, check=True).stdout
    assert "$(touch harmed) `touch harmed`; touch harmed #'\"" in words
    assert not (store.parent / "harmed").exists()


# -- speed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["list", "runs"], ["list", "runs", "--json", "--all"], ["show", "a"]])
def test_runs_are_looked_at_without_torch(store, words):
    add_run(store, "a")
    code = f"import sys; from bench.cli import dispatch; assert dispatch({words!r}) == 0; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = ("torch", "lightning", "optuna", "altair", "scipy", "pandas")
    assert not [name for name in heavy if f"'{name}'" in loaded]
    if words[0] == "list":
        assert "'numpy'" not in loaded


def test_the_result_of_a_run_has_the_same_words_in_fit_and_in_the_list(cli) -> None:
    printed = cli(*FIT).out
    (row,) = rows(cli("list", "runs"))
    assert f", {row[6]}, " in printed
