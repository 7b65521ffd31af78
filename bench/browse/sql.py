"""SQL over the runs of one or more stores: the views of `bench sql`, in DuckDB.

`runs` has one row per run, from its record. `settings` is its configuration in dotted form as JSON, so that
`(settings->>'opt.lr')::double` is a learning rate; `versions` and `metrics` are JSON too. `study` names the study of a
trial, `begun` is the start in UTC, and `plan` the purpose. `curves` and `measurements` have the rows of the runs'
tables; DuckDB reads from their files only what a query needs. `trials` has one row per trial of recorded studies, in
the order of the design. Missing and non-finite values are NULL.

The database is in memory, and only read-only statements are accepted: a query cannot change a store.
"""

import glob
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from bench.browse.listing import studies_of
from bench.config.run_config import settings_of
from bench.errors import UserError
from bench.results.render import other_json, stream
from bench.results.table import Column
from bench.store.block import Block
from bench.store.load import Damaged, is_there
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.store.tables import CURVE_FIELDS, as_arrow
from bench.text import clean, plain, strict_json

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

VIEWS = {
    "runs": {
        "run_id": "varchar",
        "task": "varchar",
        "opt": "varchar",
        "status": "varchar",
        "reason": "varchar",
        "seed": "bigint",
        "data_seed": "bigint",
        "metric": "varchar",
        "split": "varchar",
        "select_split": "varchar",
        "final": "double",
        "best": "double",
        "best_step": "bigint",
        "steps": "bigint",
        "skipped": "bigint",
        "steps_to_target": "bigint",
        "seconds_to_target": "double",
        "wall_s": "double",
        "train_s": "double",
        "cap_share": "double",
        "saturated_at": "bigint",
        "step_of": "varchar",
        "part": "varchar",
        "engine": "varchar",
        "machine": "varchar",
        "torch": "varchar",
        "versions": "json",
        "settings": "json",
        "metrics": "json",
        "study": "varchar",
        "begun": "timestamp",
        "plan": "varchar",
        "shipped": "boolean",
    },
    "curves": {"run_id": "varchar", **{name: "bigint" if name == "step" else "double" for name in CURVE_FIELDS}},
    "measurements": {"run_id": "varchar", "step": "bigint"},
    "trials": {
        "study": "varchar",
        "task": "varchar",
        "opt": "varchar",
        "number": "bigint",
        "kind": "varchar",
        "state": "varchar",
        "score": "double",
        "point": "json",
        "runs": "varchar[]",
        "is_winner": "boolean",
    },
}
"""Columns of each view, with their types; `measurements` has a further column for each measured quantity."""
_NUMBER = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\))$")
"""DuckDB's numeric types."""
_PATIENCE = 1.0
"""Seconds that DuckDB gets to end an interrupted query. Ours."""
_FILES = {"curves": "curve", "measurements": "measurements"}


@dataclass
class Answer:
    """Result of a query.

    Attributes:
        names: of the columns, all different.
        kinds: their DuckDB types.
        rows: an iterator, to be read once.
        damaged: unreadable tables that were excluded.
    """

    names: list[str]
    kinds: list[str]
    rows: Iterator[tuple[Any, ...]]
    damaged: list[Damaged]


_WHERE = f"views: {', '.join(VIEWS)}; `bench sql 'describe runs'` lists the columns of one"


