"""The choice of the optimizers' defaults from the reference studies (`tools/defaults.py`)."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bench
from bench.store.reports import StudyRecord, study_path
from bench.store.stores import Stores
from bench.tuning import suite
from optimizers import OPTIMIZERS
from tasks import TASKS
from tests.entered import make_run
from tools import defaults
from tools.defaults import choice, default, reference_studies


def study(scores: Mapping[float, float | None], mode: str = "max", **more: object) -> StudyRecord:
    trials = [
        {"point": {"opt.lr": lr}, "kind": "design", "state": "complete", "score": score, "runs": []}
        for lr, score in scores.items()
    ]
    record = dict(name="s", task="t", opt="o", seeds=[0], axes=["opt.lr"], mode=mode, sampler="qmc")
    return StudyRecord(**{**record, "trials": trials, "winner": None, "lr_at_boundary": False, **more})


def test_the_choice_is_the_point_least_behind_on_its_worst_task() -> None:
    first = study({0.1: 0.9, 1.0: 0.8, 10.0: 0.1})
    second = study({0.1: 0.2, 1.0: 0.5, 10.0: 0.6})
    assert choice({"a": first}) == {"lr": 0.1}
    assert choice({"a": first, "b": second}) == {"lr": 1.0}
    assert choice({"a": study({0.1: 0.9, 1.0: 0.8}, "min")}) == {"lr": 1.0}
    assert choice({"a": study({10.0: 0.9, 0.1: 0.9, 1.0: 0.9, 0.01: 0.9})}) == {"lr": 0.1}


def test_points_that_leave_a_model_from_scratch_at_chance_do_not_count() -> None:
    found = study({0.1: 0.9, 1.0: 0.8, 10.0: 0.1})
    assert choice({"a": found}, [{"lr": 0.1}]) == {"lr": 1.0}
    assert choice({"a": found}, [{"lr": 0.1}, {"lr": 1.0}, {"lr": 10.0}]) is None
    (((family, opt), points),) = defaults.STUCK.items()
    assert OPTIMIZERS[opt].by_family[family] not in points


def test_points_excluded_by_their_cap_count_only_if_the_choice_does_not_beat_chance() -> None:
    capped = [make_run("sps", 1000, value, words={"opt.max_step": value}, cap_share=0.99) for value in (0.9, 0.6)]
    runs = {run.run_id: run for run in capped}

    def tried(score: float | None) -> StudyRecord:
        record = study({0.1: None, 1.0: None, 10.0: score, 100.0: None})
        for trial, run in zip(record.trials, capped, strict=False):
            trial["runs"] = [run.run_id]
        return record

    assert default({"mnist": tried(0.55)}, runs) == {"lr": 10.0}  # chance is 0.1, and half of the distance 0.5
    assert default({"mnist": tried(0.45)}, runs) == {"lr": 0.1}
    assert default({"mnist": tried(None)}, runs) == {"lr": 0.1}
    assert default({"mnist": tried(None)}, {}) is None


def test_only_complete_studies_of_the_reference_suite_on_all_tasks_of_a_family_count(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = {(spec.task, spec.opt): spec for part in suite.load("vision") for spec in part.specs({})}

    def put(task: str, opt: str, **more: Any) -> None:
        name = specs[task, opt].name
        path = study_path(store, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(study({0.1: 0.9, 1.0: 0.8}, name=name, task=task, opt=opt, **more))))

    for task in ("mnist", "cifar10"):
        put(task, "sgd")
    put("mnist", "adam")
    put("mnist", "sps")
    put("cifar10", "sps", missing=1)
    assert reference_studies(Stores([store]), "vision").keys() == {"sgd"}
    monkeypatch.setattr(defaults, "FOLDER", tmp_path / "defaults")
    monkeypatch.setenv("BENCH_REFERENCE", "")
    assert defaults.main(["--choose"]) == 0
    assert capsys.readouterr().out.startswith("vision sgd: {'lr': 0.1}")
    assert "`lr 0.1`" in (tmp_path / "defaults" / "README.md").read_text()


def test_a_full_run_with_another_seed_counts_and_with_other_settings_does_not(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[list[str]] = []
    monkeypatch.setattr(
        defaults.subprocess, "run", lambda words, **_: trained.append(words) or SimpleNamespace(returncode=1)
    )
    asked = {"task": "synthetic", "opt": "adam", "trainer.max_steps": 3}
    for seed, more in ((1000, {}), (5, {}), (0, {"lr": 0.5}), (1, {"trainer": {"max_steps": 2}})):
        bench.fit("synthetic", "adam", seed=seed, **{"trainer": {"max_steps": 3}, **more})
    runs = Stores([store]).runs
    found = defaults.full_run(asked, runs)
    assert found is not None
    assert (found.config["seed"], found.steps, trained) == (5, 3, [])
    assert defaults.full_run({**asked, "opt.lr": 0.25}, runs) is None
    assert len(trained) == 1


def test_the_suites_defaults_are_those_that_the_shipped_studies_choose() -> None:
    """And values of other settings are those with which the studies were made."""
    stores = Stores([], Path("results/reference/runs"))
    runs = {run.run_id: run for run in stores.runs}
    studies = {
        (opt, TASKS[next(iter(own))].family): own
        for part in defaults.PARTS
        for opt, own in reference_studies(stores, part).items()
    }
    own_values = {(opt, family): v for opt, spec in OPTIMIZERS.own.items() for family, v in spec.by_family.items()}
    assert own_values.keys() - studies.keys() == {("momo", "text")}  # the reference suite does not train it there
    for key in own_values.keys() & studies.keys():
        values = own_values[key]
        chosen = default(studies[key], runs)
        assert chosen is not None
        assert chosen.items() <= values.items()
        others = values.keys() - chosen.keys()
        for study in studies[key].values() if others else []:
            options = runs[study.winner or ""].config["opt_options"]
            assert {name: options[name] for name in others}.items() <= values.items()
