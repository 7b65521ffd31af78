"""Past failures of stores: records overwritten, code run, results lost. Each case was found by an attack."""

import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bench.errors import UserError
from bench.progress import Progress, SweepProgress
from bench.store.block import FOLDERS, read_block
from bench.store.claims import CLAIM, is_alive, write_claim
from bench.store.store import Store
from bench.store.tables import CURVE_FIELDS
from tests import hostile
from tests.conftest import Answer, Cli
from tests.hostile import tree
from tests.outcomes import leftovers, outcome
from tests.stored import add_study

SMALL = ("--task", "synthetic", "--trainer.max_steps", "60", "--trainer.val_every", "10", "--device", "cpu")
FIT = ("fit", *SMALL, "--trainer.batch_size", "5", "--opt", "sps", "--opt.gamma", "2", "--opt.max_step", "5")
SWEEP = ("sweep", *SMALL, "--opt", "ngd", "--opt.lr", "0.1,1", "--seeds", "2", "--engine", "lanes", "--width", "4")
BOTH = pytest.mark.parametrize("words", [FIT, SWEEP], ids=["fit", "sweep"])
NESTED = "[" * 10_000 + "]" * 10_000


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty current folder; sweeps write no table and no plot."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("bench.sweeps.sensitivity.write", lambda *args: [])
    return folder


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Call a function once, when the training has taken so many steps."""

    def plan(step: int, do: Callable[[], object]) -> None:
        update, advance, done, made = Progress.update, SweepProgress.advance, [], [0]

        def once(now: int) -> None:
            if now >= step and not done:
                done.append(now)
                do()

        def update_(self, now, *rest):
            once(now)
            update(self, now, *rest)

        def advance_(self, steps, *rest):
            made[0] += steps // 4  # lanes
            once(made[0])
            advance(self, steps, *rest)

        monkeypatch.setattr(Progress, "update", update_)
        monkeypatch.setattr(SweepProgress, "advance", advance_)

    return plan


def stop() -> None:
    os.kill(os.getpid(), 2)


def one_error(answer: Answer, code: int) -> str:
    """The last and only line of a command's output, an error."""
    assert (answer.code, answer.out) == (code, ""), answer
    assert "Traceback" not in answer.err
    assert answer.err.count("bench: error: ") == 1, answer.err
    return answer.err[answer.err.index("bench: error: ") :].removesuffix("\n")


def attempt_of(store: Path) -> Path:
    (path,) = store.glob("*/attempt-*")
    return path


@contextmanager
def nothing_written(*folders: Path) -> Iterator[None]:
    before = [tree(folder) for folder in folders]
    yield
    assert [tree(folder) for folder in folders] == before


# -- copies and names -----------------------------------------------------------------------------------------------


def test_a_copy_of_a_run_in_training_harms_nothing(cli: Cli, store: Path, sees: Path, at_step) -> None:
    def copy() -> None:
        (run,) = store.iterdir()
        shutil.copytree(run, store / f"{run.name}.bak")

    at_step(30, copy)
    assert cli(*FIT).code == 0
    run_id = next(path.name for path in store.iterdir() if path.suffix != ".bak")
    with nothing_written(store, sees):
        answer = cli("list", "runs")
    assert answer.code == 1
    (row,) = answer.out.splitlines()[1:]
    assert row.startswith(f"{run_id}  completed ")
    assert answer.err.count("\n") == 1
    assert f"{run_id}.bak" in answer.err
    assert run_id in Store(store).finished_all([run_id])


@pytest.mark.parametrize("field", ["id", "id and identity"])
def test_an_id_that_leads_out_of_the_store_leads_nowhere(cli: Cli, tmp_path: Path, sees: Path, field: str) -> None:
    mine, other = tmp_path / "runs", tmp_path / "other_store"
    good, bad = hostile.record(1), hostile.record(2)
    shutil.move(hostile.finished(other, good), other / "good-run")
    for which in ("done", "attempt-1"):
        path = (hostile.finished if which == "done" else hostile.left)(mine, bad) / which / "runs.jsonl"
        text = json.loads(path.read_text()) | {"run_id": "../other_store/good-run", "status": "killed"}
        path.write_text(json.dumps(text | ({"identity": {}} if field == "id" else {})))
        for words in (("list", "runs"), ("sql", "from runs"), ("leaderboard",), ("merge", mine, tmp_path / "new")):
            with nothing_written(mine, other, sees):
                answer = cli(*words)
            assert answer.code == 1 or words == ("leaderboard",)
            assert "good-run" not in answer.out
        shutil.rmtree(mine)
    assert not list((tmp_path / "new").glob("*")) if (tmp_path / "new").exists() else True


