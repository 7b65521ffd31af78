"""`bench ladder`."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UserError, check_known, unknown
from bench.grammar.commands import COMMANDS, parse
from bench.grammar.parse import Args
from bench.grammar.values import parts
from bench.output import answer, check_output, note, remark, reply, write
from bench.progress import doing

if TYPE_CHECKING:
    from bench.ladder.findings import Findings
    from bench.ladder.rungs import Ladder
    from bench.ladder.sizes import Size


def main(args: Args) -> int:
    """`bench ladder` with these arguments: 0 done, 1 a record could not be read, 130 stopped.

    Raises:
        UserError: the request is invalid.
        RunFailed: budgets came out unequal, or the disk is full.
    """
    if (stored := getattr(args, "from")) is not None:
        _refuse_others(args)
        return _again(args, stored)
    if args.name is not None:
        raise UserError(f"--name {args.name}: it selects a ladder of --from STORE; remove it")
    with doing("importing optuna"):
        from bench.ladder.rungs import begun, climb
        from bench.ladder.sizes import sizes_of
        from bench.store.stores import Stores
        from bench.tuning.cli.shared import fewest_slots, in_time
        from bench.tuning.cli.suite import train
        from bench.tuning.studies import Studies

    places = {"data": args.data, "store": args.store}
    ladder = _asked(args)
    with doing("making the sizes"):
        settings = {**ladder.words, "task": ladder.task}
        sizes = sizes_of(ladder.rule, settings, ladder.reference, args.rungs, places)
    first = ladder.suite(sizes[0].settings, {}, places)
    cut = fewest_slots(args.workers, first.specs(places), places, args.engine)
    if args.dry_run:
        return _plan(args, ladder, sizes, places, cut[0].threads, len(cut))
    out = args.out or Path("laddered", ladder.name)
    check_output(out)
    studies = Studies(args.store)
    note(f"ladder {ladder.name}: {len(sizes)} rungs of {', '.join(ladder.opts)}; its record is in {args.store}")
    if not in_time(
        args, lambda: climb(ladder, sizes, studies, places, lambda suite: train(args, [suite], studies, places, cut))
    ):
        return 130
    from bench.ladder.findings import findings

    found = findings(begun(ladder, sizes, args.store), Stores([args.store]))
    return _show(found, out, shlex.join(["bench", "ladder", *args.words]), as_json=args.json)


def _refuse_others(args: Args) -> None:
    """Refuse options beside --from, which trains nothing.

    Raises:
        UserError: there is one.
    """
    usual = parse("ladder", [])
    for option in COMMANDS["ladder"].options:
        given = getattr(args, option.key) != getattr(usual, option.key)
        if given and option.name not in ("from", "name", "out", "json"):
            raise UserError(f"{option.flag}: with --from, everything is read from the store; remove it")
    if args.of_runs:
        raise UserError(f"--{next(iter(args.of_runs))}: with --from, everything is read from the store; remove it")


def _again(args: Args, folder: Path) -> int:
    """Write the pages of the ladders in a store or bundle, from stored runs."""
    from bench.ladder.findings import findings
    from bench.output import warn_of
    from bench.store.bundle import store_in
    from bench.store.stores import Stores

    store = store_in(folder)
    stores = Stores([store])
    ladders = [each for each in stores.ladders if args.name in (None, each.name)]
    if not ladders and args.name is not None:
        raise unknown("ladder", args.name, [each.name for each in stores.ladders], f" in {folder}")
    if not ladders:
        raise UserError(f"--from {folder}: there is no ladder in it; `bench ladder --task lm ...` makes one")
    if args.json and len(ladders) > 1:
        raise UserError(f"--json: {folder} has {len(ladders)} ladders; add --name, such as --name {ladders[0].name}")
    code, words = warn_of(stores), folder.name if folder.is_absolute() else str(folder)  # a page may be published
    for record in ladders:
        out = args.out if args.out and len(ladders) == 1 else (args.out or Path("laddered")) / record.name
        _show(findings(record, stores), out, shlex.join(["bench", "ladder", "--from", words]), as_json=args.json)
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

    words = settings_in(args.config) | args.of_runs
    task, opts = str(words.pop("task", "")), list(dict.fromkeys(parts(words.pop("opt", ""))))
    if not task:
        raise UserError("--task is missing; see `bench list tasks`")
    check_known("task", [task], TASKS)
    if not opts:
        raise UserError("--opt is missing; name two optimizers or more, such as --opt adamw,muon")
    check_known("optimizer", opts, OPTIMIZERS)
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
    shared = {key: common.pop(key) for key in list(common) if key.startswith("opt.")}  # possibly ranges to search
    own = {name: {**shared, **settings} for name, settings in own.items()}
    fresh = reporting_seeds(args.report_seeds)
    if len(fresh) < 2:
        raise UserError(
            f"--report_seeds {args.report_seeds}: one seed gives no estimate of the noise; write two or more"
        )
    if len(fresh) < 5:
        note(
            f"--report_seeds: with {len(fresh)} fresh seeds, ratios of steps have no intervals; with 5 or more they do"
        )
    if not 0.5 <= args.margin <= 4:
        raise UserError(f"--margin {args.margin:g}: out of range: write decades from 0.5 to 4")
    rule = rule_of({**common, "task": task}, args.axis, args.ratio, args.tokens, args.start)
    sampler, seeds = args.sampler or "grid", tuning_seeds(args.seeds)
    return Ladder(task, opts, reference, common, own, rule, args.trials, args.margin, sampler, args.prune, seeds, fresh)


def _plan(
    args: Args, ladder: "Ladder", sizes: "Sequence[Size]", places: Mapping[str, Any], threads: int, workers: int
) -> int:
    """Print the rungs, their numbers of runs, and the estimated time of those that are not stored."""
    from bench.ladder.rungs import stored, winners_of
    from bench.ladder.show import size as short
    from bench.ladder.sizes import in_words
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.text import counted, duration
    from bench.tuning.suite import measured

    measure, rows, lines, whole = measured(places, threads), list[dict[str, Any]](), list[tuple[Any, ...]](), 0.0
    winners, record = dict[str, Mapping[str, Any]](), stored(ladder, places["store"])
    for number, size in enumerate(sizes, 1):
        done = any(rung["done"] for rung in record.rungs[number - 1 : number])
        suite = ladder.suite(size.settings, winners, places)
        specs, trials = suite.specs(places), suite.tune.trials or 0
        each, runs = {spec.opt: measure(spec) for spec in specs}, trials * len(ladder.seeds) + len(ladder.fresh)
        seconds = 0.0 if done else runs * sum(each.values())
        row = {"rung": number, **vars(size), "trials": trials, "runs": runs * len(specs), "stored": done}
        row["seconds"] = round(seconds, 3)
        rows.append(row | {"run_seconds": {opt: round(s, 4) for opt, s in each.items()}})
        numbers = short(size.at), f"{size.parameters:,}", f"{size.steps:,}", trials, runs * len(specs)
        lines.append((number, *numbers, "stored" if done else duration(seconds / workers)))
        whole += seconds
        # Without a stored winner any will do: it only matters that later rungs try fewer settings around one.
        winners = {spec.opt: {name: axis.middle for name, axis in spec.design.ranges.items()} for spec in specs}
        winners |= winners_of(record, number - 1, places["store"]) if done and number < len(sizes) else {}
    rule = in_words(ladder.rule, ladder.task)
    heads = ("rung", "size", "parameters", "steps", "trials each", "runs", "about")
    about = (
        f"about {duration(whole / workers)} with {counted(workers, 'worker')}, one run at a time in each (less with"
        f" lanes), start not included; more if the best point of a grid is at its edge"
    )
    said = [f"ladder {ladder.name}", *rule, *shown(Table.of(heads, lines)), about]
    reply(args, {"ladder": ladder.name, "rule": rule, "rungs": rows}, said)
    return 0


def _show(found: "Findings", out: Path, command: str, *, as_json: bool) -> int:
    """Print the findings, and write page, table and figures; the same store gives the same bytes."""
    from bench.boards import page
    from bench.ladder.show import boards, charts, cut, verdict
    from bench.results.draw import picture
    from bench.results.render import as_json as json_of
    from bench.results.render import markdown, written
    from bench.text import counted

    record, tables, said, drawn = found.record, boards(found), verdict(found), charts(found)
    title = f"A ladder of {record.task}: {', '.join(record.opts)}"
    lead = (
        f"Rungs of {record.task} along “{record.axis}”, each tuned again with equal budgets for all optimizers, and"
        f" compared on fresh seeds. Made by: {command}"
    )
    summary = [("Verdict", " ".join(said))]
    if lines := cut(found):
        summary.append(("Reductions", " ".join(line.removeprefix("Reduced: ") for line in lines)))
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
    write(out / "ladder.html", page.written(tables, kinds, summary, title=title, lead=[lead], reading=READING))
    head = f"# {title}\n\nMade by `{command}`.\n\n" + "".join(f"* {line}\n" for line in said)
    shown = {name: chart for name, chart in drawn.items() if chart.panels[0].traces}
    figure = "\n![steps at equal loss against size](efficiency.png)\n\n" if "efficiency" in shown else "\n"
    write(out / "ladder.md", head + figure + markdown(tables))
    for name, chart in shown.items():
        for ending in (".png", ".pdf"):
            write(out / f"{name}{ending}", picture(chart, ending))
    if as_json:
        answer({"ladder": record.name, "out": out, "said": said, "boards": json_of(tables)})
    else:
        print(written(tables, "table", None), end="")
        print("\n".join(said))
    if found.lost:
        remark("warning", f"missing in the store and in these results: {counted(found.lost, 'run')} of the ladder")
    return 0


READING = [
    "A ratio of steps is the number of steps that an optimizer needs per step of the reference to reach the same loss"
    " on the selection split; the loss is the worse of the two final ones, so nothing is extrapolated. One fresh"
    " seed that learns late or diverges changes it little. Its interval does not include the noise of tuning.",
    "A trend is a least-squares line of the logarithm of that ratio over the logarithm of the size. It counts as a"
    " trend if its 95 % interval excludes no change. Predictions extrapolate that line to the next rung; they were"
    " written to the store before the rung began, as the recorded times show.",
]
