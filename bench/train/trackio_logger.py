"""Trackio as a Lightning logger: each attempt at a run is a run of the project that its task names."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from lightning.pytorch.loggers import Logger


class TrackioLogger(Logger):
    """Sends settings and metrics to Trackio, which keeps them in `TRACKIO_DIR`; `trackio show` opens the dashboard.

    Args:
        project: Trackio's project.
        run: name of the run.

    Raises:
        ImportError: trackio is not installed.
    """

    def __init__(self, project: str, run: str) -> None:
        import trackio

        super().__init__()
        self._trackio, self._project, self._name, self._run = trackio, project, run, None

    @property
    def name(self) -> str:
        """Trackio's project."""
        return self._project

    @property
    def version(self) -> str:
        """The name of the run."""
        return self._name

    def log_hyperparams(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Begin the run with these settings."""
        off: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        with redirect_stdout(sys.stderr):  # standard output is only for the result
            self._run = self._trackio.init(self._project, name=self._name, config=dict(params), **off)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Send numbers of one optimizer step."""
        if self._run is not None:
            self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def finalize(self, status: str) -> None:
        """Send the rest and close the run."""
        if self._run is not None:
            with redirect_stdout(sys.stderr):
                self._trackio.finish()  # the current run, so that no run is finished again at exit
            self._run = None
