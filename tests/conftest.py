"""Fixtures that several test files share: the command line called in this process, and a tiny data set."""

import atexit
import gc
import gzip
import hashlib
import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# The models of the tests are too small for more threads, and processes that share cores would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test sees only what it stores itself; tests of the reference results name them.
os.environ["BENCH_REFERENCE"] = ""

import numpy as np
import pytest
import torch
from hypothesis import settings
from lightning_utilities.core.rank_zero import rank_zero_only

from bench.cli import main
from optimizers import OPTIMIZERS
from tasks import TASKS
from tasks.vision.sources import MNIST

pytest_plugins = ["tests.depth"]

# A shell starts background jobs with Ctrl-C ignored, which all processes that the tests interrupt would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


# No deadline: on a shared machine an example may take any time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

gc.disable()  # until everything is imported: half a million objects that stay


LONGEST = (
    "tuning", "kills", "lanes", "plugins", "studies", "check", "sweep", "equivalence", "runner", "real_data",
    "synthetic",
)  # fmt: skip
"""Files that take a minute or more. They run first, so that no process is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish() -> None:
    gc.freeze()  # as `bench.process` does
    atexit.register(gc.unfreeze)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_collect() -> Iterator[None]:
    """Freeze what a file has imported and cached, or each full collection in later files visits it again."""
    yield
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int:
    """Three processes for two processors, since tests wait: for other processes, signals and limits."""
    return 3 * len(os.sched_getaffinity(0)) // 2


class Answer(NamedTuple):
    """The result of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default store of commands: a fresh folder for each test."""
    folder = tmp_path / "runs"
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it, and tables would wrap
    monkeypatch.setenv("BENCH_STORE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a test registers, since any tests may share a process."""
    for registry in (TASKS, OPTIMIZERS):
        monkeypatch.setattr(registry, "built_in", dict(registry.built_in))


@pytest.fixture(autouse=True)
def usual_numbers() -> Iterator[None]:
    """Restore the default dtype after each test; two trainings in two threads would leave another one."""
    yield
    assert torch.get_default_dtype() == torch.float32


@pytest.fixture(autouse=True)
def usual_rank() -> Iterator[None]:
    """Restore the rank after each test: Lightning keeps that of the last Trainer, and loggers write only on rank 0."""
    before = getattr(rank_zero_only, "rank", 0)
    yield
    rank_zero_only.rank = before


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of tokenised texts: a fresh folder for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("BENCH_CACHE", str(folder))
        yield folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command line with these words."""

    def call(*words: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        assert isinstance(stop.value.code, int)
        return Answer(stop.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def fake_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a generated MNIST of 60 training, 20 validation and 20 test images."""
    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    resources = []
    for part, n in (("train", 80), ("t10k", 20)):
        labels = draw.integers(0, 10, n, dtype=np.uint8)
        images = draw.integers(0, 64, (n, 28, 28), dtype=np.uint8)
        images[np.arange(n), 2 * labels + 4] = 255  # a bright line, lower for greater digits
        for name, array in ((f"{part}-images-idx3-ubyte.gz", images), (f"{part}-labels-idx1-ubyte.gz", labels)):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            content = header + array.tobytes()
            (folder / name).write_bytes(gzip.compress(content, mtime=0))
            resources.append((name.removesuffix(".gz"), hashlib.md5(content).hexdigest()))
    for name, digest in resources:
        monkeypatch.setitem(MNIST.md5, name, digest)
    monkeypatch.setattr("tasks.vision.images.MNISTData.n_val", 20)
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def real_data() -> Path:
    """The folder with the real MNIST and CIFAR-10."""
    return folder_with("MNIST/raw/train-images-idx3-ubyte.gz", "cifar-10-batches-py/test_batch")


@pytest.fixture
def real_text() -> Path:
    """The folder with the real MNLI and SST-2."""
    return folder_with("mnli/train.parquet", "mnli/validation_matched.parquet", "sst2/validation.parquet")


def folder_with(*names: str) -> Path:
    """The folder of the data; skips the test, with the reason, if a file is missing."""
    folder = Path(os.environ.get("BENCH_DATA", "data"))
    for name in names:
        if not (folder / name).is_file():
            pytest.skip(f"no real data: {name} is not in {folder.resolve()}; name its folder with BENCH_DATA")
    return folder


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each function that could be recorded was, however slow it is (`bench.lanes.replay`)."""
    from bench.lanes import replay

    found: list[bool] = []
    record = replay._recorded

    def noted(plain: Any, *tensors: Any) -> Any:
        made = record(plain, *tensors)
        found.append(made is not plain)
        return made

    monkeypatch.setattr(replay, "_recorded", noted)
    monkeypatch.setattr("bench.lanes.replay.SLOW_SECONDS", 10)
    return found
