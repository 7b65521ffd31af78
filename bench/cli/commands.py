"""From the words of a command line to the call of a function, with hints for misspelt words."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from cyclopts import App, Parameter
from cyclopts import exceptions as wrong

from bench import api, near
from bench.api.parameters import on_command_line
from bench.config.values import experiments
from bench.errors import UserError, unknown

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
GROUPS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("fit", "sweep", "compare", "tune", "reproduce"), ("task", "opt", "trainer")
)
GROUPS |= {"check": ("opt", "task"), "data": ("task",)}
"""The groups of settings in dotted form that a command takes."""
_SEVERAL = "{} several; write --seeds {{0}},... or --seeds COUNT"
_SELECTS = "it selects existing runs; write --only NAME=VALUE, as in --only trainer.max_steps=1000"
ELSEWHERE = {
    "fit": {"gpus": "devices share a run's batch with --trainer.devices {0}, and seeds with --workers {0}"},
    "sweep": {"seed": _SEVERAL.format("a sweep has")},
    "compare": {"seed": _SEVERAL.format("trials have"), "logger": "trials have none"},
    "tune": {"seed": _SEVERAL.format("trials have"), "logger": "trials have none; their curves are in the store"},
    "leaderboard": {"seed": _SELECTS, "seeds": _SELECTS},
    "reproduce": {"seed": "an experiment has several; write --seeds COUNT"},
}
"""Advice on options that a command does not have."""


@dataclass(frozen=True)
class Call:
    """A function with its arguments.

    Attributes:
        name: of the command.
        positional, keywords: its arguments.
        json: whether to print the result as JSON.
    """

    name: str
    positional: Sequence[Any]
    keywords: Mapping[str, Any]
    json: bool

    def run(self) -> Any:
        """Its result.

        Raises:
            UserError: a task, an optimizer or an experiment does not exist.
        """
        _check_names(self.name, self.keywords, self.positional)
        return COMMANDS[self.name](*self.positional, **self.keywords)


@dataclass
class Words:
    """The words of a command line by kind.

    Attributes:
        rest: those for cyclopts.
        settings: in dotted form.
        json: whether `--json` is among them.
    """

    rest: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    json: bool = False


def app_of(name: str) -> App:
    """The parser of a command."""
    function = COMMANDS[name]
    visible = filter(None, map(on_command_line, inspect.signature(function).parameters.values()))

    def command(*args: Any, **more: Any) -> Any:
        return function(*args, **more)

    order = sorted(visible, key=lambda parameter: parameter.kind)
    command.__signature__ = inspect.Signature(order)
    text, mark, arguments = (function.__doc__ or "").partition("\nRaises:")[0].partition("\nArgs:")
    command.__doc__ = re.sub(r"(?<=\S)\n(?=\S)", " ", text) + mark + arguments
    usual = Parameter(negative="", show_default=False, allow_repeating=True)
    app = App(name=f"bench {name}", help_flags=[], version_flags=[], default_parameter=usual, help_format="plaintext")
    app.default(command)
    return app


def options_of(name: str) -> list[str]:
    """The options of a command, with dashes."""
    visible = filter(None, map(on_command_line, inspect.signature(COMMANDS[name]).parameters.values()))
    return [*(f"--{each.name}" for each in visible if each.kind is each.KEYWORD_ONLY), "--json"]


def _names_of(name: str) -> set[str]:
    return {option.lstrip("-").replace("-", "_") for option in options_of(name)}


def parse(name: str, words: Sequence[str]) -> Call:
    """The call that a command line requests.

    Raises:
        UserError: a word is misspelt, out of place, or lacks its value.
    """
    split = _split(name, words)
    function = COMMANDS[name]
    try:
        _, bound, *_ = app_of(name).parse_args(split.rest, exit_on_error=False, print_error=False)
    except wrong.CycloptsError as error:
        raise _described(error, name, words, split) from None
    keywords = dict(bound.kwargs)
    names = inspect.signature(function).parameters
    if "settings" in names and name in GROUPS:
        keywords["settings"] = split.settings
    if "command" in names:
        keywords["command"] = ["bench", name, *words]
    return Call(name, bound.args, keywords, split.json)


def _split(name: str, words: Sequence[str]) -> Words:
    """Take settings in dotted form and `--json` off."""
    split, rest, free = Words(), list(words), list[str]()
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not option.startswith("--") or len(option.split()) != 1:  # such as a query that begins with a comment
            if re.fullmatch(r"-[a-z_-]{2,}", option) and option.strip("-").replace("-", "_") in _names_of(name):
                raise UserError(f"unknown option {option!r}; did you mean '-{option}'?")
            (free if name == "sql" and option.startswith("--") else split.rest).append(word)
            continue
        key = option[2:].replace("-", "_")
        group, dot, _ = key.partition(".")
        if option == "--json":
            if equals:
                raise UserError("--json is a switch and takes no value")
            split.json = True
        elif not dot or group not in GROUPS.get(name, ()):
            split.rest.append(f"--{option[2:].replace('_', '-')}{equals}{value}")
        elif equals:
            split.settings[key] = value
        elif rest and not rest[0].startswith("--"):
            split.settings[key] = rest.pop(0)
        elif group == "trainer":
            raise UserError(f"--{key} needs a value: --{key} VALUE")
        else:
            split.settings[key] = True  # --task.flip; an option that is not boolean will lack its value
    if free:
        split.rest += ["--", *free]
    return split


def _check_names(name: str, keywords: Mapping[str, Any], positional: Sequence[Any]) -> None:
    """Refuse unknown names of what is to be trained, before slow imports.

    Raises:
        UserError: a task, an optimizer or an experiment does not exist.
    """
    from bench.config.values import parts
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if "trainer" not in GROUPS.get(name, ()):
        return
    for kind, key, registry in (
        ("task", "task", TASKS),
        ("optimizer", "opt", OPTIMIZERS),
        ("optimizer", "against", OPTIMIZERS),
    ):
        value = keywords.get(key)
        single = isinstance(value, str)  # "a,b" has a message of its own
        for each in [value] if single else [part for word in value or () for part in parts(word)]:
            if each not in registry and not (single and "," in each):
                raise unknown(kind, each, registry)
    if (
        name == "reproduce"
        and positional
        and positional[0]
        and not keywords.get("claims")
        and positional[0] not in experiments()
    ):
        raise unknown("experiment", positional[0], experiments())


# -- errors -----------------------------------------------------------------------------------------------------------


def _described(error: wrong.CycloptsError, name: str, words: Sequence[str], split: Words) -> UserError:
    """An error of cyclopts in our words, with a hint."""
    if isinstance(error, wrong.UnknownOptionError):
        token = error.token.keyword or error.token.value
        given = token.partition("=")[0]
        typed, *after = [*words[_position(words, given) :], ""]
        value = typed.partition("=")[2] or next(iter(after), "")
        return unknown_option(name, given, value, words)
    if isinstance(error, wrong.UnusedCliTokensError):
        return _unexpected(name, [str(token) for token in error.unused_tokens or []], words)
    option = ""
    if (argument := getattr(error, "argument", None)) is not None:
        option = argument.name
    if isinstance(error, wrong.MissingArgumentError):
        if option.startswith("-"):
            return UserError(f"{option} needs a value: {option} {option.lstrip('-').upper()}")
        choices = f": {', '.join(_choices(argument))}" if argument is not None and _choices(argument) else ""
        return UserError(f"bench {name} needs {option.upper()}{choices}; see `bench {name} -h`")
    if isinstance(error, wrong.RepeatArgumentError):
        return UserError(f"{str(error).split()[1]} is given twice; bench {name} takes one")
    token = getattr(error, "token", None)
    if isinstance(error, wrong.CoercionError) and argument is not None and token is not None:
        if choices := _choices(argument):
            kind = option[2:] if option.startswith("--") else "word"
            return unknown(kind, token.value, choices)
        if argument.hint is bool:
            return UserError(f"{option} is a switch and takes no value")
        return UserError(f"{option} {token.value}: it must be a {'whole ' * (argument.hint is int)}number")
    return UserError(f"{' '.join(str(error).split())}; see `bench {name} -h`")


def _choices(argument: Any) -> list[str]:
    """The literal values of a parameter."""
    hint, values = argument.hint, []
    for each in (hint, *get_args(hint)):
        values += [value for value in get_args(each) if isinstance(value, str)]
    return list(dict.fromkeys(values))


def _position(words: Sequence[str], option: str) -> int:
    """The place of an option as it was typed."""
    plain = option.replace("_", "-")
    return next((i for i, word in enumerate(words) if word.partition("=")[0].replace("_", "-") == plain), len(words))


def subject(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The task and the optimizers that are named, even if other words are invalid; `bench show mnist` names one too."""
    from tasks import TASKS

    def given(name: str) -> str | None:
        value = None
        for i, word in enumerate(words):
            option, equals, after = word.partition("=")
            if option == f"--{name}":
                value = after if equals else next((w for w in words[i + 1 : i + 2] if not w.startswith("-")), value)
        return value

    task = given("task") or next((word for word in words if word in TASKS.own), None)
    return task, [opt for opt in (given("opt") or "").split(",") if opt]


