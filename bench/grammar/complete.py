"""Shell completion: the possible next words, from the commands' declarations. Imports no torch and no pydantic."""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bench.errors import UserError
from bench.grammar.commands import COMMANDS
from bench.grammar.parse import Args, Command, Option, known_options, said, subject
from bench.grammar.values import experiments, place, suites

FILES = ":files"
"""Tells the shell to complete file names."""
PATIENCE_SECONDS = 0.05
"""Time limit for reading a store; to see more, the user presses the key again. Ours."""
_SAFE = re.compile(r"\w[\w.+-]*", re.ASCII)
"""Names without characters that are special to a shell; a store from somebody else may contain any name."""
_RUN_ID = re.compile(rb'^\{"run_id": "(\w[\w.+-]*)"', re.MULTILINE | re.ASCII)

SCRIPTS = {
    "bash": """\
_bench() {
    local line="${COMP_LINE:0:COMP_POINT}" word last cut
    local -a words
    read -r -a words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    last="${words[${#words[@]} - 1]}"
    cut="${last%"${COMP_WORDS[COMP_CWORD]}"}"
    [[ "${COMP_WORDS[COMP_CWORD]}" == "=" ]] && cut="$last"
    COMPREPLY=()
    while IFS= read -r word; do
        if [[ "$word" == ":files" ]]; then
            compopt -o default 2> /dev/null
        else
            COMPREPLY+=("${word#"$cut"}")
        fi
    done < <("${COMP_WORDS[0]}" completion next "${words[@]:1}" 2> /dev/null)
}
complete -F _bench bench
""",
    "zsh": """\
#compdef bench
_bench() {
    local -a found
    found=("${(@f)$(bench completion next "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    if [[ "$found[1]" == ":files" ]]; then _files; else compadd -- "${(@)found:#}"; fi
}
if [[ "$funcstack[1]" == "_bench" ]]; then _bench "$@"; else compdef _bench bench; fi
""",
    "fish": """\
function __bench_next
    set -l last (commandline -ct)
    set -l before (commandline -opc)
    set -l found (bench completion next $before[2..-1] "$last" 2> /dev/null)
    if test "$found[1]" = ":files"
        __fish_complete_path "$last"
    else
        printf '%s\\n' $found
    end
end
complete -c bench -f -a '(__bench_next)'
""",
}
"""The script for each shell: it calls `bench completion next WORDS` with the words so far, the last one unfinished."""


def main(args: Args) -> int:
    """`bench completion SHELL`: print the shell's script."""
    print(SCRIPTS[args.shell], end="")
    return 0


def following(words: Sequence[str]) -> list[str]:
    """Completions of the last word, which is unfinished and may be empty.

    Args:
        words: after `bench`.
    """
    *before, last = words or [""]
    if not before:
        return _begun(last, [*COMMANDS, "--help", "--version"] if last.startswith("-") else COMMANDS)
    command = COMMANDS.get(before[0])
    if command is None:
        return []
    options = {option.flag: option for option in command.options}
    options |= {f"-{option.short}": option for option in command.options if option.short}
    name, equals, begun = last.partition("=")
    if equals and name.startswith("-"):
        values = _values(options.get(name), name, begun, before)
        return values if values == [FILES] else [f"{name}={value}" for value in values]
    asked = before[-1]
    if asked.startswith("-") and "=" not in asked and len(before) > 1:
        option = options.get(asked)
        if option.value if option else "." in asked:
            return _values(option, asked, last, before)
    if last.startswith("-"):
        given = {word.partition("=")[0] for word in before}
        many = {option.flag for option in command.options if option.many}
        known = [*known_options(command, *subject(before)), "--help"]
        return _begun(last, [name for name in known if name not in given - many])
    free = _free(command, options, before[1:])
    for each in command.positionals:
        if not each.most or free < each.most:
            return _values(each, "", last, before)
        free -= each.most
    return []


