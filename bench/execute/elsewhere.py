"""Plans for other workers: on any machine that sees the store, or in a Slurm array."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from bench.config.checks import check_places
from bench.config.plugins import naming
from bench.config.run_config import RunConfig
from bench.config.tuned import Sources
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.blocks import check_all
from bench.execute.plan import PLAN, Plan, load, open_plans
from bench.execute.slurm import absolute_places, array_size, need_slurm, script, submit
from bench.grammar.parse import Args
from bench.output import note
from bench.process import as_options
from bench.progress import SweepProgress, doing
from bench.store.block import PLANS
from optimizers.plugins import absolute

if TYPE_CHECKING:
    from bench.execute.exchange import Exchange


def made_elsewhere(args: Args) -> bool:
    """Whether a command's runs are to be trained elsewhere.

    Raises:
        UserError: its options contradict each other.
    """
    if args.print and not args.slurm:
        raise UserError("--print prints the script of --slurm; write both")
    create = getattr(args, "create", False)
    if create and args.slurm:
        raise UserError("--create lets workers join, and --slurm starts them: remove one of them")
    budget = getattr(args, "budget", None)
    if (args.slurm or create) and budget is not None and budget.seconds is not None:
        why = (
            "with --slurm the time is sbatch's: --sbatch='--time=6:00:00'" if args.slurm else "--create trains nothing"
        )
        raise UserError(f"--budget {budget.text}: {why}")
    if (args.slurm or create) and getattr(args, "json", False):
        raise UserError("--json is for runs made by this command; remove it with --create and --slurm")
    return args.slurm or create


def publish(
    title: str, configs: Sequence[RunConfig], args: Args, device: str | None, sources: Sources | None = None
) -> int:
    """Write a plan into its store, and submit an array of workers for it or print how to join.

    Raises:
        UserError: no device is given, options do not fit, or there is no Slurm here.
        RunFailed: the store cannot be written.
    """
    if args.slurm and args.storage is not None:
        raise UserError("--slurm: the tasks of a cluster share the store; remove --storage")
    if device in (None, "auto"):
        raise UserError(
            f"--{'slurm' if args.slurm else 'create'}: the workers' device may differ from this machine's; write"
            " --device cuda or --device cpu"
        )
    given = "out" if getattr(args, "out", None) is not None else "logger" if configs[0].logger else None
    if given is not None:
        raise UserError(f"--{given} is for runs made by this command; remove it with --create and --slurm")
    check_all(configs)
    store = configs[0].store
    places = absolute_places({"data": configs[0].data, "store": store})
    count = array_size(args.workers or "auto", len(configs))
    plan = Plan(title, configs, args.engine or "auto", args.width, count, sources or {})
    if not (missing := plan.missing()):
        note(f"all {len(configs)} runs are stored; the command without --slurm or --create shows the result")
        return 0
    Effort.of(args).refuse_beyond(len(missing))
    names = [{kind: absolute(name) for kind, name in (("task", c.task), ("opt", c.opt))} for c in configs]
    memory = [] if args.memory is None else ["--memory", args.memory.text]
    words = ["worker", "--plan", plan.name, *memory, *naming(*names)]
    gpus = 0 if device == "cpu" else configs[0].trainer.devices
    left = places["store"] / PLANS / plan.name / PLAN
    text = script(plan.name, words, count, gpus, places, args.sbatch, only_if=left)
    if args.print:
        print(text, end="")
        note(f"plan {plan.name} must be in the store: the same command with --create instead of --slurm --print")
        return 0
    if args.slurm:
        need_slurm()
    if args.storage is not None:
        from bench.execute.exchange import Exchange

        exchange = Exchange(args.storage, gather=True)
        if (shared := exchange.shared(plan)) is not None:
            print(
                f"plan {shared.name} of {len(shared.configs)} runs is in {exchange.shown}; to work on it, on any"
                " machine that reaches it, with the same --storage:"
                f" {shlex.join(['bench', 'worker', '--plan', shared.name, *memory, *naming(*names)])}"
            )
        note("when its runs are stored, the same command without --create collects them and shows the result")
        return 0
    is_new = plan.name not in open_plans(store)  # else other processes work on it
    plan.keep()
    if args.create:
        print(
            f"plan {plan.name} of {len(missing)} runs is in {store}; to work on it, on any machine that sees it:"
            f" {shlex.join(['bench', *words, *as_options(places)])}"
        )
    else:
        try:
            print(submit(plan.name, text, store, {}))
        except UserError:
            if is_new:
                plan.forget()
            raise
    note("when its runs are stored, the same command without --slurm or --create shows the result")
    return 0


def join(args: Args, command: Sequence[str]) -> int:
    """Work on a plan in the store; returns 0 if nothing is left to do, 130 if stopped.

    Raises:
        UserError: there is no such plan, or its runs cannot be trained here.
        RunFailed: as in `bench.execute.execute.execute`.
    """
    for name in ("study", "engine", "width", "shared_by"):
        if getattr(args, name) is not None:
            raise UserError(
                f"--{name.replace('_', '-')} is for studies; remove it: a plan contains the settings of its runs"
            )
    named = {"task": args.task, "opt": args.opt}
    exchange = _exchange_of(args)
    plan = load(args.plan, {"data": args.data, "store": args.store, "logger": None}, named, command, exchange)
    if missing := list(plan.missing().values()):
        check_places(missing)
    with doing("importing torch"):
        from bench.execute.execute import STOPPED, work
    with redirect_stdout(sys.stderr):
        progress = SweepProgress(plan.title, plan.mode)
        if not work(plan, progress, memory=args.memory):
            progress.say(STOPPED)
            return 130
    if exchange is not None:
        plan.forget()  # this store may lack the runs of other machines
    return 0


def _exchange_of(args: Args) -> "Exchange | None":
    """The database that shares the plan of `bench worker`, after writing the plan into the store.

    Returns:
        None if the plan was created in the store, whatever database of studies $BENCH_STORAGE names.

    Raises:
        UserError: the plan is in no store and no database.
    """
    from bench.execute.exchange import SHARED, Exchange

    copy = (args.store / PLANS / args.plan / SHARED).exists()
    if args.plan in open_plans(args.store) and not copy:
        return None
    if args.storage is None or not args.storage.startswith("postgresql"):
        if copy:
            raise UserError(f"plan {args.plan} is shared through a database; name it with --storage")
        return None
    exchange = Exchange(args.storage)
    exchange.bring(args.plan, args.store)
    return exchange
