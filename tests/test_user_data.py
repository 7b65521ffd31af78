"""User tasks: from a file with a function that returns images or rows to a name on the boards."""

import gzip
import re
import shlex
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.config.run_config import resolve
from tasks import DataError, image_task, text_task
from tasks.core.order import split_hash, validation_rows
from tasks.vision.images import read_idx
from tests.stored import Store
from tests.tiny import ROOT

GUIDE = (ROOT / "docs/guides/task.md").read_text("utf-8")
FASHION = re.findall(r"^```python fashion.py\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)[0]
COMMANDS = re.findall(r"^```sh run task\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)[0].splitlines()
SMALL = ("--task.depth", 1, "--task.mlp_width", 8, "--task.embed_dim", 8, "--task.num_heads", 1)
FIT = ("fit", "--task", "fashion.py:SPEC", "--opt", "adamw", "--trainer.max_steps", 2, "--device", "cpu", *SMALL)


def write_idx(path: Path, array: Any) -> None:
    raw = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the guide's file, and a data folder with a fake Fashion-MNIST."""
    folder = tmp_path / "data/FashionMNIST/raw"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for part, n in (("train", 200), ("t10k", 40)):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", draw.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", draw.integers(0, 10, n, dtype=np.uint8))
    (tmp_path / "fashion.py").write_text(FASHION)
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.deep
def test_the_guides_commands_work_as_they_stand(cli, here: Path, store: Path) -> None:
    assert len(FASHION.splitlines()) < 30
    said = []
    for command in COMMANDS:
        answer = cli(*shlex.split(command)[1:])
        assert answer.code == 0, answer.err
        said.append(answer.out)
    assert "fashion_mnist (version 2): ViT-small on Fashion-MNIST" in said[0]
    assert "--task.flip" in said[0]
    assert "fashion.py:SPEC: no fault; 7 pass" in said[1]
    assert "fashion_mnist, max_steps 20" in said[3]


def test_a_board_needs_only_the_record(cli, here: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = cli(*FIT)
    assert answer.code == 0, answer.err
    (run,) = Store(store).runs()
    assert (run.task, run.config["task"]) == ("fashion_mnist", "fashion.py:SPEC")
    assert run.run_id.startswith("fashion.SPEC-adamw-")
    assert re.fullmatch(r"file [0-9a-f]{12}", str(run.versions["task_package"]))
    assert run.facts["validation"] == split_hash(200, 20, "fashion_mnist")
    assert re.fullmatch(r"[0-9a-f]{16}", run.facts["samples"])
    (here / "fashion.py").unlink()
    (elsewhere := here / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("fashion_mnist", "fashion.py:SPEC"):
        board = cli("leaderboard", "--board", "quality", "--task", name, "--store", store)
        assert board.code == 0, board.err
        assert "fashion_mnist, depth 1" in board.out
        assert run.run_id in cli("list", "runs", "--task", name, "--store", store).out
    assert "fashion_mnist: test accuracy" in cli("show", run.run_id, "--store", store).out
    wrong = cli("leaderboard", "--task", "fashion_mnst", "--store", store)
    assert "did you mean 'fashion_mnist'" in wrong.err


def test_a_changed_file_is_another_task(cli, here: Path, store: Path) -> None:
    assert cli(*FIT).code == 0
    first = resolve({"task": "fashion.py:SPEC", "opt": "adamw"}).run_id
    (here / "fashion.py").write_text(FASHION + "# changed\n")
    assert resolve({"task": "fashion.py:SPEC", "opt": "adamw"}).run_id != first
    assert cli(*FIT, "--seed", 1).code == 0
    board = cli("leaderboard")
    assert board.code == 2
    assert "fashion_mnist, depth 1" in board.err
    assert "has runs of several versions of task_package: file " in board.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no file fashion.py"),
        ("SPEC = 3", "fashion.py:SPEC is of type int; a task is a tasks.TaskSpec"),
        (
            FASHION.replace("classes=10", "classes=5"),
            "which is not in [0, 4]; correct it, or set the number of classes",
        ),
        (FASHION.replace("FashionMNIST/raw", "nowhere"), "missing data: train-images-idx3-ubyte.gz expected in"),
        (FASHION.replace("classes=10", "classes=10, n_vla=3"), "unexpected keyword argument 'n_vla'"),
    ],
)
def test_faults_of_a_task_are_reported_in_one_line(
    cli, here: Path, store: Path, text: str | None, message: str
) -> None:
    (here / "fashion.py").unlink()
    if text is not None:
        (here / "fashion.py").write_text(text)
    answer = cli(*FIT)
    assert answer.code == 2, answer.out
    assert answer.err.splitlines()[-1].startswith("bench: error: ")
    assert message in answer.err.splitlines()[-1]
    assert not list(Store(store).runs())


IMAGES, LABELS = np.zeros((30, 8, 8), np.uint8), np.arange(30) % 3


def image_data(train: Any, test: Any = (IMAGES, LABELS), **how: Any) -> Any:
    spec = image_task("mine", lambda root: {"train": train, "test": test}, classes=3, **how)
    return spec.data_cls(Path("data"))


def test_arrays_become_images_with_the_published_split() -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (50, 6, 8, 3), dtype=np.uint8), draw.integers(0, 3, 50)
    data = image_data((images, labels), (images[:4], labels[:4].tolist()))
    held_out, rest = validation_rows(50, 5, "mine")
    assert data.sizes == {"train": 45, "val": 5, "test": 4}
    assert data.image_shape == (3, 6, 8)
    for split, rows in (("train", rest), ("val", held_out)):
        x, y = data.batch(split, slice(None))
        assert np.array_equal(((x + 1) * 127.5).round().numpy(), images[rows].transpose(0, 3, 1, 2))
        assert y.tolist() == labels[rows].tolist()
    assert image_data((images, labels), (images, labels), n_val=7).sizes["val"] == 7


