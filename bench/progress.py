"""Progress on standard error: lines that a terminal redraws (by rich), occasional lines elsewhere.

`doing` reports what a process does while it starts: on a line of this terminal, or, from a worker, to its parent
process (`hearing`).
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import gt, lt
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bench.machine import is_main_process
from bench.text import duration

if TYPE_CHECKING:
    from bench.store.record import RunResult

REDRAW_SECONDS = 0.1
_doing: list[str] = []
_hearers: list[Callable[[str], object]] = [lambda what: show_line("doing", what and f"{what} ...")]
_silent = False
_lines: dict[object, str] = {}
_live: Any = None
_lock = RLock()  # a thread receives reports of workers, another one draws


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Report what this process does within the context, such as `importing torch`; the innermost one counts."""
    _doing.append(what)
    _hearers[-1](what)
    try:
        yield
    finally:
        _doing.pop()
        _hearers[-1](_doing[-1] if _doing else "")


@contextmanager
def hearing(hear: Callable[[str], object]) -> Iterator[None]:
    """Send the reports of `doing` to this function instead of the terminal; empty when one is over."""
    _hearers[-1]("")
    _hearers.append(hear)
    try:
        yield
    finally:
        _hearers.pop()


@contextmanager
def silenced(quiet: bool) -> Iterator[None]:
    """Show neither progress nor notes within the context, if `quiet`."""
    global _silent
    before, _silent = _silent, _silent or quiet
    try:
        yield
    finally:
        _silent = before


def on_terminal() -> bool:
    """Whether progress is shown on a terminal."""
    return not _silent and sys.stderr is not None and sys.stderr.isatty()


def say(line: str) -> bool:
    """Print a line if standard error is open: neither `2>&1 | head` nor `2>&-` may end training."""
    if sys.stderr is None or _silent:
        return False
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return False
    return True


def show_line(owner: object, line: str = "") -> None:
    """Show a line, or several, at the end of the terminal in place of the owner's last, which an empty line removes."""
    global _live
    if not on_terminal() or not is_main_process():
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with _lock, suppress(OSError, ValueError):
        _lines[owner] = line  # in the place of the last
        text = Text("\n".join(filter(None, _lines.values())), no_wrap=True, overflow="ellipsis")
        if text and _live is None:
            console = Console(stderr=True)
            console.show_cursor = lambda show=True: False  # a killed process would leave it hidden
            _live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            _live.start()
        if _live is not None:
            _live.update(text, refresh=True)
            if not text:
                _live.stop()
                _live = None
                _lines.clear()


def _eta(seconds: float, done: float, left: float) -> str:
    """The time for what is left, if so much took these seconds."""
    return f"ETA {duration(seconds * left / done) if done > 0 else '-'}"


class Progress:
    """Shows the progress of a run of `total` steps, or reports it to the view of a plan, for a run trained alone."""

    def __init__(self, total: int, label: str, *, enabled: bool, view: "SweepProgress | None" = None) -> None:
        self.total, self.label, self.enabled, self.view = total, label, enabled and view is None, view
        self._first, self._begun, self._drawn, self._live, self._validated = 0, 0.0, 0.0, False, ""

    def start(self, step: int) -> None:
        """Begin at this step."""
        if self.view is not None:
            self.view.advance(max(0, step - self._first), 1, [], step / max(self.total, 1))
        self._first, self._begun, self._live = step, time.monotonic(), self.enabled and on_terminal()

    def update(self, step: int, loss: float, applied_step: float, accuracy: Callable[[], float | None]) -> None:
        """Show a step's values; `accuracy` is called only when the line is redrawn, at most ten times a second."""
        now = time.monotonic()
        is_recent = now - self._drawn < REDRAW_SECONDS
        if self.view is not None and not is_recent:
            self.start(step)
            self._drawn = now
        if not self._live or (is_recent and step < self.total):
            return
        self._drawn, seconds, steps, share = now, now - self._begun, step - self._first, accuracy()
        parts = [self.label, f"step {step:,}/{self.total:,}", _eta(seconds, steps, self.total - step)]
        parts += [f"step size {applied_step:.2g}", f"loss {loss:.4g}"]
        parts += [] if share is None else [f"acc {share:.3f}"]
        show_line(self, "  ".join([*parts, f"{steps / max(seconds, 1e-9):,.3g} it/s", self._validated]))

    def validated(self, step: int, split: str, values: dict[str, float]) -> None:
        """Show the result of an evaluation."""
        self._validated = f"{split} acc {values['accuracy']:.3f}" if "accuracy" in values else ""
        if self.enabled and not self._live:
            text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.enabled = say(f"{self.label}  step {step}/{self.total}  {split}: {text}")

    def stop(self, step: int) -> None:
        """Remove the line after this step."""
        if self.view is not None:
            self.start(step)
        show_line(self)


