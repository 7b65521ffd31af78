"""From the words of a command line to the call of a function, with hints for misspelt words."""

import inspect
import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import App, Parameter
from cyclopts import exceptions as wrong

from bench.cli import COMMANDS
from bench.errors import FOREIGN_COMMANDS, UserError, nearest, unknown, unknown_option

GROUPS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("fit", "sweep", "compare", "tune", "reproduce"), ("task", "opt", "trainer")
)
GROUPS |= {"check": ("opt", "task"), "data": ("task",)}
"""The groups of settings in dotted form that a command takes."""
OF_A_RUN = ("seed", "data_seed", "precision", "device", "logger")
"""Settings without a group; a command takes those that its function has."""


def _as_word(parameter: inspect.Parameter) -> inspect.Parameter | None:
    """A parameter as a switch, a word or a list of words, which its function converts; None for `settings` and such."""
    name, kind, annotation = parameter.name, parameter.kind, parameter.annotation
    hints = [annotation] if get_origin(annotation) is Literal else get_args(annotation) or [annotation]
    lists = {get_args(hint)[0] for hint in hints if get_origin(hint) is Sequence} - {int}  # of seeds: one word
    words = [hint for hint in hints if hint in (bool, int, float, str, Any) or get_origin(hint) is Literal]
    if name in ("progress", "command") or not (words or lists) or kind is parameter.VAR_KEYWORD:
        return None
    if kind is parameter.POSITIONAL_OR_KEYWORD:
        kind = parameter.KEYWORD_ONLY if name in ("task", "opt", "board") else parameter.POSITIONAL_ONLY
    choice = next((hint for hint in words if get_origin(hint) is Literal), None)
    hint: Any = bool if bool in words else list[str] if lists else choice or str
    plain = Parameter(
        alias="-o" if name == "out" else None,
        allow_repeating=bool(lists) or name not in ("task", "opt"),
        metavar=None if choice else "|".join("STR" if word is Any else word.__name__.upper() for word in words),
    )
    default: Any = parameter.empty if parameter.default is parameter.empty else False if hint is bool else None
    hint = hint if hint is bool else hint | None
    return parameter.replace(annotation=Annotated[hint, plain], kind=kind, default=default)


def parameters_of(name: str) -> list[inspect.Parameter]:
    """The parameters of a command, as the command line reads them."""
    options = [p for p in inspect.signature(COMMANDS[name]).parameters.values() if p.name not in OF_A_RUN]
    json = Annotated[bool, Parameter(help="print only JSON")]
    words = [inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=json)]
    return sorted([*filter(None, map(_as_word, options)), *words], key=lambda parameter: parameter.kind)


def options_of(name: str) -> list[str]:
    """The options of a command, with dashes; its runs have further ones."""
    return [f"--{option.name}" for option in parameters_of(name) if option.kind is option.KEYWORD_ONLY]


def settings_of_a_run(name: str) -> list[str]:
    """The settings without a group that a command takes."""
    return [setting for setting in OF_A_RUN if setting in inspect.signature(COMMANDS[name]).parameters]


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


def parse(name: str, words: Sequence[str]) -> partial[Any]:
    """The call that a command line requests; UserError if a word is misspelt, out of place, or lacks its value."""
    rest, settings = _split(name, words)
    try:
        _, bound, *_ = app_of(name).parse_args(rest, exit_on_error=False, print_error=False)
    except wrong.CycloptsError as error:
        raise _described(error, name) from None
    keywords = {option: value for option, value in bound.kwargs.items() if option != "json"}
    if name == "plot" and "out" not in keywords:
        chart = next(iter(bound.args), "forest")
        raise UserError(f"--out is missing; write bench plot {chart} -o {chart}.pdf (or .png, .svg, .html)")
    if name in GROUPS:
        keywords["settings"] = settings
    if "command" in inspect.signature(COMMANDS[name]).parameters:
        keywords["command"] = ["bench", name, *words]
    return partial(COMMANDS[name], *bound.args, **keywords)


