"""`bench verify`: repeat runs of a store, or of the reference results, and report whether they are confirmed.

The runs are drawn at random, so that the sender of a store cannot predict them. They are stored separately.
"""

import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scipy.special import stdtrit

from bench.config.checks import check_places
from bench.config.run_config import resolve, settings_of
from bench.config.values import reference_folder
from bench.errors import UserError
from bench.output import Answer, note, warn_of
from bench.results.render import shown
from bench.results.table import Table
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.text import CONVERGED, clean, comparable, counted, duration
from optimizers import OPTIMIZERS
from optimizers.plugins import bare
from tasks import TASKS

ROUNDING = 1e-6
"""Relative difference up to which two values are equal except for rounding. Ours."""
ERROR = 0.005
"""Probability that seed noise alone refutes a run. Ours."""


def verify(path: Path | None, runs: int, tasks: list[str] | None, opts: list[str] | None, data: Path) -> Answer:
    """Repeat `runs` runs of a store (None: the reference results); data sets are in `data`.

    Exit code 1 if one was refuted or is damaged, or none could be repeated.
    """
    path = path or reference_folder()
    if path is None:
        raise UserError("this installation has no reference results; name a store: bench verify PATH")
    stores = Stores([path])
    code = warn_of(stores)
    selected = stores.selected(tasks, opts) if stores.runs else []
    candidates = [run for run in selected if run.status in ("completed", "diverged")]
    if not candidates:
        raise UserError(f"no matching finished runs in {stores.shown}")
    drawn = random.sample(candidates, min(runs, len(candidates)))
    spent = duration(sum(run.wall_s for run in drawn))
    note(f"{counted(len(drawn), 'run')}, which took {spent} on the original machine")
    rows, named = list[dict[str, Any]](), {"task": tasks or [], "opt": opts or []}
    with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        for run in drawn:
            repeated: RunResult | None = None
            try:
                stores.tables(run.run_id)
            except UserError as error:
                verdict, why = "refuted", str(error)
            else:
                try:
                    repeated = _repeated(run, named, {"data": data, "store": Path(folder)})
                    others = [r for r in stores.runs if r.finished and r.run_id != run.run_id]
                    verdict, why = judge(run, repeated, [r for r in others if _settings(r) == _settings(run)])
                except UserError as error:
                    verdict, why = "undecided", f"it cannot be trained here: {error}"
            note(f"{run.run_id}: {verdict}: {why}")
            rows.append({"task": run.task, "opt": bare(run.config["opt"]), "seed": run.config["seed"]})
            rows[-1] |= {"run_id": run.run_id, "verdict": verdict, "why": why, "claimed": _value(run)}
            rows[-1] |= {"repeated": None if repeated is None else _value(repeated)}
    counts = [row["verdict"] for row in rows if row["verdict"] != "undecided"]
    table = Table.of([*rows[0]], [[*row.values()] for row in rows])
    return Answer(rows, shown(table), int(code or not counts or "refuted" in counts))


def judge(run: RunResult, repeated: RunResult, others: Sequence[RunResult]) -> tuple[str, str]:
    """Whether a repeated run confirms the claimed result, and why: `confirmed`, `refuted` or `undecided`.

    Where rounding differs, the difference may grow until the run is like one with another seed. So it must be within
    the range of differences between two seeds of these settings (those of `others`: a wrong claim would widen it),
    which has probability 1 - `ERROR` for normal noise.
    """
    if run.outcome == repeated.outcome:
        return "confirmed", "bit for bit"
    claimed, value = _value(run), _value(repeated)
    if (run.status, claimed) == (repeated.status, value):
        return "confirmed", "the same value"
    if run.status != repeated.status or claimed is None or value is None:
        other_seeds = run.status != repeated.status and any(other.status == repeated.status for other in others)
        words = f"it is {repeated.status} here, and was {run.status}{', as other seeds are' * other_seeds}"
        return "undecided" if other_seeds else "refuted", words
    words = f"{value:.6g} here, {claimed:.6g} claimed"
    if abs(value - claimed) <= ROUNDING * max(abs(value), abs(claimed)):
        return "confirmed", f"{words}: up to rounding"

    def scaled(value: float) -> float:
        return math.log(value) if run.scale == "log" and value > 0 else value

    values = [scaled(final) for other in others if (final := _value(other)) is not None]
    if len(values) < 2:
        return "undecided", f"{words}; fewer than 2 other seeds of these settings give no estimate of the noise"
    noise = float(stdtrit(len(values) - 1, 1 - ERROR / 2)) * math.sqrt(2) * statistics.stdev(values)
    if abs(scaled(value) - scaled(claimed)) > noise:
        return "refuted", f"{words}, beyond the spread over seeds"
    return "confirmed", f"{words}, within the spread over seeds"


def allowed(recorded: Mapping[str, str], named: Mapping[str, Sequence[str]], what: str) -> dict[str, str]:
    """The names under which the `task` and the `opt` of a record (`what`) may be imported; nothing is imported yet.

    Records are untrusted. So a file or a module that no installed package announces is imported only if the user names
    it too (`named`, by kind; else a UserError).
    """
    names: dict[str, str] = {}
    for kind, registry in (("task", TASKS), ("opt", OPTIMIZERS)):
        announced = {point.value for point in registry.announced.values()}
        known = [recorded[kind]] if ":" not in recorded[kind] or recorded[kind] in announced else named.get(kind, ())
        name = next((name for name in known if bare(name) == bare(recorded[kind])), None)
        if name is None:
            why = "which is imported only if you name it too: repeat the command with"
            raise UserError(clean(f"{what} names {recorded[kind]}, {why} --{kind} {recorded[kind]}"))
        names[kind] = name
    return names


def _repeated(run: RunResult, named: Mapping[str, list[str]], places: Mapping[str, Path]) -> RunResult:
    """A run trained again; UserError if it cannot be trained here, or names code that the user has not named."""
    from bench.train.runner import run as train

    recorded = {kind: run.config[kind] for kind in ("task", "opt")}
    for name, value in run.config["opt_options"].items():
        if isinstance(value, str) and ":" in value:  # the constructor may take a class by name, and import it
            raise UserError(f"its setting {name} {value!r} may name code, which is not imported from a store")
    names = allowed(recorded, named, f"run {run.run_id}")
    config = resolve({**settings_of(run.config), **names, **places}, recorded=True)
    if config.run_id != run.run_id:
        raise UserError("its task or optimizer has a different version here")
    check_places([config])
    result = train(config)
    if result.status == "killed":
        raise KeyboardInterrupt
    return result


def _settings(run: RunResult) -> Any:
    """The configuration but for the seeds."""
    return comparable({name: value for name, value in run.config.items() if name not in ("seed", "data_seed")})


def _value(run: RunResult) -> float | None:
    """The metric, or the suboptimality gap if its ratios are compared."""
    excess = run.excess() if run.scale == "log" else None
    return run.final if excess is None else max(excess, CONVERGED)
