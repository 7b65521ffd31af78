"""From the words of a command line to the call of a function, with hints for misspelt words."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from cyclopts import App, Parameter
from cyclopts import exceptions as wrong

from bench import api, near
from bench.api.calls import meaning
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
OF_A_RUN = ("seed", "data_seed", "precision", "device", "logger")
"""Settings without a group; a command takes those that its function has."""


class Call(NamedTuple):
    """A command with the arguments of its function, and whether to print the result as JSON."""

    name: str
    positional: Sequence[Any]
    keywords: Mapping[str, Any]
    json: bool

    def run(self) -> Any:
        """The result."""
        return COMMANDS[self.name](*self.positional, **self.keywords)


def _number(hint: Any, tokens: Sequence[Any]) -> int | str:
    """A whole number, or a word where one is allowed; cyclopts would round 2.5."""
    text = str(tokens[0].value)
    try:
        return int(text)
    except ValueError:
        if str in get_args(hint):
            return text
        raise


def _typed(parameter: inspect.Parameter) -> inspect.Parameter | None:
    """A parameter with the type that the command line converts to; None if the command line does not have it."""
    name, kind, annotation = parameter.name, parameter.kind, parameter.annotation
    hints = get_args(annotation) if get_origin(annotation) is not Literal else [annotation]
    lists = {get_args(hint)[0] for hint in hints if get_origin(hint) is Sequence} - {int}  # of seeds: one word
    hints = [hint for hint in hints or [annotation] if hint in (bool, int, float, str) or get_origin(hint) is Literal]
    if name in ("progress", "command") or not (hints or lists) or kind is parameter.VAR_KEYWORD:
        return None
    hint = list[str] if lists else reduce(or_, hints)
    default: Any = False if hint is bool else None
    if kind is parameter.POSITIONAL_OR_KEYWORD:
        kind = parameter.KEYWORD_ONLY if name in ("task", "opt", "board") else parameter.POSITIONAL_ONLY
    plain = Parameter(
        alias="-o" if name == "out" else None,
        allow_repeating=bool(lists) or name not in ("task", "opt"),
        converter=_number if int in hints else None,
    )
    return parameter.replace(
        annotation=Annotated[hint if hint is bool else hint | None, plain],
        kind=kind,
        default=parameter.empty if parameter.default is parameter.empty else default,
    )


def parameters_of(name: str) -> list[inspect.Parameter]:
    """The parameters of a command, as the command line converts them."""
    all_parameters = inspect.signature(COMMANDS[name]).parameters
    typed = [_typed(option) for option in all_parameters.values() if option.name not in settings_of_a_run(name)]
    return sorted(filter(None, typed), key=lambda parameter: parameter.kind)


def options_of(name: str) -> list[str]:
    """The options of a command, with dashes; its runs have further ones."""
    return [*(f"--{option.name}" for option in parameters_of(name) if option.kind is option.KEYWORD_ONLY), "--json"]


def settings_of_a_run(name: str) -> dict[str, str]:
    """The settings without a group that a command takes, with their meaning."""
    function = COMMANDS[name]
    names = inspect.signature(function).parameters if "trainer" in GROUPS.get(name, ()) else ()
    return {name: meaning(function, name).rstrip(".") for name in OF_A_RUN if name in names}


def app_of(name: str) -> App:
    """The parser of a command."""

    def command(*args: Any, **more: Any) -> None: ...

    command.__signature__ = inspect.Signature(parameters_of(name))
    text, mark, arguments = (COMMANDS[name].__doc__ or "").partition("\n\nRaises:")[0].partition("\nArgs:")
    command.__doc__ = re.sub(r"(?<=\S)\n(?=\S)", " ", text) + mark + re.sub(r"\n {5,}", " ", arguments)
    usual = Parameter(negative="", show_default=False, allow_repeating=True)
    app = App(name=f"bench {name}", help_flags=[], version_flags=[], default_parameter=usual, help_format="plaintext")
    app.default(command)
    return app


def parse(name: str, words: Sequence[str]) -> Call:
    """The call that a command line requests.

    Raises:
        UserError: a word is misspelt, out of place, or lacks its value.
    """
    rest, settings, json = _split(name, words)
    try:
        _, bound, *_ = app_of(name).parse_args(rest, exit_on_error=False, print_error=False)
    except wrong.CycloptsError as error:
        raise _described(error, name, words) from None
    keywords = dict(bound.kwargs)
    if name == "plot" and "out" not in keywords:
        chart = next(iter(bound.args), "forest")
        raise UserError(f"--out is missing; write bench plot {chart} -o {chart}.pdf (or .png, .svg, .html)")
    if name in GROUPS:
        keywords["settings"] = settings
    if "command" in inspect.signature(COMMANDS[name]).parameters:
        keywords["command"] = ["bench", name, *words]
    return Call(name, bound.args, keywords, json)


def _split(name: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any], bool]:
    """The words for cyclopts, settings of runs, and whether `--json` is among the words."""
    plain, settings, json, free = list[str](), dict[str, Any](), False, list[str]()
    groups, of_a_run, rest = GROUPS.get(name, ()), settings_of_a_run(name), list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        key = option.lstrip("-").replace("-", "_")
        group, dot, _ = key.partition(".")
        if not option.startswith("--") or len(option.split()) != 1:  # such as a query that begins with a comment
            if option[:1] == "-" and len(option) > 2 and (f"--{key}" in options_of(name) or key in of_a_run):
                raise UserError(f"unknown option {option!r}; did you mean '-{option}'?")
            (free if name == "sql" and option.startswith("--") else plain).append(word)
        elif option == "--json":
            if equals:
                raise UserError("--json is a switch and takes no value")
            json = True
        elif key not in of_a_run and (not dot or group not in groups):
            plain.append(f"--{option[2:].replace('_', '-')}{equals}{value}")
        elif equals:
            settings[key] = value
        elif rest and not rest[0].startswith("--"):
            settings[key] = rest.pop(0)
        elif group in ("task", "opt"):
            settings[key] = True  # --task.flip; an option that is not boolean will lack its value
        else:
            raise UserError(f"--{key} needs a value: --{key} VALUE")
    return [*plain, *["--"] * bool(free), *free], settings, json


# -- errors -----------------------------------------------------------------------------------------------------------


def _described(error: wrong.CycloptsError, name: str, words: Sequence[str]) -> UserError:
    """An error of cyclopts in our words, with a hint."""
    see, argument, token = f"see `bench {name} -h`", getattr(error, "argument", None), getattr(error, "token", None)
    option = "" if argument is None else argument.name
    if isinstance(error, wrong.UnknownOptionError):
        return unknown_option(name, (error.token.keyword or error.token.value).partition("=")[0], words)
    if isinstance(error, wrong.UnusedCliTokensError):
        return _unexpected(name, list(map(str, error.unused_tokens or [])), words)
    if isinstance(error, wrong.MissingArgumentError):
        if option.startswith("-"):
            return UserError(f"{option} needs a value: {option} {option.lstrip('-').upper()}")
        choices = ", ".join(_choices(argument))
        return UserError(f"bench {name} needs {option.upper()}{': ' * bool(choices)}{choices}; {see}")
    if isinstance(error, wrong.RepeatArgumentError):
        return UserError(f"{str(error).split()[1]} is given twice; bench {name} takes one")
    if isinstance(error, wrong.CoercionError) and argument is not None and token is not None:
        if choices := _choices(argument):
            return unknown(option[2:] if option.startswith("--") else "word", token.value, choices)
        if argument.hint is bool:
            return UserError(f"{option} is a switch and takes no value")
        whole = "whole " * (int in get_args(argument.hint))
        return UserError(f"{option} {token.value}: it must be a {whole}number")
    return UserError(f"{' '.join(str(error).split())}; {see}")


def _choices(argument: Any) -> list[str]:
    """The literal values of a parameter."""
    hints = [] if argument is None else [argument.hint, *get_args(argument.hint)]
    return [value for hint in hints if get_origin(hint) is Literal for value in get_args(hint)]


def subject(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The task and the optimizers that are named, even if other words are invalid."""
    from tasks import TASKS

    values = {option: value for word in words for option, _, value in [word.partition("=")]}
    values |= {option: value for option, value in pairwise(words) if not value.startswith("-")}
    task = values.get("--task") or next((word for word in words if word in TASKS.own), None)
    return task, [opt for opt in values.get("--opt", "").split(",") if opt]


