"""Language modelling: the stream and its rows, vocabularies, faulty files, the decoder."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from bench.config.run_config import RunConfig, resolve
from bench.train.runner import build, run
from tasks import TASKS, DataError
from tasks.language import corpus
from tasks.language.corpus import IGNORED, CorpusData
from tasks.language.lm import LanguageModel
from tasks.language.vocabulary import BYTES, Vocabulary, characters, read_vocabulary, train_byte_pairs
from tests import tiny
from tests.tiny_lm import TinyCorpus, decoded, plain_logits

pytestmark = pytest.mark.numeric

TEXT = "The king shall live.\n\nWhat, \N{PILE OF POO}? naïve\r\nhe said; the king, the king!\n" * 40
SMALL = {"task.layers": 1, "task.width": 8, "task.num_heads": 2, "task.mlp_width": 8, "task.length": 16}


def write_text(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def write_rows(path: Path, rows: list[Any], column: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: rows}), path)
    return path


def lines(n: int, word: str) -> list[str]:
    return [
        f" {word} number {i * i % 17} of a {'red' if i % 3 else 'blue'} {word} . \n" if i % 5 else "" for i in range(n)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data folder with a tiny tiny_shakespeare and a tiny wikitext103 with only a part of its training file."""
    write_text(tmp_path / "data" / "tiny_shakespeare" / "input.txt")
    for name, n, word in (("train_part", 60, "apple"), ("validation", 30, "pear"), ("test", 31, "plum")):
        write_rows(tmp_path / "data" / "wikitext103" / f"{name}.parquet", lines(n, word))
    return tmp_path / "data"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def streams(data: CorpusData) -> dict[str, list[int]]:
    return {split: (ids.long() & 0xFFFF).tolist() for split, ids in data._ids.items()}


@given(n=st.integers(2, 60), T=st.integers(1, 20), size=st.integers(1, 9), pieces=st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_packing_loses_and_repeats_no_token(n: int, T: int, size: int, pieces: int) -> None:
    T = min(T, n - 1)
    data = TinyCorpus()
    stream = (torch.arange(n) * 7 % 12).numpy().astype("uint16")  # a token encodes its position modulo 12
    data._place({"train": stream, "val": stream}, T)
    rows = data.sizes["train"]
    assert rows == -(-(n - 1) // T)
    batches = [data.batch("train", slice(i, i + size)) for i in range(0, rows, size)]
    assert [len(batch.ids) for batch in batches] == [min(size, rows - i) for i in range(0, rows, size)]
    predicted, before = [], []
    for batch in batches:
        assert batch.ids.shape == batch.targets.shape == (len(batch.ids), T)
        assert (
            batch.ids[:, 1:].tolist()
            == batch.targets.where(batch.targets != IGNORED, batch.ids.roll(-1, 1))[:, :-1].tolist()
        )
        counted = batch.targets != IGNORED
        assert torch.equal(batch.sizes[:, 0], counted.sum(1))
        predicted += batch.targets[counted].tolist()
        before += batch.ids[counted].tolist()
    assert predicted == stream[1:].tolist()
    assert before == stream[:-1].tolist()
    assert sum(int(batch.sizes[:, 0].sum()) for batch in batches) == n - 1
    assert float(batches[0].per_row) * rows == pytest.approx(n - 1, rel=1e-12)
    some = torch.randperm(rows)[:pieces]
    for mine, theirs in zip(data.batch("train", some)[:3], data.batch("train", slice(None))[:3], strict=True):
        assert torch.equal(mine, theirs[some])


NO_NUL = st.characters(exclude_characters="\0", codec="utf-8")


@given(text=st.text(NO_NUL, min_size=40, max_size=300), kind=st.sampled_from(["character", "byte", "bpe"]))
@settings(max_examples=40, deadline=None)
def test_the_streams_are_the_text(text: str, kind: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_CHUNK", 7)
        folder = tmp_path_factory.mktemp("text")
        file = write_text(folder / "any.txt", text)
        try:
            data = CorpusData(folder, corpus=str(file), tokens=kind, length=1)
        except DataError as error:  # a repetitive text: of one character, or one byte-pair token
            assume("longer text" not in str(error) and "one distinct character" not in str(error))
            raise
    texts = {split: decoded(data.vocabulary, ids) for split, ids in streams(data).items()}
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    cut = len(text) * 9 // 10
    assert texts == {"train": text[:cut], "val": text[cut:]}
    facts = data.facts()
    assert facts["bytes"] == {split: len(part.encode()) for split, part in texts.items()}
    assert facts["tokens"] == {split: len(ids) for split, ids in streams(data).items()}
    for split, ids in streams(data).items():
        sizes = data.batch(split, slice(None)).sizes.sum(0).tolist()
        assert sizes == [len(ids) - 1, facts["bytes"][split] - int(data.vocabulary.sizes[ids[0]])]


def test_rows_of_files_follow_one_another(root: Path) -> None:
    data = CorpusData(root, corpus="wikitext103", tokens="byte", length=8)
    rows = {"train": lines(60, "apple"), "val": lines(30, "pear"), "test": lines(31, "plum")}
    expected = {split: "".join(texts) for split, texts in rows.items()}
    assert {split: bytes(ids).decode() for split, ids in streams(data).items()} == expected
    assert (data.select, data.report) == ("val", "test")
    assert data.part == (
        "60 of 1,801,350 rows of train.parquet; 30 of 3,760 rows of validation.parquet;"
        " 31 of 4,358 rows of test.parquet"
    )
    write_rows(root / "wiki_quac" / "train.parquet", ["one two"] * 20)
    write_rows(root / "wiki_quac" / "validation.parquet", ["three"] * 5)
    data = CorpusData(root, corpus="wiki_quac", length=3)
    texts = {split: decoded(data.vocabulary, ids) for split, ids in streams(data).items()}
    assert texts == {"train": "one two\n" * 20, "val": "three\n" * 5}
    assert (data.report, data.sizes) == ("val", {"train": 53, "val": 10})


def test_a_part_of_the_validation_split_is_its_first_rows(root: Path) -> None:
    whole = CorpusData(root, corpus="wikitext103", tokens="byte", length=8)
    part = CorpusData(root, corpus="wikitext103", tokens="byte", length=8, n_val=3)
    assert part.sizes == {**whole.sizes, "val": 3}
    for mine, theirs in zip(part.batch("val", slice(None))[:3], whole.batch("val", slice(3))[:3], strict=True):
        assert torch.equal(mine, theirs)
    assert part.facts()["tokens"]["val"] == part.facts()["bytes"]["val"] == 25
    assert f"3 of {whole.sizes['val']} rows of the validation split" in (part.part or "")
    assert CorpusData(root, corpus="wikitext103", tokens="byte", length=8, n_val=10**6).sizes == whole.sizes
    with pytest.raises(ValueError, match="n_val=0"):
        CorpusData(root, corpus="wikitext103", tokens="byte", length=8, n_val=0)


def test_byte_pairs_are_the_same_in_every_process() -> None:
    code = "import sys; from tasks.language.vocabulary import *; print(train_byte_pairs([sys.stdin.read()], 300).text)"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], input=TEXT, capture_output=True, text=True, cwd=tiny.ROOT, check=True
        )
        for _ in range(2)
    ]
    assert {output.stdout.strip() for output in outputs} == {train_byte_pairs([TEXT], 300).text.strip()}


