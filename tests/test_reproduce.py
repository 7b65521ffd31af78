"""`bench reproduce`: experiments as YAML, their runs in the store, the files and the output."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.config.checks import check
from bench.config.files import tuned_settings
from bench.papers import reproduce
from bench.papers.experiments import Experiment, experiments, load
from bench.papers.reproduction import Version
from bench.papers.verdicts import Finding
from bench.train.runner import run
from tasks import TASKS
from tests.stored import Store

DATA = os.environ.get("BENCH_DATA", "data")
TINY: dict[str, Any] = {
    "title": "Two ways downhill",
    "paper": "Nobody (never), figure 1",
    "notes": ["everything is ours"],
    "common": {"task": "synthetic", "trainer.measure_every": 10, "task.recipe": "sphere", "task.n": 6, "task.T": 4,
               "task.d": 3},
    "seeds": [0, 1],
    "arms": {
        "GD": {"opt": "gd", "opt.lr": 0.5, "trainer.max_steps": 30},
        "NGD": {"opt": "ngd", "opt.lr": 0.1, "trainer.max_steps": 20},
    },
    "figure": {"panels": [{"y": "norm_W", "log": "xy"}, {"y": "loss", "arms": ["GD"]}]},
    "claims": [
        {"name": "grows", "paper": "the norm | grows", "test": "reaches", "measure": "norm_W", "arms": ["NGD"],
         "above": 0.5},
        {"name": "tiny", "paper": "the norm stays tiny", "test": "reaches", "measure": "norm_W", "arms": ["NGD"],
         "below": 0.5},
    ],
    "quick": {"seeds": [0], "settings": {"trainer.max_steps": 5}, "arms": {"GD": {"trainer.max_steps": 6}}},
    "search": {"why": "d is open", "grid": {"task.d": [3, 4], "task.T": [4]}, "seeds": [0, 1], "claims": ["grows"]},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the experiments' YAML, with `nobody/tiny`."""
    monkeypatch.setattr("bench.config.values.configs_folder", lambda: tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs" / "papers" / "nobody"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY, sort_keys=False))
    return folder


def rewrite(folder: Path, **changes: Any) -> None:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY | changes, sort_keys=False))


# -- the experiments that come with the suite -------------------------------------------------------------------------


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("name", experiments())
def test_every_experiment_names_runs_arms_and_tests_that_exist(name: str) -> None:
    full = load(name)
    versions = [full, full.small(), *(there for _, there in full.at_points())]
    for experiment in versions:
        for _, config in reproduce.jobs(experiment, {"device": "cpu"})[: len(experiment.arms)]:
            check(config)
        for claim in experiment.claims:
            for label in {*claim.arms} & {*experiment.arms}:  # a search may leave out the arms of a reading
                steps = (experiment.common | experiment.arms[label]).get("trainer.max_steps", math.inf)
                assert experiment.arguments(claim).get("at", 0) < steps
    assert {label for claim in full.claims for label in claim.arms} <= {*full.arms}
    assert len({claim.name for claim in full.claims}) == len(full.claims)
    assert full.search is None or set(full.search.claims or []) <= {claim.name for claim in full.claims}


def test_a_step_may_be_a_share_of_the_budget(folder: Path) -> None:
    early = {"name": "early", "paper": "", "test": "trend", "measure": "loss", "arms": ["GD", "NGD"],
             "factor": "opt.lr", "direction": "decreases", "at": "0.1 budget"}  # fmt: skip
    rewrite(folder, claims=[early], search=TINY["search"] | {"settings": {"trainer.max_steps": 10}, "claims": None})
    full = load("nobody/tiny")

    def at(version: Experiment) -> int:
        return version.arguments(version.claims[0])["at"]

    assert at(full) == 2  # the shorter of its arms takes 20 steps
    assert at(full.small()) == 1
    assert at(full.changed({"trainer.max_steps": "40.0"})) == 4
    assert [at(there) for _, there in full.at_points()] == [2, 2]


def test_the_list_has_all_experiments(cli: Any) -> None:
    lines = cli("list", "experiments").out.splitlines()
    assert [line.split()[0] for line in lines] == list(experiments())


