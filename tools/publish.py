"""Publish reference results: `make publish`.

A task of the reference suite is published if the store has all fresh seeds of every optimizer. Its runs go to
`results/reference/runs`, thinned to 200 points per curve, its settings to `configs/tuned`, findings, verdicts and the
figure into README.md, tables and set-up into docs/results.md, its observations of attention to
`results/observatory`, and what was searched to `results/tuned`. The arms with a schedule (`tools/schedules.py`) have
runs there too, and their own page. Without a store, only the pages are written again. With `--check`, nothing is
written; exit code 1: one of these pages does not match `results/reference`.
"""

import argparse
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from copy import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import NamedTuple

from bench.api.papers import RESULTS as PAPERS
from bench.boards.collect import Collected, collect
from bench.boards.matrix import LEGEND, mark_of
from bench.boards.quality import quality
from bench.boards.theory import theory
from bench.config.tuned import read_tuned
from bench.config.values import place
from bench.output import write
from bench.papers import shipped
from bench.plots.curves import curves
from bench.plots.panels import Figure
from bench.results.render import markdown_table
from bench.results.table import Column, Table
from bench.store.record import RunResult, made_on
from bench.store.reports import StudyRecord
from bench.store.stores import Stores
from bench.text import cell, listed, spanned
from bench.tuning import suite
from optimizers.plugins import slug
from tools import observatory, schedules, searches, thinning

KINDS = {"theory": ("theory",), "vision": ("vision",), "text": ("lm", "sst2")}
"""The parts of the reference suite with tasks of each kind."""
PARTS = tuple(part for parts in KINDS.values() for part in parts)
DRAWN = ("cifar10", "lm", "mha_dm1", "synthetic_joint")
"""The tasks in the figure of README.md."""
FOLDER, FIGURE = Path("results/reference/runs"), Path("docs/_static/reference.png")
README, RESULTS = Path("README.md"), Path("docs/results.md")
SENSITIVITY = Path("results/tuned")
BEGIN, END = "<!-- reference -->", "<!-- /reference -->"
VERBS = {"▲": ("beats", "beat"), "▼": ("loses to", "lose to")}
NAMES = {"adam": "Adam", "adamw": "AdamW", "momo": "MoMo", "muon": "Muon"}
"""Names of optimizers that are not in capitals."""


class Published(NamedTuple):
    """The published runs, as boards read them.

    Attributes:
        all: those at constant learning rates.
        tasks: those of each task.
        arms: those with a schedule; None without any.
    """

    all: Collected
    tasks: Mapping[str, Collected]
    arms: Collected | None


def finished(stores: Stores, part: str) -> list[str]:
    """The tasks of a part on which all optimizers are tuned and have all their fresh seeds."""
    there = {run.run_id: run for run in stores.runs if run.finished}
    studies = {study.name: study for study in stores.studies}
    open_tasks, tasks = set[str](), list[str]()
    for declared in suite.load(part):
        for spec in declared.specs({}):
            tasks.append(spec.task)
            study = studies.get(spec.name)
            if study is not None and study.winner is None and not study.missing:
                continue  # no tried setting can be the best, so there are no fresh seeds
            winner = there.get(study.winner or "") if study is not None else None
            if winner is None:
                open_tasks.add(spec.task)
                continue
            point = {name: winner.config["opt_options"][name.removeprefix("opt.")] for name in spec.axes}
            wanted = {
                spec.config(point, seed, {}).model_copy(update={"device": winner.config["device"]}).run_id
                for seed in spec.report_seeds
            }
            if not wanted <= there.keys():
                open_tasks.add(spec.task)
    return [task for task in dict.fromkeys(tasks) if task not in open_tasks]


