"""Studies without training: what is wanted next is a function of the stored runs alone."""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from bench.config.run_config import RunConfig
from bench.errors import UserError
from bench.store.record import RunResult
from bench.store.stores import Stores
from bench.text import CONVERGED
from bench.tuning import study as studies
from bench.tuning import tuned
from bench.tuning.design import TPE_STARTUP, point_key
from bench.tuning.spec import StudySpec, make_spec, trials_of
from bench.tuning.study import Study, StudyResult, results_of
from bench.tuning.suite import Suite
from tests.stored import Store, put

Score = Callable[[float], float | None]


def valley(lr: float) -> float:
    """A score with its optimum at 0.1."""
    return abs(math.log10(lr) + 1)


def slope(lr: float) -> float:
    """A score that improves as the rate decreases."""
    return 10 + math.log10(lr)


def spec(*, seeds: Iterable[int] = (1000, 1001), reports: Iterable[int] = (0, 1), **words: Any) -> StudySpec:
    settings = {"task": "synthetic", "opt": "sgd", "opt.lr": "1e-3:1e1", "trainer.max_steps": "20", "device": "cpu"}
    settings |= {name.replace("__", "."): value for name, value in words.items()}
    sampler = settings.pop("sampler", "grid")
    return make_spec(settings, sampler=sampler, seeds=list(seeds), report_seeds=list(reports), places={})


def study_in(store: Path, trials: int = 9, **words: Any) -> Study:
    return Study(spec(**words), trials, {"store": store})


def ended(config: RunConfig, score: Score = valley, **changes: Any) -> RunResult:
    """The record of a run as if it had been trained."""
    value, metric = score(config.opt_options["lr"]), config.task_spec.metric
    return replace(
        RunResult(**config.record_fields),
        status="completed" if value is not None else "diverged",
        metric=metric,
        split="train",
        final=None if value is None else value + config.seed / 1e6,
        steps=20,
        wall_s=0.5,
        validations=[{"step": step, "train_s": 0.1, metric: value} for step in (10, 20) if value is not None],
        **changes,
    )


def missing(study: Study) -> list[RunConfig]:
    return [config for config in StudyResult(study).todo if Store(study.places["store"]).get(config.run_id) is None]


def rounds(study: Study, score: Score = valley, **changes: Any) -> Iterator[list[RunConfig]]:
    """Store what the study wants, round by round, until it wants nothing."""
    while new := missing(study):
        for config in new:
            put(study.places["store"], ended(config, score, **changes))
        yield new


def finish(study: Study, score: Score = valley, **changes: Any) -> list[RunConfig]:
    return [config for new in rounds(study, score, **changes) for config in new]


def test_a_study_from_first_trials_to_fresh_seeds(tmp_path: Path) -> None:
    study = study_in(tmp_path, 3)
    design, fresh = rounds(study)
    assert [(config.opt_options["lr"], config.seed) for config in design] == [
        (lr, seed) for lr in (0.1, 0.03162, 0.3162) for seed in (1000, 1001)
    ]
    assert [(config.opt_options["lr"], config.seed) for config in fresh] == [(0.1, 0), (0.1, 1)]
    result = StudyResult(study)
    assert (result.best and result.best.point, result.score, result.missing, result.todo) == (
        {"opt.lr": 0.1},
        0.0,
        0,
        [],
    )
    assert tuned.as_json(result)["fresh"]["values"] == [CONVERGED, 1e-6]


@pytest.mark.parametrize("sampler", ["grid", "qmc", "tpe"])
def test_any_order_of_runs_ends_in_the_same_study(tmp_path: Path, sampler: str) -> None:
    whole = study_in(tmp_path / "whole", 12, sampler=sampler, opt__momentum="0.009:0.9")
    wanted = {config.run_id for config in finish(whole, slope)}
    for seed in range(3):
        draw, trained = random.Random(seed), []
        study = study_in(tmp_path / str(seed), 12, sampler=sampler, opt__momentum="0.009:0.9")
        while new := missing(study):
            config = draw.choice(new)
            put(study.places["store"], ended(config, slope))
            trained.append(config.run_id)
        assert len(trained) == len(set(trained))
        assert set(trained) == wanted
        assert tuned.as_json(StudyResult(study)) == tuned.as_json(StudyResult(whole))


def test_tpe_begins_with_the_sequence_and_then_follows_scores(tmp_path: Path) -> None:
    study = study_in(tmp_path, 15, sampler="tpe", seeds=[1000], reports=())
    finish(study)
    points = [trial.point["opt.lr"] for trial in StudyResult(study).trials]
    assert points[:TPE_STARTUP] == [w.point["opt.lr"] for w in spec(sampler="qmc").design.wanted(TPE_STARTUP)]
    assert len(set(points)) == 15
    assert sum(map(valley, points[TPE_STARTUP:])) / 6 < sum(map(valley, points[:TPE_STARTUP])) / TPE_STARTUP
    shorter = study_in(tmp_path, 11, sampler="tpe", seeds=[1000], reports=())
    assert [trial.point["opt.lr"] for trial in StudyResult(shorter).trials] == points[:11]


def test_a_cap_excludes_no_setting(tmp_path: Path) -> None:
    study = study_in(tmp_path, 5, reports=())
    for config in missing(study):
        put(tmp_path, ended(config, cap_share=0.99 if config.opt_options["lr"] == 0.1 else 0.5))
    finish(study)
    best = StudyResult(study).best
    assert best is not None
    assert best.point["opt.lr"] == 0.1


