"""`bench check`: does an optimizer or a task behave as training code expects?"""

from collections.abc import Mapping
from typing import Any

from bench.api.calls import Call, Names, Opt, Place, Settings, names, public
from bench.check import Kind
from bench.errors import UserError
from bench.output import Answer, note
from bench.progress import on_terminal, say, show_line


@public
def check(
    optimizer: Opt | None = None,
    *,
    task: str | None = None,
    only: Names | None = None,
    reference: str | None = None,
    quick: bool = False,
    settings: Settings | None = None,
    data: Place | None = None,
    store: Place | None = None,
    progress: bool = True,
    **hyperparameters: Any,
) -> Answer:
    """Check that an optimizer or a task behaves as training code expects: resume, groups, closures, DDP and more.

    Options such as --opt.lr 0.1 set its hyperparameters, and --task.NAME VALUE those of a task. `bench list checks`
    says what each checks. Exit code 1: a failure changes results or blocks a set-up.

    Args:
        optimizer: an optimizer of `bench list optimizers`, module:Class or file.py:Class.
        task: check this task instead.
        only: only these checks: A,B.
        reference: another optimizer, whose steps its own must equal.
        quick: leave out the checks that start processes and trainings: DDP, FSDP2, lanes, ...
    """
    opts = [] if optimizer is None else [optimizer]
    call = Call({**hyperparameters, "settings": settings, "data": data, "store": store}, task, opts)
    kind: Kind = "optimizer" if task is None else "task"
    group, other = ("opt", "task") if task is None else ("task", "opt")
    name, stray = call.words.get(group), [option for option in call.words if option.startswith(f"{other}.")]
    if task is not None and (opts or reference or stray):
        raise UserError("--task checks only a task: remove the optimizer, --opt.* and --reference")
    if stray:
        raise UserError(f"--{stray[0]} is an option of a task: name the task with --task TASK")
    if name is None:
        raise UserError("which optimizer? bench check NAME, module:Class or file.py:Class")
    options = {option.partition(".")[2]: v for option, v in call.words.items() if option.startswith(f"{group}.")}
    from bench.check.run import report_on, text, write

    def show(place: str, verdict: Mapping[str, Any]) -> None:
        line = f"{place} {verdict['check']}: {verdict['verdict']} ({verdict['seconds']:.1f} s)"
        show_line("check", line) if on_terminal() else say(line)

    what: dict[str, Any] = {"reference": reference, "quick": quick} if task is None else {"data": call.places["data"]}
    report = report_on(name, options=options, only=names("only", only), show=show, kind=kind, **what)
    show_line("check")
    if task is None and only is None and not quick:
        note(f"written to {write(call.places['store'], report)}")
    return Answer(vars(report), text(report).split("\n"), int(not report.ok))
