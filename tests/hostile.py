"""Stores from untrusted sources: sound blocks, and ways in which a block may be damaged, all defined in code.

A mutation is a way to damage a victim, with its random values. The stores contain files with code; a `Guard` notices
whoever runs them.
"""

import json
import os
import shutil
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from bench.config.run_config import id_of, resolve
from bench.config.settings import chosen_of, problem_of
from bench.machine import this_process
from bench.store.attempt import write_records
from bench.store.block import name_of
from bench.store.claims import CLAIM
from bench.store.record import RunResult
from bench.store.reports import check_path, study_path
from bench.store.tables import CURVE_FIELDS, RawTable, write_columns
from bench.text import plain
from optimizers.plugins import bare

STEPS = 3
EVIL = "evil"
"""Part of the name of all code that must not run."""
CODE = f"raise SystemExit('{EVIL} code ran')\n"

# -- sound blocks ---------------------------------------------------------------------------------------------------


@cache
def _resolved(opt: str, seed: int) -> tuple[str, str]:
    config = resolve(
        {"task": "synthetic", "opt": opt, "opt.lr": 0.5, "trainer.max_steps": STEPS, "seed": seed, "device": "cpu"}
    )
    stored = plain(config.model_dump(mode="json", exclude={"data", "store", "logger"}))
    own = {"identity": config.identity, "problem": problem_of(config), "chosen": chosen_of(config)}
    return config.run_id, json.dumps({"config": stored, **own})


def record(seed: int, opt: str = "ngd", **changes: Any) -> RunResult:
    """The record of a run as training writes it."""
    run_id, own = _resolved(opt, seed)
    values: dict[str, Any] = {
        "status": "completed", "versions": {"torch": "2.15.0", "lightning": "2.6.6", "task": 2, "opt": 1},
        "metric": "loss", "split": "train", "final": 0.25, "best": 0.25, "best_step": STEPS, "steps": STEPS,
        "measures": True, "train_s": 1.5, "wall_s": 2.0,
        "metrics": {which: {"loss": 0.25, "excess": 0.125, "accuracy": 1.0} for which in ("final", "best")},
        "validations": [{"step": STEPS, "train_s": 1.0, "loss": 0.25, "excess": 0.125, "accuracy": 1.0}],
        "environment": {"cpu": "abacus", "threads": 1, "gpu": None}, "facts": {"f_star": 0.125},
        "memory": {"host": 1000}, "cap_share": 0.0,
    }  # fmt: skip
    return RunResult(run_id=run_id, **(json.loads(own) | values | changes))


def columns(steps: int = STEPS) -> dict[str, Any]:
    return {name: np.arange(1, steps + 1) if name == "step" else np.full(steps, 0.5) for name in CURVE_FIELDS}


def finished(store: Path, *runs: RunResult) -> Path:
    """A finished block; its folder."""
    folder = store / name_of([run.run_id for run in runs])
    done = folder / "done"
    done.mkdir(parents=True)
    write_records(done / "runs.jsonl", runs)
    write_columns(done / "curve.parquet", {run.run_id: columns(run.steps) for run in runs})
    write_columns(done / "measurements.parquet", {run.run_id: {"step": [0, 2], "angle": [0.5, 0.25]} for run in runs})
    return folder


def left(store: Path, *runs: RunResult) -> Path:
    """A block whose process has ended; its folder."""
    folder = store / name_of([run.run_id for run in runs])
    attempt = folder / "attempt-1"
    attempt.mkdir(parents=True)
    begun = [RunResult(**(vars(run) | {"status": "running", "final": None, "best": None})) for run in runs]
    write_records(attempt / "runs.jsonl", begun)
    for name, names in (("curve", CURVE_FIELDS[1:]), ("measurements", ("angle",))):
        table = RawTable(attempt / f"{name}.raw", len(runs))
        table.append(names, range(1, STEPS + 1), np.full((STEPS, len(runs), len(names)), 0.5))
        table.close()
    claim = this_process() | {"started": "before all that lives", "token": "of-nobody"}
    (attempt / CLAIM).write_text(json.dumps(claim))
    with zipfile.ZipFile(attempt / "last.ckpt", "w") as file:
        file.writestr("archive/data.pkl", b"no checkpoint")
    return folder