def _free(command: Command, options: dict[str, Option], words: Sequence[str]) -> int:
    """The number of positional words."""
    count = skip = 0
    for word in words:
        if skip:
            skip -= 1
        elif word.startswith("-"):
            option = options.get(word)
            skip = 0 if "=" in word else (option.words if option.value else 0) if option else int("." in word)
        else:
            count += 1
    return count


def _values(option: Option | None, name: str, begun: str, before: Sequence[str]) -> list[str]:
    """Values of an option that start with `begun`; in a list, with the part after its last comma."""
    if option is None:
        return _begun(begun, _values_of_setting(name, before))
    if option.completes == "file":
        return [FILES]
    head, comma, tail = begun.rpartition(",") if "," in option.value else ("", "", begun)
    known = option.choices or [value for kind in option.completes.split() for value in _of_kind(kind, before)]
    return [f"{head}{comma}{value}" for value in _begun(tail, known)]


def _values_of_setting(name: str, before: Sequence[str]) -> list[str]:
    """Values of a setting in dotted form, if it is a Literal or a boolean."""
    from bench.config.options import all_optimizer_options, task_options, trainer_options
    from optimizers import OPTIMIZERS
    from optimizers.groups import REST
    from tasks import TASKS

    group, _, name = name.removeprefix("--").partition(".")
    task, opts = subject(before)
    options = dict(task_options(TASKS[task])) if group == "task" and task in TASKS.own else {}
    options |= trainer_options() if group == "trainer" else {}
    for opt in opts if group == "opt" else []:
        if name == REST:
            return [*(each for each, spec in OPTIMIZERS.own.items() if spec.rest is None), "none"]
        options |= all_optimizer_options(OPTIMIZERS[opt], {}) if opt in OPTIMIZERS.own else {}
    kinds = options[name].type_name.split(" or ") if name in options else []
    names = [kind for kind in kinds if kind not in ("int", "float", "str", "bool") and "," not in kind]
    return ["true", "false"] * ("bool" in kinds) + names


def _begun(begun: str, known: Iterable[str]) -> list[str]:
    return [name for name in known if name.startswith(begun)]


def _of_kind(kind: str, before: Sequence[str]) -> list[str]:
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    with suppress(UserError, OSError):
        if kind == "task":
            return list(TASKS)
        if kind == "opt":
            return list(OPTIMIZERS)
        if kind == "experiment":
            return list(experiments())
        if kind == "suite":
            return list(suites())
        store = place("store", said(before, "store"))
        if kind == "run":
            return sorted(set(_runs(store)))
        return sorted(_studies(store)) if kind == "study" else [kind]
    return []


def _runs(store: Path) -> Iterator[str]:
    """The ids of a store's runs that are found within the time limit, without reading their records."""
    end = time.monotonic() + PATIENCE_SECONDS
    with os.scandir(store) as entries:
        for entry in entries:
            if time.monotonic() > end:
                return
            if entry.name.startswith("block-"):
                with suppress(OSError):
                    text = _beginning_of(store / entry.name / "done" / "runs.jsonl")
                    yield from (found.decode() for found in _RUN_ID.findall(text))
            elif "-" in entry.name and _SAFE.fullmatch(entry.name):
                yield entry.name


def _beginning_of(path: Path) -> bytes:
    """The first MiB of a regular file; empty for anything else. Follows no link."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.read(file, 2**20) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def _studies(store: Path) -> list[str]:
    """The names of the studies in a store's own database."""
    import sqlite3

    path = store / "studies.db"
    # In WAL mode (bytes 18 and 19) even a reader writes files next to the database.
    if path.is_symlink() or not path.is_file() or _beginning_of(path)[18:20] != b"\x01\x01":
        return []
    with suppress(sqlite3.Error):
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.05)
        try:
            names = [str(name) for (name,) in database.execute("SELECT study_name FROM studies LIMIT 1000")]
        finally:
            database.close()
        return [name for name in names if _SAFE.fullmatch(name)]
    return []
