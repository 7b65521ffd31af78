"""The conformance checks for tasks find each fault and no other, and pass the suite's tasks."""

import json

import pytest

from bench.check import catalogue
from bench.check.task import TaskSubject
from bench.cli import dispatch
from bench.errors import UserError
from tests import tiny
from tests.mutant_tasks import FAULTS, REFUSED

pytestmark = pytest.mark.numeric

TASKS = catalogue("task")


def note_of(check: str, name: str, **options: str) -> str:
    """What a check says that passes or does not apply."""
    try:
        return TASKS[check].function(TaskSubject(name, options)) or ""
    except pytest.skip.Exception as skip:
        return str(skip)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_checks_and_no_others(name: str) -> None:
    failing = set()
    for check in TASKS:
        try:
            note_of(check, f"tests.mutant_tasks:{name}")
        except Exception:
            failing.add(check)
            if check == "builds":
                break  # as the command does
    assert failing == FAULTS[name]


def test_every_check_has_a_mutant_and_a_severity() -> None:
    assert set().union(*FAULTS.values()) == TASKS.keys()
    assert all(check.severity != "speed" and check.advice for check in TASKS.values())


@pytest.mark.parametrize("check", TASKS)
def test_a_task_of_the_suite_passes_all(check: str) -> None:
    TASKS[check].function(TaskSubject("synthetic", {"T": "4"}))


@pytest.mark.parametrize(
    ("name", "check", "note"),
    [
        ("DROPS", "dropout", "2 dropouts"),
        ("ONESEED", "lanes", "its TaskSpec does not declare lanes=True, so its runs train one by one"),
        ("SOUND", "builds", "; 1 matrix, 1 head, 1 vector"),
    ],
)
def test_a_verdict_states_the_observation(name: str, check: str, note: str) -> None:
    assert note in note_of(check, f"tests.mutant_tasks:{name}")


@pytest.mark.parametrize("name", REFUSED)
def test_roles_of_no_parameter_and_no_such_roles_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        TaskSubject(f"tests.mutant_tasks:{name}", {})


@pytest.mark.parametrize(
    ("place", "code", "note"),
    [
        (f"{tiny.ROOT}/tests/mutant_tasks.py:LEAKS", 1, "1 of 20 rows of val, 0 of 20 rows of test are rows of train"),
        pytest.param("tests.mutant_tasks:CLASSES", 0, "0 of 20 rows of val", marks=pytest.mark.deep),
    ],
)
def test_the_command_checks_a_file_or_classes(
    place: str, code: int, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["check", "--task", place, "--only", "leakage", "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    (verdict,) = answer["verdicts"]
    assert (answer["ok"], verdict["check"], verdict["note"][: len(note)]) == (code == 0, "leakage", note)
    assert answer["target"] == "tests.mutant_tasks:Net"
