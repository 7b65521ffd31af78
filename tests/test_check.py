"""The conformance checks find each fault and no other, pass the suite's optimizers, and survive any optimizer."""

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest

from bench.check import Report, Verdict, conformance, supervisor, write_verdict
from bench.check.catalogue import CHECKS, SEVERITIES
from bench.check.cli import listing
from bench.check.report import read_verdict
from bench.check.supervisor import Examination, _State, examination_of
from bench.cli import dispatch
from bench.errors import UserError
from bench.store.stores import Stores
from optimizers import OPTIMIZERS, OptimizerSpec
from optimizers.plugins import PluginError
from tests import mutants, tiny
from tests.depth import selected
from tests.mutants import FAULTS, SPECS
from tests.optimizer_cases import CASES

pytestmark = pytest.mark.numeric

OWN = [name for name in OPTIMIZERS if name in OPTIMIZERS.own]
FORMULAS = {case.name: f"tests.optimizer_cases:{case.formula.__name__}" for case in CASES}
SLOW = ("Exits", "Hangs", "WaitsForOthers")  # they cost a process or wait for a limit


def examination(name: str) -> Examination:
    """The report of a mutant, a built-in optimizer, or another subject of the tests."""
    if name in ("sound_reference", "wrong_reference"):
        formula = getattr(mutants, name)
        return examination_of(mutants.Sound, only="reference", reference=formula, options={"momentum": 0.5, "lr": 0.2})
    if name == "hybrid":
        return examination_of("muon", options={"rest": "sgdm", "rest.lr": "0.3"})
    if name == "spec":
        spec = OptimizerSpec("mine", "tests.mutants:Sound", "", "tests", defaults={"lr": 0.3}, version=4)
        return examination_of(spec, only=["quadratic"])
    if name in OWN:  # a transcription on flat vectors has no matrices
        return examination_of(name, reference=None if OPTIMIZERS[name].traits.by_piece else FORMULAS[name])
    return examination_of(SPECS[name])


def into(*names: str) -> pytest.MarkDecorator:
    """The subjects of a test in addition to its parameter `name`."""
    return pytest.mark.reports(*names)


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> dict[str, Report]:
    """The reports of all subjects, in one process: starting torch takes longer than the checks of one."""
    own = [item for item in request.session.items if item.path == request.path]
    marked = {name for item in own for mark in item.iter_markers("reports") for name in mark.args}
    names = sorted(marked | selected(request, "name"))
    return dict(zip(names, supervisor.reports([examination(name) for name in names]), strict=True))


def table(report: Report) -> str:
    return "\n" + report.text()


# ---- What it finds ---------------------------------------------------------------------------------------------------


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SLOW])
def test_a_fault_fails_its_checks_and_no_others(name: str, reports: dict[str, Report]) -> None:
    assert set(reports[name].failed) == FAULTS[name], table(reports[name])


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("name", OWN)
def test_the_suites_own_optimizers_pass_all_checks(name: str, reports: dict[str, Report]) -> None:
    report = reports[name]
    assert not report.failed, table(report)
    assert [verdict.check for verdict in report.verdicts] == list(CHECKS)
    passed = {verdict.check for verdict in report.verdicts if verdict.verdict == "pass"}
    of_matrices = {"reference", "scalar_empty"} if OPTIMIZERS[name].traits.by_piece else set()
    assert passed >= CHECKS.keys() - {"foreach", "norm_keywords"} - of_matrices


def test_every_check_that_can_fail_has_a_mutant() -> None:
    can_fail = {name for name, check in CHECKS.items() if check.tolerance is not None} | {"builds"}
    assert set().union(*FAULTS.values()) | {"reference"} == can_fail


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("name", "scale", "rotation"),
    [("sgd", "x10", "equivariant"), ("sngd", "invariant", "equivariant"), ("adam", "invariant", "not equivariant")],
)
def test_the_kind_of_a_method_is_detected(name: str, scale: str, rotation: str, reports: dict[str, Report]) -> None:
    report = reports[name]
    assert (report["scale"].note, report["rotation"].note, report["permutation"].note) == (
        scale,
        rotation,
        "equivariant",
    )