def _split(name: str, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The words for cyclopts, and settings of runs."""
    plain, settings, rest = list[str](), dict[str, Any](), list(words)
    groups, of_a_run = GROUPS.get(name, ()), settings_of_a_run(name)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        key = option.lstrip("-").replace("-", "_")
        group, dot, _ = key.partition(".")
        if not option.startswith("--") or " " in option:
            plain.append(word)
        elif key not in of_a_run and (not dot or group not in groups):
            plain.append(f"--{option[2:].replace('_', '-')}{equals}{value}")
        elif equals or (rest and not rest[0].startswith("--")):
            settings[key] = value if equals else rest.pop(0)
        elif group in ("task", "opt"):
            settings[key] = True  # --task.flip; an option that is not boolean will lack its value
        else:
            raise UserError(f"--{key} needs a value: --{key} VALUE")
    return plain, settings


def _described(error: wrong.CycloptsError, name: str) -> UserError:
    """An error of cyclopts in our words, with a hint."""
    see, argument = f"see `bench {name} -h`", getattr(error, "argument", None)
    option, hint = ("", None) if argument is None else (argument.name, argument.hint)
    choices = [value for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal for value in get_args(kind)]
    if isinstance(error, wrong.UnknownOptionError):
        given = (error.token.keyword or error.token.value).partition("=")[0]
        words = [parameter.name for parameter in parameters_of(name) if parameter.kind is not parameter.KEYWORD_ONLY]
        owners = [f"`bench {other}`" for other in COMMANDS if f"--{given[2:].replace('-', '_')}" in options_of(other)]
        if given[2:] and any(word.startswith(given[2:]) for word in words):
            return UserError(f"unknown option {given!r}; write bench {name} {' '.join(words).upper()}, without it")
        if owners and f"`bench {name}`" not in owners:
            return UserError(f"unknown option {given!r}; it belongs to {', '.join(owners[:3])}; {see}")
        from bench.config.options import stored
        from bench.config.run_config import model_options

        known = {"trainer": model_options()} | stored("options")  # by class
        groups = {name: name if name == "trainer" else "task" if name.startswith("tasks") else "opt" for name in known}
        dotted = [f"{groups[of]}.{key}" for of in known if groups[of] in GROUPS.get(name, ()) for key in known[of]]
        return unknown_option(
            given, options_of(name) + [f"--{key}" for key in (*settings_of_a_run(name), *dotted)], name
        )
    if isinstance(error, wrong.UnusedCliTokensError):
        word = next(iter(error.unused_tokens or ()), "")
        return UserError(f"unexpected word {word!r}; settings are written --name value, {see}")
    if isinstance(error, wrong.MissingArgumentError) and option.startswith("-"):
        return UserError(f"{option} needs a value: {option} {option.lstrip('-').upper()}")
    if isinstance(error, wrong.MissingArgumentError):
        return UserError(f"bench {name} needs {option.upper()}{': ' * bool(choices)}{', '.join(choices)}; {see}")
    if isinstance(error, wrong.CoercionError) and choices:
        return unknown(option.lstrip("-").lower(), error.token.value if error.token else "", choices)
    if isinstance(error, wrong.CoercionError):
        return UserError(f"{option} is a switch and takes no value")
    return UserError(f"{' '.join(str(error).split()).rstrip('.')}; {see}")


def unknown_command(name: str) -> UserError:
    """The error for a command that does not exist, with the closest one."""
    if name.startswith("-"):
        return unknown_option(name, ["--help", "--version"], "")
    command = FOREIGN_COMMANDS.get(name.lower()) or nearest(name, COMMANDS) or nearest(name, FOREIGN_COMMANDS, 0.75)
    command = FOREIGN_COMMANDS.get(command or "", command)
    hint = f"did you mean {command!r}?" if command else f"known: {', '.join(COMMANDS)}"
    return UserError(f"unknown command {name!r}; {hint}")
