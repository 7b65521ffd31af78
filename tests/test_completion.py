"""Completion of the next word, in this process and in real shells."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.browse.listing import SORTS, STATUSES
from bench.grammar.commands import CHART_NAMES, COMMANDS
from bench.grammar.complete import FILES, SCRIPTS, following
from bench.papers.experiments import experiments
from optimizers import OPTIMIZERS
from tasks import TASKS
from tests.test_cli import FIT


@pytest.mark.parametrize(
    ("words", "there"),
    [
        ("_", [*COMMANDS]),
        ("sw", ["sweep"]),
        ("--", ["--help", "--version"]),
        ("fit --task _", [*TASKS]),
        ("fit --task mn", ["mnist", "mnli"]),
        ("fit --task=mn", ["--task=mnist", "--task=mnli"]),
        ("fit --opt _", [*OPTIMIZERS]),
        ("sweep --opt ngd,sg", ["ngd,sgd", "ngd,sgdm"]),
        ("fit --see", ["--seed", "--seeds"]),
        ("fit --task mnist --tas", ["--task."]),
        ("fit --task mnist --opt sngd --opt.m", ["--opt.max_step", "--opt.momentum"]),
        ("fit --task mnist --task.dep", ["--task.depth"]),
        ("fit --trainer.max_", ["--trainer.max_epochs", "--trainer.max_steps", "--trainer.max_seconds"]),
        ("fit --task mnist --task.flip _", ["true", "false"]),
        ("fit --trainer.average _", ["none", "ema", "lawa"]),
        ("fit --task mnist --opt sngd --opt.lr _", []),
        ("fit --config _", [FILES]),
        ("fit --seed _", []),
        ("compare --against gd,ng", ["gd,ngd"]),
        ("sweep -o _", [FILES]),
        ("sweep --engine l", ["lanes", "lightning"]),
        ("tune --device c", ["cpu", "cuda"]),
        ("plot _", [*CHART_NAMES]),
        ("plot curves -o x.png --opt ad", ["adam", "adamw"]),
        ("leaderboard --board quality,sp", ["quality,speed"]),
        ("list --store x r", ["runs"]),
        ("list runs _", []),
        ("list runs --status _", [*STATUSES]),
        ("list runs --status failed,ki", ["failed,killed"]),
        ("list runs --sort _", [*SORTS]),
        ("reproduce deora2024/fig2 --engine l", ["lanes", "lightning"]),
        ("sweep --workers _", ["auto"]),
        ("show sngd _", []),
        ("reproduce _", [*experiments()]),
        ("show deora2024/fig2", ["deora2024/fig2"]),
        ("suite _", ["lm", "reference", "schedules", "sst2", "theory", "vision"]),
        ("data _", ["status", "prepare"]),
        ("new _", ["optimizer", "task"]),
        ("merge _", [FILES]),
        ("completion _", ["bash", "zsh", "fish"]),
        ("xyzzy _", []),
    ],
)
def test_completions_of_the_next_word(words: str, there: list[str]) -> None:
    found = following([word.replace("_", "") if word == "_" else word for word in words.split()])
    if there == ["--task."]:
        assert found
        assert all(word.startswith("--task") for word in found)
    else:
        assert found == there


def test_an_option_is_offered_once(cli) -> None:
    assert "--seed" not in following(["fit", "--seed", "3", "--s"])
    assert "--store" in following(["leaderboard", "--store", "a", "--s"])


def test_runs_and_studies_of_a_store_are_offered_and_no_name_that_a_shell_would_obey(cli, store: Path) -> None:
    assert following(["fit", "--resume", ""]) == []
    run = json.loads(cli(*FIT, "--json").out)["run_id"]
    block = store / "block-1" / "done"
    block.mkdir(parents=True)
    (block / "runs.jsonl").write_text(
        '{"run_id": "mnist-sgd-1", "x": 1}\n{"run_id": "mnist-sgd-2"}\n{"run_id": "a b"}\n'
    )
    for name in ("$(touch x)-1", "a b-c", "studies", "-rf"):
        (store / name).mkdir()
    assert following(["fit", "--resume", ""]) == ["mnist-sgd-1", "mnist-sgd-2", run]
    assert following(["diff", "mnist-sgd-1", "mnist-sgd-"]) == ["mnist-sgd-1", "mnist-sgd-2"]
    assert following(["fit", "--store", str(store / "none"), "--resume", ""]) == []
    with sqlite3.connect(store / "studies.db") as database:
        database.execute("CREATE TABLE studies (study_name TEXT)")
        database.executemany("INSERT INTO studies VALUES (?)", [("mine",), ("`x`",), ("a;b",)])
    before = sorted(store.iterdir())
    assert following(["studies", ""]) == ["mine"]
    assert sorted(store.iterdir()) == before
    (store / "studies.db").write_text("nonsense")
    assert following(["studies", ""]) == []


@pytest.mark.parametrize(
    "words", [["fit", "--resume", ""], ["fit", "--opt", ""], ["fit", "--task", "mnist", "--"], [""]]
)
def test_it_imports_nothing_slow(words: list[str]) -> None:
    program = (
        "import sys\nfrom bench.cli import main\n"
        "try:\n    main(['completion', 'next', *sys.argv[1:]])\n"
        "finally:\n    slow = {'torch', 'lightning', 'numpy', 'pydantic', 'yaml', 'optuna'} & {*sys.modules}\n"
        "    assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_printed_and_legal(cli, shell: Callable[[str], str], tmp_path: Path, name: str) -> None:
    answer = cli("completion", name)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == SCRIPTS[name]
    (tmp_path / "script").write_text(answer.out)
    assert subprocess.run([shell(name), "-n", tmp_path / "script"], check=False).returncode == 0


BASH = """
{script}
bench() {{ "{python}" -m bench.cli "$@"; }}
COMP_LINE="$1" COMP_POINT="${{#1}}"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_bench
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("line", "words", "there"),
    [
        ("bench sw", ["bench", "sw"], ["sweep"]),
        ("bench fit --task mn", ["bench", "fit", "--task", "mn"], ["mnist", "mnli"]),
        ("bench fit --task=mn", ["bench", "fit", "--task", "=", "mn"], ["mnist", "mnli"]),
        ("bench sweep --engine=", ["bench", "sweep", "--engine", "="], ["auto", "lanes", "lightning"]),
        ("bench completion ", ["bench", "completion", ""], ["bash", "zsh", "fish"]),
        ("bench fit --config ", ["bench", "fit", "--config", ""], [""]),
    ],
)
def test_bash_completes(shell: Callable[[str], str], line: str, words: list[str], there: list[str]) -> None:
    program = BASH.format(script=SCRIPTS["bash"], python=sys.executable)
    done = subprocess.run(
        [shell("bash"), "-c", program, "bash", line, *words], capture_output=True, text=True, check=True
    )
    assert (done.stdout.split("\n")[:-1], done.stderr) == (there, "")


