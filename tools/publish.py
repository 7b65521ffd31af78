"""Publish reference results: `make publish`.

A task of the reference suite is published if the store has all fresh seeds of every optimizer. Its runs go to
`results/reference/runs`, thinned to 200 points per curve, its settings to `configs/tuned`, findings, verdicts and the
figure into README.md, tables and set-up into docs/results.md, and what was searched to `results/tuned`. Without a
store, only the pages are written again. With `--check`, nothing is written; exit code 1: one of these pages does not
match `results/reference`.
"""

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any, NamedTuple

from scipy.stats import binomtest

from bench.api.experiments import RESULTS as PAPERS
from bench.boards.collect import Collected, collect
from bench.boards.explain import tried
from bench.boards.matrix import LEGEND, mark_of
from bench.boards.quality import quality
from bench.config.values import place
from bench.output import write
from bench.papers import shipped
from bench.papers.verdicts import LEVEL
from bench.plots.curves import curves
from bench.plots.panels import Figure
from bench.results.render import markdown_table
from bench.results.table import Column, Table
from bench.store.record import RunResult, machines_and_versions
from bench.store.reports import StudyRecord
from bench.store.stores import Stores
from bench.sweeps import sensitivity
from bench.text import cell, counted, listed, options_text, spanned
from bench.tuning import suite
from bench.tuning.spec import StudySpec
from optimizers.plugins import slug
from tools import thinning

KINDS = {"theory": ("theory",), "vision": ("vision",), "text": ("lm", "sst2")}
"""The parts of the reference suite with tasks of each kind."""
DRAWN = ("cifar10", "lm", "mha_dm1", "synthetic_joint")
"""The tasks in the figure of README.md."""
RUNS, FIGURE = Path("results/reference/runs"), Path("docs/_static/reference.png")
README, RESULTS, SEARCHES = Path("README.md"), Path("docs/results.md"), Path("results/tuned/README.md")
MARKS = ("▲", "▼", "≈")
VERBS = {"▲": ("beats", "beat"), "▼": ("loses to", "lose to")}
NAMES = {"adam": "Adam", "adamw": "AdamW", "momo": "MoMo", "muon": "Muon"}
"""Names of optimizers that are not in capitals."""
ABOUT_SEARCHES = """For each optimizer and task of the reference suite: the tried values of each searched setting, from
the smallest to the largest (each heading links to all points and their scores), the chosen values, and the other
settings, without those that are off. Hours are the wall time of all trials, with one thread; the machines differ.
`bench leaderboard --task TASK --explain OPT` prints costs, machines and commands of a row."""


def specs() -> list[StudySpec]:
    """The studies of the reference suite."""
    return [spec for parts in KINDS.values() for part in parts for plan in suite.load(part) for spec in plan.specs({})]


def finished(stores: Stores) -> list[str]:
    """The tasks on which all optimizers are tuned and have all their fresh seeds."""
    runs = {run.run_id: run for run in stores.runs if run.finished}
    studies = {study.name: study for study in stores.studies}
    complete = dict[str, bool]()
    for spec in specs():
        study = studies.get(spec.name)
        complete.setdefault(spec.task, True)
        if study is not None and study.winner is None and not study.missing:
            continue  # no tried setting can be the best, so there are no fresh seeds
        winner = runs.get(study.winner or "") if study is not None else None
        if winner is not None:
            point = {name: winner.config["opt_options"][name.removeprefix("opt.")] for name in spec.axes}
            configs = [spec.config(point, seed, {}) for seed in spec.report_seeds]
            update = {"device": winner.config["device"]}
            if all(config.model_copy(update=update).run_id in runs for config in configs):
                continue
        complete[spec.task] = False
    return [task for task, is_complete in complete.items() if is_complete]


