"""Progress display: one live line on a terminal, occasional lines elsewhere.

`doing` reports what a process does while it starts. The active display receives it (`hearing`): the line of this
terminal, the bar of a sweep, or, from a worker, its parent process.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import gt, lt
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bench.machine import is_main_process
from bench.text import counted

if TYPE_CHECKING:
    from bench.store.record import RunResult

_doing: list[str] = []
_hearers: list[Callable[[str], object]] = []
_silent = False


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Report what this process does within the context, such as `importing torch`; the innermost one counts."""
    _doing.append(what)
    (_hearers[-1] if _hearers else _show)(what)
    try:
        yield
    finally:
        _doing.pop()
        (_hearers[-1] if _hearers else _show)(_doing[-1] if _doing else "")


@contextmanager
def hearing(hear: Callable[[str], object]) -> Iterator[None]:
    """Send the reports of `doing` to this function instead of the terminal's line; empty when one is over."""
    _show("")
    _hearers.append(hear)
    try:
        yield
    finally:
        _hearers.pop()


@contextmanager
def silenced(quiet: bool) -> Iterator[None]:
    """Show neither progress nor notes within the context, if `quiet`."""
    global _silent
    before = _silent
    _silent = before or quiet
    try:
        yield
    finally:
        _silent = before


def _show(what: str) -> None:
    """Show the current activity on the line of this terminal."""
    if is_main_process():
        StatusLine().show(what and f"{what} ...")


def clock(seconds: float | None) -> str:
    """A remaining time: `0:46`, `1:02:03`, or `-:--` if unknown."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _bar() -> Any:
    """A display of rich on standard error; each of its tasks is the line that its field `line` returns."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Line(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(task.fields["line"](task), no_wrap=True, overflow="ellipsis")

    return Bar(Line(), console=Console(stderr=True))


