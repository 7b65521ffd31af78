"""`bench list studies`."""

from typing import Any

from bench.errors import RunFailed, UserError
from bench.grammar.parse import Args
from bench.output import answer, existing_stores, note, stores_of
from bench.text import clean
from bench.tuning.cli.shared import warn_of


def list_studies(args: Args) -> int:
    """`bench list studies`: 0 done, 1 something could not be read."""
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.text import counted, options_text
    from bench.tuning.studies import NoDatabase, Studies
    from bench.tuning.study_result import study_result

    rows: list[dict[str, Any]] = []
    damaged = False
    for store in existing_stores(args):
        try:
            studies = Studies(store, read_only=True)
        except NoDatabase:
            continue
        for name in studies.names():
            row: dict[str, Any] = {"study": name, "store": store}
            rows.append(row)
            try:
                study = studies.open(name)
                if not study.request.trials:  # its command was stopped just after it had created the study
                    row |= {"trials": 0, "missing": 0, "running": 0, "best": None, "score": None, "fresh": None}
                    continue
                result = study_result(study)
                damaged |= warn_of(study)
            except RunFailed:  # the database has become unavailable
                raise
            except UserError as error:
                row["error"] = str(error)
                continue
            row |= {
                "trials": len(result.trials),
                "missing": result.missing,
                "running": sum(trial.state == "running" for trial in study.trials()),
                "best": None if result.best is None else options_text(result.best.point),
                "score": result.score,
                "fresh": result.fresh_interval and result.fresh_interval.mean,
            }
    if args.json:
        answer(rows)
    elif not rows:
        print(clean(f"no studies in {' and '.join(map(str, stores_of(args)))}"))
    lines = []
    for row in rows:
        if "error" in row:
            note(f"{row['study']} is unreadable: {row['error']}")
            continue
        score = "" if row["score"] is None else f"best {row['best']}: {row['score']:.4g}"
        fresh = "" if row["fresh"] is None else f", fresh seeds {row['fresh']:.4g}"
        counts = f"{row['trials']} of {counted(row['trials'] + row['missing'], 'trial')}"
        counts += f", {row['running']} running" * bool(row["running"])
        if not row["trials"] + row["missing"]:
            counts, score = "no requested trials", "the same `bench tune` command starts it"
        lines.append((row["study"], counts, score + fresh))
    if lines and not args.json:
        print("\n".join(shown(Table.of([""] * 3, lines))))
    return int(damaged or any("error" in row for row in rows))
