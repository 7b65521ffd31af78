"""Explanation of a row of a board: search space, trials, split, cost, reductions, commands."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.boards.collect import Collected, cap_shares
from bench.boards.entries import Entry, problem_key
from bench.boards.shared import flags
from bench.errors import unknown
from bench.results.render import shown
from bench.results.selection import above_infimum, equal_below, seed_median, selected
from bench.results.table import Table
from bench.run_summary import fit_words
from bench.store.record import CAP_BINDS, RunResult
from bench.store.reports import StudyRecord
from bench.text import cell, counted, duration, is_number, listed, options_text, seeds_in_words, word_of
from optimizers.plugins import bare

SAMPLERS = {"grid": "a log-spaced grid, extended at its edges", "qmc": "a Halton sequence"}


def explain(collected: Collected, name: str) -> list[dict[str, Any]]:
    """Explanation of the rows with this name, or of this optimizer: facts in words, trials, commands.

    Studies without a row are explained too.

    Raises:
        UserError: there is no such row or study.
    """
    entries = [entry for entry in collected.entries if name in (entry.name, entry.opt)]
    studies = [(study, why) for study, why in collected.unranked if name in (study.opt, bare(study.opt))]
    if not entries and not studies:
        known = {entry.name for entry in collected.entries} | {bare(study.opt) for study, _ in collected.unranked}
        raise unknown("row", name, sorted(known))
    rows = [explained(entry, collected) for entry in entries]
    return rows + [_without_row(study, why, collected) for study, why in studies]


def _without_row(study: StudyRecord, why: str, collected: Collected) -> dict[str, Any]:
    """Explanation of a study without a row."""
    runs = collected.trial_runs(study)
    names = {problem.key: problem.name for problem in collected.problems}
    return {
        "row": bare(study.opt),
        "problem": names.get(problem_key(runs[0]), study.task) if runs else study.task,
        "facts": {"no row": why, **_searched(study, collected)},
        "tried": _tried_points(study, collected),
        "commands": [_tune_words(study, runs[0], ())] if runs else [],
    }


def _tried_points(study: StudyRecord | None, collected: Collected) -> list[dict[str, Any]]:
    """The trials of a study; none without one."""
    if study is None:
        return []
    above, tried = above_infimum(collected.trial_runs(study)), []
    for trial, share in zip(study.trials, cap_shares(study, collected.by_id), strict=True):
        runs = [collected.by_id[run_id] for run_id in trial["runs"] if run_id in collected.by_id]
        diverged = sum(run.status == "diverged" for run in runs)
        excluded = (share or 0) > CAP_BINDS
        tried.append(
            {
                **{name: trial[name] for name in ("point", "kind", "state", "score")},
                "diverged": diverged,
                "cap_share": share,
                "excluded_score": seed_median([selected(run, above) for run in runs], study.mode) if excluded else None,
                "ended": f"{diverged} of {len(runs)} diverged" if diverged else trial["state"],
            }
        )
    return tried


def explained(entry: Entry, collected: Collected) -> dict[str, Any]:
    """Explanation of one row; see `explain`."""
    runs, study = list(entry.runs.values()), entry.study
    elsewhere = sorted({run.tuned_by for run in runs if run.tuned_by})
    unsearched = (
        f"in {listed(elsewhere)}, whose trials are not in these stores" if elsewhere else f"nothing: {entry.settings}"
    )
    facts = {
        "settings": f"{entry.settings}: {options_text(entry.options)}",
        **(_searched(study, collected) if study else {"searched": unsearched}),
        "shown": f"{'/'.join(sorted({run.split for run in runs}))} {entry.problem.metric} of"
        f" {counted(len(runs), 'run')}, {_seeds([run.config['seed'] for run in runs])}: {cell(entry.statuses)}",
        "their cost": _cost(runs),
        "cut": _cut(entry),
        "flags": ", ".join(flags(entry)) or "none",
        "versions": ", ".join(f"{what} {' and '.join(known)}" for what, known in entry.versions.items()),
        "machine": " and ".join(entry.machines),
    }
    seeds = [run.config["seed"] for run in runs]
    tuning = [_tune_words(study, runs[0], seeds)] if study is not None and runs else []
    return {
        "row": entry.name,
        "problem": entry.problem.name,
        "facts": facts,
        "tried": _tried_points(study, collected),
        "commands": [*tuning, *commands(runs)],
    }


def lines(row: Mapping[str, Any]) -> Iterator[str]:
    """A row's explanation for a terminal."""
    yield cell(f"{row['row']} on {row['problem']}")
    yield from shown(Table.facts(row["facts"].items(), least=11), "  ")
    if row["tried"]:
        yield "  tried"
        rows = [
            (options_text(t["point"]), t["kind"], t["ended"], t["excluded_score"] if t["score"] is None else t["score"])
            for t in row["tried"]
        ]
        heads = ["setting", "why", "ended", "score"]
        if any(trial["cap_share"] for trial in row["tried"]):
            rows = [(*words, _capped(trial["cap_share"])) for words, trial in zip(rows, row["tried"], strict=True)]
            heads.append("steps set by the cap")
        yield from shown(Table.of(heads, rows), "    ")
    if row["commands"]:
        yield "  commands"
    yield from (cell(f"    {command}") for command in row["commands"])
    yield ""


