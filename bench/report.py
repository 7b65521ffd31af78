"""Results and descriptions as a person or a program reads them."""

from pathlib import Path
from typing import Any

from bench.options import optimizer_options, task_options
from bench.store import RunResult
from optimizers import OptimizerSpec
from tasks import TaskSpec

CAP_SHARE_TO_REPORT = 0.9


def result_json(result: RunResult, store: Path) -> dict[str, Any]:
    """The result in ten fields; numbers are finite or null."""
    return {
        "run_id": result.run_id,
        "task": result.config["task"],
        "opt": result.config["opt"],
        "status": result.status,
        "metric": f"{result.split}/{result.metric}",
        "final": result.final,
        "best": result.best,
        "steps": result.steps,
        "wall_s": round(result.wall_s, 3),
        "store": str(store),
    }


def result_lines(result: RunResult, store: Path) -> list[str]:
    """The result in one line, and one more for each thing that a reader must know."""
    parts = [f"{result.config['task']} {result.config['opt']}: {result.status}"]
    if result.final is not None:
        parts.append(f"{result.split} {result.metric} {result.final:.4g}")
    if result.best is not None and result.best_step != result.steps:
        parts.append(f"{result.best:.4g} at the best step {result.best_step}")
    parts += [f"{result.steps} steps in {result.wall_s:.1f} s", f"stored in {store / result.run_id}"]
    lines = [", ".join(parts)]
    if result.reason:
        lines.append(f"note: {result.reason}")
    if result.skipped:
        lines.append(f"note: {result.skipped} steps were skipped because a gradient overflowed in half precision")
    if result.part:
        lines.append(f"note: trained on a part of the data: {result.part}")
    if result.cap_share is not None and result.cap_share > CAP_SHARE_TO_REPORT:
        lines.append(
            f"note: the step cap bound on {result.cap_share:.0%} of the steps, so the cap and not the method set the step size"
            " (with a fixed cap that is SGD); raise --opt.max_step to let the method choose"
        )
    return lines


def describe_optimizer(spec: OptimizerSpec) -> str:
    """Formula, source, hyperparameters and search space of an optimizer."""
    search = {name: f"log-uniform in [{space.low:g}, {space.high:g}]" for name, space in spec.search.items()}
    traits = [name.replace("_", " ") for name, on in vars(spec.traits).items() if on]
    return "\n".join(
        [
            f"{spec.name} (version {spec.version})", f"  rule    {spec.formula}", f"  source  {spec.source}",
            f"  class   {spec.target.replace(':', '.')}", *([f"  traits  {', '.join(traits)}"] if traits else []),
            "", "hyperparameters:", *_options("opt", optimizer_options(spec)),
            "", "search space:", *(f"  --opt.{name}  {space}" for name, space in search.items()),
        ]
    )  # fmt: skip


def describe_task(spec: TaskSpec) -> str:
    """Model, metric, target, budget and options of a task."""
    budget = ", ".join(f"{name} {value}" for name, value in spec.budget.items())
    target = "none" if spec.target is None else f"{spec.metric} {spec.target:g}"
    return "\n".join(
        [
            f"{spec.name} (version {spec.version}): {spec.title}", f"  metric  {spec.metric} ({spec.mode})",
            f"  target  {target}", f"  budget  {budget}, batch {spec.batch_size}, precision {spec.precision}",
            f"  source  {spec.source}", "", "options:", *_options("task", task_options(spec)),
        ]
    )  # fmt: skip


def _options(prefix: str, options: Any) -> list[str]:
    lines = []
    for option in options.values():
        default = "none" if option.default is None else "from the task" if option.default == "task" else option.default
        lines.append(f"  --{prefix}.{option.name} ({option.type_name}, default {default})  {option.help}")
    return lines
