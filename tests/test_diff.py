"""bench diff: the differences between two runs."""

import json
from pathlib import Path

import pytest

from tests.stored import WILD, add_block, add_run, begin, record


def strict_json(text: str):
    def refuse(token: str):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


def fails(cli, *words: object) -> str:
    """The one line that the command fails with."""
    answer = cli(*words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("bench: error: ")
    assert answer.err.count("\n") == 1
    return answer.err


def found(cli, *words: object) -> dict:
    answer = cli("diff", *words, "--json")
    assert (answer.code, answer.err) == (0, "")
    return strict_json(answer.out)


def test_equal_runs(cli, store):
    add_run(store, "a", wall_s=1.0)
    add_run(store, "b", wall_s=2.0)
    answer = cli("diff", "a", "b")
    assert answer == (0, "a and b are equal in settings, versions, environment, results and curve\n", "")
    assert found(cli, "a", "b") == {
        "runs": ["a", "b"], "stores": [str(store)] * 2, "settings": {}, "versions": {}, "environment": {},
        "results": {}, "curve": {
            "steps": [3, 3], "shared": 3, "differing": 0, "first_difference": None, "largest": None, "largest_at": None,
        },
        "equal": True,
    }  # fmt: skip


def test_everything_that_differs_is_named(cli, store):
    add_run(store, "a")
    add_run(
        store,
        "b",
        [0.5, 0.5, 0.125, 0.0],
        lr=float("inf"),
        status="diverged",
        final=None,
        metrics={"final": {}},
        versions={"torch": "2.16.0", "suite": "0.1.0", "new": 1},
        environment={"cpu": "abacus", "threads": 2, "gpu": None},
    )
    assert found(cli, "a", "b") == {
        "runs": ["a", "b"],
        "stores": [str(store)] * 2,
        "settings": {"opt.lr": [0.1, "inf"]},
        "versions": {"torch": ["2.15.0", "2.16.0"], "new": [None, 1]},
        "environment": {"threads": [1, 2]},
        "results": {
            "status": ["completed", "diverged"],
            "final": [0.25, None],
            "metrics.final.loss": [0.25, None],
            "steps": [3, 4],
        },
        "curve": {
            "steps": [3, 4],
            "shared": 3,
            "differing": 2,
            "first_difference": 2,
            "largest": 0.5,
            "largest_at": 3,
        },
        "equal": False,
    }
    answer = cli("diff", "a", "b")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "                      a          b",
        "settings",
        "  opt.lr              0.1        inf",
        "versions",
        "  torch               2.15.0     2.16.0",
        "  new                 -          1",
        "environment",
        "  threads             1          2",
        "results",
        "  status              completed  diverged",
        "  final               0.25       -",
        "  metrics.final.loss  0.25       -",
        "  steps               3          4",
        "curve: 3 and 4 steps, 3 of them shared; the loss differs at 2 of them, from step 2 on,"
        " by at most 0.5 of the larger one (step 3)",
    ]


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        ([0.5, None], [0.5, None], "2 and 2 steps, 2 of them shared; no loss differs"),
        ([0.5, 0.5], [0.5], "2 and 1 steps, 1 of them shared; no loss differs"),
        ([0.5], [], "1 and 0 steps, 0 of them shared; no loss differs"),
        ([0.0, 0.5], [0.0, 0.5], "2 and 2 steps, 2 of them shared; no loss differs"),
        ([0.5], [None], "1 and 1 steps, 1 of them shared; the loss differs at 1 of them, from step 1 on"),
        (
            [0.0],
            [-0.5],
            (
                "1 and 1 steps, 1 of them shared; the loss differs at 1 of them, from step 1 on,"
                " by at most 1 of the larger one (step 1)"
            ),
        ),
    ],
)
def test_curves(cli, store, one, other, line):
    add_run(store, "a", one)
    add_run(store, "b", other, engine="lanes")
    assert cli("diff", "a", "b").out.splitlines()[-2:] == [f"curve: {line}", "equal: settings, versions, environment"]


