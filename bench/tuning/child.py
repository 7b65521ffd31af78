"""The worker process of `bench tune` and `bench suite`: reads names of studies from standard input, a job a line."""

import json
from pathlib import Path

from bench.execute import Effort
from bench.execute.child import events, lines
from bench.progress import doing, hearing


def main(settings: str) -> int:
    """Work on studies until asked to stop; returns 130. For the settings see `bench.tuning.workers.Workers`."""
    given = json.loads(settings)
    places = {name: Path(place) for name, place in given["places"].items()}
    tell, jobs = events(), lines()
    with hearing(lambda what: tell({"doing": what})):
        with doing("importing torch"):
            from bench.tuning import tuned
            from bench.tuning.studies import Studies
            from bench.tuning.study_result import study_result
            from bench.tuning.worker import Worker
        studies = Studies(places["store"], make=False)
        effort = Effort(given["engine"], given["width"])
        worker = Worker(places, tell, effort, shared_by=given["shared_by"], processes=given["processes"])
        for job in jobs:
            own = [studies.open(name) for name in job.split()]
            if not worker.work(own):
                break
            for study in own:
                tuned.remember(study_result(study), places["store"])
            tell({"done": True})
            if worker.stop.signal is not None:  # it came during the last trial
                break
    return 130
