"""bench sql: runs, curves, measurements and trials as views; a query changes nothing, and errors are one line."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bench
import bench.browse.sql
from bench.browse.sql import VIEWS, ask
from bench.store.stores import Stores
from tests.stored import WILD, add_block, add_run, add_study, begin, record
from tests.test_cli import fails, strict_json


def rows(query: str, *stores: Path) -> list[tuple]:
    return list(ask(Stores(stores), query).rows)


@pytest.fixture
def filled(store: Path) -> Path:
    """A single run `a` and a block with `b` and `c`; all except `c` are in a study."""
    add_run(store, "a", lr=0.5)
    add_block(store, "cb", final=None, status="diverged")
    add_study(store, "s")
    return store


# -- views ------------------------------------------------------------------------------------------------------------


def test_runs(filled):
    add_run(filled, "d", plan="study s")  # a fresh seed
    query = "select run_id, opt, status, data_seed, split, final, engine, machine, study from runs order by run_id"
    lanes = "ngd", "diverged", 2, "train", None, "lanes", "abacus, 1 thread, lanes"
    alone = "ngd", "completed", 2, "train", 0.25, "lightning", "abacus, 1 thread, lightning"
    assert rows(query, filled) == [("a", *alone, "s"), ("b", *lanes, "s"), ("c", *lanes, None), ("d", *alone, None)]


def test_curves_of_runs_of_their_own_and_of_blocks(filled):
    assert rows("from curves where run_id = 'a' order by step", filled) == [
        ("a", 1, 0.5, 1.0, 0.1, 0.1),
        ("a", 2, None, 1.0, 0.1, 0.1),
        ("a", 3, 0.25, 1.0, 0.1, 0.1),
    ]
    query = "select run_id, count(*), avg(loss) from curves group by run_id order by run_id"
    assert rows(query, filled) == [("a", 3, 0.375), ("b", 3, 0.5), ("c", 3, 0.5)]


def test_a_run_in_two_stores_has_its_rows_once(tmp_path):
    add_run(tmp_path / "alone", "a")
    add_block(tmp_path / "others", "ab")
    for view, *counts in (("runs", 1, 1), ("curves", 3, 3), ("measurements", 2, 1)):
        query = f"select run_id, count(*) from {view} group by run_id order by run_id"
        assert rows(query, tmp_path / "alone", tmp_path / "others") == [*zip("ab", counts, strict=True)]


def test_measurements_have_a_column_for_each_thing_that_was_measured(filled):
    measured = [("a", 0, 0.75, None), ("a", 2, None, None), ("b", 0, None, 0.5), ("c", 0, None, 0.5)]
    assert rows("select run_id, step, error, angle from measurements order by all", filled) == measured


def test_trials(filled):
    query = (
        "select study, task, opt, number, kind, state, score, (point->>'lr')::double, runs, is_winner"
        " from trials order by number"
    )
    assert rows(query, filled) == [
        ("s", "synthetic", "ngd", 0, "design", "completed", 0.5, 0.1, ["a"], False),
        ("s", "synthetic", "ngd", 1, "design", "completed", 0.25, 0.2, ["b"], True),
    ]


def test_views_of_an_empty_store_have_their_columns(store):
    store.mkdir()
    for view, kinds in VIEWS.items():
        answer = ask(Stores([store]), f"from {view}")
        assert answer.names == list(kinds)
        assert answer.kinds == [kind.upper() for kind in kinds.values()]
        assert list(answer.rows) == []


def test_a_run_in_progress_is_seen_and_its_rows_are_not(store):
    folder = begin(store, record("a", status="running"))
    add_run(store, "b")
    curves = rows("select run_id, step, loss from curves order by all", store)
    assert curves == [("b", step, loss) for step, loss in ((1, 0.5), (2, None), (3, 0.25))]
    assert rows("select count(*), count(error) from measurements", store) == [(2, 1)]
    assert rows("select run_id, status from runs order by 1", store) == [("a", "running"), ("b", "completed")]
    folder.drop()


@pytest.mark.parametrize("name", ["it's", "a[1]*?", "ü 漢", "lr=3", "<script>", "a\\b", "a\nb"])
def test_stores_and_runs_of_any_name(tmp_path, name):
    store = tmp_path / name
    add_run(store, "a", task=name)
    add_run(tmp_path / "a1", "a")  # which a pattern would match too
    counted = rows("select run_id, task, count(*) from curves join runs using (run_id) group by all", store)
    assert counted == [("a", name, 3)]
    assert rows("select run_id, count(*) from measurements group by all", store) == [("a", 2)]


# -- formats ----------------------------------------------------------------------------------------------------------


def test_json_is_strict_and_columns_of_json_are_what_they_hold(cli, filled):
    query = (
        "select settings, point, 'nan'::double as a, 'inf'::double as b, 1.5 as c, [1, null] as d,"
        " {'x': 'nan'::double} as e, date '2026-01-02' as f, 2 as c from runs, trials where run_id = 'a' and number = 0"
    )
    (row,) = strict_json(cli("sql", query, "--json").out)
    assert row["settings"]["opt.lr"] == 0.5
    assert row["settings"]["opt.max_step"] == "inf"
    plain = {"a": None, "b": "inf", "c": 1.5, "d": [1, None], "e": {"x": None}, "f": "2026-01-02", "c_1": 2}
    assert {name: row[name] for name in row if name != "settings"} == {"point": {"lr": 0.1}} | plain


@pytest.mark.parametrize("kind", ["txt", "md", "csv", "json"])
def test_wild_names_do_no_harm(cli, store, tmp_path, kind):
    add_run(store, "a", task=WILD, part=WILD)
    file = tmp_path / f"rows.{kind}"
    answer = cli("sql", 'select task, part, [task] as l, 1 as "x\x1b[31m\ny" from runs', "-o", file)
    assert (answer.code, answer.out) == (0, "")
    text = file.read_text()
    assert "\x1b" not in text
    if kind == "json":
        assert json.loads(text)[0]["task"] == WILD
    else:
        assert len(text.splitlines()) == (3 if kind == "md" else 2)
        assert ("<script>" in text) == (kind != "md")
    assert rows("select count(*) from runs where task like '%[/bold] \"q\" ''a'' | ü 漢%'", store) == [(1,)]


# -- invalid queries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select final_ from runs", 'Binder Error: Referenced column "final_" not found; near: final'),
        ("select * from rums", 'Did you mean "runs"?'),
        ("selec 1", "Parser Error: syntax error"),
        ("select final::int from runs where opt = 1", "Conversion Error"),
        ("select error('late') from runs", "late"),
        ("select '\x1b[31m' || nme from runs", "nme"),
        ("select 1; select 2", "takes one read-only query"),
        ("explain analyze copy (select 1) to 'x.csv'", "takes one read-only query"),
        ("copy (from runs) to 'runs.csv'", "takes one read-only query"),
        ("drop view runs", "takes one read-only query"),
        ("attach 'runs/studies.db'", "takes one read-only query"),
        ("pivot runs on opt", "ON column IN"),
    ],
)
def test_a_bad_query_is_one_line_that_names_the_views(cli, filled, query, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    error = fails(cli, "sql", query)
    assert words in error
    assert "\x1b" not in error
    assert error.endswith(
        "views: runs, evaluations, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.timeout(120)
def test_ctrl_c_ends_a_query_that_computes(filled):
    query = "select count(*) from range(100000000000) a, range(1000) b"
    program = "import sys; from bench.cli import main; print('begun', flush=True); main(sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-c", program, "sql", query], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(3)  # it computes
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_loaded_runs_are_data_frames(filled):
    loaded = bench.load(filled)
    assert list(loaded.runs().query("status == 'completed'")["run_id"]) == ["a"]
    assert loaded.curves().groupby("run_id")["loss"].mean().to_dict() == {"a": 0.375, "b": 0.5, "c": 0.5}
    assert {"run_id", "step", "train_s"} <= {*loaded.evaluations().columns}
