"""SQuAD v1.1: which words of a paragraph answer a question? 87,599 + 10,570 questions."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from tasks.core.files import DataError
from tasks.core.order import validation_rows
from tasks.core.randomness import BatchRandomness
from tasks.language.labelled_text import TextBatch, TextData
from tasks.language.sources import SQUAD

if TYPE_CHECKING:
    import pyarrow as pa


class SquadData(TextData):
    """The Stanford question answering dataset (Rajpurkar et al. 2016), v1.1, from Parquet files in `<root>/squad`.

    A row is a question with a window of its paragraph; a paragraph that is too long has several, which overlap. The
    test set is hidden, so results are reported on the validation set. A tenth of the training file's articles is held
    out for selection, with all their questions; where a title is empty the paragraph counts as the article.

    `TextBatch.labels` has shape (rows, 5), in tokens of the window: first and last of the answer, both 0 if the window
    does not hold all of it; first of the paragraph, and the one after its last; and the window's number.

    Args:
        root: the data folder.
        seed: unused; the texts are the same for every seed.
        model: whose tokenizer is used: a local folder, or a name on the Hugging Face Hub.
        scratch: train a word-piece vocabulary on the training texts, unless `model` is a local folder with a tokenizer.
        vocab: tokens of a vocabulary from scratch, in [100, 65536]; fewer if the texts have too few words.
        max_length: tokens of a window, question and special ones included, in [8, 65536]. A question is
            truncated to half of the window without the overlap.
        stride: tokens of the paragraph that a window shares with the one before it, at least 0.
        n_train: use only this many of the training questions; all by default.
    """

    report = "validation"
    SOURCES: ClassVar = {"squad": SQUAD}

    def __init__(
        self,
        root: Path,
        seed: int = 0,
        *,
        model: str = "bert-base-uncased",
        scratch: bool = False,
        vocab: int = 8000,
        max_length: int = 384,
        stride: int = 128,
        n_train: int | None = None,
    ) -> None:
        import pyarrow as pa

        self._stride, self._windows = stride, list[dict[str, NDArray[Any]]]()
        super().__init__(root, seed, model=model, scratch=scratch, vocab=vocab, max_length=max_length, n_train=n_train)
        files = self._windows
        passages = [self._read(split, ("context", "answers"))[0] for split in self.source.expected]
        self._passages = pa.concat_tables(passages)
        self._question = _joined([file["question"] for file in files], [len(file["articles"]) for file in files])
        self._at = _joined([file["at"] for file in files], [len(file["offsets"]) for file in files])
        self._offsets = np.concatenate([file["offsets"] for file in files])
        spans = np.concatenate([file["spans"] for file in files])
        self._spans = torch.from_numpy(np.column_stack([spans, np.arange(len(spans))]))

    def _truncate(self, max_length: int) -> None:
        most = max_length - self.tokenizer.num_special_tokens_to_add(True) - 2
        if not 0 <= self._stride <= most:
            range_ = f"with max_length={max_length} it must be in [0, {most}]"
            raise ValueError(f"stride={self._stride} is out of range: {range_}")
        self.tokenizer.enable_truncation(max_length, stride=self._stride, strategy="only_second")

    def _encoded(self, split: str) -> tuple[dict[str, NDArray[Any]], int]:
        file, rows = super()._encoded(split)
        before = sum(len(windows["ends"]) for windows in self._windows)
        self._windows.append(file)
        return {**file, "labels": before + np.arange(len(file["ends"]))}, rows

    def _encode(self, split: str, table: "pa.Table") -> dict[str, NDArray[Any]]:
        """The windows of a split, by name, as in `TextData` without labels.

        - `spans`: the first four labels of a window (`SquadData`), int32 of shape (n, 4);
        - `question`: row of the file, int32 of shape (n,);
        - `at`: index that a window's token 0 would have among the tokens of all paragraphs, int64 of shape (n,);
        - `offsets`: begin and end of each token of all paragraphs in it, int32 of shape
          (P, 2), in characters;
        - `articles`: article of each question, counted from 0 in the file's order, int32 of shape (questions,).

        Neighbouring questions on the same paragraph share its offsets.
        """
        tokenizer, stride, kind = self.tokenizer, self._stride, self._kind
        assert tokenizer.truncation is not None
        longest = (tokenizer.truncation["max_length"] - tokenizer.num_special_tokens_to_add(True) - stride) // 2
        whole = Tokenizer.from_str(tokenizer.to_str())
        whole.no_truncation()
        questions, contexts, titles = (table[name].to_pylist() for name in ("question", "context", "title"))
        answers = _answers(self._files[split][0], table["answers"].to_pylist(), contexts)
        ids, windows = [np.zeros(0, kind)], list[tuple[int, ...]]()
        offsets, tokens = [np.zeros((0, 2), np.int32)], 0
        for row, (question, context, (begin, end)) in enumerate(zip(questions, contexts, answers, strict=True)):
            if row == 0 or context != contexts[row - 1]:
                tokens += len(offsets[-1])
                passage = whole.encode(context, add_special_tokens=False)
                offsets.append(np.array(passage.offsets, np.int32).reshape(-1, 2))
            # Tokens with any part of the answer; they may have more, since tokens cannot be cut.
            first = int(np.searchsorted(offsets[-1][:, 1], begin, "right"))
            last = int(np.searchsorted(offsets[-1][:, 0], end)) - 1
            tokens_of_question = whole.encode(question, add_special_tokens=False)
            while len(tokens_of_question.ids) > longest:  # the tokenizer would return the excess as further windows
                question = question[: min(tokens_of_question.offsets[longest][0], len(question) - 1)]
                tokens_of_question = whole.encode(question, add_special_tokens=False)
            encoding = tokenizer.encode(question, context)
            before = 0  # tokens of the paragraph before the window
            for part in (encoding, *encoding.overflowing):
                sequences = part.sequence_ids
                start, size = sequences.index(1) if 1 in sequences else 0, sequences.count(1)
                shift = start - before
                held = before <= first <= last < before + size
                span = (first + shift, last + shift) if held else (0, 0)
                windows.append((row, tokens - shift, sum(part.type_ids), len(part.ids), *span, start, start + size))
                ids.append(np.array(part.ids, kind))
                before += size - stride
        rows, at, second, lengths, *spans = np.array(windows, np.int64).reshape(-1, 8).T.copy()
        number: dict[str, int] = {}
        units = (title or context for title, context in zip(titles, contexts, strict=True))
        return {
            "ids": np.concatenate(ids),
            "ends": np.cumsum(lengths),
            "second": second.astype(np.uint16),
            "spans": np.stack(spans, axis=1, dtype=np.int32),
            "question": rows.astype(np.int32),
            "at": at,
            "offsets": np.concatenate(offsets),
            "articles": np.array([number.setdefault(unit, len(number)) for unit in units], np.int32),
        }

    def _carved_rows(self, n: int) -> tuple[Tensor, Tensor]:
        articles = torch.from_numpy(self._windows[0]["articles"])
        held_out = torch.isin(articles, self._carved(len(articles.unique()), "articles")[0])
        hashed = torch.cat(validation_rows(n, 1, self.source.salt))
        return held_out.nonzero()[:, 0], hashed[~held_out[hashed]]

    def _places(self, rows: Tensor) -> Tensor:
        question = self._windows[0]["question"]  # ascending
        first, stop = (np.searchsorted(question, rows.numpy(), side) for side in ("left", "right"))
        return torch.from_numpy(np.concatenate([np.arange(a, b) for a, b in zip(first, stop, strict=True)]))

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move tokens and labels to the device."""
        super().to(device, dtype)
        self._spans = self._spans.to(device)

    def batch(self, split: str, rows: Tensor | slice, randomness: BatchRandomness | None = None) -> TextBatch:
        """The windows of these rows; as wide as the batches of `TextData`."""
        batch = super().batch(split, rows, randomness)
        return batch._replace(labels=self._spans[batch.labels])

    def answered(
        self, windows_N: NDArray[Any], scores_N: NDArray[Any], first_N: NDArray[Any], last_N: NDArray[Any]
    ) -> Iterator[tuple[str, list[str]]]:
        """The predicted answer and the correct answers to each question of these windows, in the files' order.

        Args:
            windows_N: windows by number.
            scores_N: score of a window's best span; a question's best window counts, the first one in case of a tie.
            first_N: the span's first token.
            last_N: its last token; the answer is the text between them, and empty if the score is not finite.
        """
        question_N = self._question[windows_N]
        order_N = np.lexsort((windows_N, -scores_N, question_N))
        questions, places = np.unique(question_N[order_N], return_index=True)
        best = order_N[places]
        at, fine = self._at[windows_N[best]], np.isfinite(scores_N[best])
        begins = self._offsets[np.where(fine, at + first_N[best], 0), 0]
        ends = np.where(fine, self._offsets[np.where(fine, at + last_N[best], 0), 1], begins)
        passages = self._passages.take(questions).to_pylist()
        for passage, begin, end in zip(passages, begins, ends, strict=True):
            yield passage["context"][begin:end], passage["answers"]["text"]


def _joined(numbers: list[NDArray[Any]], sizes: list[int]) -> NDArray[np.int64]:
    """Indices within each file as indices within all files in order."""
    before = np.cumsum([0, *sizes[:-1]])
    return np.concatenate([first + places for first, places in zip(before, numbers, strict=True)])


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
