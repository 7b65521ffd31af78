"""Publish reference results: `make publish`.

A task of the reference suite is published if the store has all fresh seeds of every optimizer. Its runs go to
`results/reference/runs`, thinned to 200 points per curve, its settings to `configs/tuned`, figure, sentences and
tables into README.md, verdicts and set-up into docs/results.md, its observations of attention to
`results/observatory`, and what was searched to `results/tuned`. The arms with a schedule (`tools/schedules.py`) have
runs there too, and their own page. Without a store, only the pages are written again. With `--check`, nothing is
written; exit code 1: one of these pages does not match `results/reference`.
"""

import argparse
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import copy
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any, NamedTuple

from PIL import Image

from bench.boards.charts import curves
from bench.boards.collect import Collected, collect
from bench.boards.entries import Entry
from bench.boards.quality import quality
from bench.boards.theory import ALIGNED, theory
from bench.config.tuned import read_tuned
from bench.grammar.values import place
from bench.output import write
from bench.results.chart import Chart, Panel
from bench.results.draw import picture
from bench.results.render import markdown_table
from bench.results.selection import GAP
from bench.results.sequential import NO_VALUE
from bench.results.table import Column, Table
from bench.store.record import CAP_BINDS, RunResult, made_on
from bench.store.reports import StudyRecord
from bench.store.stores import Stores
from bench.text import cell, counted, listed
from bench.tuning import suite
from optimizers.plugins import slug
from tools import observatory, schedules, searches, thinning

TABLES = {"Theory": ("theory",), "Vision": ("vision",), "Text": ("lm", "sst2")}
"""The parts of the reference suite in each table of README.md."""
PARTS = tuple(part for parts in TABLES.values() for part in parts)
FOLDER, FIGURE = Path("results/reference/runs"), Path("docs/_static/reference.png")
README, RESULTS = Path("README.md"), Path("docs/results.md")
SENSITIVITY = Path("results/tuned")
BEGIN, END = "<!-- reference -->", "<!-- /reference -->"
MARKS = {"better": "▲", "worse": "▼", "no difference found": "≈"}
"""Verdicts in the cells of README.md; others have none."""
ALT = "Training loss against optimizer steps, all optimizers"
AXES = {"xy": ", both axes logarithmic", "x": ", logarithmic steps", "y": ", logarithmic loss"}


class Published(NamedTuple):
    """The published runs, as boards read them.

    Attributes:
        all: those at constant learning rates.
        figure: their curves.
        tasks: those of each task.
        arms: those with a schedule; None without any.
    """

    all: Collected
    figure: Chart
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
    return path if path.is_file() and read_tuned(path).study == study.name else None


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
            study.places(FOLDER)[0].unlink()


class _Part(NamedTuple):
    """What one table of README.md shows.

    Attributes:
        title: of the table.
        ranked: the rows of the board `quality` by task.
        aligned: the rows of the board `theory` for the tasks on which the reference is at the floor of the loss.
    """

    title: str
    ranked: Mapping[str, Table]
    aligned: Mapping[str, Table]

    @property
    def columns(self) -> dict[str, tuple[str, str, Table]]:
        """Title, key and rows of each task's column."""
        said = {task: (f"{task}: {_metric(table)}", "final", table) for task, table in self.ranked.items()}
        for task, table in self.aligned.items():
            said[task] = (f"{task}: final alignment", "alignment", table)
        return said


def _parts(found: Collected) -> list[_Part]:
    tables = {table.title: table for table in quality(found).tables}
    alignments = {table.title: table for table in theory(found).tables}
    parts = []
    for title, members in TABLES.items():
        tasks = {task for part in members for declared in suite.load(part) for task in declared.tasks}
        own = {problem.task: tables[problem.name] for problem in found.problems if problem.task in tasks}
        aligned = {task: alignments[t.title] for task, t in own.items() if _at_floor(t) and t.title in alignments}
        if own:
            parts.append(_Part(title, {task: table for task, table in own.items() if task not in aligned}, aligned))
    return parts


