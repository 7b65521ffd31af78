"""Checks in the set-ups of training: micro-batches, GradScaler, DDP, FSDP2, lanes, and a run that is resumed."""

import itertools
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import vmap

from bench.check.catalogue import group
from bench.check.steps import ROUNDING, SAMPLES, STEPS, Attention, Fault, Stepper, at_most, flat, gap, values
from bench.check.subject import Subject, other_values
from bench.errors import described
from bench.machine import crowding
from optimizers import OPTIMIZERS

_WORLD = 2
_CUT = 5  # samples of the first rank; the second has the others
_FACTORS = (1.0, 0.5, 2.0)  # of lr, one for each lane


@group("changes results")
def check_micro_batches(optimizer: Subject) -> None:
    """Gradients summed over three micro-batches of different sizes give the step of the whole batch.

    Large batches are accumulated. Tolerance 1e-9 of the way. Mend: use only .grad and the loss inside step; hooks on
    parameters see each micro-batch.
    """
    measured = optimizer.stepper().run(parts=3).gap(optimizer.stepper().run())
    at_most(ROUNDING, measured, "the gap to a step of the whole batch is")


@group("blocks a set-up")
def check_grad_scaler(optimizer: Subject) -> None:
    """A GradScaler with a power-of-2 scale changes nothing, and an overflow skips the step.

    float16 needs it. Tolerance 1e-5 of the way: the scale is exact in float32, the bound leaves room for norms. Mend:
    accept the closure by position, and set _step_supports_amp_scaling only if step uses grad_scale and found_inf.
    """
    if optimizer.spec.traits.calls_closure_again or optimizer.spec.traits.create_graph:
        pytest.skip("a GradScaler cannot follow a method that evaluates or differentiates the loss again")
    plain, scaled = (optimizer.stepper(optimizer.attention(torch.float32)) for _ in range(2))
    plain.run()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    overflow = False

    def by(closure: Any) -> Any:
        loss = closure()
        with torch.no_grad():
            for p in scaled.params:
                p.grad.mul_(scaler.get_scale())
                if overflow:
                    p.grad.fill_(inf)
        scaler.scale(torch.zeros(()))  # tells the scaler that a loss was scaled
        scaler.unscale_(scaled.optimizer)
        value = scaler.step(scaled.optimizer, lambda: loss)
        scaler.update()
        return value

    scaled.run(by=by)
    at_most(1e-5, scaled.gap(plain), "the gap to a run without it is")
    before, overflow = values(scaled.params), True
    scaled.step(by=by)
    if not all(map(torch.equal, scaled.params, before)):
        raise Fault("a gradient that overflows moves the weights; GradScaler must be able to skip the step")
    overflow = False
    scaled.step(by=by)
    if not all(p.isfinite().all() for p in scaled.params):
        raise Fault("after a skipped step, weights are not finite")


# ---- Two processes that share a batch --------------------------------------------------------------------------------


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


@group("changes results")
def check_ddp(optimizer: Subject) -> None:
    """Under DDP two processes stay bit-identical and agree with one process.

    Tolerance 1e-9 of the way. Mend: gradients and loss are already averaged over ranks: do not reduce or divide them
    again, and use nothing that differs between ranks.
    """
    first, apart = _replicas(optimizer)
    at_most(0, apart, "after 6 steps, the replicas diverge by")
    alone = optimizer.stepper().run()
    at_most(ROUNDING, gap(first, alone.params, alone.start), "the gap to one process is")


@group("changes results")
def check_rank_seeds(optimizer: Subject) -> None:
    """Two DDP processes with different global seeds stay bit-identical.

    Data are drawn differently by rank. Exact. Mend: draw from your own torch.Generator with one seed on all ranks.
    """
    _, apart = _replicas(optimizer, own_seeds=True)
    at_most(0, apart, "the replicas diverge by")


@group("reported")
def check_own_loss(optimizer: Subject) -> float:
    """How far replicas diverge under DDP if each rank's closure returns its own loss, as a plain training loop's.

    This is expected of all methods that use the loss, unless they average it; the suite's closures return the mean.
    """
    return _replicas(optimizer, own_loss=True)[1]


