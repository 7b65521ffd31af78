"""`bench fit`: one run, or one for each seed; heavy imports happen after all checks."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from bench.errors import UserError, unknown_run
from bench.grammar.commands import COMMANDS, RUNNING
from bench.grammar.parse import Args, check_settings
from bench.grammar.values import place
from bench.machine import is_main_process
from bench.output import answer, reply
from bench.text import plain


def main(args: Args) -> int:
    """`bench fit`: 0 done, 130 interrupted."""
    from bench.progress import doing

    settings = args.of_runs
    places = {name: place(name) if getattr(args, name) is None else getattr(args, name) for name in ("data", "store")}
    if args.resume is not None:
        command = ["bench", "fit", *args.words]
        run = Path(args.resume)
        if run.name != args.resume:  # the path of a run's folder
            run = run if run.name else run.resolve()  # of `.`
            places["store"] = settings["store"] = run.parent
        more = [name for name in ("config", "rerun", "tuned") if getattr(args, name)]
        if more:
            raise UserError(f"--resume takes the run's own settings; remove --{more[0]}")
        config = _stored_config(run.name, settings, places, command)
    else:
        check_settings(COMMANDS["fit"], settings)
        with doing("reading the settings"):
            from bench.config.run_config import resolve

            config = resolve(settings, config=args.config, tuned=args.tuned, fallback=places)
    sources: Mapping[tuple[str, str], Any] = {}
    if args.tuned:
        from bench.config.settings import sources_of
        from bench.config.tuned import tuned_file

        seeds = [config.seed] if args.seeds is None else args.seeds
        sources = sources_of([config.model_copy(update={"seed": seed}) for seed in seeds])
        print(f"bench: settings from {tuned_file(config.task, config.opt)}", file=sys.stderr)
    if args.seeds is not None:
        from bench.commands.seeds import fit_seeds

        return fit_seeds(config, args, sources)
    if more := [option.name for option in RUNNING if getattr(args, option.name)]:
        raise UserError(f"--{more[0]} is for several runs; give --seeds too, or leave it out")
    if args.dry_run:
        return _dry_run(config, as_json=args.json)
    from bench.store.store import Store

    result = Store(config.store).result_of(config) if not args.rerun else None
    if result is not None:
        logged = ", so nothing goes to a logger" if config.logger else ""
        print(f"bench: already stored{logged}; --rerun trains again", file=sys.stderr)
    else:
        from bench.config.checks import check_early, check_places

        check_early(config)
        check_places([config])
        with doing("importing torch"):
            from bench.train.runner import run

        with redirect_stdout(sys.stderr):  # standard output is only for the result, regardless of what libraries print
            result = run(config, rerun=args.rerun, progress=True, tuned_by=sources.get((config.task, config.opt)))
    if is_main_process():
        from bench.run_summary import result_json, result_lines

        reply(args, result_json(result, config.store), result_lines(result, config.store))
    return 130 if result.status == "killed" else 0


def _stored_config(run_id: str, settings: dict[str, Any], places: dict[str, Path], command: list[str]) -> Any:
    """The configuration of an interrupted run, with folders from the command line."""
    from bench.config.plugins import allowed
    from bench.config.run_config import resolve, settings_of
    from bench.store.record import RESUMABLE
    from bench.store.store import Store
    from bench.store.stores import no_store
    from optimizers.plugins import bare

    named = {kind: [str(settings.pop(kind))] for kind in ("task", "opt") if kind in settings}
    more = settings.keys() - {"store", "data", "logger"}
    if more:
        raise UserError(
            f"--resume takes the run's own settings; --{min(more)} cannot be changed (start a new run instead)"
        )
    store = places["store"]
    kept = Store(store)
    result = kept.get(run_id)
    if result is None:
        if not kept.folder.is_dir():
            raise no_store(store, "name it with --store DIR")
        raise unknown_run(run_id, (run.run_id for run in kept.runs()), f"the store {store}")
    for kind, (name,) in named.items():
        if bare(name) != bare(result.config[kind]):
            raise UserError(
                f"--{kind} {name}: run {run_id} was begun with {result.config[kind]}, which cannot be changed"
                " (start a new run instead)"
            )
    names = allowed(result.config, result.versions, named, f"run {run_id}", command)
    config = resolve(settings_of(result.config) | names | places | settings, recorded=True)
    if config.run_id != run_id:
        raise UserError(
            f"run {run_id} was started with another version of its task or optimizer and cannot continue;"
            " train again without --resume"
        )
    if result.status in RESUMABLE and result.engine == "lanes":
        raise UserError(
            f"run {run_id} was {result.status} in a sweep, which trains it with others; repeat the sweep's command,"
            " or train the run alone without --resume"
        )
    if result.status in RESUMABLE and kept.last_checkpoint([run_id]) is None:
        raise UserError(f"run {run_id} was {result.status} before its first checkpoint; train again without --resume")
    return config


def _dry_run(config: Any, *, as_json: bool) -> int:
    import yaml

    from bench.config.checks import check
    from bench.config.run_config import on_device

    config = on_device(config)
    check(config)
    shown = plain(config.model_dump(mode="python"))
    if as_json:
        answer({"run_id": config.run_id, **shown})
        return 0
    for name in ("task", "opt"):
        shown[name] = {"name": shown[name], **shown.pop(f"{name}_options")}
    if config.data_seed == config.seed:
        del shown["data_seed"]  # so that it follows another seed, such as those of `--seeds`
    # A comment, so that `--config` reads the rest back.
    print(f"# run_id: {config.run_id}\n{yaml.safe_dump(shown, sort_keys=False)}", end="")
    return 0
