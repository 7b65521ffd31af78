"""Descriptions of tasks, optimizers, experiments and the options of `bench fit`. Nothing here imports torch."""

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from bench.config.options import (
    Option,
    all_optimizer_options,
    class_nodes,
    documented,
    method_node,
    optimizer_options,
    task_options,
)
from bench.terminal import NARROWEST, columns
from bench.text import word_of
from optimizers import LogUniform, OptimizerSpec
from optimizers.groups import REST, ROLES
from tasks import TASKS, TaskSpec
from tasks.core.quantities import HEADS, OBSERVED
from tasks.core.spec import place_of

_WIDEST = 111
"""Columns of help at most. Ours."""
_BESIDE = 80
"""With fewer columns, a meaning stands below its name. Ours."""


def describe_optimizer(spec: OptimizerSpec) -> str:
    """Formula, source, hyperparameters and search space of an optimizer."""
    lines = [f"{spec.name} (version {spec.version})", *_fact("rule", spec.formula), *_fact("source", spec.source)]
    lines += [*_fact("class", spec.target.replace(":", "."))]
    lines += _fact("traits", ", ".join(name.replace("_", " ") for name in spec.traits.named()))
    lines += ["", "hyperparameters:", *hyperparameter_rows(spec), *_by_family(spec), "", "search space:"]
    for name, axis in spec.search.items():
        is_range = isinstance(axis, LogUniform)
        text = (
            f"log-uniform in [{axis.low:g}, {axis.high:g}]" if is_range else f"one of {', '.join(map(word_of, axis))}"
        )
        lines += wrapped_lines(f"--opt.{name}  {text}", "  ", "      ")
    return "\n".join(lines)


def optimizer_json(spec: OptimizerSpec) -> dict[str, Any]:
    """The same as JSON."""
    facts = {"name": spec.name, "version": spec.version, "rule": spec.formula, "source": spec.source}
    facts |= {"class": spec.target, "traits": spec.traits.named(), "options": _options(optimizer_options(spec))}
    search = {name: asdict(axis) if isinstance(axis, LogUniform) else list(axis) for name, axis in spec.search.items()}
    return {"kind": "optimizer", **facts, "search": search, "by_family": spec.by_family}


_FACTS = (
    "title", "version", "metric", "mode", "scale", "ranks_training", "target", "budget", "batch_size", "precision",
    "family", "source", "measure_every",
)  # fmt: skip


def task_json(spec: TaskSpec) -> dict[str, Any]:
    """The task as JSON."""
    facts = {name: getattr(spec, name) for name in _FACTS}
    return {"kind": "task", "name": spec.own_name or spec.name, **facts, "options": _options(task_options(spec))}


def _options(options: Mapping[str, Option]) -> dict[str, dict[str, str]]:
    return {name: {"type": o.type_name, "default": o.default_text, "help": o.help} for name, o in options.items()}


def _by_family(spec: OptimizerSpec) -> list[str]:
    """The defaults by family of tasks that replace the general ones."""
    lines = [] if not spec.by_family else ["", "defaults by family of tasks:"]
    for family, values in spec.by_family.items():
        tasks = ", ".join(name for name, task in TASKS.own.items() if task.family == family)
        settings = ", ".join(f"{name} {word_of(value)}" for name, value in values.items())
        lines += row(f"  {family}", f"{settings} ({tasks})")
    return lines


def describe_task(spec: TaskSpec) -> str:
    """Model, metric, target, budget and options of a task."""
    budget = ", ".join(f"{name} {value}" for name, value in spec.budget.items())
    measured = [f"measured every {spec.measure_every} steps:", *_measurements(spec), ""] if spec.measure_every else []
    if spec.family in OBSERVED:
        names = [line for name, text in HEADS.items() for line in row(name, text)]
        head = "measured by --trainer.observe, of each head (NAME_lLAYER_hHEAD):"
        measured = [*wrapped_lines(head), *names, ""]
    target = "none" if spec.target is None else f"{spec.metric} {spec.target:g}"
    compared = "ratios of suboptimality gaps" if spec.scale == "log" else "differences"
    ranked = " of the training samples: its claim is about optimization" * spec.ranks_training
    lines = wrapped_lines(f"{spec.own_name or spec.name} (version {spec.version}): {spec.title}", "", "  ")
    lines += _fact("metric", f"{spec.metric} ({spec.mode}){ranked}") + _fact("scale", f"{spec.scale}: {compared}")
    lines += _fact("target", target)
    lines += _fact("budget", f"{budget}, batch {spec.batch_size}, precision {spec.precision}")
    lines += [*_fact("family", spec.family), *_fact("source", spec.source), "", *measured, "options:"]
    return "\n".join([*lines, *rows("task", task_options(spec))])


def _measurements(spec: TaskSpec) -> list[str]:
    """A task's measurements with their description in `measure_at`."""
    module, name = place_of(spec.module)
    keys, names = _keys(module, name), dict[str, list[str]]()
    for name in spec.measures.split(", "):
        names.setdefault(keys.get(name, ""), []).append(name)
    return [line for text, group in names.items() for line in row(", ".join(group), text)]


def _keys(module: str, name: str) -> dict[str, str]:
    """The `Keys:` of `measure_at` in a class; those of its base classes, where it does not override them."""
    keys: dict[str, str] = {}
    for method in (method_node(node, "measure_at") for node in class_nodes(module, name)):
        keys = (documented(ast.get_docstring(method), "Keys") if method else {}) | keys
    return {name: text.rstrip(".") for name, text in keys.items()}


def _fact(name: str, text: str) -> list[str]:
    """A line of the head, wrapped; none without a text."""
    return wrapped_lines(text, f"  {name:<8}", " " * 10)


def width() -> int:
    """Columns of help."""
    return max(NARROWEST, min(_WIDEST, columns() or _WIDEST))


def wrapped_lines(text: str, first: str = "", indent: str = "") -> list[str]:
    """The text in lines that fit the terminal; none for an empty text."""
    return textwrap.wrap(text, width(), initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def hyperparameter_rows(spec: OptimizerSpec) -> list[str]:
    """The hyperparameters of an optimizer, and how to set them by role."""
    rest = replace(all_optimizer_options(spec, {})[REST], default=spec.rest)
    roles = f"one role: {', '.join(ROLES)}" if spec.rest is None else f"the role matrix; --opt.{REST}.ROLE.NAME others"
    by_role = row("--opt.ROLE.NAME", f"a value for the parameters of {roles}")
    return [*rows("opt", {**optimizer_options(spec), REST: rest}), *by_role]


def rows(prefix: str, options: Mapping[str, Option]) -> list[str]:
    """Options of a task or an optimizer, each with its meaning, type and default."""
    texts = (
        (f"--{prefix}.{o.name}", o.help.rstrip("."), f"{o.type_name}, default {o.default_text}")
        for o in options.values()
    )
    return [line for text in texts for line in row(*text)]


def row(flag: str, text: str, extra: str = "") -> list[str]:
    """A name and its meaning, wrapped."""
    full = f"{text} ({extra})" if text and extra else text or extra
    beside = width() >= _BESIDE
    indent = " " * (31 if beside else 6)
    lines = wrapped_lines(full, indent, indent)
    if beside and len(flag) < 28 and lines:
        return [f"  {flag:<28} {lines[0].lstrip()}", *lines[1:]]
    return [f"  {flag}", *lines]
