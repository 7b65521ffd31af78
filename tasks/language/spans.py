"""Extraction of answers: a model of the BERT family that marks where in a text an answer begins and ends."""

import re
from collections import Counter
from collections.abc import Iterable
from string import punctuation
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from transformers import AutoModelForQuestionAnswering

from tasks.core.training_step import Outcome
from tasks.language.bert import Encoder

if TYPE_CHECKING:
    from tasks.language.labelled_text import TextBatch
    from tasks.language.squad import SquadData

LONGEST = 30
"""Tokens of an answer at most, as in BERT's own script."""


class SpanExtractor(Encoder):
    """An encoder of the BERT family with two logits for each token; the loss is the mean of two cross-entropies.

    They are of the answer's first and last token, over the tokens of a window; both are the window's first token if the
    window does not have the answer. The model is transformers' own for question answering: a linear layer on the last
    hidden states. Logits have the shape (rows, width, 2).
    """

    AUTO = AutoModelForQuestionAnswering
    DRAWN = "qa_outputs."
    data: "SquadData"

    def loss(self, batch: "TextBatch") -> Outcome:
        """Mean cross-entropy of first and last token; the labels are the batch's, of shape (rows, 5)."""
        encoded = self.encode(batch)
        logits = torch.stack([encoded.start_logits, encoded.end_logits], dim=-1)
        of_tokens = logits.masked_fill(~batch.mask[..., None], -torch.inf)
        return Outcome(cross_entropy(of_tokens, batch.labels[:, :2]), logits, batch.labels)

    def metrics(self) -> dict[str, Metric]:
        """F1 and exact match of SQuAD v1.1, in percent."""
        return {"f1": SpanScore(self.data, "f1"), "exact_match": SpanScore(self.data, "exact_match")}


# -- metrics ----------------------------------------------------------------------------------------------------------


class SpanScore(Metric):
    """A score of SQuAD v1.1 (Rajpurkar et al. 2016), `f1` of words or `exact_match`, in [0, 100].

    It is the mean over questions of the best over a question's answers. The predicted answer is the span with the
    largest sum of first and last logit, over all spans of at most 30 tokens in all windows of the paragraph.
    """

    places: list[Tensor]
    scores: list[Tensor]

    def __init__(self, data: "SquadData", score: Literal["f1", "exact_match"]) -> None:
        super().__init__()
        self.data, self.score = data, f1 if score == "f1" else exact_match
        self.add_state("places", [], dist_reduce_fx="cat")
        self.add_state("scores", [], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Take logits (rows, width, 2) and labels (rows, 5): `tasks.language.squad.Windows.spans` and the window."""
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
        scores = [over_answers(self.score, text, answers) for text, answers in answered]
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


def over_answers(score: Any, text: str, answers: Iterable[str]) -> float:
    """The best score of a text over the correct answers."""
    return max(score(text, answer) for answer in answers)