@pytest.mark.parametrize("where", ["done", "attempt-1"])
def test_merge_brings_no_code_along(cli: Cli, tmp_path: Path, sees: Path, where: str) -> None:
    source, into = tmp_path / "theirs", sees / "mine"
    run = hostile.record(1)
    folder = (hostile.finished if where == "done" else hostile.left)(source, run)
    for path in (folder / "evil.py", folder / where / "evil.py", folder / where / "__init__.py", source / "evil.py"):
        path.write_text(hostile.CODE)
    (folder / where / "more").mkdir()
    (folder / where / "traceback.txt").write_text("evil")
    with nothing_written(source):
        assert cli("merge", source, into).code == 0
    names = {path.name for path in into.rglob("*") if path.is_file()}
    known = {"done": {"curve.parquet", "measurements.parquet", "runs.jsonl"}}
    assert names == known.get(where, {"curve.raw", "measurements.raw", "runs.jsonl", "last.ckpt"})


def test_code_that_came_with_a_run_is_not_run_on_resuming(cli: Cli, tmp_path: Path, sees: Path) -> None:
    into = sees / "mine"
    folder = hostile.left(tmp_path / "theirs", hostile.record(1))
    run_id = hostile.with_code(folder, lambda victim: f"mine/{victim.name}/evil.py:X")
    assert cli("merge", tmp_path / "theirs", into).code == 0
    (into / run_id / "evil.py").write_text(hostile.CODE)  # as an earlier version of merge, or `cp -r`, copied it
    guard = hostile.Guard()
    for words in (("--store", into), ("--store", into, "--dry-run"), ("--store", into, "--data", tmp_path)):
        with guard.watching(into, processes=False) as seen:
            error = one_error(cli("fit", "--resume", run_id, *words), 2)
        assert not seen
        assert "evil.py" in error


# -- a store that changes during training ---------------------------------------------------------------------------


def lost(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def block_of(store: Path) -> Path:
    """The only block of a store."""
    (folder,) = (path for path in store.iterdir() if path.name not in FOLDERS)
    return folder


def exchanged(path: Path) -> None:
    """The same names and bytes, as after copying there and back."""
    copy = path.with_name(f"{path.name}.copy")
    (shutil.copytree if path.is_dir() else shutil.copy)(path, copy)
    lost(path)
    copy.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "the store is deleted": lost,
    "the store is emptied": lambda store: [lost(path) for path in store.iterdir()],
    "the store is replaced": exchanged,
    "the run is replaced": lambda store: exchanged(block_of(store)),
    "the run is moved": lambda store: block_of(store).rename(store.parent / "moved"),
    "the attempt is deleted": lambda store: lost(attempt_of(store)),
    "the claim is deleted": lambda store: lost(attempt_of(store) / "claim.json"),
    "the claim is replaced": lambda store: exchanged(attempt_of(store) / "claim.json"),
    "the curve is deleted": lambda store: lost(attempt_of(store) / "curve.raw"),
    "the curve is replaced": lambda store: exchanged(attempt_of(store) / "curve.raw"),
    "the curve is a link": lambda store: (
        (attempt_of(store) / "curve.raw").rename(store.parent / "moved"),
        (attempt_of(store) / "curve.raw").symlink_to(store.parent / "moved"),
    ),
    "the measurements are deleted": lambda store: lost(attempt_of(store) / "measurements.raw"),
    "another attempt is there": lambda store: attempt_of(store).with_name("attempt-2").mkdir(),
}


