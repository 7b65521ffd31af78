"""`bench reproduce --claims`: verdicts on the claims of all papers, from `claims.json` of the shipped pages."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.errors import UserError, check_known
from bench.papers.reproduction import CORRECTION
from bench.papers.verdicts import PAGE_WORDS
from bench.results.table import Board, Column, Table

OURS = (
    "statements of ours, tested beside a paper's, are not counted by paper; claims that begin with “the same” count"
    " with the one before, once for each verdict"
)
Page = dict[str, Any]
"""An experiment with its claims, as in `claims.json` (`bench.papers.reproduction.as_json`)."""


def paper_of(page: Page) -> str:
    """The paper of an experiment."""
    return page["experiment"].partition("/")[0]


def read(folder: Path, paper: str | None = None) -> list[Page]:
    """The pages `PAPER/EXPERIMENT/claims.json` of a folder, of one paper or all; a UserError if there are none."""
    pages = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*/*/claims.json"))]
    if not pages:
        raise UserError(
            f"{folder} has no pages of papers: an installed wheel lacks them; use a clone of the repository"
        )
    check_known("paper", [paper] if paper else [], list(dict.fromkeys(map(paper_of, pages))))
    return [page for page in pages if paper in (None, paper_of(page))]


def board(pages: Sequence[Page]) -> Board:
    """Number of claims by paper and verdict, and every claim with its effect."""
    columns = [Column("experiment", "experiment"), Column("claim", "claim", names=True), Column("said", "verdict")]
    columns += [Column(key, key) for key in ("effect", "low", "high", "unit")]
    columns.append(Column("paper", "the paper's statement, in short", wraps=True))
    claims = [
        {name: claim.get(name) for name in ("said", "text", "effect", "low", "high", "unit", "ours")}
        | {"experiment": page["experiment"], "claim": claim["name"]}
        | {"paper": "ours: " * claim.get("ours", False) + claim["paper"]}
        for page in pages
        for claim in page["claims"]
    ]
    return Board("claims", "Claims of papers", [counts(pages), Table("claims", columns, claims)], [CORRECTION, OURS])


def counts(pages: Sequence[Page]) -> Table:
    """The number of the papers' claims by paper and verdict; repetitions ("the same") count once."""
    number = Counter[tuple[str, str]]()
    for page in pages:
        claims, statement, verdicts = [claim for claim in page["claims"] if not claim.get("ours")], "", set()
        for claim in claims:
            statement = statement if claim["paper"].startswith("the same") else claim["name"]
            verdicts.add((statement, claim["said"]))
        number.update((paper_of(page), said) for _, said in verdicts)
    verdicts = [verdict for verdict in PAGE_WORDS if any(of == verdict for _, of in number)]
    rows = [
        {"paper": paper} | {verdict: number[paper, verdict] for verdict in verdicts if number[paper, verdict]}
        for paper in dict.fromkeys(paper for paper, _ in number)
    ]
    columns = [Column("paper", "paper"), *(Column(verdict, verdict) for verdict in verdicts)]
    return Table("claims by paper", columns, rows)