def ship(stores: Stores, tasks: Sequence[str], tuned: Path) -> None:
    """Write the runs of these tasks in place of the shipped ones; settings and pages of searches are in `tuned`."""
    names = {spec.name for spec in specs()}
    studies = [study for study in stores.studies if study.name in names and study.task in tasks]
    stores = copy(stores)
    stores.studies = studies
    trials = {run_id for study in studies for run_id in study.run_ids}
    winners = {study.winner for study in studies}
    settings = [_settings(run) for run in stores.runs if run.run_id in winners]
    runs = [run for run in stores.runs if run.run_id in trials or _settings(run) in settings]
    with TemporaryDirectory() as folder:
        thinning.copy(stores, runs, Path(folder))
        _withdraw({(run.config["task"], run.config["trainer"]["schedule"]) for run in runs})
        shutil.copytree(folder, RUNS, dirs_exist_ok=True)
    for task in tasks:
        settings_of_task, searched = Path("configs/tuned") / slug(task), SEARCHES.parent / task
        shutil.rmtree(settings_of_task, ignore_errors=True)
        shutil.copytree(tuned / slug(task), settings_of_task)
        of_task = [study for study in studies if study.task == task]
        of_trials = [run for run in runs if any(run.run_id in study.run_ids for study in of_task)]
        varied = dict.fromkeys(axis for study in of_task for axis in study.axes)
        sweep = sensitivity.analyse(of_trials, list(varied), of_task[0].mode)
        sensitivity.write(searched, sweep, "bench suite reference")
        (searched / "sensitivity.pdf").unlink()
    print(f"shipped {len(runs)} runs and {len(studies)} studies")


def _settings(run: RunResult) -> tuple[Any, ...]:
    return run.config["task"], run.config["opt"], run.config["opt_options"], run.problem


def _withdraw(arms: set[tuple[str, str]]) -> None:
    """Remove the shipped blocks with these tasks and schedules, of which each has one, and their studies."""
    old = Stores([RUNS])
    run_ids = {run.run_id for run in old.runs if (run.config["task"], run.config["trainer"]["schedule"]) in arms}
    for folder in {old.blocks[run_id].folder for run_id in run_ids}:
        shutil.rmtree(folder)
    for study in old.studies:
        if study.run_ids & run_ids:
            study.path(RUNS).unlink()


class _Column(NamedTuple):
    """A task in the published tables: its kind, what its cells are, and its table on the board `quality`."""

    kind: str
    title: str
    table: Table


def _columns(runs: Collected) -> dict[str, _Column]:
    """The published tasks."""
    ranked = {table.title: table for table in quality(runs).tables}
    names = {problem.task: problem.name for problem in runs.problems}
    columns: dict[str, _Column] = {}
    for kind, parts in KINDS.items():
        for task in sorted(names.keys() & {task for part in parts for plan in suite.load(part) for task in plan.tasks}):
            table = ranked[names[task]]
            columns[task] = _Column(kind, next(c.title for c in table.columns if c.key == "final"), table)
    return columns


def _surviving(columns: Mapping[str, _Column]) -> set[tuple[str, str]]:
    """The verdicts, by task and optimizer, that survive Holm's correction (1979) over all comparisons of a page.

    Their levels are those of exact sign tests at the planned numbers of seeds.
    """
    levels = dict[tuple[str, str], float]()
    for task, column in columns.items():
        for row in (row for row in column.table.rows if mark_of(row.get("verdict")) in MARKS):
            wins, losses = (row["compared"][of] for of in ("wins", "losses"))
            levels[task, row["opt"]] = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    ordered = sorted(levels, key=lambda of: levels[of])
    last = next((i for i, of in enumerate(ordered) if levels[of] > LEVEL / (len(ordered) - i)), len(ordered))
    return {*ordered[:last]}


