"""`bench check`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.check.catalogue import Kind, catalogue
from bench.check.report import Verdict, write_verdict
from bench.check.run import reports, request_of
from bench.errors import UserError
from bench.output import Answer, Shown, note
from bench.progress import on_terminal, say, show_line

if TYPE_CHECKING:
    from bench.api.calls import Call


def check(
    optimizer: str | None,
    task: str | None,
    matrix: Sequence[str] | None,
    out: Sequence[Path],
    only: Sequence[str] | None,
    reference: str | None,
    call: "Call",
    *,
    quick: bool,
    limit: float,
) -> Shown:
    """Check an optimizer, a task, or many optimizers."""
    options = {kind: {k[5:] if kind == "task" else k[4:]: v for k, v in call.words.items() if k.startswith(f"{kind}.")}
               for kind in ("task", "opt")}  # fmt: skip
    if task is not None:
        if optimizer is not None or matrix is not None or reference or out or options["opt"]:
            raise UserError("--task checks only a task: remove the optimizer, --opt.*, --matrix, --reference and -o")
        request = request_of(task, only=only, options=options["task"], data=call.places["data"], kind="task")
    elif options["task"]:
        raise UserError(f"--task.{next(iter(options['task']))} is an option of a task: name the task with --task TASK")
    elif matrix is not None:
        if optimizer is not None or call.words or reference:
            raise UserError("--matrix uses default arguments: remove the name, --opt.* and --reference")
        from bench.check import matrix as zoo  # needs numpy

        return zoo.table(matrix, only, out, call.places["store"], limit)
    else:
        if out:
            raise UserError("-o is for --matrix; use --json > FILE")
        if optimizer is None:
            raise UserError("which optimizer? bench check NAME, module:Class or file.py:Class")
        request = request_of(optimizer, only=only, reference=reference, options=options["opt"], quick=quick)
    done = list[Verdict]()

    def show(_: Any, verdict: Verdict) -> None:
        done.append(verdict)
        text = f"{len(done)}/{len(request.checks)} {verdict.check}: {verdict.verdict} ({verdict.seconds:.1f} s)"
        show_line("check", text) if on_terminal() else say(text)

    (report,) = reports([request], limit=limit, show=show)
    show_line("check")
    if task is None and only is None and not quick:
        note(f"written to {write_verdict(call.places['store'], report)}")
    return Answer(report.as_json(), [report.text()], int(not report.ok))


def listed() -> Answer:
    """The checks of optimizers and tasks."""
    kinds: tuple[Kind, ...] = ("optimizer", "task")
    data = {kind: {name: asdict(check) for name, check in catalogue(kind).items()} for kind in kinds}
    lines = [
        f"{check.name}: {check.meaning}\n    {check.group}. {check.advice}".rstrip()
        for kind in kinds
        for check in catalogue(kind).values()
    ]
    return Answer(data, [*lines[: len(data["optimizer"])], "", "Of tasks (--task):", *lines[len(data["optimizer"]) :]])
