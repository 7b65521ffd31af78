"""The progress bar on standard error: a live line on a terminal, a line per evaluation elsewhere."""

import sys
import time
from collections.abc import Callable


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
        if self.enabled and sys.stderr.isatty():
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
            try:
                print(f"{self.label}  step {step}/{self.total}  {split}: {text}", file=sys.stderr, flush=True)
            except OSError:  # `2>&1 | head`: a reader that has gone must not end the run
                self.enabled = False

    def stop(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
