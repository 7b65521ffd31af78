"""`make gpu`: each part runs once, results survive an interruption, and one page has all of them (here on the CPU)."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.errors import UserError
from bench.store.store import Store
from bench.train.callbacks import Recorder
from benchmarks import training
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.__main__ import PARTS, add, environment, excess, keep, lines, locked, page, same, unpack
from benchmarks.gpu.speed import SPEED, lanes_of
from tests.conftest import Cli
from tests.stored import add_run
from tests.tiny import ROOT

MACHINE = {"device": "cuda", "name": "card", "torch": "2.11.0"}
LINE = {
    "part": "steps",
    "ok": True,
    "tiny": False,
    "machine": MACHINE,
    "seconds": 1.0,
    "when": "2026-11-23T00:00:00Z",
    "runs": 2,
}
ROW = {
    "what": "sngd",
    "baseline": "a copy",
    "values": [1.2, 1.0, 1.1],
    "bound": 1.5,
    "at_least": False,
    "unit": "x",
}


def command(out: Path, *words: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--tiny", "--device", "cpu", *map(str, words)]


def box(out: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(out, *words), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )


Main = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[Main]:
    """The command in this process, with parts that are replaced by exit codes, an interruption or a full disk."""
    before = signal.getsignal(signal.SIGTERM)

    def call(out: Path, *words: str, parts: Callable[[str], int | None] = lambda part: 0) -> int:
        monkeypatch.setattr(sys, "argv", command(out, *words)[2:])
        monkeypatch.setattr(gpu, "begin", lambda part, *_: parts(part))
        return gpu.main()

    yield call
    signal.signal(signal.SIGTERM, before)


def test_lines_that_were_cut_off_are_left_out(tmp_path: Path) -> None:
    assert lines(tmp_path) == []
    (tmp_path / "gpu.jsonl").write_bytes(b'%s\n{"part": "tes\n[1]\n{"part": "other"}\n\xff' % json.dumps(LINE).encode())
    assert lines(tmp_path) == [LINE]


DAMAGED = [
    '{"part": "doctor"}',
    *(
        json.dumps(LINE | damage)
        for damage in (
            {"machine": None},
            {"rows": [{"a": 1}]},
            {"tiny": [1]},
            {"seconds": 10**400},
        )
    ),
]


@pytest.mark.parametrize("before", ["", "{}\n", '{"part": "tes', *DAMAGED])
def test_a_line_that_was_cut_off_does_not_swallow_the_next_one(before: str, tmp_path: Path) -> None:
    (tmp_path / "gpu.jsonl").write_text(before)
    add(tmp_path, LINE)
    add(tmp_path, LINE)
    assert lines(tmp_path) == [LINE, LINE]
    assert (tmp_path / "gpu.jsonl").read_text().startswith(before)


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
        (("--parts", ""), "there is no part ''; there are doctor, tests, steps"),
        (("--minutes", "0"), "--minutes 0: it must be above 0"),
        (("--minutes", "soon"), "argument --minutes: invalid float value: 'soon'"),
        (("--device", "tpu"), "argument --device: invalid choice: 'tpu' (choose from 'cuda', 'cpu')"),
        (("--device", "cuda"), "--device cuda: torch finds no such device on this machine; see `bench doctor`"),
        (("--hours", "1"), "unrecognized arguments: --hours 1; --help lists the options"),
        (("--out", "/dev/null"), "--out /dev/null: File exists; name another folder"),
    ],
)
def test_words_that_mean_nothing_are_refused_in_one_line(
    words: tuple[str, ...], line: str, tmp_path: Path, main: Main, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    try:
        code = main(tmp_path, *words)
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith(f"bench: error: {line}")
    assert error.count("\n") == 1


def test_one_command_at_a_time_writes_and_removes_leftovers_of_a_killed_one(tmp_path: Path) -> None:
    names = {".runs-mnist.zip", ".mine", "runs-mnist.zip"}
    for name in names:
        (tmp_path / name).touch()
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {".mine", "runs-mnist.zip", "gpu.jsonl"}
        with pytest.raises(UserError, match=r"^--out .*: another `make gpu` writes there; wait for it, or end it$"):
            locked(tmp_path).__enter__()
    with locked(tmp_path):
        pass


def test_an_interruption_ends_the_command_and_keeps_finished_parts(tmp_path: Path, main: Main, capsys: Capture) -> None:
    begun = []

    def part(name: str) -> int:
        begun.append(name)
        if name == "mnist":
            raise KeyboardInterrupt
        add(tmp_path, LINE | {"part": name, "rows": [ROW]})
        return 0

    assert main(tmp_path, "--parts", "steps,mnist,lm", parts=part) == 130
    assert begun == ["steps", "mnist"]
    assert "## steps" in (tmp_path / "gpu.md").read_text()
    assert capsys.readouterr().err == "bench: interrupted; the same command continues with the missing parts\n"


def test_the_first_part_that_fails_decides_the_exit_code(tmp_path: Path, main: Main, capsys: Capture) -> None:
    codes = {"steps": 0, "runs": 2, "bert": 1, "mnist": None}
    assert main(tmp_path, "--parts", ",".join(codes), parts=codes.__getitem__) == 2
    shown = [line.split(" in ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [
        "steps: done",
        "runs: failed",
        "bert: failed",
        "mnist: stopped",
        "the same command continues with the missing parts",
    ]


def test_a_full_disk_is_one_line(tmp_path: Path, main: Main, capsys: Capture) -> None:
    add(tmp_path, LINE | {"rows": [ROW]})
    (tmp_path / "gpu.md").symlink_to("/dev/full")
    assert main(tmp_path, "--parts", "doctor") == 1
    error = f"{tmp_path}: No space left on device; free some space, then repeat the command"
    assert capsys.readouterr().err == f"bench: error: {error}\n"


def test_a_full_disk_is_named_where_a_copy_goes(
    tmp_path: Path, main: Main, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "kept.zip").write_text("runs")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def part(name: str) -> int:
        monkeypatch.setattr(os, "sendfile", full)
        gpu.publish(tmp_path / "kept.zip", tmp_path / "runs-lm.zip")
        return 0

    assert main(tmp_path, "--parts", "lm", parts=part) == 1
    error = f"{tmp_path}/.runs-lm.zip: No space left on device; free some space, then repeat the command"
    assert capsys.readouterr().err == f"bench: error: {error}\n"


def test_too_many_or_too_large_files_are_reported(tmp_path: Path, main: Main, capsys: Capture) -> None:
    for i in range(6):
        (tmp_path / f"file{i}").touch()
    assert main(tmp_path, "--parts", "doctor") == 0  # with gpu.jsonl and gpu.md 8 files
    assert capsys.readouterr().err == ""
    os.truncate(tmp_path / "file3", 16_000_000)
    assert excess(tmp_path) == []
    os.truncate(tmp_path / "file3", 16_100_000)
    (tmp_path / "file6").touch()
    assert main(tmp_path, "--parts", "doctor") == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        f"bench: warning: {tmp_path}/file3 has 16.1 MB, more than 16: copy it from this machine by other means"
    )
    assert second == f"bench: warning: --out {tmp_path} has 9 files, more than 8: move those that are not results"
    assert len([*tmp_path.iterdir()]) == 9


@pytest.mark.parametrize("code", [0, 1])
def test_the_part_doctor_is_as_well_as_doctor_says(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = f"import sys; print('FAIL disk'); print('why', file=sys.stderr); sys.exit({code})"
    monkeypatch.setattr(gpu, "suite_command", lambda *words: [sys.executable, "-c", told])
    assert gpu.one("doctor", Namespace(out=tmp_path, device="cpu", tiny=True)) == code
    (line,) = lines(tmp_path)
    assert (line["ok"], line["text"]) == (not code, "FAIL disk\nwhy\n")


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder of a part that has trained: a store with a finished run."""
    folder = tmp_path / "part"
    add_run(folder / "runs", "synthetic-ngd-0123456789ab")
    return folder