def _replicas(optimizer: Subject, *, own_loss: bool = False, own_seeds: bool = False) -> tuple[list[Tensor], float]:
    """Weights of the first of two ranks after training with DDP, and their distance from those of the second."""
    _check_applicable(optimizer)
    from torch.nn.parallel import DistributedDataParallel

    def train() -> list[Tensor]:
        model = _Shared(matrices=optimizer.matrices)
        model.own_loss = own_loss
        network = DistributedDataParallel(model)
        object.__setattr__(model, "network", network)  # not a submodule
        return values(optimizer.stepper(model, seeded=1000 * dist.get_rank() if own_seeds else 0).run().params)

    first, second = _on_ranks(train, 0.7 * optimizer.limit)
    return first, gap(second, first, list(optimizer.attention().parameters()))


@group("blocks a set-up")
def check_fsdp(optimizer: Subject) -> None:
    """Under FSDP2 two processes agree with one process; one of them holds no element of the last parameter.

    Tolerance 1e-6 of the way: sums over shards have another order, and torch computes some in float32. Mend: norms and
    other sums must cover all shards: optimizers.norms does, .to_local() and float() see one shard; an exception means
    that an operation does not support sharded tensors (DTensor).
    """
    _check_applicable(optimizer)
    optimizer.refuse_chance()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def train() -> list[Tensor]:
        model = _Shared(matrices=optimizer.matrices)
        fully_shard(model, mesh=init_device_mesh("cpu", (_WORLD,)))
        params: list[Any] = optimizer.stepper(model).run().params
        return [p.detach().full_tensor() for p in params]

    alone = optimizer.stepper().run()
    ranks = _on_ranks(train, 0.7 * optimizer.limit)
    at_most(1e-6, max(gap(w, alone.params, alone.start) for w in ranks), "the gap to one process is")


def _check_applicable(optimizer: Subject) -> None:
    optimizer.refuse_graph()
    if not (dist.is_available() and dist.is_gloo_available() and "fork" in multiprocessing.get_all_start_methods()):
        pytest.skip("this machine cannot fork processes that communicate with gloo")


def _on_ranks(train: Callable[[], list[Tensor]], seconds: float) -> list[list[Tensor]]:
    """The function's results by rank, within a time limit in seconds.

    Raises:
        RuntimeError: a rank raised an exception or ended, or the ranks wait for each other.
    """
    # Forked, so that torch and the plug-in need not be imported again.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the children do not use
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
        ended = [rank for rank, process in enumerate(processes) if process.exitcode is not None]
        for rank in range(_WORLD):
            error = folder / f"{rank}.error"
            if error.exists():
                raise RuntimeError(f"on rank {rank}: {error.read_text('utf-8')}")
        if any(not results[rank].exists() for rank in ended):
            raise RuntimeError("one of the two processes ended without a result")
        if time.monotonic() - begun > seconds * crowding():
            raise RuntimeError(
                f"the two processes did not finish in {seconds:.3g} s: they wait for each other, or one hangs"
            )
        time.sleep(0.02)
    return [torch.load(result, weights_only=True) for result in results]


def _rank(rank: int, folder: Path, train: Callable[[], list[Tensor]]) -> None:
    pid = os.getpid()
    try:
        torch.set_num_threads(1)  # the threads of the parent are not here
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


# ---- Lanes -----------------------------------------------------------------------------------------------------------


@group("changes results")
def check_lanes(optimizer: Subject) -> str:
    """Vectorised runs, as in sweeps: the pure update equals the class, or instances do not affect each other.

    Three lanes differ in lr, and in each other float in turn. Tolerance 1e-9 of the way. Mend: with
    OptimizerSpec.update, compare the function with step line by line; without it, keep no state in the class or module.
    """
    rates = [{} if optimizer.lr is None else {"lr": factor * optimizer.lr} for factor in _FACTORS]
    if optimizer.spec.pure_update is None:
        at_most(ROUNDING, _gap(optimizer, rates, [_one_by_one(optimizer, rates)]), "lane by lane, the gap is")
        return "instances, lane by lane"
    optimizer.refuse_chance()
    if optimizer.lr is None:
        pytest.skip("pure updates need a constructor with lr")
    # Without norms, and with given ones, as in sweeps.
    ways = dict.fromkeys([(), tuple(sorted(optimizer.spec.update_keywords))])
    for name, arguments in _varied(optimizer, rates):
        measured = _gap(optimizer, arguments, [_updated(optimizer, arguments, keywords) for keywords in ways])
        at_most(ROUNDING, measured, f"pure update through vmap, with values of {name}: the gap is")
    return "pure update through vmap"