def _by_optimizer(
    columns: Mapping[str, _Column], values: bool, surviving: Collection[tuple[str, str]] = ()
) -> list[str]:
    """A table of optimizers and tasks in Markdown: marks of verdicts, twice if surviving, and on request values."""
    rows: dict[str, dict[str, str]] = {}
    for task, column in columns.items():
        for row in column.table.rows:
            value = f"{cell(row['final'])} " * values
            mark = mark_of(row.get("verdict"))
            mark *= 1 + (mark in VERBS and (task, row["opt"]) in surviving)
            rows.setdefault(row["opt"], {"opt": row["opt"]})[task] = value + mark
    titles = [Column(task, task + f": {column.title}" * values) for task, column in columns.items()]
    return markdown_table(Table("", [Column("opt", "optimizer"), *titles], [rows[opt] for opt in sorted(rows)]))


def text(runs: Collected) -> str:
    """The reference results for README.md: a sentence for each finding, and the marks of all verdicts."""
    columns = _columns(runs)
    findings = [f"* {finding}" for finding in _findings(columns)]
    surviving = _surviving(columns)
    holm = "▲▲ and ▼▼ also hold with Holm's correction over the table (seven seeds are too few for that)."
    return "\n".join([*findings, "", *_by_optimizer(columns, False, surviving), "", *LEGEND, holm, ""])


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


def details(runs: Collected) -> str:
    """The tables and the set-up, for docs/results.md."""
    columns = _columns(runs)
    cells = "Cells have means over fresh seeds with 95 % intervals, without the noise of tuning, or medians."
    lines = [cells, *LEGEND]
    for kind in KINDS:
        if tasks := {task: column for task, column in columns.items() if column.kind == kind}:
            lines += ["", f"**{kind.capitalize()}**", "", *_by_optimizer(tasks, values=True)]
    reasons: dict[tuple[str, str], list[str]] = {}
    for task, column in columns.items():
        for row in column.table.rows:
            if mark_of(row.get("verdict")) == "?":
                reasons.setdefault((task, row["verdict"].removeprefix("not compared: ")), []).append(row["opt"])
    notes = [f"No verdict for {listed(opts)} on {task}: {why}." for (task, why), opts in reasons.items()]
    notes += [f"{study.opt} has no row on {study.task}: {why}." for study, why in runs.unranked]
    every = [run for entries in runs.problems.values() for entry in entries for run in entry.runs.values()]
    notes.append(f"Machines and versions: {machines_and_versions(every)}.")
    return "\n".join([*lines, "", *wrap(" ".join(notes), 120), "", "**Set-up**", "", *_set_up(runs), ""])


def _set_up(runs: Collected) -> list[str]:
    """A table of the trials, seeds and budgets of each task in Markdown."""
    rows = []
    for problem, entries in runs.problems.items():
        studies = [entry.study for entry in entries if entry.study]
        counts = [[len(study.trials) for study in studies], [len(study.seeds) for study in studies]]
        trainer = next(iter(entries[0].runs.values())).config["trainer"]
        unit = "step" if trainer["max_steps"] else "epoch"
        length = trainer[f"max_{unit}s"]
        budget = f"{length:,g} {unit}{'s' * (length != 1)}", str(trainer["batch_size"])
        rows.append((problem.task, *map(spanned, [*counts, [len(entry.runs) for entry in entries]]), *budget))
    titles = ("task", "trials", "tuning seeds", "fresh seeds", "budget of a run", "batch size")
    return markdown_table(Table.of(titles, rows))


def searches(runs: Collected) -> str:
    """The page of what the reference suite searched and chose."""
    lines = ["# What was searched", "", *wrap(ABOUT_SEARCHES, 120)]
    options = {entry.study.name: entry.options for entry in runs.entries if entry.study is not None}
    every = [entry.study for entry in runs.entries if entry.study is not None] + [study for study, _ in runs.unranked]
    for task in dict.fromkeys(problem.task for problem in runs.problems):
        studies = sorted((study for study in every if study.task == task), key=lambda study: study.opt)
        trials = sorted({counted(len(study.trials), "trial") for study in studies})
        seeds = sorted({counted(len(study.seeds), "seed") for study in studies})
        splits = sorted({f"{study.metric} on the split `{study.select_split}`" for study in studies})
        scope = f"{listed(trials)} on {listed(seeds)} for each optimizer, scored by {listed(splits)}."
        lines += ["", f"## [{task}]({task}/sensitivity.md)", "", *wrap(scope, 120), ""]
        rows = [_search(study, options.get(study.name, {}), runs) for study in studies]
        lines += markdown_table(Table.of(("optimizer", "tried", "chosen", "not searched", "hours", "notes"), rows))
    return "\n".join([*lines, ""])