def test_a_failed_run_costs_its_point_the_score(tmp_path: Path) -> None:
    study = study_in(tmp_path, 5)
    broken = {config.run_id: "the card fell out" for config in missing(study) if config.opt_options["lr"] == 0.1}
    study.failed |= broken
    trained = finish(study)
    result = StudyResult(study)
    assert not broken.keys() & {config.run_id for config in trained}
    assert [(trial.point, trial.reason) for trial in result.trials if not trial.runs] == [
        ({"opt.lr": 0.1}, "the card fell out")
    ]
    assert result.best is not None
    assert "failed: opt.lr 0.1: the card fell out" in tuned.result_lines(result)


def test_an_extension_beyond_the_legal_range_fails_alone(tmp_path: Path) -> None:
    study = study_in(tmp_path, 3, reports=(), opt="sngd", opt__lr="0.1", opt__momentum="0.009:0.9")
    while new := missing(study):
        for config in new:
            momentum = config.opt_options["momentum"]
            put(tmp_path, ended(config, lambda _, momentum=momentum: 10 - momentum))
    failed = [trial for trial in StudyResult(study).trials if not trial.runs]
    assert failed
    for trial in failed:
        assert (trial.kind, trial.point["opt.momentum"] >= 1) == ("extension", True)
        assert trial.reason.startswith("--opt.momentum=")


def test_runs_of_several_studies_alternate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = [study_in(tmp_path, 3, reports=(), opt=opt) for opt in ("sgd", "ngd")]
    calls: list[list[RunConfig]] = []

    def execute(configs: list[RunConfig], *_: Any, plan: dict[str, str], **__: Any) -> bool:
        calls.append(configs)
        assert {plan[config.run_id] for config in configs if config.opt == "ngd"} == {f"study {two[1].spec.name}"}
        for config in configs:
            put(tmp_path, ended(config))
        return True

    monkeypatch.setattr(studies, "execute", execute)
    crew: Any = SimpleNamespace()
    assert studies.carry_out(two, crew, progress=False)
    assert [config.opt for config in calls[0]] == ["sgd", "ngd"] * 6


def test_the_record_keeps_the_larger_study(tmp_path: Path) -> None:
    large, small = study_in(tmp_path, 7, reports=()), study_in(tmp_path, 3, reports=())
    finish(large)
    for study in (large, small):
        tuned.remember(StudyResult(study))
    (record,) = Stores([tmp_path]).studies
    assert (len(record.trials), record.best and record.best["score"], record.missing) == (7, 0.0, 0)


def test_optuna_reads_the_journal_and_a_storage(tmp_path: Path) -> None:
    study = study_in(tmp_path, 3, reports=())
    finish(study, slope)
    result = StudyResult(study)
    tuned.remember(result)
    url = f"sqlite:///{tmp_path}/optuna.db"
    for _ in range(2):  # the second time adds nothing
        tuned.mirror(url, result)
    for storage in (JournalStorage(JournalFileBackend(str(tmp_path / "studies" / f"{study.spec.name}.log"))), url):
        loaded = optuna.load_study(study_name=study.spec.name, storage=storage)
        assert [trial.params for trial in loaded.trials] == [trial.point for trial in result.trials]
        assert loaded.best_value == pytest.approx(result.score)
        assert loaded.trials[0].user_attrs["runs"] == [run.run_id for run in result.trials[0].runs]
    larger = study_in(tmp_path, 7, reports=())
    finish(larger, slope)
    tuned.mirror(url, StudyResult(larger))
    tried = {point_key(trial.params) for trial in optuna.load_study(study_name=study.spec.name, storage=url).trials}
    assert tried >= {point_key(trial.point) for trial in StudyResult(larger).trials}
    with pytest.raises(UserError, match="--storage nothing://x: "):
        tuned.mirror("nothing://x", result)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"seeds": [0, 1], "reports": [1]}, "--seeds and --report_seeds share 1"),
        ({"seed": 3}, "--seed 3: a study has several runs"),
    ],
)
def test_impossible_studies_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec(**words)


def test_beside_a_list_of_values_no_search_grows(tmp_path: Path) -> None:
    words = {"title": "lists", "tasks": ["synthetic"], "optimizers": {"gd": {"opt.lr": "0.01,0.1,1"}, "ngd": {}}}
    suite = Suite.model_validate(words | {"tune": {"trials": 3}, "seeds": [0], "settings": {"trainer.max_steps": 20}})
    (studies,) = suite.studies({"store": tmp_path})
    for study in studies:
        for _ in rounds(study):
            pass
    assert [(r.spec.sampler, len(r.trials)) for r in results_of(studies)] == [("grid", 3), ("qmc", 3)]


def test_one_or_two_ranges_are_refined_and_more_are_searched_by_tpe() -> None:
    two = {"opt__momentum": "0.009:0.9"}
    three = two | {"opt__weight_decay": "1e-5:1e-1"}
    samplers = [spec(**more, sampler=None).sampler for more in ({}, two, three, {"opt__lr": "0.1,1"})]
    assert samplers == ["refine", "refine", "tpe", "grid"]


def test_the_default_number_of_trials_is_whole_combinations() -> None:
    assert trials_of(spec().design, None) == 9
    assert trials_of(spec(opt="adam", opt__weight_decay="0,0.1").design, None) == 10
    assert trials_of(spec(opt__lr="0.1,1,10").design, None) == 3
    with pytest.raises(UserError, match="it must be a multiple of 2, since"):
        trials_of(spec(opt="adam", opt__weight_decay="0,0.1").design, 9)
