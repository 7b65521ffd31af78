"""Plans whose runs others make: workers that join from any machine that sees the store, or a Slurm array."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from operator import gt, lt
from pathlib import Path

from bench.config import RunConfig
from bench.errors import UserError
from bench.execute.blocks import check_all
from bench.execute.plan import Plan, joining, load
from bench.execute.slurm import absolute_places, array_size, options_of, script, submit
from bench.grammar.parse import Args
from bench.output import make_output, note
from bench.plugins import naming
from bench.process import bench_command
from bench.progress import SweepProgress
from optimizers.plugins import absolute


def wanted_elsewhere(args: Args) -> bool:
    """Whether a command's runs are to be made elsewhere.

    Raises:
        UserError: its words contradict each other.
    """
    if args.print and not args.slurm:
        raise UserError("--print prints the script of --slurm; write both")
    if args.create and args.slurm:
        raise UserError("--create lets workers join, and --slurm starts them: leave one of them out")
    return args.slurm or args.create


def hand_out(title: str, configs: Sequence[RunConfig], args: Args, device: str | None) -> int:
    """Keep a plan in its store for others, and submit an array of workers for it, or say how to join.

    Args:
        title: what the runs are made for.
        configs: the runs.
        args: of the command.
        device: that the command was asked for.

    Raises:
        UserError: the device is not said, or there is no Slurm here.
        RunFailed: the store cannot be written.
    """
    if device in (None, "auto"):
        raise UserError(
            f"--{'slurm' if args.slurm else 'create'}: the device here may not be theirs; write --device cuda or"
            " --device cpu"
        )
    check_all(configs)
    places = absolute_places({"data": args.data, "store": args.store})
    count = array_size(args.workers or "auto", len(configs))
    plan = Plan(title, configs, args.engine, getattr(args, "width", None), count)
    if not (missing := plan.missing()):
        note(f"all {len(configs)} runs are stored; the command without --slurm or --create shows the result")
        return 0
    names = [{kind: absolute(name) for kind, name in (("task", c.task), ("opt", c.opt))} for c in configs]
    where = [word for name, place in places.items() for word in (f"--{name}", str(place))]
    command = bench_command("worker", "--plan", plan.name, *naming(*names), *where)
    gpus = 0 if device == "cpu" else configs[0].trainer.devices
    text = script(plan.name, command, count, gpus, places["store"], options_of(args.sbatch), database=False)
    if args.print:
        print(text, end="")
        note(f"plan {plan.name} must be in the store: the same command with --create instead of --slurm --print")
        return 0
    make_output(Path(args.store))
    plan.keep()
    if args.create:
        join = shlex.join(["bench", *joining(plan), "--store", str(args.store)])
        print(f"plan {plan.name} of {len(missing)} runs is in {args.store}; to work on it: {join}")
    else:
        print(submit(plan.name, text, args.store, {}))
    note("when its runs are there, the same command without --slurm or --create shows the result")
    return 0


def join(args: Args, command: Sequence[str]) -> int:
    """Work on a plan that is in the store: 0 nothing is left to do, 130 stopped.

    Args:
        args: of `bench worker`.
        command: the user's words, for messages.

    Raises:
        UserError: there is no such plan, or its runs cannot be made here.
        RunFailed: as in `bench.execute.execute.execute`.
    """
    from bench.execute.execute import STOPPED, work

    for name in ("study", "engine"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} is for studies; leave it out, a plan says how its runs are made")
    named = {"task": args.task, "opt": args.opt}
    plan = load(args.plan, {"data": args.data, "store": args.store}, named, command)
    with redirect_stdout(sys.stderr):
        progress = SweepProgress(plan.title, gt if plan.mode == "max" else lt)
        if not work(plan, progress):
            progress.say(STOPPED)
            return 130
    return 0
