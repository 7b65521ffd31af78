"""MNLI: does a premise entail a hypothesis, contradict it, or neither? 392,702 pairs and two validation sets."""

from tasks.language.labelled_text import TextData
from tasks.language.text_source import TextSource

N_VAL = 5_000
SALT = "mnli"
ROWS = 392_702
SPLIT_HASHES = {ROWS: "fe3c8a10f840ba49", 87_405: "5f2b6d06294758db"}
"""What `tasks.core.split.split_hash` gives, by rows of the training file.

These are of the whole one, and of the part that the suite was tested with.
"""

_SPLITS = {"train": "train", "matched": "validation_matched", "mismatched": "validation_mismatched"}


class MNLIData(TextData):
    """Multi-genre natural language inference (Williams, Nangia, Bowman 2018) from Parquet files in `<root>/mnli`.

    Labels are 0 entailment, 1 neutral, 2 contradiction. The labels of the test set are hidden, so results are reported
    on the validation set of the genres that are trained on, and beside it on that of other genres ("mismatched").
    """

    report = "matched"
    also = ("mismatched",)
    SOURCES = (
        TextSource(
            folder="mnli",
            files={
                "train": ("train.parquet", ROWS),
                "matched": ("validation_matched.parquet", 9_815),
                "mismatched": ("validation_mismatched.parquet", 9_832),
            },
            texts=("premise", "hypothesis"),
            label="label",
            num_classes=3,
            n_val=N_VAL,
            salt=SALT,
            hub=("nyu-mll/glue", "mnli", _SPLITS),
        ),
    )
