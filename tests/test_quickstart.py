"""`bench quickstart`: a ranked table, a verdict in words, a plot and commands that parse."""

import json
import shlex
from pathlib import Path

import pytest

import bench.api.experiments
from bench.cli.commands import parse
from tests.stored import Store
from tests.test_cli import fails


@pytest.fixture(autouse=True)
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench.api.experiments, "STEPS", 10)


def test_a_first_comparison_and_again_without_training(cli, store: Path) -> None:
    first = cli("quickstart", "--json")
    answer = json.loads(first.out)
    (table,) = answer["boards"][0]["tables"]
    assert first.code == 0
    assert {row["opt"]: row["n"] for row in table["rows"]} == dict.fromkeys(bench.api.experiments.OPTS, 7)
    assert [row["verdict"] for row in table["rows"]].count("reference") == 1
    assert "without tuning" in answer["said"][1]
    assert Path(answer["plot"]).read_bytes()[:4] == b"\x89PNG"
    assert Path(answer["plot"]).stat().st_size > 10_000
    runs = list(Store(store).runs())
    assert {run.engine for run in runs} == {"lanes"}
    kept = {run.run_id: run.begun for run in runs}
    again = cli("quickstart", "-o", "mine.svg")
    assert "all 28 runs are stored" in again.err
    assert "written to mine.svg" in again.err
    assert answer["said"][0] in " ".join(again.out.split())
    assert "▲ better and ▼ worse" in again.out
    assert "Try next:\n  bench compare" in again.out
    assert max(map(len, again.out.splitlines())) <= 120
    assert {run.run_id: run.begun for run in Store(store).runs()} == kept


def test_the_proposed_next_commands_are_right() -> None:
    commands = [line.split("    ")[0] for line in bench.api.experiments.NEXT.splitlines()[2:]]
    assert len(commands) == 3
    for program, name, *words in map(shlex.split, commands):
        assert program == "bench"
        parse(name, words)


def test_a_plot_that_cannot_be_written_is_refused_before_training(cli, store: Path) -> None:
    assert "quick.gif" in fails(cli, "quickstart", "-o", "quick.gif")
    assert not store.exists()
