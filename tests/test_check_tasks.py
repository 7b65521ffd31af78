"""The conformance checks for tasks find each fault and no other, and pass the suite's tasks."""

import json

import pytest

from bench.check.catalogue import SERIOUS, catalogue
from bench.check.report import Report
from bench.check.run import reports as reports_of
from bench.check.run import request_of
from bench.cli import dispatch
from bench.errors import UserError
from tests import tiny
from tests.mutant_tasks import FAULTS, REFUSED

pytestmark = pytest.mark.numeric

TASKS = catalogue("task")


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """The reports of all tasks, in one process."""
    requests = [request_of(f"tests.mutant_tasks:{name}", kind="task") for name in FAULTS]
    requests.append(request_of("synthetic", options={"T": "4"}, kind="task"))
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
        ("LEAKS", "leakage", "1 of 20 rows of val, 0 of 20 rows of test are rows of train, a share of: 0.05"),
        ("DROPSTWICE", "dropout", "drop is called 2 times"),
        ("DROPS", "dropout", "2 dropouts"),
        ("ONESEED", "deterministic", "seed 1 gives the same run as seed 0: weights and samples ignore the seed"),
        ("ONESEED", "lanes", "its TaskSpec does not declare lanes=True, so its runs train one by one"),
        ("SOUND", "builds", "; 1 matrix, 1 head, 1 vector"),
    ],
)
def test_a_verdict_states_the_observation(name: str, check: str, note: str, reports: dict[str, Report]) -> None:
    assert note in reports[name][check].note


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.deep
def test_roles_of_no_parameter_and_no_such_roles_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        dispatch(["check", "--task", f"tests.mutant_tasks:{name}", "--only", "leakage"])


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (f"{tiny.ROOT}/tests/mutant_tasks.py:LEAKS", 1),
        pytest.param("tests.mutant_tasks:CLASSES", 0, marks=pytest.mark.deep),
    ],
)
def test_the_command_checks_a_file_or_classes(place: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["check", "--task", place, "--only", "leakage", "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], [v["check"] for v in answer["verdicts"]]) == (code == 0, ["leakage"])
    assert answer["target"] == "tests.mutant_tasks:Net"
