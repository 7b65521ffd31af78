"""`bench sweep`."""

import shlex
from pathlib import Path

from bench.errors import RunBroke
from bench.grammar.parse import Args
from bench.output import check_output, reply


def main(args: Args) -> int:
    """`bench sweep` with these arguments: 0 done, 130 stopped.

    Raises:
        UserError: the request is invalid.
    """
    command = shlex.join(["bench", "sweep", *args.words])
    from bench.progress import SweepProgress, doing

    places = {"data": args.data, "store": args.store}
    with doing("reading the grid"):
        from bench.config.run_config import settings_of
        from bench.config.settings import sources_of
        from bench.execute import Effort
        from bench.execute.blocks import check_all
        from bench.execute.command import dry_run, results_of
        from bench.store.store import Store
        from bench.sweeps.grid import configurations, folder_of

        configs, varied = configurations(args.of_runs, args.seeds, places, config=args.config, tuned=args.tuned)
        check_all(configs, early=True)
        sources = sources_of(configs) if args.tuned else {}
    mode = configs[0].task_spec.mode
    progress = SweepProgress(f"sweep {configs[0].task}", mode)
    if args.dry_run:
        names, resolved = ("opt", *varied, "seed"), (settings_of(config.model_dump()) for config in configs)
        return dry_run(args, configs, ({name: own[name] for name in names if name in own} for own in resolved))
    from bench.sweeps import sensitivity

    folder = args.out or Path("swept") / folder_of(configs)
    check_output(folder)  # fail before hours of training
    broke: RunBroke | None = None
    try:
        results = results_of(configs, progress, Effort.of(args), plan="sweep", sources=sources)
    except RunBroke as error:  # the others are still shown
        there = map(Store(args.store).get, (config.run_id for config in configs))
        results, broke = [run for run in there if run is not None], error
        if not any(run.finished for run in results):
            raise
    if results is None:
        return 130
    with doing("drawing"):
        shown = sensitivity.analyse(results, varied, mode)
        paths = sensitivity.write(folder, shown, command)
    where = f"written to {folder}: {', '.join(path.name for path in paths)}; the runs are in {args.store}"
    reply(args, {**sensitivity.as_json(shown), "store": args.store, "out": folder}, [*sensitivity.lines(shown), where])
    if broke is not None:
        raise broke
    return 0
