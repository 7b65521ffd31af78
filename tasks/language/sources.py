"""Locations and sources of the data of these tasks. Importing this file imports no torch.

`TaskSpec.files` names a function for each task that reads files: it makes sure that they exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.core.files import DataError
from tasks.core.layouts import Columns, as_parquet, find_files, is_table
from tasks.core.tables import Hub, or_part, require_tables
from tasks.language.text_source import TextSource

# -- labelled texts ---------------------------------------------------------------------------------------------------

_GLUE = "nyu-mll/glue"

MNLI = TextSource(
    folder="mnli",
    expected={
        "train": ("train.parquet", 392_702),
        "matched": ("validation_matched.parquet", 9_815),
        "mismatched": ("validation_mismatched.parquet", 9_832),
    },
    texts=("premise", "hypothesis"),
    label="label",
    num_classes=3,
    n_val=5_000,
    salt="mnli",
    also=("MNLI", "glue/mnli", "GLUE/MNLI", "glue_data/MNLI", "multinli_1.0"),
    stems={
        "train": ("multinli_1.0_train",),
        "matched": ("dev_matched", "multinli_1.0_dev_matched"),
        "mismatched": ("dev_mismatched", "multinli_1.0_dev_mismatched"),
    },
    renamed={"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
    classes=("entailment", "neutral", "contradiction"),
    hub=Hub(_GLUE, "mnli", {"train": "train", "matched": "validation_matched", "mismatched": "validation_mismatched"}),
)
SST2 = TextSource(
    folder="sst2",
    expected={"train": ("train.parquet", 67_349), "validation": ("validation.parquet", 872)},
    texts=("sentence",),
    label="label",
    num_classes=2,
    n_val=2_000,
    salt="sst2",
    also=("SST-2", "glue/sst2", "GLUE/SST-2", "glue_data/SST-2"),
    stems={"validation": ("dev",)},
    classes=("negative", "positive"),
    hub=Hub(_GLUE, "sst2", {"train": "train", "validation": "validation"}),
)
SQUAD = TextSource(
    folder="squad",
    expected={"train": ("train.parquet", 87_599), "validation": ("validation.parquet", 10_570)},
    texts=("question", "context"),
    label="answers",
    num_classes=2,  # logits of a token: begins the answer, ends it
    n_val=80,
    salt="squad",
    hub=Hub("rajpurkar/squad", None, {"train": "train", "validation": "validation"}),
    more=("title",),
)
IDENTITIES = ("male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white")
"""The identities of WILDS (Koh et al. 2021); the Hub's own files have none of these columns."""


def _comments(folder: str, test: str, rows: int, test_rows: int, hub: bool, stand_in: str = "") -> TextSource:
    return TextSource(
        folder=folder,
        expected={"train": ("train.parquet", rows), "test": (test, test_rows)},
        texts=("text",),
        label="toxicity",
        num_classes=2,
        n_val=5_000,
        salt="civil_comments",
        threshold=0.5,
        groups=IDENTITIES,
        hub=Hub("google/civil_comments", None, {"train": "train", "test": "test"}) if hub else None,
        stand_in=stand_in,
    )


CIVIL_COMMENTS = _comments("civil_comments", "test.parquet", 1_804_874, 97_320, hub=True)
JIGSAW = _comments(
    "jigsaw_toxicity",
    "test_balanced.parquet",
    159_571,
    12_180,
    hub=False,
    stand_in="stand-in: Jigsaw toxic comments, not Civil Comments; half of its test comments are toxic",
)


def here(sources: Sequence[TextSource], root: Path) -> list[str]:
    """The data sets that are in this data folder."""
    return [source.folder for source in sources if (root / source.folder).is_dir()]


def find(sources: Sequence[TextSource], root: Path, dataset: str | None = None) -> TextSource:
    """The data set of this name, by default the first that is in this data folder, or else the first."""
    known = {source.folder: source for source in sources}
    if dataset is None:
        dataset = next(iter(here(sources, root)), next(iter(known)))
    if dataset not in known:
        raise ValueError(f"dataset={dataset} is not known: it must be {' or '.join(known)}")
    return known[dataset]