def ship(stores: Stores, parts: Sequence[str], tasks: Sequence[str], tuned: Path | None) -> None:
    """Write the runs of these parts and tasks, in place of shipped runs on the same problems.

    Args:
        stores: have the runs.
        parts: of suites.
        tasks: by name.
        tuned: folder with the tuned settings to ship; None for none.
    """
    names = {spec.name for part in parts for each in suite.load(part) for spec in each.specs({})}
    mine = [study for study in stores.studies if study.name in names and study.task in tasks]
    stores = copy(stores)
    stores.studies = mine
    trials = {run_id for study in mine for run_id in study.run_ids}
    winners = {study.winner for study in mine}
    settings = [
        (run.config["task"], run.config["opt"], run.config["opt_options"], run.problem)
        for run in stores.runs
        if run.run_id in winners
    ]
    runs = [
        run
        for run in stores.runs
        if run.run_id in trials
        or (run.config["task"], run.config["opt"], run.config["opt_options"], run.problem) in settings
    ]
    with TemporaryDirectory() as temporary:
        kept = thinning.copy(stores, runs, Path(temporary))
        _withdraw({_arm(run) for run in runs})
        shutil.copytree(temporary, FOLDER, dirs_exist_ok=True)
    files = [] if tuned is None else [path for study in mine if (path := _settings_of(study, tuned)) is not None]
    for task in {path.parent.name for path in files}:
        shutil.rmtree(Path("configs/tuned") / task, ignore_errors=True)
    for path in files:
        to = Path("configs/tuned") / path.parent.name / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"{len(kept)} runs, {len(mine)} studies, {len(files)} files of settings, {size / 1e6:.1f} MB")


def _settings_of(study: StudyRecord, tuned: Path) -> Path | None:
    """The file with a study's settings in this folder, if it names this study."""
    path = tuned / slug(study.task) / f"{slug(study.opt)}.yaml"
    return path if path.is_file() and read_tuned(path).provenance.study == study.name else None


def _ship_searches(tasks: Sequence[str], tuned: Path) -> None:
    """Write the pages of what was searched on these tasks, from the folder with the tuned settings."""
    for task in tasks:
        (SENSITIVITY / task).mkdir(parents=True, exist_ok=True)
        page = (tuned / task / "sensitivity.md").read_text("utf-8")
        # Without the folders of the machine that made it.
        page = re.sub(r"^Made by `[^`]*`", "Made by `bench suite reference`", page, flags=re.MULTILINE)
        (SENSITIVITY / task / "sensitivity.md").write_text(page, "utf-8")
        shutil.copy(tuned / task / "sensitivity.png", SENSITIVITY / task)


def _arm(run: RunResult) -> tuple[str, str]:
    """Task and schedule of a run; a shipped block has the runs of one."""
    return run.config["task"], run.config["trainer"]["schedule"]


def _withdraw(arms: Set[tuple[str, str]]) -> None:
    """Remove the shipped runs of these tasks and schedules, and their studies."""
    shipped = Stores([FOLDER])
    old = {run.run_id for run in shipped.runs if _arm(run) in arms}
    for folder in {shipped.place(run_id) for run_id in old}:
        shutil.rmtree(folder)
    for study in shipped.studies:
        if study.run_ids & old:
            study.path(FOLDER).unlink()


class _Column(NamedTuple):
    """A task in the published tables.

    Attributes:
        kind: of the task, a key of `KINDS`.
        title: what the cells are.
        key: of the cells in the rows.
        table: the rows, of the board `quality`, or `theory` where the reference is at the floor of the loss.
    """

    kind: str
    title: str
    key: str
    table: Table


def _columns(found: Collected) -> dict[str, _Column]:
    """The published tasks."""
    ranked, aligned = ({table.title: table for table in board(found).tables} for board in (quality, theory))
    names = {problem.task: problem.name for problem in found.problems}
    columns = {}
    for kind, parts in KINDS.items():
        for task in sorted(names.keys() & {task for part in parts for plan in suite.load(part) for task in plan.tasks}):
            table = ranked[names[task]]
            if _at_floor(table) and names[task] in aligned:
                columns[task] = _Column(kind, "final alignment", "alignment", aligned[names[task]])
            else:
                title = next(column.title for column in table.columns if column.key == "final")
                columns[task] = _Column(kind, title, "final", table)
    return columns


