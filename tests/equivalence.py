"""Three training problems, trained by the suite in many ways and by a plain PyTorch loop; and the program of the ranks.

Run as a program under torchrun it trains every case with every strategy and saves each rank's weights.
"""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import BertForSequenceClassification

from bench.config.run_config import RunConfig, resolve
from bench.train import runner
from optimizers import OPTIMIZERS, OptimizerSpec
from tasks.core.order import BatchOrder
from tasks.language.bert import TextClassifier
from tasks.language.lm import LanguageModel
from tests import tiny, tiny_lm, tiny_text

TASKS = {"tiny": tiny.SIZES, "tiny_text": tiny_text.SIZES, "tiny_lm": tiny_lm.SIZES}
STRATEGIES = ("ddp", "fsdp")
STEPS = 20
CLIP = 0.02  # binds in every step
# Hyperparameters that change the weights considerably within 20 steps; the step cap is off.
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "gd": {"lr": 0.3, "momentum": 0.5},
    "sgd": {"lr": 0.3, "weight_decay": 0.01},
    "ngd": {"lr": 0.03, "momentum": 0.5},
    "sngd": {"lr": 0.1, "weight_decay": 0.1},
    "ps": {"c": 4.0},
    "sps": {"c": 4.0},
    "adam": {"lr": 0.003},
    "adamw": {"lr": 0.003},
    "sgdm": {"lr": 0.03},
    "momo": {"lr": 0.05},
    "sfadamw": {"lr": 0.003},
    "muon": {"lr": 0.003},
}
BY_ROLE: dict[str, dict[str, Any]] = {
    "sgdm": {"vector.lr": 0.01, "embedding.weight_decay": 0.1},
    "muon": {"rest.lr": 0.003},
}
"""Additional ones, for tasks with parameters of all roles."""
GENTLER: dict[tuple[str, str], dict[str, Any]] = {
    ("tiny", "ngd"): {"lr": 0.01},
    ("tiny", "ps"): {"c": 16.0},
    ("tiny_text", "ps"): {"c": 40.0},
    ("tiny_text", "sps"): {"c": 40.0},
}
"""Where longer steps are chaotic: rounding errors grew a millionfold in 20 steps and differed between processors."""


class Case(NamedTuple):
    """One cell of the matrix; `odd` uses a batch of 15, which two ranks split into 7 and 8."""

    opt: str
    micro_batches: int = 1
    clip: bool = False
    odd: bool = False
    task: str = "tiny"
    attention: str = "standard"

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The hyperparameters of its optimizer."""
        own = HYPERPARAMETERS[self.opt] | BY_ROLE.get(self.opt, {})
        return own | GENTLER.get((self.task, self.opt), {})

    @property
    def name(self) -> str:
        """Its name in test ids and files."""
        clip, odd = "clip" if self.clip else "noclip", "-odd" if self.odd else ""
        kind = "" if self.attention == "standard" else f"-{self.attention}"
        return f"{self.task}-{self.opt}-{self.micro_batches}micro-{clip}{odd}{kind}"


def can_clip(opt: str) -> bool:
    """Whether a method allows clipping: not if its step needs the loss and it does not receive the norm."""
    return may_clip(OPTIMIZERS[opt])


def may_clip(spec: OptimizerSpec) -> bool:
    """The same for an optimizer that need not be registered."""
    return not spec.traits.needs_loss or "loss_grad_norm" in spec.step_keywords


ODD_CASES = [
    Case(opt, 3, odd=True, task=task)
    for task in TASKS
    for opt, spec in OPTIMIZERS.items()
    if not spec.traits.full_batch
]
CASES = [
    Case(opt, micro, clip, task=task)
    for task in TASKS
    for opt in OPTIMIZERS
    for micro in (1, 4)
    for clip in (False, True)
    if can_clip(opt) or not clip
]
CASES += [Case("adam", 4, clip=True, attention=kind) for kind in ("fixed_head", "dcmha")]


class Trained(NamedTuple):
    """Weights by name, and the curve as rows of (loss, gradient norm, raw step, applied step).

    `moves` are the updates of each step of a plain loop.
    """

    weights: dict[str, Tensor]
    curve: list[Any]
    moves: Sequence[Tensor] = ()


def config_of(
    case: Case,
    *,
    devices: int = 1,
    strategy: str = "auto",
    precision: str = "64-true",
    dropout: float = 0.0,
    **more: Any,
) -> RunConfig:
    """The configuration of a case."""
    tiny.register()
    tiny.register(tiny_text.TINY_TEXT)
    tiny.register(tiny_lm.TINY_LM)
    full = OPTIMIZERS[case.opt].traits.full_batch
    share = (64 if full else 16) // devices
    words = {f"opt.{name}": value for name, value in case.hyperparameters.items()}
    words |= {"trainer.gradient_clip_val": CLIP} if case.clip else {}
    words |= {"trainer.batch_size": 15} if case.odd else {}
    words |= {"task.attention": case.attention} if case.attention != "standard" else {}
    words |= {
        "trainer.micro_batch_size": -(-share // case.micro_batches),
        "trainer.devices": devices,
        "trainer.strategy": strategy,
    }
    words |= {
        "task": case.task,
        "opt": case.opt,
        "device": "cpu",
        "precision": precision,
        "task.dropout": dropout,
        **TASKS[case.task],
        **more,
    }
    return resolve(words)


def build(config: RunConfig) -> tuple[Any, Any]:
    """Task and plan, always from the same start."""
    torch.manual_seed(1)
    return runner.build(config)


def flat(module: nn.Module) -> Tensor:
    """Its parameters as one vector in float64."""
    return torch.cat([p.detach().double().flatten() for p in module.parameters()])


def copies(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters by name, as they are now."""
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def by_suite(
    config: RunConfig,
    *,
    scaler: torch.amp.GradScaler | None = None,  # type: ignore[attr-defined]
    before: list[dict[str, Tensor]] | None = None,
) -> Trained:
    """Train as `bench fit` does; `before` gets the weights before each step."""
    task, _ = build(config)
    trainer = runner.make_trainer(config, [])
    if scaler is not None:
        assert isinstance(trainer.precision_plugin, MixedPrecision)
        trainer.precision_plugin.scaler = scaler

    def note(optimizer: Any, *_: Any) -> None:
        if before is not None and optimizer is task.optimizers(use_pl_optimizer=False):  # a part of it does not count
            before.append(copies(task))

    with register_optimizer_step_pre_hook(note):
        trainer.fit(task, runner.StepRanges(task, 1000, 7))
    full = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in task.named_parameters()}
    curve = [tuple(float(x) for x in row) for row in task.record.curve]
    return Trained({name: p.detach().clone() for name, p in full.items()}, curve)


