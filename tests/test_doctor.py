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
    data_diagnoses,
    import_diagnoses,
    no_gpu_diagnosis,
    precision_diagnoses,
    version_diagnoses,
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
    code, lines = report(capsys, tmp_path / "no-data", tmp_path / "no-store")
    assert (code, fails(lines)) == (0, [])
    levels = {subject: level for level, subject, _ in lines}
    libraries = ("torch", "lightning", "torchvision", "timm", "torchmetrics", "transformers", "optuna", "numpy")
    assert all(levels[subject] == "ok" for subject in ("python", "suite", *libraries, "imports", "cpu"))
    assert all(levels[subject] == "note" for subject in ("gpu", "mnist", "cifar10", "store"))
    assert "disk" in levels
    text = "\n".join(line[2] for line in lines)
    assert "32-true, bf16-mixed, 16-mixed, 64-true" in text
    assert str(tmp_path / "no-data" / "MNIST" / "raw") in text
    assert list(tmp_path.iterdir()) == []  # the command writes nothing


def test_damaged_data_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b torn")
    code, lines = report(capsys, tmp_path, tmp_path / "runs")
    assert code == 1
    [text] = fails(lines)
    assert str(raw / "t10k-labels-idx1-ubyte.gz") in text
    assert "delete it" in text


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


def test_missing_and_old_packages() -> None:
    there = {doctor.SUITE: "0.1.0", "torch": "2.5.1", "optuna": "5.0.0.dev1"}
    found = version_diagnoses(["torch>=2.6", "timm>=1.0", "optuna<6,>=4", "wandb; extra == 'wandb'"], there.get)
    levels = {diagnosis.subject: diagnosis.level for diagnosis in found}
    assert levels == {"python": "ok", "suite": "ok", "torch": "FAIL", "timm": "FAIL", "optuna": "ok"}
    assert 'pip install "torch>=2.6"' in found[2].text


@pytest.mark.parametrize(
    "error", [RuntimeError("operator torchvision::nms does not exist"), OSError("undefined symbol"), ImportError()]
)
def test_torchvision_of_another_torch(error: Exception) -> None:
    tried = []

    def load(name: str) -> None:
        tried.append(name)
        if name == "torchvision":
            raise error

    [diagnosis] = import_diagnoses(load)
    assert diagnosis.level == "FAIL"
    assert "torchvision cannot be imported" in diagnosis.text
    assert "pip install --force-reinstall" in diagnosis.text
    assert tried == ["torch", "torchvision"]


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


def test_a_card_without_code_in_torch_and_one_that_emulates_bf16() -> None:
    every = precision_diagnoses("cuda:0", (7, 0), lambda device, precision: "no kernel image is available")
    assert {diagnosis.level for diagnosis in every} == {"FAIL", "note"}
    assert "torch==2.10.0" in every[0].text
    works, slow = precision_diagnoses("cuda:0", (7, 0), lambda device, precision: None)
    assert works.text == "--precision that works: 32-true, bf16-mixed, 16-mixed, 64-true"
    assert "emulates bf16" in slow.text


# -- data ---------------------------------------------------------------------------------------------------------


def with_files(folder: Path, md5: dict[str, str]) -> Any:
    return SimpleNamespace(name="x", data_cls=SimpleNamespace(SOURCE=ImageSource(str(folder), md5, "")))


def test_data_complete_damaged_and_partly_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    right = {"a": "0cc175b9c0f1b6a831c399e269772661"}
    assert [f.level for f in data_diagnoses(with_files(tmp_path, right), tmp_path)] == ["ok"]
    [diagnosis] = data_diagnoses(with_files(tmp_path, right | {"b": ""}), tmp_path)
    assert diagnosis.level == "note"
    assert "lacks b;" in diagnosis.text
    [diagnosis] = data_diagnoses(with_files(tmp_path, {"a": "0" * 32}), tmp_path)
    assert (diagnosis.level, "(1 bytes)" in diagnosis.text) == ("FAIL", True)
    [diagnosis] = data_diagnoses(with_files(tmp_path, {"c": ""}), tmp_path)
    assert "lacks its files; fetched on first use if a network is available" in diagnosis.text


def test_data_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "a").touch()
    monkeypatch.setattr("tasks.core.files.md5", refuse)
    [diagnosis] = data_diagnoses(with_files(tmp_path, {"a": ""}), tmp_path)
    assert diagnosis.level == "FAIL"
    assert "Permission denied" in diagnosis.text
