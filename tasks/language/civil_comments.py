"""Civil Comments: is a comment on a news site toxic? Accuracy is also measured by the identities mentioned."""

from tasks.language.labelled_text import TextData
from tasks.language.sources import CIVIL_COMMENTS, JIGSAW

SPLIT_HASHES = {1_804_874: "e1d48401cb79ad9e", 159_571: "263425cfd602204f"}
"""`tasks.core.split.split_hash` by rows of the training file: of Civil Comments, and of the stand-in."""


class CivilCommentsData(TextData):
    """Civil Comments (Borkan et al. 2019) from Parquet files in `<root>/civil_comments`.

    A comment is toxic, label 1, where at least half of its raters said so (`toxicity` >= 0.5). Identity columns, if
    present, are read likewise. Jigsaw's comments in `<root>/jigsaw_toxicity` stand in for missing Civil Comments.
    """

    report = "test"
    SOURCES = (CIVIL_COMMENTS, JIGSAW)
