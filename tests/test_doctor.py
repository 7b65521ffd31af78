"""`bench doctor` reports what works here and how to fix the rest; it never ends in a traceback."""

import errno
import fcntl
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cli import main
from bench.commands import doctor
from bench.commands.doctor import (
    Diagnosis,
    data_diagnosis,
    no_gpu_diagnosis,
    precision_diagnoses,
    software_diagnoses,
)
from tasks.vision.sources import ImageSource
from tests.stored import add_run


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPUs of the machine, which may be broken."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "DRIVER", Path("nowhere"))


def report(capsys: pytest.CaptureFixture[str], data: Path, store: Path) -> tuple[int, list[list[str]]]:
    """Exit code of `bench doctor`, and its lines as level, subject, text."""
    with pytest.raises(SystemExit) as exit_:
        main(["doctor", "--data", str(data), "--store", str(store)])
    captured = capsys.readouterr()
    assert captured.err == ""
    *lines, empty, _ = captured.out.splitlines()
    assert empty == ""
    code = exit_.value.code
    assert isinstance(code, int)
    return code, [line.split(maxsplit=2) for line in lines]


def fails(lines: list[list[str]]) -> list[str]:
    return [text for level, _, text in lines if level == "FAIL"]


# -- the whole command --------------------------------------------------------------------------------------------


def test_healthy_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    assert fails(report(capsys, data, tmp_path / "no-store")[1]) == [f"--data {data}: there is no such folder"]
    data.mkdir()
    code, lines = report(capsys, data, tmp_path / "no-store")
    assert (code, fails(lines)) == (0, [])
    levels = {subject: level for level, subject, _ in lines}
    assert all(levels[subject] == "ok" for subject in ("python", "suite", *doctor.LIBRARIES, "cpu"))
    assert all(levels[subject] == "note" for subject in ("gpu", "mnist", "cifar10", "store"))
    assert "disk" in levels
    text = "\n".join(line[2] for line in lines)
    assert "32-true, bf16-mixed, 16-mixed, 64-true" in text
    assert str(data / "MNIST" / "raw") in text
    assert list(tmp_path.iterdir()) == [data]  # the command writes nothing


def test_damaged_data_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b torn")
    code, lines = report(capsys, tmp_path, tmp_path / "runs")
    assert code == 1
    [text] = fails(lines)
    assert f"in {raw}: damaged t10k-labels-idx1-ubyte.gz; delete, then copy again" in text


def test_store_below_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    code, lines = report(capsys, tmp_path, tmp_path / "file" / "runs")
    assert code == 1
    [text] = fails(lines)
    assert str(tmp_path / "file" / "runs") in text
    assert "--store" in text


def test_read_only_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    code, lines = report(capsys, tmp_path, tmp_path)
    assert code == 1
    assert any("Read-only file system" in text and "--store" in text for text in fails(lines))


def test_a_disk_without_locks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    code, lines = report(capsys, tmp_path, tmp_path)
    assert code == 1
    assert any("No locks available" in text and "--store" in text for text in fails(lines))


def test_runs_are_counted_and_damaged_ones_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, status in (("a", "completed"), ("b", "completed"), ("c", "diverged")):
        add_run(tmp_path / "runs", name, status=status)
    (add_run(tmp_path / "runs", "damaged") / "done/runs.jsonl").write_text('{"run_id": ')
    code, lines = report(capsys, tmp_path, tmp_path / "runs")
    assert code == 1
    assert any("2 completed, 1 diverged" in text for _, _, text in lines)
    [text] = fails(lines)
    assert str(tmp_path / "runs" / "damaged") in text
    assert "copy it again from its source, or delete it and train again" in text


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_DISK", 2**80)
    [diagnosis] = doctor.disk_diagnoses(tmp_path / "runs" / "deeper")
    assert diagnosis.level == "FAIL"
    assert str(tmp_path) in diagnosis.text


def test_broken_check_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[Diagnosis]:
        raise RuntimeError("driver gone\nsecond line")

    monkeypatch.setattr(doctor, "device_diagnoses", broken)
    code, lines = report(capsys, tmp_path, tmp_path)
    assert code == 1
    assert any("driver gone" in text for text in fails(lines))
    assert lines[-1][1] == "store"  # the other checks still ran


# -- software -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [RuntimeError("operator torchvision::nms does not exist"), OSError("undefined symbol"), ImportError()]
)
def test_torchvision_of_another_torch(error: Exception) -> None:
    def load(name: str) -> None:
        if name == "torchvision":
            raise error

    *_, torch, diagnosis = software_diagnoses(load)
    assert (torch.level, torch.subject) == ("ok", "torch")
    assert diagnosis.level == "FAIL"
    assert diagnosis.text.startswith("cannot be imported (")
    assert diagnosis.text.endswith("pip install --force-reinstall torch torchvision")


# -- devices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "hidden", "build", "level", "part"),
    [
        (False, None, "13.0", "note", "no NVIDIA GPU found: runs use the CPU"),
        (True, "", "13.0", "note", "hidden by CUDA_VISIBLE_DEVICES=''"),
        (True, None, None, "FAIL", "this torch was built without CUDA"),
        (True, "0", "13.0", "FAIL", "torch for CUDA 13.0 cannot use it driver too old; install a torch"),
    ],
)
def test_gpu_that_torch_does_not_find(
    monkeypatch: pytest.MonkeyPatch, driver: bool, hidden: str | None, build: str | None, level: str, part: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    diagnosis = no_gpu_diagnosis(driver, build, "driver too old")
    assert diagnosis.level == level
    assert part in diagnosis.text


def test_a_card_without_code_in_torch_and_one_that_emulates_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "try_precision", lambda device, precision: "no kernel image is available")
    failing = [*precision_diagnoses("cuda:0", emulates_bf16=True)]
    assert {diagnosis.level for diagnosis in failing} == {"FAIL", "note"}
    assert "torch==2.10.0" in failing[0].text
    monkeypatch.setattr(doctor, "try_precision", lambda device, precision: None)
    works, slow = precision_diagnoses("cuda:0", emulates_bf16=True)
    assert works.text == "--precision that works: 32-true, bf16-mixed, 16-mixed, 64-true"
    assert "emulates bf16" in slow.text


# -- data ---------------------------------------------------------------------------------------------------------


def diagnosis_of(folder: Path, md5: dict[str, str]) -> Diagnosis:
    spec: Any = SimpleNamespace(name="x", data_cls=SimpleNamespace(SOURCE=ImageSource(str(folder), md5, "")))
    return data_diagnosis(spec, folder)


RIGHT = {"a": "0cc175b9c0f1b6a831c399e269772661"}


@pytest.mark.parametrize(
    ("md5", "level", "part"),
    [
        (RIGHT, "ok", "complete in "),
        (RIGHT | {"b": ""}, "note", " lacks b;"),
        ({"a": "0" * 32}, "FAIL", ": damaged a; delete, then copy again, or let the next run fetch"),
        ({"c": ""}, "note", " lacks its files; the first use fetches them over the network; else copy them"),
    ],
)
def test_data_complete_damaged_and_partly_there(tmp_path: Path, md5: dict[str, str], level: str, part: str) -> None:
    (tmp_path / "a").write_bytes(b"a")
    diagnosis = diagnosis_of(tmp_path, md5)
    assert diagnosis.level == level
    assert part in diagnosis.text


def test_data_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "a").touch()
    monkeypatch.setattr("tasks.core.files.md5", refuse)
    diagnosis = diagnosis_of(tmp_path, {"a": ""})
    assert diagnosis.level == "FAIL"
    assert "Permission denied" in diagnosis.text
