"""The test servers behave as the tests of `bench tune` require."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.daemons import daemon, until
from tests.slurm import Slurm

if TYPE_CHECKING:
    from tests.postgres import Server

# A process that reports its signals in the file $1. Python without site-packages starts at once.
PROCESS = f"""{sys.executable} -I -c '
import os, signal, sys, time
from pathlib import Path

def say(what):
    with Path(sys.argv[1]).open("a") as file:
        print(what, file=file)

def leave(number, frame):
    say("SIGTERM")
    time.sleep(1)
    say("end")
    sys.exit()

signal.signal(signal.SIGTERM, leave)
say("start " + os.environ.get("SLURM_RESTART_COUNT", "0"))
time.sleep(600)
' $1.$SLURM_ARRAY_TASK_ID"""


def lines(log: Path) -> list[str]:
    return log.read_text("utf-8").splitlines() if log.exists() else []


def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    words = ["sh", "-c", "echo no such port; exit 3"]
    message = r"sh: does not start \(ended with 3\); its log ends:\nno such port"
    with pytest.raises(RuntimeError, match=message):  # noqa: SIM117
        with daemon(words, tmp_path / "log", lambda: False):
            pass


def test_a_server_ends_with_the_process_that_started_it_however_that_ends(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tests.daemons import daemon
log = Path({str(tmp_path)!r}, "log")
with daemon(["sh", "-c", "echo $$; exec sleep 600"], log, log.read_text):
    print(log.read_text(), flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = Path("/proc", parent.stdout.readline().decode().strip())
        assert child.exists()
        parent.kill()
        until(lambda: not child.exists(), "the end of the server", 10)


@pytest.mark.parametrize("time", ["first", "second"])
def test_each_test_has_a_fresh_database(time: str, postgres_url: str) -> None:
    engine = create_engine(postgres_url, poolclass=NullPool)
    assert inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bench (x int)"))
    assert inspect(engine).get_table_names() == ["bench"]


def test_a_fresh_database_does_not_wait_for_who_uses_the_old_one(postgres_url: str, postgres_server: "Server") -> None:
    engine = create_engine(postgres_url, poolclass=NullPool)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
        assert postgres_server.fresh() == postgres_url
        with pytest.raises(OperationalError, match="terminating connection"):
            connection.scalar(text("SELECT 1"))


def test_postgresql_asks_for_the_password(postgres_url: str, postgres_server: "Server") -> None:
    url = postgres_url.replace(postgres_server.password, "wrong")
    with pytest.raises(OperationalError, match="password authentication failed"):
        create_engine(url, poolclass=NullPool).connect()


def test_tasks_of_an_array_run_at_once_with_a_gpu_each(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n"
        "echo $CUDA_VISIBLE_DEVICES >gpu.$SLURM_ARRAY_TASK_ID\n"
        "while ! [ -e gpu.0 -a -e gpu.1 ]; do sleep 0.1; done\n"
        "echo met >met.$SLURM_ARRAY_TASK_ID\n"
    )
    job = slurm("sbatch", "--parsable", "--array=0-1", "--gres=gpu:1", script, cwd=tmp_path)
    assert job.isdecimal()
    until(lambda: not slurm("squeue", "--noheader"), "the end of the job")
    assert [lines(tmp_path / f"met.{task}") for task in (0, 1)] == [["met"], ["met"]]
    assert {*lines(tmp_path / "gpu.0"), *lines(tmp_path / "gpu.1")} == {"0", "1"}


def requeued(shell: str, slurm: Slurm, folder: Path) -> list[str]:
    """The log of a task that is requeued while another task of its array keeps running."""
    script, log, other = folder / "job.sh", folder / "log.1", folder / "log.0"
    script.write_text(f"#!/bin/bash\n{shell.format(PROCESS)}\n")
    words = ["sbatch", "--parsable", "--requeue", "--array=0-1", "--gres=gpu:1"]
    job = slurm(*words, script, folder / "log", cwd=folder)
    until(lambda: lines(log) == lines(other) == ["start 0"], "the start of both tasks")
    slurm.requeue(f"{job}_1")
    until(lambda: lines(log)[-1] == "start 1", "the second start")
    assert lines(other) == ["start 0"]
    assert "Restarts=1" in slurm("scontrol", "show", "job", f"{job}_1")
    return lines(log)


@pytest.mark.parametrize("shell", ["exec {}", "trap : TERM\n{}", "trap : TERM\n{} & wait; wait"])
def test_requeueing_a_task_sends_sigterm_to_all_its_processes_and_starts_it_again(
    shell: str, slurm: Slurm, tmp_path: Path
) -> None:
    assert requeued(shell, slurm, tmp_path) == ["start 0", "SIGTERM", "end", "start 1"]


def test_a_batch_shell_that_dies_of_sigterm_takes_its_processes_along(slurm: Slurm, tmp_path: Path) -> None:
    assert "end" not in requeued("{}\necho", slurm, tmp_path)


def test_the_signal_before_the_time_limit_goes_to_the_batch_shell_only(slurm: Slurm, tmp_path: Path) -> None:
    words = ["sbatch", "--parsable", "--time=1", "--signal=B:TERM@30", "--output=/dev/null"]
    jobs = {}
    for name, shell in (("exec", "exec {}"), ("trap", "trap 'echo shell >>$1.' TERM\n{}")):
        script = tmp_path / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n{shell.format(PROCESS)}\n")
        jobs[name] = slurm(*words, script, tmp_path / name)
    # Slurm checks every 30 s which jobs end soon.
    until(lambda: slurm("squeue", "--noheader", "--format=%i") == jobs["trap"], "the end of one job", 90)
    assert lines(tmp_path / "exec.") == ["start 0", "SIGTERM", "end"]
    assert lines(tmp_path / "trap.") == ["start 0"]


def test_nothing_is_left_of_a_closed_slurm(slurm: Slurm, tmp_path: Path) -> None:
    other = Slurm()
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nsetsid sleep 987654 &\necho $! >left\nexec sleep 987653\n")
    other("sbatch", "--output=/dev/null", script, cwd=tmp_path)
    until(lambda: lines(tmp_path / "left"), "the start of the job")
    other.close()
    assert not other.folder.exists()
    marked = [path for path in Path("/proc").glob("[0-9]*/environ") if str(other.folder).encode() in read(path)]
    assert marked == []
    assert slurm("sinfo", "--noheader", "--format=%T") == "idle"


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