def study(store: Path, name: str, runs: list[RunResult]) -> Path:
    """The record of a study of two trials; its file."""
    trials = [
        {"point": {"opt.lr": 0.5 * n}, "kind": "design", "state": "completed", "score": 0.25, "runs": [run.run_id]}
        for n, run in enumerate(runs, 1)
    ]
    content = {
        "name": name,
        "task": "synthetic",
        "opt": "ngd",
        "seeds": [1000],
        "axes": ["opt.lr"],
        "mode": "min",
        "sampler": "grid",
        "trials": trials,
        "winner": runs[0].run_id,
        "lr_at_boundary": False,
    }
    path = study_path(store, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def check(store: Path, n: int) -> Path:
    """A report of `bench check`; its file."""
    path = check_path(store, "ngd", n, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    verdict = {
        "check": "finite",
        "verdict": "pass",
        "measured": 0.5,
        "note": "",
        "seconds": 0.5,
        "tolerance": 1.0,
        "meaning": "?",
        "advice": "",
    }
    path.write_text(json.dumps({"name": "ngd", "ok": True, "options": {}, "version": n, "verdicts": [verdict]}))
    return path


# -- their contents -------------------------------------------------------------------------------------------------

NAMES = (
    "", ".", "..", "../outside/good", "/etc/passwd", "a\nbench: error: b", "<script>alert(1)</script>", "\x1b[31mred",
    "\x00", "x" * 100_000, "ü漢\u202e", f"mine/{EVIL}.py:X", f"{EVIL}_module:X", f"{EVIL}.module:X", "{{7*7}}",
    "'; drop table runs --", "%s%n%(x)s", "=cmd|' /C calc'!A0", "$(touch here)", "attempt-1", "done", "studies",
    "synthetic", "nan", "-", "--store",
)  # fmt: skip

_RAW = (
    "null", "true", "5", "-1", "0", "1.5", "1e308", "-1e308", "1e999", "NaN", "Infinity", '"Infinity"', str(2**63),
    str(-(2**64)), "1" * 5000, "[]", "{}", "[null]", '{"": null}', '"\\ud800"', '"\\u0000"',
    "[" * 10_000 + "]" * 10_000, '{"a":' * 300 + "1" + "}" * 300, "[" + "0," * 100_000 + "0]", '{"a": 1, "a": 2}',
    "nul", '"', "", "{'a': 1}", "01", "1,", '{"loss": {"loss": {"loss": 1}}}', '[{"step": 1}]',
    '[{"step": "1", "train_s": null}]', '"completed"', '"running"', '"lanes"',
)  # fmt: skip
"""Texts in the place of a JSON value; some are not JSON."""

_leaves = st.none() | st.booleans() | st.integers() | st.floats(width=64) | st.sampled_from(NAMES) | st.text(max_size=8)
VALUES: st.SearchStrategy[str] = (
    st.sampled_from(_RAW)
    | st.sampled_from(NAMES).map(json.dumps)
    | st.recursive(
        _leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(NAMES[:-1]) | st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=6,
    ).map(json.dumps)
)
"""Texts of JSON values of any kind."""


@dataclass(frozen=True)
class Mutation:
    """The random values of a mutation.

    Attributes:
        value: the text of a JSON value, possibly invalid.
        name: any name.
        place: position, in millionths of the whole.
        bits: the mask with which bytes are changed.
    """

    value: str
    name: str
    place: int
    bits: bytes

    def among(self, count: int) -> int:
        return self.place * count // 1_000_000


NOTHING = Mutation("null", "", 0, b"\1")
MUTATIONS = st.builds(
    Mutation,
    value=VALUES,
    name=st.sampled_from(NAMES) | st.text(max_size=20),
    place=st.integers(0, 999_999),
    bits=st.binary(min_size=1, max_size=16).filter(any),
)

Spoil = Callable[[Path, Mutation], Any]
"""Damages a victim: its folder, or the file of a study or a check."""
_HERE = "@@here@@"


def _leaves_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from _leaves_of(inner, (*path, name))


def _in_json(text: str, m: Mutation, change: Callable[[Any, Any], None], top: bool) -> str:
    """The text with one place of its value changed; the place is one of the top for half of the mutations."""
    value = json.loads(text)
    paths = [path for path in _leaves_of(value) if len(path) == 1 or not top]
    *way, last = paths[m.among(len(paths))]
    inner = value
    for each in way:
        inner = inner[each]
    change(inner, last)
    return json.dumps(value).replace(f'"{_HERE}"', m.value)


def _put(inner: Any, last: Any) -> None:
    inner[last] = _HERE


def _lose(inner: Any, last: Any) -> None:
    del inner[last]


def json_mutations(file: Callable[[Path], Path]) -> dict[str, Spoil]:
    """Damage to a line of JSON, or to a file with one or more lines.

    Args:
        file: of a victim.
    """

    def edit(change: Callable[[str, Mutation], str]) -> Spoil:
        def spoil(victim: Path, m: Mutation) -> None:
            path = file(victim)
            lines = path.read_text().splitlines()
            lines[m.among(len(lines))] = change(lines[m.among(len(lines))], m)
            path.write_text("\n".join(lines) + "\n", "utf-8", "surrogatepass")

        return spoil

    def whole(change: Callable[[bytes, Mutation], bytes]) -> Spoil:
        return lambda victim, m: file(victim).write_bytes(change(file(victim).read_bytes(), m))

    def renamed(text: str, m: Mutation) -> str:
        value = json.loads(text)
        names = list(value)
        return json.dumps({m.name if i == m.among(len(names)) else name: value[name] for i, name in enumerate(names)})

    def flipped(text: bytes, m: Mutation) -> bytes:
        at = m.among(len(text))
        return text[:at] + bytes(a ^ b for a, b in zip(text[at:], m.bits, strict=False)) + text[at + len(m.bits) :]

    def linked(to: Callable[[Path], Path]) -> Spoil:
        def spoil(victim: Path, m: Mutation) -> None:
            path = file(victim)
            path.unlink()
            path.symlink_to(to(path))

        return spoil

    def replaced(make: Callable[[Path], Any]) -> Spoil:
        def spoil(victim: Path, m: Mutation) -> None:
            path = file(victim)
            path.unlink()
            make(path)

        return spoil

    return {
        "a value at the top": edit(lambda text, m: _in_json(text, m, _put, True)),
        "any value": edit(lambda text, m: _in_json(text, m, _put, False)),
        "another value": edit(lambda text, m: _in_json(text, m, _put, False)),
        "a name": edit(lambda text, m: _in_json(text, m, lambda i, k: i.__setitem__(k, m.name), False)),
        "a name at the top": edit(lambda text, m: _in_json(text, m, lambda i, k: i.__setitem__(k, m.name), True)),
        "versions of nothing": edit(lambda text, m: json.dumps(json.loads(text) | {"versions": {}, "environment": {}})),
        "a field is missing": edit(lambda text, m: _in_json(text, m, _lose, True)),
        "a value is missing": edit(lambda text, m: _in_json(text, m, _lose, False)),
        "a field has another name": edit(renamed),
        "a field more": edit(lambda text, m: text[:-1] + f", {json.dumps(m.name)}: {m.value}" + text[-1]),
        "a field twice": edit(lambda text, m: text[:-1] + f', "steps": 9, "status": {m.value}' + text[-1]),
        "no record": edit(lambda text, m: m.value),
        "a line twice": edit(lambda text, m: f"{text}\n{text}"),
        "a line of 5 MB": edit(lambda text, m: text + " " * 5_000_000),
        "a line more": whole(lambda text, m: text + m.bits + b"\n"),
        "truncated": whole(lambda text, m: text[: m.among(len(text))]),
        "empty": whole(lambda text, m: b""),
        "only line ends": whole(lambda text, m: b"\n\n\n"),
        "other bytes": whole(flipped),
        "no text": whole(lambda text, m: text.replace(b"n", b"\xff\xfe", 1)),
        "UTF-16": whole(lambda text, m: text.decode().encode("utf-16")),
        "a byte order mark": whole(lambda text, m: b"\xef\xbb\xbf" + text),
        "bytes": whole(lambda text, m: m.bits * 100),
        "a link out of the store": linked(lambda path: path.parents[-2] / "etc" / "passwd"),
        "a link to a sound file elsewhere": linked(lambda path: _outside(path)),
        "a link to itself": linked(lambda path: path),
        "a link to nothing": linked(lambda path: Path("nowhere")),
        "a link to a device": linked(lambda path: Path("/dev/zero")),
        "a pipe": replaced(os.mkfifo),
        "a folder": replaced(Path.mkdir),
        "a sparse file": replaced(_sparse),
        "missing": replaced(lambda path: None),
    }


def _outside(path: Path) -> Path:
    """A sound copy of a file outside the store."""
    store = next(parent for parent in path.parents if parent.name == "store")
    copy = store.parent / "outside" / sha256(str(path).encode()).hexdigest() / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    sound = next(store.glob(f"{SAFE}*/done/{path.name}"), None)
    copy.write_bytes(sound.read_bytes() if sound else b"{}")
    return copy


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


# -- finished tables ------------------------------------------------------------------------------------------------


def _parquet(name: str, change: Callable[[pa.Table, Mutation], pa.Table], **options: Any) -> Spoil:
    def spoil(victim: Path, m: Mutation) -> None:
        path = victim / "done" / f"{name}.parquet"
        pq.write_table(change(pq.read_table(path), m), path, **options)

    return spoil


def _cast(column: str, kind: pa.DataType) -> Callable[[pa.Table, Mutation], pa.Table]:
    def change(table: pa.Table, m: Mutation) -> pa.Table:
        return table.set_column(table.column_names.index(column), column, table[column].cast(kind))

    return change


def _as_column(table: pa.Table, column: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(column), column, pa.array(values))


def _ids(*words: str | None) -> Callable[[pa.Table, Mutation], pa.Table]:
    def change(table: pa.Table, m: Mutation) -> pa.Table:
        ids = [*words, *table["run_id"].to_pylist()][: len(table)]
        return table.set_column(0, "run_id", pa.array(ids).dictionary_encode())

    return change


def _huge(table: pa.Table, m: Mutation) -> pa.Table:
    """Two million rows in a few bytes."""
    ids = pa.DictionaryArray.from_arrays(np.zeros(2_000_000, np.int32), table["run_id"].to_pylist()[:1])
    others = [pa.array(np.zeros(len(ids))) for _ in table.column_names[2:]]
    return pa.table([ids, np.arange(len(ids)), *others], table.column_names)


def table_mutations(name: str) -> dict[str, Spoil]:
    """Damage to a Parquet table."""

    def file(victim: Path) -> Path:
        return victim / "done" / f"{name}.parquet"

    def bytes_(change: Callable[[bytes, Mutation], bytes]) -> Spoil:
        return lambda victim, m: file(victim).write_bytes(change(file(victim).read_bytes(), m))

    def flipped(text: bytes, m: Mutation, first: int = 0) -> bytes:
        at = first + m.among(len(text) - first)
        return text[:at] + bytes(a ^ b for a, b in zip(text[at:], m.bits, strict=False)) + text[at + len(m.bits) :]

    def grown(victim: Path, m: Mutation) -> None:
        with file(victim).open("r+b") as table:
            table.truncate(1 << 40)

    kinds = {
        "32-bit steps": _cast("step", pa.int32()),
        "steps of text": _cast("step", pa.string()),
        "steps with a fraction": _cast("step", pa.float64()),
        "plain ids": _cast("run_id", pa.string()),
        "no id": lambda table, m: table.drop(["run_id"]),
        "no step": lambda table, m: table.drop(["step"]),
        "only ids and steps": lambda table, m: table.select(["run_id", "step"]),
        "columns in another order": lambda table, m: table.select(table.column_names[::-1]),
        "no rows": lambda table, m: table.slice(0, 0),
        "a row less": lambda table, m: table.slice(1),
        "rows twice": lambda table, m: pa.concat_tables([table, table]),
        "rows backwards": lambda table, m: table.take(list(range(len(table)))[::-1]),
        "equal steps": lambda table, m: _as_column(table, "step", [1] * len(table)),
        "steps without value": lambda table, m: _as_column(table, "step", pa.array([None] * len(table), pa.int64())),
        "steps below zero": lambda table, m: _as_column(table, "step", range(-9, len(table) - 9)),
        "huge steps": lambda table, m: _as_column(table, "step", range(2**63 - len(table) - 1, 2**63 - 1)),
        "ids of others": _ids("somebody", "../outside/good"),
        "ids that are none": _ids(None, "", "a\nb", "<script>"),
        "another column": lambda table, m: table.append_column(m.name, pa.array([0.5] * len(table))),
        "a column twice": lambda table, m: table.append_column(table.column_names[-1], pa.array([0.5] * len(table))),
        "a column in capitals": lambda table, m: table.append_column("STEP", pa.array([0.5] * len(table))),
        "a column of text": lambda table, m: table.append_column("words", pa.array([m.name] * len(table))),
        "a column of lists": lambda table, m: table.append_column("lists", pa.array([[1.0]] * len(table))),
        "a column of structures": lambda table, m: table.append_column("parts", pa.array([{"a": 1}] * len(table))),
        "200 columns": lambda table, m: pa.table(
            [*table.columns, *[pa.array([0.5] * len(table))] * 200],
            [*table.column_names, *(f"more{i}" for i in range(200))],
        ),
        "values beyond all": lambda table, m: _as_column(table, table.column_names[-1], [np.inf] * len(table)),
        "times": lambda table, m: table.append_column("when", pa.array([0] * len(table), pa.timestamp("ns", "UTC"))),
        "two million rows": _huge,
    }
    return {
        **{f"{name}: {what}": _parquet(name, change) for what, change in kinds.items()},
        f"{name}: no statistics": _parquet(name, lambda table, m: table, write_statistics=False),
        f"{name}: groups of a row": _parquet(name, lambda table, m: table, row_group_size=1),
        f"{name}: truncated": bytes_(lambda text, m: text[: m.among(len(text))]),
        f"{name}: other bytes": bytes_(flipped),
        f"{name}: another footer": bytes_(lambda text, m: flipped(text, m, len(text) * 2 // 3)),
        f"{name}: another length of the footer": bytes_(lambda text, m: text[:-8] + b"\xff\xff\xff\x7f" + text[-4:]),
        f"{name}: only a footer": bytes_(lambda text, m: b"PAR1" + m.bits + b"PAR1"),
        f"{name}: locked": bytes_(lambda text, m: text[:-4] + b"PARE"),
        f"{name}: sparse": grown,
        **{f"{name}: {what}": spoil for what, spoil in json_mutations(file).items() if what.startswith("a link")},
        f"{name}: a pipe": lambda victim, m: (file(victim).unlink(), os.mkfifo(file(victim))),
        f"{name}: missing": lambda victim, m: file(victim).unlink(),
    }


# -- tables that grow -----------------------------------------------------------------------------------------------


def raw_mutations(name: str) -> dict[str, Spoil]:
    """Damage to a table that is being written."""

    def file(victim: Path) -> Path:
        return victim / "attempt-1" / f"{name}.raw"

    def edit(change: Callable[[bytes, bytes, Mutation], bytes]) -> Spoil:
        def spoil(victim: Path, m: Mutation) -> None:
            header, _, rows = file(victim).read_bytes().partition(b"\n")
            file(victim).write_bytes(change(header, rows, m))

        return spoil

    def named(*names: Any) -> Spoil:
        return edit(lambda header, rows, m: json.dumps(names).encode() + b"\n" + rows)

    def put(value: float) -> Spoil:
        def change(header: bytes, rows: bytes, m: Mutation) -> bytes:
            numbers = np.frombuffer(rows).copy()
            numbers[m.among(len(numbers))] = value
            numbers[0] = value
            return header + b"\n" + numbers.tobytes()

        return edit(change)

    def grown(victim: Path, m: Mutation) -> None:
        with file(victim).open("r+b") as table:
            table.truncate(1 << 40)

    return {
        f"{name}.raw: no header": edit(lambda header, rows, m: rows),
        f"{name}.raw: a header without end": edit(lambda header, rows, m: b"[" + b" " * 100_000),
        f"{name}.raw: another header": edit(lambda header, rows, m: m.value.encode("utf-8", "replace") + b"\n" + rows),
        f"{name}.raw: other names": edit(lambda header, rows, m: json.dumps([m.name]).encode() + b"\n" + rows),
        f"{name}.raw: more names": named("loss", "a", "b", "c", "d", "e", "f", "g"),
        f"{name}.raw: fewer names": named("loss"),
        f"{name}.raw: ten thousand names": named(*range(10_000)),
        f"{name}.raw: names of text": named(*map(str, range(5_000))),
        f"{name}.raw: a name twice": named("loss", "loss"),
        f"{name}.raw: a name of ours": named("step", "run_id"),
        f"{name}.raw: a name in capitals": named("loss", "LOSS", "Step"),
        f"{name}.raw: a name with lines": named("a\nbench: error: b", "<script>", "\x1b[31m", "'; --"),
        f"{name}.raw: nested": edit(lambda header, rows, m: b"[" * 10_000 + b"]" * 10_000 + b"\n" + rows),
        f"{name}.raw: no rows": edit(lambda header, rows, m: header + b"\n"),
        f"{name}.raw: empty": edit(lambda header, rows, m: b""),
        f"{name}.raw: truncated": edit(lambda header, rows, m: (header + b"\n" + rows)[: m.among(len(rows))]),
        f"{name}.raw: other bytes": edit(lambda header, rows, m: header + b"\n" + m.bits + rows),
        f"{name}.raw: NaN": put(np.nan),
        f"{name}.raw: infinity": put(np.inf),
        f"{name}.raw: below zero": put(-1.0),
        f"{name}.raw: huge": put(1e300),
        f"{name}.raw: a fraction": put(1.5),
        f"{name}.raw: sparse": grown,
        **{f"{name}.raw: {what}": spoil for what, spoil in json_mutations(file).items() if what.startswith("a link")},
        f"{name}.raw: a pipe": lambda victim, m: (file(victim).unlink(), os.mkfifo(file(victim))),
    }


# -- claims, folders and names --------------------------------------------------------------------------------------


def _claimed(**own: Any) -> Spoil:
    def spoil(victim: Path, m: Mutation) -> None:
        (victim / "attempt-1" / CLAIM).write_text(
            json.dumps(this_process() | {"token": "t", "started": "long ago"} | own)
        )

    return spoil


def claim_mutations() -> dict[str, Spoil]:
    """Damage to a claim."""
    pids = (0, -1, 1, 2**31 - 1, 2**31, 2**64, 1.5, "1", None, True, os.getpid())
    file = json_mutations(lambda victim: victim / "attempt-1" / CLAIM)
    return {
        **{f"a claim of {pid!r}": _claimed(pid=pid) for pid in pids},
        "a claim of a process without a start": _claimed(pid=2**22, started=None),
        "a claim of another machine": _claimed(host="elsewhere", boot="another"),
        "a claim of another space": _claimed(space=-1),
        "a claim of many words": _claimed(host="x" * 20_000),
        "a claim of unknown kind": _claimed(why="?"),
        **{f"a claim: {what}": spoil for what, spoil in file.items()},
    }


def _moved(old: str, new: str) -> Spoil:
    return lambda victim, m: (victim / old).rename(victim / new)


def _linked(name: str) -> Spoil:
    """Move a file or folder outside the store and link to it."""

    def spoil(victim: Path, m: Mutation) -> None:
        place = victim / name if name else victim
        outside = victim.parent.parent / "outside" / sha256(str(place).encode()).hexdigest()
        outside.parent.mkdir(exist_ok=True)
        shutil.move(place, outside)
        place.symlink_to(outside)

    return spoil


def _named(victim: Path, m: Mutation) -> None:
    """A folder of any name, with code in it, that a record names as its optimizer."""
    name = m.name.replace("/", "_").replace("\0", "_")[:60].encode("utf-8", "surrogatepass")
    if name not in (b"", b".", b".."):
        shutil.copytree(victim, Path(os.fsdecode(bytes(victim.parent) + b"/" + name)), dirs_exist_ok=True)


def with_code(victim: Path, name: Callable[[Path], str]) -> str:
    """Rename the optimizer of a block of one run, with the right hash: the run's id."""
    (path,) = victim.glob("*/runs.jsonl")
    value = json.loads(path.read_text().splitlines()[0])
    value["identity"]["opt"] = bare(name(victim))
    run_id = id_of("synthetic", name(victim), value["identity"])
    value["config"]["opt"], value["run_id"] = name(victim.with_name(run_id)), run_id
    path.write_text(json.dumps(value) + "\n")
    for table in victim.glob("done/*.parquet"):
        pq.write_table(_ids(*[run_id] * len(pq.read_table(table)))(pq.read_table(table), NOTHING), table)
    victim.rename(victim.with_name(run_id))
    return run_id


def _code(name: Callable[[Path], str]) -> Spoil:
    return lambda victim, m: with_code(victim, name)


def folder_mutations() -> dict[str, Spoil]:
    """Damage to the folder of a finished block."""
    return {
        "the folder is a link": _linked(""),
        "the results are a link": _linked("done"),
        "the results have another name": _moved("done", "doen"),
        "the results are an attempt": _moved("done", "attempt-1"),
        "the results are a late attempt": _moved("done", "attempt-999999999"),
        "the results are an attempt beyond all": _moved("done", "attempt-99999999999"),
        "the results are hidden": _moved("done", ".done"),
        "a copy of another name": lambda victim, m: shutil.copytree(victim, victim.with_name(f"{victim.name}.bak")),
        "a copy in itself": lambda victim, m: shutil.copytree(victim / "done", victim / "more"),
        "a copy of any name": _named,
        "code beside the results": _code(lambda victim: f"{victim}/{EVIL}.py:X"),
        "code below the current folder": _code(lambda victim: f"mine/{EVIL}.py:X"),
        "code of a module": _code(lambda victim: f"{EVIL}_module:X"),
        "an attempt beside the results": lambda victim, m: (victim / "attempt-3").mkdir(),
        "a file for a folder": lambda victim, m: (
            shutil.rmtree(victim),
            victim.write_text(m.name[:9], "utf-8", "replace"),
        ),
        "a format of before": lambda victim, m: (
            (victim / "done" / "runs.jsonl").rename(victim / "run.json"),
            shutil.rmtree(victim / "done"),
        ),
    }


def attempt_mutations() -> dict[str, Spoil]:
    """Damage to the folder of an attempt."""
    return {
        "the attempt is a link": _linked("attempt-1"),
        "the attempt has ended": _moved("attempt-1", "done"),
        "the attempt has no number": _moved("attempt-1", "attempt-0"),
        "the attempt is late": _moved("attempt-1", "attempt-999999999"),
        "code beside the attempt": _code(lambda victim: f"{victim}/{EVIL}.py:X"),
        "an empty attempt": lambda victim, m: (victim / "attempt-2").mkdir(),
        "a checkpoint of nothing": lambda victim, m: (victim / "attempt-1" / "last.ckpt").write_bytes(m.bits),
        "a pipe for a checkpoint": lambda victim, m: (
            (victim / "attempt-1" / "last.ckpt").unlink(),
            os.mkfifo(victim / "attempt-1" / "last.ckpt"),
        ),
    }


RECORDS: dict[str, Spoil] = json_mutations(lambda victim: next(victim.glob("*/runs.jsonl")))
FINISHED: dict[str, Spoil] = (
    RECORDS | table_mutations("curve") | table_mutations("measurements") | folder_mutations()
)  # of a block that has ended
LEFT: dict[str, Spoil] = (
    RECORDS | raw_mutations("curve") | raw_mutations("measurements") | claim_mutations() | attempt_mutations()
)  # of one that was left
FILES: dict[str, Spoil] = json_mutations(lambda victim: victim)  # of a study or a check

KINDS = ("one", "several", "left", "several left")
MAKE: list[tuple[str, str, Spoil]] = [
    *((KINDS[i % 2], what, spoil) for i, (what, spoil) in enumerate(FINISHED.items())),
    *((KINDS[2 + i % 2], what, spoil) for i, (what, spoil) in enumerate(LEFT.items())),
    *((KINDS[1], what, spoil) for what, spoil in RECORDS.items()),
    *((KINDS[0], what, spoil) for what, spoil in RECORDS.items()),
    *((KINDS[3], what, spoil) for what, spoil in RECORDS.items()),
]
"""Kind of victim, name of the damage, and the function that does it."""

SAFE = "synthetic-gd-"
"""How the ids of the sound runs of all stores begin."""


def sound(store: Path) -> list[RunResult]:
    """Add two sound runs, which no mutation changes."""
    runs = [record(seed, "gd") for seed in (1, 2)]
    for run in runs:
        finished(store, run)
    return runs


def spoil(store: Path, n: int, kind: str, how: Spoil, m: Mutation) -> tuple[str, list[str]]:
    """Add a victim to a store: the name of its folder and the ids of its runs."""
    runs = [record(100 * (n + 1) + i) for i in range(3 if kind.startswith("several") else 1)]
    folder = (left if kind.endswith("left") else finished)(store, *runs)
    (folder / f"{EVIL}.py").write_text(CODE)
    how(folder, m)
    return folder.name, [run.run_id for run in runs]


# -- databases ------------------------------------------------------------------------------------------------------


def database_mutation(path: Path, m: Mutation) -> str:
    """Put another value into a cell of any table of a database; returns which."""
    with sqlite3.connect(path) as con:
        tables = [name for (name,) in con.execute("select name from sqlite_master where type = 'table' order by name")]
        cells = [
            (table, column[1])
            for table in tables
            for column in con.execute(f'select * from pragma_table_info("{table}")')
            if con.execute(f'select count(*) from "{table}"').fetchone()[0]
        ]
        table, column = cells[m.among(len(cells))]
        con.execute("pragma ignore_check_constraints = on")
        value: Any = m.value if m.place % 2 else m.name.encode("utf-8", "replace").decode()
        change = f'update or ignore "{table}" set "{column}" = ? where rowid = 1'
        try:
            con.execute(change, (value,))
        except sqlite3.IntegrityError:  # a key, which must be a number
            con.execute(change, (m.place - 500_000,))
    con.close()
    return f"{table}.{column}"


# -- guards of code and files ---------------------------------------------------------------------------------------

_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty")
_WRITES = (
    "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime", "os.chmod",
    "os.chown", "shutil.rmtree", "shutil.move", "os.setxattr", "os.mkfifo",
)  # fmt: skip


class Guard:
    """Notices imports and calls of code in a store or named by it, new processes, connections, writes below a folder.

    An audit hook stays as long as the process, so there is only one, which is active only within `watching`.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._store: str | None = None
        self._no_processes = True
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self, store: Path, *, processes: bool) -> Iterator[list[str]]:
        """What the guard notices within the context; `processes` may start where libraries are imported."""
        self.seen, self._store, self._no_processes = [], str(store), not processes
        try:
            yield self.seen
        finally:
            self._store = None

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        store = self._store
        if store is None:
            return
        if event == "import":
            bad = EVIL in str(args[0])
        elif event == "open":
            name, _, flags = args
            path = os.fsdecode(name) if isinstance(name, str | bytes) else ""
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            # `bench doctor` opens the store itself, for a file without a name: whether it can be written.
            bad = path.endswith(f"{EVIL}.py") or bool(writes and path.startswith(f"{store}/"))
        elif event == "exec":
            bad = EVIL in getattr(args[0], "co_filename", "")
        elif event == "compile":
            bad = EVIL in str(args[1])
        elif event in _WRITES:
            bad = any(isinstance(each, str | bytes) and os.fsdecode(each).startswith(store) for each in args)
        else:
            bad = (event in _STARTS and self._no_processes) or event in (
                "socket.connect",
                "socket.getaddrinfo",
                "socket.bind",
                "socket.sendto",
            )
        if bad:
            self.seen.append(f"{event} {args!r}"[:300])


def tree(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a folder: kind, mode, size, times and contents; for a link only its target."""
    found: dict[str, tuple[Any, ...]] = {}
    for here, folders, files in os.walk(os.fsencode(folder)):
        for name in [*folders, *files]:
            path = os.path.join(here, name)  # noqa: PTH118 - names are bytes
            state = os.lstat(path)
            what: Any = None
            if os.path.islink(path):  # noqa: PTH114
                what = os.readlink(path)  # noqa: PTH115
            elif os.path.isfile(path) and state.st_size < 1 << 24:  # noqa: PTH113
                with open(path, "rb") as file:  # noqa: PTH123
                    what = sha256(file.read()).hexdigest()
            found[os.fsdecode(path)] = (state.st_mode, state.st_size, state.st_mtime_ns, what)
    return found