@pytest.mark.matrix(keep=8)
@BOTH
@pytest.mark.parametrize("change", CHANGES)
def test_a_store_that_changes_under_the_training_is_missed(
    cli: Cli, store: Path, sees: Path, at_step, words: tuple[str, ...], change: str
) -> None:
    after = []
    at_step(30, lambda: (CHANGES[change](store), after.append(names(store))))
    error = one_error(cli(*words), 1)
    assert any(word in error for word in ("deleted", "moved", "replaced", "took over"))
    left = names(store)  # only the record of the failure may be new
    assert {name for name in left - after[0] if not name.endswith("traceback.txt")} == set()
    assert not any(run.status == "completed" for run in Store(store).runs())
    assert not list(store.glob("*/done"))


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@BOTH
@pytest.mark.parametrize("step", [30, 60])
def test_if_two_processes_train_a_run_the_first_to_end_stores_it(
    cli: Cli, store: Path, sees: Path, at_step, words: tuple[str, ...], step: int
) -> None:
    after = []

    def another() -> None:
        """Another process begins after the store was deleted, and ends first."""
        folder = block_of(store)
        block = read_block(folder)
        assert block is not None
        runs = list(block.runs.values())
        shutil.rmtree(store)
        for run in runs:
            run.status, run.steps = "completed", 3
        assert hostile.finished(store, *runs) == folder
        after.append(tree(store))

    at_step(step, another)
    one_error(cli(*words), 1)
    assert tree(store) == after[0]


# -- checkpoints ----------------------------------------------------------------------------------------------------


def evil_pickle(path: Path) -> None:
    """A checkpoint that would run a command."""
    import torch

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {path}.evil",)

    torch.save({"callbacks": Evil(), "state_dict": {}}, path)


def no_steps(path: Path) -> None:
    import torch

    torch.save({"callbacks": {"Recorder": {"other": 1}}, "state_dict": {}}, path)


def of_nothing(path: Path) -> None:
    """An intact checkpoint that states its number of steps and contains nothing else."""
    import torch

    torch.save({"callbacks": {"Recorder": {"steps_done": 30}}}, path)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def one_byte(path: Path) -> None:
    text = bytearray(path.read_bytes())
    text[len(text) // 3] ^= 1
    path.write_bytes(text)


def packed(path: Path) -> None:
    """The same archive with compressed parts: few bytes may unpack to many."""
    with zipfile.ZipFile(path) as file:
        parts = [(part.filename, file.read(part)) for part in file.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts:
            file.writestr(name, content)


HARMS: dict[str, Callable[[Path], object]] = {
    "truncated": half,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 100),
    "a byte": one_byte,
    "code": evil_pickle,
    "no steps": no_steps,
    "nothing else": of_nothing,
    "packed": packed,
    "no curve": lambda path: path.with_name("curve.raw").unlink(),
    "no measurements": lambda path: path.with_name("measurements.raw").unlink(),
    "a shorter curve": lambda path: os.truncate(path.with_name("curve.raw"), 500),
    "another curve": lambda path: path.with_name("curve.raw").write_bytes(b'["loss"]\n' + bytes(8000)),
    "a curve without end": lambda path: os.truncate(path.with_name("curve.raw"), 1 << 40),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict]:
    """Results of uninterrupted commands."""
    from bench.cli import main

    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.sweeps.sensitivity.write", lambda *args: [])
        for words in (FIT, SWEEP):
            store = tmp_path_factory.mktemp("whole")
            patch.setenv("BENCH_STORE", str(store))
            with pytest.raises(SystemExit, match="0"):
                main(list(words))
            found[words] = outcome(store)
    return found


@pytest.mark.matrix(keep=3)
@BOTH
@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_checkpoint_is_put_aside_and_the_training_starts_afresh(
    cli: Cli, store: Path, sees: Path, at_step, whole, words: tuple[str, ...], harm: str
) -> None:
    at_step(30, stop)
    assert cli(*words).code == 130
    checkpoint = attempt_of(store) / "last.ckpt"
    HARMS[harm](checkpoint)
    answer = cli(*words)
    assert answer.code == 0, answer.err
    told = [line for line in answer.err.splitlines() if str(checkpoint) in line]
    assert len(told) == 1
    assert "training starts from the beginning" in told[0]
    assert "Traceback" not in answer.err
    assert outcome(store) == whole[words]
    assert leftovers(store) == []
    assert not list(store.parent.rglob("*.evil"))


def with_other_weights(state: dict[str, Any]) -> None:
    weights = state.get("lanes", {}).get("weights", state["state_dict"])
    for name, value in weights.items():
        weights[name] = torch.zeros(3, *value.shape)


def without_results(state: dict[str, Any]) -> None:
    for own in state["callbacks"].values():
        own |= {"result": None, "watches": [{}]}


def with_results_of_other_kinds(state: dict[str, Any]) -> None:
    for own in state["callbacks"].values():
        for watch in [own, *own.get("watches", ())]:
            if "result" in watch:
                watch["result"]["validations"] = [{"step": "soon"}]


@pytest.mark.matrix(keep=2)
@BOTH
@pytest.mark.parametrize("harm", [with_other_weights, without_results, with_results_of_other_kinds])
def test_a_checkpoint_that_does_not_fit_is_put_aside_and_the_training_starts_afresh(
    cli: Cli, store: Path, sees: Path, at_step, whole, words: tuple[str, ...], harm: Callable[[dict[str, Any]], None]
) -> None:
    at_step(30, stop)
    assert cli(*words).code == 130
    checkpoint = attempt_of(store) / "last.ckpt"
    state = torch.load(checkpoint, weights_only=True)
    harm(state)
    torch.save(state, checkpoint)
    answer = cli(*words)
    assert answer.code == 0, answer.err
    assert answer.err.count("cannot be used") == answer.err.count("training starts from the beginning") == 1
    assert "Traceback" not in answer.err
    assert outcome(store) == whole[words]
    assert leftovers(store) == []


@pytest.mark.parametrize("harm", ["truncated", "empty", "garbage"])
def test_resuming_by_name_goes_on_without_the_checkpoint_too(
    cli: Cli, store: Path, sees: Path, at_step, whole, harm: str
) -> None:
    at_step(30, stop)
    assert cli(*FIT).code == 130
    HARMS[harm](attempt_of(store) / "last.ckpt")
    (run,) = Store(store).runs()
    answer = cli("fit", "--resume", run.run_id)
    assert answer.code == 0, answer.err
    assert answer.err.count("it was renamed to last.unreadable") == 1
    assert outcome(store) == whole[FIT]


def test_a_sound_checkpoint_is_gone_on_from(cli: Cli, store: Path, sees: Path, at_step, whole) -> None:
    at_step(30, stop)
    assert cli(*FIT).code == 130
    answer = cli(*FIT)
    assert answer.code == 0
    assert "afresh" not in answer.err
    assert "step 10/60" not in answer.err
    assert outcome(store) == whole[FIT]


# -- tables ---------------------------------------------------------------------------------------------------------


def rewritten(table: pa.Table, path: Path, **options: Any) -> None:
    pq.write_table(table, path, **options)


def unpacks(table: pa.Table, path: Path) -> None:
    """Ten million rows in some kilobytes, the number of steps in the record."""
    rows, schema = 1_000_000, table.schema
    ids = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), table["run_id"].to_pylist()[:1])
    encoding = {"step": "DELTA_BINARY_PACKED"}
    with pq.ParquetWriter(path, schema, use_dictionary=["run_id", *CURVE_FIELDS[1:]], column_encoding=encoding) as file:
        for first in range(1, 10_000_000, rows):
            values = [pa.array(np.ones(rows))] * 4
            file.write_table(pa.table([ids, np.arange(first, first + rows), *values], schema=schema), rows)
    record = path.with_name("runs.jsonl")
    record.write_text(record.read_text().replace('"steps": 3,', '"steps": 10000000,'))


