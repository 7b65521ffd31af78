"""Options of training."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.errors import UserError

MOST_STEPS = 2**63 - 1
"""The most steps of a run: tables store them as a signed 64-bit integer."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class TrainerOptions(BaseModel):
    """Options of training. Names are Lightning's where it has one.

    A default value is not part of a run's identity, so defaults must not change.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_epochs: Positive | None = None
    """passes over the training data, in (0, inf); the task's budget by default"""
    max_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    """optimizer steps, or gradients if a step computes several; with max_epochs, the smaller applies"""
    max_seconds: Positive | None = None
    """training time in seconds after which the run stops with status `timeout`"""
    batch_size: Count | Literal["full"] | None = None
    """samples that one optimizer step sees, over all micro-batches and devices, or `full`"""
    micro_batch_size: Count | None = None
    """upper bound on samples per forward pass on one device (default: the task's); changes memory and rounding only"""
    gradient_clip_val: Positive | None = None
    """bound on the gradient's global norm; step sizes are computed from the norm before clipping"""
    schedule: Literal["constant", "cosine", "linear", "inverse_sqrt", "wsd"] = "constant"
    """lr after warm-up: constant, cosine, linear, inverse_sqrt or wsd (decay at the end); not for methods without lr"""
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """fraction of the steps, in [0, 1), with linearly rising lr"""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """final lr of a decay as a fraction of lr, in [0, 1]"""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2
    """fraction of the steps, in (0, 1], of the final decay of wsd"""
    average: Literal["none", "ema", "lawa"] = "none"
    """average of the weights used for evaluation: none, ema (exponential, unbiased) or lawa (of the last snapshots)"""
    average_decay: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """d of ema, in (0, 1): a <- a + (1-d)/(1-d^t) (w - a)"""
    average_window: Annotated[int, Field(ge=2)] = 5
    """snapshots in the mean of lawa, at least 2; all are stored"""
    average_every: Count | None = None
    """optimizer steps between the snapshots of lawa; by default an epoch, or a twentieth of the run"""
    val_every: Count | None = None
    """optimizer steps between evaluations; by default an epoch, or a twentieth of the run if that is longer"""
    measure_every: Count | None = None
    """optimizer steps between measurements, for tasks with measurements; by default the task's value"""
    observe: Annotated[int, Field(ge=1, le=20)] | None = None
    """points per decade of steps for measurements of attention in ViTs, BERTs and lm, in [1, 20] (`bench show TASK`)"""
    compile: Literal["off", "step"] = "off"
    """loss and gradient through torch.compile: off or step; changes seconds and rounding, not the run's id"""
    checkpoint_seconds: Positive = 60
    """seconds between checkpoints"""
    devices: Count = 1
    """number of devices (processes) that share each batch"""
    num_nodes: Count = 1
    """machines"""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """how devices share the work; fsdp shards with FSDP2"""

    @property
    def ranks(self) -> int:
        """Processes that share each batch."""
        return self.devices * self.num_nodes

    @property
    def is_scheduled(self) -> bool:
        """Whether the learning rate changes over the run."""
        return self.schedule != "constant" or self.warmup > 0


SAME_RESULT = (
    "observe", "micro_batch_size", "compile", "checkpoint_seconds", "max_seconds", "devices", "num_nodes", "strategy",
)  # fmt: skip
"""Trainer options that do not change the compared result."""
_NEEDS = {
    "floor": ("schedule", ("cosine", "linear", "inverse_sqrt", "wsd")),
    "decay": ("schedule", ("wsd",)),
    "average_decay": ("average", ("ema",)),
    "average_window": ("average", ("lawa",)),
    "average_every": ("average", ("lawa",)),
}
"""Options of training, and the values of another option with which they have an effect."""


def refuse_idle(trainer: TrainerOptions) -> TrainerOptions:
    """Refuse options without effect: else two ids would have the same result."""
    for name, (key, kinds) in _NEEDS.items():
        value, kind = getattr(trainer, name), getattr(trainer, key)
        if kind not in kinds and value != TrainerOptions.model_fields[name].default:
            raise UserError(f"--trainer.{name} {value:g}: the {key} is {kind} and has no {name}; leave it out")
    most = 1 - trainer.warmup
    if trainer.schedule == "wsd" and trainer.decay > most:
        why = f"with a warm-up over {trainer.warmup:g} of the steps it can be at most {most:g}"
        raise UserError(f"--trainer.decay {trainer.decay:g}: {why}")
    return trainer
