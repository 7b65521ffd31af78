"""`bench reproduce`."""

from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.grammar.commands import parse


def main(words: list[str]) -> int:
    """`bench reproduce` with these words: 0 done, 130 stopped.

    Raises:
        UserError: the request cannot be carried out.
    """
    args = parse("reproduce", words)
    from bench.progress import doing

    with doing("reading the experiment"):
        from bench.execute import Effort
        from bench.execute.elsewhere import made_elsewhere, publish
        from bench.papers.experiments import experiments, title
        from bench.papers.reproduce import ask, reproduce
        from bench.papers.reproduction import Version, claim_lines
        from bench.results.render import shown
        from bench.results.table import Table

    if args.list:
        print("\n".join(shown(Table.facts((name, title(name)) for name in experiments()))))
        return 0
    if args.name is None:
        raise UserError("name an experiment: bench reproduce NAME; see `bench reproduce --list`")
    places = {"data": args.data, "store": args.store, "device": args.device}

    arms: dict[str, dict[str, Any]] = {}
    for label, setting, value in args.arm:
        arms.setdefault(label, {})[setting] = value
    version = Version(args.quick, args.search, args.seeds, args.of_runs, arms)
    kind = "-quick" * version.quick + "-changed" * version.changed  # so that no trial overwrites the real page
    folder = args.out or Path("reproduced") / f"{args.name}{kind}"
    if made_elsewhere(args):
        asked = ask(args.name, places, version)
        return publish(f"experiment {args.name}", [job.config for job in asked.all_jobs], args, args.device)
    result = reproduce(args.name, folder, places, version, Effort.of(args))
    if result is None:
        return 130
    print("\n".join(claim_lines(result, folder)))
    return 0