CURVES: dict[str, Callable[[pa.Table, Path], object]] = {
    "no loss": lambda table, path: rewritten(table.select(["run_id", "step"]), path),
    "other names": lambda table, path: rewritten(table.rename_columns([*table.column_names[:-1], "LOSS"]), path),
    "a row less": lambda table, path: rewritten(table.slice(1), path),
    "many rows in few bytes": unpacks,
}


@pytest.mark.parametrize("curve", CURVES)
def test_a_curve_that_is_none_is_left_out_and_not_merged(cli: Cli, tmp_path: Path, sees: Path, curve: str) -> None:
    store = tmp_path / "runs"
    hostile.sound(store)
    path = hostile.finished(store, hostile.record(1)) / "done" / "curve.parquet"
    CURVES[curve](pq.read_table(path), path)
    refused_table(cli, store, tmp_path / "new", path)


@pytest.mark.parametrize("mutation", ["sparse", "no header", "below zero", "a name in capitals", "fewer names"])
def test_a_growing_curve_that_is_none_is_left_out_and_not_merged(
    cli: Cli, tmp_path: Path, sees: Path, mutation: str
) -> None:
    store = tmp_path / "runs"
    hostile.sound(store)
    folder = hostile.left(store, hostile.record(1))
    hostile.LEFT[f"curve.raw: {mutation}"](folder, hostile.NOTHING)
    if mutation == "no header":  # which may not have been written yet
        assert cli("sql", "from curves").code == 0
    else:
        refused_table(cli, store, tmp_path / "new", folder / "attempt-1" / "curve.raw")


