"""The conformance checks for tasks find each fault and no other, and pass the suite's tasks."""

import json

import pytest

from bench.check.catalogue import SERIOUS, catalogue
from bench.check.report import Report
from bench.check.run import reports as reports_of
from bench.check.run import request_of_task
from bench.cli import dispatch
from bench.errors import UserError
from tests import tiny
from tests.mutant_tasks import FAULTS, REFUSED

pytestmark = pytest.mark.numeric

TASKS = catalogue("task")


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """The reports of all tasks, in one process."""
    names = [f"tests.mutant_tasks:{name}" for name in FAULTS]
    requests = [*map(request_of_task, names), request_of_task("synthetic", options={"T": "4"})]
    return dict(zip([*FAULTS, "synthetic"], reports_of(requests), strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_checks_and_no_others(name: str, reports: dict[str, Report]) -> None:
    assert set(reports[name].failed) == FAULTS[name], "\n" + reports[name].text()


def test_every_check_has_a_mutant_and_a_severity() -> None:
    assert set().union(*FAULTS.values()) == TASKS.keys()
    assert all(check.group in SERIOUS and check.advice for check in TASKS.values())


def test_a_task_of_the_suite_passes_all(reports: dict[str, Report]) -> None:
    assert {verdict.verdict for verdict in reports["synthetic"].verdicts} == {"pass"}
    assert reports["synthetic"].options == {"T": "4"}


@pytest.mark.parametrize(
    ("name", "check", "note"),
    [
        (
            "LEAKS",
            "leakage",
            "1 of 20 rows of val, 0 of 20 rows of test are rows of train, a share of: 0.05 (at most 0.01)",
        ),
        ("DROPSTWICE", "dropout", "drop is called 2 times"),
        ("DROPS", "dropout", "2 dropouts"),
        ("SOUND", "dropout", "no dropout"),
        ("ONESEED", "deterministic", "seed 1 gives the same run as seed 0: weights and samples ignore the seed"),
        ("ONESEED", "lanes", "its TaskSpec does not declare lanes=True, so its runs train one by one"),
    ],
)
def test_a_verdict_states_the_observation(name: str, check: str, note: str, reports: dict[str, Report]) -> None:
    assert reports[name][check].note == note


@pytest.mark.deep
def test_a_task_may_be_given_by_its_classes(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["check", "--task", "tests.mutant_tasks:CLASSES", "--only", "leakage", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "tests.mutant_tasks:Net"


def test_the_roles_of_its_parameters_are_told(reports: dict[str, Report]) -> None:
    assert reports["SOUND"]["builds"].note.endswith("; 1 matrix, 1 head, 1 vector")


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.deep
def test_roles_of_no_parameter_and_no_such_roles_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        dispatch(["check", "--task", f"tests.mutant_tasks:{name}", "--only", "leakage"])


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "synthetc"], "unknown task 'synthetc'; did you mean 'synthetic'"),
        (["--task", "synthetic", "--only", "lane"], "unknown check 'lane'; did you mean 'lanes'"),
        (["--task", "synthetic", "sgd"], "--task checks only a task"),
        (["--task", "synthetic", "--opt.lr", "1"], "--task checks only a task"),
        (["--task", "synthetic", "--task.TT", "1", "--only", "lanes"], "--task.TT"),
        (["--task", "tests/nowhere.py:SPEC"], "there is no file tests/nowhere.py"),
    ],
)
def test_a_bad_request_says_what_to_do(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["check", *words])


def test_the_command_checks_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", f"{tiny.ROOT}/tests/mutant_tasks.py:LEAKS", "--only", "leakage", "--json"]
    assert dispatch(["check", *words]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], [v["check"] for v in found["verdicts"]]) == (False, ["leakage"])