def _known_options(name: str, task: str | None = None, opts: Sequence[str] = ()) -> list[str]:
    """All options of a command, with dashes: its own, and those of its runs' built-in task and optimizers."""
    from bench.config.options import GLOSSARY, optimizer_options, task_options
    from bench.config.run_config import trainer_options
    from optimizers import OPTIMIZERS
    from optimizers.groups import REST
    from tasks import TASKS

    known, groups = [*options_of(name), *(f"--{key}" for key in settings_of_a_run(name))], GROUPS.get(name, ())
    if "opt" in groups:
        of_opts = [key for opt in opts if opt in OPTIMIZERS.own for key in optimizer_options(OPTIMIZERS[opt])]
        known += [f"--opt.{key}" for key in (*(of_opts or GLOSSARY), REST)]
    if "task" in groups and task is not None and task in TASKS.own:
        known += [f"--task.{key}" for key in task_options(TASKS[task])]
    if "trainer" in groups:
        known += [f"--trainer.{key}" for key in trainer_options()]
    return known


def unknown_option(name: str, given: str, words: Sequence[str]) -> UserError:
    """The error for an option that a command does not have, with the closest one."""
    group, dot, _ = given.lstrip("-").partition(".")
    groups, options = GROUPS.get(name, ()), options_of(name)
    if group == "seed" and "--seeds" in options:
        return UserError(f"{given}: bench {name} has several seeds; write --seeds 3,5 or --seeds COUNT")
    if "--only" in options and (group in ("seed", "seeds") or (dot and group in ("task", "opt", "trainer"))):
        return UserError(f"{given}: bench {name} selects existing runs; write --only NAME=VALUE")
    if dot and group in ("task", "opt", "trainer"):
        only = f", only {' and '.join(f'--{group}.*' for group in groups)}" * bool(groups)
        return UserError(f"{given}: bench {name} has no such setting{only}; see `bench {name} -h`")
    option = near.meant(given, _known_options(name, *subject(words)))
    end = f"did you mean {option!r}?" if option else f"`bench {name} -h` lists the options"
    return UserError(f"unknown option {given!r}; {end}")


