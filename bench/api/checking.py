"""`bench check`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.check import GROUPS, Kind, catalogue
from bench.check.run import report_on, text, write
from bench.errors import UserError
from bench.output import Answer, note
from bench.progress import on_terminal, say, show_line


def check(
    optimizer: str | None,
    task: str | None,
    only: Sequence[str] | None,
    reference: str | None,
    settings: Mapping[str, Any],
    places: Mapping[str, Path],
    *,
    quick: bool,
    limit: float,
) -> Answer:
    """Check an optimizer or a task."""
    options = {kind: {k[len(kind) + 1 :]: v for k, v in settings.items() if k.startswith(f"{kind}.")}
               for kind in ("task", "opt")}  # fmt: skip
    if task is not None and (optimizer is not None or reference or options["opt"]):
        raise UserError("--task checks only a task: remove the optimizer, --opt.* and --reference")
    if task is None and options["task"]:
        raise UserError(f"--task.{next(iter(options['task']))} is an option of a task: name the task with --task TASK")
    name = optimizer if task is None else task
    if name is None:
        raise UserError("which optimizer? bench check NAME, module:Class or file.py:Class")

    def show(place: str, verdict: Mapping[str, Any]) -> None:
        line = f"{place} {verdict['check']}: {verdict['verdict']} ({verdict['seconds']:.1f} s)"
        show_line("check", line) if on_terminal() else say(line)

    what: dict[str, Any] = {"options": options["opt"], "reference": reference, "quick": quick}
    if task is not None:
        what = {"options": options["task"], "data": places["data"], "kind": "task"}
    report = report_on(name, only=only, limit=limit, show=show, **what)
    show_line("check")
    if task is None and only is None and not quick:
        note(f"written to {write(places['store'], report)}")
    return Answer(vars(report), text(report).split("\n"), int(not report.ok))


def listed() -> Answer:
    """The checks of optimizers and tasks."""
    kinds: tuple[Kind, ...] = ("optimizer", "task")
    data = {kind: {name: asdict(check) for name, check in catalogue(kind).items()} for kind in kinds}
    lines = [
        f"{check.name}: {check.meaning}\n    {GROUPS[check.severity]}. {check.advice}".rstrip()
        for kind in kinds
        for check in catalogue(kind).values()
    ]
    return Answer(data, [*lines[: len(data["optimizer"])], "", "Of tasks (--task):", *lines[len(data["optimizer"]) :]])
