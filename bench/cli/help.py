"""The help of the program and its commands, with the settings of a task and an optimizer."""

import io
from collections.abc import Iterable, Sequence

from bench.cli.commands import COMMANDS, GROUPS, HEADINGS, app_of, options_of, settings_of_a_run, subject
from bench.commands.describe import hyperparameter_rows, row, rows, width, wrapped_lines
from bench.errors import check_known


def program_help() -> str:
    """The help of `bench`."""
    lines = ["usage: bench [-h] [--version] COMMAND ...", "", "Compare optimizers on attention models.", ""]
    for heading, names in HEADINGS.items():
        lines += [f"{heading}:", *(line for name in names for line in row(name, _summary(name))), ""]
    lines += ["options:", *row("-h, --help", "of the program, or of a command, anywhere after its name")]
    lines += [*row("--version", "print the version"), *row("--json", "of a command: print only JSON")]
    return "\n".join([*lines, "", "Start with: bench quickstart"])


def _summary(name: str) -> str:
    """The first line of a function's docstring."""
    return (COMMANDS[name].__doc__ or "").partition("\n")[0].rstrip(".")


def command_help(name: str, words: Sequence[str] = ()) -> str:
    """The help of a command, with the options of the given task and optimizers.

    Raises:
        UserError: the task or an optimizer does not exist.
    """
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=width(), highlight=False)
    app_of(name).help_print(console=console)
    text = "\n".join(line.rstrip() for line in file.getvalue().strip().splitlines())
    text += "\n" + "\n".join([*row("--json", "print only JSON"), *row("-h, --help", "print this help")])
    return "\n".join([text, *(_settings(name, words) if name in GROUPS else [])])


def _settings(name: str, words: Sequence[str]) -> list[str]:
    """The settings in dotted form that a command takes."""
    from bench.config.options import task_options, trainer_options
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    lines, groups = list[str](), GROUPS[name]
    task, opts = subject(words)
    if "task" in groups:
        check_known("task", [] if task is None else [task], TASKS)
        if task:
            head = wrapped_lines(f"task {task}: {TASKS[task].title}", "", "  ")
            lines += ["", *head, *rows("task", task_options(TASKS[task]))]
        elif "--task" in options_of(name):
            lines += ["", *wrapped_lines(f"Name a task for its options: bench {name} --task mnist --help")]
            lines += _names("tasks", TASKS)
    if "opt" in groups:
        check_known("optimizer", opts, OPTIMIZERS)
        for opt in opts:
            spec = OPTIMIZERS[opt].on(TASKS[task].family if task else "")
            lines += ["", *wrapped_lines(f"optimizer {opt}: {spec.formula}", "", "  "), *hyperparameter_rows(spec)]
        if not opts and "--opt" in options_of(name):
            lines += ["", *wrapped_lines(f"Name an optimizer for its options: bench {name} --opt sngd --help")]
            lines += _names("optimizers", OPTIMIZERS)
    if "trainer" in groups:
        lines += ["", "run:"]
        for key, text in settings_of_a_run(name).items():
            lines += row(f"--{key}", text)
        lines += ["", "trainer:"]
        for key, option in trainer_options().items():
            measured = task and TASKS[task].measure_every is not None
            if not task or key != ("observe" if measured else "measure_every"):
                default = f"default {option.default}" if option.default is not None else ""
                lines += row(f"--trainer.{key}", option.help, default)
    return lines


def _names(kind: str, names: Iterable[str]) -> list[str]:
    return wrapped_lines(f"{kind}: {', '.join(names)}", "  ", "    ")
