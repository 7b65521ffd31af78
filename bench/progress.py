"""Progress on standard error: lines that a terminal redraws (by rich), occasional lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import gt, lt
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bench.machine import is_main_process

if TYPE_CHECKING:
    from bench.store.record import RunResult

REDRAW_SECONDS = 0.1
_doing: list[str] = []
_silent = False
_lines: dict[object, str] = {}
_live: Any = None
_lock = RLock()  # a thread receives reports of workers, another one draws


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Report what this process does within the context, such as `importing torch`; the innermost one counts."""
    _doing.append(f"{what} ...")
    show_line("doing", _doing[-1])
    try:
        yield
    finally:
        _doing.pop()
        show_line("doing", _doing[-1] if _doing else "")


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


def say(line: str) -> None:
    """Print a line if standard error is open: neither `2>&1 | head` nor `2>&-` may end training."""
    if sys.stderr is not None and not _silent:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


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


def clock(seconds: float, done: float, left: float) -> str:
    """The time for what is left, if so much took these seconds: `0:46`, `1:02:03`, or `-:--` if unknown."""
    if done <= 0:
        return "-:--"
    minutes, rest = divmod(round(seconds * left / done), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


class Progress:
    """Shows the progress of a run of `total` steps."""

    def __init__(self, total: int, label: str, *, enabled: bool = True) -> None:
        self.total, self.label, self.enabled = total, label, enabled
        self._first, self._begun, self._drawn, self._validated = 0, 0.0, 0.0, ""

    def start(self, step: int) -> None:
        """Begin at this step."""
        self._first, self._begun = step, time.monotonic()

    def update(self, step: int, loss: float) -> None:
        """Show a step's loss, at most ten times a second."""
        now = time.monotonic()
        if not self.enabled or (now - self._drawn < REDRAW_SECONDS and step < self.total):
            return
        self._drawn, seconds, steps = now, now - self._begun, step - self._first
        left = clock(seconds, steps, self.total - step)
        parts = [self.label, f"step {step:,}/{self.total:,}", f"ETA {left}", f"loss {loss:.4g}"]
        show_line(self, "  ".join([*parts, f"{steps / max(seconds, 1e-9):,.3g} it/s", self._validated]))

    def validated(self, step: int, split: str, values: dict[str, float]) -> None:
        """Show the result of an evaluation."""
        self._validated = f"{split} acc {values['accuracy']:.3f}" if "accuracy" in values else ""
        if self.enabled and not on_terminal():
            text = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            say(f"{self.label}  step {step}/{self.total}  {split}: {text}")

    def stop(self) -> None:
        """Remove the line."""
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
    """Shows how many runs have ended, the time left, and the best value: the smallest or largest (`mode`)."""

    LINE_SECONDS = 10

    def __init__(self, label: str, mode: Literal["min", "max"], *, enabled: bool = True) -> None:
        self.label, self.enabled, self.better = label, enabled, gt if mode == "max" else lt
        self.steps, self.runs, self.best, self._last = 0, 0, None, ""
        self._begun = self._drawn = time.monotonic()
        self._finished, self._training = set[str](), dict[int, tuple[int, float]]()

    @contextmanager
    def showing(self, runs: int) -> Iterator[None]:
        """Show the progress of `runs` runs within the context."""
        self.runs, self._begun = runs, time.monotonic()
        self._finished.clear()
        try:
            yield
        finally:
            show_line(self)

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
            if not self._training and not advance.steps and not advance.ended:
                self._begun = time.monotonic()  # the time before was not training
            self.steps += advance.steps
            self._finished.update(advance.ended)
            self._training[worker] = advance.alive, advance.share
            if advance.best is not None and (self.best is None or self.better(advance.best[0], self.best[0])):
                self.best = advance.best
            self._draw()

    def _draw(self) -> None:
        """Redraw the line of a terminal, or print a line now and then."""
        now, live = time.monotonic(), on_terminal()
        if not self.enabled or now - self._drawn < (REDRAW_SECONDS if live else self.LINE_SECONDS):
            return
        self._drawn, done = now, len(self._finished) + sum(lanes * share for lanes, share in self._training.values())
        line = f"{self.label}  {len(self._finished)}/{self.runs} runs  ETA "
        line += clock(now - self._begun, done, self.runs - done)
        line += "" if self.best is None else f"  best {self.best[0]:.4g} ({self.best[1]})"
        if live:
            show_line(self, line)
        else:
            self.say(line)


class RunInPlan(Progress):
    """Shows nothing, and reports the progress of a run trained alone to the view of its plan."""

    def __init__(self, view: SweepProgress) -> None:
        super().__init__(0, "", enabled=False)
        self.view = view

    def bar(self, total: int, label: str) -> Progress:
        """Itself, for a run of `total` steps, which may have restarted."""
        self.total, self.label = total, label
        return self

    def start(self, step: int) -> None:
        """Report this step."""
        self.view.advance(max(0, step - self._first), 1, [], step / max(self.total, 1))
        self._first, self._drawn = step, time.monotonic()

    def update(self, step: int, loss: float) -> None:
        """Report this step, unless the last report is recent."""
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self.start(step)

    def end(self, result: "RunResult | None" = None) -> None:
        """Report the end of the run; None if it failed."""
        taken = 0 if result is None else max(0, result.steps - self._first)
        self.view.advance(taken, 0, [] if result is None else [result])