def _varied(optimizer: Subject, rates: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The lanes' arguments: lr alone, then with other values of one float hyperparameter, where they are legal."""
    yield "lr", rates
    for name, value in optimizer.hparams.items():
        if isinstance(value, float) and name != "lr":
            legal = [value]
            for other in other_values(value):
                with suppress(Exception):  # an illegal value
                    optimizer.stepper(arguments={name: other})
                    legal.append(other)
            if len(legal) > 1:
                lanes = zip(rates, itertools.cycle(legal), strict=False)
                yield name, [{**rate, name: each} for rate, each in lanes]


def _gap(optimizer: Subject, arguments: list[dict[str, Any]], found: list[list[Attention]]) -> float:
    """The largest gap of lanes from runs alone with these arguments."""
    models = zip(_models(optimizer), arguments, strict=True)
    alone = [optimizer.stepper(model, arguments=own).run() for model, own in models]
    return max(
        Stepper(optimizer.spec, model).gap(stepper)
        for models in found
        for stepper, model in zip(alone, models, strict=True)
    )


def _models(optimizer: Subject) -> list[Attention]:
    return [optimizer.attention(seed=10 * lane) for lane in range(len(_FACTORS))]


def _one_by_one(optimizer: Subject, rates: list[dict[str, Any]]) -> list[Attention]:
    """Models whose weights are views of one stack, after steps of an instance for each."""
    models = _models(optimizer)
    for name, _ in list(models[0].named_parameters()):
        stack = torch.stack([getattr(model, name).detach() for model in models])
        for model, view in zip(models, stack, strict=True):
            setattr(model, name, nn.Parameter(view))
    steppers = [optimizer.stepper(model, arguments=rate) for model, rate in zip(models, rates, strict=True)]
    for _ in range(STEPS):
        for stepper in steppers:
            stepper.step()
    return models


def _updated(optimizer: Subject, arguments: list[dict[str, Any]], keywords: tuple[str, ...]) -> list[Attention]:
    """Models after steps of the pure update; arguments that the lanes have are tensors."""
    models = _models(optimizer)
    steppers = [Stepper(optimizer.spec, model) for model in models]
    varied = {name: torch.tensor([own[name] for own in arguments], dtype=torch.float64) for name in arguments[0]}
    hparams = optimizer.hparams | varied
    update = optimizer.spec.pure_update
    assert update is not None

    def one(grads: Any, state: Any, params: Any, loss: Any, hparams: Any, norm: Tensor) -> Any:
        return update(grads, state, params, loss, hparams, **dict.fromkeys(keywords, norm))

    many = vmap(one, in_dims=(0, 0, 0, 0, {name: 0 if name in varied else None for name in hparams}, 0))
    state: Any = {}
    for _ in range(STEPS):
        losses = torch.stack([stepper.backward() for stepper in steppers])
        params = _stacked([[p.detach() for p in stepper.params] for stepper in steppers])
        grads = _stacked([[p.grad for p in stepper.params] for stepper in steppers])
        norms = torch.stack([flat([p.grad for p in stepper.params]).norm() for stepper in steppers])
        with torch.no_grad():
            moved, state = many(grads, state, params, losses, hparams, norms)
            for stepper, *new in zip(steppers, *moved, strict=True):
                for p, value in zip(stepper.params, new, strict=True):
                    p.copy_(value)
    return models


def _stacked(lanes: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(tensors)) for tensors in zip(*lanes, strict=True)]


# ---- A real run ------------------------------------------------------------------------------------------------------


@group("changes results")
def check_real_run(optimizer: Subject) -> None:
    """A run of the suite (task `synthetic`) that is resumed from its checkpoint equals the uninterrupted one.

    Exact, over six steps in float64, each loss too. Mend: as for `resume`; here Lightning saves and loads the state.
    """
    if optimizer.matrices or optimizer.by_role or not isinstance(optimizer.spec.target, str):
        pytest.skip("a run needs an optimizer of all parameters that has a name")
    from bench.check.task import TaskSubject, resumed_gap  # Lightning takes seconds to import

    name, arguments = "bench_check_subject", {f"opt.{k}": v for k, v in optimizer.arguments.items()}
    OPTIMIZERS.own[name] = optimizer.spec
    try:
        measured = resumed_gap(TaskSubject("synthetic", {"T": 4}, opt=name, hparams=arguments))
    finally:
        del OPTIMIZERS.own[name]
    at_most(0, measured, "the gap of the resumed run is")
