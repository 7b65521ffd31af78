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
from typing import Any, Literal, NamedTuple

from bench.config.plugins import allowed
from bench.config.run_config import resolve, settings_of
from bench.config.values import reference_folder
from bench.errors import UserError
from bench.output import Answer, note, warn_of
from bench.results.render import shown
from bench.results.table import Table
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.text import CONVERGED, comparable, counted, duration
from optimizers.plugins import bare

Verdict = Literal["confirmed", "refuted", "undecided"]
ROUNDING = 1e-6
"""Relative difference up to which two values are equal except for rounding. Ours."""
ERROR = 0.005
"""Probability that seed noise alone refutes a run. Ours."""
_SAME = ("torch", "lightning", "numpy", "timm", "transformers")


class Judged(NamedTuple):
    """A claimed run, the repeated one (None if it was not trained), the verdict, and why."""

    run: RunResult
    again: RunResult | None
    verdict: Verdict
    why: str

    def as_json(self) -> dict[str, Any]:
        """The verdict with both values."""
        run, again = ({"status": run.status, "value": _value(run)} if run else None for run in (self.run, self.again))
        names = {"run_id": self.run.run_id, "task": self.run.task, "opt": bare(self.run.config["opt"])}
        names |= {"seed": self.run.config["seed"]}
        return {**names, "verdict": self.verdict, "why": self.why, "claimed": run, "again": again}


def verify(
    path: Path | None, runs: int, seed: int | None, tasks: list[str] | None, opts: list[str] | None, data: Path
) -> Answer:
    """Repeat `runs` runs of a store (None: the reference results), drawn with this seed; data sets are in `data`.

    Exit code 1 if one was refuted or is damaged, or none could be repeated.

    Raises:
        UserError: there is nothing to verify.
        KeyboardInterrupt: it was stopped.
    """
    path = path or reference_folder()
    if path is None:
        raise UserError("this installation has no reference results; name a store: bench verify PATH")
    stores = Stores([path])
    code = warn_of(stores)
    if stores.runs:
        stores.refuse_unknown(tasks, opts)
    ended = ("completed", "diverged")
    candidates = [run for run in stores.runs if run.status in ended and run.is_of(tasks, opts)]
    if not candidates:
        raise UserError(f"no matching finished runs in {stores.shown}")
    drawn = random.Random(seed).sample(candidates, min(runs, len(candidates)))
    spent = duration(sum(run.wall_s for run in drawn))
    note(f"{counted(len(drawn), 'run')}, which took {spent} on the original machine")
    judged, named = list[Judged](), {"task": tasks or [], "opt": opts or []}
    with TemporaryDirectory() as place, redirect_stdout(sys.stderr):
        for run in drawn:
            try:
                stores.tables(run.run_id)
            except UserError as error:
                judged.append(Judged(run, None, "refuted", str(error)))
            else:
                judged.append(_judged(run, stores.runs, named, {"data": data, "store": Path(place)}))
            note(f"{run.run_id}: {judged[-1].verdict}: {judged[-1].why}")
            if judged[-1].again is not None and judged[-1].again.status == "killed":
                raise KeyboardInterrupt
    repeated = [judgement for judgement in judged if judgement.again is not None]
    refuted = not repeated or any(judgement.verdict == "refuted" for judgement in repeated)
    rows, heads = [judgement.as_json() for judgement in judged], ["task", "opt", "seed", "run_id", "verdict", "why"]
    table = Table.of(heads, [[row[name] for name in heads] for row in rows])
    return Answer(rows, shown(table), int(code or refuted))


def judge(run: RunResult, again: RunResult, others: Sequence[RunResult]) -> tuple[Verdict, str]:
    """Whether a repeated run confirms the claimed result.

    On the same type of processor, with the same versions and engine, it must agree bit for bit. Otherwise rounding
    differs, and may grow until the run is like one with another seed: so the difference must be within the range of
    differences between two seeds of these settings (those of `others`: a wrong claim would widen it), which has
    probability 1 - `ERROR` for normal noise.
    """
    exact = _determined(run, again)
    if run.outcome == again.outcome:
        return "confirmed", "bit for bit" if exact else "the same numbers"
    if run.status != again.status:
        chaotic = any(other.status != run.status for other in others)
        verdict: Verdict = "undecided" if chaotic and not exact else "refuted"
        return verdict, f"it is {again.status} here, and was {run.status}" + " as other seeds are" * chaotic
    claimed, value = _value(run), _value(again)
    if claimed is None or value is None:
        return ("confirmed", run.status) if claimed == value else ("refuted", "only one of the two has a value")
    words, noise = f"{value:.6g} here, {claimed:.6g} claimed", _noise(others)
    if abs(value - claimed) <= ROUNDING * max(abs(value), abs(claimed)):
        words += ", which is rounding"
    elif noise is None:
        return "undecided", f"{words}; fewer than 2 other seeds of these settings give no estimate of the noise"
    elif abs(_scaled(run, value) - _scaled(run, claimed)) > noise:
        return "refuted", f"{words}, beyond the spread over seeds"
    else:
        words += ", within the spread over seeds"
    return ("undecided", f"{words}, although processor and versions are the same") if exact else ("confirmed", words)


def _judged(
    run: RunResult, runs: Sequence[RunResult], named: Mapping[str, list[str]], places: Mapping[str, Path]
) -> Judged:
    """Train a run again and judge it; undecided if it names code that the user has not named."""
    from bench.config.checks import check_places
    from bench.train.runner import run as train

    recorded, what = {kind: run.config[kind] for kind in ("task", "opt")}, ""
    try:
        names = allowed(recorded, run.versions, named, f"run {run.run_id}", ["bench", "verify", "..."])
        config = resolve({**settings_of(run.config), **names, **places}, recorded=True)
        if config.run_id != run.run_id:
            return Judged(run, None, "undecided", "its task or optimizer has a different version here")
        what = "it cannot be trained here: "
        check_places([config])
        again = train(config)
    except UserError as error:
        return Judged(run, None, "undecided", f"{what}{error}")
    if again.status == "killed":
        return Judged(run, again, "undecided", "stopped")

    def settings(run: RunResult) -> Any:
        return comparable({name: value for name, value in run.config.items() if name not in ("seed", "data_seed")})

    others = [r for r in runs if r.finished and r.run_id != run.run_id and settings(r) == settings(run)]
    return Judged(run, again, *judge(run, again, others))


def _determined(run: RunResult, again: RunResult) -> bool:
    """Whether two runs should agree bit for bit."""
    alike = [run.versions.get(name) == again.versions.get(name) for name in _SAME]
    alike += [run.environment.get(name) == again.environment.get(name) for name in ("cpu", "gpu", "threads")]
    return all(alike) and run.engine == again.engine and run.environment.get("gpu") is None


def _value(run: RunResult) -> float | None:
    """The metric, or the suboptimality gap if its ratios are compared."""
    excess = run.excess() if run.scale == "log" else None
    return run.final if excess is None else max(excess, CONVERGED)


def _scaled(run: RunResult, value: float) -> float:
    return math.log(value) if run.scale == "log" and value > 0 else value


def _noise(runs: Sequence[RunResult]) -> float | None:
    """The difference that two seeds exceed with probability `ERROR`; None for fewer than two runs."""
    from scipy.special import stdtrit

    values = [_scaled(run, value) for run in runs if (value := _value(run)) is not None]
    if len(values) < 2:
        return None
    return float(stdtrit(len(values) - 1, 1 - ERROR / 2)) * math.sqrt(2) * statistics.stdev(values)
