"""Worker processes on this machine that work on studies."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from bench.errors import RunFailed
from bench.execute import Effort
from bench.execute.pool import Event, Pool, WorkerProcess
from bench.execute.slots import Slot, sharing
from bench.machine import lives
from bench.train.stop import StopRequest
from bench.tuning.progress import TuningProgress
from bench.tuning.study import Study


class Workers(AbstractContextManager["Workers"]):
    """Worker processes on this machine, which work on studies of a store.

    Args:
        slots: resources of each worker.
        places: paths of data and store.
        effort: how runs are executed.
    """

    def __init__(self, slots: Sequence[Slot], places: Mapping[str, Any], effort: Effort) -> None:
        settings = {
            "places": {name: str(place) for name, place in places.items()},
            "engine": effort.engine,
            "width": effort.width,
            "shared_by": len(slots),
            "processes": sharing(slots),
        }
        self._pool = Pool(("studies", json.dumps(settings)), dict(enumerate(slots)))

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._pool.__exit__(kind, *error)

    def work(self, studies: Sequence[Study], progress: TuningProgress) -> bool:
        """Let them work on studies, the first ones first, until all are finished; False if a signal asked to stop.

        Raises:
            UserError: a worker reports that trials cannot be trained here.
            RunFailed: workers die at start.
        """

        def count() -> None:
            with suppress(RunFailed):  # the database cannot be read; the display can wait
                progress.counted(studies)

        def hear(slot: int, event: Event) -> None:
            if "ended" in event:
                count()
            progress.event(slot, event)

        def died(worker: WorkerProcess, how: str) -> None:
            for study in studies:
                for trial in study.trials():
                    ours = trial.worker.get("pid") == worker.process.pid and not lives(trial.worker)
                    if trial.state == "running" and ours:
                        study.fail(trial, f"its worker died ({how})")

        stop = StopRequest()
        with stop.listening(), progress.showing(len(self._pool.slots)):
            count()
            job = " ".join(study.name for study in studies)
            done = self._pool.work(job, hear, died, progress.say, lambda: stop.signal is not None)
            if not done:
                self._pool.stop()
        return done
