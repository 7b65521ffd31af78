"""Shared parts of the commands for studies: checks, budgets of time, and the output of a study."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.grammar.parse import Args
from bench.output import answer, note, remark
from bench.process import as_options
from bench.text import clean, listed
from bench.train.stop import deadline

if TYPE_CHECKING:
    from bench.execute.slots import Slot
    from bench.tuning.study import Study
    from bench.tuning.study_result import StudyResult
    from bench.tuning.trials import StudySpec


def note_ignored(specs: "Sequence[StudySpec]", places: Mapping[str, Path]) -> None:
    """Name the optimizers that ignore the requested schedule."""
    configs = {spec.opt: spec.typical(places) for spec in specs}
    some = [opt for opt, config in configs.items() if config.trainer.is_scheduled and config.traits.unscheduled]
    if some:
        note(f"--trainer.schedule has no effect on {listed(some)}: {'they need' if len(some) > 1 else 'it needs'} none")


SPENT = "this is the result so far, and the same command continues"
STOPPED = "stopped; nothing is lost, and the same command continues"


def show(study: "Study", *, as_json: bool, out: Path, command: str, store: Path) -> int:
    """Print and write the results of a study; the exit code."""
    from bench.tuning import summary, tuned
    from bench.tuning.study_result import study_result

    found = study_result(study)
    tuned.remember(found, store)
    paths: list[Path] = []
    if found.best is not None:
        paths = tuned.write(out, found, command)
    if as_json:
        answer(summary.as_json(found) | {"out": out if paths else None})
    else:
        print("\n".join(map(clean, summary.lines(found))))
        if paths:
            print(f"written to {out}: {', '.join(str(path.relative_to(out)) for path in paths)}")
            print(f"use it: {_use(found, out)}")
    return int(warn_of(study) or found.best is None)


def warn_of(study: "Study") -> bool:
    """Warn of trials that are ignored as damaged; whether there are any."""
    for what in study.damaged.values():
        remark("warning", f"{what}; it is ignored")
    return bool(study.damaged)


def fewest_slots(
    workers: str, specs: "Sequence[StudySpec]", places: Mapping[str, Path], engine: str | None
) -> "list[Slot]":
    """The resources of each worker: as many as every study allows on this machine.

    Raises:
        UserError: a study cannot be trained here, or not with this engine.
    """
    from bench.config.checks import check_early, check_engine, check_places
    from bench.execute.slots import slots

    typical = [spec.typical(places) for spec in specs]
    for config in typical:
        check_early(config)
    check_engine(engine or "auto", typical)
    check_places(typical)  # before a study is created
    return min((slots(workers, config) for config in typical), key=len)


def in_time(args: Args, work: Callable[[], object], spends: str = SPENT) -> bool:
    """Whether to show results after the work: it is done, or its time is spent; False if a signal stopped it.

    Args:
        args: with `budget`; a note says what ended the work early.
        work: returns something false if a signal stopped it.
        spends: what to say of the result if the time is spent.
    """
    done: object = False
    with deadline(args.budget and args.budget.seconds) as spent:
        done = work()
    if done:
        return True
    note(f"the budget of {args.budget.text} is spent; {spends}" if spent() else STOPPED)
    return spent()


def _use(found: "StudyResult", out: Path) -> str:
    """The command that trains with the winner's settings."""
    from bench.tuning.tuned import tuned_path

    spec = found.study.spec
    here = out.absolute() == Path("tuned").absolute()
    there = ["--tuned"] if here else ["--config", str(tuned_path(out, spec))]
    own = {name: spec.settings[name] for name in spec.chosen if not name.startswith("opt.")}  # budget, device, ...
    given = {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in own.items() if v is not None}
    seed = {"seed": max(spec.seeds) + 1} if 0 in spec.seeds else {}  # `--tuned` refuses seeds that chose the settings
    return shlex.join(["bench", "fit", "--task", spec.task, "--opt", spec.opt, *there, *as_options(given | seed)])