def text(found: Collected, panels: Sequence[Panel]) -> str:
    """The reference results for README.md: the figure, summary and legend, a table for each part.

    Args:
        found: the published runs.
        panels: those of the figure.
    """
    parts = _parts(found)
    lines = [f"![{ALT}]({FIGURE})", "", *wrap(_caption(panels), 120), ""]
    lines += [line for sentence in _summary(parts) for line in wrap(f"* {sentence}", 120, subsequent_indent="  ")]
    lines += ["", *wrap(f"{_reading(parts)} {_made(found)}", 120)]
    for part in parts:
        cells: dict[str, dict[str, str]] = {}
        for task, (_, key, table) in part.columns.items():
            for row in table.rows:
                opt = f"{row['opt']} (reference)" if row["is_reference"] else row["opt"]
                cells.setdefault(opt, {})[task] = f"{cell(row[key])} {MARKS.get(_of_wins(row), '')}".strip()
        columns = [Column("opt", "optimizer"), *(Column(task, of[0]) for task, of in part.columns.items())]
        rows = [{"opt": opt, **own} for opt, own in sorted(cells.items())]
        lines += ["", f"**{part.title}**", "", *markdown_table(Table("", columns, rows))]
    return "\n".join([*lines, ""])


def details(found: Collected) -> str:
    """The verdicts on each task and the set-up, for docs/results.md."""
    said = []
    for part in _parts(found):
        sentences = [f"On {task}, {_by_verdict(table)}." for task, table in part.ranked.items()]
        said.append(" ".join([f"**{part.title}.**", *sentences, *[_by_alignment(part)] * bool(part.aligned)]))
    own = {problem.task: entries for problem, entries in found.problems.items()}
    unranked = [f"{study.opt} has no row on {study.task}: {why}." for study, why in found.unranked]
    excluded = _excluded(entry for entries in own.values() for entry in entries)
    said.append(" ".join([_set_up(own), *excluded, *unranked]))
    return "\n\n".join("\n".join(wrap(each, 120)) for each in said) + "\n"


def _summary(parts: Sequence[_Part]) -> list[str]:
    """How often each optimizer is better or worse than each reference, a sentence for each reference."""
    tasks: dict[str, list[str]] = {}
    verdicts: dict[str, dict[str, Counter[str]]] = {}
    for part in parts:
        for task, (_, _, table) in part.columns.items():
            reference = next((row["opt"] for row in table.rows if row["is_reference"]), None)
            if reference is None:
                continue
            tasks.setdefault(reference, []).append(task)
            for row in table.rows:
                if not row["is_reference"]:
                    verdicts.setdefault(reference, {}).setdefault(row["opt"], Counter())[_of_wins(row)] += 1
    said = []
    for reference, own in tasks.items():
        groups: dict[str, list[str]] = {}
        of = verdicts.get(reference, {})
        for opt, count in sorted(of.items(), key=lambda item: (-item[1]["better"], item[1]["worse"], item[0])):
            if words := " and ".join(f"{word} on {count[word]}" for word in MARKS if count[word]):
                groups.setdefault(f"{words} of {count.total()}", []).append(opt)
        listing = "; ".join(f"{listed(opts)} {words}" for words, opts in groups.items())
        said.append(f"Against {reference} on {listed(own)}: {listing or 'nothing is decided'}.")
    return said or ["Nothing was compared."]


def _reading(parts: Sequence[_Part]) -> str:
    """What the cells of the tables are."""
    marks = ", ".join(f"{mark} {word}" for word, mark in MARKS.items())
    said = (
        "Cells have means over fresh seeds and 95 % intervals, without the noise of tuning. The mark is the verdict"
        f" against the reference: {marks}; without a mark there is another verdict or none. A dash was not run, or"
        " no setting could be chosen."
    )
    aligned = [task for part in parts for task in part.aligned]
    if aligned:
        said += (
            f" On {listed(aligned)}, where the reference reaches the floor of the loss, cells are cosines between the"
            f" weights and the max-margin solution, and verdicts compare the steps to a cosine of {ALIGNED:g}."
        )
    return said


