"""Tasks, optimizers and the options of `bench fit`, described. Nothing here imports torch."""

import textwrap
from collections.abc import Mapping

from bench.config import TrainerOptions
from bench.errors import unknown
from bench.options import Option, optimizer_options, task_options
from optimizers import OPTIMIZERS, OptimizerSpec
from tasks import TASKS, TaskSpec

PLACES = """places:
  --data DIR      where datasets lie or are downloaded to (default: $BENCH_DATA, else ./data)
  --store DIR     where runs are kept (default: $BENCH_STORE, else ./runs)"""


def fit_help(task: str | None, opt: str | None) -> str:
    """The help of `bench fit`, with the options of the task and the optimizer that are named.

    Raises:
        UserError: one of them does not exist.
    """
    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    if opt is not None and opt not in OPTIMIZERS:
        raise unknown("optimizer", opt, OPTIMIZERS)
    lines = [
        "usage: bench fit --task TASK --opt OPTIMIZER [--task.* ...] [--opt.* ...] [--trainer.* ...]", "",
        "Train one task with one optimizer and store the result.", "",
        f"  --task TASK     {', '.join(TASKS)}",
        f"  --opt OPT       {', '.join(OPTIMIZERS)}",
        "  --seed N        problem instance, initialisation, dropout (default 0)",
        "  --data_seed N   order of the samples (default: the seed)",
        "  --config FILE   settings from YAML; flags win",
        "  --tuned         take the hyperparameters in configs/tuned/<task>/<optimizer>.yaml",
        "  --device D      cpu, cuda, mps or auto (default auto)",
        "  --precision P   32-true, bf16-mixed, 16-mixed or 64-true (default: the task's)",
        "  --resume RUN    continue an interrupted run, bit for bit",
        "  --rerun         train again although the result is stored",
        "  --logger L      also log to tensorboard, csv, wandb or mlflow (extras)",
        "  --dry-run       print the resolved configuration and stop",
        "  --json          print one JSON object and nothing else", "", *PLACES.splitlines(),
    ]  # fmt: skip
    if task:
        spec = TASKS[task]
        lines += ["", f"task {task}: {spec.title}", *_rows("task", task_options(spec))]
    else:
        lines += ["", "Name a task for its options: bench fit --task mnist --help"]
    if opt:
        lines += [
            "",
            f"optimizer {opt}: {OPTIMIZERS[opt].formula}",
            *_rows("opt", optimizer_options(OPTIMIZERS[opt])),
        ]
    else:
        lines += ["Name an optimizer for its options: bench fit --opt sngd --help"]
    lines += ["", "trainer:"]
    for name, field in TrainerOptions.model_fields.items():
        if name == "measure_every" and task and TASKS[task].measure_every is None:
            continue
        lines += _row(
            f"--trainer.{name}", field.description or "", "" if field.default is None else f"default {field.default}"
        )
    return "\n".join(lines)


def describe_optimizer(spec: OptimizerSpec) -> str:
    """Formula, source, hyperparameters and search space of an optimizer."""
    search = {name: f"log-uniform in [{space.low:g}, {space.high:g}]" for name, space in spec.search.items()}
    traits = [name.replace("_", " ") for name, on in vars(spec.traits).items() if on]
    return "\n".join(
        [
            f"{spec.name} (version {spec.version})", f"  rule    {spec.formula}", f"  source  {spec.source}",
            f"  class   {spec.target.replace(':', '.')}", *([f"  traits  {', '.join(traits)}"] if traits else []),
            "", "hyperparameters:", *_rows("opt", optimizer_options(spec)),
            "", "search space:", *(f"  --opt.{name}  {space}" for name, space in search.items()),
        ]
    )  # fmt: skip


def describe_task(spec: TaskSpec) -> str:
    """Model, metric, target, budget and options of a task."""
    budget = ", ".join(f"{name} {value}" for name, value in spec.budget.items())
    measured = [f"  measured every {spec.measure_every} steps: {spec.measures}"] if spec.measure_every else []
    target = "none" if spec.target is None else f"{spec.metric} {spec.target:g}"
    return "\n".join(
        [
            f"{spec.name} (version {spec.version}): {spec.title}", f"  metric  {spec.metric} ({spec.mode})",
            f"  target  {target}", f"  budget  {budget}, batch {spec.batch_size}, precision {spec.precision}",
            f"  source  {spec.source}", *measured, "", "options:", *_rows("task", task_options(spec)),
        ]
    )  # fmt: skip


def _rows(prefix: str, options: Mapping[str, Option]) -> list[str]:
    return [
        line
        for o in options.values()
        for line in _row(f"--{prefix}.{o.name}", o.help.rstrip("."), f"{o.type_name}, default {o.default_text}")
    ]


def _row(flag: str, text: str, extra: str) -> list[str]:
    full = f"{text} ({extra})" if text and extra else text or extra
    lines = textwrap.wrap(full, 80) or [""]
    first = f"  {flag:<28} {lines[0]}" if len(flag) < 28 else f"  {flag}\n{'':31}{lines[0]}"
    return [first, *(f"{'':31}{line}" for line in lines[1:])]
