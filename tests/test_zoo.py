"""Published optimizers: `bench check` finds their faults, and all train unchanged. Needs their packages: `make zoo`."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.check.run import failed, report_on, text
from bench.store.reports import CheckRecord
from tests.stored import Store

pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]  # warnings of the packages are not ours

POLYAK = (
    "momo:Momo",
    "momo:MomoAdam",
    "momsps:MomSPS",
    "momsps:MomSPS_smooth",
    "sps_safe:SPS_safe",
    "sps_safe:IMA_SPS_safe",
    "pytorch_optimizer:AliG",
)
LOOKED_AT = ["builds", "resume", "schedule", "frozen", "ddp"]
CAPS = {"momo:Momo": {"lr": 1e3}, "momo:MomoAdam": {"lr": 1e3}, "momsps:MomSPS": {"gamma_max": 1e3}}
"""An active step cap would hide the dependence on the loss."""
WITHOUT_LR = set(POLYAK) - {"momo:Momo", "momo:MomoAdam"}
READ_UNASKED = set(POLYAK) - {"momo:MomoAdam", "pytorch_optimizer:AliG"}
COUNT_OUTSIDE = set(POLYAK) - {"sps_safe:SPS_safe", "pytorch_optimizer:AliG"}


@pytest.fixture(scope="module")
def reports() -> dict[str, CheckRecord]:
    return {name: report_on(name, only=LOOKED_AT, options=CAPS.get(name)) for name in POLYAK}


@pytest.mark.parametrize(
    ("check", "blamed", "note"),
    [
        ("resume", COUNT_OUTSIDE, ""),
        ("frozen", READ_UNASKED, "'NoneType' object has no attribute 'data'"),
        ("schedule", WITHOUT_LR, "param_groups[0] has no numeric 'lr'"),
        ("ddp", set(), ""),
    ],
)
def test_faults_of_polyak_methods_are_found(
    check: str, blamed: set[str], note: str, reports: dict[str, CheckRecord]
) -> None:
    notes = {name: v["note"] for name, report in reports.items() for v in failed(report) if v["check"] == check}
    assert notes.keys() == blamed
    assert all(note in words for words in notes.values())


GUIDE = (Path(__file__).parent.parent / "docs" / "guides" / "optimizer.md").read_text("utf-8")
LINES = GUIDE.partition("```sh zoo\n")[2].partition("```")[0].splitlines()


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[7])
def test_published_methods_train_by_the_line_that_the_guide_has_for_them(line: str, cli: Any, store: Path) -> None:
    answer = cli(*shlex.split(line, comments=True)[1:])
    assert answer.code == 0, answer.err
    (result,) = Store(store).runs()
    first, *_, last = Store(store).tables(result.run_id)["curve"]["loss"]
    assert last < 0.9 * first


def test_the_guide_has_lines() -> None:
    assert len(LINES) >= 8


@pytest.mark.parametrize("name", ["schedulefree:AdamWScheduleFree", "schedulefree:SGDScheduleFree"])
def test_schedule_free_methods_are_not_blamed(name: str) -> None:
    only = ["descent", "resume", "frozen", "closure", "ddp"]
    report = report_on(name, only=only)
    assert report.ok, text(report)