@pytest.mark.parametrize(
    ("train", "how", "message"),
    [
        ((IMAGES.astype(np.float32), LABELS), {}, r"train images are float32 of shape \(30, 8, 8\); make them uint8"),
        ((np.zeros((30, 3, 8, 8), np.uint8), LABELS), {}, r"of shape \(30, 3, 8, 8\); .* with C in \[1, 4\]"),
        ((IMAGES, LABELS / 2), {}, r"labels that are float64 of shape \(30,\); give an integer"),
        ((IMAGES, LABELS + 1), {}, r"train row 2 has the label 3, which is not in \[0, 2\]"),
        ((IMAGES, LABELS[:29]), {}, r"train has 30 images, and labels that are int64 of shape \(29,\)"),
        ((IMAGES, LABELS), {"n_val": 30}, r"n_val=30 of 30 training images .* must be in \[1, 29\]"),
        ((IMAGES[:, :7], LABELS), {}, r"test images are \[1, 8, 8\] and train images \[1, 7, 8\]"),
        (IMAGES, {}, "train is of type ndarray; give a pair of images and labels"),
    ],
)
def test_illegal_images_are_refused(train: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"mine: .*{message}"):
        image_data(train, **how)


def test_idx_files_are_read_packed_or_not(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "plain", array)
    write_idx(tmp_path / "packed.gz", array)
    for name in ("plain", "plain.gz", "packed", "packed.gz"):
        assert np.array_equal(read_idx(tmp_path / name), array)
    for content, why in ((b"\0\0\x0d\1", "begins with 00000d01"), (b"\0\0\x08\1\0\0\0\5ab", "reshape")):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(DataError, match=rf"damaged data file .*bad \(.*{why}"):
            read_idx(tmp_path / "bad")
    with pytest.raises(DataError, match=r"missing data: none expected in .*--data DIR"):
        read_idx(tmp_path / "none")


ROWS = """
from tasks import text_task

WORDS = (("good", "fine"), ("bad", "poor"))
def rows(root):
    train = [(f"a {WORDS[i % 2][i % 3 % 2]} film {i}", i % 2) for i in range(60)]
    return {"train": train, "test": [(f"that was {WORDS[i % 2][0]} {i}", i % 2) for i in range(20)]}

SPEC = text_task("reviews", rows, classes=2, budget={"max_steps": 2})
"""


def test_rows_train_a_small_bert(cli, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.py").write_text(ROWS)
    size = ("--task.width", 16, "--task.num_heads", 2, "--device", "cpu")
    answer = cli("fit", "--task", "rows.py:SPEC", "--opt", "adamw", *size)
    assert answer.code == 0, answer.err
    (run,) = Store(store).runs()
    assert (run.task, run.part, run.steps) == ("reviews", None, 2)
    assert run.facts["validation"] == split_hash(60, 6, "reviews")


def text_data(train: Any, test: Any = (("a", 0),)) -> Any:
    return text_task("mine", lambda root: {"train": train, "test": test}, classes=2).data_cls(
        Path("data"), scratch=True
    )


def test_more_than_256_classes_keep_their_labels() -> None:
    rows = [(f"text {i}", i) for i in range(300)]
    spec = text_task("many", lambda root: {"train": rows, "test": rows}, classes=300)
    data: Any = spec.data_cls(Path("data"), scratch=True)
    assert sorted(data.batch("test", slice(None)).labels.tolist()) == list(range(300))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([("a", 0)] * 9, "there are 9 training and 1 test rows, n_val=5000; at least 10, 1 and 1 are needed"),
        ([("a", 0)] * 10 + [("a", 2)], r"train row 10 is \('a', 2\); make all rows .*, label < 2"),
        ([("a", 0)] * 10 + [(3, 0)], r"train row 10 is \(3, 0\); make all rows \(text, label\)"),
        ([("a", "b", 0)] * 10, r"test row 0 is \('a', 0\); make all rows"),
        ([3] * 10, "train row 0 is 3; make all rows"),
    ],
)
def test_illegal_rows_are_refused(train: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"mine: {message}"):
        text_data(train)


@pytest.mark.parametrize(
    ("derived", "message"),
    [
        ('{"init_std": lambda options: "x"}', "--task.init_std 'x': it takes a number"),
        ('{"init_std": lambda options: options["nope"]}', "derived['init_std'] raises KeyError: 'nope'"),
    ],
)
def test_faulty_derived_options_are_one_line(cli, here: Path, store: Path, derived: str, message: str) -> None:
    spec = f"""
from tasks import text_task


def rows(root):
    return {{"train": [("good", 1), ("bad", 0)] * 9, "test": [("fine", 1)]}}


SPEC = text_task("reviews", rows, classes=2, derived={derived})
"""
    (here / "faulty.py").write_text(spec)
    answer = cli("fit", "--task", "faulty.py:SPEC", "--opt", "sgd", "--store", store, "--dry-run")
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    assert message in answer.err
