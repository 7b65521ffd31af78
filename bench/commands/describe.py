"""Descriptions of tasks, optimizers, experiments and the options of `bench fit`. Nothing here imports torch."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from bench.config.options import Option, all_optimizer_options, optimizer_options, stored, task_options
from bench.output import Answer
from bench.terminal import row, wrapped_lines
from bench.text import options_text, word_of
from optimizers import LogUniform, OptimizerSpec
from optimizers.groups import REST, ROLES
from tasks import TaskSpec
from tasks.core.quantities import HEADS, OBSERVED

_FACTS = (
    "metric", "mode", "scale", "ranks_training", "target", "budget", "batch_size", "precision",
    "family", "source", "measure_every",
)  # fmt: skip


def optimizer(spec: OptimizerSpec) -> Answer:
    """The rule, the options, the defaults and the search space of an optimizer."""
    facts = {"rule": spec.formula, "source": spec.source, "class": spec.target, "traits": spec.traits.named()}
    search, texts = dict[str, Any](), dict[str, str]()
    for name, axis in spec.search.items():
        if isinstance(axis, LogUniform):
            search[name], texts[f"--opt.{name}"] = asdict(axis), f"log-uniform in [{axis.low:g}, {axis.high:g}]"
        else:
            search[name], texts[f"--opt.{name}"] = list(axis), f"one of {', '.join(map(word_of, axis))}"
    lines = [f"{spec.name} (version {spec.version})", *_facts(facts)]
    lines += ["", "hyperparameters:", *hyperparameter_rows(spec)]
    if spec.by_family:
        lines += ["", "defaults by family of tasks:", *_facts(spec.by_family)]
    options = _options(optimizer_options(spec))
    about = {"kind": "optimizer", "name": spec.name, "version": spec.version, **facts}
    data = about | {"options": options, "search": search, "by_family": spec.by_family}
    return Answer(data, [*lines, "", "search space:", *_rows(texts)])


def task(spec: TaskSpec) -> Answer:
    """The metric, the budget, the measurements and the options of a task."""
    facts, options = {name: getattr(spec, name) for name in _FACTS}, task_options(spec)
    about = {"kind": "task", "name": spec.display_name or spec.name, "title": spec.title, "version": spec.version}
    lines = wrapped_lines(f"{about['name']} (version {spec.version}): {spec.title}", "", "  ")
    lines += [*_facts(facts), ""]
    if spec.measure_every:
        meanings = dict[str, list[str]]()  # the names of a meaning that several share
        for name, text in stored("measurements").get(str(spec.module), {}).items():
            meanings.setdefault(text.rstrip("."), []).append(name)
        measured = {", ".join(names): text for text, names in meanings.items()}
        lines += [f"measured every {spec.measure_every} steps:", *_rows(measured), ""]
    if spec.family in OBSERVED:
        lines += wrapped_lines("measured by --trainer.observe, of each head (NAME_lLAYER_hHEAD):")
        lines += [*_rows(HEADS), ""]
    return Answer(about | facts | {"options": _options(options)}, [*lines, "options:", *rows("task", options)])


def _options(options: Mapping[str, Option]) -> dict[str, dict[str, str]]:
    return {name: {"type": o.type_name, "default": o.default_text, "help": o.help} for name, o in options.items()}


def _facts(facts: Mapping[str, Any]) -> list[str]:
    """The facts that are not empty."""
    texts = dict[str, str]()
    for name, value in facts.items():
        if value not in (None, "", [], False):
            text = options_text(value) if isinstance(value, Mapping) else word_of(value)
            texts[name.replace("_", " ")] = ", ".join(value) if isinstance(value, list) else text
    return _rows(texts)


def _rows(texts: Mapping[str, str]) -> list[str]:
    return [line for name, text in texts.items() for line in row(name, text)]


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
