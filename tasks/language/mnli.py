"""MNLI: does a premise entail a hypothesis, contradict it, or neither? 392,702 pairs and two validation sets."""

from tasks.language.labelled_text import TextData
from tasks.language.sources import MNLI

SPLIT_HASHES = {392_702: "fe3c8a10f840ba49", 87_405: "5f2b6d06294758db"}
"""`tasks.core.split.split_hash` by rows of the training file: of the whole file, and of the part used in tests."""


class MNLIData(TextData):
    """Multi-genre natural language inference (Williams, Nangia, Bowman 2018) from Parquet files in `<root>/mnli`.

    Labels are 0 entailment, 1 neutral, 2 contradiction. The labels of the test set are hidden, so results are reported
    on the validation set of the training genres, and in addition on that of other genres ("mismatched").
    """

    report = "matched"
    also = ("mismatched",)
    SOURCES = (MNLI,)
