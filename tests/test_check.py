"""The conformance checks find each fault and no other, pass what is right, and survive any optimizer."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.check import GROUPS, catalogue, checks, parametrize_with_checks
from bench.check.run import failed, headline, report_of, report_on, stored, text, verdict_of, write
from bench.check.steps import Fault
from bench.check.subject import Subject
from bench.cli import dispatch
from bench.errors import UserError
from bench.store.stores import Stores
from optimizers import OPTIMIZERS, OptimizerSpec
from optimizers.plugins import PluginError
from tests import mutants, tiny
from tests.mutants import FAULTS, SPECS, WRONG_FORMULAS

pytestmark = [pytest.mark.numeric, pytest.mark.filterwarnings("ignore")]  # warnings of optimizers are not ours

CHECKS = catalogue()
QUICK = [name for name, check in CHECKS.items() if check.quick]
APART = ("Exits", "Hangs", "WaitsForOthers", "Forks", "Prints", "Raises")
"""They need a process of their own."""
HERE = [name for name in FAULTS if name not in APART]


@pytest.fixture(autouse=True)
def usual_threads() -> Iterator[None]:
    """Undo what mutants do to the process."""
    threads = torch.get_num_threads()
    torch.compiler.set_stance("force_eager")
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.compiler.set_stance("default")


def failures(optimizer: Any, names: Any, **how: Any) -> dict[str, str]:
    """The messages of the checks that fail, by name."""
    subject, messages = Subject(optimizer, **how), {}
    for name in names:
        try:
            CHECKS[name].function(subject)
        except pytest.skip.Exception:
            continue
        except (Exception, SystemExit) as error:
            messages[name] = str(error)
    return messages


# ---- What it finds ---------------------------------------------------------------------------------------------------


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("name", HERE)
def test_a_fault_fails_its_checks_and_no_others(name: str) -> None:
    messages = failures(SPECS[name], CHECKS.keys() - {"real_run"})  # which takes seconds
    assert messages.keys() == FAULTS[name], messages


@pytest.mark.parametrize("name", HERE)
def test_a_fault_is_found(name: str) -> None:
    named = FAULTS[name] - {"ddp", "fsdp", "lanes"}
    assert failures(SPECS[name], named).keys() == named


def test_every_check_has_a_mutant() -> None:
    assert set().union(*FAULTS.values()) | {"reference", "real_run"} == CHECKS.keys()


@pytest.mark.parametrize("name", WRONG_FORMULAS)
def test_a_wrong_formula_fails_a_reference(name: str) -> None:
    assert failures(SPECS[name], ["reference"], reference="adamw").keys() == {"reference"}


def test_the_right_formula_passes_a_reference_in_any_form() -> None:
    for reference in ("adamw", "torch.optim:AdamW", torch.optim.AdamW):
        assert failures(mutants.Adam, ["reference"], reference=reference) == {}
    declared = OptimizerSpec("x", "tests.mutants:DecaysTwice", "", "", reference="adamw")
    assert failures(declared, ["reference"]).keys() == {"reference"}


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("torch.optim:Adam", QUICK),
        ("torch.optim:SGD", QUICK),
        ("torch.optim:LBFGS", ["groups", "group_values", "lr_zero", "closure", "resume", "leaks"]),
        ("torch.optim:Adafactor", ["schedule", "lr_zero", "reference", "resume", "unread"]),
        ("sfadamw", ["lr_zero", "eval_train", "resume", "closure"]),
        ("ps", ["lanes"]),
    ],
)
def test_published_methods_are_not_blamed(name: str, names: list[str]) -> None:
    assert failures(name, names) == {}


@pytest.mark.deep
@pytest.mark.parametrize("name", OPTIMIZERS.built_in)
def test_the_suites_own_optimizers_pass_all_checks(name: str) -> None:
    report = report_on(name, limit=60)
    assert not failed(report), text(report)
    assert [verdict["check"] for verdict in report.verdicts] == list(CHECKS)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("Leaks", "leaks", "['seen']"),
        ("NoLoss", "closure", "returns None"),
        ("StateOutside", "resume", "self.buffers"),
        ("LionCounts", "resume", "interrupted after 3 steps"),
        ("WideState", "resume", "['state'][0]['buffer'] is torch.bfloat16 of shape (5, 5) in place of torch.float32"),
        ("ObjectInState", "resume", "refuses its state: a tests.mutants.Box"),
        ("FirstGroupOnly", "groups", "two groups: the gap to one group is"),
        ("DecayOfFirstGroup", "group_values", "weight_decay: 0.0 in one group and 0.1 in another"),
        ("DecaysGradients", "gradients", "parameter 0, shape (5, 5), differs after step, with weight_decay"),
        ("Nothing", "lanes", "the optimizer never changes a weight"),
        ("SetsRate", "schedule", "in place of [0.05]"),
        ("DrawsEveryTenth", "globals", "step 10 touches torch's generator"),
        ("SeedsGlobally", "globals", "its constructor touches torch's generator"),
    ],
)
def test_a_failure_says_what(name: str, check: str, words: str) -> None:
    (message,) = failures(SPECS[name], [check]).values()
    assert words in message


def test_what_cannot_apply_is_a_skip_with_its_reason() -> None:
    for check, reason in (("eval_train", "no eval"), ("reference", "no reference")):
        with pytest.raises(pytest.skip.Exception, match=reason):
            CHECKS[check].function(Subject("sgd"))
    assert CHECKS["builds"].function(Subject("muon", {"rest": "sgdm", "rest.lr": 0.3})) == "on matrices only"
    assert CHECKS["group_values"].function(Subject(SPECS["RefusesTwoValues"])).endswith("two values of weight_decay")


class Mine(mutants.Sound):
    """An optimizer that this file defines."""


@parametrize_with_checks(
    [Mine, functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9), SPECS["SoundNorm"], "tests.mutants:Sound"],
    quick=True,
)
def test_anybodys_tests_may_have_the_checks(optimizer: Any, check: Any) -> None:
    check(optimizer)


def test_a_class_inside_a_function_is_checked_too() -> None:
    class Inside(mutants.Sound):
        move = mutants.per(lambda self, group, p: None)

    with pytest.raises(AssertionError, match="after 60 steps the loss is 1 of the initial one") as caught:
        checks()[1](Subject(Inside))
    assert isinstance(caught.value, Fault)
    assert caught.value.measured == 1.0


# ---- Isolation of misbehaviour ---------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "fault", "note"),
    [
        ("Exits", "bf16", "the process ended"),
        ("Hangs", "lr_zero", "not finished after"),
        ("WaitsForOthers", "ddp", "not finished after"),
        ("Forks", "", ""),
        ("Prints", "", ""),
        ("Raises", "builds", "SystemExit: enough ("),
        ("Lists", "syncs", "tests/mutants.py, line "),
        ("ClosureWithoutGradients", "closure", "tests/mutants.py, line "),
    ],
)
def test_the_end_or_hang_of_a_check_costs_only_that_check(name: str, fault: str, note: str) -> None:
    names = ["builds", "lr_zero", "frozen", "bf16", "closure", "ddp", "syncs"]
    report = report_on(f"tests.mutants:{name}", only=names, limit=8)
    assert {verdict["check"] for verdict in failed(report)} == {fault} - {""}
    assert all(note in verdict["note"] for verdict in failed(report))
    assert [v["note"] for v in report.verdicts].count("it does not build") == (6 if fault == "builds" else 0)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("code", "note"), [("import os; os._exit(7)", "the process ended"), ("import time; time.sleep(99)", "not finished")]
)
def test_an_import_that_ends_or_hangs_is_a_verdict(code: str, note: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    report = report_on(f"{tmp_path}/mine.py:Mine", only=["builds", "groups"], limit=4)
    assert [verdict["verdict"] for verdict in report.verdicts] == ["error", "not applicable"]
    assert report.verdicts[0]["note"].startswith(note)


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("class Mien: pass\n", "did you mean 'Mien'"),
        ("class Mine: pass\n", "torch.optim.Optimizer"),
    ],
)
def test_an_optimizer_that_cannot_be_loaded_is_an_error_of_the_request(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UserError, match=message):
        report_on(f"{tmp_path}/mine.py:Mine", only=["builds"])


# ---- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adm"], "unknown optimizer 'adm'; did you mean 'adam'"),
        (["sngd", "--only", "grups"], "unknown check 'grups'; did you mean 'groups'"),
        (["sngd", "--only", ""], "--only '': it is empty"),
        (["sngd", "--task.H", "3"], "--task.H is an option of a task: name the task with --task TASK"),
        ([], "which optimizer"),
        pytest.param(["sngd", "--only", "builds", "--opt.lrr", "3"], "did you mean '--opt.lr'", marks=pytest.mark.deep),
        (["--task", "synthetc"], "unknown task 'synthetc'; did you mean 'synthetic'"),
        (["--task", "synthetic", "--only", "lane"], "unknown check 'lane'; did you mean 'lanes'"),
        (["--task", "synthetic", "sgd"], "--task checks only a task"),
        (["--task", "tests/nowhere.py:SPEC"], "there is no file tests/nowhere.py"),
    ],
)
def test_a_bad_request_says_what_to_do(words: list[str], message: str) -> None:
    with pytest.raises((UserError, PluginError), match=message):
        dispatch(["check", *words])


def test_the_command_prints_strict_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tests/mutants.py:Ascends", "--only", "builds,descent,groups", "--opt.lr", "1e9"]
    code = dispatch(["check", *words, "--json", "--store", str(tmp_path)])
    out, err = capsys.readouterr()
    answer = json.loads(out, parse_constant=pytest.fail)
    assert code == 1
    assert (answer["name"], answer["ok"], answer["options"]) == (words[0], False, {"lr": "1e9"})
    assert answer["package"].startswith("file ")
    assert answer["versions"].keys() == {"python", "torch", "bench"}
    verdicts = {verdict["check"]: verdict for verdict in answer["verdicts"]}
    assert (verdicts["descent"]["measured"], verdicts["descent"]["severity"]) == ("inf", "results")
    assert "3/3 groups" in err
    assert list(tmp_path.iterdir()) == []  # three checks give no verdict on the optimizer


@pytest.mark.deep
def test_all_checks_of_an_optimizer_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["check", "tests.mutants:Raises", "--json", "--store", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    (report,) = Stores([tmp_path]).checks
    assert (report.name, report.verdicts) == (answer["name"], answer["verdicts"])
    assert [verdict["check"] for verdict in failed(report)] == ["builds"]


def verdict(check: str, word: str, **more: Any) -> Any:
    return verdict_of(CHECKS[check], {"verdict": word, **more})


def test_the_text_has_three_groups_the_message_and_the_remedy() -> None:
    note, slow = "two groups: state[2]", verdict("syncs", "error")
    report = report_of("x", {}, [slow, verdict("groups", "fail", note=note), verdict("closure", "pass")])
    lines = text(report).splitlines()
    assert [line for line in lines if line in GROUPS.values()] == list(GROUPS.values())
    assert f"  groups             fail           {note}" in lines
    assert "Mend: loop over all of self.param_groups" in " ".join(" ".join(lines).split())
    assert lines[-1] == "x: 1 fault (changes results: groups); costs speed: syncs; 1 pass, 1 fail, 1 error"
    assert (report.ok, [v["check"] for v in failed(report)], report.serious) == (False, ["groups", "syncs"], ["groups"])
    report = report_of("x", {}, [slow])
    assert (report.ok, headline(report)) == (True, "no fault; costs speed: syncs")


def test_all_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["list", "checks"]) == 0
    words = capsys.readouterr().out.split()
    assert all({name, *check.meaning.split()} <= {*words} and check.advice for name, check in CHECKS.items())


def test_quick_checks_are_all_but_the_integration() -> None:
    left = {function.__name__ for function in checks()} - {function.__name__ for function in checks(quick=True)}
    assert left == {f"check_{name}" for name, check in CHECKS.items() if check.file == "integration"}


def test_importing_the_kit_imports_no_torch() -> None:
    code = "import sys, bench.check, bench.api.checking; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60, cwd=tiny.ROOT)


# ---- The store -------------------------------------------------------------------------------------------------------


def test_verdicts_are_stored_by_version_and_damaged_ones_named(tmp_path: Path) -> None:
    for name, version in (("adam", 1), ("some/where.py:Mine", 1), ("adam", 2), ("adam", 1)):
        verdicts = [verdict("groups", "fail", measured=float("nan"))]
        write(tmp_path, report_of(name, {"betas": (0.5, 0.9)}, verdicts, {"version": version}))
    broken = {"broken": '{"name"', "list": "[]", "nothing": '{"name": "adam", "verdicts": []}'}
    for name, content in broken.items():
        (tmp_path / "checks" / f"{name}.json").write_text(content)
    stores = Stores([tmp_path])
    known = {(report.name, report.version): report for report in stores.checks}
    assert known.keys() == {("adam", 1), ("adam", 2), ("some/where.py:Mine", 1)}
    assert known["adam", 1].verdicts[0]["measured"] is None
    assert known["adam", 1].serious == ["groups"]
    assert [record.path.stem for record in stores.damaged] == sorted(broken)


def test_a_stored_verdict_holds_while_optimizer_options_and_versions_do(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("from torch.optim import SGD\nclass Mine(SGD):\n    pass\n")
    name, now, store = f"{plugin}:Mine", {"python": "3.11", "torch": "2.11", "bench": "1"}, tmp_path / "runs"
    package = OPTIMIZERS[name].package
    about = {"target": name, "version": 1, "package": package, "versions": now, "arguments": {"lr": 0.1}}
    verdicts = [verdict(check, "fail", measured=inf, note="they differ", seconds=0.5) for check in CHECKS]
    assert stored(store, name, {"lr": 0.1}, now) is None
    write(store, report_of(name, {"lr": 0.1}, [*verdicts[:-1], verdict([*CHECKS][-1], "error")], about))
    assert stored(store, name, {"lr": 0.1}, now) is None  # an error may have been the machine's
    write(store, report := report_of(name, {"lr": 0.1}, verdicts, about))
    assert stored(store, name, {"lr": 0.1}, now) == report
    assert stored(store, name, {"lr": 0.2}, now) is None
    assert stored(store, name, {"lr": 0.1}, now | {"torch": "2.12"}) is None
    plugin.write_text(plugin.read_text() + "# changed\n")
    assert stored(store, name, {"lr": 0.1}, now) is None


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "checks").write_text("a file")
    with pytest.raises(UserError, match="choose another with --store DIR"):
        write(tmp_path, report_of("adam", {}, []))
