"""configs/slurm/bench.sbatch on a real Slurm: Debian's packages `slurm-wlm` and `munge`, one node, started here."""

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.process import ROOT, bench_command
from tests.slow import SLOW
from tests.waiting import until

PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
MISSING = [name for name in NEEDED if not shutil.which(name, path=PATH)]
CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
MailProg=/bin/true
MpiDefault=none
PropagateResourceLimits=NONE
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
ReturnToService=2
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=4
PartitionName=main Nodes=node Default=YES MaxTime=60
"""
SWEEP = f"sweep --task synthetic --opt {SLOW} --opt.lr 0.01,0.1 --seeds 2 --engine lightning --device cpu"
SWEEP += " --trainer.max_steps 300 --trainer.val_every 20"

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: {', '.join(MISSING)}")


def daemon(stack: ExitStack, words: list[str], log: Path, ready: Callable[[], bool], env: dict[str, str]) -> None:
    """Run a server until the stack closes; it has started when it is ready."""
    with log.open("ab") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=env, start_new_session=True)
    stack.callback(lambda: (process.terminate(), process.wait()))
    until(lambda: ready() or process.poll() is not None, words[0])
    assert process.poll() is None, log.read_text()


@pytest.fixture
def slurm() -> Iterator[Callable[..., str]]:
    """Runs a command of Slurm and returns its output."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-slurm-", dir="/tmp")))
        folder.chmod(0o755)  # munged requires that everybody can reach its socket
        (folder / "munge.key").touch(0o600)
        (folder / "munge.key").write_bytes(os.urandom(128))
        host, user = socket.gethostname().split(".")[0], pwd.getpwuid(os.geteuid()).pw_name
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            controller, node = one.getsockname()[1], other.getsockname()[1]
        text = CONFIGURATION.format(folder=folder, host=host, user=user, controller=controller, node=node)
        (folder / "slurm.conf").write_text(text)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        env |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}

        def call(*words: object, cwd: Path | None = None, check: bool = True) -> str:
            done = subprocess.run(list(map(str, words)), env=env, cwd=cwd, capture_output=True, text=True, timeout=60)
            assert not (check and done.returncode), done.stderr
            return done.stdout.strip()

        munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        socket_file = folder / "munge.socket"
        munged = ["munged", "--foreground", "--force", f"--socket={socket_file}", *munge]
        daemon(stack, munged, folder / "munge.out", socket_file.exists, env)
        controls = ["slurmctld", "-D"]
        daemon(stack, controls, folder / "ctld.log", lambda: "UP" in call("scontrol", "ping", check=False), env)
        state = ("sinfo", "--noheader", "--format=%T")
        daemon(stack, ["slurmd", "-D", "-N", "node"], folder / "d.log", lambda: call(*state) == "idle", env)
        stack.callback(lambda: until(lambda: not call("scancel", "--user", user) and not call("squeue", "-h"), "idle"))
        yield call


@pytest.mark.deep
def test_the_script_survives_requeueing(slurm: Callable[..., str], tmp_path: Path) -> None:
    script, store = ROOT / "configs/slurm/bench.sbatch", tmp_path / "runs"
    words = ("--parsable", "--ntasks=2", "--time=10", script, *SWEEP.split(), "--store", store)
    job = slurm("sbatch", *words, cwd=tmp_path)

    def log() -> str:
        return next(iter(tmp_path.glob(f"slurm-{job}.out"))).read_text()

    until(lambda: list(store.glob("*/done")), "a finished run", 240)
    slurm("scancel", "--batch", "--signal=TERM", job)  # as before the time limit, or at a preemption
    until(lambda: slurm("squeue", "-h", "-o", "%T", "-j", job) == "PENDING", "the job in the queue again", 120)
    assert len(list(store.glob("*/done"))) < 4, log()
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # else it waits for two minutes
    until(lambda: not slurm("squeue", "-h", "-j", job, check=False), "the end of the job", 240)
    assert "the same command continues" in log()
    whole = subprocess.run(
        bench_command(*SWEEP.split(), "--store", "whole"), cwd=tmp_path, capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stderr
    assert losses(store) == losses(tmp_path / "whole")


def losses(store: Path) -> list[dict[str, object]]:
    """All steps of all finished runs."""
    query = "select run_id, step, loss from curves join runs using (run_id) where status = 'completed' order by all"
    command = bench_command("sql", query, "--no-reference", "--store", str(store), "--json")
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(rows) == 4 * 300
    return rows