def ask(stores: Stores, query: str) -> Answer:
    """The result of a query.

    Args:
        stores: the stores to query.
        query: one read-only statement.

    Raises:
        UserError: the statement is not read-only, or DuckDB cannot execute it.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UserError(
                "bench sql takes one read-only query, such as SELECT, WITH, DESCRIBE or SUMMARIZE (a PIVOT with its"
                f" values: ON column IN (...)); {_WHERE}"
            )
        return _Views(stores, query).answer(statements[0].query)
    except duckdb.Error as error:
        message = " ".join(str(error).partition("\n\nLINE ")[0].split())  # without the query itself
        missing = isinstance(error, duckdb.IOException)
        raise UserError(f"{clean(message)}; {'run the query again' if missing else _WHERE}") from None


class _Views:
    """The views of a query; those that it does not name are empty.

    Args:
        stores: the stores to query.
        query: the query.

    Attributes:
        damaged: tables that cannot be read.
    """

    def __init__(self, stores: Stores, query: str) -> None:
        self.stores = stores
        self.damaged: dict[str, Damaged] = {}
        text = query.casefold()
        # DuckDB's functions `query` and `query_table` can build a view's name at run time.
        self._used = [name for name in VIEWS if name in text or "query" in text]

    def answer(self, query: str) -> Answer:
        """The result of the query. It is complete before the first row is read."""
        import duckdb

        # A large query must not write to the working folder.
        con = duckdb.connect(config={"python_enable_replacements": "false", "temp_directory": ""})
        con.execute("create schema parts")
        for name in VIEWS:
            if name in self._used and name in _FILES:
                self._read_files(con, name)
            else:
                rows = {"runs": self._runs, "trials": self._trials}[name]() if name in self._used else []
                self._load(con, name, rows)
        _interruptibly(con, f"create temp table answer as from (\n{_without_end(query)}\n)")
        columns = con.execute("select column_name, column_type from (describe temp.answer)").fetchall()
        if any("TIMESTAMP WITH TIME ZONE" in kind for _, kind in columns):  # DuckDB needs pytz for such values
            raise UserError("times with a time zone are not supported; cast them, as in now()::varchar")
        con.execute("from temp.answer")
        rows = (row for rows in iter(lambda: con.fetchmany(10_000), []) for row in rows)
        return Answer([name for name, _ in columns], [kind for _, kind in columns], rows, list(self.damaged.values()))

    def _runs(self) -> Iterator[dict[str, Any]]:
        studies = studies_of(self.stores)
        for run in self.stores.runs:
            yield _run_row(run, studies.get(run.run_id)) | {"shipped": run.run_id in self.stores.shipped}

    def _trials(self) -> Iterator[dict[str, Any]]:
        for record in self.stores.studies:
            for number, trial in enumerate(record.trials):
                own = {name: trial.get(name) for name in ("kind", "state", "score", "runs")}
                yield {
                    "study": record.name,
                    "task": record.task,
                    "opt": record.opt,
                    "number": number,
                    **own,
                    "point": strict_json(trial.get("point")),
                    "is_winner": record.winner in trial["runs"],
                }

    def _load(self, con: "DuckDBPyConnection", name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Create a view as a table with these rows."""
        import pyarrow as pa

        kinds = VIEWS[name]
        arrow = {
            "varchar": pa.string(),
            "json": pa.string(),
            "bigint": pa.int64(),
            "double": pa.float64(),
            "boolean": pa.bool_(),
            "varchar[]": pa.list_(pa.string()),
            "timestamp": pa.string(),
        }
        schema = pa.schema([(column, arrow[kind]) for column, kind in kinds.items()])
        columns = ", ".join(f"{column}::{kind} as {column}" for column, kind in kinds.items())
        _keep(con, name, pa.Table.from_pylist(list(rows), schema), columns)

    def _read_files(self, con: "DuckDBPyConnection", name: str) -> None:
        """Create a view that reads the blocks' tables lazily."""
        import pyarrow as pa

        finished, growing, sound = [], [], dict[str, bool]()
        for run_id, block in self.stores.blocks.items():
            folder = str(block.folder)
            if not block.done:
                growing += self._growing(run_id, block, name)
                continue
            if folder not in sound:
                sound[folder] = folder not in self.damaged and self._is_sound(block, name)
            if sound[folder]:
                finished.append((run_id, f"{block.at}/{_FILES[name]}.parquet"))
        parts = []
        if finished:  # some of a block's runs may be read from other blocks
            run_ids, paths = zip(*finished, strict=True)
            _keep(con, f"parts.finished_{name}", pa.table({"run_id": run_ids, "filename": paths}))
            columns = ", ".join(VIEWS["curves"]) if name == "curves" else "* exclude (filename)"
            those = f"semi join parts.finished_{name} using (run_id, filename)"
            parts.append(f"select {columns} from {_parquet(paths, name)} {those}")
        if growing:
            _keep(con, f"parts.growing_{name}", pa.concat_tables(growing, promote_options="default"))
            parts.append(f"from parts.growing_{name}")
        if not parts:
            self._load(con, name, [])
            return
        first = ", ".join(VIEWS[name])
        rest = f", * exclude ({first})" * (name == "measurements")
        con.execute(f"create view {name} as select {first}{rest} from ({' union all by name '.join(parts)})")

    def _is_sound(self, block: Block, name: str) -> bool:
        """Whether a finished block has this table, and all its tables are valid."""
        try:
            block.tables(next(iter(block.runs)))
            return is_there(block.at / f"{_FILES[name]}.parquet") is not None
        except Damaged as error:
            self.damaged[str(block.folder)] = error
            return False

    def _growing(self, run_id: str, block: Block, name: str) -> "list[pa.Table]":
        """The table of a run in training or interrupted; an empty list if it has no rows."""
        try:
            columns = block.tables(run_id).get(_FILES[name])
        except Damaged as error:
            self.damaged[f"{block.folder}/{run_id}"] = error
            return []
        return [as_arrow(columns, run_id=run_id)] if columns else []


