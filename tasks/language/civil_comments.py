"""Civil Comments: is a comment on a news site toxic, and how good is that told where a comment mentions an identity?"""

from tasks.language.labelled_text import TextData
from tasks.language.text_source import TextSource

N_VAL = 5_000
SALT = "civil_comments"
ROWS = 1_804_874
SPLIT_HASHES = {ROWS: "e1d48401cb79ad9e", 159_571: "263425cfd602204f"}
"""What `tasks.core.split.split_hash` gives, by rows of the training file: of Civil Comments, and of the stand-in."""
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
"""The identities of WILDS (Koh et al. 2021); the Hub's own files have none of these columns."""


def _source(folder: str, test: str, rows: int, test_rows: int, hub: bool, stand_in: str = "") -> TextSource:
    return TextSource(
        folder=folder,
        files={"train": ("train.parquet", rows), "test": (test, test_rows)},
        texts=("text",),
        label="toxicity",
        num_classes=2,
        n_val=N_VAL,
        salt=SALT,
        threshold=0.5,
        groups=IDENTITIES,
        hub=("google/civil_comments", None, {"train": "train", "test": "test"}) if hub else None,
        stand_in=stand_in,
    )


class CivilCommentsData(TextData):
    """Civil Comments (Borkan et al. 2019) from Parquet files in `<root>/civil_comments`.

    A comment is toxic, label 1, where at least half of its raters said so (`toxicity` >= 0.5). Identity columns, if
    they are there, are read likewise. Without Civil Comments, but with Jigsaw's comments in `<root>/jigsaw_toxicity`,
    these stand in for it.
    """

    report = "test"
    SOURCES = (
        _source("civil_comments", "test.parquet", ROWS, 97_320, hub=True),
        _source(
            "jigsaw_toxicity", "test_balanced.parquet", 159_571, 12_180, hub=False,
            stand_in="stand-in: Jigsaw toxic comments, not Civil Comments; half of its test comments are toxic",
        ),
    )  # fmt: skip
