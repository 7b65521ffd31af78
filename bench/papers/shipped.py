"""`bench reproduce --claims`: the verdicts on the claims of all papers, read from `claims.json` of their pages."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from bench.errors import UserError, check_known
from bench.papers.reproduction import CORRECTION
from bench.papers.verdicts import SAID
from bench.results.table import Board, Column, Table
from bench.store.files import Damaged, read_bytes
from bench.text import why_wrong

OURS = "statements of ours, tested beside a paper's, are not counted by paper"
"""Note below the counts."""


class ClaimRecord(BaseModel):
    """A claim in `claims.json`; other keys are ignored."""

    name: str
    paper: str
    said: str = Field(pattern=f"^({'|'.join(map(re.escape, SAID))})$")
    text: str
    effect: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None
    unit: str
    ours: bool = False


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


def read(folder: Path, papers: Sequence[str] = ()) -> list[Page]:
    """The pages `PAPER/EXPERIMENT/claims.json` of a folder, of these papers (default: all); nothing is imported.

    Raises:
        UserError: there are no claims, a paper has none, or a page is damaged.
    """
    pages = list[Page]()
    for path in sorted(folder.glob("*/*/claims.json")):
        try:
            pages.append(Page.model_validate_json(read_bytes(path)))
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}: " for part in first["loc"])
            raise UserError(f"{path}: {place}{why_wrong(first['msg'])}; run the experiment again") from None
        except Damaged as error:
            raise UserError(str(error)) from None
    if not pages:
        raise UserError(
            f"{folder} has no claims (PAPER/EXPERIMENT/claims.json); name an output folder of `bench reproduce`"
        )
    check_known("paper", papers, list(dict.fromkeys(page.paper for page in pages)))
    return [page for page in pages if not papers or page.paper in papers]


def board(pages: Sequence[Page]) -> Board:
    """Number of claims by paper and verdict, and every claim with its effect."""
    claims = [
        {"experiment": page.experiment, "claim": claim.name}
        | claim.model_dump(exclude={"name"})
        | {"paper": "ours: " * claim.ours + claim.paper}
        for page in pages
        for claim in page.claims
    ]
    titles = {"experiment": "experiment", "claim": "claim", "said": "verdict", "effect": "effect", "low": "low",
              "high": "high", "unit": "unit", "paper": "the paper's statement, in short"}  # fmt: skip
    columns = [Column(key, title, wraps=key == "paper") for key, title in titles.items()]
    notes = [f"{page.experiment}: {page.correction}" for page in pages if page.correction != CORRECTION]
    tables = [counts(pages), Table("claims", columns, claims, notes)]
    return Board("claims", "Claims of papers", tables, [CORRECTION, OURS])


def counts(pages: Sequence[Page]) -> Table:
    """The number of the papers' claims by paper and verdict."""
    number = Counter((page.paper, claim.said) for page in pages for claim in page.claims if not claim.ours)
    verdicts = [said for said in SAID if any(of == said for _, of in number)]
    rows = [
        {"paper": paper} | {said: number[paper, said] for said in verdicts if number[paper, said]}
        for paper in dict.fromkeys(paper for paper, _ in number)
    ]
    return Table("claims by paper", [Column("paper", "paper"), *(Column(said, said) for said in verdicts)], rows)
