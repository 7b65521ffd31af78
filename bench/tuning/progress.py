"""Progress display of studies: live lines on a terminal, a line per trial elsewhere."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.progress import Advance, LiveView, clock
from bench.results.selection import score_text
from bench.text import counted, duration, options_text

if TYPE_CHECKING:
    from bench.tuning.study import Study


class TuningProgress(LiveView):
    """Shows each worker's trial, step and score, and how many trials are done."""

    def __init__(self, label: str, metric: str, *, enabled: bool = True) -> None:
        super().__init__(label, enabled=enabled)
        self.metric = metric
        self.done, self.wanted, self.failed = 0, 0, 0
        self._cause = ""
        self._there: int | None = None  # trials that were done before
        self._rows: list[dict[str, str]] = [{}]

    @contextmanager
    def showing(self, workers: int) -> Iterator[None]:
        """Show this number of workers while the context lasts."""
        self._rows = [{"doing": "starting"} for _ in range(workers)]
        with self.live():
            yield

    def line(self) -> str:
        """Trials, remaining time, time so far and failures."""
        before = self._there or 0
        counts = self.counts(self.done, self.wanted, "trials", self.done - before, before)
        failed = f"  {counted(self.failed, 'attempt')} failed" * bool(self.failed)
        return f"{counts}  {clock(time.monotonic() - self._begun)} so far{failed}"

    def workers(self) -> list[str]:
        """What each worker does."""
        parts = "trial", "doing", "step", "score"
        rows = list(self._rows)  # another thread may change it meanwhile
        return ["  ".join(filter(None, map(row.get, parts))) or "waits" for row in rows]

    def counted(self, studies: Sequence["Study"]) -> None:
        """Update the numbers of trials."""
        done = wanted = failed = 0
        for study in studies:
            trials = study.trials()
            done += len({trial.key for trial in trials if trial.state == "completed"})
            wanted += max(len({trial.key for trial in trials}), study.request.trials)
            failed += sum(trial.state == "failed" for trial in trials)
        self.done, self.wanted, self.failed = done, wanted, failed
        self._there = self.done if self._there is None else self._there

    def event(self, worker: int, event: Mapping[str, Any]) -> None:
        """Update from an event of a worker (`bench.tuning.worker.Worker`)."""
        row, score = self._rows[worker], event.get("score")
        if "say" in event:
            self.say(event["say"])
        elif "doing" in event:
            row["doing"] = event["doing"]
        elif "ended" in event:
            row.clear()
            self._say_ended(event)
        elif "trial" in event:
            row.clear()
            seed = f", seed {event['seed']}" if "seed" in event else ""
            row["trial"] = _name(event["trial"]) + seed
            if "step" in event:
                row["step"] = f"step {event['step']:,}/{event['total']:,}"
        elif "progress" in event:
            made, over, runs = Advance(*event["progress"]), event["over"], event["runs"]
            row.pop("doing", None)
            row["trial"] = f"{over:,}/{runs:,} runs, {made.alive:,} in training"
            row["step"] = f"{(over + made.alive * made.share) / max(runs, 1):.0%}"
            score = made.best and made.best[0]
        elif "idle" in event:
            row.clear()
            row["trial"] = "waiting for the others"
        if score is not None:
            row["score"] = f"{'best ' * ('progress' in event)}{self.metric} {score_text(score, self.metric)}"

    def _say_ended(self, event: Mapping[str, Any]) -> None:
        if event["state"] == "given back":
            return
        values = self._spread([run["value"] for run in event.get("runs", [])])
        seconds = sum(run["wall_s"] for run in event.get("runs", []))
        what = f"{self.metric} {values} ({duration(seconds)})" if values else event.get("reason", "")
        if event["state"] == "failed":
            cause, before = cause_of(what), self._cause
            self._cause, what = cause, f"again: {cause}" if cause == before else what
        state = "" if event["state"] == "completed" else f" {event['state']}"
        self.say(f"[{self.done}/{self.wanted}] {_name(event['ended'])}:{state} {what}")

    def _spread(self, values: Sequence[float | None]) -> str:
        """The values, or their range if they are many; None for a diverged one."""
        if len(values) <= 3:
            return ", ".join("diverged" if value is None else score_text(value, self.metric) for value in values)
        there = [value for value in values if value is not None]
        if not there:
            return "diverged with all seeds"
        least, most = (score_text(end, self.metric) for end in (min(there), max(there)))
        span = least if least == most else f"{least} to {most}"
        diverged = f", {len(values) - len(there)} diverged" * (len(there) < len(values))
        return f"{span} ({len(values)} seeds{diverged})"


def cause_of(reason: str) -> str:
    """Why a trial failed, without its run and the place of its traceback."""
    return re.sub(r"^run \S+ failed: ", "", reason.partition("; the traceback is in ")[0])


def _name(trial: Mapping[str, Any]) -> str:
    kind = "" if trial["kind"] == "design" else f" ({trial['kind']})"
    seed = f", seed {trial['seeds'][0]}" if trial["fresh"] else ""
    opt = f"{trial['opt']} " if "opt" in trial else ""
    return f"{opt}{options_text(trial['point'])}{seed}{kind if not trial['fresh'] else ' (fresh seed)'}"
