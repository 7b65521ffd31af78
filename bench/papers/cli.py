"""`bench reproduce` and `bench claims`."""

import os
import sys
from pathlib import Path

from bench.errors import UserError
from bench.grammar.parse import Args


def run_claims(args: Args) -> int:
    """`bench claims` with these arguments: 0 done, 1 a page could not be read.

    Raises:
        UserError: there are no claims, or they cannot be written.
    """
    if args.into is not None and args.out is not None:
        raise UserError(f"--into {args.into}: not allowed with --out; remove one of them")
    if args.into is not None and (args.json or args.format):
        raise UserError(f"--into {args.into}: it writes Markdown; remove --{'json' if args.json else 'format'}")
    from bench.output import format_of, remark, write, write_into
    from bench.papers.shipped import board, by_experiment, read, summary
    from bench.results.render import FORMATS, written

    folder = args.folder if args.folder is not None else results_folder()
    shipped = read(folder, args.paper or ())
    for what in shipped.damaged:
        remark("warning", f"{what}; it is ignored")
    if args.into is not None:
        link = os.path.relpath(folder, args.into.parent)
        texts = {"claims": summary(shipped), "claims-by-experiment": by_experiment(shipped, link)}
        there = args.into.read_text("utf-8", errors="replace") if args.into.is_file() else ""
        wanted = [name for name in texts if f"<!-- leaderboard {name} -->" in there] or ["claims"]
        write_into(args.into, {name: texts[name] for name in wanted})
        print(f"written into {args.into}", file=sys.stderr)
    else:
        write(args.out, written([board(shipped)], format_of(args, FORMATS), args.out))
    return 1 if shipped.damaged else 0


def results_folder() -> Path:
    """The shipped pages of papers.

    Raises:
        UserError: they are missing, as in an installed wheel.
    """
    folder = Path(__file__).parents[2] / "results"
    if not any(folder.glob("*/*/claims.json")):
        raise UserError(
            "the shipped claims are missing: a clone of the repository has them, an installed wheel does not; or name"
            " an output folder of `bench reproduce`"
        )
    return folder


def run_reproduce(args: Args) -> int:
    """`bench reproduce` with these arguments: 0 done, 130 stopped.

    Raises:
        UserError: the request is invalid.
    """
    from bench.grammar.values import experiments
    from bench.output import reply
    from bench.papers.experiments import title
    from bench.progress import doing

    if args.list:
        from bench.results.render import shown
        from bench.results.table import Table

        titles = [(name, title(name)) for name in experiments()]
        reply(args, [{"name": name, "title": words} for name, words in titles], shown(Table.facts(titles)))
        return 0
    if args.name is None:
        raise UserError("name an experiment: bench reproduce NAME; see `bench reproduce --list`")
    with doing("reading the experiment"):
        from bench.execute import Effort
        from bench.execute.command import dry_run
        from bench.papers.reproduce import ask, reproduce
        from bench.papers.reproduction import Version, as_json, claim_lines

    places = {"data": args.data, "store": args.store, "device": args.device}
    version = Version(args.quick, args.search, args.seeds, args.of_runs)
    kind = "-quick" * version.quick + "-changed" * version.changed  # so that no trial overwrites the real page
    folder = args.out or Path("reproduced") / f"{args.name}{kind}"
    if args.dry_run:
        request = ask(args.name, places, version)
        todo = [*request.jobs, *(job for _, _, jobs in request.points for job in jobs)]
        named = [{"arm": arm, "seed": config.seed} for arm, config in todo]
        return dry_run(args, [config for _, config in todo], named)
    result = reproduce(args.name, folder, places, version, Effort.of(args))
    if result is None:
        return 130
    reply(args, {"out": folder, **as_json(result)}, claim_lines(result, folder))
    return 0
