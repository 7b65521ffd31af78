"""The command line: each command is the function of the same name of `bench.api`, with the same parameters.

Cyclopts reads options, types, defaults and help from a function's signature and docstring. Settings in dotted form
(`--opt.lr 0.1`) are taken off before.
"""

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from bench import api, process
from bench.errors import MAKE_ROOM, RunFailed, UserError, first_line, was_interrupted
from bench.machine import is_main_process
from bench.output import remark
from bench.terminal import row
from bench.text import strict_json
from optimizers.plugins import PluginError, foreign

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
HELP = ("-h", "--help")
CONTINUING = ("sweep", "reproduce", "tune", "suite", "compare")
"""The commands that continue where they stopped."""


def program() -> NoReturn:
    """`main` as a separate process."""
    process.begin()
    code = _exit_code(sys.argv[1:])
    if foreign:
        sys.exit(code)  # Python's teardown closes the files of plug-ins
    process.end(code)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 failed while running, 2 invalid request."""
    sys.exit(_exit_code(list(sys.argv[1:] if argv is None else argv)))


def _exit_code(words: list[str]) -> int:
    code = RunFailed.exit_code
    try:
        code = dispatch(words)
        sys.stdout.flush()
    except (UserError, PluginError) as error:
        remark("error", error)
        code = getattr(error, "exit_code", UserError.exit_code)
    except BrokenPipeError:  # `bench list tasks | head`
        _close_output()
        code = 0
    except (Exception, KeyboardInterrupt) as error:
        if was_interrupted(error):
            message = str(error) if isinstance(error, KeyboardInterrupt) else ""
            continues = "; the same command continues" * (bool({*words[:1]} & {*CONTINUING}))
            print(f"bench: {message or f'interrupted{continues}'}", file=sys.stderr)
            return 130
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            remark("error", f"the disk is full{f' ({error.filename})' * bool(error.filename)}{MAKE_ROOM}")
            _close_output()
        else:
            from bench.train.memory import ran_out

            if not ran_out(error):
                raise
            advice = "make the task or the batch smaller (--task.*, --trainer.batch_size, --trainer.micro_batch_size)"
            remark("error", f"not enough memory; {advice}, or end other programs: {first_line(error)}")
    return code


def _close_output() -> None:
    """Make the final flush of standard output succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dispatch(words: list[str]) -> int:
    """Run one command, print its result, and return the exit code."""
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    name = next((word for word in words if word not in HELP), None)
    if name == "--version":
        from bench import __version__

        print(__version__)
        return 0
    if name is None:
        print(program_help())
        return 0
    from bench.cli.commands import parse, unknown_command

    if name not in COMMANDS:
        raise unknown_command(name)
    if any(word in HELP for word in words):
        from bench.cli.help import command_help

        print(command_help(name, [word for word in words if word != name]))
        return 0
    result = parse(name, words[1:])()
    code: int = getattr(result, "code", 0)
    if is_main_process():  # not another rank of a run on several devices
        if text := strict_json(result.as_json()) if "--json" in words else str(result):
            print(text)
        if failed := getattr(result, "failed", None):
            raise RunFailed(failed)
    return code


def program_help() -> str:
    """The help of `bench`."""
    lines = ["usage: bench [-h] [--version] COMMAND ...", "", "Compare optimizers on attention models.", ""]
    for heading, names in HEADINGS.items():
        summaries = {name: (COMMANDS[name].__doc__ or "").partition("\n")[0].rstrip(".") for name in names}
        lines += [f"{heading}:", *(line for name, text in summaries.items() for line in row(name, text)), ""]
    lines += ["options:", *row("-h, --help", "of the program, or of a command, anywhere after its name")]
    lines += [*row("--version", "print the version"), *row("--json", "of a command: print only JSON")]
    return "\n".join([*lines, "", "Start with: bench quickstart"])
