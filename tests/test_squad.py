"""SQuAD: its score, its windows, held-out rows, the model that marks spans, and faulty files."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import RobertaProcessing
from torch import Tensor
from torchmetrics.functional.text import squad as by_torchmetrics
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)

from bench.config.run_config import resolve
from bench.train import runner
from tasks import DataError
from tasks.core.order import split_hash
from tasks.language.labelled_text import TextBatch
from tasks.language.sources import SQUAD
from tasks.language.squad import SpanExtractor, SpanScore, SquadData, exact_match, f1
from tasks.language.vocabulary import train_byte_pairs
from tests.stored import read_curve

SMALL = {"scratch": True, "vocab": 150, "max_length": 32, "stride": 6}


def words_of(draw: np.random.Generator, least: int, most: int) -> list[str]:
    syllables = ["ba", "do", "kin", "mer", "sta", "lu", "ré"]
    return ["".join(draw.choice(syllables, draw.integers(1, 4))) for _ in range(draw.integers(least, most))]


def rows_of(seed: int, articles: int, titled: bool = True) -> list[dict[str, Any]]:
    """Articles with two paragraphs, each with three questions; an answer is some words of its paragraph."""
    draw, rows = np.random.default_rng(seed), list[dict[str, Any]]()
    for article, paragraph in itertools.product(range(articles), range(2)):
        words = words_of(draw, 8, 50)
        for question in range(3):
            start = int(draw.integers(len(words)))
            text = " ".join(words[start : start + int(draw.integers(1, 5))])
            at = len(" ".join([*words[:start], ""]))
            answers = {"text": [text] * (1 + question % 2), "answer_start": [at] * (1 + question % 2)}
            row = {"id": f"{article}-{paragraph}-{question}", "title": f"Article_{article}" * titled}
            row |= {"context": " ".join(words), "question": " ".join(words_of(draw, 2, 8)).capitalize() + "?"}
            rows.append(row | {"answers": answers})
    return rows


def write(
    root: Path, train: list[dict[str, Any]] | None = None, validation: list[dict[str, Any]] | None = None
) -> Path:
    (root / "squad").mkdir(parents=True, exist_ok=True)
    parts = {"train": train or rows_of(0, 20), "validation": validation or rows_of(1, 4)}
    for name, rows in parts.items():
        pq.write_table(pa.Table.from_pylist(rows), root / "squad" / f"{name}.parquet")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


@pytest.fixture
def data(root: Path) -> SquadData:
    return SquadData(root, **SMALL)


def whole(data: SquadData, split: str) -> TextBatch:
    return data.batch(split, slice(None))


def rows_in(data: SquadData, split: str) -> list[dict[str, Any]]:
    """The rows of the files whose windows are in a split, in the order of the files."""
    windows = whole(data, split).labels[:, 4].numpy()
    return data._passages.take(np.unique(data._question[windows])).to_pylist()


def cut(data: SquadData, labels: Tensor, first: Tensor, last: Tensor) -> list[tuple[str, list[str]]]:
    """The answer that `answered` extracts from each window, for any question."""
    question, left, pairs = data._question[labels[:, 4].numpy()], np.arange(len(labels)), list[tuple[str, list[str]]]()
    while len(left):  # one window of each question
        _, at = np.unique(question[left], return_index=True)
        windows, begin, end = (column.numpy()[left[at]] for column in (labels[:, 4], first, last))
        pairs += data.answered(windows, np.zeros(len(at)), begin, end)
        left = np.delete(left, at)
    return pairs


PARTS = ["The", "an", "Tower.", "tower", "of", "x-y", "«où»", "1,5", "\t"]
phrases = st.lists(st.sampled_from(PARTS), max_size=6).map(" ".join)


@given(text=phrases, answers=st.lists(phrases.map(lambda phrase: f"{phrase} end"), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_scores_are_those_of_torchmetrics(text: str, answers: list[str]) -> None:
    """Only for answers with words: without any, its F1 is 1 and the official one of v1.1 is 0."""
    theirs = by_torchmetrics(
        {"prediction_text": text, "id": "0"},
        {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "0"},
    )
    assert 100 * max(f1(text, answer) for answer in answers) == pytest.approx(float(theirs["f1"]), abs=1e-4)
    assert 100 * max(exact_match(text, answer) for answer in answers) == float(theirs["exact_match"])


class Seen(NamedTuple):
    """An expected window: its batch row, question, tokens of the paragraph before it, and all their offsets."""

    row: int
    question: int
    passage: dict[str, Any]
    before: int
    offsets: list[tuple[int, int]]


def seen(data: SquadData, batch: TextBatch, stride: int) -> Iterator[Seen]:
    """The windows of complete questions, by the definition of the overlap."""
    tokenizer = Tokenizer.from_str(data.tokenizer.to_str())
    tokenizer.no_truncation()
    before: dict[int, int] = {}
    for row in batch.labels[:, 4].argsort().tolist():
        question = int(data._question[batch.labels[row, 4]])
        (passage,) = data._passages.take([question]).to_pylist()
        offsets = tokenizer.encode(passage["context"], add_special_tokens=False).offsets
        yield Seen(row, question, passage, before.get(question, 0), offsets)
        before[question] = before.get(question, 0) + int(batch.labels[row, 3] - batch.labels[row, 2]) - stride


def by_looking_at_all(data: SquadData, batch: TextBatch, logits: Tensor) -> dict[str, float]:
    """Both scores, by a loop over all spans of all windows of a question."""
    best: dict[int, tuple[float, str, list[str]]] = {}
    for row, question, passage, before, offsets in seen(data, batch, SMALL["stride"]):
        _, _, first, stop, _ = batch.labels[row].tolist()
        for begin in range(first, stop):
            for end in range(begin, min(stop, begin + 30)):
                score = float(logits[row, begin, 0] + logits[row, end, 1])
                if question not in best or score > best[question][0]:
                    text = passage["context"][offsets[before + begin - first][0] : offsets[before + end - first][1]]
                    best[question] = (score, text, passage["answers"]["text"])
    scores = {"f1": f1, "exact_match": exact_match}
    return {
        name: 100 * fmean(max(score(text, answer) for answer in answers) for _, text, answers in best.values())
        for name, score in scores.items()
    }


def scored(
    data: SquadData, batch: TextBatch, logits: Tensor, sizes: int = 1000, order: Tensor | None = None
) -> dict[str, float]:
    """Both scores by the metrics, which receive the windows in parts."""
    rows = torch.arange(len(logits)) if order is None else order
    scores: dict[str, float] = {}
    for name in ("f1", "exact_match"):
        metric = SpanScore(data, name)
        for part in rows.split(sizes):
            metric.update(logits[part], batch.labels[part])
        scores[name] = float(metric.compute())
    return scores


def hot(batch: TextBatch) -> Tensor:
    """Logits that are 1 at the labels of the windows with the answer."""
    logits = torch.zeros(*batch.ids.shape, 2)
    held = batch.labels[:, 0] > 0
    for side in (0, 1):
        logits[held.nonzero()[:, 0], batch.labels[held, side], side] = 1
    return logits


def test_the_best_span_of_all_windows_answers_a_question(data: SquadData) -> None:
    batch = whole(data, "validation")
    assert len(batch.labels) > len(rows_in(data, "validation")) == 24
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(*batch.ids.shape, 2, generator=draw)
    for logits in (noise, noise + 4 * hot(batch)):
        expected = by_looking_at_all(data, batch, logits)
        assert scored(data, batch, logits) == pytest.approx(expected, abs=1e-4)
        order = torch.randperm(len(noise), generator=draw)
        assert scored(data, batch, logits, 7, order) == scored(data, batch, logits)
    assert expected["f1"] > 50  # so that there is something to distinguish


@pytest.mark.parametrize(("length", "stride"), [(32, 6), (24, 15)])
def test_windows_are_the_tokenizers_and_lose_no_token(length: int, stride: int, root: Path) -> None:
    data = SquadData(root, max_length=length, stride=stride, scratch=True, vocab=150)
    tokenizer = Tokenizer.from_str(data.tokenizer.to_str())
    tokenizer.no_truncation()
    added = tokenizer.num_special_tokens_to_add(True)
    batch, ends = whole(data, "validation"), dict[int, int]()
    by_number = [row["question"] for row in rows_of(1, 4)]
    for row, question, passage, before, offsets in seen(data, batch, stride):
        ids = tokenizer.encode(passage["context"], add_special_tokens=False).ids
        _, _, first, stop, _ = batch.labels[row].tolist()
        text, used = by_number[question - 120], batch.ids[row][batch.mask[row]].tolist()
        question_ids = used[1 : first - 1]
        full, most = tokenizer.encode(text, add_special_tokens=False).ids, (length - added - stride) // 2
        if len(full) > most:  # as much of it as fits, up to a truncated word
            assert most - 5 < len(question_ids) <= most
            assert question_ids in [tokenizer.encode(text[:k], add_special_tokens=False).ids for k in range(len(text))]
        else:
            assert question_ids == full
        assert used[first:stop] == ids[before : before + stop - first]
        assert (len(used) == length) or before + stop - first == len(ids)
        assert [*used[:1], *used[1 + len(question_ids) : first], *used[stop:]] == [2, 3, 3]
        assert batch.types[row, : len(used)].tolist() == [0] * first + [1] * (len(used) - first)
        assert before == 0 or before == ends[question] - stride
        ends[question] = before + stop - first
        assert len(offsets) == len(ids)
    for question, end in ends.items():
        (passage,) = data._passages.take([question]).to_pylist()
        assert end == len(tokenizer.encode(passage["context"], add_special_tokens=False).ids)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_labels_mark_the_answer_or_the_first_token(split: str, data: SquadData) -> None:
    batch = whole(data, split)
    held = batch.labels[:, 0] > 0
    labels = batch.labels[held]
    assert all(text == answers[0] for text, answers in cut(data, labels, labels[:, 0], labels[:, 1]))
    assert 0.3 < float(held.double().mean()) < 1
    assert not batch.labels[~held, :2].any()
    for row, _, passage, before, offsets in seen(data, batch, SMALL["stride"]):
        begin, text = passage["answers"]["answer_start"][0], passage["answers"]["text"][0]
        size = int(batch.labels[row, 3] - batch.labels[row, 2])
        inside = offsets[before][0] <= begin and begin + len(text) <= offsets[before + size - 1][1]
        assert bool(held[row]) == inside


def test_roberta_marks_answers_although_its_tokens_have_the_space_before_a_word(root: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(train_byte_pairs([row["context"] for row in rows_of(0, 20)], 300).text)
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    begin, end = (("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>")))
    tokenizer.post_processor = RobertaProcessing(end, begin, add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = SquadData(root, model=str(tmp_path), max_length=60, stride=6)
    labels = whole(data, "train").labels
    held = labels[labels[:, 0] > 0]
    assert len(held) > 100
    assert all(text == answers[0] for text, answers in cut(data, held, held[:, 0], held[:, 1]))
    assert not whole(data, "train").types.any()


@pytest.mark.parametrize("titled", [True, False])
def test_held_out_and_training_samples_share_no_article(titled: bool, tmp_path: Path) -> None:
    rows = rows_of(0, 20, titled)
    data = SquadData(write(tmp_path, rows), **SMALL)
    units = {row["context"]: row["title"] or row["context"] for row in rows}
    parts = {split: {units[row["context"]] for row in rows_in(data, split)} for split in ("train", "val")}
    assert not parts["train"] & parts["val"]
    assert (len(parts["train"]), len(parts["val"])) == ((18, 2) if titled else (36, 4))
    numbers = {split: whole(data, split).labels[:, 4].tolist() for split in data.sizes}
    assert sorted(itertools.chain(*numbers.values())) == list(range(sum(data.sizes.values())))
    assert data.facts()["validation"] == split_hash(20 if titled else 40, 2 if titled else 4, SQUAD.salt)
    kept = [int(data._question[window]) for window in numbers["train"]]
    assert len(list(itertools.groupby(kept))) == len(set(kept))  # the windows of a question are consecutive
    assert kept != sorted(kept)


@pytest.mark.parametrize(("units", "expected"), [(442, "397b1e88605a7799"), (800, "9cb3917f086d0152")])
def test_the_split_is_the_published_one(units: int, expected: str) -> None:
    """By articles; and by paragraphs of the part in the tests' data, which names no articles."""
    assert split_hash(units, min(SQUAD.n_val, units // 10), SQUAD.salt) == expected


SHAPE = dict(vocab_size=150, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16)
SHAPE |= dict(max_position_embeddings=50)
BERT = BertConfig(**SHAPE), BertForQuestionAnswering
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, data: SquadData) -> Folder:
    """Creates a folder with a small model with random weights, and the data's tokenizer."""

    def make(config: Any, cls: Any) -> Path:
        torch.manual_seed(5)
        model = cls(type(config)(**config.to_dict() | {"vocab_size": data.vocab_size}))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.3)
        model.save_pretrained(tmp_path / "model")
        data.tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
        return tmp_path / "model"

    return make