def _search(study: StudyRecord, options: Mapping[str, Any], runs: Collected) -> tuple[str, ...]:
    """A row of the page of searches."""
    searched = {axis.removeprefix("opt."): ends for axis, ends in tried(study).items()}
    chosen = {name.removeprefix("opt."): value for name, value in (study.best["point"] if study.best else {}).items()}
    fixed = {
        name: value
        for name, value in options.items()
        if name not in searched and value is not None and value is not False
    }
    hours = f"{sum(run.wall_s for run in runs.trial_runs(study)) / 3600:.2g}"
    edges = f"chosen at the edge: {listed(study.edges)}" if study.edges else ""
    ends = "; ".join(f"{name} {ends}" for name, ends in searched.items())
    return study.opt, ends, options_text(chosen) or "none", options_text(fixed), hours, edges


def published() -> Collected:
    """The shipped runs at constant learning rates."""
    stores = Stores([RUNS])
    stores.runs = [run for run in stores.runs if run.config["trainer"]["schedule"] == "constant"]
    ids = {run.run_id for run in stores.runs}
    stores.studies = [study for study in stores.studies if study.run_ids & ids]
    return collect(stores)


def figure(runs: Collected) -> Figure:
    """The curves on some tasks, for README.md."""
    chart = curves(runs)
    panels = zip(chart.panels, runs.problems, strict=True)
    return replace(chart, panels=[replace(panel, title=p.name) for panel, p in panels if p.task in DRAWN])


def pages(runs: Collected) -> dict[Path, str]:
    """All generated pages: README.md and docs/results.md with their new blocks, and that of the searches."""
    claims = "\n".join([*markdown_table(shipped.counts(shipped.read(PAPERS))), ""])
    results = _with_block(RESULTS.read_text("utf-8"), details(runs), "reference")
    return {
        README: _with_block(README.read_text("utf-8"), text(runs), "reference"),
        RESULTS: _with_block(results, claims, "leaderboard claims", "leaderboard"),
        SEARCHES: searches(runs),
    }


def _with_block(page: str, block: str, begin: str, end: str = "reference") -> str:
    before, _, rest = page.partition(f"<!-- {begin} -->\n")
    return f"{before}<!-- {begin} -->\n{block}<!-- /{end} -->{rest.partition(f'<!-- /{end} -->')[2]}"


def main() -> int:
    """Publish, or check the published results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the pages with results/reference, and stop")
    parser.add_argument("--tuned", type=Path, default=Path("tuned"), help="folder with tuned settings")
    args = parser.parse_args()
    if not args.check and place("store").is_dir():
        stores = Stores([place("store")])
        tasks = finished(stores)
        print(f"finished: {', '.join(tasks) or 'nothing'}")
        if not tasks:
            return 1
        ship(stores, tasks, args.tuned)
    runs = published()
    new = pages(runs)
    if args.check:
        wrong = [path for path, page in new.items() if not path.exists() or path.read_text("utf-8") != page]
        for path in wrong:
            print(f"{path} does not match results/reference: run make publish", file=sys.stderr)
        return int(bool(wrong))
    for path, page in new.items():
        path.write_text(page, "utf-8")
    write(FIGURE, figure(runs).picture(FIGURE.suffix))
    return 0


if __name__ == "__main__":
    sys.exit(main())
