"""SQuAD v1.1: which words of a paragraph answer a question? Its 87,599 + 10,570 questions, a model, and its scores."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from string import punctuation
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from transformers import AutoModelForQuestionAnswering

from tasks.core.files import DataError
from tasks.core.order import validation_rows
from tasks.core.training_step import Outcome
from tasks.language.bert import Encoder
from tasks.language.labelled_text import Rows, TextBatch, TextData
from tasks.language.sources import SQUAD

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST = 30
"""Tokens of an answer at most, as in BERT's own script."""


class SquadData(TextData):
    """The Stanford question answering dataset (Rajpurkar et al. 2016), v1.1, from Parquet files in `<root>/squad`.

    A row is a question with a window of its paragraph; a paragraph that is too long has several, which overlap. The
    test set is hidden, so results are reported on the validation set. A tenth of the training file's articles is held
    out for selection, with all their questions; where a title is empty the paragraph counts as the article.

    `TextBatch.labels` has shape (rows, 5), in tokens of the window: first and last of the answer, both 0 if the window
    does not hold all of it; first of the paragraph, and the one after its last; and the window's number.

    Args:
        max_length: tokens of a window, question and special ones included, in [8, 65536]. A question is
            truncated to half of the window without the overlap.
        stride: tokens of the paragraph that a window shares with the one before it, at least 0.
    """

    report = "validation"
    SOURCES: ClassVar = {"squad": SQUAD}

    def __init__(self, root: Path, seed: int = 0, *, max_length: int = 384, stride: int = 128, **texts: Any) -> None:
        import pyarrow as pa

        self._stride, self._known_offsets = stride, dict[str, NDArray[np.int32]]()
        super().__init__(root, seed, max_length=max_length, **texts)
        passages = [self._read(split, ("context", "answers"))[0] for split in self.source.expected]
        self._passages = pa.concat_tables(passages)

    def _truncate(self, max_length: int) -> None:
        most = max_length - self.tokenizer.num_special_tokens_to_add(True) - 2
        if not 0 <= self._stride <= most:
            range_ = f"with max_length={max_length} it must be in [0, {most}]"
            raise ValueError(f"stride={self._stride} is out of range: {range_}")
        self._whole = Tokenizer.from_str(self.tokenizer.to_str())
        self._whole.no_truncation()
        self.tokenizer.enable_truncation(max_length, stride=self._stride, strategy="only_second")

    def _encode(self, split: str, table: "pa.Table") -> Rows:
        """The windows of a split, by name, as in `TextData`, with the first four labels (`SquadData`).

        - `question`: row of the file, int32 of shape (n,);
        - `at`: index that a window's token 0 would have among the tokens of its paragraph, int64 of shape (n,);
        - `articles`: article of each question, counted from 0 in the file's order, int32 of shape (questions,).
        """
        tokenizer, stride, kind = self.tokenizer, self._stride, self._kind
        assert tokenizer.truncation is not None
        longest = (tokenizer.truncation["max_length"] - tokenizer.num_special_tokens_to_add(True) - stride) // 2
        questions, contexts, titles = (table[name].to_pylist() for name in ("question", "context", "title"))
        answers = _answers(self._files[split][0], table["answers"].to_pylist(), contexts)
        ids, windows = [np.zeros(0, kind)], list[tuple[int, ...]]()
        offsets = np.zeros((0, 2), np.int32)
        for row, (question, context, (begin, end)) in enumerate(zip(questions, contexts, answers, strict=True)):
            if row == 0 or context != contexts[row - 1]:
                offsets = self._offsets(context)
            # Tokens with any part of the answer; they may have more, since tokens cannot be cut.
            first = int(np.searchsorted(offsets[:, 1], begin, "right"))
            last = int(np.searchsorted(offsets[:, 0], end)) - 1
            tokens_of_question = self._whole.encode(question, add_special_tokens=False)
            while len(tokens_of_question.ids) > longest:  # the tokenizer would return the excess as further windows
                question = question[: min(tokens_of_question.offsets[longest][0], len(question) - 1)]
                tokens_of_question = self._whole.encode(question, add_special_tokens=False)
            encoding = tokenizer.encode(question, context)
            before = 0  # tokens of the paragraph before the window
            for part in (encoding, *encoding.overflowing):
                sequences = part.sequence_ids
                start, size = sequences.index(1) if 1 in sequences else 0, sequences.count(1)
                shift = start - before
                held = before <= first <= last < before + size
                span = (first + shift, last + shift) if held else (0, 0)
                windows.append((row, -shift, sum(part.type_ids), len(part.ids), *span, start, start + size))
                ids.append(np.array(part.ids, kind))
                before += size - stride
        rows, at, second, lengths, *spans = np.array(windows, np.int64).reshape(-1, 8).T.copy()
        number: dict[str, int] = {}
        units = (title or context for title, context in zip(titles, contexts, strict=True))
        return {
            "ids": np.concatenate(ids),
            "ends": np.cumsum(lengths),
            "second": second.astype(np.uint16),
            "labels": np.stack(spans, axis=1, dtype=np.int32),
            "question": rows.astype(np.int32),
            "at": at,
            "articles": np.array([number.setdefault(unit, len(number)) for unit in units], np.int32),
        }

    def _carved(self, n: int, what: str = "rows") -> tuple[Tensor, Tensor]:
        articles = torch.from_numpy(self._train["articles"])
        held_out = torch.isin(articles, super()._carved(len(articles.unique()), "articles")[0])
        hashed = torch.cat(validation_rows(n, 1, self.source.salt))
        return held_out.nonzero()[:, 0], hashed[~held_out[hashed]]

    def _places(self, rows: Tensor) -> Tensor:
        question = self._train["question"]  # ascending
        first, stop = (np.searchsorted(question, rows.numpy(), side) for side in ("left", "right"))
        return torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in zip(first, stop, strict=True)]))

    def _place(self, files: Mapping[str, Rows], n_train: int | None, length: int) -> None:
        self._train, parts = files["train"], files.values()
        before = np.cumsum([0, *(len(part["articles"]) for part in parts)])
        self._question = np.concatenate([n + part["question"] for n, part in zip(before, parts, strict=False)])
        self._at = np.concatenate([part["at"] for part in parts])
        numbers = pairwise(np.cumsum([0, *(len(part["ends"]) for part in parts)]))
        numbered = {
            split: {**part, "labels": np.column_stack([part["labels"], np.arange(first, stop)])}
            for (split, part), (first, stop) in zip(files.items(), numbers, strict=True)
        }
        super()._place(numbered, n_train, length)

    def answered(
        self, windows_N: NDArray[Any], scores_N: NDArray[Any], first_N: NDArray[Any], last_N: NDArray[Any]
    ) -> Iterator[tuple[str, list[str]]]:
        """The predicted answer and the correct answers to each question of these windows, in the files' order.

        The best span of a window, by number, has a score, a first and a last token. A question's best window counts,
        the first one in case of a tie; the answer is empty if the score is not finite.
        """
        question_N = self._question[windows_N]
        order_N = np.lexsort((windows_N, -scores_N, question_N))
        questions, places = np.unique(question_N[order_N], return_index=True)
        best = order_N[places]
        first, last = (self._at[windows_N[best]] + token_N[best] for token_N in (first_N, last_N))
        passages = self._passages.take(questions).to_pylist()
        for passage, begin, end, score in zip(passages, first, last, scores_N[best], strict=True):
            context, text = passage["context"], ""
            if np.isfinite(score):
                if context not in self._known_offsets:
                    self._known_offsets[context] = self._offsets(context)
                offsets = self._known_offsets[context]
                text = context[offsets[begin, 0] : offsets[end, 1]]
            yield text, passage["answers"]["text"]

    def _offsets(self, context: str) -> NDArray[np.int32]:
        """Begin and end of each token of a paragraph in it, in characters, shape (tokens, 2)."""
        return np.array(self._whole.encode(context, add_special_tokens=False).offsets, np.int32).reshape(-1, 2)


