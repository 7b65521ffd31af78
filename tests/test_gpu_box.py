"""`make gpu`: each part runs once, results survive an interruption, and one page has all of them (here on the CPU)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.store.bundle import opened, store_in
from bench.store.store import Store
from benchmarks.gpu.__main__ import PARTS, environment, lines, page, same
from benchmarks.gpu.speed import SPEED, lanes_of
from tests.conftest import Cli
from tests.tiny import ROOT

MACHINE = {"device": "cuda", "name": "card", "torch": "2.11.0"}
LINE = {"part": "steps", "ok": True, "tiny": False, "machine": MACHINE, "seconds": 1.0, "when": "2026-11-23T00:00:00Z"}
ROW = {
    "what": "sngd",
    "baseline": "a copy",
    "values": [1.2, 1.0, 1.1],
    "bound": 1.5,
    "at_least": False,
    "unit": "x",
}


def box(out: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--tiny", "--device", "cpu", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)


def test_lines_that_were_cut_off_are_left_out(tmp_path: Path) -> None:
    assert lines(tmp_path) == []
    (tmp_path / "gpu.jsonl").write_text(f'{json.dumps(LINE)}\n{{"part": "tes\n[1]\n{{"part": "other"}}\n')
    assert lines(tmp_path) == [LINE]


@pytest.mark.parametrize(
    ("change", "counts"),
    [({}, True), ({"ok": False}, False), ({"tiny": True}, False), ({"machine": MACHINE | {"name": "other"}}, False)],
)
def test_a_part_is_done_if_it_was_done_here_and_whole(change: dict[str, object], counts: bool) -> None:
    assert same(LINE | change, MACHINE, tiny=False) == counts


def test_the_page_has_the_latest_line_of_each_part_and_machine() -> None:
    found = page(
        [
            LINE | {"rows": [ROW | {"values": [9.0]}]},
            LINE | {"rows": [ROW]},
            LINE | {"part": "tests", "passed": 3, "skipped": 1, "failures": {"test_a[b]": "AssertionError: 1\nmore"}},
            LINE | {"part": "mnist", "runs": 7, "ok": False},
            LINE | {"part": "doctor", "text": "ok python\n"},
        ]
    )
    assert found.index("## doctor: cuda, card, 2.11.0") < found.index("## tests") < found.index("## steps")
    assert "sngd  a copy    1.1x    1-1.2x  <= 1.5x  within" in found
    assert "9x" not in found
    assert "3 passed, 1 skipped, 1 failed\n- `test_a[b]`: AssertionError: 1\n" in found
    assert "7 runs are stored, and not all could be trained" in found


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--parts", "steps,nothing"), "there is no part 'nothing'; there are doctor, tests, steps"),
        (("--minutes", "0"), "--minutes 0: it must be above 0"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: tuple[str, ...], line: str, tmp_path: Path) -> None:
    done = box(tmp_path, *words)
    assert done.returncode == 2
    assert line in done.stderr


@pytest.mark.deep
def test_a_box_goes_on_where_it_was_cut_off(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = box(out, "--parts", "doctor,mnist", "--minutes", 20)
    assert first.returncode == 0, first.stdout + first.stderr
    assert [line["part"] for line in lines(out)] == ["doctor", "mnist"]
    assert {path.name for path in out.iterdir()} == {"gpu.jsonl", "gpu.md", "runs-mnist.zip", "studies.db"}
    with opened(out / "runs-mnist.zip") as folder:
        made = {run.run_id: run.final for run in Store(store_in(folder)).runs()}
    assert len(made) == lines(out)[1]["runs"] == 8
    assert cli("merge", out / "runs-mnist.zip", tmp_path / "store").code == 0
    assert len(list(Store(tmp_path / "store").runs())) == 8
    assert cli("studies", "--storage", f"sqlite:///{out / 'studies.db'}").out.count("synthetic") == 2
    again = box(out, "--parts", "doctor,mnist")
    assert "doctor: done earlier\nmnist: done earlier\n" in again.stdout
    (out / "gpu.jsonl").unlink()  # as if the command had been killed before it was written
    third = box(out, "--parts", "mnist", "--minutes", 20)
    assert third.returncode == 0, third.stderr
    assert "opt.lr" not in third.stderr  # nothing is trained
    with opened(out / "runs-mnist.zip") as folder:
        assert {run.run_id: run.final for run in Store(store_in(folder)).runs()} == made


@pytest.mark.deep
def test_a_part_whose_time_is_over_keeps_what_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), "--tiny", "--device", "cpu"]
    with subprocess.Popen(
        [*command, "--only", "mnist"], cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True
    ) as part:
        assert part.stderr is not None
        assert any("tuning" in line for line in part.stderr)
        part.terminate()
        part.stderr.read()
    assert part.returncode == 1
    assert lines(tmp_path) == []
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.deep
def test_no_part_begins_when_the_time_is_over(tmp_path: Path) -> None:
    done = box(tmp_path, "--parts", "mnist,lm", "--minutes", 1e-9)
    assert done.returncode == 3, done.stderr
    assert "mnist: no time is left\nlm: no time is left\nthe same command continues" in done.stdout


@pytest.mark.deep
@pytest.mark.parametrize("task", ["synthetic", "cifar10"])
def test_the_speed_of_lanes_is_measured_at_growing_widths(task: str) -> None:
    rows = lanes_of(task)("cpu", True)
    assert [row.what for row in rows] == [f"{task}, {width} lanes: a step of one" for width in (1, 4)]
    assert all(value > 0 for row in rows for value in row.values)


def test_every_speed_part_is_a_part() -> None:
    assert set(SPEED) < set(PARTS)


@pytest.mark.deep
def test_bert_is_measured_in_tokens_against_plain_lightning(tmp_path: Path) -> None:
    done = box(tmp_path, "--parts", "bert", "--minutes", 20)
    assert done.returncode == 0, done.stderr
    (line,) = lines(tmp_path)
    ratio, ours, plain = line["rows"]
    assert (ratio["baseline"], ratio["bound"], ratio["at_least"]) == ("plain Lightning", 1, True)
    for together, a, b in zip(ratio["values"], ours["values"], plain["values"], strict=True):
        assert together == pytest.approx(a / b)
    assert "a tiny BERT, adamw, bf16, 3 batches of 32" in (tmp_path / "gpu.md").read_text()