def refused_table(cli: Cli, store: Path, new: Path, path: Path) -> None:
    """The run with a damaged curve is reported, and others are read."""
    with nothing_written(store):
        for words in (("sql", "select count(*) as n from curves"), ("merge", store, new)):
            answer = cli(*words)
            assert answer.code == 1
            assert answer.err.count("\n") == 1
            assert str(path) in answer.err
        assert cli("sql", "select count(*) as n from curves").out.split() == ["n", str(2 * hostile.STEPS)]
    assert len(list(new.iterdir())) == 2


def test_more_measurements_than_steps_are_none(cli: Cli, tmp_path: Path, sees: Path) -> None:
    store = tmp_path / "runs"
    path = hostile.finished(store, hostile.record(1)) / "done" / "measurements.parquet"
    table = pq.read_table(path)
    many = pa.table(
        [pa.array([table["run_id"][0].as_py()] * 9).dictionary_encode(), range(9), np.ones(9)], table.column_names
    )
    pq.write_table(many, path)
    answer = cli("sql", "from measurements")
    assert answer.code == 1
    assert str(path) in answer.err


# -- what killed processes leave, and names -------------------------------------------------------------------------


def test_unfinished_files_of_a_killed_process_are_removed(cli: Cli, store: Path, sees: Path) -> None:
    assert cli(*FIT).code == 0
    (folder,) = store.iterdir()
    shutil.rmtree(folder / "done")
    dead = hostile.left(store.parent / "other", hostile.record(1)) / "attempt-1"
    shutil.copytree(dead, folder / ".with-a-claim")
    (folder / ".without-a-claim").mkdir()
    assert cli(*FIT).code == 0
    assert [path.name for path in folder.iterdir()] == ["done"]


def test_a_folder_that_is_named_like_an_attempt_does_not_make_a_store_a_run(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "theirs"
    hostile.sound(store)
    for name in ("attempt-1", "done"):
        shutil.copytree(hostile.finished(tmp_path / name, hostile.record(1)), store / name)
    answer = cli("merge", store, tmp_path / "new")
    assert answer.code == 1
    assert answer.out.startswith("2 runs copied")
    assert answer.err.count("its records do not belong to") == 2


def test_a_message_about_a_hostile_name_is_one_line(cli: Cli, tmp_path: Path) -> None:
    store, name = tmp_path / "runs", "a\nbench: error: \x1b[31mb"
    shutil.copytree(hostile.finished(tmp_path / "other", hostile.record(1)), store / name)
    path = hostile.finished(store, hostile.record(2)) / "done" / "runs.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: 1}))
    for words in (("list", "runs"), ("sql", "from runs"), ("merge", store, tmp_path / "new")):
        answer = cli(*words)
        assert answer.code == 1
        assert answer.err.count("\n") == 2
        assert all(line.startswith("bench: warning: ") for line in answer.err.splitlines())
        assert "\x1b" not in answer.err


def test_an_attempt_with_a_damaged_record_is_not_merged_in_part(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "theirs"
    hostile.sound(store)
    path = hostile.left(store, *map(hostile.record, (1, 2, 3))) / "attempt-1" / "runs.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, "null", *rest[1:]]) + "\n")
    answer = cli("merge", store, tmp_path / "new")
    assert (answer.code, answer.out) == (1, "2 runs copied, 0 already there, 0 skipped\n")
    assert cli("list", "runs", "--store", tmp_path / "new").code == 0


# -- invalid records ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["merged", "copied"])
def test_an_intact_record_takes_the_place_of_a_damaged_one(cli: Cli, tmp_path: Path, how: str) -> None:
    run = hostile.record(1)
    first, second, into = (tmp_path / name for name in ("first", "second", "into"))
    path = hostile.finished(first, run) / "done" / "runs.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": None}))
    hostile.finished(second, run)
    if how == "copied":
        shutil.copytree(first, into)
    else:
        assert cli("merge", first, into).code == 1
    assert cli("merge", second, into).code == 0
    listed = cli("list", "runs", "--store", into)
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.splitlines()[1].startswith(f"{run.run_id}  completed ")
    assert outcome(into) == outcome(second)
    assert leftovers(into) == []


