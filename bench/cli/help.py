"""The help of a command, with the options of a task and an optimizer."""

import io
from collections.abc import Sequence
from itertools import pairwise

from bench.api.calls import MEANINGS
from bench.cli.commands import GROUPS, app_of, settings_of_a_run
from bench.commands.describe import hyperparameter_rows, rows
from bench.config.options import task_options
from bench.config.run_config import model_options
from bench.errors import check_known
from bench.terminal import row, width, wrapped_lines
from optimizers import OPTIMIZERS
from tasks import TASKS


def command_help(name: str, words: Sequence[str] = ()) -> str:
    """The help of a command, with the options of the task and the optimizers among its words; UserError for others."""
    from rich.console import Console

    file, groups = io.StringIO(), GROUPS.get(name, ())
    app_of(name).help_print(console=Console(file=file, width=width(), highlight=False))
    lines = [*(line.rstrip() for line in file.getvalue().strip().splitlines()), *row("-h, --help", "print this help")]
    named = {option: value for word in words for option, _, value in [word.partition("=")]}
    named |= {option: value for option, value in pairwise(words) if not value.startswith("-")}
    task = named.get("--task") if "task" in groups else None
    opts = [opt for opt in named.get("--opt", "").split(",") if opt and "opt" in groups]
    check_known("task", [task] if task else [], TASKS)
    check_known("optimizer", opts, OPTIMIZERS)
    for group, word, chosen in (("task", "TASK", task), ("opt", "OPTIMIZER", opts)):
        if group in groups and not chosen:
            lines += row(f"--{group}.NAME VALUE", f"`bench show {word}` lists the options")
    if task:
        lines += ["", *wrapped_lines(f"task {task}: {TASKS[task].title}", "", "  ")]
        lines += rows("task", task_options(TASKS[task]))
    for opt in opts:
        spec = OPTIMIZERS[opt].on(TASKS[task].family if task else "")
        lines += ["", *wrapped_lines(f"optimizer {opt}: {spec.formula}", "", "  "), *hyperparameter_rows(spec)]
    if "trainer" in groups:
        of_a_run = [line for key in settings_of_a_run(name) for line in row(f"--{key}", MEANINGS[key].rstrip("."))]
        lines += ["", "run:", *of_a_run, "", "trainer:", *trainer_lines()]
    return "\n".join(lines)


def trainer_lines() -> list[str]:
    """The options `--trainer.*`."""
    options = model_options().items()
    texts = (row(f"--trainer.{n}", o.help, f"default {o.default}" if o.default is not None else "") for n, o in options)
    return [line for lines in texts for line in lines]
