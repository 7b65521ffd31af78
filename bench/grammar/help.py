"""The help of the program and its commands, from their declarations. Imports neither torch nor pydantic."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.errors import check_known
from bench.grammar.commands import COMMANDS
from bench.grammar.parse import Command, Option, subject
from bench.terminal import NARROWEST, columns

if TYPE_CHECKING:
    from bench.config.options import Option as Hyperparameter
    from optimizers import OptimizerSpec

_WIDEST = 111
"""Columns of help at most. Ours."""
_BESIDE = 80
"""With fewer columns, a meaning stands below its name. Ours."""


HEADINGS = {
    "train": ("quickstart", "fit", "sweep"),
    "tune": ("tune", "suite"),
    "compare": ("compare", "leaderboard", "report", "plot", "check", "reproduce", "claims"),
    "look": ("list", "show", "sql", "data", "doctor"),
    "share": ("new", "merge", "verify"),
}
"""The commands of `bench --help` by heading."""


def program_help() -> str:
    """The help of `bench`."""
    return "\n".join(
        [
            *wrapped_lines("usage: bench [-h] [--version] COMMAND ...", "", "  "),
            "",
            "Compare optimizers on attention models.",
            "",
            *(line for heading, names in HEADINGS.items() for line in _commands(heading, names)),
            "options:",
            *row("-h, --help", "of the program, or of a command, anywhere after its name"),
            *row("--version", "print the version"),
            "",
            "Start with: bench quickstart",
        ]
    )


def _commands(heading: str, names: Sequence[str]) -> list[str]:
    return [f"{heading}:", *(line for name in names for line in row(name, COMMANDS[name].summary)), ""]


def command_help(command: Command, words: Sequence[str] = ()) -> str:
    """The help of a command, with the options of the given task and optimizers.

    Raises:
        UserError: the task or an optimizer does not exist.
    """
    form = command.form or " ".join([*(_form(each) for each in command.positionals), "[options]"])
    lines = [*wrapped_lines(f"usage: {command.typed} {form}", "", "  "), "", *wrapped_lines(command.text)]
    if command.positionals:
        lines += ["", *(line for each in command.positionals for line in row(each.value, _meaning(each)))]
    lines += ["", *(line for option in command.options for line in row(_flags(option), _meaning(option)))]
    if command.groups:
        lines += _settings(command, words)
    return "\n".join([*lines, *(["", *wrapped_lines(command.more)] if command.more else [])])


def _form(each: Option) -> str:
    word = each.value + " ..." * (each.most == 0)
    return word if each.least else f"[{word}]"


def _flags(option: Option) -> str:
    return f"{f'-{option.short}, ' * bool(option.short)}{option.flag}{f' {option.value}' if option.value else ''}"


def _meaning(option: Option) -> str:
    explained = all(re.search(rf"\b{re.escape(choice)}\b", option.help) for choice in option.choices)
    return option.help if explained else f"{', '.join(option.choices)}: {option.help}"


def _settings(command: Command, words: Sequence[str]) -> list[str]:
    """The settings in dotted form that a command takes."""
    from bench.config.options import task_options, trainer_options
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    lines: list[str] = []
    task, opts = subject(words)
    if "task" in command.groups:
        check_known("task", [] if task is None else [task], TASKS)
        if task:
            lines += [
                "",
                *wrapped_lines(f"task {task}: {TASKS[task].title}", "", "  "),
                *rows("task", task_options(TASKS[task])),
            ]
        else:
            flag = "--task " * ("task" not in {each.name for each in command.positionals})
            hint = f"Name a task for its options: {command.typed} {flag}mnist --help"
            lines += ["", *wrapped_lines(hint), *_names("tasks", TASKS)]
    if "opt" in command.groups:
        check_known("optimizer", opts, OPTIMIZERS)
        for opt in opts:
            spec = OPTIMIZERS[opt].on(TASKS[task].family if task else "")
            lines += ["", *wrapped_lines(f"optimizer {opt}: {spec.formula}", "", "  "), *hyperparameter_rows(spec)]
        if not opts and "opt" in {option.name for option in command.options}:
            hint = f"Name an optimizer for its options: {command.typed} --opt sngd --help"
            lines += ["", *wrapped_lines(hint), *_names("optimizers", OPTIMIZERS)]
    if "trainer" in command.groups:
        lines += ["", "trainer:"]
        for name, option in trainer_options().items():
            measured = task and TASKS[task].measure_every is not None
            if not task or name != ("observe" if measured else "measure_every"):
                default = f"default {option.default}" if option.default is not None else ""
                lines += row(f"--trainer.{name}", option.help, default)
    return lines


def _names(kind: str, names: Iterable[str]) -> list[str]:
    return wrapped_lines(f"{kind}: {', '.join(names)}", "  ", "    ")


def _width() -> int:
    return min(_WIDEST, columns() or _WIDEST)


def wrapped_lines(text: str, first: str = "", indent: str = "") -> list[str]:
    """The text in lines that fit the terminal; none for an empty text."""
    wide = max(NARROWEST, _width())
    return textwrap.wrap(text, wide, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def hyperparameter_rows(spec: "OptimizerSpec") -> list[str]:
    """The hyperparameters of an optimizer, and how to set them by role."""
    from bench.config.options import all_optimizer_options, optimizer_options
    from optimizers.groups import REST, ROLES

    rest = replace(all_optimizer_options(spec, {})[REST], default=spec.rest)
    roles = f"one role: {', '.join(ROLES)}" if spec.rest is None else f"the role matrix; --opt.{REST}.ROLE.NAME others"
    by_role = row("--opt.ROLE.NAME", f"a value for the parameters of {roles}")
    return [*rows("opt", {**optimizer_options(spec), REST: rest}), *by_role]


def rows(prefix: str, options: Mapping[str, "Hyperparameter"]) -> list[str]:
    """Options of a task or an optimizer, each with its meaning, type and default."""
    return [
        line
        for o in options.values()
        for line in row(f"--{prefix}.{o.name}", o.help.rstrip("."), f"{o.type_name}, default {o.default_text}")
    ]


def row(flag: str, text: str, extra: str = "") -> list[str]:
    """A name and its meaning, wrapped."""
    full = f"{text} ({extra})" if text and extra else text or extra
    beside = _width() >= _BESIDE
    indent = " " * (31 if beside else 6)
    lines = wrapped_lines(full, indent, indent)
    if beside and len(flag) < 28 and lines:
        return [f"  {flag:<28} {lines[0].lstrip()}", *lines[1:]]
    return [f"  {flag}", *lines]