BAD = {
    "a number for an id": lambda text: json.dumps(json.loads(text) | {"run_id": 5}),
    "nested lists for an id": lambda text: text.replace(f'"{json.loads(text)["run_id"]}"', NESTED, 1),
    "nested lists for a record": lambda text: NESTED,
    "nested lists for an option": lambda text: text.replace(
        '"task_options": {', f'"task_options": {{"n": {NESTED}, ', 1
    ),
    "nested lists for facts": lambda text: text.replace('"facts": {', f'"facts": {{"n": {NESTED}, ', 1),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["done", "attempt-1"])
def test_a_record_that_is_none_is_left_out_by_all(cli: Cli, tmp_path: Path, sees: Path, bad: str, where: str) -> None:
    store, new = tmp_path / "runs", tmp_path / "new"
    hostile.sound(store)
    victim = hostile.record(1)
    path = (hostile.finished if where == "done" else hostile.left)(store, victim) / where / "runs.jsonl"
    path.write_text(BAD[bad](path.read_text()))
    reading = [
        ("list", "runs"),
        ("leaderboard", "--board", "all"),
        ("report", "-o", tmp_path / "out" / "report.html"),
        ("sql", "from runs"),
        ("sql", "from curves"),
        ("merge", store, new),
    ]
    for words in reading:
        with nothing_written(store, sees):
            answer = cli(*words)
        assert answer.code == 1, words
        assert victim.run_id in answer.err
        assert all(
            line.startswith(("bench: warning: ", "bench: note: ", "written to")) for line in answer.err.splitlines()
        )
    assert {path.name for path in new.iterdir()} == {run.run_id for run in hostile.sound(tmp_path / "other")}
    with nothing_written(store, sees):
        one_error(cli("fit", "--resume", victim.run_id), 2)


SETTINGS = {
    "a number for a task": "task: 5",
    "a number for an id": "run_id: 5\ntask: synthetic\nopt: ngd",
    "a number for a name": "5: 6",
    "a number for an option": "task: {5: 6, name: synthetic}\nopt: ngd",
    "nested lists": NESTED,
    "nested lists for a task": f"task: {NESTED}",
    "nested lists for an option": f"task: synthetic\nopt: {{name: ngd, lr: {NESTED}}}",
    "nested lists for the budget": f"task: synthetic\nopt: ngd\ntrainer: {{max_steps: {NESTED}}}",
    "nested mappings": "{a: " * 10_000 + "1" + "}" * 10_000,
    "a mapping for a name": "? {a: b}\n: c",
    "a list for a name": "? [a, b]\n: c",
    "a link to itself": "task: &a [*a]\nopt: ngd",
    "a link to itself for an option": "task: synthetic\nopt: {name: ngd, lr: &a [*a]}",
    "a mapping in itself": "task: synthetic\nopt: ngd\ntrainer: &a {max_steps: *a}",
    "laughs": "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'ha'}]" for i in range(12)),
    "a date": "task: 2020-01-01\nopt: ngd",
    "an impossible date": "task: 2020-99-99\nopt: ngd",
    "a huge number": f"task: synthetic\nopt: ngd\nseed: {'1' * 5000}",
    "a tag": "task: !!python/object/apply:os.system ['touch evil']\nopt: ngd",
    "a mapping for a seed": "task: synthetic\nopt: ngd\nseed: {a: 1}",
    "no text": "task: \x00",
    "lines in a name": 'task: "a\\nbench: error: b"\nopt: ngd',
    "null": "task: null\nopt: null",
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_configuration_that_is_none_is_one_line(
    cli: Cli, store: Path, tmp_path: Path, sees: Path, settings: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SETTINGS[settings])
    error = one_error(cli("fit", "--config", path), 2)
    assert "\n" not in error
    assert len(error) < 1000
    assert not store.exists()
    assert not list(sees.iterdir())


# -- found by attacks -------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(cli: Cli, store: Path, sees: Path) -> str:
    """The id of a finished run."""
    return json.loads(cli(*FIT, "--json").out)["run_id"]


def test_a_link_to_itself_hides_no_run(cli: Cli, store: Path, trained: str, tmp_path: Path) -> None:
    (store / "loop").symlink_to("loop")
    before = tree(store)
    for words in (("list", "runs"), ("sql", "select run_id from runs"), ("merge", store, tmp_path / "copy")):
        answer = cli(*words)
        assert answer.code == 1, words
        assert f"{store}/loop" in answer.err
    assert trained in cli("list", "runs").out
    assert outcome(tmp_path / "copy") == outcome(store)
    assert tree(store) == before