# -- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_an_experiment_writes_figure_data_claims_and_page(cli: Any, folder: Path) -> None:
    answer = cli("reproduce", "nobody/tiny")
    assert answer.code == 0, answer.err
    out = Path("reproduced/nobody/tiny")
    assert {path.name for path in out.iterdir()} == {"report.md", "claims.json", "figure.png", "figure.pdf"}
    claims = json.loads((out / "claims.json").read_text())
    assert [(claim["name"], claim["verdict"]) for claim in claims["claims"]] == [("grows", "holds"), ("tiny", "fails")]
    assert claims["claims"][0]["low"] > 0.5
    assert claims["quick"] is claims["small_run"] is False
    assert claims["environments"][0]["cpu"]
    assert claims["versions"][0]["torch"]
    page = (out / "report.md").read_text()
    for text in (
        "# Two ways downhill",
        "Nobody (never), figure 1",
        "![figure](figure.png)",
        "Intervals are 95 % each. So a verdict may be undecided although its interval excludes the bound of the claim.",
        "the norm \\| grows",
        "**holds**",
        "**fails**",
        "everything is ours",
        "--opt.lr 0.1",
        "`bench reproduce nobody/tiny`",
        "torch",
    ):
        assert text in page, text
    assert "no evidence" not in page
    assert "\n\n\n" not in page
    assert " 1 threads" not in page
    assert "holds  grows" in answer.out
    assert str(out) in answer.out


