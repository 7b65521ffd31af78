"""Data as people have them: each layout reads as the official files do, or the message names what is wrong."""

import bz2
import gzip
import json
import lzma
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tasks.core.files import DataError
from tasks.language.corpus import CorpusData
from tasks.language.labelled_text import MNLIData, SST2Data
from tasks.vision.images import CIFAR10Data, MNISTData
from tasks.vision.sources import CIFAR10, ImageSource
from tests.conftest import Cli
from tests.tiny_lm import decoded

SMALL: dict[str, Any] = {"scratch": True, "vocab": 120, "max_length": 24}
WORDS = ("negative", "positive")
SENTENCES = [f'a {"fine" if i % 2 else "dull"} film number {i * i % 17} "quoted' for i in range(40)]
NLI = ("entailment", "neutral", "contradiction")


def test_mnist_is_read_extracted_or_compressed_again_wherever_its_folder_is(fake_mnist: Path, tmp_path: Path) -> None:
    usual = MNISTData(fake_mnist)
    raw = fake_mnist / "MNIST" / "raw"
    for name in ("t10k-labels-idx1-ubyte", "train-images-idx3-ubyte"):
        (raw / name).write_bytes(content := gzip.decompress((raw / f"{name}.gz").read_bytes()))
        (raw / f"{name}.gz").unlink()
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(gzip.decompress((raw / "train-labels-idx1-ubyte.gz").read_bytes()), 1, mtime=5)
    )
    for root in (fake_mnist, fake_mnist / "MNIST", raw):
        assert MNISTData(root).facts() == usual.facts()
    (raw / "train-images-idx3-ubyte").write_bytes(content[:-1] + b"x")
    with pytest.raises(DataError, match=r"damaged data file .*train-images-idx3-ubyte: "):
        MNISTData(fake_mnist)


@pytest.mark.parametrize(
    ("place", "pack"),
    [
        ("MNIST/raw/{}", gzip.compress),
        ("MNIST/raw/{}.gz", bytes),
        ("mnist/{}.GZ", gzip.compress),
        ("{0}/{0}", bytes),
        ("{}", bytes),
    ],
)
def test_mnist_is_known_by_its_content(fake_mnist: Path, place: str, pack: Callable[[bytes], bytes]) -> None:
    usual = MNISTData(fake_mnist)
    for path in [*(fake_mnist / "MNIST/raw").iterdir()]:
        content = gzip.decompress(path.read_bytes())
        path.unlink()
        target = fake_mnist / place.format(path.stem.replace("-idx", ".idx"))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(pack(content))
    assert MNISTData(fake_mnist).facts() == usual.facts()


def test_other_compressed_images_are_refused_by_name(fake_mnist: Path, cli: Cli) -> None:
    path = fake_mnist / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.rename(path.with_suffix(".xz"))
    path.with_suffix(".xz").write_bytes(lzma.compress(b"any"))
    answer = cli("data", "status", "--task", "mnist", "--data", fake_mnist)
    assert answer.code == 1
    assert "train-images-idx3-ubyte.xz is compressed (xz); decompress it" in answer.out


def test_cifar10_is_read_wherever_its_files_are(real_data: Path, tmp_path: Path) -> None:
    (tmp_path / "CIFAR10").mkdir()
    for path in (real_data / "cifar-10-batches-py").iterdir():
        (tmp_path / "CIFAR10" / path.name).symlink_to(path.resolve())
    assert CIFAR10Data(tmp_path, n_train=10).sizes == {"train": 10, "val": 5000, "test": 10_000}