def _made(found: Collected) -> str:
    """Trials, seeds, machines and versions, in one sentence."""
    entries = [entry for own in found.problems.values() for entry in own]
    trials = _span(len(entry.study.trials) for entry in entries if entry.study)
    fresh = _span(len(entry.runs) for entry in entries)
    runs = [run for entry in entries for run in entry.runs.values()]
    return (
        f"On each task, all optimizers had the same number of trials ({trials} by task) and of fresh seeds ({fresh}):"
        f" [details]({RESULTS}) ({made_on(runs)})."
    )


def _caption(panels: Sequence[Panel]) -> str:
    """Axes and bands of the figure."""
    drawn = [panel for panel in panels if panel.traces]
    quantities = " or ".join(dict.fromkeys(panel.y.removesuffix(GAP) for panel in drawn))
    quantities += " (in some panels as suboptimality gap)" if any(panel.y.endswith(GAP) for panel in drawn) else ""
    axes = AXES.get(drawn[0].log, "") if len({panel.log for panel in drawn}) == 1 else ""
    notes: dict[str, list[str]] = {}
    for panel in drawn:
        note = re.sub(r" over \d+ seeds", " over fresh seeds", panel.note.splitlines()[0])
        notes.setdefault(note, []).append(panel.title.partition(": ")[2].partition(",")[0])
    usual, *others = sorted(notes, key=lambda note: -len(notes[note]))
    said = [f"Figure: {quantities} against optimizer steps{axes}; {usual}."]
    for other in others:
        new = [part for part in other.split("; ") if part not in usual.split("; ")]
        said.append(f"For {listed(notes[other])}: {'; '.join(new)}.")
    return " ".join([*said, "Tables: held-out data."])


def _set_up(entries: Mapping[str, Sequence[Entry]]) -> str:
    """Trials, seeds, budget, machine and versions of the runs by task, from their records."""
    trials, tuning, fresh, budget, batch = {}, {}, {}, {}, {}
    for task, own in entries.items():
        trials[task] = _span((len(entry.study.trials) for entry in own if entry.study), "trial")
        tuning[task] = _span((len(entry.study.seeds) for entry in own if entry.study), "seed")
        fresh[task] = _span((len(entry.runs) for entry in own), "fresh seed")
        trainer = next(iter(own[0].runs.values())).config["trainer"]
        name = "step" if trainer["max_steps"] else "epoch"
        batch[task] = "the full batch" if trainer["batch_size"] == "full" else f"batches of {trainer['batch_size']}"
        length = trainer[f"max_{name}s"]
        budget[task] = f"{length:,g} {name}{'s' * (length != 1)}"
    runs = [run for own in entries.values() for entry in own for run in entry.runs.values()]
    constant = all(run.config["trainer"]["schedule"] == "constant" for run in runs)
    steady = ", at a constant learning rate" * constant
    lines = [
        f"Each optimizer was tuned with {_by_task(trials)}, each on {_by_task(tuning)},"
        f" and then run on {_by_task(fresh)}.",
        f"Budget of a run{steady}: {_by_task(budget)} on {_by_task(batch)}.",
        f"Machines and versions: {made_on(runs)}.",
    ]
    if any((run.reason or "").startswith("converged") for run in runs):
        lines.append("A run ends early if its gradient underflows to 0.")
    return " ".join(lines)


def _excluded(entries: Iterable[Entry]) -> list[str]:
    """The rule on settings whose cap set nearly all steps, if there are any."""
    rule = f"Settings whose cap set more than {100 * CAP_BINDS:g} % of the steps were excluded from the choice"
    return [f"{rule} ([all searches](../{SENSITIVITY}/README.md))."] * any(entry.excluded for entry in entries)


def _span(numbers: Iterable[int], what: str = "") -> str:
    own = sorted(set(numbers)) or [0]
    last = counted(own[-1], what) if what else str(own[-1])
    return last if len(own) == 1 else f"{own[0]} to {last}"


def _by_task(values: Mapping[str, str]) -> str:
    """The most frequent value, and in brackets other values with their tasks."""
    usual, *others = (value for value, _ in Counter(values.values()).most_common())
    said, before = [], usual
    for value in others:
        said.append(f"{_without_unit(value, before)} on {listed([t for t, own in values.items() if own == value])}")
        before = value
    return f"{usual} ({'; '.join(said)})" if said else usual


