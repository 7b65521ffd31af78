"""`bench compare`: from an optimizer to ranked tables, with the parts of other commands.

The kit checks the optimizers (`bench check`), a suite tunes them and their baselines at equal budgets and runs the
winners on fresh seeds (`bench suite`), and the board `quality` ranks the results (`bench leaderboard`).
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.errors import RunFailed, UserError
from bench.execute import Effort
from bench.grammar.parse import Args
from bench.grammar.values import parts, reference_folder
from bench.output import answer, check_output, note, remark, warn_of, write
from bench.process import as_options
from bench.progress import doing
from bench.text import CONVERGED, counted, listed
from optimizers.plugins import bare, slug

if TYPE_CHECKING:
    from bench.boards.collect import Collected
    from bench.config.run_config import RunConfig
    from bench.execute.cluster import Crew
    from bench.plots.panels import Figure
    from bench.results.table import Board
    from bench.store.reports import StudyRecord
    from bench.tuning.spec import StudySpec
    from bench.tuning.study import Study, StudyResult
    from bench.tuning.suite import Settings, Suite


def main(args: Args) -> int:
    """`bench compare` with these arguments: 0 done, 1 a check failed or an optimizer has no winner, 130 stopped.

    Raises:
        UserError: the request is invalid.
        RunFailed: a failed check changes results.
    """
    with doing("importing torch"):
        from bench.tuning.cli.shared import in_time, note_long

    contests = [ask(arguments) for arguments in _by_task(args)]
    crew = min((contest.crew for contest in contests), key=lambda crew: 0 if crew.cluster else crew.shares)
    if args.dry_run:
        from bench.tuning.cli.suite import show_plan

        return show_plan(args, [contest.suite for contest in contests], contests[0].places, crew)
    tasks = "-".join(slug(contest.studies[0].spec.task) for contest in contests)[:80]
    out = args.out or Path("compared", tasks, "-".join(map(slug, contests[0].opts))[:80])
    check_output(out)
    note_long(args, [study for contest in contests for study in contest.studies], contests[0].places, crew)
    with crew:
        if not in_time(args, lambda: all(carry_out(contest, args, crew) for contest in contests)):
            return 130
    command = shlex.join(["bench", "compare", *args.words])
    return _show([result for contest in contests for result in results_of(contest)], args, out, command)


def _by_task(args: Args) -> list[Args]:
    """The arguments of the comparison on each task."""
    from bench.sweeps.grid import settings_in

    words = settings_in(args.config) | args.of_runs
    tasks = list(dict.fromkeys(parts(words.get("task", ""))))
    return [Args(**vars(args) | {"of_runs": args.of_runs | {"task": task}}) for task in tasks] or [args]


class Contest(NamedTuple):
    """A requested comparison on a task.

    Attributes:
        suite: tunes all optimizers.
        opts: the optimizers given by --opt.
        studies: of the suite.
        places: paths of data and store.
        crew: the processes that train them.
    """

    suite: "Suite"
    opts: list[str]
    studies: "list[Study]"
    places: Mapping[str, Path]
    crew: "Crew"


def ask(args: Args) -> Contest:
    """The comparison on one task that `bench compare` requests.

    Raises:
        UserError: a name or a setting is unknown or illegal, there is nothing to compare with, or it cannot be trained.
    """
    from bench.boards.entries import REFERENCES, default_reference
    from bench.sweeps.grid import by_optimizer, settings_in
    from bench.tuning.cli.shared import crew_of
    from bench.tuning.spec import reporting_seeds, trials_of, tuning_seeds
    from bench.tuning.suite import Suite, Tune

    places = {"data": args.data, "store": args.store}
    words = settings_in(args.config) | args.of_runs
    task, opts = str(words.pop("task", "")), list(dict.fromkeys(parts(words.pop("opt", ""))))
    if not opts:
        raise UserError("--opt is missing: name one or more optimizers, such as --opt my_file.py:MyOpt")
    fresh = reporting_seeds(args.report_seeds)
    common, by_opt = by_optimizer(words, [*opts, *(args.against or REFERENCES)])
    theirs = {name: value for name, value in common.items() if name.startswith("opt.")}
    common = {name: value for name, value in common.items() if name not in theirs}

    def suite(names: Sequence[str], tune: "Tune") -> "Suite":
        settings: dict[str, Settings | None] = {n: {**(theirs if n in opts else {}), **by_opt[n]} for n in names}
        return Suite(title="", tasks={task: {}}, optimizers=settings, settings=common, tune=tune, seeds=fresh)

    first = suite(opts, Tune()).specs(places)[0]
    against = args.against or [default_reference(first.trainer.batch_size)]
    baseline = None
    if not any(name in opts or by_opt[name] for name in against):
        shipped = [_shipped(spec.typical(places), args) for spec in suite(against, Tune()).specs(places)]
        baseline = _common(against, shipped)
    if baseline is not None and not _has_equal_budget(baseline, against, args):
        baseline = None
    tuned_here: list[str] = against if baseline is None else []
    every = list(dict.fromkeys([*tuned_here, *opts]))
    if len({*every, *against}) < 2:
        raise UserError(f"--opt {opts[0]}: it is the reference itself; name another one with --against")
    if lost := [f"--opt.{name}.{key[4:]}" for name, values in by_opt.items() for key in values if name not in every]:
        raise UserError(f"{lost[0]}: it is not part of the comparison; name it with --against")
    seeds = tuning_seeds(args.seeds or "2") if args.seeds or baseline is None else baseline.seeds
    if baseline is None:
        tune = Tune(trials=args.trials, seeds=seeds)
    else:
        designed = sum(trial["kind"] == "design" for trial in baseline.trials)
        tune = Tune(trials=designed, seeds=seeds, sampler=baseline.sampler, total=len(baseline.trials))
    contest = suite(every, tune)
    specs = contest.specs(places)
    if other := next((s for s in specs if s.trainer.batch_size != first.trainer.batch_size), None):
        raise UserError(
            f"{first.opt} has batches of {first.trainer.batch_size} and {other.opt} of {other.trainer.batch_size},"
            " so they are different problems; set one size with --trainer.batch_size, or choose others with --against"
        )
    designs, tried = {trials_of(spec.design, tune.trials) for spec in specs}, contest.common(specs)
    there = "" if baseline is None else f" ({listed(against)}: reference results of {len(baseline.trials)} trials)"
    title = (
        f"{', '.join(opts)} against {', '.join(against)} on {task}{there}: {counted(tried, 'trial')} of"
        f" {counted(len(seeds), 'seed')} and {counted(len(fresh), 'fresh seed')} for each,"
        f" {len(every) * (tried * len(seeds) + len(fresh))} runs minus stored ones"
        + ", more where a grid grows" * any(spec.sampler == "grid" for spec in specs)
        + "; smaller designs are topped up" * (len(designs) > 1)
    )
    contest = contest.model_copy(update={"title": title})
    (studies,) = contest.studies(places)
    return Contest(contest, opts, studies, places, crew_of(Effort.of(args), specs, places))


def carry_out(contest: Contest, args: Args, crew: "Crew", *, progress: bool = True) -> bool:
    """Check the optimizers given by --opt, then tune all and run the winners; False if a signal asked to stop.

    Raises:
        UserError: some runs cannot be trained; finished ones are stored.
        RunFailed: a failed check changes results.
    """
    from bench.tuning.cli.shared import note_ignored
    from bench.tuning.training import carry_out_suite

    specs = [study.spec for study in contest.studies]
    _check([spec for spec in specs if spec.opt in contest.opts], args, progress=progress)
    note(contest.suite.title if progress else None)
    note_ignored(specs, contest.places)
    return carry_out_suite(contest.suite, contest.studies, crew, Effort.of(args), progress=progress)


def _shipped(config: "RunConfig", args: Args) -> "StudyRecord | None":
    """The study that tuned a baseline for the reference results; None without one on this problem."""
    from bench.config.settings import problem_of
    from bench.store.stores import Stores

    folder = reference_folder()
    if args.no_reference or folder is None:
        return None
    stores = Stores([], folder)
    runs = {run.run_id: run for run in stores.runs}
    same, others = list["StudyRecord"](), dict[str, None]()
    for study in stores.studies:
        winner = runs.get(study.winner or "")
        if winner is None or bare(study.task) != bare(config.task) or study.opt != config.opt:
            continue
        versions = config.spec_versions
        if winner.problem == problem_of(config) and all(winner.versions.get(n) == v for n, v in versions.items()):
            same.append(study)
        else:
            others[" ".join(f"--{name} {value}" for name, value in winner.problem.items())] = None
    best = max(same, key=lambda study: study.weight, default=None)
    gap = None if best is None or config.task_spec.target is not None else runs[best.winner or ""].excess()
    if gap is not None and gap <= CONVERGED:
        note(
            f"{config.opt} reaches the floor of the metric here, so this may end in ties only: take a smaller budget"
            " (--trainer.max_steps) or a harder task, or compare the steps to a loss (bench leaderboard --board speed"
            " --target LOSS)"
        )
    if not same and others:
        note(
            f"reference results exist for {config.task} with {' or '.join(others)}; {config.opt} is tuned again for"
            f" this problem"
        )
    return best


def _common(names: Sequence[str], shipped: "Sequence[StudyRecord | None]") -> "StudyRecord | None":
    """A study with the budget and sampler of all stored baselines; None unless all are stored and agree."""
    there = [study for study in shipped if study is not None]
    if len(there) == len(shipped) and len({(len(s.trials), tuple(s.seeds), s.sampler) for s in there}) == 1:
        return there[0]
    if there:
        note(f"{listed(names)} are tuned again: not all have reference results on this problem with equal budgets")
    return None


def _has_equal_budget(baseline: "StudyRecord", names: Sequence[str], args: Args) -> bool:
    """Whether the others get the trials and tuning seeds of stored baselines; a note says if not."""
    from bench.tuning.spec import tuning_seeds

    have = len(baseline.trials), len(baseline.seeds)
    if (args.trials or have[0], len(tuning_seeds(args.seeds)) if args.seeds else have[1]) == have:
        return True
    note(
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} tuned again, so that budgets are equal: the reference"
        f" results have {counted(have[0], 'trial')} of {counted(have[1], 'seed')}"
    )
    return False


def _check(specs: "Sequence[StudySpec]", args: Args, *, progress: bool) -> None:
    """Check optimizers as `bench check` does, except for what the store already has.

    Raises:
        UserError: one cannot be loaded.
        RunFailed: a failure changes results, without --anyway.
    """
    from bench.check.report import read_verdict, write_verdict
    from bench.check.run import reports, request_of, versions

    given = [{name[4:]: spec.settings[name] for name in spec.chosen if name.startswith("opt.")} for spec in specs]
    places = zip(specs, given, strict=True)
    known = [read_verdict(args.store, spec.opt, options, versions()) for spec, options in places]
    names = ", ".join(spec.opt for spec in specs)
    note(f"checking {names}" if progress and not sys.stderr.isatty() else None)  # a terminal shows it below
    with doing(f"checking {names}"):
        left = zip(specs, given, known, strict=True)
        fresh = reports([request_of(spec.opt, options=options) for spec, options, report in left if report is None])
        verdicts = [next(fresh) if report is None else report for report in known]
    for report, options in zip(verdicts, given, strict=True):
        write_verdict(args.store, report)
        note(f"{report.name}: {report.headline()}" if progress else None)
        wrong = [
            name for name in report.failed if name == "builds" or report.catalogue[name].group == "changes results"
        ]
        if wrong:
            command = ["bench", "check", report.name, *as_options({f"opt.{k}": v for k, v in options.items()})]
            why = f"{report.name} fails {', '.join(wrong)}, which changes results: {shlex.join(command)} gives advice"
            if not args.anyway:
                raise RunFailed(f"{why}; --anyway continues")
            remark("warning", why)


def results_of(contest: Contest) -> "list[StudyResult]":
    """Results of the studies so far; their records are stored."""
    from bench.tuning import tuned

    results = [study.result() for study in contest.studies]
    for result in results:
        tuned.remember(result)
    return results


class Ranking(NamedTuple):
    """Result of a comparison.

    Attributes:
        boards: the board `quality`; none while no winner has run on fresh seeds.
        said: verdicts in sentences, and the numbers of seeds that may decide open ones.
        forest: effects and intervals; None while there is no board.
    """

    boards: "list[Board]"
    said: list[str]
    forest: "Figure | None"


def ranking(results: "Sequence[StudyResult]", args: Args) -> Ranking:
    """The ranked tables of the results of these studies."""
    from bench.boards.headline import headlines
    from bench.boards.quality import quality
    from bench.plots.forest import forest
    from bench.tuning.suite import by_task

    ranked = [entries for of_task in by_task(results).values() if (entries := _ranked(of_task, args)) is not None]
    if not ranked:
        return Ranking([], [], None)
    every = _together(ranked)
    several = len(every.problems) > 1
    said = [f"{name}: {text}" if several else text for name, text in headlines(every)]
    return Ranking([quality(every)], said, forest(every))


def _together(ranked: "Sequence[Collected]") -> "Collected":
    """The entries of several problems as one collection."""
    fields = [vars(collected) for collected in ranked]
    joined = {
        name: [entry for values in fields for entry in values[name]]
        for name in ("entries", "chosen", "all", "unranked")
    }
    by_id = {run_id: run for collected in ranked for run_id, run in collected.by_id.items()}
    return replace(ranked[0], **joined, by_id=by_id)


def _show(results: "Sequence[StudyResult]", args: Args, out: Path, command: str) -> int:
    """Print and write the result."""
    from bench.results.render import as_json, markdown, written
    from bench.tuning import suite
    from bench.tuning.summary import as_json as study_json

    with doing("writing settings, table and plots"):
        suite.write(out / "tuned", results, command)
        boards, said, chart = ranking(results, args)
        if boards:
            write(out / "quality.md", markdown(boards) + "".join(f"\n{line}\n" for line in said))
        if chart is not None and chart.drawn:
            for ending in (".png", ".pdf"):
                write(out / f"forest{ending}", chart.picture(ending))
    if args.json:
        studies = [study_json(result) for result in results]
        answer({"out": out, "studies": studies, "boards": as_json(boards), "said": said})
    else:
        print("\n".join(suite.result_lines(results)))
        print(written(boards, "table", None) if boards else "no winner has run on fresh seeds yet")
        print("\n".join(said))
    return int(any(result.best is None for result in results))


def _ranked(results: "Sequence[StudyResult]", args: Args) -> "Collected | None":
    """Entries of a task: these optimizers, as tuned by these studies, and others tuned on the same problem.

    None if no winner has run on a fresh seed.
    """
    from bench.boards.collect import collect
    from bench.boards.entries import VERSIONS
    from bench.store.stores import Stores

    fresh = {run.run_id: run for result in results for run in result.fresh}
    if not fresh:
        return None
    reference_store = None if args.no_reference else reference_folder()
    stores = Stores([args.store], reference_store)
    mine = {result.study.name: bare(result.spec.opt) for result in results}
    # Studies with larger budgets would replace these.
    stores.studies = [s for s in stores.studies if s.name in mine or bare(s.opt) not in mine.values()]
    versions = next(iter(fresh.values())).versions
    only = {f"versions.{name}": str(versions[name]) for name in VERSIONS if name in versions}
    reference, named = args.against[0] if args.against else None, {*mine.values(), *map(bare, args.against or ())}
    every = collect(stores, tasks=[results[0].spec.task], only=only, mixed_versions=True, reference=reference)
    warn_of(stores, every.damaged)
    problem = next((e.problem for e in every.all if any(r.run_id in fresh for r in e.runs.values())), None)
    chosen = [
        e
        for e in every.chosen
        if e.problem == problem and (e.opt in named or (args.against is None and e.kind == "tuned"))
    ]
    return replace(every, entries=chosen, chosen=chosen)
