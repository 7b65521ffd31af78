"""Experiments of papers: their list, the shipped verdicts, and one of them run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.values import counts_seeds, experiments, read_seeds
from bench.errors import UserError, check_known
from bench.output import Answer
from bench.progress import doing

if TYPE_CHECKING:
    from bench.api.results import Table
    from bench.execute import Effort
    from bench.papers.reproduction import Version


def claims(paper: str | None, out: Path | None) -> "Table":
    """The verdicts on all claims of the shipped pages, or of a paper's, written to a file if given."""
    from bench.api.results import Table
    from bench.papers.shipped import board, read

    table = Table([board(read(RESULTS, paper))])
    if out is not None:
        table.write(out)
    return table


RESULTS = Path(__file__).parents[2] / "results"
"""The shipped pages of papers, of a clone."""


def listed() -> Answer:
    """The experiments."""
    from bench.papers.experiments import load
    from bench.results.render import shown
    from bench.results.table import Table

    titles = [(name, load(name).title) for name in experiments()]
    return Answer([{"name": name, "title": words} for name, words in titles], shown(Table.facts(titles)))


def version(quick: bool, search: bool, seeds: str | None, changes: dict[str, Any]) -> "Version":
    """The requested version of an experiment."""
    with doing("reading the experiment"):
        from bench.papers.reproduction import Version

    chosen = None if seeds is None else read_seeds(seeds)
    return Version(quick, search, len(chosen) if chosen and counts_seeds(str(seeds)) else chosen, changes)


def reproduce(
    name: str | None, folder: Path | None, places: dict[str, Any], version: "Version", effort: "Effort", *, dry: bool
) -> Answer:
    """Run an experiment and write its output."""
    if name is None:
        raise UserError("name an experiment: bench reproduce NAME; see `bench list experiments`")
    check_known("experiment", [name], experiments())
    with doing("reading the experiment"):
        from bench.execute.command import dry_run
        from bench.papers import reproduce as papers
        from bench.papers.reproduction import as_json, claim_lines

    kind = "-quick" * version.quick + "-changed" * bool(
        version.changes or version.seeds is not None
    )  # so that no trial overwrites the real page
    folder = folder or Path("reproduced") / f"{name}{kind}"
    if dry:
        todo = papers.ask(name, places, version).every
        about = [{"arm": arm, "seed": config.seed} for arm, config in todo]
        return dry_run([config for _, config in todo], effort, about)
    result = papers.reproduce(name, folder, places, version, effort)
    return Answer({"out": folder, **as_json(result)}, claim_lines(result, folder))
