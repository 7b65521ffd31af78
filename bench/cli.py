"""The command line: arguments to calls. Heavy imports happen only when needed."""

import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from bench import process
from bench.errors import MAKE_ROOM, RunFailed, UserError, was_interrupted
from bench.grammar.commands import COMMANDS, parse
from bench.grammar.parse import HELP, Args, check_names, unknown_command
from bench.output import remark
from optimizers.plugins import PluginError, foreign

_CONTINUING = ("sweep", "reproduce", "tune", "suite", "compare")
"""The commands that go on where they stopped."""
_TRAINING = ("quickstart", "fit", *_CONTINUING)
"""The commands that train."""


def program() -> NoReturn:
    """`main` as a separate process."""
    process.begin()
    code = _exit_code(sys.argv[1:])
    if foreign:
        sys.exit(code)  # Python closes files that are still open
    process.end(code)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 failed while running, 2 invalid request."""
    sys.exit(_exit_code(list(sys.argv[1:] if argv is None else argv)))


def _exit_code(words: list[str]) -> int:
    try:
        code = dispatch(words)
        sys.stdout.flush()
    except (UserError, PluginError) as error:
        remark("error", error)
        code = getattr(error, "exit_code", UserError.exit_code)
    except BrokenPipeError:  # `bench list tasks | head`
        code = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the final flush must not fail too
    except (Exception, KeyboardInterrupt) as error:
        if was_interrupted(error):
            continues = bool(words) and words[0] in _CONTINUING
            print("bench: interrupted" + "; the same command continues" * continues, file=sys.stderr)
            return 130
        full = _disk_full(error)
        short = full or _memory_short(error, words)
        if short is None:
            raise
        remark("error", short)
        code = RunFailed.exit_code
        if full:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _disk_full(error: BaseException) -> str | None:
    """The message for a full disk; None for other errors."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f" ({error.filename})" if error.filename else ""
    return f"the disk is full{where}{MAKE_ROOM}"


def _memory_short(error: BaseException, words: Sequence[str]) -> str | None:
    """The message for lack of memory, from torch or Python; None for other errors."""
    from bench.train.memory import ran_out

    if not ran_out(error):
        return None
    asked = re.search(r"allocate (\d[\d.]* ?[A-Za-z]+)", str(error))
    amount = f" for {asked[1]}" if asked else ""
    todo = (
        "make the task or the batch smaller (--task.*, --trainer.batch_size, --trainer.micro_batch_size)"
        if any(name in words for name in _TRAINING)
        else "end other programs, or request less"
    )
    return f"not enough memory{amount}; {todo}"


def dispatch(words: list[str]) -> int:
    """Run one command and return its exit code.

    Raises:
        UserError: the request is invalid.
    """
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    name = next((word for word in words if word not in HELP), None)
    if name is None:
        from bench.grammar.help import program_help

        print(program_help())
        return 0
    if name == "--version":
        from bench import __version__

        print(__version__)
        return 0
    if name not in COMMANDS:
        raise unknown_command(name, list(COMMANDS))
    words = [word for i, word in enumerate(words) if i != words.index(name)]
    if any(word in HELP for word in words):
        from bench.grammar.help import command_help

        print(command_help(COMMANDS[name], words))
        return 0
    args = parse(name, words)
    check_names(COMMANDS[name], args)
    return _MAINS[name](args)


Command = Callable[[Args], int]


def _in(module: str, function: str = "main") -> Command:
    """A command with its own module, imported on use."""
    return lambda args: getattr(import_module(module), function)(args)


_MAINS: dict[str, Command] = {
    "quickstart": _in("bench.commands.quickstart"),
    "fit": _in("bench.commands.fit"),
    "sweep": _in("bench.sweeps.cli"),
    "compare": _in("bench.commands.comparison"),
    **{name: _in(f"bench.tuning.cli.{name}") for name in ("tune", "suite")},
    "leaderboard": _in("bench.boards.cli", "run_leaderboard"),
    **{name: _in("bench.plots.cli", f"run_{name}") for name in ("report", "plot")},
    **{name: _in("bench.papers.cli", f"run_{name}") for name in ("reproduce", "claims")},
    **{name: _in("bench.browse.cli", f"run_{name}") for name in ("sql", "merge")},
    "verify": _in("bench.commands.verify"),
    "new": _in("bench.commands.new"),
    "check": _in("bench.check.cli"),
    **{name: _in("bench.commands.inspect", f"run_{name}") for name in ("list", "show")},
    "data": _in("bench.commands.data"),
    "doctor": _in("bench.commands.doctor"),
}
"""The function of each command, called with its arguments."""


if __name__ == "__main__":
    program()
