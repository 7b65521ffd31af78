"""`bench reproduce`: experiments as YAML, their runs through the store, what is written, and what is said."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from bench import reproduce
from bench.arms import Arm
from bench.callbacks import Recorder
from bench.checks import check
from bench.claims import judge
from bench.errors import RunBusy
from bench.experiments import experiments, load
from bench.runner import run
from bench.store import CURVE_FIELDS, Store
from tasks import TASKS

TINY: dict[str, Any] = {
    "title": "Two ways downhill",
    "paper": "Nobody (never), figure 1",
    "notes": ["everything is ours"],
    "common": {"task": "synthetic", "trainer.measure_every": 10, "task.recipe": "sphere", "task.n": 6, "task.T": 4, "task.d": 3},
    "seeds": [0, 1],
    "arms": {
        "GD": {"opt": "gd", "opt.lr": 0.5, "trainer.max_steps": 30},
        "NGD": {"opt": "ngd", "opt.lr": 0.1, "trainer.max_steps": 20},
    },
    "figure": {"panels": [{"y": "norm_W", "log": "xy"}, {"y": "loss", "arms": ["GD"]}]},
    "claims": [
        {"name": "grows", "paper": "the norm | grows", "test": "reaches", "measure": "norm_W", "arms": ["NGD"], "above": 0.5},
        {"name": "tiny", "paper": "the norm stays tiny", "test": "reaches", "measure": "norm_W", "arms": ["NGD"], "below": 0.5},
    ],
    "quick": {"seeds": [0], "settings": {"trainer.max_steps": 5}, "arms": {"GD": {"trainer.max_steps": 6}}},
    "search": {"why": "d is open", "grid": {"task.d": [3, 4], "task.T": [4]}, "seeds": [0, 1], "claims": ["grows"]},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the experiments' YAML lies; `nobody/tiny` is there."""
    monkeypatch.setattr("bench.experiments.configs_folder", lambda: tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs" / "papers" / "nobody"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY, sort_keys=False))
    return folder


def rewrite(folder: Path, **changes: Any) -> None:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY | changes, sort_keys=False))


# -- the experiments that come with the suite -------------------------------------------------------------------------


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_names_runs_arms_and_tests_that_exist(name: str) -> None:
    full = load(name)
    versions = [full, full.small(), *(full.at(point) for point in (full.search.points if full.search else []))]
    for experiment in versions:
        for job in reproduce.jobs(experiment, {"device": "cpu"})[: len(experiment.arms)]:
            check(job.config)
    assert len({claim.name for claim in full.claims}) == len(full.claims)
    assert full.search is None or set(full.search.claims or []) <= {claim.name for claim in full.claims}


@pytest.mark.parametrize("name", experiments())
def test_every_claim_can_be_judged_on_its_columns_and_early_is_before_the_end(name: str) -> None:
    experiment = load(name)
    arms = {}
    for label, own in experiment.arms.items():
        settings = experiment.common | own
        steps = np.arange(1.0, settings.get("trainer.max_steps", 300) + 1)
        columns = {*TASKS[settings["task"]].measures.split(", "), *CURVE_FIELDS} - {"step"}
        table = {"step": steps, **dict.fromkeys(columns, 1 / steps)}
        arms[label] = Arm(label, [0, 1, 2], [[table]] * 3, ["completed"] * 3, settings)
    for claim in experiment.claims:
        assert judge(claim.test, arms, **claim.arguments).text
        for arm in arms.values():
            assert claim.arguments.get("at", 0) < arm.tables[0][0]["step"][-1]


