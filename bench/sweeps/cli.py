"""`bench sweep`."""

import json
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

from bench.errors import UserError
from bench.words import Parser, add_engine, add_places, add_workers, read


def main(words: list[str]) -> int:
    """`bench sweep` with these words: 0 done, 130 stopped.

    Raises:
        UserError: the request cannot be carried out.
    """
    parser = Parser(
        prog="bench sweep",
        description="Train many settings and seeds of a task, as one program where that is faster, and show how the"
        " result depends on them.",
        epilog="Settings in dotted form as in `bench fit`; a value may be a grid LOW:HIGH:POINTS, even in the logarithm"
        " (--opt.lr 1e-3:1e1:16), or a list (--task.sigma 0.2,0.4). --opt.adam.lr is for adam alone."
        " An optimizer of which nothing varies gets a grid over its search range (`bench show adam`)."
        " Stored runs are used, so an interrupted sweep goes on with the same command,"
        " and the same command in a second terminal shares the work.",
    )
    parser.add_argument("--task", help="as `bench list tasks` prints it")
    parser.add_argument("--opt", help="one or more optimizers: ngd,adam")
    parser.add_argument("--seeds", default="8", help="how many (32 is 0 to 31), or which (3,5,8); default 8")
    add_engine(parser)
    add_workers(parser)
    parser.add_argument(
        "--memory", default="80%", help="what lanes may take: a share of what is free, or a size (default 80%%)"
    )
    parser.add_argument(
        "--width", type=int, help="lanes at once; nothing is measured then, and auto takes lanes (default: measured)"
    )
    parser.add_argument(
        "-o", "--out", type=Path, help="where table and plot go (default: swept/TASK/OPT-HASH, another for other runs)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps or auto (default auto)")
    parser.add_argument("--precision", help="32-true or 64-true as lanes; the task's own by default")
    parser.add_argument("--data_seed", "--data-seed", help="decides the order of the samples; the seed by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and stop")
    add_places(parser)
    command = shlex.join(["bench", "sweep", *words])
    args, settings = read(parser, words, ("task", "opt", "precision", "data_seed"))
    if args.width is not None and args.width < 1:
        raise UserError(f"--width {args.width}: it must be at least 1")
    from bench.config import settings_of
    from bench.execute.blocks import check_all
    from bench.memory import read_memory
    from bench.papers.reproduction import words as as_words
    from bench.progress import SweepProgress
    from bench.store.store import Store
    from bench.sweeps.grid import configurations, folder_of, read_seeds
    from bench.text import plain

    places = {"data": args.data, "store": args.store, "device": args.device}
    configs, varied = configurations(settings, read_seeds(args.seeds), places)
    mode = configs[0].task_spec.mode
    progress = SweepProgress(
        f"sweep {configs[0].task}", (lambda a, b: a > b) if mode == "max" else (lambda a, b: a < b)
    )
    memory = read_memory(args.memory, configs[0].device)
    if args.dry_run:
        check_all(configs)
        resolved = {config.run_id: settings_of(config.model_dump()) for config in configs}
        runs = {
            run_id: {name: own[name] for name in ("opt", *varied, "seed") if name in own}
            for run_id, own in resolved.items()
        }
        lines = [f"{run_id}  {as_words(own)}" for run_id, own in runs.items()]
        print(json.dumps(plain(runs)) if args.json else "\n".join(lines))
        progress.say(f"bench: {len(runs)} runs")
        return 0
    from bench.papers.reproduce import make_output
    from bench.sweeps import sensitivity

    folder = args.out or Path("swept") / folder_of(configs)
    make_output(folder)  # before hours of training
    if replaced := sensitivity.replaced(folder, {config.run_id for config in configs}):
        progress.say(f"bench: {replaced}")
    store = Store(args.store)
    results = [result for config in configs if (result := store.finished(config.run_id))]
    if len(results) == len(configs):
        progress.say(f"all {len(configs)} runs are stored")
    else:
        from bench.execute import Effort
        from bench.execute.execute import STOPPED, execute  # which imports torch
        from bench.execute.execute import results as results_of

        with redirect_stdout(sys.stderr):  # standard output is for the result alone
            effort = Effort(args.engine, args.width, memory, args.workers)
            carried_out = execute(configs, progress, effort, plan="sweep")
        if not carried_out:
            progress.say(STOPPED)
            return 130
        results = results_of(configs)
    shown = sensitivity.analyse(results, varied, mode)
    paths = sensitivity.write(folder, shown, command)
    if args.json:
        print(json.dumps({**sensitivity.as_json(shown), "store": str(args.store), "out": str(folder)}))
    else:
        print("\n".join(sensitivity.lines(shown)))
        print(f"written to {folder}: {', '.join(path.name for path in paths)}; the runs are in {args.store}")
    return 0
