"""The help of the program and its commands."""

import io

from bench.cli.commands import COMMANDS, GROUPS, HEADINGS, app_of, settings_of_a_run
from bench.commands.describe import row, width


def program_help() -> str:
    """The help of `bench`."""
    lines = ["usage: bench [-h] [--version] COMMAND ...", "", "Compare optimizers on attention models.", ""]
    for heading, names in HEADINGS.items():
        summaries = {name: (COMMANDS[name].__doc__ or "").partition("\n")[0].rstrip(".") for name in names}
        lines += [f"{heading}:", *(line for name, text in summaries.items() for line in row(name, text)), ""]
    lines += ["options:", *row("-h, --help", "of the program, or of a command, anywhere after its name")]
    lines += [*row("--version", "print the version"), *row("--json", "of a command: print only JSON")]
    return "\n".join([*lines, "", "Start with: bench quickstart"])


def command_help(name: str) -> str:
    """The help of a command, with its settings in dotted form."""
    from rich.console import Console

    file, groups = io.StringIO(), GROUPS.get(name, ())
    app_of(name).help_print(console=Console(file=file, width=width(), highlight=False))
    lines = [*(line.rstrip() for line in file.getvalue().strip().splitlines()), *row("-h, --help", "print this help")]
    for group, word in (("task", "TASK"), ("opt", "OPTIMIZER")):
        lines += row(f"--{group}.NAME VALUE", f"`bench show {word}` lists the options") if group in groups else []
    if "trainer" in groups:
        of_a_run = [line for key, text in settings_of_a_run(name).items() for line in row(f"--{key}", text)]
        lines += ["", "run:", *of_a_run, "", "trainer:", *trainer_lines()]
    return "\n".join(lines)


def trainer_lines() -> list[str]:
    """The options `--trainer.*`."""
    from bench.config.run_config import trainer_options

    options = trainer_options().items()
    rows = (row(f"--trainer.{n}", o.help, f"default {o.default}" if o.default is not None else "") for n, o in options)
    return [line for lines in rows for line in lines]
