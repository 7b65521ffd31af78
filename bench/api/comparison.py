"""`bench.compare`: from optimizers to ranked tables, with the parts of other functions.

The kit checks the optimizers (`bench.check`), a suite tunes them and their baselines at equal budgets and runs the
winners on fresh seeds (`bench.suite`), and the board `quality` ranks the results (`bench.leaderboard`).
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.api.results import Comparison
from bench.api.results import Study as Result
from bench.api.studies import plan_of
from bench.api.training import crew_of, in_time, note_ignored, note_long
from bench.boards.entries import REFERENCES, default_reference
from bench.config.values import parts, reference_folder
from bench.errors import RunFailed, UserError
from bench.execute import Effort
from bench.output import Answer, check_output, note, remark, warn_of, write
from bench.process import as_options
from bench.progress import doing
from bench.sweeps.grid import by_optimizer, settings_in
from bench.text import CONVERGED, counted, listed
from bench.tuning.spec import reporting_seeds, trials_of, tuning_seeds
from bench.tuning.suite import Suite, Tune
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
    from bench.tuning.suite import Settings


@dataclass(frozen=True)
class Request:
    """A requested comparison.

    Attributes:
        words: settings in dotted form, with `opt`.
        config: YAML file of settings that `words` override.
        tasks: their names.
        against: names of the baselines; None: the default.
        trials: of each optimizer; None: the default.
        seeds, report_seeds: of trials and winners, as text.
        reference: whether reference results count.
        anyway: whether to continue if a failed check changes results.
        places: folders of data and store.
        effort: how runs are executed.
        progress: whether to show it.
    """

    words: Mapping[str, Any]
    config: Path | None
    tasks: Sequence[str]
    against: list[str] | None
    trials: int | None
    seeds: str | None
    report_seeds: str
    reference: bool
    anyway: bool
    places: Mapping[str, Path]
    effort: Effort
    progress: bool

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the file and the call."""
        return settings_in(self.config) | dict(self.words)


def compare(request: Request, out: Path | None, command: Sequence[str] | None) -> Comparison:
    """Check the optimizers, tune all, run the winners, rank them, and write tables and plots into a folder, if given.

    Raises:
        UserError: the request is invalid.
        RunFailed: a failed check changes results.
        KeyboardInterrupt: it was stopped.
    """
    contests = _contests(request)
    tasks = "-".join(slug(contest.studies[0].spec.task) for contest in contests)[:80]
    if command is not None:
        out = out or Path("compared", tasks, "-".join(map(slug, contests[0].opts))[:80])
    if out is not None:
        check_output(out)
    crew = _smallest(contests)
    specs = {study.spec.opt: study.spec for contest in contests for study in contest.studies}
    _check([specs[opt] for opt in contests[0].opts], request)
    note_long(request.effort, [study for contest in contests for study in contest.studies], request.places, crew)
    with crew:
        in_time(request.effort, lambda: all(_carry_out(contest, request, crew) for contest in contests))
    with doing("writing settings, table and plots"):
        from bench.results.render import markdown
        from bench.tuning import suite, tuned

        results = [study.result() for contest in contests for study in contest.studies]
        for result in results:
            tuned.remember(result)
        ranked = ranking(results, request)
        if out is not None:
            suite.write(out / "tuned", results, shlex.join(command or ["bench.compare"]))
            if ranked.boards:
                text = markdown(ranked.boards) + "".join(f"\n{line}\n" for line in ranked.verdicts)
                write(out / "quality.md", text)
            if ranked.forest is not None and ranked.forest.drawn:
                for ending in (".png", ".pdf"):
                    write(out / f"forest{ending}", ranked.forest.picture(ending))
    several = len(contests) > 1
    studies = {
        f"{r.spec.task} {r.spec.opt}" if several else r.spec.opt: Result(r, request.places["store"]) for r in results
    }
    return Comparison(studies, ranked.verdicts, ranked, out)


def dry_run(request: Request) -> Answer:
    """What would be trained."""
    contests = _contests(request)
    return plan_of([contest.suite for contest in contests], request.places, _smallest(contests))


def _smallest(contests: "Sequence[Contest]") -> "Crew":
    return min((contest.crew for contest in contests), key=lambda crew: 0 if crew.cluster else crew.shares)


def _contests(request: Request) -> "list[Contest]":
    """The comparison on each task."""
    tasks = request.tasks or parts(request.settings.get("task", ""))
    return [contest(request, task) for task in dict.fromkeys(tasks or [""])]


class Contest(NamedTuple):
    """A comparison on a task.

    Attributes:
        suite: tunes all optimizers.
        opts: the compared optimizers, without baselines.
        studies: of the suite.
        crew: the processes that train them.
    """

    suite: Suite
    opts: list[str]
    studies: "list[Study]"
    crew: "Crew"


