"""Descriptions of tasks, optimizers, experiments and the options of `bench fit`. Nothing here imports torch."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from bench.config.options import Option, all_optimizer_options, optimizer_options, stored, task_options
from bench.terminal import row, wrapped_lines
from bench.text import options_text, word_of
from optimizers import LogUniform, OptimizerSpec
from optimizers.groups import REST, ROLES
from tasks import TaskSpec
from tasks.core.quantities import HEADS, OBSERVED

_FACTS = (
    "title", "version", "metric", "mode", "scale", "ranks_training", "target", "budget", "batch_size", "precision",
    "family", "source", "measure_every",
)  # fmt: skip


def optimizer_json(spec: OptimizerSpec) -> dict[str, Any]:
    """Formula, source, hyperparameters and search space of an optimizer, for strict JSON."""
    facts = {"name": spec.name, "version": spec.version, "rule": spec.formula, "source": spec.source}
    facts |= {"class": spec.target, "traits": spec.traits.named(), "options": _options(optimizer_options(spec))}
    search = {name: asdict(axis) if isinstance(axis, LogUniform) else list(axis) for name, axis in spec.search.items()}
    return {"kind": "optimizer", **facts, "search": search, "by_family": spec.by_family}


def describe_optimizer(spec: OptimizerSpec) -> str:
    """The same as text."""
    lines = [
        f"{spec.name} (version {spec.version})",
        *_facts(optimizer_json(spec), "rule", "source", "class", "traits"),
    ]
    lines += ["", "hyperparameters:", *hyperparameter_rows(spec)]
    lines += ["", "defaults by family of tasks:"] if spec.by_family else []
    lines += [line for family, values in spec.by_family.items() for line in row(family, options_text(values))]
    lines += ["", "search space:"]
    for name, axis in spec.search.items():
        is_range = isinstance(axis, LogUniform)
        text = (
            f"log-uniform in [{axis.low:g}, {axis.high:g}]" if is_range else f"one of {', '.join(map(word_of, axis))}"
        )
        lines += row(f"--opt.{name}", text)
    return "\n".join(lines)


def task_json(spec: TaskSpec) -> dict[str, Any]:
    """Model, metric, target, budget and options of a task, for strict JSON."""
    facts = {name: getattr(spec, name) for name in _FACTS}
    return {"kind": "task", "name": spec.own_name or spec.name, **facts, "options": _options(task_options(spec))}


def describe_task(spec: TaskSpec) -> str:
    """The same as text, with the measurements."""
    lines = wrapped_lines(f"{spec.own_name or spec.name} (version {spec.version}): {spec.title}", "", "  ")
    lines += [*_facts(task_json(spec), *_FACTS[2:]), ""]
    if spec.measure_every:
        lines += [f"measured every {spec.measure_every} steps:", *_measurements(spec), ""]
    if spec.family in OBSERVED:
        lines += wrapped_lines("measured by --trainer.observe, of each head (NAME_lLAYER_hHEAD):")
        lines += [*(line for name, text in HEADS.items() for line in row(name, text)), ""]
    return "\n".join([*lines, "options:", *rows("task", task_options(spec))])


def _options(options: Mapping[str, Option]) -> dict[str, dict[str, str]]:
    return {name: {"type": o.type_name, "default": o.default_text, "help": o.help} for name, o in options.items()}


def _facts(facts: Mapping[str, Any], *names: str) -> list[str]:
    """Facts of these names; none that is empty."""
    lines = list[str]()
    for name in (name for name in names if facts[name] not in (None, "", [], False)):
        value = facts[name]
        text = options_text(value) if isinstance(value, Mapping) else word_of(value)
        lines += row(name.replace("_", " "), ", ".join(value) if isinstance(value, list) else text)
    return lines


def _measurements(spec: TaskSpec) -> list[str]:
    """The measurements of a task of the suite, with their description."""
    names = dict[str, list[str]]()
    for name, text in stored("measurements").get(str(spec.module), {}).items():
        names.setdefault(text.rstrip("."), []).append(name)
    return [line for text, group in names.items() for line in row(", ".join(group), text)]


def hyperparameter_rows(spec: OptimizerSpec) -> list[str]:
    """The hyperparameters of an optimizer, and how to set them by role."""
    rest = replace(all_optimizer_options(spec, {})[REST], default=spec.rest)
    roles = f"one role: {', '.join(ROLES)}" if spec.rest is None else f"the role matrix; --opt.{REST}.ROLE.NAME others"
    by_role = row("--opt.ROLE.NAME", f"a value for the parameters of {roles}")
    return [*rows("opt", {**optimizer_options(spec), REST: rest}), *by_role]


def rows(prefix: str, options: Mapping[str, Option]) -> list[str]:
    """Options of a task or an optimizer, each with its meaning, type and default."""
    texts = ((o, f"{o.type_name}, default {o.default_text}") for o in options.values())
    return [line for o, extra in texts for line in row(f"--{prefix}.{o.name}", o.help.rstrip("."), extra)]
