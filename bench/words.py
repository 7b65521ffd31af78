"""Words of the command line: parsers, and settings in dotted form."""

import argparse
import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from bench.errors import UserError, unknown

_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)")
"""argparse's words, with quotes around the known ones in some versions of Python."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are `UserError`s."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)  # `--seed` must not pass for `--seeds`

    def error(self, message: str) -> NoReturn:
        """Complain as everything else does."""
        if choice := _CHOICE.fullmatch(message):
            name, given, known = choice.groups()
            raise unknown(
                name if name.startswith("-") else "word", given, re.findall(r"'([^']*)'", known) or known.split(", ")
            )
        raise UserError(f"{message}; see `{self.prog} --help`")


def split(words: list[str], valued: set[str], switches: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Words into settings (`--opt.lr 0.1`, `--opt.lr=0.1`) and flags of the command itself."""
    settings: dict[str, Any] = {}
    flags: dict[str, str] = {}
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("-") or word == "-":
            raise UserError(f"unexpected word {word!r}: settings are written --name value")
        name, equals, value = word.lstrip("-").partition("=")
        name = name if name in switches else name.replace("-", "_")
        if name in switches:
            if equals:
                raise UserError(f"--{name} is a switch and takes no value")
            flags[name] = ""
            continue
        if not equals:
            following = words[i] if i < len(words) else None
            if following is not None and (not following.startswith("--")):
                value, i = following, i + 1
            elif name.startswith(("task.", "opt.")):
                settings[name] = True  # --task.flip; an option that is no boolean will miss its value
                continue
            else:
                raise UserError(f"--{name} needs a value: --{name} VALUE")
        (flags if name in valued else settings)[name] = value
    return settings, flags


def dotted_apart(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of the command itself, and the settings in dotted form with their values."""
    own: list[str] = []
    dotted: list[str] = []
    awaits_value = False
    for word in words:
        setting = word.startswith(("--task.", "--opt.", "--trainer."))
        value = awaits_value and not word.startswith("--")
        (dotted if setting or value else own).append(word)
        awaits_value = setting and "=" not in word
    return own, dotted


def read(parser: Parser, words: list[str], names: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """A command's own options, and the settings of its runs.

    Args:
        parser: of the command.
        words: of the command line.
        names: options of the parser that are settings of a run.

    Raises:
        UserError: a word is misspelt or lacks its value.
    """
    words, dotted = dotted_apart(words)
    args, more = parser.parse_known_args(words)
    known = [flag for action in parser._actions for flag in action.option_strings]
    for word in (word.partition("=")[0] for word in more):
        if word.startswith("--") and word != "--seed" and get_close_matches(word, known, cutoff=0.7):
            raise unknown("option", word, known)
    settings, _ = split([*more, *dotted], valued=set(), switches=set())
    return args, settings | {name: value for name in names if (value := getattr(args, name)) is not None}


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Give a command --engine."""
    parser.add_argument(
        "--engine", choices=("auto", "lanes", "lightning"), default="auto",
        help="lanes: many runs as one program; lightning: one after the other; auto (default):"
             " what a short measurement finds faster",
    )  # fmt: skip


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Give a command --workers."""
    parser.add_argument(
        "--workers", metavar="N",
        help="processes that share the runs, or auto: one for each GPU or processor (default: one for each GPU,"
             " and on a CPU one)",
    )  # fmt: skip


FOLDERS = {"data": "data", "store": "runs"}
"""Where data and runs lie if neither `--data` and `--store` nor their variables say otherwise."""


def place(name: str, given: str | None = None) -> Path:
    """The folder that `--data` or `--store` names, else its variable, else the usual one.

    Raises:
        UserError: it is empty, which would be the folder that one happens to be in.
    """
    text, variable = given, f"BENCH_{name.upper()}"
    if text is None:
        text = os.environ.get(variable, FOLDERS[name])
    if not text.strip():
        raise UserError(
            f"--{name} (or {variable}) {text!r}: it names no folder; name one, or leave it out for ./{FOLDERS[name]}"
        )
    return Path(text)


def folder(text: str) -> Path:
    """A folder that must be named, as the type of an argument."""
    if text.strip():
        return Path(text)
    raise argparse.ArgumentTypeError(f"{text!r} names no folder")


def add_places(parser: argparse.ArgumentParser, **options: str) -> None:
    """Give a command --data and --store, or those of them that are named, with what they say."""
    for name, what in (options or {"data": "where datasets lie", "store": "where runs are kept"}).items():
        variable, folder = f"BENCH_{name.upper()}", FOLDERS[name]
        parser.add_argument(  # a default that is a string goes through the type as well
            f"--{name}", metavar="DIR", type=partial(place, name), default=os.environ.get(variable, folder),
            help=f"{what} (default: ${variable}, else ./{folder})",
        )  # fmt: skip


def names_of(word: str) -> list[str]:
    """The names in `A,B`, as the type of an option."""
    if names := [name for name in word.split(",") if name]:
        return names
    raise argparse.ArgumentTypeError("it names nothing")
