"""The rule of a ladder: from a task and an axis to the settings of each rung."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.config.run_config import RunConfig, resolve
from bench.errors import UserError
from tasks import TASKS

Axis = Literal["size", "width", "depth", "epochs", "data"]
"""The growing quantity."""
MODEL = ("size", "width", "depth")
"""Axes along which the model grows."""
TOKENS = 20.0
"""Default training tokens per parameter (Hoffmann et al., arXiv 2203.15556)."""
START = 27.0
"""Parameters of the task's default model divided by those of the first rung. Ours: three rungs of ratio 3 below it."""
EVALUATIONS = 20
"""Number of evaluations of a run, evenly spaced. Ours."""
WIDEST = 2**14
"""Limit of the tried widths and depths."""
LARGEST = 1e3
"""Maximum size of the last rung, relative to that of the given settings. Ours."""


@dataclass(frozen=True)
class Size:
    """The size of a rung.

    Attributes:
        at: its position on the axis: parameters, steps, or training samples.
        parameters: of its model.
        steps: of each run.
        settings: of its runs, in dotted form.
    """

    at: float
    parameters: int
    steps: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """The growth rule of a ladder.

    Attributes:
        axis: the growing quantity.
        ratio: growth factor from rung to rung, above 1.
        tokens: training tokens per parameter; None if the settings determine the budget.
        start: parameters of the first model; None for those of the task's default model divided by `START`.
    """

    axis: Axis
    ratio: float
    tokens: float | None = None
    start: float | None = None


def rule_of(words: Mapping[str, Any], axis: Axis, ratio: float, tokens: float | None, start: float | None) -> Rule:
    """The rule that a command requests, with defaults filled in.

    Args:
        words: settings of all runs, in dotted form, with the task.
        axis: the growing quantity.
        ratio: growth factor from rung to rung.
        tokens: training tokens per parameter, if given.
        start: parameters of the first model, if given.

    Raises:
        UserError: the task has no such size, or the options contradict each other.
    """
    sizes = TASKS[str(words["task"])].sizes
    budget = [name for name in ("trainer.max_steps", "trainer.max_epochs") if name in words]
    grown = "width" if axis == "size" else axis
    if axis != "epochs" and grown not in sizes:
        raise UserError(
            f"--axis {axis}: {words['task']} does not declare which option is its {grown} (TaskSpec.sizes); --axis"
            " epochs works for every task"
        )
    if ratio <= 1:
        raise UserError(
            f"--ratio {ratio:g}: each rung must be larger than the previous one; write a number above 1, such as 3"
        )
    if axis not in MODEL and (tokens is not None or start is not None):
        what = f"tokens {tokens:g}" if tokens is not None else f"start {start:g}"
        raise UserError(f"--{what}: --axis {axis} does not change the model; remove it")
    if tokens is not None and "tokens" not in sizes:
        raise UserError(
            f"--tokens {tokens:g}: the samples of {words['task']} are not rows of tokens; write --trainer.max_epochs"
        )
    if tokens is not None and budget:
        raise UserError(f"--tokens {tokens:g} and --{budget[0]} both set the length of a run; remove one")
    if tokens is not None and tokens <= 0:
        raise UserError(f"--tokens {tokens:g}: it must be above 0, such as {TOKENS:g} for each parameter")
    if start is not None and start < 1:
        raise UserError(f"--start {start:g}: the first rung needs one parameter or more, such as --start 20000")
    if tokens is None and axis in MODEL and "tokens" in sizes and not budget:
        tokens = TOKENS
    return Rule(axis, ratio, tokens, start)


def in_words(rule: Rule, task: str) -> list[str]:
    """The rule as sentences."""
    names = {kind: f"--task.{name}" for kind, name in TASKS[task].sizes.items()}
    lines = [f"From rung to rung {_GROWS[rule.axis]} by a factor of {rule.ratio:g}."]
    if rule.axis in ("size", "width"):
        with_width = [f"{names['mlp']} (whole)"] if "mlp" in names else []
        if rule.axis == "size" and "depth" in names:
            with_width.append(f"{names['depth']} (whole, at least 1)")
        if "heads" in names:
            with_width.append(f"{names['heads']} (so that the size of heads changes as little as possible)")
        grows = f". In proportion to it grow {', '.join(with_width)}" if with_width else ""
        lines.append(f"{names['width']} is chosen so that the model size is closest to the target{grows}.")
    if rule.axis == "depth":
        lines.append(f"{names['depth']} is chosen so that the model size is closest to the target.")
    if rule.tokens is not None:
        lines.append(f"Each run sees {rule.tokens:g} tokens for each parameter.")
    lines.append(
        f"Each run is evaluated {EVALUATIONS} times, evenly over its steps, unless --trainer.val_every is given."
    )
    return lines


_GROWS = {
    "size": "the number of parameters grows",
    "width": "the number of parameters grows, by the width alone,",
    "depth": "the number of parameters grows, by the depth alone,",
    "epochs": "the length of a run grows",
    "data": "the number of training samples grows",
}