def contest(request: Request, task: str) -> Contest:
    """The comparison on one task.

    Raises:
        UserError: a name or a setting is unknown or illegal, there is nothing to compare with, or it cannot be trained.
    """
    places = request.places
    words = request.settings
    words.pop("task", None)
    opts = list(dict.fromkeys(parts(words.pop("opt", ""))))
    if not opts:
        raise UserError("--opt is missing: name one or more optimizers, such as --opt my_file.py:MyOpt")
    fresh = reporting_seeds(request.report_seeds)
    common, by_opt = by_optimizer(words, [*opts, *(request.against or REFERENCES)])
    theirs = {name: value for name, value in common.items() if name.startswith("opt.")}
    common = {name: value for name, value in common.items() if name not in theirs}

    def suite(names: Sequence[str], tune: Tune) -> Suite:
        settings: dict[str, Settings | None] = {n: {**(theirs if n in opts else {}), **by_opt[n]} for n in names}
        return Suite(title="", tasks={task: {}}, optimizers=settings, settings=common, tune=tune, seeds=fresh)

    first = suite(opts, Tune()).specs(places)[0]
    against = request.against or [default_reference(first.trainer.batch_size)]
    baseline = None
    if not any(name in opts or by_opt[name] for name in against):
        shipped = [_shipped(spec.typical(places), request) for spec in suite(against, Tune()).specs(places)]
        baseline = _common(against, shipped)
    if baseline is not None and not _has_equal_budget(baseline, against, request):
        baseline = None
    tuned_here: list[str] = against if baseline is None else []
    every = list(dict.fromkeys([*tuned_here, *opts]))
    if len({*every, *against}) < 2:
        raise UserError(f"--opt {opts[0]}: it is the reference itself; name another one with --against")
    if lost := [f"--opt.{name}.{key[4:]}" for name, values in by_opt.items() for key in values if name not in every]:
        raise UserError(f"{lost[0]}: it is not part of the comparison; name it with --against")
    seeds = tuning_seeds(request.seeds or "2") if request.seeds or baseline is None else baseline.seeds
    if baseline is None:
        tune = Tune(trials=request.trials, seeds=seeds)
    else:
        designed = sum(trial["kind"] == "design" for trial in baseline.trials)
        tune = Tune(trials=designed, seeds=seeds, sampler=baseline.sampler, total=len(baseline.trials))
    whole = suite(every, tune)
    specs = whole.specs(places)
    if other := next((s for s in specs if s.trainer.batch_size != first.trainer.batch_size), None):
        raise UserError(
            f"{first.opt} has batches of {first.trainer.batch_size} and {other.opt} of {other.trainer.batch_size},"
            " so they are different problems; set one size with --trainer.batch_size, or choose others with --against"
        )
    designs, tried = {trials_of(spec.design, tune.trials) for spec in specs}, whole.common(specs)
    there = "" if baseline is None else f" ({listed(against)}: reference results of {len(baseline.trials)} trials)"
    title = (
        f"{', '.join(opts)} against {', '.join(against)} on {task}{there}: {counted(tried, 'trial')} of"
        f" {counted(len(seeds), 'seed')} and {counted(len(fresh), 'fresh seed')} for each,"
        f" {len(every) * (tried * len(seeds) + len(fresh))} runs minus stored ones"
        + ", more where a grid grows" * any(spec.sampler == "grid" for spec in specs)
        + "; smaller designs are topped up" * (len(designs) > 1)
    )
    whole = whole.model_copy(update={"title": title})
    (studies,) = whole.studies(places)
    return Contest(whole, opts, studies, crew_of(request.effort, specs, places))


def _carry_out(contest: Contest, request: Request, crew: "Crew") -> bool:
    """Tune all and run the winners; False if a signal asked to stop.

    Raises:
        UserError: some runs cannot be trained; finished ones are stored.
    """
    from bench.tuning.training import carry_out_suite

    note(contest.suite.title if request.progress else None)
    note_ignored([study.spec for study in contest.studies], request.places)
    return carry_out_suite(contest.suite, contest.studies, crew, request.effort, progress=request.progress)


def _shipped(config: "RunConfig", request: Request) -> "StudyRecord | None":
    """The study that tuned a baseline for the reference results; None without one on this problem."""
    from bench.config.settings import problem_of
    from bench.store.stores import Stores

    folder = reference_folder()
    if not request.reference or folder is None:
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


def _has_equal_budget(baseline: "StudyRecord", names: Sequence[str], request: Request) -> bool:
    """Whether the others get the trials and tuning seeds of stored baselines; a note says if not."""
    have = len(baseline.trials), len(baseline.seeds)
    if (request.trials or have[0], len(tuning_seeds(request.seeds)) if request.seeds else have[1]) == have:
        return True
    note(
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} tuned again, so that budgets are equal: the reference"
        f" results have {counted(have[0], 'trial')} of {counted(have[1], 'seed')}"
    )
    return False