def _answers(path: Path, values: list[Any], contexts: list[str]) -> list[tuple[int, int]]:
    """Begin and end of each row's first answer in its paragraph, in characters; all answers must be texts."""
    spans = []
    for row, (answers, context) in enumerate(zip(values, contexts, strict=True)):
        match answers:
            case {"text": [str() as text, *others], "answer_start": [int() as begin, *_]} if (
                begin >= 0 and text.strip() and context[begin : begin + len(text)] == text
            ) and all(isinstance(other, str) for other in others):
                spans.append((begin, begin + len(text)))
            case _:
                how = "they must be lists, text and answer_start, with an answer that is there in the context"
                raise DataError(f"{path}: row {row} has the answers {str(answers)[:100]}; {how}: remove such rows")
    return spans


class SpanExtractor(Encoder):
    """An encoder of the BERT family with two logits for each token; the loss is the mean of two cross-entropies.

    They are of the answer's first and last token, over the tokens of a window; both are the window's first token if the
    window does not have the answer. The model is transformers' own for question answering: a linear layer on the last
    hidden states. Logits have the shape (rows, width, 2).
    """

    AUTO = AutoModelForQuestionAnswering
    DRAWN = "qa_outputs."
    data: SquadData

    def loss(self, batch: TextBatch) -> Outcome:
        """Mean cross-entropy of first and last token; the labels are the batch's, of shape (rows, 5)."""
        encoded = self.encode(batch)
        logits = torch.stack([encoded.start_logits, encoded.end_logits], dim=-1)
        of_tokens = logits.masked_fill(~batch.mask[..., None], -torch.inf)
        return Outcome(cross_entropy(of_tokens, batch.labels[:, :2]), logits, batch.labels)

    def metrics(self) -> dict[str, Metric]:
        """F1 and exact match of SQuAD v1.1, in percent."""
        return {"f1": SpanScore(self.data, "f1"), "exact_match": SpanScore(self.data, "exact_match")}


