"""Worker processes on this machine that carry studies out."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bench.errors import RunFailed
from bench.execute import Effort
from bench.execute.pool import Event, Pool, WorkerProcess
from bench.execute.slots import Slot, sharing
from bench.machine import lives
from bench.stop import StopRequest
from bench.tuning.progress import TuningProgress
from bench.tuning.studies import Studies
from bench.tuning.study import Study


class Workers:
    """Worker processes on this machine, which work on one study after another.

    Args:
        studies: where the studies are.
        slots: what each worker has.
        places: where data and store are.
        effort: how runs are made.
        named: what they are told that they may import (`bench.plugins.naming`), of the studies that are to come.
        shared_by: how many workers share the trials, on all machines; by default those of this one.
    """

    def __init__(
        self,
        studies: Studies,
        slots: Sequence[Slot],
        places: Mapping[str, Any],
        effort: Effort,
        named: Sequence[str] = (),
        shared_by: int | None = None,
    ) -> None:
        words = ["worker", "--events", *effort.words(), "--processes", str(sharing(slots))]
        words += ["--shared-by", str(shared_by or len(slots)), *named]
        words += [word for name, place in places.items() for word in (f"--{name}", str(place))]
        # Not among the words, which everybody on the machine can read.
        environment = {"BENCH_STORAGE": studies.url.render_as_string(hide_password=False)}
        self._pool = Pool(words, dict(enumerate(slots)), environment)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._pool.__exit__(kind, *error)

    def work(self, study: Study, progress: TuningProgress) -> bool:
        """Let them work until nothing is left to do; False if a signal asked to stop, and then they have ended.

        Args:
            study: what to work on.
            progress: shows what they do.

        Raises:
            UserError: a worker says that trials cannot be made here.
            RunFailed: workers die as soon as they are started.
        """

        def count() -> None:
            with suppress(RunFailed):  # the database is away; what is shown can wait
                progress.counted(study.trials(), study.request.trials)

        def hear(slot: int, event: Event) -> None:
            if "ended" in event:
                count()
            progress.event(slot, event)

        def died(worker: WorkerProcess, how: str) -> None:
            for trial in study.trials():
                # The same number on another machine is another process.
                ours = trial.worker.get("pid") == worker.process.pid and lives(trial.worker) is False
                if trial.state == "running" and ours:
                    study.fail(trial, f"its worker died ({how})")

        stop = StopRequest()
        with stop.listening(), progress.showing(len(self._pool.slots)):
            count()
            done = self._pool.work(study.name, hear, died, progress.say, lambda: stop.signal is not None)
            if not done:
                self._pool.stop()
        return done
