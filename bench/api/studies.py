"""`bench.tune` and `bench.suite`: studies, alone and with equal budgets."""

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.api.calls import Call
from bench.api.results import Study
from bench.boards.rows import default_reference
from bench.config.checks import check_early, check_engine, check_places
from bench.config.values import Seeds, read_seeds
from bench.errors import UserError
from bench.execute import CONTINUES
from bench.output import Answer, check_output, note, write
from bench.progress import doing
from bench.results.group import Group
from bench.results.render import as_json, markdown, printed
from bench.store.record import machines_and_versions
from bench.text import counted, duration, listed, options_text
from bench.tuning import suite as suites
from bench.tuning import tuned
from bench.tuning.spec import Sampler, make_spec, trials_of, tuning_seeds
from bench.tuning.study import Study as Plan
from bench.tuning.study import StudyResult, carry_out, results_of
from bench.tuning.suite import Suite

if TYPE_CHECKING:
    from bench.execute.cluster import Crew
    from bench.plots.panels import Figure
    from bench.results.table import Board

Todo = Sequence[Sequence[Plan]]
"""The studies of each task."""


def tune(
    call: Call,
    sampler: Sampler | None,
    trials: int | None,
    seeds: Seeds,
    report_seeds: Seeds,
    folder: Path | None,
    storage: str | None,
) -> Study | Answer:
    """Train what the study lacks; for the command, or into a given folder, write the winner's settings."""
    fresh = [] if str(report_seeds) == "0" else read_seeds(report_seeds, "--report_seeds")
    spec = make_spec(call.settings, sampler=sampler, seeds=tuning_seeds(seeds), report_seeds=fresh, places=call.places)
    study = Plan(spec, trials_of(spec.design, trials, len(spec.seeds)), call.places)
    if call.dry_run:
        crew_of([[study]], call)  # raises if it cannot be trained here
        points = [trial.point for trial in spec.design.wanted(study.trials)]
        more = ", then two rounds around the best" * (spec.sampler == "refine" and bool(spec.design.ranges))
        note(f"study {spec.name}: {counted(study.trials, 'trial')} of {counted(len(spec.seeds), 'seed')}{more}")
        return Answer(points, [*map(options_text, points)])
    if folder is None and call.command is not None:
        folder = Path("tuned")
    if storage:
        tuned.mirror(storage)  # fail before hours of training
    (result,) = train([[study]], call, folder)
    if storage:
        tuned.mirror(storage, result)
    return Study(result, call.places["store"], folder if result.best is not None else None)


def suite(file: str, call: Call, out: Path) -> Answer:
    """Tune the optimizers of a suite's tasks, run the winners, and write their settings, or the table of a ladder."""
    members = suites.load(file)
    is_ladder = any(member.rungs for member in members)  # its rungs would write settings to the same files
    try:
        todo = [studies for member in members for studies in member.studies(call.places)]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    title = " + ".join(dict.fromkeys(member.title for member in members))
    if call.dry_run:
        return plan_of(title, todo, call)
    check_output(out)  # fail before hours of training
    results = train(todo, call, None if is_ladder else out)
    sizes = [rung.size for member in members for rung in member.rungs for _ in member.optimizers]
    sized = [*zip(sizes or [0.0] * len(results), results, strict=True)]
    lines = [f"{n:,g} {members[0].axis}: " * is_ladder + line for n, r in sized for line in tuned.result_lines(r)]
    data = {"out": out, "studies": [tuned.as_json(result) for result in results]}
    code = int(any(result.best is None for result in results))
    if not is_ladder:
        return Answer(data, [title, *lines, f"settings: {out}"], code)
    board, figure = _ladder(members[0], sized)
    if any(result.todo for result in results):
        board.notes.append("not finished: the same command trains the missing runs")
    machines = machines_and_versions([run for result in results for run in result.fresh])
    origin = f"Made by `bench suite {Path(file).name}`; {machines}."
    write(out / "ladder.md", f"# {title}\n\n{origin}\n\n![steps at equal loss](ladder.png)\n\n{markdown([board])}")
    for ending in (".png", ".pdf"):
        write(out / f"ladder{ending}", figure.picture(ending))
    text = [title, *lines, "", printed([board])]
    return Answer(data | {"boards": as_json([board])}, text, code, [board], chart=lambda: figure)