class Progress:
    """Shows the progress of a run: step, remaining time, applied step size, loss, accuracy, epoch, steps per second.

    Args:
        total: optimizer steps of the run.
        label: name of the run.
        epoch: optimizer steps of an epoch; None if every step sees all samples.
        enabled: whether to show anything.
    """

    def __init__(self, total: int, label: str, *, epoch: int | None = None, enabled: bool = True) -> None:
        self.total, self.label, self.epoch, self.enabled = total, label, epoch, enabled
        self._bar, self._shown, self._validated = None, 0.0, ""
        self._values: list[str] = []

    def start(self, step: int) -> None:
        """Begin at this step."""
        if self.enabled and on_terminal():
            _show("")
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("", total=self.total, completed=step, line=self.line)

    def line(self, task: Any) -> str:
        """The line of a task of rich; a narrow terminal cuts its end."""
        epoch = f"epoch {task.completed / self.epoch:.2f}/{self.total / self.epoch:.3g}" if self.epoch else ""
        speed = "" if task.speed is None else f"{task.speed:,.3g} it/s"
        ahead = f"step {task.completed:,}/{self.total:,}", f"ETA {clock(task.time_remaining)}"
        return "  ".join(filter(None, [self.label, *ahead, *self._values, epoch, speed, self._validated]))

    def update(self, step: int, loss: float, applied_step: float, accuracy: Callable[[], float | None]) -> None:
        """Show a step's values; `accuracy` is called only when the line is redrawn, at most ten times a second."""
        if self._bar is None or (time.monotonic() - self._shown < 0.1 and step < self.total):
            return
        self._shown, share = time.monotonic(), accuracy()
        self._values = [
            f"step size {applied_step:.2g}",
            f"loss {loss:.4g}",
            "" if share is None else f"acc {share:.3f}",
        ]
        self._bar.update(self._task, completed=step)

    def validated(self, step: int, split: str, values: dict[str, float]) -> None:
        """Show the result of an evaluation."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._validated = f"{split} acc {values['accuracy']:.3f}" if "accuracy" in values else ""
        if self.enabled and self._bar is None:
            self.enabled = say(f"{self.label}  step {step}/{self.total}  {split}: {text}")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Advance(NamedTuple):
    """Progress of a worker since its last report.

    Attributes:
        steps: steps taken.
        alive: lanes that still train.
        share: their progress, from 0 to 1.
        ended: ids of runs that have ended; several workers may report the same one.
        best: value and name of the best run.
    """

    steps: int = 0
    alive: int = 0
    share: float = 0.0
    ended: Sequence[str] = ()
    best: tuple[float, str] | None = None


class SweepProgress:
    """Shows the progress of many runs: trial-steps (steps of single runs), their rate, runs in training, best run.

    A terminal shows a line for all, and below it, while they train, a line for each process.

    Args:
        label: name of the work.
        mode: whether the metric is better when smaller (`min`) or larger (`max`).
        enabled: whether to show anything.
    """

    LINE_SECONDS = 10

    def __init__(self, label: str, mode: Literal["min", "max"], *, enabled: bool = True) -> None:
        self.label, self.enabled, self.better = label, enabled, gt if mode == "max" else lt
        self.steps, self.runs, self.processes = 0, 0, 1
        self.best: tuple[float, str] | None = None
        self._bar, self._last, self._begun = None, "", time.monotonic()
        self._said = self._begun
        self._lock = Lock()  # one thread receives reports of workers, another draws the lines
        self._over: set[str] = set()
        self._alive: dict[int, tuple[int, float]] = {}
        self._doing: dict[int, str] = {}

    @contextmanager
    def showing(self, runs: int, processes: int = 1) -> Iterator[None]:
        """Show the progress of `runs` runs within the context, trained by `processes` processes of this command."""
        self.runs, self.processes = runs, processes
        self._over.clear()
        self._said = self._begun = time.monotonic()
        if not self.enabled or not on_terminal():
            yield
            return
        with hearing(lambda what: self.doing(0, what)), _bar() as bar:
            self._bar, self._task = bar, bar.add_task("", total=runs, line=self.line)
            slots = range(processes) if processes > 1 else ()
            tasks = [bar.add_task("", total=None, line=partial(self.line_of_worker, slot)) for slot in slots]
            try:
                yield
            finally:
                self._bar = None
                for task in tasks:
                    bar.remove_task(task)

    def say(self, line: str) -> None:
        """Show a line, unless it repeats the last one."""
        if self.enabled and line != self._last:
            self._last = line
            say(line)

    def advance(
        self,
        steps: int,
        alive: int,
        ended: Sequence["RunResult"],
        share: float = 0.0,
        evaluated: Sequence["RunResult"] = (),
    ) -> None:
        """Add the progress since the last call, as in `Advance`; `evaluated` are other runs with a new evaluation."""
        best = None
        for result in (*ended, *evaluated):
            row = result.validations[-1] if result.validations else {}
            value = row.get("excess") if result.metric == "loss" and "excess" in row else row.get(result.metric)
            if result.status != "diverged" and value is not None and (best is None or self.better(value, best[0])):
                opt, lr = result.config["opt"], result.config["opt_options"].get("lr")
                best = value, opt if lr is None else f"{opt} lr {lr:g}"
        self.add(0, Advance(steps, alive, share, [result.run_id for result in ended], best))

    def add(self, worker: int, advance: "Advance") -> None:
        """Add the progress of one of several workers."""
        with self._lock:
            if not self._alive and not advance.steps and not advance.ended:
                self._begun = time.monotonic()  # the time before was not training
            self.steps += advance.steps
            self._over.update(advance.ended)
            self._alive[worker] = advance.alive, advance.share
            self._doing.pop(worker, None)
            if advance.best is not None and (self.best is None or self.better(advance.best[0], self.best[0])):
                self.best = advance.best
            share = sum(lanes * done for lanes, done in self._alive.values())
        if self._bar is not None:
            self._bar.update(self._task, completed=len(self._over) + share)
        elif self.enabled and time.monotonic() - self._said >= self.LINE_SECONDS:
            self._said = time.monotonic()
            parts = [f"{len(self._over)}/{self.runs} runs", *self._rate(), self._best()]
            self.say(f"{self.label}  {', '.join(filter(None, parts))}")

    def forget_workers(self) -> None:
        """Forget what workers train, since one has died."""
        with self._lock:
            self._alive.clear()

    def doing(self, worker: int, what: str) -> None:
        """Note the activity of one of several workers before it trains (`bench.progress.doing`)."""
        with self._lock:
            self._doing[worker] = what

    def waiting(self, runs: int) -> None:
        """Other processes train the last runs."""
        self.say(f"waiting for {counted(runs, 'run')} of other processes")

    def line(self, task: Any) -> str:
        """Runs, remaining time, best run, activity and rate."""
        doing = self._doing.get(0, "") if self.processes == 1 else ""
        counts = f"{self.label}  {len(self._over)}/{self.runs} runs  ETA {clock(task.time_remaining)}"
        return "  ".join(filter(None, [counts, self._best(), doing, *self._rate()]))

    def line_of_worker(self, slot: int, _: Any) -> str:
        """The activity of a process."""
        lanes, done = self._alive.get(slot, (0, 0.0))
        trains = f"{lanes} in training, {done:.0%}" if lanes else "waits"
        return f"  {slot + 1}  {self._doing.get(slot) or trains}"

    def _best(self) -> str:
        return "" if self.best is None else f"best {self.best[0]:.4g} ({self.best[1]})"

    def _rate(self) -> tuple[str, str]:
        with self._lock:
            alive = sum(lanes for lanes, _ in self._alive.values())
        rate = self.steps / max(time.monotonic() - self._begun, 1e-9)
        return f"{alive} in training", f"{rate:,.0f} trial-steps/s"


class RunInPlan(Progress):
    """Shows nothing, and reports the progress of a run trained alone to the view of its plan."""

    def __init__(self, view: SweepProgress) -> None:
        super().__init__(0, "", enabled=False)
        self.view, self._step = view, 0

    def bar(self, total: int, label: str) -> Progress:
        """Itself, for a run of `total` steps, which may have restarted."""
        self.total, self.label, self._shown = total, label, 0.0
        return self

    def start(self, step: int) -> None:
        """Report this step."""
        self.view.advance(max(0, step - self._step), 1, [], step / max(self.total, 1))
        self._step = step

    def update(self, step: int, loss: float, applied_step: float, accuracy: Callable[[], float | None]) -> None:
        """Report this step, unless the last report is recent."""
        if time.monotonic() - self._shown >= 0.1:
            self._shown = time.monotonic()
            self.start(step)

    def end(self, result: "RunResult | None" = None) -> None:
        """Report the end of the run; None if it failed."""
        taken = 0 if result is None else max(0, result.steps - self._step)
        self.view.advance(taken, 0, [] if result is None else [result])


class StatusLine:
    """One line on standard error that replaces the previous one; on a terminal only."""

    def __init__(self) -> None:
        self.live = on_terminal()

    def show(self, text: str) -> None:
        """Show this line."""
        if self.live:
            with suppress(OSError, ValueError):
                print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        self.show("")


def on_terminal() -> bool:
    """Whether progress is shown on a terminal."""
    return not _silent and sys.stderr is not None and sys.stderr.isatty()


def say(line: str) -> bool:
    """Print a line if standard error is open: neither `2>&1 | head` nor `2>&-` may end training."""
    if sys.stderr is None or _silent:
        return False
    try:
        if _doing and not _hearers:
            _show("")
        print(line, file=sys.stderr, flush=True)
        if _doing and not _hearers:
            _show(_doing[-1])
    except (OSError, ValueError):
        return False
    return True