def small(data: SquadData, seed: int = 0, **options: Any) -> SpanExtractor:
    torch.manual_seed(seed)
    return SpanExtractor(data, **{"scratch": True, "width": 16, "num_heads": 2, "layers": 1, **options})


@pytest.mark.numeric
def test_logits_and_loss_are_those_of_transformers(data: SquadData, folder: Folder) -> None:
    path = folder(*BERT)
    task, batch = SpanExtractor(data, model=str(path), dropout=0.0).double(), data.batch("train", slice(0, 9))
    theirs = BERT[1].from_pretrained(path, attn_implementation="eager", dtype=torch.float64).eval()
    output = theirs(batch.ids, attention_mask=batch.mask.long(), token_type_ids=batch.types)
    outcome = task.loss(batch)
    expected = torch.stack([output.start_logits, output.end_logits], -1)
    torch.testing.assert_close(outcome.predictions[batch.mask], expected[batch.mask], rtol=0, atol=1e-12)
    losses = [
        -expected[row, batch.mask[row], side].log_softmax(0)[batch.labels[row, side]]
        for row in range(9)
        for side in (0, 1)
    ]
    torch.testing.assert_close(outcome.loss, torch.stack(losses).mean())
    assert torch.equal(outcome.labels, batch.labels)


def test_a_head_that_is_missing_is_drawn_from_the_seed(data: SquadData, folder: Folder) -> None:
    def head(path: Path, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return SpanExtractor(data, model=str(path)).model.qa_outputs.weight

    complete = folder(*BERT)
    assert torch.equal(head(complete, 0), head(complete, 1))
    classifier = folder(BertConfig(**SHAPE, num_labels=3), BertForSequenceClassification)  # its head is dropped
    assert torch.equal(head(classifier, 0), head(classifier, 0))
    assert not torch.equal(head(classifier, 0), head(classifier, 1))


def words(root: Path, store: Path, **more: Any) -> dict[str, Any]:
    common = {"task": "squad", "opt": "adamw", "data": root, "store": store, "precision": "64-true", "device": "cpu"}
    common |= {"trainer.max_steps": 12, "trainer.batch_size": 20}
    common |= {"task.layers": 1, "task.width": 16, "task.dropout": 0.2}
    return common | {f"task.{name}": value for name, value in SMALL.items()} | more


@pytest.mark.deep
@pytest.mark.numeric
def test_a_run_reports_both_scores_and_micro_batches_change_nothing(root: Path, store: Path) -> None:
    results = [
        runner.run(resolve(words(root, store, **more)), progress=False)
        for more in ({}, {"trainer.micro_batch_size": 7})
    ]
    curves = [np.array(read_curve(store / result.run_id))[:, 1] for result in results]
    for curve in curves[1:]:
        np.testing.assert_allclose(curves[0], curve, rtol=1e-9)
    for result in results:
        assert (result.status, result.split, result.metric) == ("completed", "validation", "f1")
        assert result.metrics["final"].keys() == {"loss", "f1", "exact_match"}
        assert result.final == result.metrics["final"]["f1"]
        assert str(result.part).startswith("a small BERT with random weights; 120 of 87,599 rows of train.parquet")


def changed(**columns: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """The rows with other values in the eighth row."""
    return lambda rows: [*rows[:7], rows[7] | columns, *rows[8:]]


def answer(text: str | None, at: int) -> Mapping[str, Any]:
    return {"text": [text], "answer_start": [at]}


FAULTS: dict[str, tuple[Callable[[list[dict[str, Any]]], list[dict[str, Any]]], str]] = {
    "no title": (lambda rows: [{k: v for k, v in row.items() if k != "title"} for row in rows],
                 ("has no column 'title', only id, context, question, answers; it must have question, context,"
                  " answers, title, as rajpurkar/squad")),
    "no answer": (changed(answers={"text": [], "answer_start": []}),
                  r"row 7 has the answers \{.*\}; they must be lists"),
    "another place": (changed(answers=answer("no such words", 0)),
                      r"row 7 has the answers .*'no such words'.*: remove such rows"),
    "before": (changed(answers=answer("a", -1)), r"row 7 has the answers .*'a'.*-1"),
    "few articles": (lambda rows: rows[:54], r"train.parquet has 9 articles; at least 10 are needed"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_rows_that_cannot_be_used_are_named(fault: str, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(DataError, match=message) as caught:
        SquadData(write(tmp_path, change(rows_of(0, 20))), **SMALL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stride", [-1, 28])
def test_an_overlap_that_leaves_no_room_is_named(stride: int, root: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"stride={stride} is out of range: with max_length=32 it must be in \[0, 27\]"
    ):
        SquadData(root, **SMALL | {"stride": stride})


# -- the real texts ---------------------------------------------------------------------------------------------------