@pytest.mark.parametrize("what", ["run", "attempt", "studies"])
def test_a_merge_writes_nothing_through_links_of_the_destination(
    cli: Cli, store: Path, trained: str, tmp_path: Path, what: str
) -> None:
    other, dest = tmp_path / "other", tmp_path / "dest"
    (other / "attempt-1").mkdir(parents=True)
    (other / "attempt-1" / "last.ckpt").write_bytes(b"mine")
    dest.mkdir()
    if what == "run":
        (dest / trained).symlink_to(other)
    elif what == "attempt":
        (dest / trained).mkdir()
        (dest / trained / "attempt-1").symlink_to(other / "attempt-1")
    else:
        (dest / "studies").symlink_to(other)
        add_study(store, "s")
    before = tree(other)
    answer = cli("merge", store, dest)
    assert answer.code == 1, answer
    assert "is a symbolic link, and links are not followed" in answer.err
    assert tree(other) == before


def test_an_unfinished_run_is_not_merged_through_a_link(cli: Cli, store: Path, sees: Path, at_step, tmp_path) -> None:
    at_step(30, stop)
    assert cli(*FIT).code == 130
    other, dest = tmp_path / "other", tmp_path / "dest"
    other.mkdir()
    dest.mkdir()
    (dest / attempt_of(store).parent.name).symlink_to(other)
    answer = cli("merge", store, dest)
    assert (answer.code, list(other.iterdir())) == (1, [])


def test_a_rotten_table_is_not_merged(cli: Cli, store: Path, trained: str, tmp_path: Path) -> None:
    rotten, dest = tmp_path / "rotten", tmp_path / "dest"
    shutil.copytree(store, rotten)
    table = rotten / trained / "done" / "curve.parquet"
    table.write_bytes(bytes(byte ^ (255 if 200 <= i < 400 else 0) for i, byte in enumerate(table.read_bytes())))
    answer = cli("merge", rotten, dest)
    assert answer.code == 1
    assert trained in answer.err
    assert cli("merge", store, dest).code == 0
    assert outcome(dest) == outcome(store)


@pytest.mark.parametrize("words", ["list runs", "leaderboard", "report", "sql x", "show x", "list studies", "doctor"])
@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000])
def test_a_path_that_is_too_long(cli: Cli, words: str, name: str) -> None:
    answer = cli(*words.split(), "--store", name)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "a name has at most 255 bytes and a path 4,095" in answer.err


@pytest.mark.parametrize("line", [r'store: "a\0b"', r'opt: "./a\0b.py:X"', r'opt: "./a\ud800.py:X"', r'"\0": 1'])
def test_characters_that_no_text_has(cli: Cli, sees: Path, line: str) -> None:
    (sees / "c.yaml").write_text(f"task: synthetic\n{line}\n")
    answer = cli("fit", "--config", "c.yaml", "--opt", "ngd") if "opt" not in line else cli("fit", "--config", "c.yaml")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "c.yaml is not valid YAML at line 2" in answer.err


def test_a_column_that_a_database_gives_is_named(cli: Cli, store: Path, trained: str) -> None:
    path = store / trained / "done" / "measurements.parquet"
    table = pq.read_table(path)
    pq.write_table(table.rename_columns([*table.column_names[:2], "Filename", *table.column_names[3:]]), path)
    answer = cli("sql", "select count(*) from measurements")
    assert answer.code == 1
    assert f"{trained}" in answer.err


def test_a_record_of_other_settings_is_not_taken_for_the_run(cli: Cli, store: Path, trained: str) -> None:
    other: Any = SimpleNamespace(run_id=trained, identity={"task": "synthetic"})  # ids are short hashes
    with pytest.raises(UserError, match="has other settings; --rerun trains it again"):
        Store(store).result_of(other)
    path = store / trained / "done" / "runs.jsonl"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"identity": {}, "chosen": {}, "problem": {}}) + "\n")
    answer = cli("list", "runs")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert f"{trained}: identity is missing" in answer.err
    assert cli(*FIT).code == 0
    assert json.loads(path.read_text())["identity"] == record["identity"]


def test_a_claim_from_the_future_is_none(tmp_path: Path) -> None:
    write_claim(tmp_path)
    path = tmp_path / CLAIM
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "elsewhere", "boot": "another"}))
    assert is_alive(tmp_path)
    later = time.time() + 10**6
    os.utime(path, (later, later))
    assert not is_alive(tmp_path)
