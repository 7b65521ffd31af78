"""`bench.compare`: `bench.check` of optimizers, a suite that tunes them and baselines, and the board `quality`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.api.results import Comparison
from bench.api.results import Study as Result
from bench.api.studies import crew_for, train
from bench.boards.collect import REFERENCES, default_reference
from bench.config.settings import problem_of
from bench.config.values import Seeds, parts, read_seeds, reference_folder
from bench.errors import RunFailed, UserError
from bench.output import check_output, note, warn_of, write
from bench.process import as_options
from bench.progress import doing
from bench.results.group import Group
from bench.results.render import markdown
from bench.store.stores import Stores
from bench.sweeps.grid import by_optimizer
from bench.text import counted, listed
from bench.tuning.spec import tuning_seeds
from bench.tuning.study import common_trials
from bench.tuning.suite import Suite, Tune
from optimizers.plugins import bare, slug

if TYPE_CHECKING:
    from bench.api.calls import Call
    from bench.plots.panels import Figure
    from bench.results.table import Board
    from bench.store.record import RunResult
    from bench.store.reports import StudyRecord
    from bench.tuning.spec import StudySpec
    from bench.tuning.study import StudyResult


class Request(NamedTuple):
    """A requested comparison; the names are those of `compare`."""

    call: "Call"
    tasks: Sequence[str]
    against: list[str] | None
    trials: int | None
    seeds: Seeds | None
    report_seeds: Seeds
    anyway: bool

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds of each trial."""
        return tuning_seeds(2 if self.seeds is None else self.seeds)

    @property
    def opts(self) -> list[str]:
        """The compared optimizers, without baselines."""
        return list(dict.fromkeys(parts(self.call.settings.get("opt", ""))))


def compare(request: Request, out: Path | None) -> Comparison:
    """Check the optimizers, tune all, run the winners, rank them, and write tables and plots into a folder, if given.

    RunFailed if a failed check changes results, KeyboardInterrupt if it was stopped.
    """
    contests, call = contests_of(request), request.call
    todo = [studies for contest in contests for studies in contest.studies(call.places)]
    tasks = [studies[0].spec.task for studies in todo]
    if call.command is not None and out is None:
        out = Path("compared", "-".join(map(slug, tasks))[:80], "-".join(map(slug, request.opts))[:80])
    if out is not None:
        check_output(out)
    crew = crew_for(todo, call)
    for spec in {study.spec.opt: study.spec for studies in todo for study in studies}.values():
        if spec.opt in request.opts:
            _check(spec, request)
    for contest in contests:
        note(contest.title)
    folder = None if out is None else out / "tuned"
    results = train(todo, crew, call, folder)
    results.sort(key=lambda r: (tasks.index(r.spec.task), r.measure.order(Group.of(r.fresh))))  # as on the board
    with doing("writing table and plots"):
        boards, verdicts, forest = ranking(results, request)
        if out is not None and boards:
            write(out / "quality.md", "\n".join([markdown(boards), *(f"{line}\n" for line in verdicts)]))
        if out is not None and forest is not None and forest.drawn:
            for ending in (".png", ".pdf"):
                write(out / f"forest{ending}", forest.picture(ending))
    names = [f"{r.spec.task} {r.spec.opt}" if len(contests) > 1 else r.spec.opt for r in results]
    studies = {name: Result(r, call.places["store"], folder) for name, r in zip(names, results, strict=True)}
    return Comparison(studies, verdicts, boards, forest, out)


def contests_of(request: Request) -> list[Suite]:
    """The comparison on each task."""
    if not request.opts:
        raise UserError("--opt is missing: name one or more optimizers, such as --opt my_file.py:MyOpt")
    tasks = request.tasks or parts(request.call.settings.get("task", "")) or [""]
    return [_contest(request, task) for task in dict.fromkeys(tasks)]


def _contest(request: Request, task: str) -> Suite:
    """The suite that tunes the optimizers, and baselines without reference results, on a task."""
    opts, fresh, places = request.opts, read_seeds(request.report_seeds, "--report_seeds", 5), request.call.places
    settings = {name: value for name, value in request.call.settings.items() if name not in ("task", "opt")}
    common, by_opt = by_optimizer(settings, [*opts, *(request.against or REFERENCES)])
    of_opts = {name: value for name, value in common.items() if name.startswith("opt.")}
    common = {name: value for name, value in common.items() if name not in of_opts}

    def suite_of(names: Sequence[str], tune: Tune, title: str = "") -> Suite:
        optimizers: dict[str, dict[str, Any] | None] = {
            name: {**(of_opts if name in opts else {}), **by_opt[name]} for name in names
        }
        return Suite(title=title, tasks={task: {}}, optimizers=optimizers, settings=common, tune=tune, seeds=fresh)

    size = suite_of(opts[:1], Tune()).specs(places)[0].settings["trainer.batch_size"]
    against = request.against or [default_reference(size)]
    is_default = not any(name in opts or by_opt[name] for name in against)
    baseline = _baseline(suite_of(against, Tune()).specs(places), request) if is_default else None
    names: list[str] = list(dict.fromkeys([*(against if baseline is None else []), *opts]))
    if len({*names, *against}) < 2:
        raise UserError(f"--opt {opts[0]}: it is the reference itself; name another one with --against")
    if unused := [f"--opt.{name}.{key[4:]}" for name, values in by_opt.items() for key in values if name not in names]:
        raise UserError(f"{unused[0]}: it is not part of the comparison; name it with --against")
    seeds = baseline.seeds if request.seeds is None and baseline is not None else request.tuning_seeds
    tune = Tune(trials=request.trials, seeds=seeds)
    if baseline is not None:
        designed = sum(trial["kind"] == "design" for trial in baseline.trials)
        tune = Tune(trials=designed, seeds=seeds, sampler=baseline.sampler, total=len(baseline.trials))
    (studies,) = suite_of(names, tune).studies(places)
    sizes = {study.spec.opt: study.spec.settings["trainer.batch_size"] for study in studies}
    if len(set(sizes.values())) > 1:
        text = " and ".join(f"{opt} of {size}" for opt, size in sizes.items())
        advice = "set one size with --trainer.batch_size, or choose others with --against"
        raise UserError(f"{text} samples a batch are different problems; {advice}")
    shipped = f" ({listed(against)}: reference results of {len(baseline.trials)} trials)" if baseline else ""
    title = f"{', '.join(opts)} against {', '.join(against)} on {task}{shipped}: each has"
    title += f" {counted(common_trials(studies), 'trial')} of {counted(len(seeds), 'seed')}"
    return suite_of(names, tune, f"{title}, and {counted(len(fresh), 'fresh seed')}")