ZSH = """
compdef() {{ }}
compadd() {{ shift; print -l -- "$@" }}
_files() {{ print FILES }}
bench() {{ "{python}" -m bench.cli "$@" }}
{script}
words=("$@") CURRENT=$#
_bench
"""
FISH = """
function bench; "{python}" -m bench.cli $argv; end
{script}
complete -C $argv[1]
"""
LINES = pytest.mark.parametrize(
    ("line", "there"),
    [
        ("bench sw", ["sweep"]),
        ("bench fit --task mn", ["mnist", "mnli"]),
        ("bench sweep --engine ", ["auto", "lanes", "lightning"]),
        ("bench completion ", ["bash", "fish", "zsh"]),
        ("bench fit --config ", None),
    ],
)


@LINES
def test_zsh_completes(shell: Callable[[str], str], line: str, there: list[str] | None) -> None:
    program = ZSH.format(script=SCRIPTS["zsh"], python=sys.executable)
    done = subprocess.run(
        [shell("zsh"), "-f", "-c", program, "zsh", *line.split(" ")], capture_output=True, text=True, check=True
    )
    assert (sorted(done.stdout.splitlines()), done.stderr) == (there or ["FILES"], "")


@LINES
def test_fish_completes(shell: Callable[[str], str], line: str, there: list[str] | None, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    program = FISH.format(script=SCRIPTS["fish"], python=sys.executable)
    env = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(
        [shell("fish"), "-N", "-c", program, line], capture_output=True, text=True, check=True, env=env, cwd=tmp_path
    )
    found = sorted(word.partition("\t")[0] for word in done.stdout.splitlines())
    assert done.stderr == ""
    assert found == (there or ["mine.yaml"])