def test_cifar10_is_found_in_a_folder_of_its_archive(real_data: Path, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python").mkdir()
    (tmp_path / "cifar-10-python" / "cifar-10-batches-py").symlink_to((real_data / "cifar-10-batches-py").resolve())
    for root in (tmp_path, real_data / "cifar-10-batches-py"):
        CIFAR10.require(root)
        assert all(path.is_file() for path in CIFAR10.files(root).values())


@pytest.mark.parametrize(("member", "kind"), [("./mine/a", 0), ("/else/mine/a", 0), ("mine/b", 0), ("mine/a", 1)])
def test_members_of_an_archive_are_found_by_name(tmp_path: Path, member: str, kind: int) -> None:
    source = ImageSource("mine", {"a": ""}, "none", "mine.tar.gz")
    with tarfile.open(tmp_path / "mine.tar", "w") as archive:
        info = tarfile.TarInfo(member)
        info.type, info.linkname = (tarfile.SYMTYPE, "/etc/passwd") if kind else (tarfile.REGTYPE, "")
        archive.addfile(info)
    if kind or member.endswith("b"):
        with pytest.raises(DataError, match=r"damaged archive .*mine\.tar \(it has no a in mine\)"):
            source.require(tmp_path)
    else:
        source.require(tmp_path)
        assert (tmp_path / "mine" / "a").is_file()


@pytest.mark.parametrize("cut", [0, 20], ids=["whole", "truncated"])
def test_an_archive_beside_its_folder_is_unpacked(tmp_path: Path, cut: int) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_bytes(np.random.default_rng(0).bytes(5000))
    source = ImageSource("mine", {"a": ""}, "none", "mine.tar.gz")
    with tarfile.open(tmp_path / "mine.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "mine", "mine")
    content = (tmp_path / "mine" / "a").read_bytes()
    shutil.rmtree(tmp_path / "mine")
    path = tmp_path / "mine.tar.gz"
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) - cut])
    if cut:
        with pytest.raises(DataError, match=r"damaged archive .*mine\.tar\.gz \("):
            source.require(tmp_path)
        assert not (tmp_path / "mine").exists()
        return
    source.require(tmp_path)
    assert (tmp_path / "mine" / "a").read_bytes() == content


def official(root: Path, sentences: list[str], labels: list[Any]) -> None:
    for name in ("train", "validation"):
        path = root / "sst2" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"sentence": sentences, "label": labels}), path)