def test_the_list_has_all_experiments(cli: Any) -> None:
    lines = cli("reproduce", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(experiments())


def test_a_broken_experiment_does_not_hide_the_others(cli: Any, folder: Path) -> None:
    (folder / "broken.yaml").write_text("title: [")
    lines = cli("reproduce", "--list").out.splitlines()
    assert lines[0].startswith("nobody/broken  (broken: ")
    assert lines[1] == "nobody/tiny    Two ways downhill"


# -- what comes out ---------------------------------------------------------------------------------------------------


def test_an_experiment_writes_figure_data_claims_and_page(cli: Any, folder: Path) -> None:
    answer = cli("reproduce", "nobody/tiny")
    assert answer.code == 0, answer.err
    out = Path("reproduced/nobody/tiny")
    assert {path.name for path in out.iterdir()} == {
        "report.md", "claims.json", "figure.png", "figure.pdf", "measurements.parquet", "curve.parquet",
    }  # fmt: skip
    claims = json.loads((out / "claims.json").read_text())
    assert [(claim["name"], claim["verdict"]) for claim in claims["claims"]] == [("grows", "holds"), ("tiny", "fails")]
    assert claims["claims"][0]["low"] > 0.5
    assert claims["quick"] is False
    assert claims["environments"][0]["cpu"]
    assert claims["versions"][0]["torch"]
    page = (out / "report.md").read_text()
    for text in ("# Two ways downhill", "Nobody (never), figure 1", "![figure](figure.png)", "the norm \\| grows", "**holds**",
                 "**fails**", "everything is ours", "--opt.lr 0.1", "`bench reproduce nobody/tiny`", "torch"):  # fmt: skip
        assert text in page, text
    assert "no evidence" not in page
    assert "holds      grows" in answer.out
    assert str(out) in answer.out


def test_the_data_behind_the_figure_are_tables_of_arms_seeds_and_steps(cli: Any, folder: Path, store: Path) -> None:
    cli("reproduce", "nobody/tiny")
    table = pq.read_table("reproduced/nobody/tiny/measurements.parquet").to_pydict()
    rows = list(zip(table["arm"], table["seed"], table["step"], strict=True))
    assert rows == [
        (arm, seed, step)
        for arm, last in (("GD", 30), ("NGD", 20))
        for seed in (0, 1)
        for step in range(0, last + 1, 10)
    ]
    curve = pq.read_table("reproduced/nobody/tiny/curve.parquet")
    assert curve.num_rows == 2 * (30 + 20)
    assert curve.column("loss").null_count == 0


def test_stored_runs_are_used(cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("reproduce", "nobody/tiny")
    before = Path("reproduced/nobody/tiny/claims.json").read_bytes()
    monkeypatch.setattr("bench.runner.run", lambda *_, **__: pytest.fail("trained again"))
    answer = cli("reproduce", "nobody/tiny")
    assert answer.code == 0, answer.err
    assert "4 of 4 runs are stored" in answer.err
    assert Path("reproduced/nobody/tiny/claims.json").read_bytes() == before


def test_quick_is_smaller_goes_elsewhere_and_says_so(cli: Any, folder: Path, store: Path) -> None:
    answer = cli("reproduce", "nobody/tiny", "--quick")
    assert {(run.config["opt"], run.steps) for run in Store(store).runs()} == {("gd", 6), ("ngd", 5)}
    page = Path("reproduced/nobody/tiny-quick/report.md").read_text()
    assert "no evidence" in page
    assert "no evidence" in answer.out
    assert "bench reproduce nobody/tiny --quick" in page
    claims = json.loads(Path("reproduced/nobody/tiny-quick/claims.json").read_text())
    assert claims["quick"] is True
    assert {claim["verdict"] for claim in claims["claims"]} == {"undecided"}  # one seed decides nothing


def test_settings_and_seeds_from_the_command_line_are_in_every_run_and_on_the_page(
    cli: Any, folder: Path, store: Path
) -> None:
    answer = cli("reproduce", "--trainer.max_steps", "7", "nobody/tiny", "--task.d=4", "--seeds", "3", "--out", "here")
    assert answer.code == 0, answer.err
    runs = list(Store(store).runs())
    assert {(run.steps, run.config["task_options"]["d"]) for run in runs} == {(7, 4)}
    assert sorted(run.config["seed"] for run in runs) == [0, 0, 1, 1, 2, 2]
    page = Path("here/report.md").read_text()
    assert "not the experiment as it is defined" in page
    assert "--seeds 3 --trainer.max_steps 7 --task.d 4" in page


def test_seeds_without_a_solution_are_left_out_and_named(cli: Any, folder: Path) -> None:
    answer = cli("reproduce", "nobody/tiny", "--seeds", "5")  # seed 3 is infeasible
    assert answer.code == 0, answer.err
    assert "seed 3 was left out: att_svm is infeasible" in answer.out
    out = Path("reproduced/nobody/tiny-changed")
    assert json.loads((out / "claims.json").read_text())["seeds_left_out"] == {
        "3": "att_svm is infeasible: no direction meets all constraints"
    }
    assert set(pq.read_table(out / "curve.parquet").column("seed").to_pylist()) == {0, 1, 2, 4}
    assert "Left out: seed 3, where att_svm is infeasible" in (out / "report.md").read_text()


def test_an_experiment_whose_every_instance_is_infeasible_says_so(cli: Any, folder: Path) -> None:
    rewrite(folder, seeds=[3])
    answer = cli("reproduce", "nobody/tiny")
    assert (answer.code, answer.out) == (2, "")
    assert "none of the seeds can be compared with a solution: with seed 3, att_svm is infeasible" in answer.err


def test_a_search_judges_the_claims_at_every_point(cli: Any, folder: Path) -> None:
    answer = cli("reproduce", "nobody/tiny", "--search")
    assert answer.code == 0, answer.err
    claims = json.loads(Path("reproduced/nobody/tiny/claims.json").read_text())
    assert [point["at"] for point in claims["search"]] == [{"task.d": 3, "task.T": 4}, {"task.d": 4, "task.T": 4}]
    assert [point["grows"]["verdict"] for point in claims["search"]] == ["holds", "holds"]
    page = Path("reproduced/nobody/tiny/report.md").read_text()
    assert "## Where the claims hold" in page
    assert "--task.d 4 --task.T 4" in page
    assert "d is open" in page


def test_a_search_takes_settings_and_seeds_of_the_command_line_too(cli: Any, folder: Path, store: Path) -> None:
    answer = cli("reproduce", "nobody/tiny", "--search", "--trainer.max_steps", "7", "--seeds", "3")
    assert answer.code == 0, answer.err
    runs = list(Store(store).runs())
    assert {run.steps for run in runs} == {7}
    assert {run.config["seed"] for run in runs} == {0, 1, 2}
    assert {run.config["task_options"]["d"] for run in runs} == {3, 4}


def test_more_seeds_go_on_after_the_experiments_own() -> None:
    experiment = load("vasudeva2025/mnist")  # its rates were tuned with seed 0
    assert experiment.seeds == [1, 2, 3]
    assert experiment.changed({}, 2).seeds == [1, 2]
    assert experiment.changed({}, 5).seeds == [1, 2, 3, 4, 5]


def test_a_search_may_multiply_an_arms_own_setting(folder: Path) -> None:
    rewrite(folder, search=TINY["search"] | {"grid": {"times.opt.lr": [0.1, 2]}})
    full = load("nobody/tiny")
    assert [full.at(point).arms["GD"]["opt.lr"] for point in full.search.points] == [0.05, 1.0]
    assert full.arms["GD"]["opt.lr"] == 0.5


# -- interruptions ----------------------------------------------------------------------------------------------------


def test_an_interrupted_experiment_stops_and_goes_on_with_the_same_command(
    cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(config: Any, **options: Any) -> Any:
        calls.append(config)
        result = run(config, **options)
        result.status = "killed" if len(calls) == 2 else result.status
        return result

    monkeypatch.setattr("bench.runner.run", interrupted)
    answer = cli("reproduce", "nobody/tiny")
    assert (answer.code, answer.out, len(calls)) == (130, "", 2)
    assert "the same command goes on" in answer.err
    assert not Path("reproduced/nobody/tiny/claims.json").exists()
    assert cli("reproduce", "nobody/tiny").code == 0
    assert len(calls) == 4


def test_a_signal_in_the_last_moment_of_a_run_stops_the_experiment_and_keeps_the_run(
    cli: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Recorder._report

    def late(self: Recorder, *args: Any) -> Any:
        self.stop.note(signal.SIGINT)
        return report(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_report", late)
        answer = cli("reproduce", "nobody/tiny")
    assert (answer.code, answer.out) == (130, "")
    assert "the same command goes on" in answer.err
    (only,) = Store(store).runs()
    assert only.status == "completed"
    assert "1 of 4 runs are stored" in cli("reproduce", "nobody/tiny").err


def test_a_run_that_another_process_trains_is_waited_for(
    cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def busy(config: Any, **options: Any) -> Any:
        tries.append(config.seed)
        if config.opt == "ngd" and tries.count(config.seed) < 4:
            raise RunBusy("being trained")
        return run(config, **options)

    monkeypatch.setattr("bench.runner.run", busy)
    monkeypatch.setattr("bench.reproduce.time.sleep", lambda seconds: None)
    answer = cli("reproduce", "nobody/tiny")
    assert answer.code == 0, answer.err
    assert "waiting for 2 runs that other processes train" in answer.err


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nobody/tny",), "unknown experiment 'nobody/tny'; did you mean 'nobody/tiny'?"),
        ((), "name an experiment: bench reproduce NAME; see `bench reproduce --list`"),
        (("nobody/tiny", "--opt.lrr", "1"), "unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        (("nobody/tiny", "--seeds", "0"), "--seeds 0: it must be at least 1"),
        (("nobody/tiny", "--seed", "3"), "unrecognized arguments: --seed 3"),
        (("nobody/tiny", "--quick", "--search"), "--search has no small version; leave --quick or --search out"),
        (("nobody/tiny", "--trainer.devices", "2", "--device", "cpu"), "GD wants 2 devices a run; "),
        (("nobody/tiny", "--seeds", "two"), "argument --seeds: invalid int value: 'two'"),
        (("nobody/tiny", "--quik"), "unrecognized arguments: --quik"),
        (("nobody/tiny", "--out", "taken"), "cannot write to taken: File exists; choose another with --out DIR"),
        (("nobody/tiny", "--device", "tpu"), "--device 'tpu': "),
    ],
)
def test_bad_requests_are_one_line(cli: Any, folder: Path, words: tuple[str, ...], message: str) -> None:
    Path("taken").touch()
    answer = cli("reproduce", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"bench: error: {message}")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, "tiny.yaml: seeds: "),
        ({"colour": "red"}, "tiny.yaml: colour: "),
        ({"arms": {"GD": {"opt": "gd"}, "NGD": {"opt": "sdg"}}}, "unknown optimizer 'sdg'; did you mean 'sgd'?"),
        ({"claims": [{"name": "x", "paper": "y", "test": "reches", "arms": ["GD"]}]}, "unknown claim test 'reches'"),
        ({"claims": [{"name": "x", "paper": "y", "test": "reaches", "arms": ["DG"], "measure": "loss", "below": 1}]}, "unknown arm 'DG'"),
        ({"claims": [{"name": "x", "paper": "y", "test": "reaches", "arms": ["GD"], "measur": "loss", "below": 1}]}, "claim x: reaches: missing"),
        ({"claims": [{"name": "x", "paper": "y", "test": "reaches", "arms": ["GD"], "measure": "los", "below": 1}], "search": TINY["search"] | {"claims": None}}, "unknown column 'los'; did you mean 'loss'?"),
        ({"claims": [TINY["claims"][0]] * 2}, "two claims are called 'grows'; names must differ"),
        ({"figure": {"panels": [{"y": "norm_V"}]}}, "unknown column 'norm_V'; did you mean 'norm_W'?"),
        ({"quick": TINY["quick"] | {"arms": {"DG": {}}}}, "unknown arm 'DG'; did you mean 'GD'?"),
        ({"search": TINY["search"] | {"claims": ["grow"]}}, "unknown claim 'grow'; did you mean 'grows'?"),
        ({"search": TINY["search"] | {"grid": {"times.opt.momentum": [2]}}}, "times.opt.momentum: the arm GD does not set opt.momentum"),
        ({"search": None}, "nobody/tiny has no open constants to search; leave --search out"),
    ],
)  # fmt: skip
def test_a_faulty_experiment_is_one_line(cli: Any, folder: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(folder, **changes)
    answer = cli("reproduce", "nobody/tiny", *(["--search"] if "search" in changes else []))
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("bench: error: ")
    assert answer.err.count("\n") == 1  # nothing was trained before


def test_a_full_disk_at_the_end_is_one_line_and_costs_no_run(
    cli: Any, folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bench.reproduce.draw", full)
        answer = cli("reproduce", "nobody/tiny")
    assert answer.code == 2
    assert "cannot write to reproduced/nobody/tiny: No space left on device" in answer.err.splitlines()[-1]
    assert len(list(Store(store).runs())) == 4