class Advance(NamedTuple):
    """Progress of a worker since its last report: steps, lanes in training and the share of their steps that is done.

    `ended` are ids of runs, which several workers may report; `best` are value and name of a run.
    """

    steps: int = 0
    alive: int = 0
    share: float = 0.0
    ended: Sequence[str] = ()
    best: tuple[float, str] | None = None


class SweepProgress:
    """Shows how many runs have ended, the time left and the best value, in which smaller or larger (`mode`) is better.

    A terminal also shows a line for each of several processes.
    """

    LINE_SECONDS = 10

    def __init__(self, label: str, mode: Literal["min", "max"], *, enabled: bool = True) -> None:
        self.label, self.enabled, self.better = label, enabled, gt if mode == "max" else lt
        self.steps, self.runs, self.best, self._last = 0, 0, None, ""
        self._begun, self._drawn, self._processes, self._live = time.monotonic(), 0.0, 0, False
        self._over = set[str]()
        self.workers = dict[int, tuple[int, float, str]]()  # lanes in training, their share that is done, activity

    @contextmanager
    def showing(self, runs: int, processes: int = 1) -> Iterator[None]:
        """Show the progress of `runs` runs within the context, trained by `processes` processes of this command."""
        self.runs, self._processes, self._live = runs, processes * (processes > 1), self.enabled and on_terminal()
        self._begun = self._drawn = time.monotonic()
        self._over.clear()
        try:
            yield
        finally:
            show_line(self)
            self._live = False

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

    def add(self, worker: int, advance: Advance) -> None:
        """Add the progress of one of several workers."""
        with _lock:
            self.steps += advance.steps
            self._over.update(advance.ended)
            if not self.steps and not self._over:
                self._begun = time.monotonic()  # the time before was not training
            self.workers[worker] = advance.alive, advance.share, ""
            if advance.best is not None and (self.best is None or self.better(advance.best[0], self.best[0])):
                self.best = advance.best
            self._draw()

    def doing(self, worker: int, what: str) -> None:
        """Note the activity of one of several workers before it trains (`bench.progress.doing`)."""
        with _lock:
            self.workers[worker] = 0, 0.0, what
            self._draw()

    def _draw(self) -> None:
        """Redraw the lines of a terminal, or print a line now and then."""
        now = time.monotonic()
        if not self.enabled or now - self._drawn < (REDRAW_SECONDS if self._live else self.LINE_SECONDS):
            return
        self._drawn, done = now, len(self._over) + sum(lanes * share for lanes, share, _ in self.workers.values())
        runs = f"{self.label}  {len(self._over)}/{self.runs} runs"
        parts = [runs, _eta(now - self._begun, done, self.runs - done)]
        parts += [] if self.best is None else [f"best {self.best[0]:.4g} ({self.best[1]})"]
        if not self._live:
            self.say("  ".join(parts))
            return
        states = [self.workers.get(worker, (0, 0.0, "")) for worker in range(self._processes)]
        texts = [doing or (f"{lanes} in training, {share:.0%}" if lanes else "waits") for lanes, share, doing in states]
        show_line(self, "\n".join(["  ".join(parts), *(f"  {i}  {text}" for i, text in enumerate(texts, 1))]))
