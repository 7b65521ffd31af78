"""`bench tune` and `bench suite`: real trainings, from the command to the tuned settings."""

import errno
import json
import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from bench.config.run_config import resolve
from bench.execute import choice
from bench.execute.cluster import Crew, resources
from bench.tuning import suite
from bench.tuning.study import common_trials
from tests.stored import Store
from tests.test_cli import fails

SMALL = ("--task", "synthetic", "--opt", "sgd", "--opt.lr", "1e1:1e4", "--trainer.max_steps", 40, "--device", "cpu")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings and plots go to a folder below the current one, unless a command names another."""
    monkeypatch.chdir(tmp_path)
    # As many threads as in this process: another number rounds differently.
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return tmp_path


def strict_json(text: str) -> Any:
    def refuse(token: str):
        raise AssertionError(f"{token} is not JSON")

    assert text.count("\n") == 1
    return json.loads(text, parse_constant=refuse)


# -- from the command to the settings ---------------------------------------------------------------------------------


def test_from_a_command_to_tuned_settings(cli, here: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("tune", *SMALL, "--trials", 5, "--report_seeds", 3, "--sampler", "grid")
    dry = cli(*words, "--dry-run")
    assert dry.out.splitlines() == [f"opt.lr {lr}" for lr in ("316.2", "100", "1000", "31.62", "3162")]
    name = dry.err.split()[2].rstrip(":")
    assert dry.err == f"bench: study {name}: 5 trials of 2 seeds\n"
    assert strict_json(cli(*words, "--dry-run", "--json").out)[1] == {"opt.lr": 100.0}
    assert list(here.iterdir()) == []

    answer = cli(*words, "--workers", 2, "--engine", "lightning")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"{name}: sgd on synthetic, sampler grid, seeds 1000, 1001\n")
    assert re.search(r"\nsynthetic sgd: best of 5 trials: opt.lr 316.2, score .*; on 3 fresh seeds loss", answer.out)
    use = "bench fit --config tuned/synthetic/sgd.yaml"
    assert f"use it: {use}\n" in answer.out
    folder = here / "tuned" / "synthetic"
    assert [path.name for path in folder.rglob("*.*")] == ["sgd.yaml"]
    runs = list(Store(store).runs())
    assert Counter((run.status, run.engine, run.plan, run.config["seed"]) for run in runs) == {
        ("completed", "lightning", f"study {name}", seed): n
        for seed, n in ((1000, 5), (1001, 5), (0, 1), (1, 1), (2, 1))
    }

    # The same command trains nothing.
    start = Crew._start
    monkeypatch.setattr(Crew, "_start", lambda *_: pytest.fail("workers were started"))
    again = cli(*words, "--json")
    assert again.code == 0
    study = strict_json(again.out)
    assert (study["study"], study["trials"], study["best"], study["missing"]) == (name, 5, {"opt.lr": 316.2}, 0)
    assert study["fresh"]["seeds"] == [0, 1, 2]
    assert cli("list", "studies").out.splitlines()[1].split()[:3] == [name, "5", "0"]
    assert strict_json(cli("list", "studies", "--json").out)[0]["best"] == "opt.lr 316.2"
    _, heads, *trials, tie, plots = cli("show", name).out.splitlines()
    assert tie.startswith("gaps below 1e-16 tie")
    which = "--task synthetic --opt sgd"
    assert plots == f"plot it: bench plot sensitivity {which}; its fresh seeds: bench plot curves {which}"
    assert heads.endswith("train loss (suboptimality gap)")
    assert [line.split()[:4] for line in trials if line.startswith("*")] == [["*", "opt.lr", "316.2", "design"]]
    assert len(trials) == len(strict_json(cli("show", name, "--json").out)["trials"]) == 5

    # `bench fit` uses the settings; that run is already stored.
    provenance = yaml.safe_load((folder / "sgd.yaml").read_text())["provenance"]
    assert provenance["study"] == name
    assert provenance["versions"] == {name: runs[0].versions[name] for name in ("torch", "lightning", "task", "opt")}
    assert (provenance["seeds"], provenance["split"]) == ("1000, 1001", "train")
    fit = ("fit", "--task", "synthetic", "--opt", "sgd", "--trainer.max_steps", 40)
    for command in ((*fit, "--tuned"), use.split()[1:]):
        stored = cli(*command, "--device", "cpu", "--seed", 2)
        assert stored.err.endswith("bench: already stored; --rerun trains again\n")
        assert "budget" not in stored.err

    # More trials continue from there.
    monkeypatch.setattr(Crew, "_start", start)
    more = cli(
        "tune",
        *SMALL,
        "--sampler",
        "grid",
        "--trials",
        7,
        "--report_seeds",
        3,
        "--workers",
        1,
        "--engine",
        "lanes",
        "--json",
    )
    assert more.code == 0, more.err
    assert [trial["point"] for trial in strict_json(more.out)["tried"][:5]] == [
        trial["point"] for trial in study["tried"]
    ]
    assert strict_json(more.out)["trials"] == 7
    assert Counter(run.engine for run in Store(store).runs() if run.config["seed"] > 999) == {
        "lightning": 10,
        "lanes": 4,
    }


@pytest.mark.deep
def test_settings_are_chosen_on_the_selection_split(cli, here: Path, store: Path) -> None:
    words = ("--task", "mha_dm1", "--task.n", 10, "--opt", "gd", "--trainer.max_steps", 100, "--device", "cpu")
    design = ("--opt.lr", "1,10,100,1000", "--seeds", "1000,", "--report_seeds", 0, "--engine", "lanes")
    study = strict_json(cli("tune", *words, *design, "--json").out)
    trials = {run.config["opt_options"]["lr"]: run for run in Store(store).runs()}
    assert {(run.select_split, run.split) for run in trials.values()} == {("val", "test")}
    training = {lr: Store(store).tables(run.run_id)["curve"]["loss"][-1] for lr, run in trials.items()}
    chosen = {lr: run.validations[-1]["loss"] for lr, run in trials.items()}
    assert min(training, key=training.__getitem__) == 1000  # the winner
    assert min(chosen, key=chosen.__getitem__) == 10
    assert (study["best"], study["score"]) == ({"opt.lr": 10}, chosen[10])


def test_settings_that_training_samples_chose_are_noted(cli, here: Path, store: Path) -> None:
    settings = {"task": "mha_dm1", "opt": {"name": "gd", "lr": 10.0}, "provenance": {"split": "train"}}
    (folder := here / "tuned/mha_dm1").mkdir(parents=True)
    (folder / "gd.yaml").write_text(yaml.safe_dump(settings))
    answer = cli("fit", "--task", "mha_dm1", "--opt", "gd", "--tuned", "--trainer.max_steps", 2, "--device", "cpu")
    assert "note: its settings were chosen on training samples, but the ranking uses test samples" in answer.out
    assert [(run.select_split, run.tuned_on) for run in Store(store).runs()] == [("val", "train")]


def test_runs_of_a_sweep_name_the_studies_of_their_settings(cli, here: Path, store: Path) -> None:
    (folder := here / "tuned/mha_dm1").mkdir(parents=True)
    for opt, lr in {"gd": 10.0, "ngd": 0.5, "adam": 0.1}.items():
        settings = {"task": "mha_dm1", "opt": {"name": opt, "lr": lr}, "provenance": {"study": f"{opt}-study"}}
        (folder / f"{opt}.yaml").write_text(yaml.safe_dump(settings))
    words = ("--opt", "gd,ngd,adam", "--trainer.max_steps", 2, "--device", "cpu", "--tuned", "--seeds", 2)
    others = ("--opt.adam.lr", "0.1,1", "--opt.ngd.lr", 1)  # adam's has one of the tuned settings
    assert cli("sweep", "--task", "mha_dm1", *words, *others, "--workers", 2).code == 0
    studies = {run.config["opt"]: run.tuned_by for run in Store(store).runs()}
    assert studies == {"gd": "gd-study", "ngd": None, "adam": None}


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_run_that_breaks_fails_its_point_alone(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.optim.SGD.step

    def broken(self: torch.optim.SGD, *args: Any, **kwargs: Any) -> Any:
        if self.param_groups[0]["lr"] == 1000.0:
            raise RuntimeError("the card fell out")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", broken)
    words = ("--trials", 5, "--seeds", "1000,", "--report_seeds", "0,", "--engine", "lightning", "--workers", 1)
    answer = cli("tune", *SMALL, *words)
    assert answer.code == 0, answer.err
    assert re.search("failed: opt.lr 1000: run .*RuntimeError: the card fell out .*, line", answer.out)


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("engine", ["lightning", "lanes"])
def test_a_full_disk_ends_the_study_which_continues(cli, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    words = ("tune", *SMALL, "--trials", 3, "--seeds", "1000,", "--report_seeds", 0, "--engine", engine, "--workers", 1)
    with monkeypatch.context() as patch:
        patch.setattr("bench.store.reports.replacing", no_space)
        full = cli(*words)
    assert full.code == 1
    assert re.search("cannot write to the store .*: No space left on device; free some space, then repeat", full.err)
    assert cli(*words).code == 0


# -- workers ----------------------------------------------------------------------------------------------------------


def shares(
    monkeypatch: pytest.MonkeyPatch, workers: str, *, cpus: int, gpus: int = 0, devices: int = 1
) -> list[tuple[str, str | None]]:
    """The threads and GPUs of each worker."""
    monkeypatch.setattr("bench.execute.cluster._cpus", lambda: cpus)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    config = resolve({"task": "synthetic", "opt": "sgd", "opt.lr": 1.0, "trainer.devices": devices})
    config = config.model_copy(update={"device": "cuda" if gpus else "cpu"})
    return [(share["OMP_NUM_THREADS"], share.get("CUDA_VISIBLE_DEVICES")) for share in resources(workers, config)]


def test_workers_divide_processors_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert shares(monkeypatch, "auto", cpus=2) == [("1", None)] * 2
    assert shares(monkeypatch, "1", cpus=4) == [("4", None)]
    assert shares(monkeypatch, "2", cpus=5) == [("2", None)] * 2
    assert shares(monkeypatch, "auto", cpus=4, devices=2) == [("1", None)] * 2
    assert shares(monkeypatch, "3", cpus=2) == [("1", None)] * 3
    assert shares(monkeypatch, "auto", cpus=8, gpus=2) == [("4", "0"), ("4", "1")]
    assert shares(monkeypatch, "auto", cpus=8, gpus=4, devices=2) == [("2", "0,1"), ("2", "2,3")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert shares(monkeypatch, "auto", cpus=2, gpus=2) == [("1", "5"), ("1", "7")]


def test_workers_stay_for_the_next_runs(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Crew] = []
    start = Crew._start
    monkeypatch.setattr(Crew, "_start", lambda self: started.append(self) or start(self))
    words = ("--trials", 3, "--seeds", "1000,", "--report_seeds", 2, "--engine", "lightning", "--workers", 2)
    answer = cli("tune", *SMALL, *words)
    assert answer.code == 0, answer.err
    assert len(started) == 1


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--engine lanes --trainer.max_seconds 9", "--engine lanes: --trainer.max_seconds 9: lanes share the time"),
        ("--trials 999999999", "999999999 trials of 2 seeds: 1,999,999,998 runs; a command makes from 1 to 100,000"),
        ("--opt.lr 1e-9:1e9:400 --opt.momentum 1e-9:1:400", "160000 trials of 2 seeds: 320,000 runs; a command makes"),
    ],
)
def test_words_that_make_no_study(cli, here: Path, words: str, message: str) -> None:
    usual = ("--task", "synthetic", "--opt", "sgd", "--device", "cpu")
    assert message in fails(cli, "tune", *usual, *words.split())
    assert [path.name for path in here.iterdir()] in ([], ["tuned"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {"synthetic": {"trainer.max_stepz": 3}}}, "unknown option '--trainer.max_stepz'; did you mean"),
        ({"tune": {"trails": 9}}, "tune.trails: "),
        ({"tasks": None}, "tasks: "),
        ({"optimizers": {"gd": 0.1}}, "optimizers.gd: "),
        ({"optimizers": ["gd", "ngd"], "seeds": 60000, "tune": {"seeds": [10**6]}}, "this suite: 120,018 runs; a"),
        (
            {"optimizers": {"gd": {"opt.lr": "0.1,1"}, "ngd": None}},
            "these values make 2 settings: write --trials 2",
        ),
        ({"parts": ["nothing"]}, "`parts` takes names of shipped suites but ladders, such as [theory, lm], and stands"),
        ({"parts": []}, "alone; got {'parts': []}"),
        ({"parts": ["lm", "ladder-lm"]}, "alone; got {'parts': ['lm', 'ladder-lm']}"),
        ({"parts": ["lm"], "seeds": 3}, "alone; got {'parts': ['lm'], 'seeds': 3}"),
        ({"rungs": [{"size": 1}]}, "optimizers, and different sizes; got synthetic; gd; 1"),
        ({"optimizers": ["gd", "ngd"], "rungs": [{"size": 1e6}, {"size": 1e6}]}, "; gd and ngd; 1000000 and 1000000"),
        ({"optimizers": ["gd", "ngd"], "tasks": ["synthetic", "mnist"], "rungs": [{"size": 1}]}, "; got synthetic and"),
        ({"optimizers": ["gd", "ngd"], "rungs": [{"size": math.inf}]}, "rungs.0.size: it must be a finite number"),
        (
            {"optimizers": ["gd", "ngd"], "rungs": [{"size": 1e7, "optimizers": {"ngd": {"trainer.max_steps": 9}}}]},
            "size 10,000,000: gd and ngd differ in trainer.max_steps, so steps are not comparable",
        ),
    ],
)
def test_a_suite_that_cannot_be_is_refused_with_its_file(
    cli, here: Path, changes: dict[str, Any], message: str
) -> None:
    whole = {"title": "a suite", "tasks": ["synthetic"], "optimizers": ["gd"], **changes}
    content = changes if "parts" in changes else whole
    (here / "my.yaml").write_text(yaml.safe_dump(content))
    error = fails(cli, "suite", "my.yaml")
    assert "my.yaml: " in error
    assert message in error
    assert [path.name for path in here.iterdir()] == ["my.yaml"]


def test_optimizers_with_different_combinations_get_a_common_multiple_of_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decays = {"adam": ",".join(map(str, range(1, 8))), "adamw": ",".join(map(str, range(1, 9)))}
    optimizers = {"gd": None, **{opt: {"opt.weight_decay": values} for opt, values in decays.items()}}
    mine = suite.Suite(title="one", tasks=["synthetic"], optimizers=optimizers, settings={"trainer.max_steps": 5})
    (studies,) = mine.studies({"store": tmp_path})
    assert (common_trials(studies), common_trials(studies, 80)) == (56, 112)
    monkeypatch.setattr(suite, "seconds_of_run", lambda spec, places: 1.0)
    assert [row["trials"] for row in suite.plan([studies])] == [[0, 56]] * 3


def test_the_reference_suite_is_its_parts_at_equal_budgets() -> None:
    parts = suite.load("reference")
    assert [part.title for part in parts] == [suite.load(name)[0].title for name in ("theory", "lm", "vision", "sst2")]
    for part in parts:
        for of_task in ({spec.opt: spec for spec in part.specs({}) if spec.task == task} for task in part.tasks):
            assert set(of_task) == set(part.optimizers)
            assert len({tuple(spec.seeds) for spec in of_task.values()}) == 1
            # Enough fresh seeds for a verdict.
            assert all(len(spec.report_seeds) >= 7 for spec in of_task.values())


def test_the_estimate_of_a_plan_counts_micro_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "seconds_of", lambda step: 6.0)
    settings = {"trainer.batch_size": 20, "trainer.micro_batch_size": 10, "trainer.max_steps": 25, "device": "cpu"}
    mine = suite.Suite(title="one", tasks={"synthetic": {"task.n": 40, **settings}}, optimizers=["sgd"])
    (spec,) = mine.specs({})
    assert suite.seconds_of_run(spec, {"data": tmp_path, "store": tmp_path}) == 6.0 * 25 * 2


@pytest.mark.deep
def test_a_dry_run_writes_nothing_and_the_suite_follows_it(cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        "title": "a suite",
        "tasks": {"synthetic": {"trainer.max_steps": 20, "device": "cpu"}},
        "optimizers": ["gd", "ngd"],
        "tune": {"trials": 3, "seeds": 1},
        "seeds": 2,
    }
    (here / "my.yaml").write_text(yaml.safe_dump(content))
    plan = cli("suite", "my.yaml", "--dry-run")
    assert plan.code == 0, plan.err
    assert len(re.findall(r"0/3 +0/2", plan.out)) == 2
    assert [path.name for path in here.iterdir()] == ["my.yaml"]
    done = cli("suite", "my.yaml", "--workers", 1, "--engine", "lanes", "--json")
    assert done.code == 0, done.err
    studies = strict_json(done.out)["studies"]
    assert len({study["trials"] for study in studies}) == 1
    assert [study["fresh"]["seeds"] for study in studies] == [[0, 1], [0, 1]]
    assert "0 runs to do" in cli("suite", "my.yaml", "--dry-run").out
    assert cli("merge", "runs", "new").code == 0
    blocks = set((here / "new").glob("block-*"))
    again = cli("suite", "my.yaml", "--workers", 1, "--engine", "lanes", "--store", "new", "--json")
    assert strict_json(again.out)["studies"] == studies
    assert set((here / "new").glob("block-*")) == blocks