def _capped(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}" + ": excluded" * (share > CAP_BINDS)


def _searched(study: StudyRecord, collected: Collected) -> dict[str, str]:
    runs = collected.trial_runs(study)
    kinds = Counter(trial["kind"] for trial in study.trials)
    ranges = [f"{axis} (tried: {ends})" for axis, ends in tried(study).items()]
    scores = [trial["score"] for trial in study.trials]
    least = equal_below(scores, study.metric)
    equal = sum(score is not None and score <= least for score in scores)
    how = SAMPLERS.get(study.sampler, study.sampler)
    return {
        "searched": f"{' and '.join(ranges)} by {how}: {len(study.trials)} trials ({cell(kinds)}), each on"
        f" {_seeds(study.seeds)}",
        "chosen by": f"{study.metric or 'the metric'} on the split `{study.select_split or 'unknown'}`, median over"
        " the tuning seeds"
        + f"; scores up to {least:g} are equal, and the middle one of equal settings is chosen" * (equal > 1)
        + f"; best at the edge of {listed(study.edges)}" * bool(study.edges),
        "tuning cost": _cost(runs) + f" (study {study.name})",
    }


def tried(study: StudyRecord) -> dict[str, str]:
    """The tried values of each searched setting: from the smallest to the largest number, or all words."""
    ranges = {}
    for axis in study.axes:
        values = [trial["point"].get(axis) for trial in study.trials]
        numbers = [v for v in values if is_number(v)]
        words = f"{min(numbers):g} to {max(numbers):g}" if numbers else ", ".join(sorted({word_of(v) for v in values}))
        ranges[axis] = words
    return ranges


def _cut(entry: Entry) -> str:
    parts = sorted({run.part for run in entry.runs.values() if run.part})
    thin = any(run.thinned for run in entry.runs.values())
    said = [f"not the whole task: {', '.join(parts)}"] * bool(parts)
    if entry.study is not None:
        said += ["one tuning seed"] * (len(entry.study.seeds) == 1)
        said += [f"{counted(entry.study.missing, 'trial')} of the design missing"] * bool(entry.study.missing)
    return "; ".join([*said, *["curves are thinned"] * thin]) or "nothing"


def _cost(runs: Sequence[RunResult]) -> str:
    steps, seconds = sum(run.steps for run in runs), sum(run.wall_s for run in runs)
    where = " and ".join(sorted({run.machine for run in runs}))
    cost = f"{counted(len(runs), 'run')}, {steps:,} gradients of a batch, {duration(seconds)} of wall time"
    return cost + f" on {where}" * bool(where)


def _seeds(seeds: Sequence[int]) -> str:
    distinct = sorted({*seeds})
    return f"seed{'s' * (len(distinct) != 1)} {seeds_in_words(distinct)}"


def _tune_words(study: StudyRecord, run: RunResult, fresh: Sequence[int]) -> str:
    """The command of such a study with these fresh seeds; it searches the space that this version declares.

    Args:
        study: the study.
        run: one of its runs, or of its winner's.
        fresh: seeds of its winner's runs, if it has any.
    """
    fixed = {name: value for name, value in run.chosen.items() if name not in study.axes}
    words = fit_words(run, fixed).removeprefix("bench fit")
    kinds = Counter(trial["kind"] for trial in study.trials)
    seeds = f"--seeds {_list_of(study.seeds)}" + (f" --report_seeds {_list_of(fresh)}" if fresh else "")
    command = f"bench tune{words} --trials {kinds['design']} {seeds} --sampler {study.sampler}"
    if more := kinds["top-up"]:
        command += f"  # `bench suite` adds {counted(more, 'trial')}: equal budgets for all optimizers"
    return command


def _list_of(seeds: Sequence[int]) -> str:
    """Seeds as an option takes them."""
    return ",".join(map(str, sorted({*seeds}))) + "," * (len({*seeds}) == 1)


def commands(runs: Iterable[RunResult]) -> list[str]:
    """Shell commands that train these runs, one for all seeds of a setting."""
    seeds: dict[tuple[str, int | None], list[int]] = {}
    for run in runs:
        seed, order = run.config["seed"], run.config["data_seed"]
        seeds.setdefault((fit_words(run), None if order == seed else order), []).append(seed)
    lines = []
    for (words, order), of_setting in seeds.items():
        more = "" if order is None else f" --data_seed {order}"
        if len(of_setting) == 1:
            lines.append(f"{words} --seed {of_setting[0]}{more}")
        else:
            lines.append(f"for seed in {' '.join(map(str, sorted(of_setting)))}; do {words} --seed $seed{more}; done")
    return lines
