"""`bench.compare`: optimizers and baselines, checked, tuned with equal budgets, and ranked."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.api.calls import Call
from bench.api.results import Comparison, Study
from bench.api.studies import plan_of, train
from bench.boards.rows import REFERENCES, default_reference
from bench.config.values import Seeds, parts, read_seeds, reference_folder
from bench.errors import RunFailed, UserError
from bench.output import Answer, note, warn_of, write
from bench.process import as_options
from bench.progress import doing
from bench.results.group import Group
from bench.results.render import markdown
from bench.store.record import RunResult
from bench.store.reports import StudyRecord
from bench.store.stores import Stores
from bench.sweeps.grid import by_optimizer
from bench.text import counted, listed
from bench.tuning.spec import StudySpec, tuning_seeds
from bench.tuning.study import Study as Plan
from bench.tuning.study import StudyResult, common_trials
from bench.tuning.suite import Named, Suite, Tune
from optimizers.plugins import bare, slug

if TYPE_CHECKING:
    from bench.plots.panels import Figure
    from bench.results.table import Board


def compare(
    call: Call,
    tasks: Sequence[str] | None,
    against: list[str] | None,
    trials: int | None,
    seeds: Seeds | None,
    report_seeds: Seeds,
    out: Path | None,
    *,
    anyway: bool,
) -> Comparison | Answer:
    """Check the optimizers, tune all, run the winners, rank them, and write tables and plots into a folder, if given.

    RunFailed if a failed check changes results, KeyboardInterrupt if it was stopped.
    """
    fresh, opts = read_seeds(report_seeds, "--report_seeds"), [*dict.fromkeys(parts(call.settings.get("opt", "")))]
    if not opts:
        raise UserError("--opt is missing: name one or more optimizers, such as --opt my_file.py:MyOpt")
    names = list(dict.fromkeys(tasks or parts(call.settings.get("task", "")) or [""]))
    wanted = None if seeds is None else tuning_seeds(seeds)
    contests = [_contest(call, task, opts, against, trials, wanted, fresh) for task in names]
    todo, store = [studies for _, studies in contests], call.places["store"]
    if call.dry_run:
        return plan_of(" + ".join(title for title, _ in contests), todo, call)
    if call.command is not None and out is None:
        out = Path("compared", "-".join(map(slug, names))[:80], "-".join(map(slug, opts))[:80])

    def prepare() -> None:
        for spec in {study.spec.opt: study.spec for studies in todo for study in studies}.values():
            if spec.opt in opts:
                _check(spec, store, anyway=anyway)
        for title, _ in contests:
            note(title)

    folder = None if out is None else out / "tuned"
    results = train(todo, call, folder, prepare)
    order = [studies[0].spec.task for studies in todo]
    results.sort(key=lambda r: (order.index(r.spec.task), r.measure.order(Group.of(r.fresh))))  # as on the board
    with doing("writing table and plots"):
        boards, verdicts, figures = _ranking(results, store, against)
        if out is not None and boards:
            write(out / "quality.md", "\n".join([markdown(boards), *(f"{line}\n" for line in verdicts)]))
            for name, figure in figures.items():
                for ending in (".png", ".pdf") if figure.drawn else ():
                    write(out / f"{name}{ending}", figure.picture(ending))
    titles = [f"{r.spec.task} {r.spec.opt}" if len(todo) > 1 else r.spec.opt for r in results]
    studies = {title: Study(r, store, folder) for title, r in zip(titles, results, strict=True)}
    return Comparison(studies, verdicts, boards, figures.get("forest"), out)


def _contest(
    call: Call,
    task: str,
    opts: list[str],
    against: list[str] | None,
    trials: int | None,
    wanted: list[int] | None,
    fresh: list[int],
) -> tuple[str, list[Plan]]:
    """A title, and the studies of the optimizers, and of baselines without reference results, on a task.

    `wanted` are the tuning seeds, None for those of the reference results or two.
    """
    settings = {name: value for name, value in call.settings.items() if name not in ("task", "opt")}
    common, by_opt = by_optimizer(settings, [*opts, *(against or REFERENCES)])
    of_opts = {name: value for name, value in common.items() if name.startswith("opt.")}
    of_all = {name: value for name, value in common.items() if name not in of_opts}

    def suite_of(names: Sequence[str], tune: Tune) -> Suite:
        members: Named = {name: {**(of_opts if name in opts else {}), **by_opt[name]} for name in names}
        return Suite(title=task, tasks={task: {}}, optimizers=members, settings=of_all, tune=tune, seeds=fresh)

    size = suite_of(opts[:1], Tune()).specs(call.places)[0].settings["trainer.batch_size"]
    baselines = against or [default_reference(size)]
    tune, shipped = Tune(trials=trials, seeds=wanted or tuning_seeds(2)), None
    if not any(name in opts or by_opt[name] for name in baselines):
        shipped = _shipped(suite_of(baselines, Tune()).specs(call.places), call, trials, wanted)
    if shipped is not None:
        designed, total = sum(trial["kind"] == "design" for trial in shipped.trials), len(shipped.trials)
        tune = Tune(trials=designed, seeds=wanted or shipped.seeds, sampler=shipped.sampler, total=total)
    names: list[str] = list(dict.fromkeys([*(baselines if shipped is None else []), *opts]))
    if len({*names, *baselines}) < 2:
        raise UserError(f"--opt {opts[0]}: it is the reference itself; name another one with --against")
    if unused := [f"--opt.{name}.{key[4:]}" for name, values in by_opt.items() for key in values if name not in names]:
        raise UserError(f"{unused[0]}: it is not part of the comparison; name it with --against")
    (studies,) = suite_of(names, tune).studies(call.places)
    sizes = {study.spec.opt: study.spec.settings["trainer.batch_size"] for study in studies}
    if len(set(sizes.values())) > 1:
        text = listed([f"{size} ({opt})" for opt, size in sizes.items()])
        advice = "set one size with --trainer.batch_size, or choose others with --against"
        raise UserError(f"batch sizes {text} make different problems; {advice}")
    source = f" ({listed(baselines)}: reference results of {len(shipped.trials)} trials)" if shipped else ""
    numbers = f"{counted(common_trials(studies), 'trial')} of {counted(len(studies[0].spec.seeds), 'seed')}"
    refined = any(study.spec.sampler == "refine" and study.spec.design.ranges for study in studies)
    numbers += ", then more around the best" * (shipped is None and refined)
    title = f"{', '.join(opts)} against {', '.join(baselines)} on {task}{source}: each has {numbers}"
    return f"{title}, and {counted(len(fresh), 'fresh seed')}", studies


def _shipped(
    specs: Sequence[StudySpec], call: Call, trials: int | None, wanted: list[int] | None
) -> StudyRecord | None:
    """A study with budget and sampler of the reference results of all baselines; None if they must be tuned here."""
    if (folder := reference_folder()) is None:
        return None
    stores, records = Stores([], folder), list[StudyRecord]()
    runs = {run.run_id: run for run in stores.runs}
    for spec in specs:
        config = spec.typical(call.places)
        problem, versions = config.problem, config.spec_versions.items()
        named = [s for s in stores.studies if (bare(s.task), s.opt) == (bare(spec.task), spec.opt)]
        winners = [(record, runs[record.winner or ""]) for record in named if record.winner in runs]
        same = [record for record, run in winners if run.problem == problem and versions <= run.versions.items()]
        records += sorted(same, key=lambda record: len(record.trials))[-1:]
    budgets = {(len(record.trials), tuple(record.seeds), record.sampler) for record in records}
    if len(records) == len(specs) and len(budgets) == 1:
        budget = len(records[0].trials), len(records[0].seeds)
        if (trials or budget[0], budget[1] if wanted is None else len(wanted)) == budget:
            return records[0]
    names = listed([spec.opt for spec in specs])
    note(f"{names}: tuned too, since no reference results have these settings, trials and seeds")
    return None


def _check(spec: StudySpec, store: Path, *, anyway: bool) -> None:
    """Check an optimizer as `bench check` does, unless the store has its report; RunFailed if it changes results."""
    from bench.check.run import failed, headline, report_on, stored, versions, write

    options = {name[4:]: spec.settings[name] for name in spec.chosen if name.startswith("opt.")}
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
        if not anyway:
            raise RunFailed(f"{why}; --anyway continues")
        note(why)


def _ranking(
    results: Sequence[StudyResult], store: Path, against: list[str] | None
) -> tuple["list[Board]", list[str], dict[str, "Figure"]]:
    """The board `quality` of studies and of baselines from the reference results, verdicts in words, charts by name.

    All are empty while no winner has run on fresh seeds.
    """
    from bench.boards.collect import collect
    from bench.boards.matrix import headline
    from bench.boards.quality import quality
    from bench.plots.forest import forest
    from bench.plots.report import evaluations

    fresh = [run for result in results for run in result.fresh]
    if not fresh:
        return [], [], {}
    names, ids = {r.spec.name for r in results}, {run.run_id for r in results for run in (*r.runs, *r.fresh)}
    problems = [(bare(run.config["task"]), run.problem) for run in fresh]
    others = {bare(name) for name in against or REFERENCES} - {bare(result.spec.opt) for result in results}
    stores = Stores([store], reference_folder())

    def is_baseline(run: RunResult) -> bool:
        is_other = run.run_id in stores.shipped and bare(run.config["opt"]) in others
        return is_other and (bare(run.config["task"]), run.problem) in problems

    stores.studies = [study for study in stores.studies if study.name in names or bare(study.opt) in others]
    stores.runs = [run for run in stores.runs if run.run_id in ids or is_baseline(run)]
    collected = collect(stores, mixed_versions=True, reference=against[0] if against else None)
    warn_of(stores, collected.damaged)
    several = len(collected.problems) > 1
    verdicts = [f"{problem.name}: " * several + headline(collected, problem) for problem in collected.problems]
    return [quality(collected)], verdicts, {"forest": forest(collected), "evaluations": evaluations(collected)}