def _without_end(query: str) -> str:
    """A statement up to its semicolon, if any; there may be comments after it."""
    import duckdb

    text = query.encode()  # DuckDB counts bytes
    return text[: next((at for at, _ in duckdb.tokenize(query) if text[at : at + 1] == b";"), None)].decode()


def _interruptibly(con: "DuckDBPyConnection", statement: str) -> None:
    """Execute a statement that Ctrl-C can end: DuckDB does not check Python's signals."""
    broken: list[BaseException] = []

    def work() -> None:
        try:
            con.execute(statement)
        except BaseException as error:
            broken.append(error)

    thread = Thread(target=work, daemon=True)  # the program does not wait for it at exit
    thread.start()
    try:
        thread.join()
    except BaseException:
        con.interrupt()
        thread.join(_PATIENCE)
        raise
    if broken:
        raise broken[0]


def _keep(con: "DuckDBPyConnection", name: str, rows: "pa.Table", columns: str = "*") -> None:
    con.register("given", rows)
    con.execute(f"create table {name} as select {columns} from given")
    con.unregister("given")


def _parquet(paths: Iterable[str], view: str) -> str:
    """SQL that reads these files, with a column `filename`."""
    names = ", ".join("'" + glob.escape(path).replace("'", "''") + "'" for path in dict.fromkeys(paths))
    by_name = view == "measurements"  # opens all files beforehand, so only if columns may differ
    return f"read_parquet([{names}], filename = true, hive_partitioning = false, union_by_name = {by_name})"


def _run_row(run: RunResult, study: str | None) -> dict[str, Any]:
    config = run.config
    return {
        **{name: value for name, value in vars(run).items() if name in VIEWS["runs"]},
        "task": config["task"],
        "opt": config["opt"],
        "seed": config["seed"],
        "data_seed": config["data_seed"],
        "machine": run.machine,
        "torch": None if (torch := run.versions.get("torch")) is None else str(torch),
        "versions": strict_json(run.versions),
        "settings": strict_json(settings_of(config)),
        "metrics": strict_json(run.metrics),
        "study": study,
        "begun": run.begun or None,
    }


# -- output -----------------------------------------------------------------------------------------------------------


def written(answer: Answer, kind: str, out: Path | None) -> Iterator[str]:
    """The answer in a format (`bench.results.render.STREAMS`), piece by piece; JSON columns stay JSON.

    Args:
        answer: result of a query.
        kind: the format.
        out: the output file; None for standard output.
    """
    own = [
        Column(name, name, digits=6, form=_flat, side="right" if _NUMBER.match(type_) else "left")
        for name, type_ in zip(answer.names, answer.kinds, strict=True)
    ]
    rows = (dict(zip(answer.names, row, strict=True)) for row in answer.rows)
    held = [name for name, type_ in zip(answer.names, answer.kinds, strict=True) if type_ == "JSON"]
    if kind == "json" and held:
        rows = (row | {name: json.loads(row[name]) for name in held if row[name] is not None} for row in rows)
    return stream(own, rows, kind, out)


def _flat(value: Any) -> Any:
    """Lists and structures as JSON."""
    nested = isinstance(value, list | tuple | dict)
    return json.dumps(plain(value), ensure_ascii=False, default=other_json) if nested else value
