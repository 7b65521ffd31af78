"""SST-2: is a phrase of a film review positive? 67,349 + 872 phrases."""

from tasks.language.labelled_text import TextData
from tasks.language.text_source import TextSource

N_VAL = 2_000
SALT = "sst2"
ROWS = 67_349
SPLIT_HASHES = {ROWS: "f07b716c77de0027"}
"""What `tasks.core.split.split_hash` gives, by rows of the training file."""


class SST2Data(TextData):
    """The Stanford sentiment treebank with two classes, as in GLUE, from Parquet files in `<root>/sst2`.

    Labels are 0 negative, 1 positive. Training rows are phrases, so some that are held out for selection are parts of
    sentences that are trained on; results are reported on GLUE's validation set of whole sentences.
    """

    report = "validation"
    SOURCES = (
        TextSource(
            folder="sst2",
            files={"train": ("train.parquet", ROWS), "validation": ("validation.parquet", 872)},
            texts=("sentence",),
            label="label",
            num_classes=2,
            n_val=N_VAL,
            salt=SALT,
            hub=("nyu-mll/glue", "sst2", {"train": "train", "validation": "validation"}),
        ),
    )