def test_a_zip_file_is_written_whole_or_not_at_all(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()

    def interrupted(*args: object) -> None:
        assert [*out.iterdir()] == []
        raise KeyboardInterrupt

    for name in ("shutil.make_archive", "shutil.copyfile"):
        with monkeypatch.context() as patched:
            patched.setattr(name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                keep(trained, out / "runs-mnist.zip")
        assert [*out.iterdir()] == []
    assert keep(trained, out / "runs-mnist.zip") == 1
    assert {path.name for path in out.iterdir()} == {"runs-mnist.zip"}
    unpack(out / "runs-mnist.zip", tmp_path / "store")
    assert len(list(Store(tmp_path / "store").runs())) == 1


def test_nothing_is_kept_before_a_run_is_finished(tmp_path: Path) -> None:
    assert keep(tmp_path, tmp_path / "runs-mnist.zip") == 0
    assert [*tmp_path.iterdir()] == []


def overwrite(path: Path) -> None:
    path.write_text("not a zip file")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """Invert a byte in the first compressed file, at its beginning."""
    with zipfile.ZipFile(path) as packed:
        first = next(entry for entry in packed.infolist() if entry.file_size)
    whole = bytearray(path.read_bytes())
    whole[first.header_offset + 30 + len(first.filename)] ^= 0xFF
    path.write_bytes(whole)


def damage_inside(path: Path) -> None:
    """Truncate a table of a valid zip file."""
    with zipfile.ZipFile(path) as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in contents.items():
            packed.writestr(name, content[:-20] if name.endswith("curve.parquet") else content)


@pytest.mark.parametrize("damage", [overwrite, cut, flip, damage_inside])
def test_a_damaged_zip_file_is_refused_and_stays(damage: Callable[[Path], None], trained: Path, tmp_path: Path) -> None:
    packed = tmp_path / "runs-mnist.zip"
    keep(trained, packed)
    damage(packed)
    before = packed.read_bytes()
    said = "; move it elsewhere, then its runs are trained again"
    with pytest.raises(UserError, match=rf"\A{re.escape(str(packed))} is damaged: [^\n]*{said}\Z"):
        unpack(packed, tmp_path / "store")
    assert packed.read_bytes() == before


# -- whole parts ------------------------------------------------------------------------------------------------------


def running(folder: Path) -> list[int]:
    """Processes with the folder in their command."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if os.fsencode(folder) in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 130),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_stopped_command_leaves_no_process_behind(number: signal.Signals, code: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command(out, "--parts", "mnist,lm", "--minutes", 20),
        cwd=ROOT,
        env=environment() | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stderr is not None
        assert any("tuning" in line for line in program.stderr)
        assert len(running(tmp_path)) > 1
        assert "another `make gpu` writes there" in box(out).stderr
        program.send_signal(number)
        said, _ = program.communicate()
    assert program.returncode == code
    assert "lm:" not in said
    give_up = time.monotonic() + 60
    while running(tmp_path):
        assert time.monotonic() < give_up, running(tmp_path)
        time.sleep(0.1)
    assert {path.name for path in out.iterdir()} <= {"gpu.jsonl", "gpu.md", "runs-mnist.zip"}
    assert lines(out) == []
    with locked(out):
        pass


@pytest.mark.deep
def test_a_damaged_zip_file_is_one_line_and_other_parts_go_on(tmp_path: Path) -> None:
    (tmp_path / "runs-mnist.zip").write_text("not a zip file")
    done = box(tmp_path, "--parts", "mnist,doctor", "--minutes", 20)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"bench: error: {tmp_path}/runs-mnist.zip is damaged: ")
    assert "mnist: failed in " in done.stdout
    assert [line["part"] for line in lines(tmp_path)] == ["doctor"]
    assert (tmp_path / "runs-mnist.zip").read_text() == "not a zip file"


@pytest.mark.deep
def test_a_box_goes_on_where_it_was_cut_off(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = box(out, "--parts", "doctor,mnist", "--minutes", 20)
    assert first.returncode == 0, first.stdout + first.stderr
    assert [line["part"] for line in lines(out)] == ["doctor", "mnist"]
    assert {path.name for path in out.iterdir()} == {"gpu.jsonl", "gpu.md", "runs-mnist.zip"}
    unpack(out / "runs-mnist.zip", tmp_path / "store")
    made = {run.run_id: run.final for run in Store(tmp_path / "store").runs()}
    assert len(made) == lines(out)[1]["runs"] == 8
    again = box(out, "--parts", "doctor,mnist")
    assert "doctor: done earlier\nmnist: done earlier\n" in again.stdout
    (out / "gpu.jsonl").unlink()  # as if the command had been killed before it was written
    third = box(out, "--parts", "mnist", "--minutes", 20)
    assert third.returncode == 0, third.stderr
    assert "opt.lr" not in third.stderr  # nothing is trained
    unpack(out / "runs-mnist.zip", tmp_path / "again")
    assert {run.run_id: run.final for run in Store(tmp_path / "again").runs()} == made


@pytest.mark.deep
def test_a_part_that_runs_out_of_time_keeps_its_results(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--only", "mnist"),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as part:
        assert part.stderr is not None
        assert any("tuning" in line for line in part.stderr)
        part.terminate()
        part.stderr.read()
    assert part.returncode == 130
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


def test_an_interrupted_run_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Recorder.on_train_start

    def interrupted(*args: Any) -> None:
        start(*args)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "on_train_start", interrupted)
    config = training.configure("synthetic", "ngd", 500, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        training.by_bench(config)()


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