@pytest.mark.parametrize("first", [BYTES, characters(sorted(set(TEXT))), train_byte_pairs([TEXT], 300)], ids=range(3))
def test_a_vocabulary_is_unchanged_when_it_is_read_again(first: Vocabulary) -> None:
    again = read_vocabulary(first.text)
    assert again.text == first.text
    assert again.sizes.tolist() == first.sizes.tolist()
    ids = first.encode([TEXT[:30], TEXT[30:]])
    assert again.encode([TEXT[:30], TEXT[30:]]).tolist() == ids.tolist()
    assert decoded(again, ids.tolist()) == TEXT
    assert first.sizes[ids].sum() == len(TEXT.encode())


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no text": (lambda root: (root / "tiny_shakespeare" / "input.txt").unlink(),
                ("missing data: input.txt expected in .*tiny_shakespeare, .*; copy the files there,"
                 " or name the folder that has them with --data DIR or BENCH_DATA")),
    "no table": (lambda root: (root / "wikitext103" / "test.parquet").unlink(),
                 ("missing data: test.parquet expected in .*wikitext103, with the column text,"
                  r" and downloading failed \(the package datasets is not installed: .*\)")),
    "one character": (lambda root: write_text(root / "tiny_shakespeare" / "input.txt", "a" * 500),
                      "has only one distinct character"),
    "not UTF-8": (lambda root: (root / "tiny_shakespeare" / "input.txt").write_bytes(b"abc\xff" * 50),
                  "input.txt is not UTF-8 text"),
    "short text": (lambda root: write_text(root / "tiny_shakespeare" / "input.txt", "a" * 80),
                   r"the val split of .*input.txt has 8 tokens, and needs 9"),
    "cut table": (lambda root: (root / "wikitext103" / "train_part.parquet").write_bytes(b"PAR1"),
                  r"damaged data file .*train_part.parquet \(.*\); delete it"),
    "odd bytes": (lambda root: write_rows(root / "wikitext103" / "test.parquet", pa.array([b"\xff"]).view(pa.string())),
                  r"test.parquet .*Invalid UTF8"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_corpus_is_reported_in_one_line(
    fault: str, root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    harm, message = FAULTS[fault]
    harm(root)
    of_text = fault in ("no text", "one character", "not UTF-8", "short text")
    with pytest.raises(DataError, match=message) as caught:
        CorpusData(root, corpus="tiny_shakespeare" if of_text else "wikitext103", length=8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab": 255}, r"vocab=255 is out of range: it must be in \[256, 65536\]"),
        ({"corpus": "shakespear"}, "corpus=shakespear is not known: it must be one of tiny_shakespeare, .*, or a file"),
        ({"corpus": "nowhere/own.txt"}, "corpus=nowhere/own.txt does not exist"),
        ({"corpus": "."}, "corpus=. is a folder; name the file in it"),
    ],
)
def test_options_of_the_data_out_of_range_are_named(options: dict[str, Any], message: str, root: Path) -> None:
    with pytest.raises(ValueError, match=message):
        CorpusData(root, **options)


def lm(vocab_size: int = 12, length: int = 6, seed: int = 0, **options: Any) -> LanguageModel:
    torch.manual_seed(seed)
    data: Any = SimpleNamespace(vocab_size=vocab_size, length=length)
    return LanguageModel(data, **options)


@pytest.mark.parametrize(("vocab", "width", "tied"), [(65, 512, False), (2000, 256, True), (256, 16, True)])
def test_the_loss_starts_at_the_logarithm_of_the_vocabulary(vocab: int, width: int, tied: bool) -> None:
    model = lm(vocab, 32, layers=4, width=width, num_heads=4, tied=tied)
    ids = torch.randint(vocab, (8, 33), generator=torch.Generator().manual_seed(1))
    loss = cross_entropy(model.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert float(loss.detach()) == pytest.approx(log(vocab), rel=0.02)


@pytest.mark.parametrize("options", [{}, {"tied": True}, {"mlp": "gelu"}, {"window": 2}])
def test_the_decoder_is_the_one_written_out(options: dict[str, Any]) -> None:
    model = lm(layers=3, width=12, num_heads=3, mlp_width=20, **options).double().model
    torch.nn.init.normal_(model.embedding.weight)
    ids = torch.randint(12, (4, 9), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(ids), plain_logits(model, ids, 3, options.get("window")), rtol=1e-10, atol=1e-10)


def numbers(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("preset", "attention", "count"),
    [
        ("tiny", "standard", 673_152),
        ("6l-256", "standard", 21_105_920),
        ("6l-512", "standard", 45_357_568),
        ("405m", "standard", 411_354_112),
        ("405m", "dcmha", 411_354_112 + 24 * 344_064),  # paper D's extra parameters, of each layer
    ],
)
def test_presets_have_these_parameters(preset: str, attention: str, count: int) -> None:
    values = resolve({"task": "lm", "opt": "adamw", "task.preset": preset, "task.attention": attention}).task_options
    of_data = {name: values.pop(name) for name in ("corpus", "tokens", "vocab", "length", "n_val")}
    with torch.device("meta"):
        model = lm(65 if preset == "tiny" else of_data["vocab"], of_data["length"], **values)
    assert numbers(model) == count


def config(root: Path, store: Path, opt: str = "adamw", **words: Any) -> RunConfig:
    common = {"task": "lm", "opt": opt, "data": root, "store": store, "device": "cpu", "trainer.max_steps": 30}
    return resolve(common | SMALL | {"trainer.batch_size": 10} | words)


@pytest.mark.parametrize("micro", [1000, 7])
def test_perplexity_equals_a_reference_computation(
    root: Path, store: Path, micro: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference goes token by token, each from the window that predicts it, in float64."""
    monkeypatch.setitem(TASKS.built_in, "lm", replace(TASKS["lm"], micro_batch_size=micro))
    settings = config(root, store, **{"precision": "64-true", "opt.lr": 0.01, "trainer.val_every": 30})
    result = run(settings, progress=False)
    task = trained(settings)
    stream = torch.tensor(streams(task.data)["val"])
    nats = bytes_ = 0.0
    model = task.model.double().eval()
    starts = [min(i, len(stream) - 17) for i in range(0, len(stream) - 1, 16)]
    done = 0
    for start in starts:
        logits = plain_logits(model, stream[None, start : start + 16]).detach()[0]
        for t in range(max(0, done - start), 16):
            target = int(stream[start + t + 1])
            nats -= float(logits[t].log_softmax(0)[target])
            bytes_ += len(decoded(task.data.vocabulary, [target]).encode())
            done += 1
    assert done == len(stream) - 1
    metrics = result.metrics["final"]
    assert metrics["loss"] == pytest.approx(nats / done, rel=1e-9)
    assert metrics["perplexity"] == pytest.approx(exp(nats / done), rel=1e-9)
    assert metrics["bits_per_byte"] == pytest.approx(nats / log(2) / bytes_, rel=1e-9)


def trained(settings: RunConfig) -> LanguageModel:
    """The model after the training of `bench fit`."""
    from bench.train import runner

    task, _ = build(settings)
    runner.make_trainer(settings, []).fit(task, runner.StepRanges(task, 1000, 4))
    assert isinstance(task, LanguageModel)
    return task


# -- commands ---------------------------------------------------------------------------------------------------------