# -- corpora ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corpus:
    """A text and its location.

    Attributes:
        folder: below the data folder; absolute for a user's file.
        expected: by split, the name of a file and its official rows (a text's bytes), None if unknown. "train" is
            always present; a file NAME_part replaces a missing one, and shards or JSON lines a table. Tables have a
            column `text`.
        separator: text added after every row of a Parquet file.
        hub: where to fetch it.
        stand_in: note in results if it stands in for other data.
    """

    folder: str
    expected: Mapping[str, tuple[str, int | None]]
    separator: str = "\n"
    hub: Hub | None = None
    stand_in: str = ""

    @property
    def layout(self) -> Columns:
        """The columns of its tables."""
        return Columns(("text",), {})

    def files(self, root: Path) -> dict[str, list[Path]]:
        """The files of each split in this data folder; for a missing one, where it is expected."""
        folder, found = root / self.folder, {}
        for split, (name, _) in self.expected.items():
            official = or_part(folder / name)
            others = [] if official.is_file() else find_files([folder, folder / "data"], [Path(name).stem])
            found[split] = others or [official]
        return found

    def paths(self, root: Path) -> dict[str, Path]:
        """A text or a Parquet file for each split; tables in other formats are converted, in the cache."""
        return {
            split: as_parquet(files, self.layout) if len(files) > 1 or is_table(files[0]) else files[0]
            for split, files in self.files(root).items()
        }

    def require(self, root: Path) -> None:
        """Make sure that the files exist; fetch missing ones from the Hub."""
        paths = self.paths(root)
        missing = [path for path in paths.values() if not path.is_file()]
        if missing and missing[0].suffix != ".parquet":
            raise DataError(
                f"missing data: {missing[0].name} expected in {missing[0].parent};"
                " copy it there, or name the folder that has it with --data DIR or BENCH_DATA"
            )
        require_tables(paths, ("text",), self.hub)


CORPORA = {
    "tiny_shakespeare": Corpus("tiny_shakespeare", {"train": ("input.txt", 1_115_394)}),
    "wikitext103": Corpus(
        "wikitext103",
        {
            "train": ("train.parquet", 1_801_350),
            "val": ("validation.parquet", 3_760),
            "test": ("test.parquet", 4_358),
        },
        separator="",  # its rows are lines, with their line ends
        hub=Hub("Salesforce/wikitext", "wikitext-103-v1", {"train": "train", "val": "validation", "test": "test"}),
    ),
    "wiki_quac": Corpus("wiki_quac", {"train": ("train.parquet", 6_843), "val": ("validation.parquet", 1_000)}),
    "lm1b": Corpus(
        "lm1b",
        {"train": ("train.parquet", 30_301_028), "test": ("test.parquet", 306_688)},
        # It is a script there, which `datasets` no longer runs; the Hub also has Parquet files.
        hub=Hub(
            "billion-word-benchmark/lm1b", "plain_text", {"train": "train", "test": "test"}, "refs/convert/parquet"
        ),
    ),
    # All of it is 825 GiB; only the first 10,000 documents are fetched.
    "pile": Corpus(
        "pile", {"train": ("train.parquet", 210_607_728)}, hub=Hub("NeelNanda/pile-10k", None, {"train": "train"})
    ),
}


def find_corpus(corpus: str) -> Corpus:
    """The corpus of this name, or the file of this name."""
    path = Path(corpus).expanduser()
    if corpus in CORPORA:
        return CORPORA[corpus]
    if path.is_file():
        return Corpus(str(path.parent.resolve()), {"train": (path.name, None)})
    if path.is_dir():
        raise ValueError(f"corpus={corpus} is a folder; name the file in it")
    if path.suffix or len(path.parts) > 1:
        raise ValueError(f"corpus={corpus} does not exist")
    raise ValueError(f"corpus={corpus} is not known: it must be one of {', '.join(CORPORA)}, or a file with text")


# -- `TaskSpec.files` of tasks whose options choose the files ---------------------------------------------------------


def civil_comments(root: Path, dataset: str | None = None) -> None:
    """See `TextSource.require`."""
    find((CIVIL_COMMENTS, JIGSAW), root, dataset).require(root)


def corpus(root: Path, corpus: str) -> None:
    """See `Corpus.require`."""
    find_corpus(corpus).require(root)