def test_stored_runs_are_used(cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("reproduce", "nobody/tiny")
    before = Path("reproduced/nobody/tiny/claims.json").read_bytes()
    monkeypatch.setattr("bench.execute.execute.execute", lambda *_, **__: pytest.fail("trained again"))
    answer = cli("reproduce", "nobody/tiny")
    assert answer.code == 0, answer.err
    assert "all 4 runs are stored" in answer.err
    assert Path("reproduced/nobody/tiny/claims.json").read_bytes() == before


@pytest.mark.deep
def test_quick_is_smaller_goes_elsewhere_and_says_so(cli: Any, folder: Path, store: Path) -> None:
    answer = cli("reproduce", "nobody/tiny", "--quick")
    assert {(run.config["opt"], run.steps) for run in Store(store).runs()} == {("gd", 6), ("ngd", 5)}
    page = Path("reproduced/nobody/tiny-quick/report.md").read_text()
    assert "no evidence" in page
    assert "no evidence" in answer.out
    assert "bench reproduce nobody/tiny --quick" in page
    claims = json.loads(Path("reproduced/nobody/tiny-quick/claims.json").read_text())
    assert claims["quick"] is claims["small_run"] is True
    assert "| **not tested at this scale** |" in page
    assert "not tested at this scale" in answer.out
    assert {claim["verdict"] for claim in claims["claims"]} == {"undecided"}  # one seed decides nothing


@pytest.mark.deep
def test_seeds_without_a_solution_are_left_out_and_named(cli: Any, folder: Path) -> None:
    answer = cli("reproduce", "nobody/tiny", "--seeds", "5")  # seed 3 is infeasible
    assert answer.code == 0, answer.err
    assert "seed 3 was left out: att_svm is infeasible" in answer.out
    out = Path("reproduced/nobody/tiny-changed")
    assert json.loads((out / "claims.json").read_text())["seeds_left_out"] == {
        "3": "att_svm is infeasible: no direction meets all constraints"
    }
    assert "Left out: seed 3, where att_svm is infeasible" in (out / "report.md").read_text()


@pytest.mark.deep
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
    assert "`grows`: holds at 2 of 2 points; holds in the experiment itself." in page


@pytest.mark.deep
def test_a_claim_may_have_several_readings(cli: Any, folder: Path) -> None:
    claim = TINY["claims"][0] | {"readings": {"above": [0.5, 50], "arms": [["NGD"], ["GD", "NGD"]]}}
    del claim["above"], claim["arms"]
    rewrite(folder, claims=[claim], search=None)
    answer = cli("reproduce", "nobody/tiny")
    assert answer.code == 0, answer.err
    assert "decided by our reading  grows: the norm | grows" in answer.out
    out = Path("reproduced/nobody/tiny")
    (results,) = json.loads((out / "claims.json").read_text())["claims"]
    assert (results["said"], results["verdict"]) == ("decided by our reading", "undecided")
    verdicts = {reading: item["verdict"] for reading, item in results["readings"].items()}
    assert verdicts["above 0.5, arms: NGD"] == "holds"
    assert verdicts["above 50, arms: GD, NGD"] == "fails"
    page = (out / "report.md").read_text()
    assert "| **decided by our reading** | grows |" in page
    assert "| **fails** | grows | above 50, arms: GD, NGD |" in page


@pytest.mark.parametrize(
    ("changes", "altered"),
    [
        ({"trainer.compile": "step"}, False),
        ({"trainer.max_seconds": 1000}, False),
        ({"task.n": 5}, True),
        ({"opt.lr": 0.3}, True),
        ({"data_seed": 7}, True),
        ({"trainer.max_steps": 20}, True),
    ],
)
def test_settings_that_change_no_result_make_no_small_run(folder: Path, changes: dict[str, Any], altered: bool) -> None:
    assert Version(changes=changes).alters(load("nobody/tiny")) is altered


def finding(verdict: str, p: float | None) -> Finding:
    return Finding(verdict, 1.0, 0.5, 1.5, "", "text", p)  # pyright: ignore[reportArgumentType]


def test_a_search_has_holms_correction_over_its_points() -> None:
    levels = {"x": (0.01, 0.03, None), "y": (0.01, 0.02, 0.04)}
    points = []
    for i in range(3):
        found = {name: finding("holds" if p[i] else "undecided", p[i]) for name, p in levels.items()}
        points.append(({"task.d": i}, found))
    points.append(({"task.d": 3}, {}))  # an instance without a solution
    verdicts = [{name: f.verdict for name, f in findings.items()} for _, findings in reproduce.over_points(points)]
    unsure = {"x": "undecided", "y": "holds"}
    assert verdicts == [{"x": "holds", "y": "holds"}, unsure, unsure, {}]


def test_a_tuned_arm_ignores_local_tuned_files(folder: Path) -> None:
    arms = {"GD": {"opt": "gd", "tuned": True, "opt.momentum": 0.5}, "NGD": {"opt": "ngd", "opt.lr": 0.1}}
    rewrite(folder, arms=arms, common=TINY["common"] | {"trainer.max_steps": 20})
    local = Path("tuned/synthetic/gd.yaml")
    local.parent.mkdir(parents=True)
    local.write_text("task: synthetic\nopt: {name: gd, lr: 77.0}\n")
    shipped = tuned_settings("synthetic", "gd", shipped=True)
    assert tuned_settings("synthetic", "gd")["opt.lr"] == 77
    assert shipped["opt.lr"] != 77
    experiment = load("nobody/tiny")
    assert experiment.arms == {"GD": shipped | {"opt": "gd", "opt.momentum": 0.5}, "NGD": arms["NGD"]}
    options = [config.opt_options for label, config in reproduce.jobs(experiment, {"device": "cpu"}) if label == "GD"]
    assert {item["lr"] for item in options} == {shipped["opt.lr"]}


def test_a_search_may_multiply_an_arms_own_setting(folder: Path) -> None:
    rewrite(folder, search=TINY["search"] | {"grid": {"times.opt.lr": [0.1, 2]}})
    full = load("nobody/tiny")
    assert [there.arms["GD"]["opt.lr"] for _, there in full.at_points()] == [0.05, 1.0]
    assert full.arms["GD"]["opt.lr"] == 0.5
    arms = {label: settings | {"opt.lr": "5e-1"} for label, settings in TINY["arms"].items()}  # YAML reads 5e-1 as text
    rewrite(folder, arms=arms, search=TINY["search"] | {"grid": {"times.opt.lr": ["1e-1", 2]}})
    full = load("nobody/tiny")
    assert [there.arms["GD"]["opt.lr"] for _, there in full.at_points()] == [0.05, 1.0]


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("name", experiments())
def test_every_experiment_comes_to_a_page(cli: Any, tmp_path: Path, name: str) -> None:
    """Each with `--quick` and few steps, so that a failure names its experiment."""
    answer = cli("reproduce", name, "--quick", "--seeds", "1", "--trainer.max_steps", "4", "--device", "cpu",
                 "--data", DATA, "--out", tmp_path / "out")  # fmt: skip
    if answer.code == 2 and TASKS[load(name).common["task"]].files and "--data" in answer.err:
        pytest.skip(answer.err)  # its data are not here
    assert answer.code == 0, answer.err
    assert {"report.md", "claims.json", "figure.png"} <= {path.name for path in (tmp_path / "out").iterdir()}


# -- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_same_command_resumes_an_interrupted_experiment(
    cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(config: Any, **options: Any) -> Any:
        calls.append(config)
        result = run(config, **options)
        if len(calls) == 2:
            result.status, options["stop"].signal = "killed", signal.SIGINT
        return result

    monkeypatch.setattr("bench.execute.here.run", interrupted)
    answer = cli("reproduce", "nobody/tiny", "--engine", "lightning")
    assert (answer.code, answer.out, len(calls)) == (130, "", 2)
    assert "the same command continues" in answer.err
    assert not Path("reproduced/nobody/tiny/claims.json").exists()
    assert cli("reproduce", "nobody/tiny", "--engine", "lightning").code == 0
    assert len(calls) == 4


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nobody/tny",), "unknown experiment 'nobody/tny'; did you mean 'nobody/tiny'?"),
        ((), "name an experiment: bench reproduce NAME; see `bench list experiments`"),
        (("nobody/tiny", "--opt.lrr", "1"), "arm GD: unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        (("nobody/tiny", "--seeds", "two"), "--seeds two: write how many"),
        (("nobody/tiny", "--seed", "3"), "unknown option '--seed'; did you mean '--seeds'?"),
        (("nobody/tiny", "--quick", "--search"), "--search has no small version; remove --search"),
        (("nobody/tiny", "--out", "taken"), "cannot write to taken: Not a directory; choose another with --out DIR"),
    ],
)
def test_bad_requests_are_one_line(cli: Any, folder: Path, words: tuple[str, ...], message: str) -> None:
    Path("taken").touch()
    answer = cli("reproduce", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"bench: error: {message}")
    assert answer.err.count("\n") == 1


