"""The progress bar on standard error: a live line on a terminal, a line per evaluation elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bench.store.record import RunResult


class Progress:
    """Shows how far a run is, with loss, accuracy and applied step size.

    Args:
        total: optimizer steps of the run.
        label: what is trained.
        enabled: whether to show anything.
    """

    def __init__(self, total: int, label: str, *, enabled: bool = True) -> None:
        self.total, self.label, self.enabled = total, label, enabled
        self._bar = None
        self._shown = 0.0
        self._validated = ""

    def start(self, step: int) -> None:
        """Begin at this step."""
        if self.enabled and on_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=10),  # the rest of 80 columns is for the values
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[values]}"),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=step, values="")

    def update(self, step: int, loss: float, applied_step: float, accuracy: Callable[[], float | None]) -> None:
        """Show a step's values; `accuracy` is asked only when the line is redrawn, ten times a second at most."""
        if self._bar is None or (time.monotonic() - self._shown < 0.1 and step < self.total):
            return
        self._shown = time.monotonic()
        share = accuracy()
        values = f"loss {loss:.4g}" + (f"  acc {share:.3f}" if share is not None else "") + f"  step {applied_step:.3g}"
        self._bar.update(self._task, completed=step, values=values + self._validated)

    def validated(self, step: int, split: str, values: dict[str, float]) -> None:
        """Show what an evaluation gave."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._validated = f"  {split} acc {values['accuracy']:.3f}" if "accuracy" in values else ""
        if self.enabled and self._bar is None:
            self.enabled = say(f"{self.label}  step {step}/{self.total}  {split}: {text}")

    def stop(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Advance(NamedTuple):
    """What a worker has done since it last told.

    Attributes:
        steps: made.
        alive: lanes that still train.
        share: how far those are, from 0 to 1.
        ended: ids of runs that have ended; several workers may tell of one.
        best: value and name of the best run.
    """

    steps: int = 0
    alive: int = 0
    share: float = 0.0
    ended: Sequence[str] = ()
    best: tuple[float, str] | None = None


class SweepProgress:
    """Shows how far a sweep is: trial-steps (steps of single runs) and their rate, lanes alive, best run so far.

    Args:
        label: what is swept.
        better: whether a value of the metric is better than another.
        enabled: whether to show anything.
    """

    LINE_SECONDS = 10

    def __init__(self, label: str, better: Callable[[float, float], bool], *, enabled: bool = True) -> None:
        self.label, self.better, self.enabled = label, better, enabled
        self.steps, self.runs = 0, 0
        self._over: set[str] = set()
        self._alive: dict[int, tuple[int, float]] = {}
        self._begun = self._said = time.monotonic()
        self.best: tuple[float, str] | None = None
        self._bar: Any = None

    @contextmanager
    def showing(self, runs: int) -> Iterator[None]:
        """Show the progress of so many runs while the context lasts."""
        self.runs = runs
        self._begun = self._said = time.monotonic()
        if self.enabled and on_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(bar_width=10), TextColumn("{task.fields[values]}"),
                console=Console(stderr=True),
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=1.0, values="")
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def advance(
        self,
        steps: int,
        alive: int,
        ended: Sequence["RunResult"],
        share: float = 0.0,
        evaluated: Sequence["RunResult"] = (),
    ) -> None:
        """Take over how it gets on.

        Args:
            steps: made since the last call, by all runs together.
            alive: lanes that still train.
            ended: runs that have ended since.
            share: how far those that still train are, from 0 to 1.
            evaluated: those of which there is a new evaluation, beside the ended ones.
        """
        best = None
        for result in (*ended, *evaluated):
            value = result.validations[-1].get(result.metric) if result.validations else None
            if result.status == "diverged" or value is None:
                continue
            if best is None or self.better(value, best[0]):
                opt, lr = result.config["opt"], result.config["opt_options"].get("lr")
                best = value, opt if lr is None else f"{opt} lr {lr:g}"
        self.add(0, Advance(steps, alive, share, [result.run_id for result in ended], best))

    def add(self, worker: int, made: "Advance") -> None:
        """Take over how one of several workers gets on."""
        self.steps += made.steps
        self._over.update(made.ended)
        self._alive[worker] = made.alive, made.share
        if made.best is not None and (self.best is None or self.better(made.best[0], self.best[0])):
            self.best = made.best
        alive = sum(lanes for lanes, _ in self._alive.values())
        self._show(alive, sum(lanes * done for lanes, done in self._alive.values()) / max(alive, 1))

    @property
    def ended(self) -> int:
        """Runs that have ended."""
        return len(self._over)

    def say(self, line: str) -> None:
        """Show a line."""
        say(line)

    def _show(self, alive: int, share: float) -> None:
        now = time.monotonic()
        rate = self.steps / max(now - self._begun, 1e-9)
        best = "" if self.best is None else f", best {self.best[0]:.4g} ({self.best[1]})"
        values = f"{self.ended}/{self.runs} runs, {alive} lanes alive, {rate:,.0f} trial-steps/s{best}"
        if self._bar is not None:
            if len(self.label) + len(values) + 14 > self._bar.console.width:
                values = f"{self.ended}/{self.runs} runs, {alive} alive, {rate:,.0f} steps/s"
            done = (self.ended + alive * share) / max(self.runs, 1)
            self._bar.update(self._task, completed=done, values=values)
        elif self.enabled and now - self._said >= self.LINE_SECONDS:
            self._said = now
            self.say(f"{self.label}  {values}")


class StatusLine:
    """One line on standard error, in the place of the one before; on a terminal only."""

    def __init__(self) -> None:
        self.live = on_terminal()

    def show(self, text: str) -> None:
        """Show this line."""
        if self.live:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        self.show("")


def on_terminal() -> bool:
    """Whether somebody watches standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(line: str) -> bool:
    """Print a line, if anybody can hear it: neither `2>&1 | head` nor `2>&-` must end what is trained."""
    if sys.stderr is None:
        return False
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return False
    return True
