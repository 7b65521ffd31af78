"""`bench list studies`."""

from bench.grammar.parse import Args
from bench.output import answer, existing_stores, stores_of, warn_of
from bench.text import clean


def list_studies(args: Args) -> int:
    """`bench list studies`: 0 done, 1 something could not be read."""
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.store.stores import Stores
    from bench.text import counted, options_text

    stores = Stores(existing_stores(args))
    rows = [
        {
            "study": study.name,
            "task": study.task,
            "opt": study.opt,
            "trials": len(study.trials),
            "missing": study.missing,
            "best": None if study.winning_point is None else options_text(study.winning_point),
            "score": study.score,
        }
        for study in stores.studies
    ]
    if args.json:
        answer(rows)
    elif not rows:
        print(clean(f"no studies in {' and '.join(map(str, stores_of(args)))}"))
    else:
        lines = [
            (
                row["study"],
                f"{row['trials']} of {counted(row['trials'] + row['missing'], 'trial')}",
                "no winner" if row["score"] is None else f"best {row['best']}: {row['score']:.4g}",
            )
            for row in rows
        ]
        print("\n".join(shown(Table.of([""] * 3, lines))))
    return warn_of(stores)
