"""Texts: tokens, batches, their order, the cache, and faulty files."""

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from torch import Tensor

from bench.commands.data import states
from bench.commands.doctor import data_diagnosis
from bench.config.options import imported_options
from bench.config.run_config import resolve
from bench.run_summary import result_lines
from bench.train.runner import run
from tasks import TASKS, DataError
from tasks.core.order import BatchOrder, split_hash, validation_rows
from tasks.language.labelled_text import CivilCommentsData, MNLIData, TextData
from tasks.language.sources import CIVIL_COMMENTS, JIGSAW, MNLI, SST2, TextSource
from tasks.language.tokenizer import load_tokenizer, train_word_pieces
from tests.conftest import Cli
from tests.stored import read_curve

CPU = torch.device("cpu")
SMALL = {"scratch": True, "vocab": 150, "max_length": 24}


def sentence(draw: np.random.Generator, most: int = 15) -> str:
    """A few words, some of which share word pieces."""
    syllables = ["ba", "do", "kin", "mer", "sta", "lu", "ré"]
    words = ["".join(draw.choice(syllables, draw.integers(1, 4))) for _ in range(draw.integers(1, most))]
    return " ".join(words).capitalize() + "."


def write(path: Path, columns: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path)
    return path


def pairs(n: int, seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "premise": [sentence(draw) for _ in range(n)],
        "hypothesis": [sentence(draw, 6) for _ in range(n)],
        "label": draw.integers(0, 3, n),
        "idx": np.arange(n, dtype=np.int32),
    }


def write_mnli(root: Path, train: Mapping[str, Any] | None = None) -> Path:
    for seed, (name, n) in enumerate({"train": 80, "validation_matched": 21, "validation_mismatched": 13}.items()):
        write(root / "mnli" / f"{name}.parquet", train if train and name == "train" else pairs(n, seed))
    return root


def write_toxicity(root: Path, folder: str, test: str, **columns: Any) -> Path:
    draw = np.random.default_rng(0)
    for name in ("train", test):
        rows: dict[str, Any] = {
            "text": [sentence(draw) for _ in range(20)],
            "toxicity": pa.array([0.5, 0.49] * 10, pa.float32()),
        }
        write(root / folder / f"{name}.parquet", rows | columns)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_mnli(tmp_path / "data")


@pytest.fixture
def data(root: Path) -> MNLIData:
    return MNLIData(root, **SMALL)