def _check(specs: "Sequence[StudySpec]", request: Request) -> None:
    """Check optimizers as `bench check` does, except for what the store already has.

    Raises:
        UserError: one cannot be loaded.
        RunFailed: a failure changes results, without --anyway.
    """
    from bench.check.report import read_verdict, write_verdict
    from bench.check.run import reports, request_of, versions

    progress = request.progress
    given = [{name[4:]: spec.settings[name] for name in spec.chosen if name.startswith("opt.")} for spec in specs]
    places = zip(specs, given, strict=True)
    known = [read_verdict(request.places["store"], spec.opt, options, versions()) for spec, options in places]
    names = ", ".join(spec.opt for spec in specs)
    note(f"checking {names}" if progress and not sys.stderr.isatty() else None)  # a terminal shows it below
    with doing(f"checking {names}"):
        left = zip(specs, given, known, strict=True)
        fresh = reports([request_of(spec.opt, options=options) for spec, options, report in left if report is None])
        verdicts = [next(fresh) if report is None else report for report in known]
    for report, options in zip(verdicts, given, strict=True):
        write_verdict(request.places["store"], report)
        note(f"{report.name}: {report.headline()}" if progress else None)
        wrong = [
            name for name in report.failed if name == "builds" or report.catalogue[name].group == "changes results"
        ]
        if wrong:
            command = ["bench", "check", report.name, *as_options({f"opt.{k}": v for k, v in options.items()})]
            why = f"{report.name} fails {', '.join(wrong)}, which changes results: {shlex.join(command)} gives advice"
            if not request.anyway:
                raise RunFailed(f"{why}; --anyway continues")
            remark("warning", why)


class Ranking(NamedTuple):
    """Result of a comparison.

    Attributes:
        boards: the board `quality`; none while no winner has run on fresh seeds.
        verdicts: verdicts in sentences, and the numbers of seeds that may decide open ones.
        forest: effects and intervals; None while there is no board.
    """

    boards: "list[Board]"
    verdicts: list[str]
    forest: "Figure | None"


def ranking(results: "Sequence[StudyResult]", request: Request) -> Ranking:
    """The ranked tables of the results of these studies."""
    from bench.boards.headline import headlines
    from bench.boards.quality import quality
    from bench.plots.forest import forest
    from bench.tuning.suite import by_task

    ranked = [entries for of_task in by_task(results).values() if (entries := _ranked(of_task, request)) is not None]
    if not ranked:
        return Ranking([], [], None)
    every = _together(ranked)
    several = len(every.problems) > 1
    verdicts = [f"{name}: {text}" if several else text for name, text in headlines(every)]
    return Ranking([quality(every)], verdicts, forest(every))


def _together(ranked: "Sequence[Collected]") -> "Collected":
    """The entries of several problems as one collection."""
    fields = [vars(collected) for collected in ranked]
    joined = {
        name: [entry for values in fields for entry in values[name]]
        for name in ("entries", "chosen", "all", "unranked")
    }
    by_id = {run_id: run for collected in ranked for run_id, run in collected.by_id.items()}
    return replace(ranked[0], **joined, by_id=by_id)


def _ranked(results: "Sequence[StudyResult]", request: Request) -> "Collected | None":
    """Entries of a task: these optimizers, as tuned by these studies, and others tuned on the same problem.

    None if no winner has run on a fresh seed.
    """
    from bench.boards.collect import collect
    from bench.boards.entries import VERSIONS
    from bench.store.stores import Stores

    fresh = {run.run_id: run for result in results for run in result.fresh}
    if not fresh:
        return None
    reference_store = None if not request.reference else reference_folder()
    stores = Stores([request.places["store"]], reference_store)
    mine = {result.study.name: bare(result.spec.opt) for result in results}
    # Studies with larger budgets would replace these.
    stores.studies = [s for s in stores.studies if s.name in mine or bare(s.opt) not in mine.values()]
    versions = next(iter(fresh.values())).versions
    only = {f"versions.{name}": str(versions[name]) for name in VERSIONS if name in versions}
    reference, named = (
        request.against[0] if request.against else None,
        {*mine.values(), *map(bare, request.against or ())},
    )
    every = collect(stores, tasks=[results[0].spec.task], only=only, mixed_versions=True, reference=reference)
    warn_of(stores, every.damaged)
    problem = next((e.problem for e in every.all if any(r.run_id in fresh for r in e.runs.values())), None)
    chosen = [
        e
        for e in every.chosen
        if e.problem == problem and (e.opt in named or (request.against is None and e.kind == "tuned"))
    ]
    return replace(every, entries=chosen, chosen=chosen)