@pytest.mark.deep
@into("sgd", "sngd", "adam", "ps", "sps")
def test_methods_that_use_the_loss_drift_apart_where_ranks_have_their_own(reports: dict[str, Report]) -> None:
    assert [reports[name]["own_loss"].measured for name in ("sgd", "sngd", "adam")] == [0, 0, 0]
    for name in ("ps", "sps"):
        measured = reports[name]["own_loss"].measured
        assert measured is not None
        assert measured > 0.1
        assert reports[name]["ddp"].verdict == "pass"


@pytest.mark.deep
@into("sgd", "Sound", "adam")
def test_memory_is_counted_in_copies_of_the_parameters(reports: dict[str, Report]) -> None:
    measured = {name: reports[name]["memory"].measured for name in ("sgd", "Sound", "adam")}
    assert measured == {"sgd": 0, "Sound": 1, "adam": pytest.approx(2, abs=1e-3)}


def test_a_run_that_has_converged_has_no_steps_to_check() -> None:
    report = conformance("torch.optim:LBFGS", only=["lr_changes", "lr_zero"])
    assert [verdict.note for verdict in report.verdicts] == [
        "it has converged after 3 steps",
        "it has converged before the pause",
    ]


@into("FirstGroupOnly")
def test_a_failure_names_the_measurement_and_the_remedy(reports: dict[str, Report]) -> None:
    report = reports["FirstGroupOnly"]
    text = report.text()
    measured = report["groups"].measured
    assert measured is not None
    assert measured > 1e-3
    assert f"{measured:.3g}" in text
    assert CHECKS["groups"].advice in text
    assert CHECKS["resume"].advice not in text
    assert "2 faults (changes results: groups, group_values); " in text.splitlines()[-1]
    assert "2 fail" in text.splitlines()[-1]
    assert [line.split()[0] for line in text.splitlines()[1:3]] == ["groups", "group_values"]  # above those that pass


def test_only_what_changes_results_or_blocks_a_set_up_is_a_fault() -> None:
    assert {check.severity for check in CHECKS.values()} == {*SEVERITIES, None}
    assert all(
        (check.severity is None) == (check.tolerance is None) or name == "builds" for name, check in CHECKS.items()
    )
    words = {"copies": "fail", "syncs": "error", "groups": "pass", "memory": "pass"}
    report = Report("x", verdicts=tuple(Verdict(name, word) for name, word in words.items()))
    assert (report.ok, report.failed, report.serious) == (True, ["syncs", "copies"], [])
    assert report.headline() == "no fault; less: costs speed: syncs; hygiene: copies"
    worse = Report("x", verdicts=(*report.verdicts, Verdict("fsdp", "fail"), Verdict("ddp", "fail")))
    assert (worse.ok, worse.serious) == (False, ["ddp", "fsdp"])
    assert worse.headline().startswith(
        "2 faults (changes results: ddp; blocks a set-up: fsdp); less: costs speed: syncs"
    )


def line_of(cls: str, text: str) -> str:
    """The location of the only line with this text in a mutant, in the notation of a verdict."""
    lines, start = inspect.getsourcelines(getattr(mutants, cls))
    (at,) = [start + i for i, line in enumerate(lines) if text in line]
    return f"tests/mutants.py, line {at}"


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("Reads", "syncs", ("_local_scalar_dense (", line_of("Reads", "norm.item()"))),
        ("Lists", "syncs", ("tolist (", line_of("Lists", "norm.tolist()"))),
        ("Leaks", "leaks", ("the remaining memory is allocated in ", line_of("Leaks", "p.grad.clone()"))),
        ("ClosureWithoutGradients", "closure", ("disabled (", line_of("ClosureWithoutGradients", "closure()"))),
        ("OneMomentum", "lanes", ("pure update through vmap, with values of momentum",)),
        ("NoLoss", "closure", ("returns None", line_of("NoLoss", "def step"))),
        ("StateOutside", "resume", ("self.buffers has 0 entries in place of 4",)),
        ("WideState", "resume_bf16", ("['state'][0]['buffer'] is bfloat16 of shape (5, 5) in place of float32",)),
        ("FirstGroupOnly", "groups", ("two groups: state[1] is missing",)),
        ("NormOfAGroup", "groups", ("parameters 0, 1, 2, 3 get other updates",)),
        ("DecayOfFirstGroup", "group_values", ("weight_decay: 0.0 in one group and 0.1 in another",)),
        ("DecaysGradients", "gradients", ("parameter 0, shape (5, 5), is changed after step, with weight_decay",)),
        ("SetsRate", "own_lr", ("param_groups[0]['lr'] was 0.05 before a step and is 0.0495 after it",)),
        ("DrawsForNothing", "generators", ("a step touches torch's generator",)),
        ("DrawsWhenMade", "generators", ("its constructor touches Python's generator",)),
    ],
)
def test_a_failure_says_where_and_what(
    name: str, check: str, words: tuple[str, ...], reports: dict[str, Report]
) -> None:
    assert all(word in reports[name][check].note for word in words), table(reports[name])