def rows_of(table: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    return list(zip(table["premise"], table["hypothesis"], table["label"].tolist(), strict=True))


def test_a_batch_holds_what_the_tokenizer_makes_of_the_files_rows(data: MNLIData) -> None:
    held_out, rest = validation_rows(80, 8, MNLI.salt)
    source = rows_of(pairs(80, 0))
    expected = {
        "train": [source[i] for i in rest.tolist()],
        "val": [source[i] for i in held_out.tolist()],
        "matched": rows_of(pairs(21, 1)),
        "mismatched": rows_of(pairs(13, 2)),
    }
    assert data.sizes == {split: len(rows) for split, rows in expected.items()}
    assert (data.num_classes, data.report, [*data.also]) == (3, "matched", ["mismatched"])
    for split, rows in expected.items():
        if split != "train":  # sorted by length
            rows.sort(key=lambda row: len(data.tokenizer.encode(row[0], row[1]).ids))
        batch = data.batch(split, slice(0, len(rows)))
        assert batch.labels.tolist() == [label for *_, label in rows]
        for i, (premise, hypothesis, _) in enumerate(rows):
            tokens = data.tokenizer.encode(premise, hypothesis)
            size = len(tokens.ids)
            assert batch.ids[i].tolist() == tokens.ids + [data.pad_id] * (batch.ids.shape[1] - size)
            assert batch.types[i, :size].tolist() == tokens.type_ids
            assert (batch.mask[i].sum(), batch.mask[i, :size].all(), batch.types[i, size:].any()) == (size, True, False)
        assert batch.ids.shape[1] == max(len(data.tokenizer.encode(p, h).ids) for p, h, _ in rows)
    assert data.lengths.tolist() == [len(data.tokenizer.encode(p, h).ids) for p, h, _ in expected["train"]]
    assert int(data.batch("train", slice(None)).ids.max()) < data.vocab_size <= 150


def test_a_toxic_comment_is_one_that_half_of_its_raters_call_so(tmp_path: Path) -> None:
    data = CivilCommentsData(write_toxicity(tmp_path, "civil_comments", "test"), **SMALL)
    assert sorted(data.batch("test", slice(None)).labels.tolist()) == [0] * 10 + [1] * 10
    assert data.part == "20 of 1,804,874 rows of train.parquet; 20 of 97,320 rows of test.parquet"


def test_runs_on_the_stand_in_and_on_the_real_data_are_two(tmp_path: Path, store: Path) -> None:
    words = {
        "task": "civil_comments",
        "opt": "sgd",
        "data": tmp_path,
        "store": store,
        "trainer.max_steps": 1,
        "trainer.batch_size": 4,
        "device": "cpu",
        "task.layers": 1,
        "task.width": 16,
    } | {f"task.{name}": value for name, value in SMALL.items()}
    nothing_there = resolve(words)
    write_toxicity(tmp_path, "jigsaw_toxicity", "test_balanced")
    on_stand_in = run(resolve(words), progress=False)
    write_toxicity(tmp_path, "civil_comments", "test")
    on_real = run(resolve(words), progress=False)
    assert on_stand_in.config["task_options"]["dataset"] == "jigsaw_toxicity"
    assert on_real.run_id == nothing_there.run_id != on_stand_in.run_id
    assert ["stand-in" in str(result.part) for result in (on_stand_in, on_real)] == [True, False]
    assert any("stand-in" in line for line in result_lines(on_stand_in, store))
    assert resolve(words | {"task.dataset": "jigsaw_toxicity"}).run_id == on_stand_in.run_id
    assert [TASKS[name].dataset_in(tmp_path) for name in ("civil_comments", "mnli")] == ["civil_comments", None]


def test_parts_of_the_data_are_prefixes_and_say_so(root: Path, data: MNLIData) -> None:
    some = MNLIData(root, n_train=30, **SMALL)
    assert data.part == (
        "80 of 392,702 rows of train.parquet; 21 of 9,815 rows of validation_matched.parquet;"
        " 13 of 9,832 rows of validation_mismatched.parquet"
    )
    assert some.part == f"{data.part}; 30 of 72 training rows"
    assert some.sizes == data.sizes | {"train": 30}
    for ours, theirs in zip(some.batch("train", slice(None))[:4], data.batch("train", slice(0, 30))[:4], strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(ValueError, match=r"n_train=73 is out of range: it must be in \[1, 72\]"):
        MNLIData(root, n_train=73, **SMALL)


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("source", "rows", "expected"),
    [
        (MNLI, 392_702, "fe3c8a10f840ba49"),
        (MNLI, 87_405, "5f2b6d06294758db"),  # the part in the tests' data
        (SST2, 67_349, "f07b716c77de0027"),
        (CIVIL_COMMENTS, 1_804_874, "e1d48401cb79ad9e"),
        (JIGSAW, 159_571, "263425cfd602204f"),
    ],
)
def test_the_split_is_the_published_one(source: TextSource, rows: int, expected: str) -> None:
    assert split_hash(rows, source.n_val, source.salt) == expected


def random_lengths(n: int, seed: int = 0) -> Tensor:
    """Skewed like real lengths: most rows short, some of maximal length."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, generator=generator) * 0.5 + 3.5).exp().long().clamp(4, 128)


@given(
    n=st.integers(1, 60),
    batch=st.integers(1, 60),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
    with_lengths=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_rows_come_once_an_epoch_at_their_batchs_width(
    n: int, batch: int, seed: int, epoch: int, with_lengths: bool
) -> None:
    lengths = random_lengths(n, seed) if with_lengths else None
    order = BatchOrder(n, min(n, batch), seed, CPU, lengths)
    steps = range(epoch * order.batches_per_epoch, (epoch + 1) * order.batches_per_epoch)
    batches = [order.rows(step) for step in steps]
    rows = torch.cat(batches).tolist()
    assert len(set(rows)) == len(rows) > n - min(n, batch)
    assert set(rows) <= set(range(n))
    widths = [None if lengths is None else int(lengths[rows_of_batch].max()) for rows_of_batch in batches]
    assert [order.width(step) for step in steps] == widths


def test_a_vocabulary_is_the_same_every_time_and_has_the_size_that_was_asked_for() -> None:
    draw = np.random.default_rng(0)
    texts = [sentence(draw) + "".join(map(chr, draw.integers(0x4E00, 0x5000, 3))) for _ in range(200)]
    one, *others = (train_word_pieces(texts, 300) for _ in range(4))
    assert all(other.to_str() == one.to_str() for other in others)
    assert sorted(one.get_vocab().values()) == list(range(300))
    assert [one.id_to_token(i) for i in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert one.encode("Bado", "kin.").tokens[0] == "[CLS]"
    assert "##" not in one.decode(one.encode("badokinmer").ids)
    assert one.encode("##b").tokens == ["[CLS]", "[UNK]", "[UNK]", "b", "[SEP]"]  # not the piece within a word


def test_a_tokenizer_is_read_from_either_file_of_a_folder(root: Path, data: MNLIData, tmp_path: Path) -> None:
    vocabulary = sorted(data.tokenizer.get_vocab(), key=data.tokenizer.get_vocab().__getitem__)
    for name, content in (("vocab.txt", "\n".join(vocabulary)), ("tokenizer.json", data.tokenizer.to_str())):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(content, "utf-8")
        (folder / "config.json").write_text('{"model_type": "bert"}')
        for scratch in (True, False):
            again = MNLIData(root, model=str(folder), scratch=scratch, max_length=24)
            assert again.vocab_size == data.vocab_size
            assert torch.equal(again.batch("train", slice(None)).ids, data.batch("train", slice(None)).ids)
    cased = tmp_path / "vocab"
    (cased / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert load_tokenizer(str(cased)).encode("Ba").ids != data.tokenizer.encode("Ba").ids


def test_tokenizers_that_are_missing_empty_or_damaged_are_refused(tmp_path: Path) -> None:
    five = Tokenizer.from_str(train_word_pieces(["a b"], 100).to_str())
    (tmp_path / "five").mkdir()
    five.save(str(tmp_path / "five" / "tokenizer.json"))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "tokenizer.json").write_text("{")
    (tmp_path / "none").mkdir()
    for name, message in (
        ("five", r"has \d+ tokens, fewer than 100: its vocabulary is missing"),
        ("torn", "torn cannot be read"),
        ("none", "there is no tokenizer in"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            load_tokenizer(str(tmp_path / name))
        assert "\n" not in str(caught.value)


def test_a_tokenizer_comes_from_the_hub(root: Path, data: MNLIData, tmp_path: Path, monkeypatch: Any) -> None:
    data.tokenizer.save(str(tmp_path / "tokenizer.json"))
    local = []

    def download(name: str, *, local_files_only: bool, **_: Any) -> str:
        local.append(local_files_only)
        if local_files_only:
            raise OSError("not in the cache")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: None)
    assert load_tokenizer("bert-some").get_vocab_size() == data.vocab_size
    assert local == [True, False]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were tokenised, in order."""
    seen, encode = [], TextData._encode

    def noted(self: Any, split: str, table: Any) -> Any:
        seen.append(self._files[split][0])
        return encode(self, split, table)

    monkeypatch.setattr(TextData, "_encode", noted)
    return seen


def tokens_of(data: TextData) -> list[list[int]]:
    return [data.batch(split, slice(None)).ids.tolist() for split in data.sizes]


def test_texts_are_tokenised_once(root: Path, own_cache: Path, encodings: list[Path]) -> None:
    first = MNLIData(root, **SMALL)
    assert len(encodings) == 3
    assert tokens_of(MNLIData(root, **SMALL)) == tokens_of(first)
    assert len(encodings) == 3
    MNLIData(root, **SMALL | {"max_length": 16})
    MNLIData(root, **SMALL | {"vocab": 130})
    assert len(encodings) == 9
    write(root / "mnli" / "train.parquet", pairs(80, 5))
    MNLIData(root, **SMALL)
    assert len(encodings) == 12  # another vocabulary, so all are tokenised again
    assert not list(own_cache.rglob("*.tmp"))


@pytest.mark.parametrize("harm", ["cut", "gone", "torn"])
def test_a_damaged_cache_is_made_again(harm: str, root: Path, own_cache: Path, encodings: list[Path]) -> None:
    expected = tokens_of(MNLIData(root, **SMALL))
    for entry in (own_cache / "tokens").glob("*.pt"):
        if harm == "gone":
            entry.unlink()
        else:
            entry.write_bytes(entry.read_bytes()[:-100] if harm == "cut" else b"[1")
    del encodings[:]
    assert tokens_of(MNLIData(root, **SMALL)) == expected
    assert len(encodings) == 3
    MNLIData(root, **SMALL)
    assert len(encodings) == 3


def test_several_at_once_tokenise_once(root: Path, own_cache: Path, encodings: list[Path]) -> None:
    made: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: made.append(tokens_of(MNLIData(root, **SMALL)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert all(tokens == made[0] for tokens in made)
    assert len(encodings) == 3


def test_a_cache_on_a_full_disk_is_an_error_of_the_disk(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def save_there(entry: Any, _: Any) -> None:
        with Path("/dev/full").open("wb") as full:
            save(entry, full)

    monkeypatch.setattr("tasks.core.cache.torch.save", save_there)
    with pytest.raises(OSError, match="No space left on device"):
        MNLIData(root, **SMALL)


def changed(name: str, row: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(columns: dict[str, Any]) -> None:
        columns[name] = [*columns[name]]
        columns[name][row] = value

    return change


def renamed(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(columns: dict[str, Any]) -> None:
        columns[new] = columns.pop(old)

    return change


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no column": (renamed("hypothesis", "second"), r"has no column 'hypothesis', only premise, label, idx, second"),
    "great label": (
        changed("label", 3, 3),
        r"row 3 has the label '3'; it must be one of 0 or entailment, 1 or neutral, 2",
    ),
    "no text": (changed("premise", 9, None), r"row 9 has no text in column 'premise' but None"),
    "no UTF-8": (
        lambda c: c.update(premise=pa.array([b"\xff"] * 80).view(pa.string())),
        "Invalid UTF8",
    ),
    "few rows": (lambda c: c.update({k: v[:9] for k, v in c.items()}), r"train.parquet has 9 rows; at least 10"),
    "no rows": (
        lambda c: c.update(
            {k: pa.array(v[:0], pa.string() if k in ("premise", "hypothesis") else pa.int64()) for k, v in c.items()}
        ),
        r"has 0 rows",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_cannot_be_used_are_named(fault: str, tmp_path: Path, data: MNLIData) -> None:
    change, message = FAULTS[fault]
    data.tokenizer.save(str(tmp_path / "tokenizer.json"))
    columns = pairs(80, 0)
    change(columns)
    with pytest.raises(DataError, match=message) as caught:
        MNLIData(write_mnli(tmp_path / "bad", columns), model=str(tmp_path), max_length=24)
    assert "\n" not in str(caught.value)
    assert "train.parquet" in str(caught.value)


@pytest.mark.parametrize("share", [-0.1, float("nan"), None])
def test_a_share_that_is_none_is_named(share: float | None, tmp_path: Path) -> None:
    wrong = pa.array([0.0] * 11 + [share] + [1.0] * 8, pa.float32())
    with pytest.raises(DataError, match=r"row 11 has toxicity .*; it must be a share in \[0, 1\]"):
        CivilCommentsData(write_toxicity(tmp_path, "civil_comments", "test", toxicity=wrong), **SMALL)


def test_damaged_and_missing_files_are_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "mnli" / "validation_matched.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"damaged data file .*validation_matched.parquet \(.*\); delete it") as caught:
        MNLIData(root, **SMALL)
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        DataError,
        match="missing data: train.parquet, validation_matched.parquet,"
        " validation_mismatched.parquet expected in .*mnli, with the columns premise, hypothesis, label,"
        r" .*\(the package datasets is not installed: .*\); .*--data DIR or BENCH_DATA",
    ):
        MNLIData(tmp_path / "nowhere", **SMALL)


def test_missing_files_come_from_the_hub(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(*names: Any, split: str) -> Any:
        calls.append((*names, split))
        rows = pa.table(pairs(30, 4))
        return SimpleNamespace(to_parquet=lambda path: pq.write_table(rows, path))

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: None)
    (root / "mnli" / "train.parquet").unlink()
    assert MNLIData(root, **SMALL).sizes["train"] == 27
    assert calls == [("nyu-mll/glue", "mnli", "train")]
    assert sorted(path.name for path in (root / "mnli").iterdir()) == [
        "train.parquet",
        "validation_matched.parquet",
        "validation_mismatched.parquet",
    ]


def test_options_that_data_and_model_share_are_alike() -> None:
    for name in ("mnli", "sst2", "civil_comments"):
        of_data, of_module = (imported_options(cls) for cls in (TASKS[name].data_cls, TASKS[name].module_cls))
        shared = of_data.keys() & of_module.keys()
        assert {"model", "scratch"} <= shared
        assert all((of_data[k].type, of_data[k].default) == (of_module[k].type, of_module[k].default) for k in shared)


def test_data_status_and_prepare(cli: Cli, root: Path, own_cache: Path) -> None:
    words = ("--task", "mnli", "--data", root)
    before = cli("data", "status", *words)
    assert before.code == 0
    assert not own_cache.exists()
    assert "train.parquet" in before.out
    assert "80 rows" in before.out
    assert "part of 392,702 rows" in before.out
    options = ("--task.scratch", "true", "--task.vocab", 150, "--task.max_length", 24)
    assert cli("data", "prepare", *words, *options).code == 0
    assert own_cache.exists()
    (root / "mnli" / "train.parquet").write_bytes(b"PAR1")
    (root / "mnli" / "validation_matched.parquet").unlink()
    harmed = cli("data", "status", *words)
    assert harmed.code == 1
    assert "damaged" in harmed.out
    assert "missing" in harmed.out
    assert data_diagnosis(TASKS["mnli"], root).level == "FAIL"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare"], "name a task with --task"),
        (["status", "--task", "synthetic"], "the suite knows no files"),
        (["prepare", "--task", "mnli", "--opt.lr", "1"], "unknown option '--opt.lr'"),
        (["prepare", "--task", "mnli", "--task.max_length", "7"], "--task.max_length=7 is out of range"),
    ],
)
def test_requests_that_cannot_be_met_are_one_line(cli: Cli, words: list[str], message: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    answer = cli("data", *words)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.numeric
def test_a_run_reports_both_validation_sets_and_micro_batches_change_nothing(root: Path, store: Path) -> None:
    words = {
        "task": "mnli",
        "opt": "adamw",
        "data": root,
        "store": store,
        "trainer.max_steps": 6,
        "trainer.batch_size": 12,
        "precision": "64-true",
        "task.layers": 1,
        "task.width": 16,
        "task.dropout": 0.2,
    } | {f"task.{name}": value for name, value in SMALL.items()}
    results = [run(resolve(words | more), progress=False) for more in ({}, {"trainer.micro_batch_size": 5})]
    curves = [np.array(read_curve(store / result.run_id))[:, 1] for result in results]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-9)
    for result in results:
        assert result.status == "completed"
        assert result.split == "matched"
        assert result.metrics["final"].keys() == {"loss", "accuracy", "mismatched"}
        assert result.metrics["best"]["mismatched"].keys() == {"loss", "accuracy"}
        (line, *_) = result_lines(result, store)
        assert f"matched accuracy {result.final:.4g}" in line
        assert f"mismatched {result.metrics['final']['mismatched']['accuracy']:.4g}" in line


def test_real_files_are_known_as_whole_or_part(real_text: Path) -> None:
    files = {file.path.name: (file.state, file.size) for file in states(TASKS["mnli"], real_text)}
    assert files["validation_matched.parquet"] == ("whole", "9,815 rows")
    state, size = files["train.parquet"]
    assert state == ("whole" if size == "392,702 rows" else "part of 392,702 rows")
    assert [file.state for file in states(TASKS["sst2"], real_text)] == ["whole", "whole"]
