"""A private Slurm from Debian's packages `slurm-wlm` and `munge`, for tests: one node with two fake GPUs."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.daemons import PATIENCE, daemon, free_ports, until

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
KILL_WAIT = 10  # seconds between SIGTERM and SIGKILL of a job that is cancelled, requeued or out of time

SLURM_CONF = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
MailProg=/bin/true
MpiDefault=none
PropagateResourceLimits=NONE
# Without cgroups, which a container does not lend, but as with them: what the batch script leaves running is killed.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
JobRequeue=1
KillWait={kill_wait}
ReturnToService=2
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
# As many CPUs as it says, whatever the machine has.
SlurmdParameters=config_overrides
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=8 Gres=gpu:2
PartitionName=main Nodes=node Default=YES MaxTime=60 DefaultTime=10
"""
STATE_OF_NODE = ("sinfo", "--noheader", "--format=%T")


def missing() -> list[str]:
    """The programs of Slurm that this machine lacks."""
    needed = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
    return [name for name in needed if not shutil.which(name, path=PATH)]


class Slurm:
    """A running Slurm. Called with the words of a command, it returns what the command prints.

    Attributes:
        env: environment in which sbatch, scontrol, squeue, scancel and srun mean this Slurm.
        folder: configuration and logs.
    """

    def __init__(self) -> None:
        """Start it and wait until its node accepts jobs."""
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        with ExitStack() as stack:
            temporary = TemporaryDirectory(prefix="bench-slurm-", dir="/tmp", ignore_cleanup_errors=True)
            self.folder = folder = Path(stack.enter_context(temporary))
            clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
            self.env = clean | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
            self._configure()
            stack.callback(self._kill_escaped)
            options = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
            munge = folder / "munge.socket"
            for log, words, ready in (
                ("munge.log", ["munged", "--foreground", f"--socket={munge}", *options], munge.exists),
                ("slurmctld.log", ["slurmctld", "-D"], lambda: self._try("scontrol", "ping").returncode == 0),
                ("slurmd.log", ["slurmd", "-D", "-N", "node"], lambda: self._try(*STATE_OF_NODE).stdout == "idle\n"),
            ):
                stack.enter_context(daemon(words, folder / log, ready, env=self.env))
            stack.callback(self.cancel_all)
            self.close = stack.pop_all().close

    def __call__(self, *words: str | Path, cwd: Path | None = None) -> str:
        """What the command prints; raises with its message if it fails."""
        done = self._try(*words, cwd=cwd)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: ended with {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def requeue(self, job: str) -> None:
        """`scontrol requeue`, without the two minutes for which Slurm lets a requeued job wait."""
        self("scontrol", "requeue", job)
        until(lambda: self("squeue", "--noheader", "--format=%T", f"--jobs={job}") == "PENDING", f"{job} in the queue")
        self("scontrol", "update", f"JobId={job}", "StartTime=now")

    def cancel_all(self) -> None:
        """Cancel every job and wait until all are gone, including those whose script requeues them."""
        until(lambda: not self("scancel", "--user", self._user) and not self("squeue", "--noheader"), "an empty queue")

    def _try(self, *words: str | Path, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(words, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)

    def _configure(self) -> None:
        folder, host = self.folder, socket.gethostname().split(".")[0]
        folder.chmod(0o755)  # munged requires that everybody can access its socket
        key = folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        controller_port, node_port = free_ports(2)
        text = SLURM_CONF.format(
            folder=folder,
            host=host,
            user=self._user,
            kill_wait=KILL_WAIT,
            controller_port=controller_port,
            node_port=node_port,
        )
        (folder / "slurm.conf").write_text(text, "utf-8")
        # Not used, but Slurm's default plugin may fail, and old versions do not know `disabled`.
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", "utf-8")
        (folder / "gres.conf").write_text(f"NodeName=node Name=gpu File={folder}/gpu[0-1]\n", "utf-8")
        for gpu in ("gpu0", "gpu1"):
            (folder / gpu).symlink_to("/dev/null")  # any device does; the digits become CUDA_VISIBLE_DEVICES
        for name in ("state", "spool"):
            (folder / name).mkdir()

    def _kill_escaped(self) -> None:
        """Kill processes that left their job's process group; jobs inherit our SLURM_CONF."""
        mark = f"SLURM_CONF={self.folder}/".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