def test_curves_of_other_lengths_are_not_equal(cli, store):
    add_run(store, "a", [0.5, 0.5])
    add_run(store, "b", [0.5], steps=2, thinned=True)
    assert not found(cli, "a", "b")["equal"]
    assert cli("diff", "a", "b").out.splitlines()[-1] == "equal: settings, versions, environment, results"


def test_a_lane_and_a_run_in_progress(cli, store):
    add_block(store, "ab")
    attempt = begin(store, record("r"), [0.5] * 3)
    assert found(cli, "a", "r")["results"] == {"status": ["completed", "running"], "engine": ["lanes", "lightning"]}
    assert found(cli, "a", "r")["curve"]["differing"] == 0
    attempt.drop()


def test_paths_of_folders_and_one_run_in_two_stores(cli, store, tmp_path, monkeypatch):
    add_run(store, "a")
    add_run(tmp_path / "more", "a", final=0.125)
    add_run(tmp_path / "more", "b")
    monkeypatch.chdir(tmp_path)
    one = found(cli, "a", "more/a")
    assert one["results"] == {"final": [0.25, 0.125], "metrics.final.loss": [0.25, 0.125]}
    assert one["stores"] == [str(store), str(tmp_path / "more")]
    assert f"a in {store}  a in {tmp_path / 'more'}" in cli("diff", "a", tmp_path / "more" / "a").out
    assert found(cli, "a", "b", "--store", store, "--store", "more")["equal"]


def test_the_finished_run_of_several_stores_is_taken(cli, store, tmp_path):
    add_run(store, "a", status="failed")
    add_run(tmp_path / "more", "a")
    both = found(cli, "a", store / "a", "--store", store, "--store", tmp_path / "more")
    assert both["results"] == {"status": ["completed", "failed"]}


def test_names_of_any_kind(cli, store):
    add_run(store, "ü漢", task=WILD)
    add_run(store, "b", environment={f"x{WILD}": WILD})
    answer = cli("diff", "ü漢", "b")
    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert "<script>alert(1)</script> [/bold] \"q\" 'a' | ü 漢  [31m" in answer.out
    assert found(cli, "b", "ü漢")["settings"]["task"] == ["synthetic", WILD]


def test_half_a_character_is_damage(cli, store):
    path = add_run(store, "a") / "done/runs.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"part": "\ud800"}))
    add_run(store, "b")
    assert "unknown run" in fails(cli, "diff", "a", "b")


def test_bad_words(cli, store, tmp_path):
    add_run(store, "synthetic-ngd-1")
    assert "unknown run 'synthetic-ngd-2' in" in fails(cli, "diff", "synthetic-ngd-2", "synthetic-ngd-1")
    assert "did you mean 'synthetic-ngd-1'?" in fails(cli, "diff", "synthetic-ngd-1", "synthetic-ngd-2")
    assert "`bench list runs --store DIR` lists the runs of a store" in fails(
        cli, "diff", store / "xyz", "synthetic-ngd-1"
    )
    assert f"there is no store {tmp_path / 'no'}" in fails(cli, "diff", tmp_path / "no" / "a", "synthetic-ngd-1")
    for words in ((), ("synthetic-ngd-1",)):
        assert "bench diff needs RUN" in fails(cli, "diff", *words)
    for word in ("", ".", ".."):
        assert "unknown run" in fails(cli, "diff", word, "synthetic-ngd-1")


@pytest.mark.parametrize("content", [b"{", b'{"run_id": "a", "config": {}}', b'{"run_id": "a", "config": []}'])
def test_damaged_records_are_one_line(cli, store, content):
    add_run(store, "b")
    (add_run(store, "a") / "done/runs.jsonl").write_bytes(content)
    assert "unknown run" in fails(cli, "diff", "a", "b")


def test_damaged_tables_are_one_line(cli, store):
    add_run(store, "b")
    path: Path = add_run(store, "a") / "done/curve.parquet"
    path.write_bytes(b"PAR1")
    assert "cannot read the tables of run a" in fails(cli, "diff", "a", "b")
