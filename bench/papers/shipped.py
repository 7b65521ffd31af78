"""`bench reproduce --claims`: the verdicts on the claims of all papers, read from `claims.json` of their pages."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from pydantic import BaseModel, Field, FiniteFloat, ValidationError, field_validator

from bench.errors import UserError, check_known
from bench.papers.reproduction import CORRECTION
from bench.papers.verdicts import SAID
from bench.results.render import markdown_table
from bench.results.table import Board, Column, Table
from bench.store.files import Damaged, read_bytes
from bench.text import clean, in_markdown, why_wrong

OURS = "statements of ours, tested beside a paper's, are not counted by paper"
"""Note below the counts."""


class ClaimRecord(BaseModel):
    """A claim in `claims.json`; other keys are ignored."""

    name: str
    paper: str
    said: str
    text: str
    effect: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None
    unit: str
    ours: bool = False

    @field_validator("said")
    @classmethod
    def _known(cls, said: str) -> str:
        if said not in SAID:
            raise ValueError(f"input should be one of {', '.join(SAID)}")
        return said


class Page(BaseModel):
    """An experiment with its claims, in `claims.json`."""

    experiment: str = Field(pattern=r"^[^/]+/[^/]+$")
    title: str
    correction: str
    claims: list[ClaimRecord]

    @property
    def paper(self) -> str:
        """The folder of the paper's experiments."""
        return self.experiment.partition("/")[0]


class Shipped(NamedTuple):
    """The pages of a folder, sorted by experiment, and why others cannot be read."""

    pages: list[Page]
    damaged: list[str]

    def counts(self) -> dict[str, dict[str, int]]:
        """Number of the paper's claims by paper and verdict, in the order of `SAID`."""
        by_paper = {page.paper: Counter[str]() for page in self.pages}
        for page in self.pages:
            by_paper[page.paper].update(claim.said for claim in page.claims if not claim.ours)
        return {paper: {said: n[said] for said in SAID if n[said]} for paper, n in by_paper.items() if n}


def read(folder: Path, papers: Sequence[str] = ()) -> Shipped:
    """The claims of all pages `PAPER/EXPERIMENT/claims.json` of a folder. Nothing is imported and nothing written.

    Args:
        folder: an output folder of `bench reproduce`, or the shipped `results`.
        papers: papers to keep; all by default.

    Raises:
        UserError: there are no claims, or a paper has none.
    """
    pages, damaged = list[Page](), list[str]()
    for path in sorted(folder.glob("*/*/claims.json")):
        try:
            pages.append(Page.model_validate_json(read_bytes(path)))
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}: " for part in first["loc"])
            damaged.append(clean(f"{path}: {place}{why_wrong(first['msg'])}; run the experiment again"))
        except Damaged as error:
            damaged.append(str(error))
    known = list(dict.fromkeys(page.paper for page in pages))
    if not known and not damaged:
        raise UserError(
            f"{folder} has no claims (PAPER/EXPERIMENT/claims.json); name an output folder of `bench reproduce`"
        )
    check_known("paper", papers, known)
    return Shipped([page for page in pages if not papers or page.paper in papers], damaged)


def board(shipped: Shipped) -> Board:
    """Number of claims by paper and verdict, and every claim with its effect."""
    counts = shipped.counts()
    verdicts = [Column(said, said) for said in SAID if any(said in of_paper for of_paper in counts.values())]
    by_paper = [{"paper": paper, **of_paper} for paper, of_paper in counts.items()]
    columns = [
        Column("experiment", "experiment"),
        Column("claim", "claim"),
        Column("said", "verdict", markup="strong"),
        Column("effect", "effect", "mean over seeds"),
        Column("low", "low", "of its 95 % interval"),
        Column("high", "high", "of its 95 % interval"),
        Column("unit", "unit"),
        Column("paper", "the paper's statement, in short", wraps=True),
    ]
    claims = [
        {"experiment": page.experiment, "claim": claim.name}
        | claim.model_dump(exclude={"name"})
        | {"paper": "ours: " * claim.ours + claim.paper}
        for page in shipped.pages
        for claim in page.claims
    ]
    notes = [f"{page.experiment}: {page.correction}" for page in shipped.pages if page.correction != CORRECTION]
    tables = [
        Table("claims by paper", [Column("paper", "paper"), *verdicts], by_paper),
        Table("claims", columns, claims, notes),
    ]
    return Board("claims", "Claims of papers", tables, [CORRECTION, OURS])


def summary(shipped: Shipped) -> str:
    """A paragraph of Markdown for each paper: its number of claims by verdict."""
    lines = [
        f"* {in_markdown(paper)}: {', '.join(f'{said} ({n})' for said, n in by_verdict.items())}"
        for paper, by_verdict in shipped.counts().items()
    ]
    return "".join(f"{fill(line, 120, subsequent_indent='  ')}\n" for line in lines)


def by_experiment(shipped: Shipped, link: str) -> str:
    """A table in Markdown: a row for each experiment and verdict, with the names of the claims.

    `link` is the path from the table to the folder of the pages, as `../results`.
    """
    rows = [
        (page.experiment, said, names)
        for page in shipped.pages
        for said in SAID
        if (names := ", ".join(f"{claim.name}{' (ours)' * claim.ours}" for claim in page.claims if claim.said == said))
    ]
    experiment = Column(
        "experiment", "experiment", markup=lambda name: f"[{in_markdown(name)}]({link}/{name}/report.md)"
    )
    return "\n".join([*markdown_table(Table.of([experiment, "verdict", "claims"], rows)), ""])