def sizes_of(rule: Rule, words: Mapping[str, Any], opt: str, rungs: int, places: Mapping[str, Any]) -> list[Size]:
    """The rungs in ascending size; more rungs do not change the earlier ones.

    Args:
        rule: the growth rule.
        words: settings of all runs, in dotted form, with the task.
        opt: any optimizer of the ladder.
        rungs: how many, at least 1.
        places: paths of data and store.

    Raises:
        UserError: a setting is illegal, data are missing, or a rung is not larger than the one before.
    """

    def config(more: Mapping[str, Any]) -> RunConfig:
        return resolve({**words, **more, "opt": opt, "seed": 0}, fallback={**places, "device": "cpu"})

    base = config({})
    if rule.axis in MODEL:
        count = _counter(base)
        usual = count({})
        start = rule.start if rule.start is not None else usual / START
        _refuse_large(rule, rungs, start / usual)
        settings = _models(rule.axis, base, count, [start * rule.ratio**k for k in range(rungs)])
    elif rule.axis == "data":
        _refuse_large(rule, rungs)
        samples = base.task_spec.sizes["data"]
        first = base.task_options[samples]
        if first is None:
            raise UserError(f"--axis data: give the number of samples of the first rung, such as --task.{samples} 1000")
        settings = [{f"task.{samples}": round(first * rule.ratio**k)} for k in range(rungs)]
    else:
        _refuse_large(rule, rungs)
        settings = [_longer(base, rule.ratio**k) for k in range(rungs)]
    found = [_measured(rule, config(own), own, evaluated="trainer.val_every" in words) for own in settings]
    for k, (one, other) in enumerate(itertools.pairwise(found), 1):
        if one.at >= other.at:
            more = "--ratio or --start" if rule.axis in MODEL else "--ratio"
            raise UserError(f"rungs {k} and {k + 1} have the same size ({one.at:g} and {other.at:g}); increase {more}")
    return found


def _longer(base: RunConfig, factor: float) -> dict[str, Any]:
    epochs, steps = base.trainer.max_epochs, base.trainer.max_steps
    more = {"trainer.max_epochs": epochs * factor} if epochs is not None else {}
    return more | ({"trainer.max_steps": round(steps * factor)} if steps is not None else {})


def _refuse_large(rule: Rule, rungs: int, first: float = 1.0) -> None:
    """Refuse a ladder whose last rung is too large; `first` is the first rung's size relative to the given settings.

    Raises:
        UserError: it is.
    """
    if math.log10(first) + (rungs - 1) * math.log10(rule.ratio) > math.log10(LARGEST):
        start = f" --start {rule.start:g}" if rule.start is not None else ""
        raise UserError(
            f"--rungs {rungs} --ratio {rule.ratio:g}{start}: the last rung would be more than {LARGEST:g} times as"
            f" large as without a ladder; write fewer rungs, or a smaller --ratio{' or --start' * (rule.axis in MODEL)}"
        )


def _models(
    axis: Axis, base: RunConfig, count: Callable[[Mapping[str, Any]], int], wanted: Sequence[float]
) -> list[dict[str, Any]]:
    """Settings of the models whose numbers of parameters are closest to the wanted ones.

    Args:
        axis: of the model.
        base: settings of the task.
        count: gives the number of parameters for further options of the task.
        wanted: numbers of parameters, ascending.
    """
    candidates = list(_candidates(axis, base.task_spec.sizes, base.task_options))
    settings, counts, i = list[dict[str, Any]](), list[int](), 0
    for parameters in wanted:
        target = math.log(parameters)
        while not counts or (math.log(counts[-1]) < target and i < len(candidates)):
            counts.append(count(candidates[i]))
            i += 1
        near = min(range(len(counts)), key=lambda k: abs(math.log(counts[k]) - target))
        settings.append({f"task.{name}": value for name, value in candidates[near].items()})
    return settings


def _candidates(axis: Axis, names: Mapping[str, str], options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Options of models, in ascending size."""
    if axis == "depth":
        yield from ({names["depth"]: depth} for depth in range(1, WIDEST))
        return
    base = options[names["width"]]
    for width in range(2, WIDEST, 2):
        share, found = width / base, {names["width"]: width}
        if "heads" in names and options.get("head_dim") is None:
            heads = max(1, round(options[names["heads"]] * share))
            if width % (2 * heads):
                continue  # the size of a head must be even
            found[names["heads"]] = heads
        if "mlp" in names:
            found[names["mlp"]] = max(1, round(options[names["mlp"]] * share))
        if axis == "size" and "depth" in names:
            found[names["depth"]] = max(1, round(options[names["depth"]] * share))
        yield found


def _counter(base: RunConfig) -> Callable[[Mapping[str, Any]], int]:
    """A function that counts a model's parameters for given options, on the meta device unless the data change."""
    import torch

    from bench.train.runner import build

    data, of_data = build(base)[0].data, inspect.signature(base.task_spec.data_cls.__init__).parameters

    def count(options: Mapping[str, Any]) -> int:
        config = base.model_copy(update={"task_options": {**base.task_options, **options}})
        if any(name in of_data for name in options):
            return _trained(build(config)[0])
        with torch.device("meta"):
            return _trained(build(config, data)[0])

    return count


def _trained(task: Any) -> int:
    return sum(parameter.numel() for parameter in task.parameters() if parameter.requires_grad)


def _measured(rule: Rule, config: RunConfig, own: dict[str, Any], *, evaluated: bool) -> Size:
    """The size of a configuration with the growing settings `own`; `evaluated` if the command says when to evaluate."""
    from bench.train.runner import build

    task, plan = build(config)
    names, options = config.task_spec.sizes, config.task_options
    parameters, steps, more = _trained(task), plan.total_steps, dict[str, Any]()
    if rule.tokens is not None:
        seen = plan.batch_size * options[names["tokens"]]
        steps = more["trainer.max_steps"] = max(1, math.ceil(rule.tokens * parameters / seen))
    if not evaluated:
        more["trainer.val_every"] = max(1, steps // EVALUATIONS)
    at = parameters if rule.axis in MODEL else steps if rule.axis == "epochs" else options[names["data"]]
    return Size(float(at), parameters, steps, own | more)
