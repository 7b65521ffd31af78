"""The output of `--json` matches the models of `bench.answers`, for every command that has it."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import RootModel

from bench.answers import ANSWERS, QualityRow, fields, parts_of
from bench.grammar.commands import COMMANDS
from tests.conftest import Cli
from tests.entered import keep_block, seeds

SHORT = ["--trainer.max_steps", 5, "--device", "cpu"]
NGD = ["--task", "synthetic", "--opt", "ngd", *SHORT]
LADDER = ["ladder", "--task", "synthetic", "--opt", "ngd,gd", "--rungs", 2, "--trials", 2, "--seeds", 1, *SHORT]
STUDY = [*NGD, "--opt.lr", "0.1:1", "--trials", 2, "--seeds", 1, "--report_seeds", 2, "--workers", 1]
CASES: dict[str, list[Any]] = {
    "fit": ["fit", *NGD],
    "fit --seeds": ["fit", *NGD, "--seeds", 2, "--engine", "lanes"],
    "fit --dry-run": ["fit", *NGD, "--dry-run"],
    "fit --seeds --dry-run": ["fit", *NGD, "--seeds", 2, "--dry-run"],
    "sweep": ["sweep", *NGD, "--opt.lr", "0.1,1", "--seeds", 2, "--engine", "lanes"],
    "sweep --dry-run": ["sweep", *NGD, "--opt.lr", "0.1,1", "--seeds", 2, "--dry-run"],
    "race --dry-run": ["race", "synthetic", "--opt", "ngd,gd", *SHORT, "--dry-run"],
    "reproduce --dry-run": ["reproduce", "deora2024/fig5", "--quick", "--seeds", "10:12", "--dry-run"],
    "ladder --dry-run": [*LADDER, "--dry-run"],
    "tune --dry-run": ["tune", *STUDY, "--dry-run"],
    "studies": ["studies"],
    "leaderboard": ["leaderboard", "--no-reference", "--store", "entered"],
    "leaderboard --explain": ["leaderboard", "--explain", "sngd", "--no-reference", "--store", "entered"],
    "claims": ["claims"],
    "reproduce --list": ["reproduce", "--list"],
    "report": ["report", "--no-reference", "--store", "entered"],
    "plot": ["plot", "forest", "-o", "forest.svg", "--no-reference", "--store", "entered"],
    "sql": ["sql", "select opt, final, settings from runs", "--store", "entered"],
    "merge": ["merge", "entered", "other"],
    "bundle": ["bundle", "-o", "runs.zip", "--store", "entered"],
    "new": ["new", "optimizer", "my_opt"],
    "check --list": ["check", "--list"],
    "list tasks": ["list", "tasks"],
    "list optimizers": ["list", "optimizers"],
    "list runs": ["list", "runs", "--store", "entered"],
    "show TASK": ["show", "synthetic"],
    "show OPTIMIZER": ["show", "sngd"],
    "show EXPERIMENT": ["show", "deora2024/fig5"],
    "show RUN": ["show", "RUN", "--store", "entered"],
    "diff": ["diff", "RUN", "OTHER", "--store", "entered"],
    "data": ["data", "status", "--task", "mnist"],
    "doctor": ["doctor", "--store", "entered"],
}
"""Quick commands; RUN and OTHER stand for ids."""
DEEP: dict[str, list[Any]] = {
    "quickstart": ["quickstart"],
    "race": ["race", "synthetic", "--opt", "ngd,gd", "--seeds", 7, "--most", 7, *SHORT],
    "ladder": [*LADDER, "--report_seeds", 2, "--workers", 1],
    "tune": ["tune", *STUDY],
    "studies": ["studies"],
    "studies NAME": ["studies", "STUDY"],
    "compare --dry-run": ["compare", *STUDY, "--dry-run", "--against", "gd"],
    "compare": ["compare", *STUDY, "--anyway", "--against", "gd"],
    "suite --dry-run": ["suite", "suite.yaml", "--dry-run"],
    "suite": ["suite", "suite.yaml", "--workers", 1],
    "leaderboard --explain": ["leaderboard", "--explain", "ngd", "--no-reference"],
    "list runs": ["list", "runs"],
    "show RUN": ["show", "RUN"],
    "bundle": ["bundle", "-o", "runs.zip"],
    "verify": ["verify", "runs.zip", "--runs", 1],
    "check": ["check", "ngd", "--only", "builds,resume"],
    "check --task": ["check", "--task", "synthetic", "--only", "builds"],
    "reproduce": ["reproduce", "deora2024/fig5", "--quick", "--trainer.max_steps", 20, "--seeds", 3],
    "check --matrix": ["check", "--matrix", "ngd,gd", "--only", "builds"],
}
"""In this order, in one folder: later commands read what earlier ones wrote."""
SUITE = """
title: two
tasks: [synthetic]
optimizers: {ngd: {opt.lr: "0.1:1"}, gd: {opt.lr: "0.1:1"}}
settings: {trainer.max_steps: 5, device: cpu}
tune: {trials: 2, seeds: 1}
seeds: 2
"""


def test_every_command_with_json_has_a_schema_and_a_test() -> None:
    with_json = {name for name, command in COMMANDS.items() if "json" in {option.name for option in command.options}}
    assert {form.split(" ")[0] for form in ANSWERS} == with_json
    assert CASES.keys() | DEEP.keys() == ANSWERS.keys()
    assert COMMANDS.keys() - with_json == {"completion"}


def test_every_key_is_described() -> None:
    for model in {part for kind in ANSWERS.values() for part in parts_of(kind)}:
        assert model.__doc__
        if not issubclass(model, RootModel):
            assert [name for name, kind, meaning in fields(model) if not kind or not meaning] == []


def _check(answer: Any, form: str, code: int) -> Any:
    assert answer.code == code, answer.err
    assert answer.out.endswith("\n")
    json.loads(answer.out, parse_constant=lambda text: pytest.fail(f"{text} is no strict JSON"))
    return ANSWERS[form].model_validate_json(answer.out)


@pytest.mark.parametrize("form", CASES)
def test_the_answer_is_what_the_schema_says(
    cli: Cli, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_mnist: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [
        run for opt, final in (("sngd", 0.9), ("adamw", 0.8)) for run in seeds(opt, [final + i / 100 for i in range(8)])
    ]
    keep_block(Path("entered"), *runs)
    ids = {"RUN": runs[0].run_id, "OTHER": runs[1].run_id}
    words = [ids.get(word, word) for word in CASES[form]]
    data = ["--data", fake_mnist] if words[0] == "data" else []
    answer = _check(cli(*words, *data, "--json"), form, 0)
    if form == "leaderboard":
        [board] = answer.root
        assert {QualityRow.model_validate(row).opt for row in board.tables[0].rows} == {"sngd", "adamw"}


@pytest.mark.deep
def test_the_answers_of_a_session_are_what_the_schemas_say(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("suite.yaml").write_text(SUITE)
    found: dict[str, Any] = {}
    for form, words in DEEP.items():
        names = {"STUDY": next(iter(found["studies"].root), "") if "studies" in found else ""}
        names["RUN"] = found["list runs"].root[0].run_id if "list runs" in found else ""
        found[form] = _check(cli(*(names.get(word, word) for word in words), "--json"), form, 0)
    assert found["quickstart"].boards[0].tables[0].rows