@pytest.mark.deep
@into("FlatViews")
def test_the_verdict_names_the_line_that_raised(reports: dict[str, Report]) -> None:
    verdict = reports["FlatViews"]["noncontiguous"]
    assert verdict.verdict == "error"
    assert verdict.note.startswith("RuntimeError: view size")
    assert "tests/mutants.py, line" in verdict.note


@pytest.mark.deep
@into("ObjectInState")
def test_the_type_of_an_illegal_state_is_named(reports: dict[str, Report]) -> None:
    assert reports["ObjectInState"]["resume"].note.endswith("refuses its state: a tests.mutants.Box")


@into("Raises")
def test_an_optimizer_that_does_not_build_is_not_checked_further(reports: dict[str, Report]) -> None:
    report = reports["Raises"]
    assert (report["builds"].verdict, report["builds"].note.partition(" (")[0]) == ("error", "SystemExit: enough")
    assert {verdict.verdict for verdict in report.verdicts[1:]} == {"not applicable"}


@pytest.mark.parametrize(("name", "good"), [("sound_reference", True), ("wrong_reference", False)])
def test_a_reference_is_held_to(name: str, good: bool, reports: dict[str, Report]) -> None:
    report = reports[name]
    assert [verdict.check for verdict in report.verdicts] == ["reference"]
    assert report.ok is good, table(report)
    assert report.options == {"momentum": 0.5, "lr": 0.2}


@pytest.mark.deep
@into("muon", "hybrid")
def test_a_method_for_matrices_is_checked_with_another_for_the_rest(reports: dict[str, Report]) -> None:
    alone, hybrid = reports["muon"], reports["hybrid"]
    assert not hybrid.failed, table(hybrid)
    assert (alone["builds"].note, hybrid["builds"].note) == ("on matrices only", "by role")
    assert (alone["scalar_empty"].verdict, hybrid["scalar_empty"].verdict) == ("not applicable", "pass")


@pytest.mark.deep
@into("RefusesTwoValues", "DecayOfFirstGroup")
def test_two_values_that_are_refused_are_no_fault(reports: dict[str, Report]) -> None:
    assert reports["RefusesTwoValues"]["group_values"].note == "lr, momentum; it refuses two values of weight_decay"
    assert reports["DecayOfFirstGroup"]["group_values"].note.startswith("weight_decay: 0.0 in one group and 0.1 in")


@into("spec")
def test_a_spec_is_checked_as_it_is_given(reports: dict[str, Report]) -> None:
    report = reports["spec"]
    assert report.ok
    assert report["quadratic"].note == "at lr 0.3"
    assert (report.about["version"], report.about["arguments"]) == (4, {"lr": 0.3})


# ---- Isolation of misbehaviour ---------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_process_that_ends_costs_one_check(tmp_path: Path) -> None:
    checks = ["builds", "resume", "resume_bf16", "bf16", "closure"]
    (report,) = supervisor.reports([examination_of(SPECS["Exits"], only=checks)])
    assert set(report.failed) == FAULTS["Exits"], table(report)
    assert report["bf16"].verdict == "error"
    assert report["bf16"].note == "the process ended with code 3; last printed: bfloat16? no."


@pytest.mark.deep
def test_a_check_without_an_end_is_ended() -> None:
    examinations = [
        examination_of(SPECS["Hangs"], only=["builds", "lr_zero", "frozen"]),
        examination_of(SPECS["WaitsForOthers"], only=["ddp"]),
    ]
    hangs, waits = supervisor.reports(examinations, limit=6)
    assert (hangs.failed, hangs["lr_zero"].note) == (["lr_zero"], "not finished after 6 s")
    assert waits.failed == ["ddp"]
    assert waits["ddp"].verdict == "error"
    assert waits["ddp"].note.startswith("the two processes did not finish in 4.2 s")