def _by_optimizer(columns: Mapping[str, _Column], values: bool) -> list[str]:
    """A table of optimizers and tasks in Markdown, with the marks of verdicts, and on request with values."""
    rows: dict[str, dict[str, str]] = {}
    for task, column in columns.items():
        for row in column.table.rows:
            value = f"{cell(row[column.key])} " * values
            rows.setdefault(row["opt"], {"opt": row["opt"]})[task] = value + mark_of(row.get("verdict"))
    titles = [Column(task, task + f": {column.title}" * values) for task, column in columns.items()]
    return markdown_table(Table("", [Column("opt", "optimizer"), *titles], [rows[opt] for opt in sorted(rows)]))


def text(found: Collected) -> str:
    """The reference results for README.md: a sentence for each finding, and the marks of all verdicts."""
    columns = _columns(found)
    findings = [f"* {finding}" for finding in _findings(columns)]
    return "\n".join([*findings, "", *_by_optimizer(columns, values=False), "", *LEGEND, ""])


def _findings(columns: Mapping[str, _Column]) -> list[str]:
    """Which optimizers beat the reference, or lose to it, on more than half of the tasks."""
    marks: dict[tuple[str, str], dict[str, str]] = {}
    for task, column in columns.items():
        reference = next((row["opt"] for row in column.table.rows if row["is_reference"]), "")
        for row in column.table.rows:
            marks.setdefault((reference, row["opt"]), {})[task] = mark_of(row.get("verdict"))
    names: dict[tuple[str, str], list[str]] = {}
    for mark in VERBS:
        for (reference, opt), of in marks.items():
            if 2 * (count := Counter(of.values())[mark]) > len(of):
                kinds = listed(list(dict.fromkeys(columns[task].kind for task in of)))
                words = f"{_name(reference)} on {count} of {len(of)} {kinds} tasks"
                names.setdefault((mark, words), []).append(_name(opt))
    return [f"{listed(opts)} {VERBS[mark][len(opts) > 1]} {words}." for (mark, words), opts in names.items()]


def _name(opt: str) -> str:
    return NAMES.get(opt, opt.upper())


def details(found: Collected) -> str:
    """The tables and the set-up, for docs/results.md."""
    columns = _columns(found)
    lines = ["Cells have means over fresh seeds and 95 % intervals, without the noise of tuning.", *LEGEND]
    for kind in KINDS:
        if tasks := {task: column for task, column in columns.items() if column.kind == kind}:
            lines += ["", f"**{kind.capitalize()}**", "", *_by_optimizer(tasks, values=True)]
    reasons: dict[tuple[str, str], list[str]] = {}
    for task, column in columns.items():
        for row in column.table.rows:
            if mark_of(row.get("verdict")) == "?":
                reasons.setdefault((task, row["verdict"].removeprefix("not compared: ")), []).append(row["opt"])
    notes = [f"No verdict for {listed(opts)} on {task}: {why}." for (task, why), opts in reasons.items()]
    notes += [f"{study.opt} has no row on {study.task}: {why}." for study, why in found.unranked]
    runs = [run for entries in found.problems.values() for entry in entries for run in entry.runs.values()]
    notes.append(f"Machines and versions: {made_on(runs)}.")
    return "\n".join([*lines, "", *wrap(" ".join(notes), 120), "", "**Set-up**", "", *_set_up(found), ""])


def _set_up(found: Collected) -> list[str]:
    """A table of the trials, seeds and budgets of each task in Markdown."""
    rows = []
    for problem, entries in found.problems.items():
        studies = [entry.study for entry in entries if entry.study]
        counts = [[len(study.trials) for study in studies], [len(study.seeds) for study in studies]]
        trainer = next(iter(entries[0].runs.values())).config["trainer"]
        unit = "step" if trainer["max_steps"] else "epoch"
        length = trainer[f"max_{unit}s"]
        budget = f"{length:,g} {unit}{'s' * (length != 1)}", str(trainer["batch_size"])
        rows.append((problem.task, *map(spanned, [*counts, [len(entry.runs) for entry in entries]]), *budget))
    titles = ("task", "trials", "tuning seeds", "fresh seeds", "budget of a run", "batch size")
    return markdown_table(Table.of(titles, rows))


def _at_floor(table: Table) -> bool:
    """Whether the reference is at the floor of the metric and there is no target, so that the table ranks nothing."""
    return any("at the floor" in note and "no target" in note for note in table.notes)


