"""The page `results/schedules/README.md`: warm-up and cosine decay against constant rates; `make publish` writes it."""

from pathlib import Path
from textwrap import wrap
from typing import Any

from bench.boards.collect import Collected
from bench.boards.entries import Entry, Problem
from bench.boards.quality import judged
from bench.boards.shared import Verdicts, lost
from bench.plots.curves import curves
from bench.results.render import markdown_table
from bench.results.table import Column, Table
from bench.text import listed
from bench.tuning import suite

PART = "schedules"
"""The suite with these arms."""
FOLDER = Path("results/schedules")
PATH, FIGURE = FOLDER / "README.md", FOLDER / "curves.png"
ABOUT = """Further arms of the reference results: linear warm-up over 5 % of the steps, then cosine decay to 0. The plan
(`configs/suites/schedules.yaml`) was committed before its runs began. Each optimizer was tuned with the schedule as it
was without: the same number of trials ({trials}), points, tuning seeds ({tried}) and fresh seeds ({fresh}). So a method
with its schedule is compared with the same method at a constant rate, and with the reference under the same schedule.
Verdicts are sign tests over common seeds; the error rate of each is 5 %. Means over fresh seeds have 95 % intervals,
without the noise of tuning. “Edge” marks a chosen value that is the lowest or highest of those tried."""


def page(constant: Collected, arms: Collected | None) -> str | None:
    """The page; None without finished arms.

    Args:
        constant: the published runs at constant rates.
        arms: those with a schedule, if there are any.
    """
    if arms is None:
        return None
    plans = suite.load(PART)
    about = ABOUT.replace("\n", " ").format(
        trials=plans[0].tune.trials, tried=plans[0].tune.seeds, fresh=plans[0].seeds
    )
    planned = {task: None for declared in plans for task in declared.tasks}
    if cut := [task for task in planned if task not in {problem.task for problem in arms.problems}]:
        about += f" Cut: {listed(cut)}, which the plan has too, is not trained."
    lines = ["# Warm-up and cosine decay", "", *wrap(about, 120)]
    for problem in arms.problems:
        plain = next((each for each in constant.problems if each.task == problem.task), None)
        if plain is not None:
            lines += _section(constant, plain, arms, problem)
    lines += ["", f"![Training loss with warm-up and cosine decay, all optimizers]({FIGURE.name})", ""]
    tasks = ",".join(dict.fromkeys(problem.task for problem in arms.problems))
    commands = [f"bench leaderboard --task {tasks} --only trainer.schedule=cosine"]
    commands += [f"bench plot curves --task {tasks} --only trainer.schedule=cosine -o curves.png"]
    return "\n".join([*lines, "Made from `results/reference` by:", "", "```sh", *commands, "```", ""])


def _section(constant: Collected, plain: Problem, arms: Collected, problem: Problem) -> list[str]:
    """Sentence and table of a task."""
    metric, verdicts, _ = judged(arms, problem)
    before = {entry.opt: entry for entry in constant.problems[plain]}
    rows, gains = list[dict[str, Any]](), dict[str, list[str]]()
    for entry in verdicts.ordered(arms.problems[problem]):
        alone = before.get(entry.opt)
        own = Verdicts(alone, metric)
        gain = own.values(entry, own.of(entry))
        gains.setdefault(gain["verdict"] or "not compared", []).append(entry.opt)
        rows.append(
            {
                "opt": entry.opt,
                "before": alone and _chosen(alone),
                "settings": _chosen(entry),
                "constant": alone and (metric.mean(alone) or lost(alone)),
                "cosine": metric.mean(entry) or lost(entry),
                "gain": gain["verdict"],
                "effect": gain.get("effect"),
                "verdict": verdicts.values(entry, verdicts.of(entry))["verdict"],
            }
        )
    columns = [
        Column("opt", "optimizer"),
        Column("before", "chosen at a constant rate"),
        Column("settings", "chosen with the schedule"),
        Column("constant", f"{metric.words}, constant rate"),
        Column("cosine", f"{metric.words}, warm-up and cosine"),
        Column("gain", "against itself"),
        Column("effect", "effect of the schedule"),
        Column("verdict", f"against {verdicts.ref.opt if verdicts.ref else 'the reference'} with the schedule"),
    ]
    said = "; ".join(f"{words}: {listed(opts)}" for words, opts in gains.items())
    said = f"Each method with its schedule, against itself at a constant rate: {said}."
    return ["", f"## {problem.task}", "", *wrap(said, 120), "", *markdown_table(Table("", columns, rows))]


def _chosen(entry: Entry) -> str:
    """The chosen values of the searched settings, or the source of the settings."""
    point = (entry.study.winning_point or {}) if entry.study else {}
    edges = entry.study.edges if entry.study else []
    names = ((name.removeprefix("opt."), value) for name, value in point.items())
    return ", ".join(f"{name} {value:g}" + " (edge)" * (name in edges) for name, value in names) or entry.settings


def draw(arms: Collected) -> None:
    """Write the figure of the page."""
    FIGURE.write_bytes(curves(arms).picture(".png"))