@pytest.mark.deep
def test_an_optimizer_that_ends_process_after_process_is_given_up() -> None:
    state = _State(Examination("it", checks=("resume", "copies", "groups", "frozen", "bf16")), None)
    for check in ("resume", "copies", "groups"):
        state.lose(check, "gone", 1.0)
    assert [v.verdict for v in state.report().verdicts] == ["error"] * 3 + ["not applicable"] * 2


IMPORTS = {
    "exits": "import os\nos._exit(7)\n",
    "hangs": "import time\ntime.sleep(1000)\n",
    "raises": "1 / 0\n",
    "misspelt": "class Mien: pass\n",
    "other": "class Mine: pass\n",
}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "note"), [("exits", "the process ended with code 7"), ("hangs", "not finished after 2 s")]
)
def test_an_import_that_ends_or_hangs_is_a_verdict(kind: str, note: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(IMPORTS[kind])
    report = conformance(f"{tmp_path}/mine.py:Mine", only=["builds", "groups"], limit=2)
    assert (report["builds"].verdict, report["builds"].note) == ("error", note)
    assert report["groups"].verdict == "not applicable"


SLOW = """
import time, torch
class Mine(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(1)
        return super().step(closure)
"""


@pytest.mark.deep
@pytest.mark.parametrize(("load", "word"), [(0.0, "error"), (100.0 * (os.cpu_count() or 1), "pass")])
def test_limits_are_longer_on_a_busy_machine(load: float, word: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    (tmp_path / "mine.py").write_text(SLOW)
    assert conformance(f"{tmp_path}/mine.py:Mine", only=["builds"], limit=2)["builds"].verdict == word


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("kind", "message"),
    [("raises", "ZeroDivisionError"), ("misspelt", "did you mean 'Mien'"), ("other", "torch.optim.Optimizer")],
)
def test_an_optimizer_that_cannot_be_loaded_is_an_error_of_the_request(kind: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(IMPORTS[kind])
    with pytest.raises(UserError, match=message):
        conformance(f"{tmp_path}/mine.py:Mine", only=["builds"])


@pytest.mark.deep
def test_a_class_of_a_script_is_found_and_a_call_without_guard_is_refused(tmp_path: Path) -> None:
    lines = [
        "from bench.check import conformance",
        "from tests.mutants import Sound",
        "class Mine(Sound): pass",
        "if {guard}: print(conformance(Mine, only=['groups']).ok)",
    ]
    for guard, code, words in (("__name__ == '__main__'", 0, "True"), ("True", 1, "put the call under")):
        script = tmp_path / "script.py"
        script.write_text("\n".join(lines).format(guard=guard))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": str(tiny.ROOT)},
        )
        assert done.returncode == code, done.stderr
        assert words in done.stdout + done.stderr


def test_a_class_that_no_other_process_can_import_is_refused() -> None:
    class Mine(mutants.Sound):
        pass

    with pytest.raises(UserError, match="move it to the top of its module"):
        conformance(Mine)


# ---- Requests --------------------------------------------------------------------------------------------------------


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adm"], "unknown optimizer 'adm'; did you mean 'adam'"),
        (["sngd", "--only", "grups"], "unknown check 'grups'; did you mean 'groups'"),
        (["sngd", "--only", ""], "--only '': it is empty"),
        (["sngd", "--task.H", "3"], "--task.H is an option of a task: name the task with --task TASK"),
        (["sngd", "--limit", "0"], "write seconds"),
        ([], "which optimizer"),
        (["sngd", "--only", "builds", "--opt.lrr", "3"], "did you mean '--opt.lr'"),
    ],
)
def test_a_bad_request_says_what_to_do(words: list[str], message: str) -> None:
    with pytest.raises((UserError, PluginError), match=message):
        dispatch(["check", *words])


@pytest.mark.deep
def test_the_command_prints_strict_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tests/mutants.py:Nonsense", "--only", "builds,resume,scale", "--opt.lr", "0.2"]
    code = dispatch(["check", *words, "--json", "--store", str(tmp_path)])
    out, err = capsys.readouterr()

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    found = json.loads(out, parse_constant=refuse)
    assert code == 1
    assert (found["name"], found["ok"], found["options"]) == (words[0], False, {"lr": "0.2"})
    assert found["package"].startswith("file ")
    assert found["versions"].keys() == {"python", "torch", "bench"}
    verdicts = {verdict["check"]: verdict for verdict in found["verdicts"]}
    assert (verdicts["resume"]["measured"], verdicts["resume"]["tolerance"]) == ("inf", 0.0)
    assert "3/3 scale" in err
    assert list(tmp_path.iterdir()) == []  # three checks give no verdict on the optimizer


