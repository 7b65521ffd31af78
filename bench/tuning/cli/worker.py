"""`bench worker`."""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from bench.errors import UserError
from bench.tuning.cli.shared import add_storage, as_typed, open_studies, warn_of
from bench.words import Parser, add_engine, add_places

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
    parser = Parser(
        prog="bench worker",
        description="Take trials of a study and train them until nothing is left to do."
                    " Start as many as there are devices."
    )  # fmt: skip
    parser.add_argument("--study", help="its name, as `bench studies` prints it")
    for kind in ("task", "opt"):
        parser.add_argument(
            f"--{kind}", action="append", default=[], metavar="FILE.py:CLASS",
            help="name the file or module that the study names, or it is not imported; several times for several",
        )  # fmt: skip
    add_engine(parser)
    parser.set_defaults(engine=None)  # the study's own
    parser.add_argument(
        "--shared-by",
        type=int,
        default=1,
        help="workers that share the trials, where lanes take many at once (default 1)",
    )
    parser.add_argument("--events", action="store_true", help=argparse.SUPPRESS)  # for the process that started us
    add_storage(parser)
    add_places(parser)
    args = parser.parse_args(words)
    if args.study is None and not args.events:
        raise UserError("--study is missing; `bench studies` lists their names")
    studies = open_studies(args, make=False)
    study = studies.open(args.study) if args.study is not None else None
    with redirect_stdout(sys.stderr):
        from bench.execute.child import events, lines
        from bench.tuning import tuned
        from bench.tuning.outcome import outcome
        from bench.tuning.worker import Worker

        places = {"data": args.data, "store": args.store}
        tell = events() if study is None else _as_lines(study)
        engine = args.engine or (study.request.engine if study is not None else None) or "auto"
        worker = Worker(places, tell, engine=engine, shared_by=args.shared_by)
        damaged = False
        for each in [study] if study is not None else map(studies.open, lines()):
            each.admit({"task": args.task, "opt": args.opt}, as_typed("worker", words))
            if not worker.work(each):
                return 130
            tuned.remember(outcome(each), args.store)
            tell({"done": each.name})
            damaged |= study is not None and warn_of(each)
    return int(damaged)


def _as_lines(study: "Study") -> Callable[[Mapping[str, Any]], None]:
    from bench.tuning.progress import TuningProgress

    progress = TuningProgress(f"study {study.name}", study.spec.metric)

    def tell(event: Mapping[str, Any]) -> None:
        if "ended" in event:
            progress.counted(study.trials(), study.request.trials)
        progress.event(0, event)

    return tell
