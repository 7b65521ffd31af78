"""Studies without training: guarantees for many processes that take trials from a database."""

import itertools
import math
import multiprocessing
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy import event

from bench.errors import RunFailed, UserError
from bench.machine import this_process
from bench.store.record import RunResult
from bench.text import CONVERGED
from bench.tuning import summary, tuned
from bench.tuning.space import point_key
from bench.tuning.studies import NoDatabase, Studies
from bench.tuning.study import Study
from bench.tuning.study_result import analyse, study_result
from bench.tuning.trials import Request, StudySpec, Trial
from bench.tuning.tune import make_request, make_spec, promise, reporting_seeds, tuning_seeds
from optimizers.plugins import slug
from tasks import TASKS

ELSEWHERE = {"host": "another machine", "space": 0, "pid": 1, "started": "0"}
Score = Callable[[float], float | None]
_claims = itertools.count()

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["bench.tuning.tune", "bench.tuning.studies", "tests.conftest"])


def me() -> dict[str, Any]:
    """A worker in this process, a new one each time."""
    return this_process() | {"claim": next(_claims)}


def valley(lr: float) -> float:
    """A score with its optimum at 0.1."""
    return abs(math.log10(lr) + 1)


def slope(lr: float) -> float:
    """A score that improves as the rate decreases."""
    return 10 + math.log10(lr)


def spec(*, seeds: Iterable[int] = (1000, 1001), reports: Iterable[int] = (0, 1), **words: Any) -> StudySpec:
    settings = {"task": "synthetic", "opt": "sgd", "opt.lr": "1e-3:1e1", "trainer.max_steps": "20", "device": "cpu"}
    settings |= {name.replace("__", "."): value for name, value in words.items()}
    sampler = settings.pop("sampler", None)
    return make_spec(settings, sampler=sampler, seeds=list(seeds), report_seeds=list(reports), places={})


def made(trial: Trial, score: Score, *, metric: str = "loss") -> list[RunResult]:
    """Results as if a trial's runs had been trained."""
    value = score(trial.point["opt.lr"])
    options = {name.removeprefix("opt."): each for name, each in spec().settings.items() if name.startswith("opt.")}
    options |= {name.removeprefix("opt."): setting for name, setting in trial.point.items()}
    config = {"task": "synthetic" if metric == "loss" else "mnist", "opt": "sgd", "opt_options": options}
    config |= {"task_options": {}, "trainer": {}, "data_seed": 0, "precision": "64-true", "device": "cpu"}
    return [
        RunResult(
            run_id=f"{slug(str(trial.point))}-{seed}",
            config=config | {"seed": seed},
            status="completed" if value is not None else "diverged",
            metric=metric,
            split="train",
            final=None if value is None else value + seed / 1e6,
            steps=20,
            wall_s=0.5,
            train_s=0.5,
            validations=[{"step": step, "train_s": 0.1, metric: value} for step in (10, 20) if value is not None],
        )
        for seed in trial.seeds
    ]


def drain(study: Study, score: Score = valley) -> list[Trial]:
    """Do all remaining work, as one worker."""
    done = []
    while (claimed := study.claim(me())) is not None:
        for trial in claimed:
            assert study.complete(trial, made(trial, score))
        done += claimed
    return done


def begin(here: Path, trials: int = 9, *, name: str | None = None, **words: Any) -> Study:
    request = {key: words.pop(key) for key in ("total", "refine", "retries", "report") if key in words}
    study = Studies(here).create(spec(**words), name)
    study.ask(Request(trials=trials, **request))
    return study


def claim_one(study: Study, worker: dict[str, Any] | None = None) -> Trial:
    claimed = study.claim(worker or me())
    assert claimed is not None
    (trial,) = claimed
    return trial


def attempts(study: Study, **wanted: Any) -> list[tuple[str, str | None]]:
    """State and reason of all attempts at the trial of a point."""
    return [(trial.state, trial.reason) for trial in study.trials() if trial.point == wanted["at"].point]