def plain_model(task: Any) -> tuple[nn.Module, Callable[[Any], Tensor]]:
    """The task's model without the suite, in float64, and its loss on a batch; texts use transformers' attention."""
    cross_entropy = nn.functional.cross_entropy
    if isinstance(task, LanguageModel):
        decoder = task.model.double()
        return (
            decoder,
            lambda batch: (
                cross_entropy(tiny_lm.plain_logits(decoder, batch.ids).mT, batch.targets, reduction="sum")
                / (len(batch.ids) * batch.per_row)
            ),
        )
    if not isinstance(task, TextClassifier):
        model = task.model.double()
        return model, lambda batch: cross_entropy(model(batch[0]), batch[1])
    config = deepcopy(task.model.config)
    config._attn_implementation = "eager"
    bert = BertForSequenceClassification(config).double()
    bert.load_state_dict(task.model.state_dict())
    return bert, lambda batch: cross_entropy(bert(batch.ids, batch.mask.long(), batch.types).logits, batch.labels)


def by_plain_loop(
    case: Case, precision: str = "64-true", steps: int = STEPS, *, before: Sequence[Mapping[str, Tensor]] = ()
) -> Trained:
    """Train with plain PyTorch, the whole batch at once, in float64, from the initial weights of this precision.

    Before each step it takes the weights from `before`, if there are any left, so that errors do not accumulate.
    """
    task, plan = build(
        config_of(Case(case.opt, odd=case.odd, task=case.task, attention=case.attention), precision=precision)
    )
    data = task.data
    order = BatchOrder(64, plan.batch_size, 0, torch.device("cpu"), data.lengths)
    model, loss_of = plain_model(task)
    data.to(torch.device("cpu"), torch.float64)
    params = list(model.parameters())
    optimizer = plan.make_optimizer(params)
    needs_loss = OPTIMIZERS[case.opt].traits.needs_loss
    curve, moves = [], []
    for step in range(steps):
        batch = data.batch("train", order.rows(step))
        if step < len(before):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(before[step][f"model.{name}"])
        start = flat(model)
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in params]).norm()
        if case.clip and needs_loss:
            # Polyak's step is computed from the loss and the unclipped gradient; clipping then shortens the vector.
            step_size = loss.detach() / (case.hyperparameters["c"] * norm**2)
            factor = min(1.0, CLIP / (float(norm) + 1e-6))
            with torch.no_grad():
                for p in params:
                    p -= step_size * factor * p.grad
        else:
            told = {"loss_grad_norm": norm} if "loss_grad_norm" in plan.step_keywords else {}  # before clipping
            if case.clip:
                nn.utils.clip_grad_norm_(params, CLIP)
            optimizer.step(lambda value=loss: value.detach(), **told)
        curve.append((float(loss.detach()), float(norm)))
        moves.append(flat(model) - start)
    return Trained({f"model.{name}": p for name, p in copies(model).items()}, curve, moves)


def scale_of_gradients(case: Case, precision: str) -> float:
    """Root mean square of the single samples' gradient norms at the start: the scale of the summands of a batch.

    It does not shrink where the sum is close to 0.
    """
    task, _ = build(config_of(case, precision=precision))
    model, loss_of = plain_model(task)
    task.data.to(torch.device("cpu"), torch.float64)
    squares = []
    for row in range(16):
        grads = torch.autograd.grad(loss_of(task.data.batch("train", torch.tensor([row]))), list(model.parameters()))
        squares.append(sum(float(g.square().sum()) for g in grads))
    return (sum(squares) / len(squares)) ** 0.5


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Largest absolute difference of two sets of weights."""
    assert a.keys() == b.keys()
    return max(float((a[name].detach().double() - b[name].detach().double()).abs().max()) for name in a)


def worker_cases(strategy: str) -> list[Case]:
    """The cases of the ranks: the full matrix under DDP, one cell per optimizer under FSDP2."""
    return [*(CASES if strategy == "ddp" else [c for c in CASES if c.micro_batches == 4 and c.clip]), *ODD_CASES]


def main(folder: Path, names: Collection[str]) -> None:
    """Train the cases of these names on this rank and save its results."""
    for strategy in STRATEGIES:
        saved = {}
        for case in (case for case in worker_cases(strategy) if case.name in names):
            saved[case.name] = by_suite(config_of(case, devices=2, strategy=strategy))._asdict()
        torch.save(saved, folder / f"{strategy}-{torch.distributed.get_rank()}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
