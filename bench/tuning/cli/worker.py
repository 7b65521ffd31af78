"""`bench worker`."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.grammar.commands import parse
from bench.tuning.cli.shared import as_typed, open_studies, warn_of

if TYPE_CHECKING:
    from bench.tuning.study import Study


def main(words: list[str]) -> int:
    """`bench worker` with these words: 0 nothing is left to do, 130 stopped.

    Raises:
        UserError: the request cannot be carried out.
    """
    if words[:1] == ["--cuts"]:  # of `bench.execute`, started by the suite alone
        from bench.execute.child import main as carry_out

        return carry_out(words[1:])
    args = parse("worker", words)
    if args.study is None and not args.events:
        raise UserError("--study is missing; `bench studies` lists their names")
    studies, out = open_studies(args, make=False), sys.stdout
    study = studies.open(args.study) if args.study is not None else None
    with redirect_stdout(sys.stderr):
        from bench.tuning import tuned
        from bench.tuning.outcome import outcome
        from bench.tuning.worker import Worker, supervised

        if study is None:  # whatever libraries print, C ones too, must not get among the events
            out = os.fdopen(os.dup(1), "w")
            os.dup2(2, 1)

        places = {"data": args.data, "store": args.store}
        tell = _as_events(out) if study is None else _as_lines(study)
        engine = args.engine or (study.request.engine if study is not None else None) or "auto"
        worker = Worker(places, tell, engine=engine, shared_by=args.shared_by)
        damaged = False
        for each in [study] if study is not None else map(studies.open, supervised()):
            each.admit({"task": args.task, "opt": args.opt}, as_typed("worker", words))
            if not worker.work(each):
                return 130
            tuned.remember(outcome(each), args.store)
            tell({"done": each.name})
            damaged |= study is not None and warn_of(each)
    return int(damaged)


def _as_events(out: Any) -> Callable[[Mapping[str, Any]], None]:
    def tell(event: Mapping[str, Any]) -> None:
        with suppress(OSError):  # if nobody listens any more, the end of standard input says what to do
            print(json.dumps(event), file=out, flush=True)

    return tell


def _as_lines(study: "Study") -> Callable[[Mapping[str, Any]], None]:
    from bench.tuning.progress import TuningProgress

    progress = TuningProgress(f"study {study.name}", study.spec.metric)

    def tell(event: Mapping[str, Any]) -> None:
        if "ended" in event:
            progress.counted(study.trials(), study.request.trials)
        progress.event(0, event)

    return tell