def _ladder(suite: Suite, results: Sequence[tuple[float, StudyResult]]) -> tuple["Board", "Figure"]:
    """Steps at equal loss, from the studies of each rung."""
    from bench.papers.ladder import ladder

    rungs = dict[float, dict[str, Group]]()
    for size, result in results:
        rungs.setdefault(size, {})[result.spec.opt] = Group.of([] if result.missing else result.fresh)
    spec, opts = results[0][1].spec, [*suite.optimizers]
    usual = default_reference(spec.settings["trainer.batch_size"])
    return ladder(spec.task, suite.axis, usual if usual in opts else opts[0], rungs)


def crew_of(todo: Todo, call: Call) -> "Crew":
    """The processes that train studies: as many as every study allows on this machine (UserError)."""
    from bench.execute.cluster import Crew

    configs = [study.spec.typical(call.places) for studies in todo for study in studies]
    for config in configs:
        check_early(config)
    check_engine(call.effort.engine, configs)
    check_places(configs)
    if idle := dict.fromkeys(c.opt for c in configs if c.trainer.is_scheduled and c.traits.unscheduled):
        note(f"--trainer.schedule has no effect on {listed([*idle])}: it needs none")
    if call.effort.cluster is not None:
        return Crew(call.effort, configs[0])
    return min((Crew(call.effort, config) for config in configs), key=lambda crew: crew.shares)


def _plan(todo: Todo, crew: "Crew") -> list[dict[str, Any]]:
    """What is stored and what is to do, with an estimate of its time (`bench.tuning.suite.plan`)."""
    with redirect_stdout(sys.stderr):
        with doing("importing torch"):
            from bench.train.threads import set_threads

        set_threads(crew.threads)
        return suites.plan(todo)


def plan_of(title: str, todo: Todo, call: Call) -> Answer:
    """What studies would run, which part is stored, and the estimated time of the rest."""
    crew = crew_of(todo, call)
    rows = _plan(todo, crew)
    return Answer(rows, [title, *suites.plan_lines(rows, crew.shares)])


def train(todo: Todo, call: Call, folder: Path | None, prepare: Callable[[], None] = lambda: None) -> list[StudyResult]:
    """Train what the studies of tasks want, as far as the budget allows, and write their records and settings.

    `prepare` is called once they are known to be possible. A budget that will not suffice is reported before training.
    KeyboardInterrupt if a signal stopped it.
    """
    if folder is not None:
        check_output(folder)  # fail before hours of training
    is_stored = not any(result.todo for studies in todo for result in results_of(studies))
    crew, budget = None if is_stored else crew_of(todo, call), call.effort.budget
    prepare()
    if crew is not None and budget is not None:
        rows = _plan(todo, crew)
        seconds = sum(row["seconds"] for row in rows) / crew.shares
        if seconds > budget.seconds:
            runs = counted(sum(row["runs"] for row in rows), "run")
            note(
                f"{runs} take about {duration(seconds)} with {counted(crew.shares, 'worker')}, more than the budget of"
                f" {budget.text}: all optimizers will have fewer trials; {CONTINUES}"
            )
    if crew is not None:
        from bench.train.stop import deadline

        done = False
        with crew, redirect_stdout(sys.stderr), deadline(budget and budget.seconds) as spent:
            done = all(carry_out(studies, crew, progress=call.progress) for studies in todo)
        if not done and (budget is None or not spent()):
            raise KeyboardInterrupt(f"stopped; nothing is lost, and {CONTINUES}")
        if not done and budget is not None:
            note(f"the budget of {budget.text} is spent; this is the result so far, and {CONTINUES}")
    results = [result for studies in todo for result in results_of(studies)]
    with doing("writing the studies"):
        for result in results:
            tuned.remember(result)
            if folder is not None and result.best is not None:
                tuned.write(folder, result)
    return results
