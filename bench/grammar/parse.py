"""Parse the command line by a command's declaration: its options, and settings in dotted form."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from bench.errors import UserError, unknown
from bench.grammar.near import COMMANDS, meant, nearest
from bench.grammar.values import experiments, parts

HELP = ("-h", "--help")


@dataclass(frozen=True)
class Option:
    """An option of a command, or a positional argument.

    Attributes:
        name: as it is typed; a dash equals an underscore.
        help: its meaning.
        value: placeholder of its value; empty for a switch.
        read: converts its text to the value; a ValueError says what is wrong with it.
        default: the value if it is not given; a function is called.
        choices: all possible values.
        kind: what it names: `task`, `opt` or `experiment`; a command that trains refuses unknown names early.
        short: its one-letter form.
        many: whether it may be given several times; its value is then a list.
        setting: whether it is a setting of the command's runs.
        least, most: of a positional argument, the fewest and the most words; most 0 is any number.
    """

    name: str
    help: str
    value: str = ""
    read: Callable[[str], Any] = str
    default: Any = None
    choices: Sequence[str] = ()
    kind: str = ""
    short: str = ""
    many: bool = False
    setting: bool = False
    least: int = 1
    most: int = 1

    @property
    def flag(self) -> str:
        """As it is typed."""
        return f"--{self.name}"

    @property
    def key(self) -> str:
        """The name of its value in the parsed arguments."""
        return self.name.replace("-", "_")

    def parsed(self, text: str, shown: str) -> Any:
        """The value of a text.

        Raises:
            UserError: the text is invalid.
        """
        if self.choices and text not in self.choices:
            raise unknown(shown, text, self.choices)
        try:
            return self.read(text)
        except ValueError as error:
            raise UserError(f"{shown} {text or repr(text)}: {error}") from None


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: as it is typed.
        summary: what it does, in one line.
        text: the same for its own help.
        more: details, at the end of its help.
        options: its options.
        positionals: its positional arguments.
        groups: the groups of settings in dotted form that it takes.
        elsewhere: advice on options that it does not have, by name.
        form: its usage after the name, where the options do not determine it.
    """

    name: str
    summary: str
    text: str = ""
    more: str = ""
    options: Sequence[Option] = ()
    positionals: Sequence[Option] = ()
    groups: Sequence[str] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    form: str = ""

    @property
    def typed(self) -> str:
        """As it is typed."""
        return f"bench {self.name}"


class Args(SimpleNamespace):
    """Parsed arguments: a value for each option, settings of runs, in dotted form, as `of_runs`, and all `words`."""

    words: list[str]
    of_runs: dict[str, Any]


def said(words: Sequence[str], name: str) -> str | None:
    """The value given for an option, even if other words are invalid."""
    found = None
    for i, word in enumerate(words):
        given, equals, value = word.partition("=")
        if given == f"--{name}":
            found = value if equals else next((w for w in words[i + 1 : i + 2] if not w.startswith("-")), found)
    return found


