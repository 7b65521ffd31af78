"""SST-2: is a phrase of a film review positive? 67,349 + 872 phrases."""

from tasks.language.labelled_text import TextData
from tasks.language.sources import SST2

SPLIT_HASHES = {67_349: "f07b716c77de0027"}
"""`tasks.core.split.split_hash` by rows of the training file."""


class SST2Data(TextData):
    """The Stanford sentiment treebank with two classes, as in GLUE, from Parquet files in `<root>/sst2`.

    Labels are 0 negative, 1 positive. Training rows are phrases, so some that are held out for selection are parts of
    training sentences; results are reported on GLUE's validation set of whole sentences.
    """

    report = "validation"
    SOURCES = (SST2,)
