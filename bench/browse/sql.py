"""Runs of one or more stores as tables, by DuckDB: the views of `bench sql`, and DataFrames.

`runs` has one row per run, from its record. `settings` is its configuration in dotted form as JSON, so that
`(settings->>'opt.lr')::double` is a learning rate; `versions` and `metrics` are JSON too. `study` names the study of a
trial, `begun` is the start in UTC, and `plan` the purpose. `evaluations` has the values on the selection split during
training. `curves` and `measurements` have the rows of finished runs; DuckDB reads from their files only what a query
needs. `trials` has one row per trial of recorded studies, in the order of the design. Missing and non-finite values are
NULL.

The database is in memory, and only read-only statements are accepted: a query cannot change a store.
"""

import glob
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.config.run_config import settings_of
from bench.errors import UserError
from bench.results.render import csv_text, json_text, markdown_table, shown, table_lines
from bench.results.table import Column, Table
from bench.store.block import CURVE_FIELDS
from bench.store.files import DONE, Damaged, is_file
from bench.store.stores import Stores
from bench.text import clean, plain, strict_json

if TYPE_CHECKING:
    import pandas as pd
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_KINDS = {
    "runs": "run_id varchar, task varchar, opt varchar, status varchar, reason varchar, seed bigint, data_seed bigint,"
    " metric varchar, split varchar, select_split varchar, final double, best double, best_step bigint, steps bigint,"
    " skipped bigint, steps_to_target bigint, seconds_to_target double, wall_s double, train_s double,"
    " cap_share double, saturated_at bigint, step_of varchar, part varchar, engine varchar, machine varchar,"
    " torch varchar, versions json, settings json, metrics json, study varchar, begun timestamp, plan varchar,"
    " shipped boolean",
    "evaluations": "run_id varchar, step bigint, train_s double",
    "curves": "run_id varchar, step bigint, " + ", ".join(f"{name} double" for name in CURVE_FIELDS[1:]),
    "measurements": "run_id varchar, step bigint",
    "trials": "study varchar, task varchar, opt varchar, number bigint, kind varchar, state varchar, score double,"
    " point json, runs varchar[], is_winner boolean",
}
VIEWS = {view: dict(column.split() for column in kinds.split(", ")) for view, kinds in _KINDS.items()}
"""Columns of each view, with their types; `evaluations` and `measurements` have one more for each quantity."""
_FILES = {"curves": "curve", "measurements": "measurements"}
_WHERE = f"views: {', '.join(VIEWS)}; `bench sql 'describe runs'` lists the columns of one"
STREAMS = ("table", "md", "csv", "json")  # formats of an answer


class Answer(NamedTuple):
    """Result of a query: names of columns, all different, their DuckDB types, rows, and excluded damaged tables."""

    names: list[str]
    kinds: list[str]
    rows: list[tuple[Any, ...]]
    damaged: list[Damaged]


def ask(stores: Stores, query: str) -> Answer:
    """The result of one read-only statement; UserError if it is not, or DuckDB cannot execute it."""
    (columns, types, rows), damaged = _query(stores, query, lambda r: (r.columns, r.types, r.fetchall()))
    names = [f"{name}_{n}" if (n := columns[:i].count(name)) else name for i, name in enumerate(columns)]
    return Answer(names, list(map(str, types)), rows, damaged)


def frame(stores: Stores, view: str, run_ids: Sequence[str]) -> "pd.DataFrame":
    """The rows of these runs, in their order, in a view; UserError if a table is damaged. `runs` has settings."""
    import pandas as pd

    rows, damaged = _query(stores, f"from {view}", lambda relation: relation.df())
    if damaged:
        raise UserError(str(damaged[0]))
    rows = pd.Series([*run_ids], name="run_id", dtype=object).to_frame().merge(rows)
    if view != "runs":
        return rows
    settings = rows.pop("settings").map(json.loads)
    names = dict.fromkeys(name for of_run in settings for name in of_run if name not in rows)
    return rows.assign(**{name: [of_run.get(name) for of_run in settings] for name in names})


def _query(stores: Stores, query: str, take: "Callable[[DuckDBPyRelation], Any]") -> tuple[Any, list[Damaged]]:
    """What `take` makes of the relation of a read-only statement, and excluded damaged tables."""
    import duckdb

    views: list[str] = []
    # A large query must not write to the working folder.
    con = duckdb.connect(config={"python_enable_replacements": "false", "temp_directory": ""})
    try:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UserError(
                "bench sql takes one read-only query, such as SELECT, WITH, DESCRIBE or SUMMARIZE (a PIVOT with its"
                f" values: ON column IN (...)); {_WHERE}"
            )
        con.execute("create schema parts")
        damaged, text = dict[str, Damaged](), query.casefold()
        for name in VIEWS:
            used = name in text or "query" in text  # a function that can build a view's name at run time
            views += [name] * used
            if used and name in _FILES:
                _read_files(con, stores, name, damaged)
            else:
                _load(con, name, [*_ROWS[name](stores)] if used else [])
        relation = con.sql(statements[0].query)
        if any("TIME ZONE" in str(kind) for kind in relation.types):  # DuckDB needs pytz for such values
            raise UserError("times with a time zone are not supported; cast them, as in now()::varchar")
        with ThreadPoolExecutor(1) as pool:  # DuckDB does not check Python's signals reliably
            try:
                return pool.submit(take, relation).result(), list(damaged.values())
            except KeyboardInterrupt:
                con.interrupt()  # then the thread ends
                raise
    except RuntimeError as error:
        raise KeyboardInterrupt if "interrupted" in str(error) else error from None
    except duckdb.Error as error:
        message = " ".join(str(error).partition("\n\nLINE ")[0].split())  # without the query itself
        if 'Referenced column "' in message:
            name, known = message.split('"')[1], [c for view in views for c in con.sql(f"from {view}").columns]
            near = get_close_matches(name, dict.fromkeys(known), n=3, cutoff=0.4)
            message = message.partition(" not found")[0] + " not found" + f"; near: {', '.join(near)}" * bool(near)
        missing = isinstance(error, duckdb.IOException)
        raise UserError(f"{clean(message)}; {'run the query again' if missing else _WHERE}") from None


