"""The commands of the program, and its help, which imports no parser."""

from collections.abc import Callable, Mapping
from typing import Any

from bench import api
from bench.terminal import row

HEADINGS = {
    "train": ("quickstart", "fit", "sweep"),
    "tune": ("tune", "suite"),
    "compare": ("compare", "leaderboard", "report", "plot", "check", "reproduce"),
    "look": ("list", "show", "sql", "data", "doctor"),
    "share": ("new", "merge", "verify"),
}
"""The commands of `bench --help` by heading."""
COMMANDS: Mapping[str, Callable[..., Any]] = {
    name: getattr(api, "list_" if name == "list" else name) for names in HEADINGS.values() for name in names
}
"""The function of each command."""


def program_help() -> str:
    """The help of `bench`."""
    lines = ["usage: bench [-h] [--version] COMMAND ...", "", "Compare optimizers on attention models.", ""]
    for heading, names in HEADINGS.items():
        summaries = {name: (COMMANDS[name].__doc__ or "").partition("\n")[0].rstrip(".") for name in names}
        lines += [f"{heading}:", *(line for name, text in summaries.items() for line in row(name, text)), ""]
    lines += ["options:", *row("-h, --help", "of the program, or of a command, anywhere after its name")]
    lines += [*row("--version", "print the version"), *row("--json", "of a command: print only JSON")]
    return "\n".join([*lines, "", "Start with: bench quickstart"])
