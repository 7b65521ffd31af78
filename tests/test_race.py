"""Races: seeds are added only where verdicts are open."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import bench
from bench.commands.race import wanted
from bench.results.sequential import GIVE_UP, Comparison, compare, decided_at, least_wins, next_seeds
from bench.store.store import Store
from tests.test_cli import fails
from tools.statistics import race

RACE = ("race", "synthetic", "--opt", "gd,adam", "--trainer.max_steps", "5", "--device", "cpu")


def standing(wins: int, n: int) -> Comparison:
    return compare([float(i < wins) for i in range(n)], [float(i >= wins) for i in range(n)], "max")


def test_open_pairs_get_the_seeds_that_can_decide_them_and_told_ones_none() -> None:
    told, clear, even = standing(7, 7), standing(5, 5), standing(3, 6)
    assert wanted([None, clear, told, "no common seeds"], [5, 5, 7, 5], 50) == [7, 7, 7, 5]
    assert wanted([None, standing(4, 5)], [5, 5], 50) == [10, 10]
    assert wanted([None, told], [9, 7], 50) == [9, 7]
    assert wanted([None, even], [6, 6], 10) == [6, 6]  # a decision by ten seeds is unlikely


@pytest.mark.parametrize("n", range(2, 40))
def test_more_seeds_can_decide_or_are_not_given(n: int) -> None:
    for wins in range(n + 1):
        later = next_seeds(n, wins, n - wins, 40)
        if later is None:
            assert decided_at(n, wins, n - wins, 40).sum() < GIVE_UP
        else:
            assert n < later <= 40
            assert max(wins, n - wins) + later - n >= least_wins(later) or later == 40
    assert next_seeds(n, 0, 0, 40) is None  # the same runs
    assert next_seeds(40, 25, 15, 40) is None


@pytest.mark.deep
def test_a_race_spends_less_than_a_fixed_design_of_its_power() -> None:
    assert race(4.0)[0] == pytest.approx(7, abs=0.01)
    assert race(0.0)[1] + race(0.0)[2] <= 0.05
    assert race(0.0)[0] < 25


def test_from_a_command_to_verdicts_and_on_with_the_same_command(cli, tmp_path) -> None:
    found = json.loads(cli(*RACE, "--json").out)
    rows = {row["opt"]: row for row in found["boards"][0]["tables"][0]["rows"]}
    assert rows["gd"]["verdict"] == "reference"
    assert (rows["adam"]["verdict"], rows["adam"]["n"]) in (("better", 7), ("worse", 7))
    bought = found["boards"][1]["tables"][0]["rows"][0]["bought"]
    assert len(bought) == 2
    assert bought[0].startswith("5: won ")
    assert bought[1].endswith("(decided at 7)")
    again = cli(*RACE)
    assert "all 10 runs are stored" in again.err
    assert "14 runs; every verdict is decided" in again.out


def test_seeds_that_chose_the_settings_are_not_raced(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--trainer.max_steps", 5, "--device", "cpu")
    for opt in ("gd", "adam"):
        seeds = ("--seeds", "0:3", "--report_seeds", "20,21")
        assert cli("tune", "--task", "synthetic", "--opt", opt, *short, "--trials", 2, *seeds).code == 0
    for words, code in ((("--seeds", 4), 2), (("--seed", 2), 2), (("--seed", 3), 0)):
        fitted = cli("fit", "--task", "synthetic", "--opt", "gd", "--tuned", *short, *words)
        assert (fitted.code, "take seeds from 3 on" in fitted.err) == (code, code == 2)
    assert cli(*RACE, "--tuned", "--most", 7).code == 0
    raced = [run.config["seed"] for run in Store(tmp_path / "runs").runs() if run.plan == "race"]
    assert {*range(3, 8)} <= {*raced} <= {*range(3, 10)}
    given = cli(*RACE, "--tuned", "--most", 7, "--seeds", "0:5")
    assert (given.code, "seed 0 helped to choose tuned settings of synthetic" in given.err) == (2, True)
    by_hand = ("--opt.gd.lr", 0.1, "--opt.adam.lr", 0.1)  # nothing of it is tuned
    assert {
        *(run["seed"] for run in json.loads(cli(*RACE, "--tuned", *by_hand, "--dry-run", "--json").out).values())
    } == {*range(5)}
    with pytest.raises(bench.UserError, match="seed 1 helped to choose"):
        bench.fit("synthetic", "gd", tuned=True, seed=1, trainer={"max_steps": 5}, device="cpu")
    used = next(line for line in cli("tune", "--task", "synthetic", "--opt", "gd", *short, "--trials", 2, *seeds)
                .out.splitlines() if "bench fit" in line)  # fmt: skip
    assert cli(*shlex.split(used.partition("bench ")[2])).code == 0


def test_a_race_fits_its_terminal(cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = cli(*RACE)
    assert max(map(len, said.out.splitlines())) <= 60


def test_a_budget_ends_a_race_before_a_round_that_it_cannot_pay(cli) -> None:
    answer = cli(*RACE, "--budget", "13runs")
    assert answer.code == 0
    assert "too few seeds (5 of 7)" in answer.out
    assert "10 runs; the budget of 13runs does not cover the 4 runs of the next round" in answer.out


def test_a_dry_run_lists_the_start_and_makes_nothing(cli, tmp_path: Path) -> None:
    assert len(json.loads(cli(*RACE, "--dry-run", "--json").out)) == 10
    assert not Store(tmp_path / "runs").folder.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("race synthetic --opt gd", "--opt: a race needs two optimizers or more"),
        (
            "race synthetic --opt adam,ngd",
            "the reference of synthetic, gd, is not in the race; add it or name another with --reference",
        ),
        ("race mnist --opt adam,sngd", "the reference of mnist, adamw, is not in the race"),
        ("race synthtic --opt gd,adam", "unknown task 'synthtic'; did you mean 'synthetic'?"),
        ("race synthetic --opt gd,adm", "unknown optimizer 'adm'; did you mean 'adam'?"),
        ("race synthetic --opt gd,adam --most 6", "--most 6: a number below 7 or below --seeds decides nothing"),
        (
            "race synthetic --opt gd,adam --budget 9runs",
            "--budget 9runs: the first 5 seeds of all optimizers need 10 runs",
        ),
        ("race --task synthetic,synthtic --opt gd,adam", "unknown task 'synthtic'; did you mean 'synthetic'?"),
        ("race synthetic gd adam", "gd is an optimizer; write bench race TASK --opt gd,..."),
        ("race synthetic --opt gd,adam --seed 3", "a race has several; write --seeds COUNT or --seeds 10:15 for"),
        ("race --opt gd,adam", "bench race needs TASK"),
        ("race synthetic --opt gd,adam --seeds 1,3", "a race begins with two or more consecutive seeds"),
        (f"race synthetic --opt gd,adam --seeds {2**63 - 9}:{2**63 - 4}", "with --most 50 the last seed is"),
    ],
)
def test_races_that_cannot_be(cli, words: str, message: str) -> None:
    assert message in fails(cli, *words.split())


def test_the_reference_follows_the_size_of_the_batches(cli) -> None:
    words = ["race", "synthetic", "--opt", "sgd,adamw", "--trainer.batch_size", "5", "--dry-run", "--json"]
    assert next(iter(json.loads(cli(*words).out).values()))["opt"] == "adamw"


def test_an_optimizers_own_settings_are_its_own(cli) -> None:
    runs = json.loads(cli(*RACE, "--opt.adam.lr", "0.5", "--dry-run", "--json").out)
    plain = json.loads(cli(*RACE, "--dry-run", "--json").out)
    changed = {run["opt"] for run_id, run in runs.items() if run_id not in plain}
    assert changed == {"adam"}


def test_a_comparison_can_be_replaced() -> None:
    """A decided verdict needs no more seeds, whatever the wins."""
    assert wanted([None, replace(standing(5, 5), verdict="better", told=5)], [5, 5], 50) == [5, 5]