def subject(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The task and the optimizers that are named, even if other words are invalid; `bench show mnist` names one too."""
    from tasks import TASKS

    task = said(words, "task") or next((word for word in words if word in TASKS.own), None)
    return task, [opt for opt in (said(words, "opt") or "").split(",") if opt]


def parse(command: Command, words: Sequence[str]) -> Args:
    """Parse the words after a command's name.

    Raises:
        UserError: a word is misspelt, out of place, or lacks its value.
    """
    flags = {option.key: option for option in command.options}
    shorts = {option.short: option for option in command.options if option.short}
    found: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    typed: dict[str, str] = {}
    free: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        # A word may begin with a dash: a negative number, or the comment of a query.
        is_text = word[1:2].isdigit() or (word.startswith("--") and len(word.partition("=")[0].split()) > 1)
        if not _is_option(word) or (command.positionals and is_text):
            free.append(word)
            continue
        given, equals, value = word.partition("=")
        name = given[2:].replace("-", "_") if given.startswith("--") else ""
        option = flags.get(name) or shorts.get(given[1:])
        if option is None and word[1] in shorts and not nearest(given, flags):
            option, equals, value = shorts[word[1]], "=", word[2:]  # -oFILE
        if option is None:
            group, dot, _ = name.partition(".")
            if not dot or group not in command.groups:
                raise unknown_option(command, given, words, value or next(iter(rest), ""))
            if equals:
                settings[name] = value
            else:  # --task.flip; an option that is not boolean will lack its value
                if not (rest and not rest[0].startswith("--")) and group == "trainer":
                    raise UserError(f"--{name} needs a value: --{name} VALUE")
                settings[name] = rest.pop(0) if rest and not rest[0].startswith("--") else True
            continue
        if not option.value:
            if equals:
                raise UserError(f"{given} is a switch and takes no value")
            found[option.key] = True
            continue
        if not equals:
            if not rest or rest[0].startswith("--") or (_is_option(rest[0]) and rest[0][1:] in shorts):
                raise UserError(f"{given} needs a value: {given} {option.value}")
            value = rest.pop(0)
        read = option.parsed(value, given)
        before = typed.setdefault(option.key, value)
        if option.name in ("task", "opt") and option.value != "A,B" and before != value:
            # Of other options, the last one counts.
            raise UserError(f"{option.flag} is given twice, {before} and {value}; {command.typed} takes one")
        if option.value == "A,B" and option.key in found:  # several are a list
            read = f"{found[option.key]},{read}" if isinstance(read, str) else [*found[option.key], *read]
        found[option.key] = [*found.get(option.key, []), read] if option.many else read
    args = Args(words=list(words), of_runs=settings)
    for option in command.options:
        if option.key in found:
            value = found[option.key]
            if option.setting:
                settings[option.key] = value
        else:
            value = option.default() if callable(option.default) else option.default
            value = False if not option.value and value is None else [] if option.many else value
        setattr(args, option.key, value)
    _place(command, free, args)
    return args


def check_names(command: Command, args: Args) -> None:
    """Refuse unknown names of what is to be trained, before slow imports.

    Raises:
        UserError: a task, an optimizer or an experiment does not exist.
    """
    if "trainer" not in command.groups:
        return
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    known: dict[str, tuple[str, Collection[str]]] = {"task": ("task", TASKS), "opt": ("optimizer", OPTIMIZERS)}
    known["experiment"] = "experiment", experiments()
    for option in (*command.options, *command.positionals):
        if option.kind not in known:
            continue
        kind, there = known[option.kind]
        value = args.of_runs.get(option.key) if option.setting else getattr(args, option.key)
        for name in parts(value) if isinstance(value, str) else value or ():
            if name in there:
                continue
            raise unknown(kind, name, there)


def _is_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def _place(command: Command, free: list[str], args: Args) -> None:
    """Assign the free words to the positional arguments."""
    whole = len(free) >= sum(each.least for each in command.positionals)
    for i, each in enumerate(command.positionals):
        later = sum(other.least for other in command.positionals[i + 1 :]) if whole else 0
        room = max(0, len(free) - later)
        taken, free = (free[:n], free[n:]) if (n := min(room, each.most or room)) >= each.least else ([], free)
        if len(taken) < each.least:
            choices = f": {', '.join(each.choices)}" if each.choices else ""
            raise UserError(
                f"{command.typed} needs {each.value}{choices or f' ({each.help})'}; see `{command.typed} -h`"
            )
        read = [each.parsed(text, "word") for text in taken]
        setattr(args, each.name, read if each.most != 1 else read[0] if read else None)
    if free:
        raise unexpected(command, free, args)


def unexpected(command: Command, free: Sequence[str], args: Args) -> UserError:
    """The error for superfluous free words, with the probably intended form."""
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    word, names = free[0], {option.name for option in command.options}
    start = f"unexpected word {word!r}"
    given = list(dict.fromkeys(each for text in free for each in text.split(",")))
    opts = [each for each in given if each in OPTIMIZERS or each.endswith(".py") or ":" in each]
    tasks = [each for each in given if each in TASKS]
    if {"task", "opt"} <= names and (opts or tasks) and len(opts) + len(tasks) == len(given):
        task = args.of_runs.get("task") or next(iter(tasks), "TASK")
        before = str(args.of_runs["opt"]).split(",") if "opt" in args.of_runs else []
        opts = [*before, *opts] or ["OPTIMIZER"]
        typed = "bench sweep" if command.name == "fit" and len(opts) > 1 else command.typed
        why = "fit trains one optimizer; " if typed != command.typed else "settings are written --name value; "
        return UserError(f"{start}: {why}write {typed} --task {task} --opt {','.join(opts)}")
    if command.positionals:
        return UserError(f"{start}; see `{command.typed} -h`")
    name, equals, _ = word.partition("=")
    option = meant(f"--{name}", known_options(command)) if equals else None
    return UserError(
        f"{start}: settings are written --name value" + (f"; did you mean '{option} VALUE'?" if option else "")
    )


def known_options(command: Command, task: str | None = None, opts: Sequence[str] = ()) -> list[str]:
    """All options of a command, with dashes: its own, and those of its runs' task and optimizers.

    Args:
        command: the command.
        task: adds its options if it is built in; a plug-in is not imported for an error message.
        opts: the same for optimizers.
    """
    from bench.config.options import GLOSSARY, optimizer_options, task_options, trainer_options
    from optimizers import OPTIMIZERS
    from optimizers.groups import REST
    from tasks import TASKS

    known = [option.flag for option in command.options]
    if "opt" in command.groups:
        own = [opt for opt in opts if opt in OPTIMIZERS.own]
        every = dict.fromkeys(name for opt in own for name in optimizer_options(OPTIMIZERS[opt])) if own else GLOSSARY
        known += [f"--opt.{name}" for name in (*every, REST)]
    if "task" in command.groups and task in TASKS.own:
        known += [f"--task.{name}" for name in task_options(TASKS[task])]
    if "trainer" in command.groups:
        known += [f"--trainer.{name}" for name in trainer_options()]
    return known


def check_settings(fit: Command, settings: Mapping[str, Any]) -> None:
    """Refuse settings that the command `fit` cannot take, before slow imports.

    Raises:
        UserError: there are several tasks, optimizers or values, and the message names the command that takes them; or
            a setting of a built-in task and optimizer does not exist, and it suggests the closest one.
    """
    from bench.config.options import all_optimizer_options, hyperparameters_of, no_such_option, task_options
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    task, opt = str(settings.get("task", "")), str(settings.get("opt", ""))
    if "," in opt and ":" not in opt:
        raise UserError(
            f"--opt {opt}: bench fit trains one optimizer; write bench sweep --task {task or 'TASK'} --opt {opt}"
        )
    if "," in task and ":" not in task:
        raise UserError(
            f"--task {task}: bench fit trains one task; give a command for each, or write a file for `bench suite`"
        )
    options, given = dict[str, Any](), hyperparameters_of(settings)
    if opt in OPTIMIZERS.own:
        options |= {f"opt.{k}": o for k, o in all_optimizer_options(OPTIMIZERS[opt], given).items()}
    if task in TASKS.own:
        options |= {f"task.{k}": o for k, o in task_options(TASKS[task]).items()}
    for name, value in settings.items():
        kinds = options[name].type_name.split(" or ") if name in options else []
        several = isinstance(value, str) and {"int", "float"} & {*kinds} and (":" in value or "," in value)
        if several and "str" not in kinds and not any("," in kind for kind in kinds):
            raise UserError(
                f"--{name} {value}: bench fit trains one run; `bench sweep` takes several values"
                f" (bench sweep --task {task} --opt {opt} --{name} {value})"
            )
    if task not in TASKS.own or opt not in OPTIMIZERS.own:
        return
    known = known_options(fit, task, [opt])
    for name in sorted(name for name in settings if "." in name and name not in options and f"--{name}" not in known):
        group, _, own = name.partition(".")
        if group == "opt":
            raise no_such_option(OPTIMIZERS[opt], given, own, known)
        raise unknown_setting(name, known)


def unknown_setting(name: str, known: Sequence[str]) -> UserError:
    """The error for a setting, in dotted form, that does not exist."""
    option = meant(f"--{name}", known)
    end = f"did you mean {option!r}?" if option else "`bench fit --task TASK --opt OPTIMIZER -h` lists the settings"
    return UserError(f"unknown option '--{name}'; {end}")


def unknown_option(command: Command, given: str, words: Sequence[str], value: str) -> UserError:
    """The error for an option that a command does not have, with the closest one."""
    name = given.lstrip("-").replace("-", "_")
    if name in command.elsewhere:
        return UserError(f"{given} {value}: ".replace(" :", ":") + command.elsewhere[name].format(value or "N"))
    group = name.partition(".")[0]
    if "." in name and group in ("task", "opt", "trainer"):
        only = f", only {' and '.join(f'--{g}.*' for g in command.groups)}" if command.groups else ""
        return UserError(f"{given}: {command.typed} has no such setting{only}; see `{command.typed} -h`")
    known = known_options(command, *subject(words))
    for option in command.options:
        if option.short and name == option.name:
            return UserError(f"unknown option {given!r}; did you mean '-{option.short}' or {option.flag!r}?")
    option = meant(given, known)
    end = f"did you mean {option!r}?" if option else f"`{command.typed} -h` lists the options"
    return UserError(f"unknown option {given!r}; {end}")


def unknown_command(name: str, known: Sequence[str]) -> UserError:
    """The error for a command that does not exist, with the closest one."""
    if name.startswith("-"):
        near = meant(name, ["--help", "--version"])
        return UserError(f"unknown option {name!r}; " + (f"did you mean {near!r}?" if near else "see `bench -h`"))
    near = COMMANDS.get(name.lower()) or nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
    return UserError(f"unknown command {name!r}; {hint}")
