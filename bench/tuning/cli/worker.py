"""`bench worker`."""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.execute import Effort
from bench.grammar.parse import Args
from bench.tuning.cli.shared import as_typed, open_studies, warn_of

if TYPE_CHECKING:
    from bench.tuning.study import Study


def main(args: Args) -> int:
    """`bench worker` with these arguments: 0 done, 1 trials are damaged, 130 stopped."""
    if args.plan is not None:
        from bench.execute.elsewhere import join

        return join(args, as_typed("worker", args.words))
    if args.study is None and not args.events:
        from bench.execute.plan import open_plans

        plans = ", ".join(open_plans(args.store)) or "none"
        raise UserError(
            f"--plan or --study is missing; plans in {args.store}: {plans}; `bench list studies` lists studies"
        )
    from bench.execute.child import events, lines
    from bench.progress import doing, hearing

    with redirect_stdout(sys.stderr), ExitStack() as stack:
        told = None if args.study is not None else events()
        if told is not None:
            stack.enter_context(hearing(lambda what, tell=told: tell({"doing": what})))
        with doing("opening the database"):
            studies = open_studies(args, make=False)
            study = studies.open(args.study) if args.study is not None else None
        with doing("importing torch"):
            from bench.tuning import tuned
            from bench.tuning.study_result import study_result
            from bench.tuning.worker import Worker
        places = {"data": args.data, "store": args.store}
        tell = _as_lines(study) if study is not None else told or events()
        engine = args.engine or (study.request.engine if study is not None else None) or "auto"
        effort = Effort(engine, args.width, args.memory)
        worker = Worker(places, tell, effort, shared_by=args.shared_by or 1, processes=args.processes)
        damaged = False
        for job in [""] if study is not None else lines():
            own = [study] if study is not None else list(map(studies.open, job.split()))
            for each in own:
                each.admit({"task": args.task, "opt": args.opt}, as_typed("worker", args.words))
            if not worker.work(own):
                return 130
            for each in own:
                tuned.remember(study_result(each), args.store)
            tell({"done": job})
            damaged |= study is not None and warn_of(study)
            if worker.stop.signal is not None:  # it came during the last trial
                return 130
    return int(damaged)


def _as_lines(study: "Study") -> Callable[[Mapping[str, Any]], None]:
    from bench.tuning.progress import TuningProgress

    progress = TuningProgress(f"study {study.name}", study.spec.metric)

    def tell(event: Mapping[str, Any]) -> None:
        if "ended" in event:
            progress.counted([study])
        progress.event(0, event)

    return tell
