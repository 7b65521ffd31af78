"""Locations and sources of the texts of these tasks. Importing this file imports no torch.

`TaskSpec.files` names a function for each task that reads files: it makes sure that they exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.core.files import DataError, folders_of, require_present
from tasks.core.tables import Hub, fetch, find_files, kind_of, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

_NO_LABEL = ("-", "-1", "", "none", "nan")


@dataclass(frozen=True)
class TextSource:
    """Location of a data set of texts, and the meaning of its columns.

    `expected` has by split the name of its file and the official rows (a text's bytes), None if unknown. "train" is
    always present; a file NAME_part replaces a missing one, and shards, JSON lines, CSV or TSV a table.
    """

    folder: str  # below the data folder; absolute for a user's file
    expected: Mapping[str, tuple[str, int | None]]
    texts: tuple[str, ...] = ("text",)  # columns
    label: str = ""  # column with the label, in [0, num_classes); empty for a corpus
    num_classes: int = 0
    n_val: int = 0  # training rows kept for validation, chosen by `salt` (`tasks.core.order.validation_rows`)
    salt: str = ""
    threshold: float | None = None  # the label column is a share in [0, 1], and the label is 1 from this share on
    hub: Hub | None = None
    stand_in: str = ""  # note in results if these stand in for other data
    more: tuple[str, ...] = ()  # other required columns with texts
    also: tuple[str, ...] = ()  # other names of the folder
    prefix: str = ""  # of names of files elsewhere
    renamed: Mapping[str, str] = field(default_factory=dict)  # columns of the official names there
    classes: tuple[str, ...] = ()  # the labels in words; then rows without a label are left out
    separator: str = "\n"  # text added after every row of a corpus

    @property
    def columns(self) -> tuple[str, ...]:
        """The required columns."""
        return *self.texts, *filter(None, [self.label]), *self.more

    def files(self, root: Path) -> dict[str, list[Path]]:
        """The files of each split in this data folder, in any layout; for a missing one, where it is expected."""
        folders, files = [root / self.folder, *folders_of(root, [self.folder, *self.also])], {}
        for split, (name, _) in self.expected.items():
            official = root / self.folder / name
            part = official.with_name(f"{official.stem}_part{official.suffix}")
            single = next((path for path in (official, part) if path.is_file()), None)
            words = [official.stem.replace("validation", word) for word in ("validation", "dev", "val", "valid")]
            stems = [prefix + word for prefix in ("", self.prefix) for word in words]
            files[split] = [single] if single else find_files(folders, stems) or [official]
        return files

    def require(self, root: Path) -> None:
        """Make sure that the files exist; fetch missing ones from the Hub."""
        split_of = {path: split for split, paths in self.files(root).items() for path in paths}
        is_table = next(iter(split_of)).suffix == ".parquet"
        note = f", with the column{'s' * (len(self.columns) > 1)} {', '.join(self.columns)}" * is_table
        require_present(split_of, lambda missing: [fetch(self.hub, split_of[path], path) for path in missing], note)

    def held_out(self, n: int) -> int:
        """Number of the n training rows kept for validation."""
        return min(self.n_val, n // 10)

    def read(self, paths: Sequence[Path], names: Iterable[str]) -> tuple["pa.Table", int]:
        """Columns of a split's files, with labels as numbers, and how many rows were left out for want of a label."""
        import pyarrow as pa

        tables = [self._read(path, [*dict.fromkeys([*names, *[self.label] * bool(self.classes)])]) for path in paths]
        table = pa.concat_tables([table for table, _ in tables], promote_options="permissive")
        return table, sum(dropped for _, dropped in tables)

    def _read(self, path: Path, names: list[str]) -> tuple["pa.Table", int]:
        import pyarrow as pa

        texts = {*self.texts, *self.more}
        kind = kind_of(path) or "tsv"
        table = read_rows(path, texts | {old for old, new in self.renamed.items() if new in texts}, kind)
        lower = [name.lower() for name in table.column_names]
        columns = {self.renamed.get(name, name): i for i, name in reversed([*enumerate(lower)])}
        for name in names:
            if name not in columns:
                what = f"{path} has no column {name!r}, only {', '.join(table.column_names)}; it must have"
                raise DataError(f"{what} {', '.join(names)}, as {self.hub.name if self.hub else 'a text'}")
        table = table.select([columns[name] for name in names]).rename_columns(names)
        for name in texts & {*names}:
            if table[name].null_count or str(table[name].type) not in ("string", "large_string"):
                values = table[name].to_pylist()
                for row, value in enumerate(values):
                    if not isinstance(value, str):
                        what = f"{path}: row {row} has no text in column {name!r} but {repr(value)[:80]}"
                        raise DataError(f"{what}; remove such rows")
                table = table.set_column(names.index(name), name, pa.array(values, pa.string()))
        if self.label not in names or not (self.classes or self.threshold):
            return table, 0
        labels = pa.array(self._labels(path, table[self.label]), pa.int64())
        table = table.set_column(names.index(self.label), self.label, labels)
        return table.filter(labels.is_valid()), labels.null_count

    def _labels(self, path: Path, column: Any) -> list[int | None]:
        """The labels of a file's rows; None for a row without one."""
        if self.threshold is not None:
            shares = column.to_pylist()
            for row, share in enumerate(shares):
                if not isinstance(share, int | float) or not 0 <= share <= 1:
                    raise DataError(f"{path}: row {row} has {self.label} {share}; it must be a share in [0, 1]")
            return [int(share >= self.threshold) for share in shares]
        known = {form: i for i, name in enumerate(self.classes) for form in (name, str(i))}
        words = [str(word).strip() for word in column.to_pylist()]
        forms = [word.lower().removesuffix(".0") for word in words]
        labels = [None if form in _NO_LABEL else known.get(form, -1) for form in forms]
        if -1 in labels:
            row, known_words = labels.index(-1), ", ".join(f"{i} or {name}" for i, name in enumerate(self.classes))
            what = f"{path}: row {row} has the {self.label} {words[row]!r}"
            raise DataError(f"{what}; it must be one of {known_words}: rename your labels")
        return labels


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
    also=("multinli_1.0",),
    prefix="multinli_1.0_",
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
CIVIL_COMMENTS = TextSource(
    folder="civil_comments",
    expected={"train": ("train.parquet", 1_804_874), "test": ("test.parquet", 97_320)},
    label="toxicity",
    num_classes=2,
    n_val=5_000,
    salt="civil_comments",
    threshold=0.5,
    hub=Hub("google/civil_comments", None, {"train": "train", "test": "test"}),
)
JIGSAW = replace(
    CIVIL_COMMENTS,
    folder="jigsaw_toxicity",
    expected={"train": ("train.parquet", 159_571), "test": ("test_balanced.parquet", 12_180)},
    hub=None,
    stand_in="stand-in: Jigsaw toxic comments, not Civil Comments; half of its test comments are toxic",
)
TOXICITY = {source.folder: source for source in (CIVIL_COMMENTS, JIGSAW)}


CORPORA = {
    "tiny_shakespeare": TextSource("tiny_shakespeare", {"train": ("input.txt", 1_115_394)}),
    "wikitext103": TextSource(
        "wikitext103",
        {"train": ("train.parquet", 1_801_350), "val": ("validation.parquet", 3_760), "test": ("test.parquet", 4_358)},
        also=("wikitext-103-v1",),
        separator="",  # its rows are lines, with their line ends
        hub=Hub("Salesforce/wikitext", "wikitext-103-v1", {"train": "train", "val": "validation", "test": "test"}),
    ),
    "wiki_quac": TextSource("wiki_quac", {"train": ("train.parquet", 6_843), "val": ("validation.parquet", 1_000)}),
}


def here(sources: Mapping[str, Any], root: Path) -> list[str]:
    """The data sets, by name, that are in this data folder."""
    return [name for name, source in sources.items() if (root / source.folder).is_dir()]


def find(sources: Mapping[str, Any], root: Path, name: str | None = None) -> Any:
    """The data set, or the corpus in a file, of this name; by default the first in this data folder, or the first."""
    name = name or next(iter([*here(sources, root), *sources]))
    if name in sources:
        return sources[name]
    if sources is not CORPORA:
        raise ValueError(f"dataset={name} is not known: it must be {' or '.join(sources)}")
    path = Path(name).expanduser()
    if path.is_file():
        return TextSource(str(path.parent.resolve()), {"train": (path.name, None)})
    why = f"is not known: it must be one of {', '.join(CORPORA)}, or a file with text"
    if path.is_dir() or path.suffix or len(path.parts) > 1:
        why = "is a folder; name the file in it" if path.is_dir() else "does not exist"
    raise ValueError(f"corpus={name} {why}")


def civil_comments(root: Path, dataset: str | None = None) -> None:
    """See `TextSource.require`."""
    find(TOXICITY, root, dataset).require(root)


def corpus(root: Path, corpus: str) -> None:
    """See `TextSource.require`."""
    find(CORPORA, root, corpus).require(root)
