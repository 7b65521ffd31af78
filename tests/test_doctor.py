"""`bench doctor` reports what works here and how to fix the rest; it never ends in a traceback."""

import fcntl
import importlib
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.commands import doctor
from bench.commands.doctor import data_diagnosis, device_diagnoses, software_diagnoses
from tasks.vision.sources import ImageSource
from tests.conftest import Cli
from tests.stored import add_run


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPUs of the machine, which may be broken."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "DRIVER", Path("nowhere"))


def report(cli: Cli, data: Path, store: Path) -> tuple[int, list[list[str]]]:
    """Exit code of `bench doctor`, and its lines as level, subject, text."""
    answer = cli("doctor", "--data", data, "--store", store)
    assert answer.err == ""
    return answer.code, [line.split(maxsplit=2) for line in answer.out.splitlines()]


def failure(cli: Cli, data: Path, store: Path) -> str:
    """The text of the only failure."""
    code, lines = report(cli, data, store)
    [text] = [text for level, _, text in lines if level == "FAIL"]
    assert code == 1
    return text


def test_healthy_machine(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert failure(cli, data, tmp_path / "no-store") == f"--data {data}: there is no such folder"
    data.mkdir()
    code, lines = report(cli, data, tmp_path / "no-store")
    assert code == 0
    levels = {subject: level for level, subject, _ in lines}
    assert all(levels[subject] == "ok" for subject in ("python", "suite", *doctor.LIBRARIES, "cpu", "store"))
    assert all(levels[subject] == "note" for subject in ("gpu", "mnist", "cifar10"))
    text = "\n".join(line[2] for line in lines)
    assert str(data / "MNIST" / "raw") in text
    assert list(tmp_path.iterdir()) == [data]  # the command writes nothing


@pytest.mark.parametrize(
    ("place", "error"),
    [((tempfile, "TemporaryFile"), "Read-only file system"), ((fcntl, "lockf"), "No locks available")],
)
def test_a_disk_without_writes_or_locks(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str], error: str
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError(30, error)

    monkeypatch.setattr(*place, refuse)
    text = failure(cli, tmp_path, tmp_path)
    assert error in text
    assert "--store" in text


def test_runs_are_counted_and_damaged_ones_named(cli: Cli, tmp_path: Path) -> None:
    add_run(tmp_path / "runs", "a")
    (add_run(tmp_path / "runs", "damaged") / "done/runs.jsonl").write_text('{"run_id": ')
    assert any("runs, 1 run" in text for _, _, text in report(cli, tmp_path, tmp_path / "runs")[1])
    text = failure(cli, tmp_path, tmp_path / "runs")
    assert str(tmp_path / "runs" / "damaged") in text
    assert "copy it again from its source, or delete it and train again" in text


def test_a_broken_check_is_a_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cpu_name", lambda: 1 / 0)
    assert "check failed (ZeroDivisionError: division by zero); please report" in failure(cli, tmp_path, tmp_path)


@pytest.mark.parametrize("error", [RuntimeError("operator torchvision::nms does not exist"), ImportError()])
def test_torchvision_of_another_torch(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(name: str) -> None:
        if name == "torchvision":
            raise error

    monkeypatch.setattr(importlib, "import_module", load)
    *_, torch, diagnosis = software_diagnoses()
    assert (torch.level, torch.subject) == ("ok", "torch")
    assert diagnosis.level == "FAIL"
    assert diagnosis.text.endswith("pip install --force-reinstall torch torchvision")


@pytest.mark.parametrize(("hidden", "level"), [("", "note"), ("-1", "note"), ("0", "FAIL")])
def test_a_gpu_that_torch_does_not_find(monkeypatch: pytest.MonkeyPatch, hidden: str, level: str) -> None:
    monkeypatch.setattr(doctor, "DRIVER", Path("/"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert [(diagnosis.subject, diagnosis.level) for diagnosis in device_diagnoses()] == [("cpu", "ok"), ("gpu", level)]


def test_a_card_without_code_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="V100", total_memory=2**34, major=7, minor=0)
    for name, value in {"is_available": True, "device_count": 1, "get_device_properties": gpu}.items():
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *args, value=value: value)
    monkeypatch.setattr("torch.ones", lambda *args, **more: 1 / 0)
    *_, card = device_diagnoses()
    assert (card.level, card.subject) == ("FAIL", "cuda:0")
    assert "V100, 16 GiB, compute capability 7.0: it does not work" in card.text
    assert "torch 2.10.0 is the last for a V100" in card.text


RIGHT = {"a": "0cc175b9c0f1b6a831c399e269772661"}


@pytest.mark.parametrize(
    ("md5", "level", "part"),
    [
        (RIGHT, "ok", "complete in "),
        (RIGHT | {"b": ""}, "note", " are missing; `bench data status --task x` lists them"),
        (RIGHT | {"c.gz": ""}, "FAIL", " are damaged; `bench data status"),
        ({"a": "0" * 32}, "FAIL", " are damaged; `bench data status"),
    ],
)
def test_data_complete_damaged_and_partly_there(tmp_path: Path, md5: dict[str, str], level: str, part: str) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "c.gz").write_bytes(b"\x1f\x8b torn")
    spec: Any = SimpleNamespace(name="x", data_cls=SimpleNamespace(SOURCES={"x": ImageSource(str(tmp_path), md5, "")}))
    diagnosis = data_diagnosis(spec, tmp_path)
    assert diagnosis.level == level
    assert part in diagnosis.text


def test_data_that_cannot_be_read(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").touch()
    monkeypatch.setattr("bench.commands.data.md5", refuse)
    assert "ubyte.gz: Permission denied; permit it, or name another" in failure(cli, tmp_path, tmp_path)