def states(study: Study) -> Counter[tuple[str, str]]:
    return Counter((trial.kind, trial.state) for trial in study.trials())


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A store that does not exist yet."""
    return tmp_path / "here"


# -- processes --------------------------------------------------------------------------------------------------------


def _met(barrier: Barrier, say: Any, work: Callable[[], Any]) -> None:
    try:
        barrier.wait(60)
        answer = work()
    except BaseException as error:
        answer = error
    say.put(answer)
    barrier.wait(60)  # the others would consider a process that has ended dead


def together(*work: Callable[[], Any]) -> list[Any]:
    """Results of these calls, each in a separate process, all at the same moment; the processes have ended."""
    say, barrier = processes.SimpleQueue(), processes.Barrier(len(work))
    children = [processes.Process(target=_met, args=(barrier, say, each)) for each in work]
    for child in children:
        child.start()
    answers = [say.get() for _ in children]
    for child in children:
        child.join()
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def in_a_process(work: Callable[[], Any]) -> Any:
    """The result of the call in a process that has ended."""
    return together(work)[0]


def _create(here: Path) -> tuple[str, int]:
    study = begin(here)
    assert not study.finished()  # which adds the trials
    return study.name, study.studies.id_of(study.name)


def _open(here: Path, name: str) -> Study:
    return Studies(here).open(name)


def _claim(here: Path, name: str) -> Trial:
    return claim_one(_open(here, name))


def _claim_all(here: Path, name: str) -> list[int]:
    study = _open(here, name)

    def claim() -> list[int]:
        numbers = []
        while claimed := study.claim(me()):
            numbers += [trial.number for trial in claimed]
        return numbers

    with ThreadPoolExecutor(2) as threads:
        return [number for part in threads.map(lambda _: claim(), range(2)) for number in part]


def _look(here: Path, name: str) -> int:
    study = _open(here, name)
    for _ in range(3):
        study.finished()
    return len(study.trials())


def _drain(here: Path, name: str) -> list[tuple[bool, int]]:
    return [(trial.fresh, trial.number) for trial in drain(_open(here, name))]


def _die_with_the_lock(here: Path, name: str) -> None:
    with _open(here, name).studies.lock():
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.deep
def test_processes_that_create_a_study_in_an_empty_database_at_once_make_one(here: Path) -> None:
    answers = together(*[partial(_create, here)] * 8)
    assert len(set(answers)) == 1
    studies = Studies(here)
    assert studies.names() == [spec().name]
    trials = studies.open(spec().name).trials()
    assert [(trial.kind, trial.state) for trial in trials] == [("design", "waiting")] * 9
    assert len({trial.key for trial in trials}) == 9


@pytest.mark.deep
def test_each_trial_is_claimed_by_one(here: Path) -> None:
    study = begin(here, 30)
    claimed = together(*[partial(_claim_all, here, study.name)] * 4)
    assert sorted(number for part in claimed for number in part) == list(range(30))
    assert len({trial.key for trial in study.trials()}) == 30
    assert states(study) == {("design", "running"): 30}


@pytest.mark.deep
def test_many_processes_finish_a_study_together_and_complete_each_trial_once(here: Path) -> None:
    study = begin(here, 12)
    done = together(*[partial(_drain, here, study.name)] * 3)
    assert sorted(each for part in done for each in part) == [(False, n) for n in range(12)] + [(True, 0), (True, 1)]
    assert states(study) == {("design", "completed"): 12, ("fresh", "completed"): 2}
    assert study.finished()


@pytest.mark.deep
def test_the_lock_goes_with_its_process(here: Path) -> None:
    study = begin(here)
    child = processes.Process(target=_die_with_the_lock, args=(here, study.name))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert claim_one(study).number == 0


@pytest.mark.deep
def test_a_worker_of_this_machine_that_has_ended_is_noticed_at_once(here: Path) -> None:
    study = begin(here, retries=1)
    lost = in_a_process(partial(_claim, here, study.name))
    assert attempts(study, at=lost) == [("running", None)]
    claimed = {claim_one(study).number for _ in range(9)}
    assert claimed == {*range(1, 10)}
    assert attempts(study, at=lost) == [("failed", "its worker died"), ("running", None)]


def test_a_worker_on_another_machine_counts_as_dead(here: Path) -> None:
    study = begin(here, 3)
    lost = claim_one(study, ELSEWHERE)
    assert not study.finished()
    assert attempts(study, at=lost) == [("failed", "its worker died"), ("waiting", None)]
    assert not study.complete(lost, made(lost, valley))


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("late", ["complete", "fail", "give_back"])
def test_a_worker_that_was_taken_for_dead_comes_too_late(here: Path, late: str) -> None:
    study = begin(here, 1, report=False)
    lost = in_a_process(partial(_claim, here, study.name))
    again = claim_one(study)
    assert again.point == lost.point
    words = {"complete": ([],), "fail": ("broke",), "give_back": ("stopped",)}
    assert getattr(study, late)(lost, *words[late]) is False
    assert study.complete(again, made(again, valley))
    assert getattr(study, late)(lost, *words[late]) is False
    assert getattr(study, late)(again, *words[late]) is False
    assert attempts(study, at=lost) == [("failed", "its worker died"), ("completed", None)]
    assert study.finished()


# -- the states of a trial --------------------------------------------------------------------------------------------


def test_a_study_from_its_first_trial_to_the_winner_on_fresh_seeds(here: Path) -> None:
    study = begin(here, 3)
    assert not study.finished()
    first = claim_one(study)
    assert (first.number, first.state, first.kind, first.seeds) == (0, "running", "design", [1000, 1001])
    assert first.point == {"opt.lr": 0.1}
    others = [claim_one(study) for _ in range(2)]
    assert study.claim(me()) == []  # they still work
    for trial in (first, *others):
        assert study.complete(trial, made(trial, valley))
    fresh = [claim_one(study) for _ in range(2)]
    assert [(trial.point, trial.seeds, trial.kind, trial.fresh) for trial in fresh] == [
        ({"opt.lr": 0.1}, [seed], "fresh", True) for seed in (0, 1)
    ]
    assert not study.finished()
    for trial in fresh:
        assert study.complete(trial, made(trial, valley))
    assert study.claim(me()) is None
    found = study_result(study)
    assert (found.best and found.best.point, found.score, found.missing) == ({"opt.lr": 0.1}, 0.0, 0)
    assert found.fresh_values == [CONVERGED, 1e-6]
    assert [run.config["seed"] for run in found.fresh] == [0, 1]
    assert found.cost == {
        "trial_seconds": 3.0,
        "trial_gradient_evaluations": 120,
        "fresh_seconds": 1.0,
        "fresh_gradient_evaluations": 40,
    }
    stored = study.trials()[0]
    assert [run.validations for run in stored.runs] == [
        [{"step": 20, "train_s": 0.1, "loss": 0.0}]
    ] * 2  # the last alone


def test_a_setting_whose_cap_sets_the_steps_is_never_the_winner_and_counted(here: Path) -> None:
    study = begin(here, 5, report=False)
    while claimed := study.claim(me()):
        for trial in claimed:
            capped = 0.99 if trial.point["opt.lr"] == 0.1 else 0.5  # it would be the best
            assert study.complete(trial, [replace(run, cap_share=capped) for run in made(trial, valley)])
    found = study_result(study)
    assert found.best is not None
    assert found.best.point["opt.lr"] in (0.03162, 0.3162)
    assert found.scores[point_key({"opt.lr": 0.1})] is None
    (note,) = [line for line in summary.lines(found) if "excluded from the choice" in line]
    assert "1 setting excluded from the choice (cap): the cap set more than 90% of the steps" in note
    assert analyse(found).curves[0].points[analyse(found).curves[0].best or 0].x in (0.03162, 0.3162)


def test_if_every_cap_binds_there_is_no_winner_and_the_grid_does_not_go_down(here: Path) -> None:
    study = begin(here, 5)
    while claimed := study.claim(me()):
        for trial in claimed:
            assert study.complete(trial, [replace(run, cap_share=1.0) for run in made(trial, valley)])
    found = study_result(study)
    assert (found.best, len(found.scored), found.missing) == (None, 5, 0)
    assert tuned._tried(found.scored[0], None) == "not chosen, cap bound on 100% of the steps"


@pytest.mark.deep
def test_a_trial_that_comes_to_nothing_is_tried_again_and_then_failed(here: Path) -> None:
    study = begin(here, 3, retries=2)
    lost: list[Trial] = []
    while (claimed := study.claim(me())) is not None:
        for trial in claimed:
            if trial.point["opt.lr"] == 0.1:
                assert study.fail(trial, f"out of luck {len(lost)}")
                lost.append(trial)
            else:
                assert study.complete(trial, made(trial, valley))
    assert attempts(study, at=lost[0]) == [("failed", f"out of luck {i}") for i in range(3)]
    assert study.finished()
    found = study_result(study)
    assert found.best is not None
    assert found.best.point != lost[0].point
    assert [trial.state for trial in found.scored].count("failed") == 1
    assert "note     opt.lr 0.1 failed: out of luck 2" in summary.lines(found)
    # With more retries it gets exactly one more attempt.
    study.ask(study.request.model_copy(update={"retries": 3}))
    (again,) = drain(study)[:1]
    assert again.point == lost[0].point
    assert [state for state, _ in attempts(study, at=lost[0])][:4] == ["failed"] * 3 + ["completed"]


def test_a_study_with_only_failed_trials_ends_without_a_winner(here: Path) -> None:
    study = begin(here, 1, retries=0)
    assert study.fail(claim_one(study), "no")
    assert study.claim(me()) is None
    found = study_result(study)
    assert (found.best, found.score, found.fresh, found.missing) == (None, None, [], 0)
    assert summary.as_json(found)["tried"] == [
        {"point": {"opt.lr": 0.1}, "kind": "design", "state": "failed", "score": None, "cap_share": None}
    ]
    with pytest.raises(UserError, match="no trial has a score, so there is nothing to write"):
        tuned.tuned_yaml(found)


def test_a_trial_that_is_given_back_waits_as_if_nobody_had_taken_it(here: Path) -> None:
    study = begin(here, 2, retries=0)
    for _ in range(3):
        trial = claim_one(study)
        assert trial.number == 0
        assert study.give_back(trial, "stopped by SIGTERM")
        assert attempts(study, at=trial) == [("waiting", "stopped by SIGTERM")]
    drain(study)
    assert states(study)["design", "completed"] == 2


def test_completed_trials_have_no_reason_of_an_earlier_attempt(here: Path) -> None:
    study = begin(here, 1)
    assert study.give_back(claim_one(study), "stopped by SIGTERM")
    trial = claim_one(study)
    assert attempts(study, at=trial) == [("running", None)]
    assert study.complete(trial, made(trial, valley))
    assert attempts(study, at=trial)[0] == ("completed", None)


@pytest.mark.parametrize(("task", "worst"), [("synthetic", math.inf), ("mnist", -math.inf)])
def test_a_trial_whose_runs_diverge_is_worst(here: Path, task: str, worst: float) -> None:
    study = begin(here, 3, task=task)

    def score(lr: float) -> float | None:
        return None if lr > 0.2 else 0.5

    metric = {math.inf: "loss", -math.inf: "accuracy"}[worst]
    while (claimed := study.claim(me())) is not None:
        for trial in claimed:
            assert study.complete(trial, made(trial, score, metric=metric))
    found = study_result(study)
    assert found.scores['{"opt.lr": 0.3162}'] is None
    assert found.best is not None
    assert found.best.point["opt.lr"] < 0.2
    shown = optuna.load_study(study_name=study.name, storage=study.studies.rdb)
    assert [trial.value for trial in shown.trials if trial.params["opt.lr"] > 0.2] == [worst]


def test_a_worker_may_take_its_share_of_the_open_trials(here: Path) -> None:
    study = begin(here, 9)
    first = study.claim(me(), 2)
    assert first is not None
    assert [trial.number for trial in first] == [0, 1, 2, 3, 4]
    second = study.claim(me(), 2)
    assert second is not None
    assert [trial.number for trial in second] == [5, 6, 7, 8]
    assert study.claim(me(), 2) == []


@pytest.mark.deep
def test_next_trials_are_added_once_by_any_process(here: Path) -> None:
    study = begin(here, 4, refine=3)

    def settle(score: Score, count: int) -> None:
        """Complete the existing trials."""
        for _ in range(count):
            trial = claim_one(study)
            assert study.complete(trial, made(trial, score))

    def looked_at() -> Counter[tuple[str, str]]:
        counts = together(*[partial(_look, here, study.name)] * 2)
        assert len({len(study.trials()), *counts}) == 1
        return Counter({key: n for key, n in states(study).items() if key[1] != "completed"})

    def steep(lr: float) -> float:
        return abs(math.log10(lr) + 2)

    assert looked_at() == {("design", "waiting"): 4}
    settle(steep, 4)  # the best is the smallest, 0.01: extend by one decade
    assert looked_at() == {("extension", "waiting"): 2}
    settle(steep, 2)
    assert looked_at() == {("refinement", "waiting"): 2}
    settle(steep, 2)
    assert looked_at() == {("refinement", "waiting"): 1}
    settle(steep, 1)
    assert looked_at() == {("fresh", "waiting"): 2}
    settle(steep, 2)
    assert looked_at() == {}
    assert study.finished()
    before = len(study.trials())
    study.ask(Request(trials=4, total=8, refine=3))
    assert looked_at() == {("top-up", "waiting"): 2}
    assert len(study.trials()) == before + 2
    settle(steep, 2)
    assert looked_at() == {}
    refined = [trial for trial in study.trials() if trial.kind == "refinement"]
    assert len({trial.key for trial in refined}) == 3
    assert all(0.01 / 3.2 < trial.point["opt.lr"] < 0.01 * 3.2 for trial in refined)
    assert all(trial.state == "completed" for trial in study.trials())


@pytest.mark.deep
def test_a_study_can_be_asked_for_more_and_never_for_less(here: Path) -> None:
    study = begin(here, 5)
    drain(study)
    assert study.ask(Request(trials=3)).trials == 5
    assert study.finished()
    assert study.ask(Request(trials=9, retries=7)).trials == 9
    done = drain(study)
    assert [trial.kind for trial in done].count("design") == 4
    assert len({trial.key for trial in study.trials(fresh=False)}) == 9
    assert _open(here, study.name).request == Request(trials=9, retries=7)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(trials=0), "--trials 0: at least one setting is needed"),
        (Request(trials=5000), "--trials 5000: a grid has at most 500 points here"),
    ],
)
def test_illegal_requests_are_refused(here: Path, request_: Request, words: str) -> None:
    study = Studies(here).create(spec())
    with pytest.raises(UserError, match=words):
        study.ask(request_)
    assert study.request == Request()


@pytest.mark.deep
def test_a_new_winner_has_fresh_seeds_of_its_own(here: Path) -> None:
    study = begin(here, 3)
    drain(study, lambda lr: abs(math.log10(lr) + 1) % 1.5)  # the best of 3 is 0.1; of 9, 0.1 and others
    first = study_result(study)
    study.ask(Request(trials=9))
    drain(study, lambda lr: valley(lr) if 0.01 < lr < 1 else -1 - lr % 0.003)
    found = study_result(study)
    assert first.best is not None
    assert found.best is not None
    assert first.best.point != found.best.point
    assert len(found.fresh) == 2
    assert [run.config["opt_options"]["lr"] for run in found.fresh] == [found.best.point["opt.lr"]] * 2
    assert states(study)["fresh", "completed"] == 4


def test_trials_that_somebody_added_with_another_tool_are_none_of_ours(here: Path) -> None:
    study = begin(here, 3)
    shown = optuna.load_study(study_name=study.name, storage=study.studies.rdb)
    shown.enqueue_trial({"opt.lr": 0.5})
    drain(study)
    assert {trial.point["opt.lr"] for trial in study.trials()} == {0.03162, 0.1, 0.3162}
    assert study_result(study).missing == 0


# -- budgets ----------------------------------------------------------------------------------------------------------


def test_a_study_that_has_just_begun_has_found_nothing(here: Path) -> None:
    study = begin(here, 3)
    found = study_result(study)
    assert (found.best, found.score, found.missing, found.runs) == (None, None, 3, [])
    assert "best     none: no trial has a score" in summary.lines(found)


# -- names and settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        ({"task": "mha_dm1"}, 'task: "synthetic" there, "mha_dm1" now'),
        ({"opt__lr": "1e-4:1e1"}, r"space: .*0\.001.* there, .*0\.0001.* now"),
        ({"opt__lr": "0.1,1"}, r"space: .* there, .*0\.1, 1.* now"),
        ({"trainer__max_steps": "40"}, "trainer.max_steps: 20 there, 40 now"),
        ({"opt__momentum": "0.9"}, r"opt.momentum: 0(\.0)? there, 0.9 now"),
        ({"opt": "ngd"}, 'opt: "sgd" there, "ngd" now'),
        ({"seeds": [5, 6]}, r"seeds: \[1000, 1001\] there, \[5, 6\] now"),
        ({"reports": [7]}, r"report_seeds: \[0, 1\] there, \[7\] now"),
        ({"sampler": "qmc"}, 'sampler: "grid" there, "qmc" now'),
    ],
)
def test_a_study_of_something_else_under_the_same_name_is_refused_with_the_difference(
    here: Path, words: dict[str, Any], difference: str
) -> None:
    studies = Studies(here)
    studies.create(spec(), "mine")
    with pytest.raises(UserError, match=difference) as refused:
        studies.create(spec(**words), "mine")
    message = str(refused.value)
    assert message.startswith(f"--name mine: {here}/studies.db has a study of this name with other settings (")
    assert message.endswith("choose another --name, or the same settings")
    assert "\n" not in message
    assert studies.open("mine").spec == spec()


def test_another_version_of_a_task_is_another_study(here: Path) -> None:
    studies, old = Studies(here), spec()
    studies.create(old, "mine")
    new = old.model_copy(update={"versions": {**old.versions, "task": 99}})
    assert new.name != old.name
    with pytest.raises(UserError, match=r'versions: .*"task": 2.* there, .*"task": 99.* now'):
        studies.create(new, "mine")


def test_nobody_trains_for_a_study_of_another_version(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = begin(here)
    study.refuse_other_versions()
    monkeypatch.setitem(TASKS, "synthetic", replace(TASKS["synthetic"], version=99))
    with pytest.raises(UserError, match=r"began with versions .*'task': 2.*, and here are .*'task': 99"):
        study.refuse_other_versions()


def test_studies_are_found_by_name(here: Path) -> None:
    studies = Studies(here)
    assert studies.names() == []
    optuna.create_study(storage=studies.rdb, study_name="somebody-else")
    names = [studies.create(spec()).name, studies.create(spec(), "mine").name, studies.create(spec(opt="ngd")).name]
    assert names[0].startswith("synthetic-sgd-")
    assert names[2].startswith("synthetic-ngd-")
    assert studies.names() == sorted(names)
    assert studies.create(spec()).name == names[0]
    assert Studies(here).open("mine").spec == spec()
    for name in ("mime", "mine (fresh seeds)", "somebody-else"):
        with pytest.raises(UserError, match=r"unknown study '.+' in "):
            studies.open(name)
    with pytest.raises(UserError, match=r"did you mean 'mine'\?"):
        studies.open("mime")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine (fresh seeds)", "a name may contain only letters, digits, dots, - and _"),
        ("two words", "a name may contain only letters, digits, dots, - and _"),
        ("somebody-else", "has something else with this name; choose another"),
    ],
)
def test_the_name_of_a_foreign_study_is_not_taken(here: Path, name: str, message: str) -> None:
    studies = Studies(here)
    studies.create(spec(), "mine")
    optuna.create_study(storage=studies.rdb, study_name="somebody-else")
    with pytest.raises(UserError, match=f"--name {re.escape(name)}: .*{message}"):
        studies.create(spec(), name)
    assert studies.names() == ["mine"]


@pytest.mark.deep
def test_a_study_whose_maker_died_on_the_way_is_made_anew(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies = Studies(here)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(studies.rdb), "set_study_user_attr", die)
        with pytest.raises(KeyboardInterrupt):
            studies.create(spec(), "mine")
    assert studies.names() == []
    study = studies.create(spec(), "mine")
    study.ask(Request(trials=3))
    assert len(drain(study)) == 5


def test_optuna_sees_an_ordinary_study(here: Path) -> None:
    study = begin(here, 5)
    drain(study)
    shown = optuna.load_study(study_name=study.name, storage=study.studies.rdb)
    assert shown.best_params == {"opt.lr": 0.1}
    assert shown.direction.name == "MINIMIZE"
    assert sorted(trial.params["opt.lr"] for trial in shown.trials) == [0.01, 0.03162, 0.1, 0.3162, 1.0]


# -- the database -----------------------------------------------------------------------------------------------------


def refused(here: Path, code: int = 2) -> str:
    with pytest.raises(UserError) as error:
        Studies(here)
    assert error.value.exit_code == code
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("--store")
    return message


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", Path("/proc/self")):  # even root cannot write there
        message = refused(place)
        assert message.endswith(f"; do we have write access to {place}? If not, choose another --store")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "studies.db").write_text("It was a dark and stormy night. " * 100)
    message = refused(tmp_path)
    assert "file is not a database" in message
    assert message.endswith("move it away, and the same command creates another with the finished runs of the store")
    assert (tmp_path / "studies.db").read_text().startswith("It was")


def test_a_full_disk_under_the_database_is_said_at_once_and_the_study_goes_on_with_room(here: Path) -> None:
    study = begin(here, 3)
    trial = claim_one(study)

    def no_more_pages(connection: Any, *_: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite raises it to the current number of pages

    event.listen(study.studies.rdb.engine, "connect", no_more_pages)
    study.studies.rdb.engine.dispose()
    runs = made(trial, valley)
    runs[0].facts["much"] = "x" * 100_000
    with pytest.raises(RunFailed) as full:
        study.complete(trial, runs)
    assert str(full.value) == (
        f"the disk is full: --store {here}: database or disk is full; free some space, then repeat the command"
    )
    assert full.value.exit_code == 1
    event.remove(study.studies.rdb.engine, "connect", no_more_pages)
    study.studies.rdb.engine.dispose()
    assert attempts(study, at=trial) == [("running", None)]
    assert study.complete(trial, runs)
    drain(study)
    assert study_result(study).missing == 0


@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_is_deleted_while_it_is_in_use_is_missed(here: Path, *, replaced: bool) -> None:
    study = begin(here, 3)
    trial = claim_one(study)
    (here / "studies.db").unlink()
    if replaced:
        begin(here, 3)
    for change in (lambda: study.complete(trial, made(trial, valley)), lambda: study.claim(me()), study.finished):
        with pytest.raises(
            RunFailed, match=r"studies\.db was deleted or replaced while it was in use; finished runs are in the"
        ):
            change()
    assert (here / "studies.db").exists() == replaced


def test_looking_for_a_database_makes_none(tmp_path: Path) -> None:
    with pytest.raises(NoDatabase, match=r"unknown study in .*/here/studies.db: there is no such file; `bench tune`"):
        Studies(tmp_path / "here", make=False)
    assert list(tmp_path.iterdir()) == []


def test_a_study_of_another_suite_is_named(here: Path) -> None:
    study = begin(here, 3)
    number = study.studies.id_of(study.name)
    study.studies.rdb.set_study_user_attr(number, "bench", study.spec.model_dump(mode="json") | {"new": 1})
    with pytest.raises(UserError, match=r"was made by another version of this suite \(.*\); use that version, or"):
        study.studies.open(study.name)


def test_a_study_without_requested_trials_is_listed_and_says_how_to_start_it(here: Path, cli: Any) -> None:
    study = Studies(here).create(spec(), "mine")
    with pytest.raises(UserError, match="study mine exists but has no requested trials; the same"):
        study_result(study)
    listed = cli("list", "studies", "--store", here)
    assert (listed.code, listed.err) == (0, "")
    assert " ".join(listed.out.split()) == "mine no requested trials the same `bench tune` command starts it"


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_grid_says_how_far_it_goes_and_a_winner_that_lies_beyond_the_range(here: Path) -> None:
    study = begin(here, 5, opt__lr="0.01:1", report=False)
    assert promise(study.spec, 5) == (
        "5 trials of 2 seeds, opt.lr 0.01 to 1, half decades around the middle of 0.01:1;"
        " up to 8 more beyond an edge, while the best point is there"
    )
    assert promise(spec(opt__lr="0.01,1", seeds=[5]), 2) == "2 trials of 1 seed"
    drain(study, slope)
    found = summary.lines(study_result(study))
    assert f"study    {study.name}: 13 trials of 2 seeds (8 by extension)" in found
    assert "note     opt.lr 1e-06 is outside of 0.01:1; the grid is centred on that range" in found


# -- what tuning requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"task": ""}, "--task is missing"),
        ({"task": "nmist"}, "unknown task 'nmist'; did you mean 'mnist'"),
        ({"opt": "sgdd"}, "unknown optimizer 'sgdd'; did you mean 'sgd'"),
        ({"opt__lrr": "1"}, "unknown option '--opt.lrr'; did you mean '--opt.lr'"),
        ({"trainer__max_stepz": "1"}, "unknown option '--trainer.max_stepz'"),
        ({"seed": "3"}, "--seed 3: trials have several; write --seeds 3,..."),
        ({"logger": "csv"}, "--logger: trials have none"),
        (
            {"seeds": [0, 5], "reports": [5, 6]},
            "--seeds and --report_seeds share 5: the seeds that choose a winner give optimistic scores",
        ),
        ({"opt__lr": "1:0.1"}, "--opt.lr 1:0.1: a range is LOW:HIGH with 0 < LOW < HIGH"),
        ({"opt__lr": "1:1"}, "--opt.lr 1:1: a range is LOW:HIGH with 0 < LOW < HIGH"),
        ({"opt__lr": "0:1"}, "--opt.lr 0:1: a range is LOW:HIGH with 0 < LOW < HIGH"),
        ({"opt__lr": "0.1"}, "is left to tune"),
        ({"opt__lr": "1e-400:1"}, "0 < LOW < HIGH, both between 1e-100 and 1e100"),
        ({"opt__lr": "1:1e400"}, "0 < LOW < HIGH, both between 1e-100 and 1e100"),
    ],
)
def test_impossible_studies_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        spec(**words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_default_request() -> None:
    assert make_request(spec().design, None) == Request(trials=9)
    assert make_request(spec(opt__lr="0.1,1").design, None) == Request(trials=2)
    assert make_request(spec(opt__momentum="0,0.9").design, None) == Request(trials=10)
    assert make_request(spec(opt__weight_decay="1e-3:1e-1").design, None) == Request(trials=9)
    assert make_request(spec(sampler="qmc").design, None) == Request(trials=9)
    assert make_request(spec().design, 12, tpe=True) == Request(trials=9, refine=3)
    for trials in (None, 9, 3):
        with pytest.raises(UserError, match="--sampler tpe refines a design of 9 trials: write --trials 12 for three"):
            make_request(spec().design, trials, tpe=True)
    with pytest.raises(UserError, match="--retries -1: it must be at least 0"):
        make_request(spec().design, None, retries=-1)


def test_seeds_are_how_many_or_which() -> None:
    assert (tuning_seeds("2"), tuning_seeds("7,5"), reporting_seeds("2")) == ([1000, 1001], [7, 5], [0, 1])
    with pytest.raises(UserError, match="--seeds 1,2,1: 1 is given twice; give each once"):
        tuning_seeds("1,2,1")
    with pytest.raises(UserError, match="--report_seeds x: write how many"):
        reporting_seeds("x")


def test_fresh_seeds_are_those_of_the_winner_that_is_reported(here: Path) -> None:
    """A larger design has another centre, so points that an extension tried before are no longer part of it."""
    scores = {0.001: 1.6, 0.01: 1.9, 0.003162: 2.4, 0.03162: 3.1}
    study = begin(here, 3, opt__lr="1e-4:10")
    drain(study, lambda lr: scores.get(lr, 5.0))
    study.ask(Request(trials=5))
    drain(study, lambda lr: scores.get(lr, 5.0))
    found = study_result(study)
    assert found.best is not None
    assert {run.config["opt_options"]["lr"] for run in found.fresh} == {found.best.point["opt.lr"]}
    assert len(found.fresh) == len(study.spec.report_seeds)


def test_refinements_are_counted_from_the_design_of_the_study() -> None:
    design = spec().design
    assert make_request(design, 12, tpe=True).refine == 3
    with pytest.raises(UserError, match="refines a design of 9 trials: write --trials 12"):
        make_request(design, None, tpe=True)


def test_a_failed_trial_is_shown_and_counts_for_the_edge(here: Path) -> None:
    study = begin(here, 3, opt__lr="0.1,1,10", retries=0, report=False)
    while (claimed := study.claim(me())) is not None:
        for trial in claimed:
            if trial.point["opt.lr"] == 10:
                study.fail(trial, "out of range")
            else:
                assert study.complete(trial, made(trial, lambda lr: 1 / lr))
    (curve,) = analyse(study_result(study)).curves
    assert curve.points[-1].x == 1
    assert (curve.unscored, curve.at_edge) == ({10: "failed"}, False)
