"""Studies on Slurm: the script of `bench tune --slurm` on a real one, with PostgreSQL."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.tuning.slurm import script
from bench.tuning.space import point_key
from bench.tuning.studies import Studies
from bench.tuning.trials import StudySpec
from bench.tuning.tune import make_spec
from tests.daemons import until
from tests.slow import SLOW

WORDS = ["--task", "synthetic", "--opt", SLOW, "--opt.lr", "1e-2:1e0"]
WORDS += ["--trials", "3", "--seeds", "1", "--report_seeds", "2"]
# Three seconds of sleep, to be caught in the middle: each evaluation and measurement hears a signal.
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
    text = script("s", spec(tmp_path), 9, "4", {"data": "d", "store": tmp_path}, "auto", ["--partition=gpu"])
    assert "#SBATCH --array=0-3" in text
    assert "#SBATCH --gres=gpu:1" in text
    assert "#SBATCH --partition=gpu" in text
    assert "--study s " in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_script_for_a_cpu_asks_for_no_gpu_and_auto_has_no_more_tasks_than_trials(tmp_path: Path) -> None:
    text = script("s", spec(tmp_path, device="cpu"), 9, "auto", {"data": "d", "store": tmp_path}, "auto", [])
    assert "gres" not in text
    assert "#SBATCH --array=0-7" in text


WORDS_OF_A_SCRIPT = ("tune", "--task", "synthetic", "--opt", "gd", "--slurm", "--print", "--device", "cpu")


def test_a_script_is_printed_without_a_database(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCH_STORAGE", raising=False)
    answer = cli(*WORDS_OF_A_SCRIPT)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("#!/bin/bash\n")
    assert answer.err.startswith("bench: no --storage was given, so study synthetic-gd-")
    assert list(tmp_path.iterdir()) == []
    for words, message in (
        (("--workers", "0"), "--workers 0: write how many tasks the array has (--workers 8), or auto"),
        (("--sbatch", "'"), "--sbatch ': no closing quotation"),
    ):
        refused = cli(*WORDS_OF_A_SCRIPT, *words)
        assert (refused.code, refused.out, refused.err) == (2, "", f"bench: error: {message}\n")


def test_with_a_database_the_study_of_a_printed_script_is_there_and_no_password_in_it(
    cli, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = cli(*WORDS_OF_A_SCRIPT, "--name", "s", "--trials", "5", "--storage", postgres_url)
    assert (answer.code, answer.err) == (0, "")
    assert Studies(postgres_url).open("s").request.trials == 5
    assert "--array=0-4" in answer.out
    assert postgres_url.split(":")[2].partition("@")[0] not in answer.out


@pytest.mark.slurm
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
    until(lambda: not slurm("squeue", "-h"), "the array has ended", seconds=300)
    trials = made.trials()
    assert [trial.state for trial in trials] == ["completed"] * len(trials)
    assert sum(trial.kind == "fresh" for trial in trials) == 2
    assert len({point_key(trial.point) for trial in trials if not trial.fresh}) == sum(not t.fresh for t in trials)
    assert "Restarts=1" in slurm("scontrol", "show", "job", f"{job}_1")
    found = bench("tune", "--resume", "s", "--opt", SLOW, "--store", "runs", "--out", "out", env=env, cwd=tmp_path)
    assert "fresh" in found
    assert (tmp_path / "out" / "synthetic" / "slow.Slow.yaml").is_file()