@pytest.mark.deep
def test_all_checks_of_an_optimizer_are_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["check", "tests.mutants:Raises", "--json", "--store", str(tmp_path)]) == 1
    found = json.loads(capsys.readouterr().out)
    (report,) = Stores([tmp_path]).checks
    assert (report.name, report.verdicts, report.failed) == (found["name"], found["verdicts"], ["builds"])


@pytest.mark.deep
def test_the_command_succeeds_where_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["check", "sngd", "--only", "groups,closure", "--opt.max_step=0.1"]) == 0
    assert capsys.readouterr().out.endswith("sngd: no fault; 2 pass\n")


def test_all_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["check", "--list"]) == 0
    assert capsys.readouterr().out == listing() + "\n"
    assert all(f"{check.name}: {check.meaning}" in listing() for check in CHECKS.values())


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_check_names_a_function_and_says_what_to_do(check: Any) -> None:
    module, _, function = check.target.partition(":")
    assert callable(getattr(import_module(module), function))
    reported_only = check.tolerance is None and check.name != "builds"
    assert bool(check.advice) is not reported_only


def test_importing_the_kit_imports_no_torch() -> None:
    code = "import sys, bench.check, bench.check.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60, cwd=tiny.ROOT)


# ---- The store -------------------------------------------------------------------------------------------------------


def test_verdicts_are_stored_by_version_and_damaged_ones_named(tmp_path: Path) -> None:
    verdict = Verdict("groups", "fail", float("nan"), "note")
    for name, version in (("adam", 1), ("some/where.py:Mine", 1), ("adam", 2), ("adam", 1)):
        path = write_verdict(tmp_path, Report(name, {"betas": (0.5, 0.9)}, {"version": version}, (verdict,)))
    assert path.parent == tmp_path / "checks"
    broken = {"broken": '{"name"', "list": "[]", "nothing": '{"name": "adam", "verdicts": []}'}
    for name, text in broken.items():
        (tmp_path / "checks" / f"{name}.json").write_text(text)
    stores = Stores([tmp_path])
    known = {(report.name, report.version): report for report in stores.checks}
    assert known.keys() == {("adam", 1), ("adam", 2), ("some/where.py:Mine", 1)}
    assert known["adam", 1].verdicts[0]["measured"] is None
    assert known["adam", 1].failed == ["groups"]
    assert [each.path.stem for each in stores.damaged] == sorted(broken)


def test_a_stored_verdict_holds_while_optimizer_options_and_versions_do(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("from torch.optim import SGD\nclass Mine(SGD):\n    pass\n")
    name, now, store = f"{plugin}:Mine", {"python": "3.11", "torch": "2.11", "bench": "1"}, tmp_path / "runs"
    about = {
        "target": name,
        "version": 1,
        "package": OPTIMIZERS[name].package,
        "versions": now,
        "arguments": {"lr": 0.1},
    }
    sound, wrong, broken = (
        Verdict("builds", "pass"),
        Verdict("groups", "fail", inf, "they differ", 0.5),
        Verdict("resume", "error"),
    )
    assert read_verdict(store, name, {"lr": 0.1}, now) is None
    write_verdict(store, Report(name, {"lr": 0.1}, about, (sound, wrong, broken)))
    assert read_verdict(store, name, {"lr": 0.1}, now) == Report(name, {"lr": 0.1}, about, (sound, wrong))
    assert read_verdict(store, name, {"lr": 0.2}, now) is None
    assert read_verdict(store, name, {"lr": 0.1}, now | {"torch": "2.12"}) is None
    plugin.write_text(plugin.read_text() + "# changed\n")
    assert read_verdict(store, name, {"lr": 0.1}, now) is None


def test_known_verdicts_are_not_repeated() -> None:
    known = Report("sgd", {}, {"version": 1}, tuple(Verdict(check, "pass", note="known") for check in CHECKS))
    assert [*supervisor.reports([examination_of("sgd")], known={"sgd": known})] == [known]


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "checks").write_text("a file")
    with pytest.raises(UserError, match="choose another with --store DIR"):
        write_verdict(tmp_path, Report("adam"))