def known_options(name: str, task: str | None = None, opts: Sequence[str] = ()) -> list[str]:
    """All options of a command, with dashes: its own, and those of its runs' task and optimizers.

    Args:
        name: of the command.
        task: adds its options if it is built in; a plug-in is not imported for an error message.
        opts: the same for optimizers.
    """
    from bench.config.options import GLOSSARY, optimizer_options, task_options
    from bench.config.run_config import trainer_options
    from optimizers import OPTIMIZERS
    from optimizers.groups import REST
    from tasks import TASKS

    known, groups = options_of(name), GROUPS.get(name, ())
    if "opt" in groups:
        own = [opt for opt in opts if opt in OPTIMIZERS.own]
        every = dict.fromkeys(k for opt in own for k in optimizer_options(OPTIMIZERS[opt])) if own else GLOSSARY
        known += [f"--opt.{each}" for each in (*every, REST)]
    if "task" in groups and task in TASKS.own:
        known += [f"--task.{each}" for each in task_options(TASKS[task])]
    if "trainer" in groups:
        known += [f"--trainer.{each}" for each in trainer_options()]
    return known


def unknown_option(name: str, given: str, value: str, words: Sequence[str]) -> UserError:
    """The error for an option that a command does not have, with the closest one."""
    key = given.lstrip("-").replace("-", "_")
    if key in ELSEWHERE.get(name, {}):
        return UserError(f"--{key} {value}: ".replace(" :", ":") + ELSEWHERE[name][key].format(value or "N"))
    group, groups = key.partition(".")[0], GROUPS.get(name, ())
    if "." in key and group in ("task", "opt", "trainer"):
        only = f", only {' and '.join(f'--{g}.*' for g in groups)}" if groups else ""
        return UserError(f"{given}: bench {name} has no such setting{only}; see `bench {name} -h`")
    option = near.meant(given, known_options(name, *subject(words)))
    end = f"did you mean {option!r}?" if option else f"`bench {name} -h` lists the options"
    return UserError(f"unknown option {given!r}; {end}")