def _unexpected(name: str, free: Sequence[str], words: Sequence[str]) -> UserError:
    """The error for superfluous free words, with the probably intended form."""
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    start = f"unexpected word {free[0]!r}: "
    names = list(dict.fromkeys(name for text in free for name in text.split(",")))
    opts = [name for name in names if name in OPTIMIZERS or name.endswith(".py") or ":" in name]
    tasks = [name for name in names if name in TASKS]
    if name in ("fit", "sweep", "tune", "compare") and len(opts) + len(tasks) == len(names):
        task, before = subject(words)
        opts = list(dict.fromkeys([*before, *opts])) or ["OPTIMIZER"]
        is_several = name == "fit" and len(opts) > 1
        why = "fit trains one optimizer; " if is_several else "settings are written --name value; "
        command = f"bench {'sweep' if is_several else name} --task {task or next(iter(tasks), 'TASK')}"
        return UserError(f"{start}{why}write {command} --opt {','.join(opts)}")
    key, equals, _ = free[0].partition("=")
    option = near.meant(f"--{key}", _known_options(name)) if equals else None
    hint = f"settings are written --name value; did you mean '{option} VALUE'?" if option else f"see `bench {name} -h`"
    return UserError(f"{start}{hint}")


def unknown_command(name: str) -> UserError:
    """The error for a command that does not exist, with the closest one."""
    if name.startswith("-"):
        option = near.meant(name, ["--help", "--version"])
        return UserError(f"unknown option {name!r}; " + (f"did you mean {option!r}?" if option else "see `bench -h`"))
    command = near.COMMANDS.get(name.lower()) or near.nearest(name, COMMANDS)
    hint = f"did you mean {command!r}?" if command else f"known: {', '.join(COMMANDS)}"
    return UserError(f"unknown command {name!r}; {hint}")
