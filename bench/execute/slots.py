"""Resources of each worker of this machine: processors, GPUs, threads."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from bench.config.run_config import RunConfig
from bench.errors import UserError


@dataclass(frozen=True)
class Slot:
    """The resources of a worker.

    Attributes:
        cpus: processors to which it is pinned; empty for all.
        gpus: for CUDA_VISIBLE_DEVICES; if empty, the variable is not changed.
        threads: of torch.
    """

    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    threads: int = 1

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that restrict libraries to the slot."""
        return {"OMP_NUM_THREADS": str(self.threads)} | (
            {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        )

    def pin(self, pid: int = 0) -> None:
        """Pin a process, by default this one, to the slot's processors, where the system can."""
        if self.cpus and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):
                os.sched_setaffinity(pid, self.cpus)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Pin this process to the slot's processors while the context lasts."""
        before = Slot(tuple(_cpus()) if self.cpus else ())
        self.pin()
        try:
            yield
        finally:
            before.pin()


def slots(workers: str, config: RunConfig, runs: int | None = None) -> list[Slot]:
    """Divide this machine into slots, each with the GPUs that a run needs, or a share of the processors.

    Args:
        workers: how many, or `auto`: one for each set of GPUs that a run needs, or on a CPU one for each processor,
            but no more than there are runs.
        config: a run, with its device decided.
        runs: the number of runs, if known.

    Raises:
        UserError: the number is invalid, or there are too few GPUs.
    """
    ranks, cpus = config.trainer.devices, _cpus()
    gpus = _gpus() if config.device == "cuda" else []
    most = 1 if config.device == "mps" else max(1, len(gpus or cpus) // ranks)
    try:
        count = min(most, runs or most) if workers == "auto" else int(workers)
    except ValueError:
        count = 0
    if count < 1:
        raise UserError(f"--workers {workers}: write how many (--workers 2), or auto")
    if gpus and count > most:
        raise UserError(
            f"--workers {count}: {len(gpus)} GPUs can serve {most} workers with {ranks} per run; use --workers {most}"
        )
    share = max(1, len(cpus) // count)
    pinned = [tuple(cpus[i * share : (i + 1) * share]) if count <= len(cpus) else () for i in range(count)]
    own = [tuple(gpus[i * ranks : (i + 1) * ranks]) for i in range(count)]
    return [Slot(pinned[i], own[i], max(1, share // ranks)) for i in range(count)]


def sharing(own: Sequence[Slot]) -> int:
    """How many of these slots share the memory of a device."""
    return 1 if own[0].gpus else len(own)


def _cpus() -> list[int]:
    with suppress(AttributeError):  # missing on macOS
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _gpus() -> list[str]:
    import torch

    given = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    return given or [str(i) for i in range(torch.cuda.device_count())]
