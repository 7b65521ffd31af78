"""`bench ladder`."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError, unknown
from bench.grammar.commands import COMMANDS, parse
from bench.grammar.parse import Args
from bench.grammar.values import parts
from bench.output import check_output, note, remark, write
from bench.progress import doing

if TYPE_CHECKING:
    from bench.ladder.findings import Findings
    from bench.ladder.rungs import Ladder
    from bench.ladder.sizes import Size
    from bench.tuning.study import Study
    from bench.tuning.suite import Suite


def main(words: list[str]) -> int:
    """`bench ladder` with these words: 0 done, 1 a record could not be read, 130 stopped.

    Raises:
        UserError: the request is invalid.
        RunFailed: budgets came out unequal, or the disk is full.
    """
    args = parse("ladder", words)
    if getattr(args, "from") is not None:
        return _again(args, getattr(args, "from"))
    with doing("importing optuna"):
        from bench.ladder.rungs import begun, climb
        from bench.ladder.sizes import sizes_of
        from bench.store.stores import Stores
        from bench.tuning.cli.shared import fewest_slots, in_time, open_studies, without_storage
        from bench.tuning.cli.suite import submit_array, train

    places = {"data": args.data, "store": args.store}
    ladder = _asked(args)
    with doing("making the sizes"):
        settings = {**ladder.words, "task": ladder.task}
        sizes = sizes_of(ladder.rule, settings, ladder.reference, args.rungs, places)
    cut = fewest_slots(args.workers, ladder.suite(sizes[0], {}, places).specs(places), places)
    if args.dry_run:
        return _plan(ladder, sizes, args, places, cut[0].threads, len(cut))
    if args.print and not args.slurm:
        raise UserError("--print prints the script of --slurm; write both")
    if args.slurm:
        first = ladder.suite(sizes[0], {}, places)
        cells = [(spec, first.tune.trials) for spec in first.specs(places)]
        return submit_array(args, ladder.name, ["ladder", *_for_a_task(words)], cells, places)
    out = args.out or Path("laddered", ladder.name)
    if not args.train_only:
        check_output(out)
    studies = open_studies(args)

    def carried_out(suite: "Suite") -> "list[Study] | None":
        return train(args, [suite], studies, places, cut)

    note(f"ladder {ladder.name}: {len(sizes)} rungs of {', '.join(ladder.opts)}; its record is in {args.store}")
    if not in_time(args, lambda: climb(ladder, sizes, studies, places, carried_out, note)):
        return 130
    if args.train_only:
        return 0
    from bench.ladder.findings import findings

    found = findings(begun(ladder, sizes, args.store), Stores([args.store]))
    command = ["bench", "ladder", *without_storage(words)]
    return _show(found, out, shlex.join(command), as_json=args.json)


def _for_a_task(words: Sequence[str]) -> list[str]:
    """The words for a task of the array, without options that `submit_array` sets."""
    own = {option.name: bool(option.value) for option in COMMANDS["ladder"].options if option.name in _OF_A_TASK}
    kept, skip = ["--train-only"], False
    for word in words:
        name, equals, _ = word.removeprefix("--").partition("=")
        if skip or (word.startswith("--") and name in own):
            skip = not skip and own[name] and not equals
        elif word == "-o":
            skip = True
        elif not word.startswith("-o"):
            kept.append(word)
    return kept


_OF_A_TASK = {
    "slurm",
    "print",
    "sbatch",
    "workers",
    "engine",
    "memory",
    "width",
    "storage",
    "data",
    "store",
    "out",
    "json",
    "shared-by",
    "budget",
}


def _again(args: Args, store: Path) -> int:
    """Write the pages of the ladders in a store, from stored runs."""
    from bench.ladder.findings import findings
    from bench.output import warn_of
    from bench.store.stores import Stores

    stores = Stores([store])
    ladders = [each for each in stores.ladders if args.name in (None, each.name)]
    if not ladders and args.name is not None:
        raise unknown(f"ladder in {store}", args.name, [each.name for each in stores.ladders])
    if not ladders:
        raise UserError(f"--from {store}: there is no ladder in this store; `bench ladder --task lm ...` makes one")
    code = warn_of(stores)
    for record in ladders:
        out = args.out or Path("laddered")
        own = out if args.out and len(ladders) == 1 else out / record.name
        _show(findings(record, stores), own, f"bench ladder --from {store.name}", as_json=args.json)
    return code


def _asked(args: Args) -> "Ladder":
    """The requested ladder.

    Raises:
        UserError: a name or a value is unknown or illegal.
    """
    from bench.boards.entries import default_reference
    from bench.ladder.rungs import Ladder
    from bench.ladder.sizes import rule_of
    from bench.sweeps.grid import by_optimizer, settings_in
    from bench.tuning.tune import reporting_seeds, tuning_seeds
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    words = (settings_in(args.config) if args.config else {}) | dict(args.of_runs)
    task, opts = str(words.pop("task", "")), list(dict.fromkeys(parts(str(words.pop("opt", "")))))
    if not task:
        raise UserError("--task is missing; see `bench list tasks`")
    for kind, named, known in (("task", [task], TASKS), ("optimizer", opts, OPTIMIZERS)):
        for name in named:
            if name not in known:
                raise unknown(kind, name, known)
    reference = args.reference or default_reference(words.get("trainer.batch_size", TASKS[task].batch_size))
    if reference not in opts:
        raise UserError(
            f"--opt: the reference, {reference}, is missing from the list; add it, or name another with --reference"
        )
    if len(opts) < 2:
        raise UserError("--opt: a ladder needs two optimizers or more, such as --opt adamw,muon")
    if "seed" in words:
        raise UserError(f"--seed {words['seed']}: a ladder has several; write --seeds and --report_seeds")
    if args.budget is not None and args.budget.runs is not None:
        raise UserError(f"--budget {args.budget.text}: a ladder takes a time (6h, 90min); --trials bounds its runs")
    common, own = by_optimizer(words, opts)
    fresh = reporting_seeds(args.report_seeds)
    if len(fresh) < 2:
        raise UserError(
            f"--report_seeds {args.report_seeds}: one seed gives no estimate of the noise; write two or more"
        )
    if not 0.5 <= args.margin <= 4:
        raise UserError(f"--margin {args.margin:g}: out of range: write decades from 0.5 to 4")
    rule = rule_of({**common, "task": task}, args.axis, args.ratio, args.tokens, args.start)
    return Ladder(
        task,
        opts,
        reference,
        common,
        own,
        rule,
        args.trials,
        args.margin,
        args.sampler or "grid",
        args.prune,
        tuning_seeds(args.seeds),
        fresh,
    )


def _plan(
    ladder: "Ladder", sizes: "Sequence[Size]", args: Args, places: Mapping[str, Any], threads: int, workers: int
) -> int:
    """Print the rungs, their numbers of runs, and the estimated time."""
    from bench.ladder.show import size as short
    from bench.ladder.sizes import in_words
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.text import duration
    from bench.tuning.suite import measured

    measure, rows, whole = measured(places, threads), list[dict[str, Any]](), 0.0
    for number, size in enumerate(sizes, 1):
        # Any winner will do: it only matters that later rungs try fewer settings around one.
        specs = ladder.suite(size, {}, places).specs(places)
        middles = ({name: axis.middle for name, axis in spec.design.ranges.items()} for spec in specs)
        winners = dict(zip((spec.opt for spec in specs), middles, strict=True)) if number > 1 else {}
        suite = ladder.suite(size, winners, places)
        trials = suite.tune.trials or 0
        runs = trials * len(ladder.seeds) + len(ladder.fresh)
        each = {spec.opt: measure(spec) for spec in specs}
        seconds = runs * sum(each.values())
        whole += seconds
        rows.append(
            {
                "rung": number,
                "at": size.at,
                "parameters": size.parameters,
                "steps": size.steps,
                "settings": size.settings,
                "trials": trials,
                "runs": runs * len(specs),
                "seconds": round(seconds, 1),
                "run_seconds": {opt: round(s, 2) for opt, s in each.items()},
            }
        )
    if args.json:
        print(json.dumps({"ladder": ladder.name, "rule": in_words(ladder.rule, {"task": ladder.task}), "rungs": rows}))
        return 0
    heads = ("rung", "size", "parameters", "steps", "trials each", "runs", "about")
    lines = [
        (
            r["rung"],
            short(r["at"]),
            f"{r['parameters']:,}",
            f"{r['steps']:,}",
            r["trials"],
            r["runs"],
            duration(r["seconds"] / workers),
        )
        for r in rows
    ]
    print("\n".join([f"ladder {ladder.name}", *in_words(ladder.rule, {**ladder.words, "task": ladder.task})]))
    print("\n".join(shown(Table.of(heads, lines))))
    print(
        f"about {duration(whole / workers)} with {workers} workers, one run at a time in each (less with lanes),"
        f" without evaluations; more if the best point of a grid is at its edge"
    )
    return 0


def _show(found: "Findings", out: Path, command: str, *, as_json: bool) -> int:
    """Print the findings, and write page, table and figures."""
    from bench.ladder.show import boards, charts, verdict
    from bench.results.draw import picture
    from bench.results.render import as_json as json_of
    from bench.results.render import markdown, text

    tables, said, drawn = boards(found), verdict(found), charts(found)
    record = found.record
    title = f"A ladder of {record.task}: {', '.join(record.opts)}"
    write(out / "ladder.html", html(found, title, command))
    head = f"# {title}\n\nMade by `{command}`.\n\n" + "".join(f"* {line}\n" for line in said)
    figure = (
        "\n![steps at equal loss against size](efficiency.png)\n\n" if drawn["efficiency"].panels[0].traces else "\n"
    )
    write(out / "ladder.md", head + figure + markdown(tables))
    for name, chart in drawn.items():
        for ending in (".png", ".pdf"):
            if chart.panels[0].traces:
                write(out / f"{name}{ending}", picture(chart, ending))
    if as_json:
        content = {"ladder": record.name, "out": str(out), "said": said, "boards": json_of(tables)}
        print(json.dumps(content, allow_nan=False))
    else:
        print(text(tables), end="")
        print("\n".join(said))
    if found.lost:
        remark("warning", f"{found.lost} runs of the ladder are missing in the store and in these results")
    return 0


def html(found: "Findings", title: str, command: str) -> str:
    """The page; reproducible: the same store gives the same bytes."""
    from bench.boards.page import other_page
    from bench.ladder.show import boards, charts, cut, verdict

    drawn, record = charts(found), found.record
    told = {
        "efficiency": (
            "Efficiency against size",
            f"Steps per step of {record.reference} at equal loss, by the size of the rung.",
        ),
        "settings": (
            "Winning settings against size",
            "The winning value of the first searched setting of each optimizer at each rung.",
        ),
        "regret": (
            "Choosing by a cheap rung",
            "Regret at the last rung of choosing the winner of a cheaper rung, against the cost of that rung.",
        ),
    }
    kinds = {name: (*told[name], chart) for name, chart in drawn.items()}
    lead = [
        f"Rungs of {record.task} along “{record.axis}”, each tuned again with equal budgets for all optimizers, and"
        f" compared on fresh seeds. Made by: {command}"
    ]
    said = [("Verdict", " ".join(verdict(found)))]
    if lines := cut(found):
        said.append(("Reductions", " ".join(line.removeprefix("Reduced: ") for line in lines)))
    return other_page(title, lead, said, boards(found), kinds, READING)


READING = [
    "A ratio of steps is the number of steps that an optimizer needs per step of the reference to reach the same loss"
    " on the selection split; the loss is the worse of the two final ones, so nothing is extrapolated. Its interval"
    " comes from paired tests over the fresh seeds, and does not include the noise of tuning.",
    "A trend is a least-squares line of the logarithm of that ratio over the logarithm of the size. It counts as a"
    " trend if its 95 % interval excludes no change. Predictions extrapolate that line to the next rung; they were"
    " written to the store before the rung began, as the recorded times show.",
]