def _baseline(specs: "Sequence[StudySpec]", request: Request) -> "StudyRecord | None":
    """A study with budget and sampler of the reference results of all baselines; None if they must be tuned here."""
    folder = reference_folder()
    if folder is None:
        return None
    stores, studies = Stores([], folder), list["StudyRecord"]()
    runs = {run.run_id: run for run in stores.runs}
    for spec in specs:
        config = spec.typical(request.call.places)
        problem, versions = problem_of(config), config.spec_versions.items()
        named = [s for s in stores.studies if (bare(s.task), s.opt) == (bare(spec.task), spec.opt)]
        winners = [(study, runs[study.winner or ""]) for study in named if study.winner in runs]
        same = [study for study, run in winners if run.problem == problem and versions <= run.versions.items()]
        studies += sorted(same, key=lambda study: len(study.trials))[-1:]
    budgets = {(len(study.trials), tuple(study.seeds), study.sampler) for study in studies}
    if len(studies) == len(specs) and len(budgets) == 1:
        trials, seeds = len(studies[0].trials), len(studies[0].seeds)
        number = seeds if request.seeds is None else len(request.tuning_seeds)
        if (request.trials or trials, number) == (trials, seeds):
            return studies[0]
    names = listed([spec.opt for spec in specs])
    note(f"{names}: tuned too, since the reference results lack them with these settings, trials and seeds")
    return None


def _check(spec: "StudySpec", request: Request) -> None:
    """Check an optimizer as `bench check` does, unless the store has its report; RunFailed if it changes results."""
    from bench.check.run import failed, headline, report_on, stored, versions, write

    options = {name[4:]: spec.settings[name] for name in spec.chosen if name.startswith("opt.")}
    store = request.call.places["store"]
    report = stored(store, spec.opt, options, versions())
    if report is None:
        with doing(f"checking {spec.opt}"):
            report = report_on(spec.opt, options=options)
        write(store, report)
    note(f"{report.name}: {headline(report)}")
    wrong = [v["check"] for v in failed(report) if v["check"] == "builds" or v.get("severity") == "results"]
    if wrong:
        command = ["bench", "check", report.name, *as_options({f"opt.{k}": v for k, v in options.items()})]
        why = f"{report.name} fails {', '.join(wrong)}, which changes results: {shlex.join(command)} gives advice"
        if not request.anyway:
            raise RunFailed(f"{why}; --anyway continues")
        note(why)


def ranking(results: "Sequence[StudyResult]", request: Request) -> tuple["list[Board]", list[str], "Figure | None"]:
    """The board `quality` of studies and of baselines from the reference results, verdicts in sentences, their chart.

    All are empty while no winner has run on fresh seeds.
    """
    from bench.boards.collect import collect
    from bench.boards.matrix import headlines
    from bench.boards.quality import quality
    from bench.plots.forest import forest

    fresh = [run for result in results for run in result.fresh]
    if not fresh:
        return [], [], None
    names, ids = {r.study.name for r in results}, {run.run_id for r in results for run in (*r.runs, *r.fresh)}
    problems = [(bare(run.config["task"]), run.problem) for run in fresh]
    against = {bare(name) for name in request.against or REFERENCES} - {bare(result.spec.opt) for result in results}
    stores = Stores([request.call.places["store"]], reference_folder())

    def is_baseline(run: "RunResult") -> bool:
        is_other = run.run_id in stores.shipped and bare(run.config["opt"]) in against
        return is_other and (bare(run.config["task"]), run.problem) in problems

    stores.studies = [study for study in stores.studies if study.name in names or bare(study.opt) in against]
    stores.runs = [run for run in stores.runs if run.run_id in ids or is_baseline(run)]
    collected = collect(stores, mixed_versions=True, reference=request.against[0] if request.against else None)
    warn_of(stores, collected.damaged)
    several = len(collected.problems) > 1
    verdicts = [f"{name}: {text}" if several else text for name, text in headlines(collected)]
    return [quality(collected)], verdicts, forest(collected)
