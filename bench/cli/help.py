"""The help of the program and its commands, with the settings of a task and an optimizer."""

import io
from collections.abc import Sequence
from itertools import pairwise

from bench.cli.commands import COMMANDS, GROUPS, HEADINGS, app_of, options_of, settings_of_a_run
from bench.commands.describe import hyperparameter_rows, row, rows, width, wrapped_lines
from bench.errors import check_known


def program_help() -> str:
    """The help of `bench`."""
    lines = ["usage: bench [-h] [--version] COMMAND ...", "", "Compare optimizers on attention models.", ""]
    for heading, names in HEADINGS.items():
        summaries = {name: (COMMANDS[name].__doc__ or "").partition("\n")[0].rstrip(".") for name in names}
        lines += [f"{heading}:", *(line for name, text in summaries.items() for line in row(name, text)), ""]
    lines += ["options:", *row("-h, --help", "of the program, or of a command, anywhere after its name")]
    lines += [*row("--version", "print the version"), *row("--json", "of a command: print only JSON")]
    return "\n".join([*lines, "", "Start with: bench quickstart"])


def command_help(name: str, words: Sequence[str] = ()) -> str:
    """The help of a command, with the options of the given task and optimizers.

    Raises:
        UserError: the task or an optimizer does not exist.
    """
    from rich.console import Console

    file = io.StringIO()
    app_of(name).help_print(console=Console(file=file, width=width(), highlight=False))
    lines = [line.rstrip() for line in file.getvalue().strip().splitlines()]
    return "\n".join([*lines, *row("-h, --help", "print this help"), *_settings(name, words)])


def _settings(name: str, words: Sequence[str]) -> list[str]:
    """The settings in dotted form that a command takes."""
    from bench.config.options import task_options
    from bench.config.run_config import model_options
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    lines, groups = list[str](), GROUPS.get(name, ())
    named = {option: value for word in words for option, _, value in [word.partition("=")]}
    named |= {option: value for option, value in pairwise(words) if not value.startswith("-")}
    task, opts = named.get("--task"), [opt for opt in named.get("--opt", "").split(",") if opt]
    if "task" in groups:
        check_known("task", [] if task is None else [task], TASKS)
        if task:
            head = wrapped_lines(f"task {task}: {TASKS[task].title}", "", "  ")
            lines += ["", *head, *rows("task", task_options(TASKS[task]))]
        elif "--task" in options_of(name):
            lines += ["", *wrapped_lines(f"Name a task for its options: bench {name} --task mnist --help")]
            lines += wrapped_lines(f"tasks: {', '.join(TASKS)}", "  ", "    ")
    if "opt" in groups:
        check_known("optimizer", opts, OPTIMIZERS)
        for opt in opts:
            spec = OPTIMIZERS[opt].on(TASKS[task].family if task else "")
            lines += ["", *wrapped_lines(f"optimizer {opt}: {spec.formula}", "", "  "), *hyperparameter_rows(spec)]
        if not opts and "--opt" in options_of(name):
            lines += ["", *wrapped_lines(f"Name an optimizer for its options: bench {name} --opt sngd --help")]
            lines += wrapped_lines(f"optimizers: {', '.join(OPTIMIZERS)}", "  ", "    ")
    if "trainer" in groups:
        of_a_run = [line for key, text in settings_of_a_run(name).items() for line in row(f"--{key}", text)]
        lines += ["", "run:", *of_a_run, "", "trainer:"]
        measured = task and TASKS[task].measure_every is not None
        for key, option in model_options().items():
            if not task or key != ("observe" if measured else "measure_every"):
                default = f"default {option.default}" if option.default is not None else ""
                lines += row(f"--trainer.{key}", option.help, default)
    return lines
