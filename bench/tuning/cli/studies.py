"""`bench studies`."""

from typing import Any

from bench.errors import RunFailed, UserError
from bench.grammar.parse import Args
from bench.output import answer, note, reply
from bench.tuning.cli.shared import show, warn_of


def main(args: Args) -> int:
    """`bench studies` with these arguments: 0 done, 1 something could not be shown."""
    if args.trials is not None and args.name is None:
        raise UserError(f"--trials {args.trials}: name a study: bench studies NAME --trials {args.trials}")
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.text import counted, options_text
    from bench.tuning.studies import NoDatabase, Studies
    from bench.tuning.study_result import study_result

    try:
        studies = Studies(args.store, read_only=True)
    except NoDatabase as error:
        if args.name is not None:
            raise
        reply(args, {}, [f"no studies in {error.path}"])
        return 0
    if args.name is not None:
        return show(studies.open(args.name), args.trials, as_json=args.json)
    rows: dict[str, dict[str, Any]] = {}
    damaged = False
    for name in studies.names():
        try:
            study = studies.open(name)
            if not study.request.trials:  # its command was stopped just after it had created the study
                rows[name] = {"trials": 0, "missing": 0, "running": 0, "best": None, "score": None, "fresh": None}
                continue
            found = study_result(study)
            damaged |= warn_of(study)
        except RunFailed:  # the database cannot be read
            raise
        except UserError as error:
            rows[name] = {"error": str(error)}
            continue
        running = sum(trial.state == "running" for trial in study.trials())
        rows[name] = {
            "trials": len(found.trials),
            "missing": found.missing,
            "running": running,
            "best": None if found.best is None else options_text(found.best.point),
            "score": found.score,
            "fresh": found.fresh_interval and found.fresh_interval.mean,
        }
    if args.json:
        answer(rows)
    elif not rows:
        print(f"no studies in {studies.path}")
    lines = []
    for name, row in rows.items():
        if "error" in row:
            note(f"{name} is unreadable: {row['error']}")
            continue
        score = "" if row["score"] is None else f"best {row['best']}: {row['score']:.4g}"
        fresh = "" if row["fresh"] is None else f", fresh seeds {row['fresh']:.4g}"
        counts = f"{row['trials']} of {counted(row['trials'] + row['missing'], 'trial')}"
        counts += f", {row['running']} running" * bool(row["running"])
        if not row["trials"] + row["missing"]:
            counts, score = "no requested trials", f"`bench tune --resume {name}` starts it"
        lines.append((name, counts, score + fresh))
    if lines and not args.json:
        print("\n".join(shown(Table.of([""] * 3, lines))))
    return int(damaged or any("error" in row for row in rows.values()))