def _runs(stores: Stores) -> Iterator[dict[str, Any]]:
    trials = {run_id: record.name for record in reversed(stores.studies) for run_id in record.run_ids}
    ended = {record.name for record in stores.studies}  # whose other runs are the winner's on fresh seeds
    for run, planned in ((run, run.planned_study) for run in stores.runs):
        yield {name: value for name, value in vars(run).items() if name in VIEWS["runs"]} | {
            **{name: run.config[name] for name in ("task", "opt", "seed", "data_seed")},
            "machine": run.machine,
            "torch": str(run.versions["torch"]) if "torch" in run.versions else None,
            "versions": strict_json(run.versions),
            "settings": strict_json(settings_of(run.config)),
            "metrics": strict_json(run.metrics),
            "study": trials.get(run.run_id, None if planned in ended else planned),
            "begun": run.begun or None,
            "shipped": run.run_id in stores.shipped,
        }


def _trials(stores: Stores) -> Iterator[dict[str, Any]]:
    for record in stores.studies:
        study = {"study": record.name, "task": record.task, "opt": record.opt}
        for number, trial in enumerate(record.trials):
            values = {name: trial.get(name) for name in ("kind", "state", "score", "runs")}
            won = {"point": strict_json(trial.get("point")), "is_winner": record.winner in trial["runs"]}
            yield {**study, "number": number, **values, **won}


_ROWS: dict[str, Callable[[Stores], Iterator[dict[str, Any]]]] = {
    "runs": _runs,
    "evaluations": lambda stores: ({"run_id": run.run_id, **row} for run in stores.runs for row in run.validations),
    "trials": _trials,
}


def _load(con: "DuckDBPyConnection", name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Create a view as a table with these rows; quantities beyond its columns are numbers."""
    import pyarrow as pa

    kinds = VIEWS[name] | {key: "double" for row in rows for key in row if key not in VIEWS[name]}
    arrow = {"bigint": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "varchar[]": pa.list_(pa.string())}
    schema = pa.schema([(column, arrow.get(kind, pa.string())) for column, kind in kinds.items()])
    quoted = {'"' + column.replace('"', '""') + '"': kind for column, kind in kinds.items()}  # untrusted names
    columns = ", ".join(f"{column}::{kind} as {column}" for column, kind in quoted.items())
    con.from_arrow(pa.Table.from_pylist([*rows], schema)).project(columns).create(name)


def _read_files(con: "DuckDBPyConnection", stores: Stores, name: str, damaged: dict[str, Damaged]) -> None:
    """Create a view that reads the blocks' tables lazily; it notes damaged ones."""
    import pyarrow as pa

    run_ids, paths, sound = list[str](), list[str](), dict[Path, bool]()
    for run_id, block in stores.blocks.items():
        place = block.folder / DONE / f"{_FILES[name]}.parquet"
        if place not in sound and block.done:
            try:
                block.tables(next(iter(block.runs)))
                sound[place] = is_file(place)
            except Damaged as error:
                sound[place], damaged[str(block.folder)] = False, error
        if sound.get(place):  # some of a block's runs may be read from other blocks
            run_ids.append(run_id)
            paths.append(str(place))
    if not paths:
        _load(con, name, [])
        return
    con.from_arrow(pa.table({"run_id": run_ids, "filename": paths})).create(f"parts.finished_{name}")
    quoted = ", ".join("'" + glob.escape(path).replace("'", "''") + "'" for path in dict.fromkeys(paths))
    by_name = name == "measurements"  # opens all files beforehand, so only if columns may differ
    options = f"filename = true, hive_partitioning = false, union_by_name = {by_name}"
    those = f"semi join parts.finished_{name} using (run_id, filename)"
    first = ", ".join(VIEWS[name])
    rest = f", * exclude ({first}, filename)" * by_name
    con.execute(f"create view {name} as select {first}{rest} from read_parquet([{quoted}], {options}) {those}")


def written(answer: Answer, kind: str, *, to_file: bool) -> str:
    """The answer in a format; JSON columns stay JSON, and lists and structures are JSON in other formats."""
    rows = [dict(zip(answer.names, row, strict=True)) for row in answer.rows]
    if kind == "json":
        held = [name for name, of in zip(answer.names, answer.kinds, strict=True) if of == "JSON"]
        return json_text([row | {name: json.loads(row[name]) for name in held if row[name]} for row in rows])
    for row in rows:
        nested = {name: value for name, value in row.items() if isinstance(value, list | tuple | dict)}
        row |= {name: json.dumps(plain(value), ensure_ascii=False, default=str) for name, value in nested.items()}
    if kind == "csv":
        return csv_text(rows, answer.names)
    # Measurements of other tasks' runs, also the shipped ones, have hundreds of other columns.
    names = [name for name in answer.names if to_file or any(row[name] is not None for row in rows)] or answer.names
    table = Table("", [Column(name, name, digits=6) for name in names], rows)
    lines = markdown_table(table) if kind == "md" else table_lines(table, None) if to_file else shown(table)
    if hidden := len(answer.names) - len(names):
        lines.append(f"note: {hidden} columns without a value are not shown")
    return "\n".join([*lines, ""])