CLAIM = {"name": "x", "paper": "y", "test": "reaches", "arms": ["GD"], "measure": "loss", "below": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 3.5}, "seeds 3.5: write how many (seeds 5), or which"),
        ({"seeds": []}, "seeds : write how many (seeds 5), or which"),
        ({"seeds": 999999999}, "seeds 999999999: 999,999,999 runs; a command makes from 1 to 100,000"),
        ({"colour": "red"}, "tiny.yaml: colour: extra inputs are not permitted"),
        ({"arms": {"GD": {"opt": "gd"}, "NGD": {"opt": "sdg"}}},
         "arm NGD: unknown optimizer 'sdg'; did you mean 'sgd'?"),
        ({"arms": {"LAMB": {"opt": "sps", "tuned": True}}}, "sps is not tuned on synthetic"),
        ({"claims": [{"name": "x", "test": "reaches"}]}, "tiny.yaml: claims: 0: paper: field required"),
        ({"claims": [CLAIM | {"arms": ["DG"]}]}, "unknown arm 'DG'; known: GD, NGD"),
        ({"search": TINY["search"] | {"grid": {"task.d": ["wide"]}}},
         "arm GD: --task.d 'wide': it takes a whole number"),
        ({"search": TINY["search"] | {"grid": {"times.opt.momentum": [2]}}},
         "arm GD: --opt.momentum nan"),
        ({"search": None}, "nobody/tiny has no open constants to search; remove --search"),
    ],
)  # fmt: skip
def test_a_faulty_experiment_is_one_line(cli: Any, folder: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(folder, **({"search": None} | changes))
    answer = cli("reproduce", "nobody/tiny", *(["--search"] if "search" in changes else []))
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("bench: error: ")
    assert answer.err.count("\n") == 1  # nothing was trained before the error


@pytest.mark.deep
@pytest.mark.parametrize(
    "name", ["bhojanapalli2020/theorem1", "deora2024/fig5", "vasudeva2025/fixed-decoder", "vasudeva2025/joint"]
)
def test_shipped_verdicts_on_generated_data_do_not_change(cli: Any, tmp_path: Path, name: str) -> None:
    shipped = json.loads((Path("results") / name / "claims.json").read_text())["claims"]
    answer = cli("reproduce", name, "--device", "cpu", "--store", tmp_path / "runs", "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    again = json.loads((tmp_path / "out" / "claims.json").read_text())["claims"]
    claims = [(claim["name"], claim["test"], claim["verdict"]) for claim in again]
    assert claims == [(claim["name"], claim["test"], claim["verdict"]) for claim in shipped]