def in_shards(root: Path, sentences: list[str], labels: list[Any]) -> None:
    (root / "sst2" / "data").mkdir(parents=True)
    for name, count in (("train", 3), ("validation", 1)):
        for i in range(count):
            rows = slice(i * len(labels) // count, (i + 1) * len(labels) // count)
            table = pa.table({"sentence": sentences[rows], "label": labels[rows], "idx": [1] * len(labels[rows])})
            pq.write_table(table, root / "sst2" / "data" / f"{name}-{i:05}-of-{count:05}.parquet")


def as_glue(root: Path, sentences: list[str], labels: list[Any]) -> None:
    (root / "SST-2").mkdir(parents=True)
    rows = [f"{sentence}\t{label}" for sentence, label in zip(sentences, labels, strict=True)]
    for name in ("train", "dev"):
        (root / "SST-2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows, ""]))


def as_lines(root: Path, sentences: list[str], labels: list[Any]) -> None:
    (root / "sst2").mkdir(parents=True)
    words = [{"sentence": s, "label": WORDS[i].title()} for s, i in zip(sentences, labels, strict=True)]
    rows = [json.dumps(row) for row in [*words, {"sentence": "without a label", "label": "-"}]]
    (root / "sst2" / "train.jsonl.gz").write_bytes(gzip.compress("\r\n".join(rows).encode("utf-8-sig")))
    (root / "sst2" / "validation.json").write_text(json.dumps(words))


def as_csv(root: Path, sentences: list[str], labels: list[Any]) -> None:
    (root / "sst2").mkdir(parents=True)
    rows = ['"' + s.replace('"', '""') + f'",{label}' for s, label in zip(sentences, labels, strict=True)]
    for name in ("train", "validation"):
        (root / "sst2" / f"{name}.csv").write_text("\n".join(["sentence,label", *rows, "hidden,-1"]))


def with_hashes(root: Path, sentences: list[str], labels: list[Any]) -> None:
    in_shards(root, sentences, labels)
    for i, path in enumerate((root / "sst2" / "data").iterdir()):
        path.rename(path.with_name(f"{path.stem}-{i:016x}.parquet"))


def as_renamed(root: Path, sentences: list[str], labels: list[Any]) -> None:
    """Names of folders, files and columns in other case, `val` for `validation`, text that is not a plain string."""
    (root / "GLUE" / "SST2").mkdir(parents=True)
    table = pa.table({"Label": [float(i) for i in labels] + [-1.0], "Sentence": [*sentences, "hidden"]})
    for name in ("Train", "Val"):
        texts = table["Sentence"].cast(pa.string_view() if name == "Val" else pa.large_string())
        pq.write_table(table.set_column(1, "Sentence", texts), root / "GLUE" / "SST2" / f"{name}.PARQUET")


def as_lists(root: Path, sentences: list[str], labels: list[Any]) -> None:
    """JSON lists whose first row lacks the label, and Parquet under another name."""
    official(root, sentences, labels)
    (root / "sst2" / "train.parquet").unlink()
    (root / "sst2" / "validation.parquet").rename(root / "sst2" / "dev.csv")
    rows = [{"sentence": "x"}, *({"sentence": s, "label": i} for s, i in zip(sentences, labels, strict=True))]
    (root / "sst2" / "train.json").write_text(json.dumps(rows))


@pytest.mark.parametrize("layout", [in_shards, as_glue, as_lines, as_csv, with_hashes, as_renamed, as_lists])
def test_texts_read_the_same_in_any_layout(layout: Callable[..., None], tmp_path: Path) -> None:
    labels = [i % 2 for i in range(40)]
    official(tmp_path / "usual", SENTENCES, labels)
    layout(tmp_path / "other", SENTENCES, labels)
    usual, other = (SST2Data(tmp_path / name, **SMALL) for name in ("usual", "other"))
    assert usual.part == other.part
    for split in ("train", "val", "validation"):
        rows = slice(0, usual.sizes[split])
        for one, two in zip(usual.batch(split, rows)[:4], other.batch(split, rows)[:4], strict=True):
            assert torch.equal(one, two)


def mnli_rows(n: int) -> list[dict[str, Any]]:
    row = {"pairID": "1n", "genre": "fiction"}
    texts = [{"sentence1": f'it "is {i}', "sentence2": f"is it {i % 3}?", "gold_label": NLI[i % 3]} for i in range(n)]
    return [row | text for text in texts] + [row | {"sentence1": "a", "sentence2": "b", "gold_label": "-"}]


def as_tsv(rows: list[dict[str, Any]]) -> str:
    return "\n".join(["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows), ""])


def as_json_lines(rows: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, rows))


MNLI_FILES = {
    "MNLI": (as_tsv, ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv")),
    "multinli_1.0": (
        as_json_lines,
        tuple(f"multinli_1.0_{n}.jsonl" for n in ("train", "dev_matched", "dev_mismatched")),
    ),
}


@pytest.mark.parametrize("folder", MNLI_FILES)
def test_mnli_is_read_as_its_authors_and_glue_publish_it(folder: str, tmp_path: Path, cli: Cli) -> None:
    write, names = MNLI_FILES[folder]
    (tmp_path / folder).mkdir()
    for name in names:
        (tmp_path / folder / name).write_text(write(mnli_rows(30)))
    data = MNLIData(tmp_path, **SMALL)
    assert data.sizes == {"train": 27, "val": 3, "matched": 30, "mismatched": 30}
    assert sorted(data.batch("matched", slice(0, 30)).labels.tolist()) == [0] * 10 + [1] * 10 + [2] * 10
    answer = cli("data", "status", "--task", "mnli", "--data", tmp_path)
    assert answer.code == 0
    assert answer.out.count("30 rows, and 1 without a label") == 3
    assert [*data.facts()["unlabelled"].values()] == [1, 1, 1]


def test_texts_that_read_as_dates_stay_texts(tmp_path: Path) -> None:
    sentences = [f"2001-01-{i % 28 + 1:02}" for i in range(40)]
    as_lines(tmp_path, sentences, [0, 1] * 20)
    assert SST2Data(tmp_path / "sst2", **SMALL).sizes == {"train": 36, "val": 4, "validation": 40}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "train.tsv.bz2",
            bz2.compress(b"sentence\tlabel\n"),
            r"train\.tsv\.bz2 is compressed \(bzip2\); decompress it",
        ),
        ("train.tsv", "sentence\tlabel\na\t1\n".encode("utf-16"), r"train\.tsv is not UTF-8 text \(byte \d\)"),
        ("train.jsonl", '{"sentence": "\xe9", "label": 1}'.encode("latin-1"), r"train\.jsonl is not UTF-8 text"),
        ("train.tsv", b"sentence\tlabel\na\tpos\n", r"row 0 has the label 'pos'; .* 1 or positive: rename your labels"),
    ],
)
def test_other_tables_are_refused_by_name(name: str, content: bytes, message: str, tmp_path: Path, cli: Cli) -> None:
    official(tmp_path, SENTENCES, [0, 1] * 20)
    (tmp_path / "sst2" / "train.parquet").unlink()
    (tmp_path / "sst2" / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        SST2Data(tmp_path, **SMALL)
    answer = cli("data", "status", "--task", "sst2", "--data", tmp_path)
    assert answer.code == 1
    assert re.search(message, answer.out)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    in_shards(tmp_path, SENTENCES, [0, 1] * 20)
    (tmp_path / "sst2" / "data" / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(
        DataError, match=r"missing data: train-00001-of-00003\.parquet expected in .*beside other shards"
    ):
        SST2Data(tmp_path, **SMALL)


TEXT = "first line\nsecond líne\n" * 20


def test_a_corpus_beginning_as_other_files_is_text(tmp_path: Path) -> None:
    for start in ("7z is a program\n", "[1]\n", "{no\n"):
        assert "".join(text_of(tmp_path / "a.txt", (start + TEXT).encode()).values()) == start + TEXT
    pq.write_table(pa.table({"text": TEXT.splitlines()}), tmp_path / "b.txt")
    assert "".join(text_of(tmp_path / "b.txt", (tmp_path / "b.txt").read_bytes()).values()) == TEXT


def text_of(path: Path, content: bytes) -> dict[str, str]:
    path.write_bytes(content)
    data = CorpusData(path.parent, corpus=str(path), tokens="byte", length=4)
    return {split: decoded(data.vocabulary, (ids.long() & 0xFFFF).tolist()) for split, ids in data._ids.items()}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mark.txt", b"\xef\xbb\xbf" + TEXT.encode()),
        ("windows.txt", TEXT.replace("\n", "\r\n").encode()),
        ("packed.txt.gz", gzip.compress(TEXT.encode(), mtime=0)),
        ("lines.jsonl", "\n".join(json.dumps({"text": line}) for line in TEXT.splitlines()).encode()),
        ("blank.txt", b"\n\n" + "\n".join(json.dumps({"text": line}) for line in TEXT.splitlines()).encode()),
        ("list.txt", json.dumps([{"text": line} for line in TEXT.splitlines()], indent=1).encode()),
        ("lines.txt", "\n".join(json.dumps({"text": line, "n": 1}) for line in TEXT.splitlines()).encode()),
    ],
)
def test_a_corpus_is_read_as_what_it_is(name: str, content: bytes, tmp_path: Path) -> None:
    assert "".join(text_of(tmp_path / name, content).values()) == TEXT


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", b"PK\x03\x04 and so on", r"a\.zip is compressed \(zip\); decompress it"),
        ("a.txt", TEXT.replace("í", "i").encode("utf-16-le"), r"a\.txt is not UTF-8 text \(byte 1\)"),
        ("a.csv", TEXT.encode("utf-16"), r"a\.csv is not UTF-8 text \(byte \d\)"),
        ("a.txt", b"BZh9 and so on", r"a\.txt is compressed \(bzip2\); decompress it"),
        ("a.txt.gz", gzip.compress(TEXT.encode(), mtime=0)[:-9], r"damaged data file .*a\.txt\.gz"),
        ("a.jsonl", b'{"line": "x"}\n', r"a\.jsonl has no column 'text', only line"),
        ("a.jsonl", b'{"text": "x"\n', r"a\.jsonl is no JSONL table \("),
    ],
)
def test_other_corpora_are_refused_by_name(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        text_of(tmp_path / name, content)