def _without_unit(value: str, before: str) -> str:
    """Such as 17 for `17 trials` after `9 trials`, and 16 for `batches of 16` after `batches of 32`."""
    unit = re.sub(r"[\d,]+", "", value).rstrip("s")
    return re.sub(r"[^\d,]", "", value) if unit and unit == re.sub(r"[\d,]+", "", before).rstrip("s") else value


def _of_wins(row: Mapping[str, Any]) -> str:
    """The verdict of a row without a second claim (`Comparison.words`)."""
    verdict = row.get("verdict") or ""
    first = verdict.partition(", ")[0]
    return first if first in ("better", "worse") else verdict


def _metric(table: Table) -> str:
    return next(column.title for column in table.columns if column.key == "final")


def _by_verdict(table: Table) -> str:
    """The optimizers by their verdict."""
    reference = next((row["opt"] for row in table.rows if row["is_reference"]), "nobody")
    groups: dict[str, list[str]] = {}
    for row in table.rows:
        if _of_wins(row) not in ("", "reference"):
            groups.setdefault(_of_wins(row), []).append(row["opt"])
    words = {
        "better": f"better than {reference}",
        "no difference found": f"no difference from {reference} found",
        "worse": f"worse than {reference}",
        NO_VALUE: f"not decided, since no run of these or of {reference} reached it",
    }
    said = [f"{words[word]}: {', '.join(groups[word])}" for word in sorted(words.keys() & groups.keys())]
    other = [(*word.partition(": "), ", ".join(groups[word])) for word in sorted(groups.keys() - words.keys())]
    return "; ".join([*said, *(f"{what}: {names}" + f" ({why})" * bool(why) for what, _, why, names in other)])


def _at_floor(table: Table) -> bool:
    """Whether the reference is at the floor of the metric and there is no target, so that the table ranks nothing."""
    return any("at the floor" in note and "no target" in note for note in table.notes)


def _by_alignment(part: _Part) -> str:
    """Verdicts on the tasks whose final loss ranks nothing: by the steps to alignment with the theory's solution."""
    verdicts = "; ".join(f"{task}, {_by_verdict(table)}" for task, table in part.aligned.items())
    return (
        f"On {listed(list(part.aligned))}, the tuned reference reaches the floor of the loss, so verdicts compare the"
        f" steps to a cosine of {ALIGNED:g} between the weights and the max-margin solution, at settings tuned for the"
        f" loss: {verdicts}."
    )


def _smaller(image: bytes) -> bytes:
    """A PNG with a palette of 256 colours: a third of the size in the repository."""
    made = BytesIO()
    with Image.open(BytesIO(image)) as whole:
        whole.convert("RGB").quantize(256).save(made, "PNG", optimize=True, dpi=whole.info["dpi"])
    return made.getvalue()


def shown() -> Published:
    """The published runs."""
    stores = Stores([FOLDER])
    constant = _only(stores, lambda schedule: schedule == "constant")
    others = _only(stores, lambda schedule: schedule != "constant")
    found = collect(constant)
    tasks = dict.fromkeys(problem.task for problem in found.problems)
    of_tasks = {task: collect(constant, tasks=[task]) for task in tasks}
    return Published(found, curves(found), of_tasks, collect(others) if others.runs else None)


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
    blocks = {README: text(there.all, there.figure.panels), RESULTS: details(there.all)}
    pages = {path: _with_block(path.read_text("utf-8"), block) for path, block in blocks.items()}
    optional = {observatory.path(task): observatory.page(task, own) for task, own in there.tasks.items()}
    optional |= {searches.PATH: searches.page(there.tasks), schedules.PATH: schedules.page(there.all, there.arms)}
    return pages | {path: page for path, page in optional.items() if page is not None}


def _with_block(page: str, block: str) -> str:
    before, _, rest = page.partition(f"{BEGIN}\n")
    return f"{before}{BEGIN}\n{block}{END}{rest.partition(END)[2]}"


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
    write(FIGURE, _smaller(picture(there.figure.shown, FIGURE.suffix)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
