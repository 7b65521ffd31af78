"""Two processes that share a batch: replicas under DDP, shards under FSDP2."""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.check.findings import Failed, Measured, NotApplicable, Raised
from bench.check.problem import SAMPLES, Attention
from bench.check.steps import gap, values
from bench.check.subject import Subject
from bench.errors import described
from bench.machine import crowding

_WORLD = 2
_CUT = 5  # samples of the first rank; the second has the others


class _Shared(Attention):
    """The attention head on ranks with different samples.

    Ranks average gradients, and losses too unless `own_loss`.
    """

    network: Any = None
    """The callable: this module, or its DDP wrapper."""
    own_loss = False

    def rows(self, parts: int) -> list[slice]:
        """This rank's part of the batch."""
        return [slice(0, _CUT) if dist.get_rank() == 0 else slice(_CUT, SAMPLES)]

    def loss(self, rows: slice) -> Tensor:
        """This rank's part of the loss, times the number of ranks, since gradients are averaged."""
        return (self.network or self)(rows) * _WORLD

    def reduced(self, loss: Tensor) -> Tensor:
        """The mean over ranks, or this rank's own."""
        if self.own_loss:
            return loss
        dist.all_reduce(loss)
        return loss / _WORLD


def ddp(subject: Subject) -> Measured:
    """Train with DDP on two ranks."""
    first, apart = _replicas(subject)
    if apart:
        raise Failed(f"the replicas diverge, after 6 steps by {apart:.2g} of their way")
    alone = subject.stepper().run()
    return Measured(gap(first, alone.params, alone.start))


def rank_seeds(subject: Subject) -> Measured:
    """Divergence of replicas under DDP if the ranks have different global seeds."""
    _, apart = _replicas(subject, own_seeds=True)
    return Measured(apart, "replicas diverge" if apart else "")


def own_loss(subject: Subject) -> Measured:
    """Divergence of replicas under DDP if each rank's closure returns its own loss.

    This is the case in a plain training loop.
    """
    _, apart = _replicas(subject, own_loss=True)
    return Measured(apart, "replicas diverge" if apart else "replicas stay equal")


def _replicas(subject: Subject, *, own_loss: bool = False, own_seeds: bool = False) -> tuple[list[Tensor], float]:
    """Weights of the first of two ranks after training with DDP, and their distance from those of the second."""
    _check_applicable(subject)
    from torch.nn.parallel import DistributedDataParallel

    def train() -> list[Tensor]:
        model = _Shared(matrices=subject.matrices)
        model.own_loss = own_loss
        network = DistributedDataParallel(model)
        object.__setattr__(model, "network", network)  # not a submodule
        return values(subject.stepper(model, seeded=1000 * dist.get_rank() if own_seeds else 0).run().params)

    first, second = _on_ranks(train, 0.7 * subject.limit)
    return first, gap(second, first, list(subject.attention().parameters()))


def fsdp(subject: Subject) -> Measured:
    """Train with FSDP2 on two ranks; one of them holds no element of the last parameter."""
    _check_applicable(subject)
    subject.refuse_chance()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def train() -> list[Tensor]:
        model = _Shared(matrices=subject.matrices)
        fully_shard(model, mesh=init_device_mesh("cpu", (_WORLD,)))
        params: list[Any] = subject.stepper(model).run().params
        return [p.detach().full_tensor() for p in params]

    alone = subject.stepper().run()
    ranks = _on_ranks(train, 0.7 * subject.limit)
    return Measured(max(gap(weights, alone.params, alone.start) for weights in ranks))


def _check_applicable(subject: Subject) -> None:
    if subject.spec.traits.create_graph:
        raise NotApplicable("averaged gradients have no graph to differentiate")
    if not (dist.is_available() and dist.is_gloo_available() and "fork" in multiprocessing.get_all_start_methods()):
        raise NotApplicable("this machine cannot fork processes that communicate with gloo")


def _on_ranks(train: Callable[[], list[Tensor]], seconds: float) -> list[list[Tensor]]:
    """The function's results by rank, within a time limit in seconds.

    Raises:
        Raised: a rank raised an exception or ended, or the ranks wait for each other.
    """
    # Forked, so that torch and the plug-in need not be imported again; nothing here has started threads.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [context.Process(target=_rank, args=(rank, folder, train), daemon=True) for rank in range(_WORLD)]
        for process in processes:
            process.start()
        try:
            return _gathered(folder, processes, seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _gathered(folder: Path, processes: list[Any], seconds: float) -> list[list[Tensor]]:
    begun = time.monotonic()
    results = [folder / f"{rank}.pt" for rank in range(_WORLD)]
    while not all(result.exists() for result in results):
        for rank in range(_WORLD):
            error = folder / f"{rank}.error"
            if error.exists():
                raise Raised(f"on rank {rank}: {error.read_text('utf-8')}")
        ended = [rank for rank, process in enumerate(processes) if process.exitcode is not None]
        if any(not results[rank].exists() and not (folder / f"{rank}.error").exists() for rank in ended):
            raise Raised("one of the two processes ended without a result")
        if time.monotonic() - begun > seconds * crowding():
            raise Raised(f"the two processes did not finish in {seconds:.3g} s: they wait for each other, or one hangs")
        time.sleep(0.02)
    return [torch.load(result, weights_only=True) for result in results]


def _rank(rank: int, folder: Path, train: Callable[[], list[Tensor]]) -> None:
    pid = os.getpid()
    try:
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # independent of the machine's name
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=_WORLD)
        weights = train()
        if os.getpid() == pid:  # not a process that the optimizer has forked
            torch.save(weights, folder / f"{rank}.tmp")
            (folder / f"{rank}.tmp").rename(folder / f"{rank}.pt")
            dist.barrier()
    except BaseException as error:
        if os.getpid() == pid:
            (folder / f"{rank}.tmp").write_text(described(error), "utf-8")
            (folder / f"{rank}.tmp").rename(folder / f"{rank}.error")
    os._exit(0)
