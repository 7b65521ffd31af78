"""Experiments of papers: their list, the shipped verdicts, and one of them run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.config.values import counts_seeds, experiments, read_seeds
from bench.errors import UserError
from bench.output import Answer, remark
from bench.progress import doing

if TYPE_CHECKING:
    from bench.api.results import Table
    from bench.execute import Effort
    from bench.papers.reproduction import Version


def claims(name: str | None, out: Path | None) -> "Table":
    """The verdicts on all claims, from the shipped pages or those in a folder, written to a file if given.

    Args:
        name: a paper, or a folder of `PAPER/EXPERIMENT/claims.json`; None for all shipped pages.
        out: file of the verdicts.

    Raises:
        UserError: there are no pages.
    """
    from bench.api.results import Table
    from bench.papers.shipped import board, read

    is_folder = name is not None and Path(name).is_dir()
    shipped = read(Path(str(name)), ()) if is_folder else read(results_folder(), [name] if name else ())
    for what in shipped.damaged:
        remark("warning", f"{what}; it is ignored")
    table = Table([board(shipped)], code=int(bool(shipped.damaged)))
    if out is not None:
        table.write(out)
    return table


def results_folder() -> Path:
    """The shipped pages of papers.

    Raises:
        UserError: they are missing, as in an installed wheel.
    """
    folder = Path(__file__).parents[2] / "results"
    if not any(folder.glob("*/*/claims.json")):
        raise UserError(
            "the shipped claims are missing: a clone of the repository has them, an installed wheel does not; or name"
            " an output folder of `bench reproduce` "
        )
    return folder


def listed() -> Answer:
    """The experiments."""
    from bench.papers.experiments import title
    from bench.results.render import shown
    from bench.results.table import Table

    titles = [(name, title(name)) for name in experiments()]
    return Answer([{"name": name, "title": words} for name, words in titles], shown(Table.facts(titles)))


def version(quick: bool, search: bool, seeds: str | None, changes: Mapping[str, Any]) -> "Version":
    """The requested version of an experiment.

    Raises:
        UserError: the seeds are neither a number nor a list.
    """
    with doing("reading the experiment"):
        from bench.papers.reproduction import Version

    chosen = None if seeds is None else read_seeds(seeds)
    return Version(quick, search, len(chosen) if chosen and counts_seeds(str(seeds)) else chosen, changes)


def reproduce(
    name: str | None, folder: Path | None, places: dict[str, Any], version: "Version", effort: "Effort", *, dry: bool
) -> Answer:
    """Run an experiment and write its output.

    Raises:
        UserError: the request is invalid.
    """
    from bench.errors import check_known

    if name is None:
        raise UserError("name an experiment: bench reproduce NAME; see `bench list experiments`")
    check_known("experiment", [name], experiments())
    with doing("reading the experiment"):
        from bench.execute.command import dry_run
        from bench.papers import reproduce as papers
        from bench.papers.reproduction import as_json, claim_lines

    kind = "-quick" * version.quick + "-changed" * version.changed  # so that no trial overwrites the real page
    folder = folder or Path("reproduced") / f"{name}{kind}"
    if dry:
        request = papers.ask(name, places, version)
        todo = [*request.jobs, *(job for _, _, jobs in request.points for job in jobs)]
        about = [{"arm": arm, "seed": config.seed} for arm, config in todo]
        return dry_run([config for _, config in todo], effort, about)
    result = papers.reproduce(name, folder, places, version, effort)
    assert result is not None
    return Answer({"out": folder, **as_json(result)}, claim_lines(result, folder))