def _unexpected(name: str, free: Sequence[str], words: Sequence[str]) -> UserError:
    """The error for superfluous free words, with the probably intended form."""
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    start = f"unexpected word {free[0]!r}"
    names = list(dict.fromkeys(each for text in free for each in text.split(",")))
    opts = [each for each in names if each in OPTIMIZERS or each.endswith(".py") or ":" in each]
    tasks = [each for each in names if each in TASKS]
    if name in ("fit", "sweep", "tune", "compare") and (opts or tasks) and len(opts) + len(tasks) == len(names):
        task, before = subject(words)
        task = task or next(iter(tasks), "TASK")
        opts = list(dict.fromkeys([*before, *opts])) or ["OPTIMIZER"]
        typed = "bench sweep" if name == "fit" and len(opts) > 1 else f"bench {name}"
        why = "fit trains one optimizer; " if typed != f"bench {name}" else "settings are written --name value; "
        return UserError(f"{start}: {why}write {typed} --task {task} --opt {','.join(opts)}")
    key, equals, _ = free[0].partition("=")
    option = near.meant(f"--{key}", known_options(name)) if equals else None
    hint = f"settings are written --name value; did you mean '{option} VALUE'?" if option else f"see `bench {name} -h`"
    return UserError(f"{start}: {hint}")


def unknown_command(name: str) -> UserError:
    """The error for a command that does not exist, with the closest one."""
    if name.startswith("-"):
        option = near.meant(name, ["--help", "--version"])
        return UserError(f"unknown option {name!r}; " + (f"did you mean {option!r}?" if option else "see `bench -h`"))
    command = near.COMMANDS.get(name.lower()) or near.nearest(name, COMMANDS)
    hint = f"did you mean {command!r}?" if command else f"known: {', '.join(COMMANDS)}"
    return UserError(f"unknown command {name!r}; {hint}")
