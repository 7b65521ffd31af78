"""`bench reproduce`."""

import sys
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.words import Parser, add_engine, add_places, add_workers, dotted_apart, split


def main(words: list[str]) -> int:
    """`bench reproduce` with these words: 0 done, 130 stopped.

    Raises:
        UserError: the request cannot be carried out.
    """
    parser = Parser(
        prog="bench reproduce",
        description="Run a paper's experiment and write a figure, the data behind it, and a page with tested claims.",
        epilog="Settings in dotted form, as in `bench fit`, are changed in all arms: --trainer.max_epochs 5."
        " Stored runs are used, so an interrupted experiment goes on with the same command,"
        " and the same command in a second terminal shares the work.",
    )
    parser.add_argument("name", nargs="?", help="as `bench reproduce --list` prints it")
    parser.add_argument("--list", action="store_true", help="list the experiments and stop")
    parser.add_argument("--quick", action="store_true", help="few seeds and steps, under a minute; no evidence")
    parser.add_argument("--search", action="store_true", help="also search the constants that the paper leaves open")
    parser.add_argument(
        "--seeds", type=int, help="so many seeds: the experiment's own first, then the numbers after them"
    )
    parser.add_argument(
        "--arm",
        nargs=3,
        action="append",
        default=[],
        metavar=("ARM", "SETTING", "VALUE"),
        help="change a setting in one arm, by its label: --arm NGD opt.lr 0.05 --arm 'H = 1' opt.lr 2",
    )
    parser.add_argument(
        "--out", type=Path, help="where the output goes (default: reproduced/NAME, NAME-quick, NAME-changed)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps or auto (default auto)")
    add_engine(parser)
    add_workers(parser)
    add_places(parser)
    words, dotted = dotted_apart(words)
    changes, _ = split(dotted, valued=set(), switches=set())
    args = parser.parse_args(words)
    from bench.execute import Effort
    from bench.papers.experiments import experiments, title
    from bench.papers.reproduce import reproduce
    from bench.papers.reproduction import Version
    from bench.report import claim_lines

    if args.list:
        titles = {name: title(name) for name in experiments()}
        width = max(map(len, titles), default=0)
        print("\n".join(f"{name:<{width}}  {title}" for name, title in titles.items()))
        return 0
    if args.name is None:
        raise UserError("name an experiment: bench reproduce NAME; see `bench reproduce --list`")
    places = {"data": args.data, "store": args.store, "device": args.device}

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    arms: dict[str, dict[str, Any]] = {}
    for label, setting, value in args.arm:
        arms.setdefault(label, {})[setting] = value
    version = Version(args.quick, args.search, args.seeds, changes, arms)
    kind = "-quick" * version.quick + "-changed" * version.changed  # so that no trial overwrites the real page
    folder = args.out or Path("reproduced") / f"{args.name}{kind}"
    result = reproduce(args.name, folder, places, version, say, Effort(args.engine, workers=args.workers))
    if result is None:
        say("bench: stopped; what is finished is stored, and the same command goes on")
        return 130
    print("\n".join(claim_lines(result, folder)))
    return 0
