"""Other readings of paper A's methods, only for its experiments: `--opt optimizers.readings:SEPARATE_NGD`.

`bench list optimizers` does not show them: each is a method of the suite with a different reading of one word of the
paper. Importing this file imports no torch.
"""

from optimizers.registry import TASK_VALUE, OptimizerSpec, Traits

_PAPER = "Vasudeva, Deora, Thrampoulidis, Implicit Bias and Fast Convergence Rates for Self-attention, TMLR 2025"

SEPARATE_NGD = OptimizerSpec(
    name="separate_ngd",
    target="optimizers.normalized:SeparateNGD",
    formula="p <- p - lr * t^(-power) * g_p / ||g_p||, for each parameter p",
    source=_PAPER,
    traits=Traits(full_batch=True),
    update="optimizers.normalized:separate",
)
LENGTH_SPS = OptimizerSpec(
    name="length_sps",
    target="optimizers.polyak:LengthSPS",
    formula="w <- w - lr * min((L - f_star) / (c ||g||^2), max_length / ||g||) * g",
    source=_PAPER,
    defaults={"f_star": TASK_VALUE},
    traits=Traits(needs_loss=True, unscheduled=True),
    update="optimizers.polyak:length_capped",
)