def shown() -> Published:
    """The published runs."""
    stores = Stores([FOLDER])
    constant = _only(stores, lambda schedule: schedule == "constant")
    others = _only(stores, lambda schedule: schedule != "constant")
    found = collect(constant)
    tasks = dict.fromkeys(problem.task for problem in found.problems)
    of_tasks = {task: collect(constant, tasks=[task]) for task in tasks}
    return Published(found, of_tasks, collect(others) if others.runs else None)


def figure(found: Collected) -> Figure:
    """The curves on some tasks, for README.md."""
    chart = curves(found)
    panels = zip(chart.panels, found.problems, strict=True)
    return replace(chart, panels=[replace(panel, title=p.name) for panel, p in panels if p.task in DRAWN])


def _only(stores: Stores, keep: Callable[[str], bool]) -> Stores:
    """The same stores with only the runs with these schedules, and their studies."""
    found = copy(stores)
    found.runs = [run for run in stores.runs if keep(run.config["trainer"]["schedule"])]
    ids = {run.run_id for run in found.runs}
    found.studies = [study for study in stores.studies if study.run_ids & ids]
    return found


def _ship_finished(stores: Stores, tuned: Path) -> bool:
    """Ship what is finished in these stores; False if nothing is."""
    tasks = [task for part in PARTS for task in finished(stores, part)]
    arms = finished(stores, schedules.PART)
    print(f"finished: {', '.join(tasks) or 'nothing'}; with a schedule: {', '.join(arms) or 'nothing'}")
    if tasks:
        ship(stores, PARTS, tasks, tuned)
        _ship_searches(tasks, tuned)
    if arms:
        ship(stores, [schedules.PART], arms, None)
    return bool(tasks or arms)


def _pages(there: Published) -> dict[Path, str]:
    """All generated pages: README.md and docs/results.md with their new blocks, and those of results."""
    blocks = {README: text(there.all), RESULTS: details(there.all)}
    pages = {path: _with_block(path.read_text("utf-8"), block) for path, block in blocks.items()}
    verdicts = shipped.read(PAPERS)
    claims = {
        "claims": "\n".join([*markdown_table(shipped.counts(verdicts)), ""]),
    }
    for name, block in claims.items():
        pages[RESULTS] = _with_block(pages[RESULTS], block, f"<!-- leaderboard {name} -->", "<!-- /leaderboard -->")
    optional = {observatory.path(task): observatory.page(task, own) for task, own in there.tasks.items()}
    optional |= {searches.PATH: searches.page(there.tasks), schedules.PATH: schedules.page(there.all, there.arms)}
    return pages | {path: page for path, page in optional.items() if page is not None}


def _with_block(page: str, block: str, begin: str = BEGIN, end: str = END) -> str:
    before, _, rest = page.partition(f"{begin}\n")
    return f"{before}{begin}\n{block}{end}{rest.partition(end)[2]}"


def main() -> int:
    """Publish, or check the published results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the pages with results/reference, and stop")
    parser.add_argument("--tuned", type=Path, default=Path("tuned"), help="folder with tuned settings")
    args = parser.parse_args()
    if not args.check and place("store").is_dir() and not _ship_finished(Stores([place("store")]), args.tuned):
        return 1
    there = shown()
    pages = _pages(there)
    if args.check:
        optional = (searches.PATH, schedules.PATH, *observatory.FOLDER.glob("*/README.md"))
        files = {path: path.read_text("utf-8") for path in (*optional, *pages) if path.exists()}
        wrong = sorted(path for path in {*files, *pages} if files.get(path) != pages.get(path))
        for path in wrong:
            print(f"{path} does not match results/reference: run make publish", file=sys.stderr)
        return int(bool(wrong))
    for path, page in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, "utf-8")
    for task, own in there.tasks.items():
        if observatory.path(task) in pages:
            observatory.draw(task, own)
    if there.arms is not None:
        schedules.draw(there.arms)
    write(FIGURE, figure(there.all).picture(FIGURE.suffix))
    return 0


if __name__ == "__main__":
    sys.exit(main())