class SpanScore(Metric):
    """A score of SQuAD v1.1 (Rajpurkar et al. 2016), `f1` of words or `exact_match`, in [0, 100].

    It is the mean over questions of the best over a question's answers. The predicted answer is the span with the
    largest sum of first and last logit, over all spans of at most 30 tokens in all windows of the paragraph.
    """

    places: list[Tensor]
    scores: list[Tensor]

    def __init__(self, data: SquadData, score: Literal["f1", "exact_match"]) -> None:
        super().__init__()
        self.data, self.score = data, f1 if score == "f1" else exact_match
        self.add_state("places", [], dist_reduce_fx="cat")
        self.add_state("scores", [], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Take logits (rows, width, 2) and labels (rows, 5): those of `SquadData`."""
        *_, first, stop, window = labels.unbind(1)
        column = torch.arange(predictions.shape[1], device=labels.device)
        inside = (column >= first[:, None]) & (column < stop[:, None])
        begin_RW, end_RW = predictions.float().masked_fill(~inside[..., None], -torch.inf).unbind(-1)
        end_RWL = pad(end_RW, (0, LONGEST - 1), value=-torch.inf).unfold(1, LONGEST, 1)
        score, place = (begin_RW[..., None] + end_RWL).flatten(1).max(1)
        begin = place // LONGEST
        self.places.append(torch.stack([window, begin, begin + place % LONGEST], dim=1))
        self.scores.append(score)

    def compute(self) -> Tensor:
        """The mean, shape ()."""
        window, begin, end = dim_zero_cat(self.places).cpu().numpy().T
        answered = self.data.answered(window, dim_zero_cat(self.scores).cpu().numpy(), begin, end)
        scores = [max(self.score(text, answer) for answer in answers) for text, answers in answered]
        return torch.tensor(100 * sum(scores) / len(scores))


def normalised(text: str) -> str:
    """A text in lower case without punctuation (of ASCII), articles and surplus white space, in this order."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


_PUNCTUATION = str.maketrans("", "", punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def exact_match(text: str, answer: str) -> float:
    """1 where both are the same after `normalised`, else 0."""
    return float(normalised(text) == normalised(answer))


def f1(text: str, answer: str) -> float:
    """Harmonic mean of precision and recall of words, `normalised`, each as often as it occurs; 0 without words."""
    words, right = normalised(text).split(), normalised(answer).split()
    common = (Counter(words) & Counter(right)).total()
    # 2 / (1 / precision + 1 / recall)
    return 2 * common / (len(words) + len(right)) if common else 0.0
