"""Studies on Slurm: the script of `bench tune --slurm` on a real one, with PostgreSQL."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.execute import Effort
from bench.grammar.values import read_memory
from bench.process import bench_command
from bench.store.store import Store
from bench.store.stores import Stores
from bench.tuning.space import point_key
from bench.tuning.studies import Studies
from bench.tuning.trials import Request, StudySpec
from bench.tuning.tune import make_spec, slurm_script, worker_words
from tests.daemons import until
from tests.slow import GATE, HELD, SLOW
from tests.slurm import Slurm


def script_of(made: StudySpec, *args: Any) -> str:
    return slurm_script("s", worker_words("s", made), [(made, 9)], *args)


WORDS = ["--task", "synthetic", "--opt", SLOW, "--opt.lr", "1e-2:1e0"]
WORDS += ["--trials", "3", "--seeds", "1", "--report_seeds", "2"]
# Three seconds of sleep, to be interrupted midway: each evaluation and measurement notices a signal.
WORDS += ["--trainer.max_steps", "300", "--trainer.val_every", "20", "--engine", "lightning"]


def bench(*words: str, env: dict[str, str], cwd: Path) -> str:
    command = [sys.executable, "-m", "bench.cli", *words]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def spec(tmp_path: Path, **settings: str) -> StudySpec:
    words = {"task": "synthetic", "opt": "ngd", **settings}
    places = {"data": tmp_path, "store": tmp_path}
    return make_spec(words, sampler=None, seeds=[1000], report_seeds=[0], prune=False, places=places)


def test_script_asks_for_a_gpu_a_task(tmp_path: Path) -> None:
    text = script_of(spec(tmp_path), "4", {"data": "d", "store": tmp_path}, Effort(), "--partition=gpu")
    assert "#SBATCH --array=0-3" in text
    assert "#SBATCH --gres=gpu:1" in text
    assert "#SBATCH --partition=gpu" in text
    assert "--study s " in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_script_for_a_cpu_asks_for_no_gpu_and_auto_has_no_more_tasks_than_trials(tmp_path: Path) -> None:
    text = script_of(spec(tmp_path, device="cpu"), "auto", {"data": "d", "store": tmp_path}, Effort(), "")
    assert "gres" not in text
    assert "#SBATCH --array=0-7" in text


def test_a_script_says_how_runs_are_made(tmp_path: Path) -> None:
    effort = Effort("lanes", 3, read_memory("2G"))
    text = script_of(spec(tmp_path), "4", {"store": tmp_path}, effort, "")
    assert " --engine lanes --width 3 --memory 2G " in text


WORDS_OF_A_SCRIPT = ("tune", "--task", "synthetic", "--opt", "gd", "--slurm", "--print", "--device", "cpu")


NOWHERE = "postgresql+psycopg://me:secret@127.0.0.1:1/none"
"""A database that does not exist."""
PUT = "must be in the database with these settings: the same command with --create instead of --slurm --print"


@pytest.mark.parametrize("storage", [None, NOWHERE, "sqlite:///new.db", "nonsense"])
@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_script_is_printed_without_a_database(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str | None, by: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCH_STORAGE", raising=False)
    if storage and by == "variable":
        monkeypatch.setenv("BENCH_STORAGE", storage)
    answer = cli(*WORDS_OF_A_SCRIPT, *(["--storage", storage] if storage and by == "option" else []))
    assert answer.code == 0, answer.err
    assert answer.out.startswith("#!/bin/bash\n")
    assert answer.err.startswith("bench: study synthetic-gd-")
    where = "" if storage else " and with --storage URL"
    assert answer.err.endswith(f"{PUT}{where} puts it there\n")
    assert "secret" not in answer.out + answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "0"), "--workers 0: write how many (--workers 2), or auto"),
        (("--sbatch", "'"), "--sbatch ': no closing quotation"),
    ],
)
def test_words_that_fit_in_no_script(cli, words: tuple[str, ...], message: str) -> None:
    refused = cli(*WORDS_OF_A_SCRIPT, *words)
    assert (refused.code, refused.out, refused.err) == (2, "", f"bench: error: {message}\n")


def test_a_study_is_put_into_its_database_for_a_printed_script(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCH_STORAGE", raising=False)
    url, words = f"sqlite:///{tmp_path}/s.db", (*WORDS_OF_A_SCRIPT[:5], "--name", "s", "--engine", "lanes")
    answer = cli(*words, "--trials", 5, "--create", "--storage", url, "--device", "cpu")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == (
        f"study s is in {url}; to work on it: bench worker --study s\n"
        "when it is done: bench tune --resume s writes the settings; bench studies s shows its progress\n"
    )
    assert Studies(url).open("s").request == Request(trials=5, engine="lanes")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("s.db")] == []
    before = (tmp_path / "s.db").read_bytes()
    for more, said in (((), False), (("--trials", 7), True), (("--engine", "auto"), True)):
        shown = cli("tune", "--resume", "s", "--slurm", "--print", "--storage", url, *more)
        assert shown.code == 0, shown.err
        assert (PUT in shown.err) == said, more
        assert ("--engine lanes" in shown.out) == (more != ("--engine", "auto"))
    assert (tmp_path / "s.db").read_bytes() == before


HARD = "a folder of 100% 'odd' \"names\" #1, with $HOME; and &"


def test_paths_with_spaces_survive_in_the_script(tmp_path: Path) -> None:
    places = {"data": tmp_path / HARD, "store": tmp_path / HARD}
    text = script_of(spec(tmp_path), "4", places, Effort(), "'--comment=a b' -p gpu")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    (line,) = (line.removesuffix(" &") for line in text.splitlines() if " -m bench " in line)
    words = shlex.split(line)
    assert words[:5] == bench_command("worker")
    assert words[words.index("--store") + 1] == words[words.index("--data") + 1] == str(tmp_path / HARD)
    assert '#SBATCH "--comment=a b" -p gpu' in text
    plain = script_of(spec(tmp_path), "4", {"store": "/a b"}, Effort(), "")
    assert '#SBATCH "--output=/a b/slurm-%A_%a.log"' in plain


@pytest.mark.parametrize("name", ["back\\slash", "two\nlines"])
def test_a_path_that_no_script_can_hold_is_refused(cli, name: str) -> None:
    answer = cli(*WORDS_OF_A_SCRIPT, "--store", f"/{name}")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.endswith("sbatch cannot read a path with a backslash or a line break; choose another folder\n")
    assert answer.err.startswith("bench: error: --store '/")


def test_slurm_reads_paths_with_spaces_from_the_script(slurm, tmp_path: Path) -> None:
    folder = tmp_path / HARD
    folder.mkdir()
    text = script_of(spec(tmp_path, device="cpu"), "1", {"store": folder}, Effort(), "'--comment=a b' -J me")
    head = [line for line in text.splitlines() if line.startswith(("#!", "#SBATCH"))]
    path = folder / "slurm s.sh"
    path.write_text("\n".join([*head, "echo it ran in $SLURM_JOB_NAME", ""]))
    job = slurm("sbatch", "--parsable", path).strip()
    until(lambda: not slurm("squeue", "-h"), "the array has ended", seconds=120)
    assert (folder / f"slurm-{job}_0.log").read_text() == "it ran in me\n"


def test_no_password_of_the_database_is_printed_with_a_script(
    cli, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    password = postgres_url.split(":")[2].partition("@")[0]
    for words in (WORDS_OF_A_SCRIPT, (*WORDS_OF_A_SCRIPT[:5], "--create", "--device", "cpu")):
        answer = cli(*words, "--name", "s", "--trials", "5", "--storage", postgres_url)
        assert answer.code == 0, answer.err
        assert password not in answer.out + answer.err
        assert Studies(postgres_url).names() == (["s"] if "--create" in words else [])
    assert Studies(postgres_url).open("s").request.trials == 5


def test_array_survives_a_requeue_and_each_task_has_its_gpu(slurm, postgres_url: str, tmp_path: Path) -> None:
    env = os.environ | slurm.env | {"BENCH_STORAGE": postgres_url, "OMP_NUM_THREADS": "1"}
    said = bench("tune", *WORDS, "--workers", "2", "--name", "s", "--store", "runs", "--slurm", env=env, cwd=tmp_path)
    assert "Submitted batch job" in said
    job = said.split("Submitted batch job ")[1].partition(",")[0]
    made = Studies(postgres_url).open("s")

    def at_work() -> list[dict[str, Any]]:
        workers = [trial.worker for trial in made.trials() if trial.state == "running"]
        return workers if len(workers) == 2 else []

    before = until(at_work, "both tasks have a trial", seconds=120)
    assert {worker["gpus"] for worker in before} == {"0", "1"}
    slurm.requeue(f"{job}_1")
    until(lambda: not slurm("squeue", "-h"), "the array has ended", seconds=900)
    trials = made.trials()
    assert [trial.state for trial in trials] == ["completed"] * len(trials)
    assert sum(trial.kind == "fresh" for trial in trials) == 2
    assert len({point_key(trial.point) for trial in trials if not trial.fresh}) == sum(not t.fresh for t in trials)
    assert "Restarts=1" in slurm("scontrol", "show", "job", f"{job}_1")
    found = bench("tune", "--resume", "s", "--opt", SLOW, "--store", "runs", "--out", "out", env=env, cwd=tmp_path)
    assert "fresh" in found
    assert (tmp_path / "out" / "synthetic" / "slow.Slow.yaml").is_file()


def _requeue_a_task(slurm: Slurm, said: str, gate: Path) -> None:
    """Requeue one of two tasks of a submitted array while both train, and wait for the end."""
    job = said.split("Submitted batch job ")[1].partition(",")[0]
    until(lambda: len(list(gate.glob("trains-*"))) == 2, "both tasks train", seconds=900)
    (gate / "open").touch()
    slurm.requeue(f"{job}_1")
    until(lambda: not slurm("squeue", "-h"), "the array has ended", seconds=900)
    assert "Restarts=1" in slurm("scontrol", "show", "job", f"{job}_1")


@pytest.mark.deep
def test_a_suite_as_an_array_survives_a_requeue(slurm, postgres_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    env = os.environ | slurm.env | {"BENCH_STORAGE": postgres_url, "OMP_NUM_THREADS": "1", GATE: str(gate)}
    suite = tmp_path / "two.yaml"
    settings = {"trainer.max_steps": 300, "trainer.val_every": 20, "device": "cpu"}
    tune = {"trials": 4, "seeds": 1}
    asked = {"title": "two", "tasks": ["synthetic"], "optimizers": {HELD: {"opt.lr": "1e-2:1e0"}, "gd": {}}, "seeds": 1}
    suite.write_text(json.dumps({**asked, "settings": settings, "tune": tune}))
    words = ["suite", str(suite), "--engine", "lightning", "--store", "runs"]
    said = bench(*words, "--slurm", "--workers", "2", env=env, cwd=tmp_path)
    _requeue_a_task(slurm, said, gate)
    assert not (tmp_path / "tuned").exists()
    studies = Studies(postgres_url)
    assert {trial.state for name in studies.names() for trial in studies.open(name).trials()} == {"completed"}
    shown = bench(*words, "--workers", "1", env=env, cwd=tmp_path)
    assert "written to tuned" in shown
    assert sorted(path.name for path in (tmp_path / "tuned").rglob("*.yaml")) == ["gd.yaml", "slow.Held.yaml"]


@pytest.mark.deep
def test_a_ladder_as_an_array_survives_a_requeue(slurm, postgres_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    env = os.environ | slurm.env | {"BENCH_STORAGE": postgres_url, "OMP_NUM_THREADS": "1", GATE: str(gate)}
    words = ["ladder", "--task", "synthetic", "--opt", f"{HELD},gd", "--reference", "gd", "--axis", "width"]
    words += ["--rungs", "2", "--trials", "3", "--sampler", "qmc", "--seeds", "1", "--report_seeds", "2"]
    words += ["--trainer.max_steps", "40", "--trainer.val_every", "20", "--device", "cpu", "--engine", "lightning"]
    words += ["--opt.lr", "1e-2:1e0", "--store", "runs"]
    said = bench(*words, "--slurm", "--workers", "2", env=env, cwd=tmp_path)
    _requeue_a_task(slurm, said, gate)
    stores = Stores([tmp_path / "runs"])
    (record,) = stores.ladders
    assert len(record.done) == 2
    before = sorted(run.run_id for run in stores.runs)
    assert len(before) == 2 * 2 * (3 + 2)
    shown = bench(*words, "--workers", "1", "-o", "out", env=env, cwd=tmp_path)
    assert "Ranking at each rung" in shown
    assert sorted(run.run_id for run in Stores([tmp_path / "runs"]).runs) == before


@pytest.mark.deep
def test_a_task_that_reaches_its_time_limit_is_requeued_and_continues(slurm, tmp_path: Path) -> None:
    steps, env = 9000, os.environ | slurm.env | {"OMP_NUM_THREADS": "1"}
    words = ["sweep", "--task", "synthetic", "--opt", SLOW, "--opt.lr", "0.1", "--seeds", "1", "--store", "runs"]
    words += ["--trainer.max_steps", str(steps), "--trainer.val_every", "50", "--device", "cpu"]
    words += ["--engine", "lightning", "--slurm", "--workers", "1"]
    limits = "--sbatch=--time=2 --signal=B:USR1@90"  # 90 s before two minutes, as far as Slurm looks every 30 s
    said = bench(*words, limits, env=env, cwd=tmp_path)
    job = said.split("Submitted batch job ")[1].partition(",")[0] + "_0"

    def state() -> str:
        return slurm("squeue", "--noheader", "--format=%T %r", f"--jobs={job}")

    until(lambda: state() == "PENDING BeginTime", "the task is requeued", seconds=150)
    (before,) = Store(tmp_path / "runs").runs()
    assert before.status == "killed"
    time.sleep(5)  # Slurm lets it wait for two minutes, in which the node cleans up
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=10")
    until(lambda: not slurm("squeue", "-h"), "the array has ended", seconds=300)
    ended = slurm("scontrol", "show", "job", job)
    assert "Restarts=1" in ended
    (run,) = Store(tmp_path / "runs").runs()
    assert (run.status, run.steps) == ("completed", steps), ended
    curve = Store(tmp_path / "runs").tables(run.run_id)["curve"]["step"]
    assert curve.tolist() == list(range(1, steps + 1))
