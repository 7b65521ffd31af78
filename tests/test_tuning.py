"""`bench tune`: real trainings with real workers, and their recovery when something is killed."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from bench.config.run_config import on_device
from bench.errors import RunFailed, UserError
from bench.execute import Effort, Engine, choice
from bench.execute.choice import Choice, Choices
from bench.execute.pool import Pool
from bench.execute.slots import Slot, slots
from bench.grammar.values import read_memory
from bench.machine import lives, this_process
from bench.store.store import Store
from bench.store.stores import Stores
from bench.tuning import suite, summary
from bench.tuning.progress import TuningProgress
from bench.tuning.space import point_key
from bench.tuning.studies import Studies
from bench.tuning.study import Study
from bench.tuning.study_result import study_result
from bench.tuning.trials import Request, StudySpec
from bench.tuning.tune import make_spec
from bench.tuning.worker import Worker
from bench.tuning.workers import Workers
from optimizers.plugins import slug
from tests.slow import SLOW
from tests.waiting import until

PATIENCE = 300.0  # seconds; starting takes ten, and the machines of a CI may be slow and shared
SMALL = ("--task", "synthetic", "--opt", "sgd", "--opt.lr", "1e1:1e4", "--trainer.max_steps", 40, "--device", "cpu")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings and plots go to a folder below the current one, unless told otherwise."""
    monkeypatch.chdir(tmp_path)
    # As many threads as in this process: another number rounds differently.
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    # So that each worker has one thread, however many workers there are.
    monkeypatch.setattr("bench.execute.slots._cpus", lambda: CPUS[:1])
    return tmp_path


def strict_json(text: str) -> Any:
    def refuse(token: str):
        raise AssertionError(f"{token} is not JSON")

    assert text.count("\n") == 1
    return json.loads(text, parse_constant=refuse)


def last_line(answer) -> str:
    """The error that a command ends with: one line on standard error, nothing on standard output."""
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert answer.err.count("bench: error: ") == 1
    return answer.err.splitlines()[-1].removeprefix("bench: error: ")


def small_spec(**words: Any) -> StudySpec:
    settings = {"task": "synthetic", "opt": "sgd", "opt.lr": "1e1:1e4", "trainer.max_steps": "40", "device": "cpu"}
    settings |= {name.replace("__", "."): value for name, value in words.items()}
    seeds, reports = settings.pop("seeds", [1000]), settings.pop("reports", [0])
    prune, sampler = settings.pop("prune", False), settings.pop("sampler", None)
    return make_spec(settings, sampler=sampler, seeds=seeds, report_seeds=reports, prune=prune, places={})


def begin(store: Path, trials: int, *, name: str | None = None, report: bool = True, **words: Any) -> Study:
    study = Studies(store).create(small_spec(**words), name)
    study.ask(Request(trials=trials, report=report))
    return study


def work(study: Study, effort: Effort) -> bool:
    """Work on a study as a worker in this process; show its progress on standard error."""
    progress = TuningProgress("a study", study.spec.metric)

    def tell(event: Mapping[str, Any]) -> None:
        if "ended" in event:
            progress.counted([study])
        progress.event(0, event)

    return Worker({"store": study.studies.store}, tell, effort).work([study])


def values(study: Study) -> dict[tuple[str, tuple[int, ...]], list[float | None]]:
    """The final values of the runs of all completed trials."""
    return {trial.key: [run.final for run in trial.runs] for trial in study.trials() if trial.state == "completed"}


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def states(study: Study) -> Counter[tuple[str, str]]:
    return Counter((trial.kind, trial.state) for trial in study.trials())


# -- from the command to the settings ---------------------------------------------------------------------------------


def test_from_a_command_to_tuned_settings(cli, here: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("tune", *SMALL, "--trials", 5, "--report_seeds", 3)
    dry = cli(*words, "--dry-run")
    assert dry.out.splitlines() == [f"opt.lr {lr}" for lr in ("316.2", "100", "1000", "31.62", "3162")]
    name = dry.err.split()[2].rstrip(":")
    promise = (
        f"study {name}: 5 trials of 2 seeds, opt.lr 31.62 to 3162, half decades around the middle of 10:10000;"
        " up to 8 more beyond an edge, while the best point is there\n"
    )
    assert dry.err == f"bench: {promise}"
    assert strict_json(cli(*words, "--dry-run", "--json").out)[1] == {"opt.lr": 100.0}
    assert list(here.iterdir()) == []

    answer = cli(*words, "--workers", 2, "--engine", "lightning")
    assert answer.code == 0, answer.err
    assert f"study    {name}: 5 trials of 2 seeds\n" in answer.out
    assert "best     opt.lr 1000: selection loss (suboptimality gap)" in answer.out
    assert "edge     lr_at_boundary: no\n" in answer.out
    assert promise in answer.err
    use = "bench fit --task synthetic --opt sgd --tuned --device cpu --trainer.max_steps 40"
    assert f"use it: {use}\n" in answer.out
    assert answer.err.count("] opt.lr ") == 8
    counts = [int(done) for done in re.findall(r"^\[(\d)/[58]\] opt\.lr ", answer.err, re.MULTILINE)]
    assert counts == sorted(counts)  # two may end between two polls
    assert counts[-1] == 8
    assert "[8/8] opt.lr " in answer.err
    assert answer.err.count("(fresh seed)") == 3
    folder = here / "tuned" / "synthetic"
    assert sorted(path.name for path in folder.rglob("*.*")) == [
        "sensitivity.csv",
        "sensitivity.md",
        "sensitivity.pdf",
        "sensitivity.png",
        "sgd.yaml",
    ]
    runs = list(Store(store).runs())
    assert Counter((run.status, run.engine, run.config["seed"]) for run in runs) == {
        ("completed", "lightning", seed): n for seed, n in ((1000, 5), (1001, 5), (0, 1), (1, 1), (2, 1))
    }

    # The same command trains nothing; nor does its short form.
    start = Pool._start
    monkeypatch.setattr(Pool, "_start", lambda *_: pytest.fail("a worker was started"))
    again = cli(*words, "--json")
    assert (again.code, again.err) == (0, "")
    found = strict_json(again.out)
    assert found == strict_json(cli("tune", "--resume", name, "--json").out)
    assert (found["study"], found["trials"], found["best"], found["missing"]) == (name, 5, {"opt.lr": 1000.0}, 0)
    assert found["fresh"]["seeds"] == [0, 1, 2]
    assert found["cost"]["trial_gradient_evaluations"] == sum(run.steps for run in runs if run.config["seed"] > 999)
    assert found["cost"]["fresh_gradient_evaluations"] == sum(run.steps for run in runs if run.config["seed"] < 999)
    assert cli("list", "studies").out.startswith(f"{name}  5 of 5 trials")
    assert strict_json(cli("list", "studies", "--json").out)[0]["best"] == "opt.lr 1000"

    for own in (("--opt.lr", "1:2"), ("--prune",), ("--seeds", 3), ("--name", "other"), ("--sampler", "qmc")):
        refused = cli("tune", "--resume", name, *own)
        assert refused.code == 2
        assert last_line(refused) == f"--resume takes the study's own settings; remove {own[0]}"

    # `bench fit` uses the settings; that run is already stored.
    provenance = yaml.safe_load((folder / "sgd.yaml").read_text())["provenance"]
    assert provenance["study"] == name
    assert provenance["versions"] == {name: runs[0].versions[name] for name in ("torch", "lightning", "task", "opt")}
    assert (provenance["seeds"], provenance["split"]) == ("1000, 1001", "train")
    fit = ("fit", "--task", "synthetic", "--opt", "sgd", "--trainer.max_steps", 40, "--device", "cpu")
    for words_ in ((*fit, "--tuned"), (*fit, "--config", "tuned/synthetic/sgd.yaml"), use.split()[1:]):
        stored = cli(*words_, "--seed", 2)
        assert stored.err.endswith("bench: already stored; --rerun trains again\n")
        assert "budget" not in stored.err
    other = cli(*fit, "--tuned", "--trainer.max_steps", 41, "--dry-run")
    note = (
        "bench: sgd is tuned for another budget (here --trainer.max_steps 41, not 40): other settings may be better\n"
    )
    assert note in other.err
    larger = cli(*fit, "--tuned", "--task.T", 7, "--dry-run").err
    assert "tuned for another model or data (here --task.T 7, not 6)" in larger

    # More trials continue from there.
    monkeypatch.setattr(Pool, "_start", start)
    more = cli("tune", *SMALL, "--trials", 7, "--report_seeds", 3, "--workers", 1, "--engine", "lanes", "--json")
    assert more.code == 0, more.err
    assert [each["point"] for each in strict_json(more.out)["tried"][:5]] == [each["point"] for each in found["tried"]]
    assert strict_json(more.out)["trials"] == 7
    assert Counter(run.engine for run in Store(store).runs() if run.config["seed"] > 999) == {
        "lightning": 10,
        "lanes": 4,
    }


@pytest.mark.deep
def test_settings_are_chosen_on_the_selection_split(store: Path) -> None:
    words = {"task": "mha_dm1", "task.n": "10", "opt": "gd", "opt.lr": "1,10,100,1000", "trainer.max_steps": "100"}
    study = begin(store, 4, report=False, **words)
    assert work(study, Effort("lanes"))
    trials = {run.config["opt_options"]["lr"]: run for run in Store(store).runs()}
    assert {(run.select_split, run.split) for run in trials.values()} == {("val", "test")}
    training = {lr: Store(store).tables(run.run_id)["curve"]["loss"][-1] for lr, run in trials.items()}
    chosen = {lr: run.validations[-1]["loss"] for lr, run in trials.items()}
    assert min(training, key=training.__getitem__) == 1000  # the winner
    assert min(chosen, key=chosen.__getitem__) == 10
    found = study_result(study)
    assert (found.best and found.best.point, found.score, found.select_split) == ({"opt.lr": 10}, chosen[10], "val")


@pytest.mark.deep
def test_tuned_settings_say_which_split_chose_them(cli, here: Path, store: Path) -> None:
    of_runs = ("--task", "mha_planted", "--task.n", 10, "--opt", "gd", "--trainer.max_steps", 20, "--device", "cpu")
    words = ("--opt.lr", "0.1,1", "--seeds", 1, "--report_seeds", 1)
    answer = cli("tune", *of_runs, *words, "--json")
    assert answer.code == 0, answer.err
    (record,) = Stores([store]).studies
    assert record.select_split == "val"
    assert yaml.safe_load((here / "tuned/mha_planted/gd.yaml").read_text())["provenance"]["split"] == "val"
    for engine, seeds in (("lanes", (5, 6)), ("lightning", (7, 8))):
        fit = cli("fit", *of_runs, "--tuned", "--seeds", ",".join(map(str, seeds)), "--engine", engine)
        assert fit.code == 0, fit.err
        assert "training samples" not in fit.err
        tuned = [run for run in Store(store).runs() if run.config["seed"] in seeds]
        assert {(run.engine, run.tuned_by, run.tuned_on) for run in tuned} == {(engine, record.name, "val")}


def test_settings_that_training_samples_chose_are_noted_where_held_out_ones_are_ranked(
    cli, here: Path, store: Path
) -> None:
    note = "tuned on training samples, but mha_dm1 ranks held-out ones: other settings may be better; `bench tune"
    words = ("--opt", "gd", "--tuned", "--trainer.max_steps", 2, "--device", "cpu")
    for task in ("mha_dm1", "synthetic"):
        found = {"task": task, "opt": {"name": "gd", "lr": 10.0}, "provenance": {"split": "train"}}
        (folder := here / "tuned" / task).mkdir(parents=True)
        (folder / "gd.yaml").write_text(yaml.safe_dump(found))
    old = cli("fit", "--task", "mha_dm1", *words)
    assert old.code == 0, old.err
    assert note in old.err
    assert "note: its settings were chosen on training samples, but the ranking uses test samples" in old.out
    ranked = cli("fit", "--task", "synthetic", *words)
    assert ranked.code == 0, ranked.err
    assert "training samples" not in ranked.err + ranked.out
    assert {run.config["task"]: (run.select_split, run.tuned_on) for run in Store(store).runs()} == {
        "mha_dm1": ("val", "train"),
        "synthetic": ("train", "train"),
    }


def test_runs_of_sweeps_and_races_name_the_studies_of_their_settings(cli, here: Path, store: Path) -> None:
    for opt, lr in {"gd": 10.0, "ngd": 0.5, "adam": 0.1}.items():
        found = {"task": "mha_dm1", "opt": {"name": opt, "lr": lr}, "provenance": {"study": f"{opt}-study"}}
        (here / "tuned/mha_dm1").mkdir(parents=True, exist_ok=True)
        (here / f"tuned/mha_dm1/{opt}.yaml").write_text(yaml.safe_dump(found))

    def studies() -> dict[str, set[str | None]]:
        own: dict[str, set[str | None]] = {}
        for run in Store(store).runs():
            own.setdefault(run.config["opt"], set()).add(run.tuned_by)
        shutil.rmtree(store)
        return own

    of_runs = ("--opt", "gd,ngd,adam", "--trainer.max_steps", 2, "--device", "cpu", "--tuned")
    by_study = {opt: {f"{opt}-study"} for opt in ("gd", "ngd", "adam")}
    assert cli("sweep", "--task", "mha_dm1", *of_runs, "--seeds", 2, "--workers", 2).code == 0
    assert studies() == by_study
    partly_other = ("--opt.adam.lr", "0.1,1", "--opt.ngd.lr", 1)
    assert cli("sweep", "--task", "mha_dm1", *of_runs, *partly_other).code == 0
    assert studies() == by_study | {"adam": {None}, "ngd": {None}}


@pytest.mark.parametrize(("values", "said"), [("1e290,1e300", True), ("0.1,1", False)])
def test_a_best_setting_that_saturates_the_model_in_one_step_is_noted(cli, here: Path, values: str, *, said: bool):
    words = f"--task synthetic --opt gd --opt.lr {values} --trials 2 --trainer.max_steps 20 --sampler grid"
    answer = cli("tune", *words.split(), "--seeds", "1000,", "--report_seeds", "0,")
    assert answer.code == 0
    assert ("note     the best comes from one step that saturated the model" in answer.out) == said


def test_tuned_settings_of_a_task_with_a_required_option_are_named(cli, here: Path, store: Path) -> None:
    (here / "needy.py").write_text(
        "from dataclasses import replace\n"
        "from tasks import TASKS\n"
        "from tasks.theory.synthetic import FixedDecoderData\n"
        "class Needy(FixedDecoderData):\n"
        "    def __init__(self, root=None, seed=0, *, extra: int):\n"
        "        super().__init__(root, seed)\n"
        "SPEC = replace(TASKS['synthetic'], name='needy', data=Needy, steps_per_call=1)\n"
    )
    found = {"task": "needy.py:SPEC", "opt": {"name": "ngd", "lr": 0.5}, "provenance": {"study": "the-study"}}
    words = ("--task", "needy.py:SPEC", "--task.extra", 3, "--opt", "ngd", "--device", "cpu")
    settings = here / "tuned" / slug("needy.py:SPEC") / "ngd.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(yaml.safe_dump(found))
    answer = cli("sweep", *words, "--tuned", "--trainer.max_steps", "2,3", "--seeds", 1)
    assert answer.code == 0, answer.err
    assert {run.tuned_by for run in Store(store).runs()} == {"the-study"}


@pytest.mark.deep
def test_lanes_find_what_lightning_finds(cli, tmp_path: Path) -> None:
    found = {}
    for engine in ("lightning", "lanes"):
        study = begin(tmp_path / engine, 5, seeds=[1000, 1001], reports=[0, 1])
        assert work(study, Effort(engine))
        assert {run.engine for run in Store(tmp_path / engine).runs()} == {engine}
        found[engine] = summary.as_json(study_result(study))
    one, other = found.values()
    assert one["best"] == other["best"] == {"opt.lr": 1000.0}
    assert [each["point"] for each in one["tried"]] == [each["point"] for each in other["tried"]]
    for a, b in zip(one["tried"], other["tried"], strict=True):
        assert a["score"] == pytest.approx(b["score"], rel=1e-6, abs=1e-9)
    assert one["fresh"]["values"] == pytest.approx(other["fresh"]["values"], rel=1e-6, abs=1e-9)


# -- kills ------------------------------------------------------------------------------------------------------------

CPUS = sorted(os.sched_getaffinity(0))
LONG = {
    "task": "synthetic",
    "opt": SLOW,
    "opt.lr": "0.03,0.1,0.3,1",
    "device": "cpu",
    "trainer.max_steps": "300",
    "trainer.val_every": "20",
    "trainer.checkpoint_seconds": "0.1",
}
"""Settings of runs that sleep for three seconds."""
LONG_WORDS = [word for name, value in LONG.items() for word in (f"--{name}", value)]
LONG_WORDS += ["--seeds", "1000,", "--report_seeds", "0,"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """The results of the long study without kills."""
    study = begin(tmp_path_factory.mktemp("undisturbed"), 4, **LONG)
    assert work(study, Effort("lightning"))
    found = values(study)
    assert len(found) == 5
    return found


class Tuning:
    """A real `bench tune` with its output in a file; it leads a process group, like a job of a shell."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.said = folder / "said"
        environment = os.environ | {"BENCH_STORE": str(folder / "runs")}
        command = ["taskset", "-c", ",".join(map(str, CPUS[:workers]))]  # one CPU, so one thread, for each worker
        command += [sys.executable, "-m", "bench.cli", "tune", *LONG_WORDS, "--engine", "lightning"]
        command += ["--workers", str(workers)]
        with self.said.open("w") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                cwd=folder,
                process_group=0,
            )

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split() if not gone(int(pid))]


@pytest.fixture
def tunings() -> Iterator[list[Tuning]]:
    started: list[Tuning] = []
    yield started
    for tuning in started:
        with suppress(ProcessLookupError):
            os.killpg(tuning.process.pid, signal.SIGKILL)
        tuning.process.wait()


def gone(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.deep),
        *(pytest.param(signal.SIGINT, marks=pytest.mark.deep, id=f"round {i}") for i in range(5)),
    ],
)
def test_after_any_kill_nothing_is_lost_and_nothing_done_twice(
    cli, number: signal.Signals, tmp_path: Path, undisturbed: dict[Any, Any], tunings: list[Tuning]
) -> None:
    study, store = begin(tmp_path / "runs", 4, **LONG), Store(tmp_path / "runs")

    def at_work() -> list[int]:
        """Processes that are training a run."""
        running = [trial for trial in study.trials() if trial.state == "running" and lives(trial.worker)]
        configs = [on_device(study.spec.config(trial.point, trial.seeds[0], {})) for trial in running]
        ids = [trial.worker["pid"] for trial in running]
        return [pid for pid, config in zip(ids, configs, strict=True) if store.checkpoint(config.run_id)]

    def ended(*words: str) -> list[str | None]:
        """The reasons of trials that ended in this state, or wait again."""
        return [trial.reason for trial in study.trials() if trial.state in words and trial.reason is not None]

    # kill -9 of a worker: the supervisor passes its trial to another one.
    tuning = Tuning(tmp_path, 2)
    tunings.append(tuning)
    killed = until(at_work, "a worker at work", PATIENCE)[0]
    os.kill(killed, signal.SIGKILL)
    until(lambda: "died (SIGKILL); starting another\n" in tuning.said.read_text(), "the supervisor's notice", PATIENCE)
    until(lambda: ended("failed"), "the end of the attempt", PATIENCE)

    # SIGTERM of a worker: it returns its trial.
    stopped = until(at_work, "a worker at work", PATIENCE)[0]
    os.kill(stopped, signal.SIGTERM)
    until(lambda: gone(stopped), "the end of a worker", PATIENCE)
    assert stopped not in at_work()

    # kill -9 of the supervisor: its workers return their trials and end, also one that has just started.
    until(at_work, "a worker at work", PATIENCE)
    workers = tuning.workers()
    assert not {killed, stopped} & {*workers}
    tuning.process.kill()
    tuning.process.wait()
    until(lambda: all(map(gone, workers)), "the end of the workers", PATIENCE)
    assert {state for _, state in states(study)} <= {"waiting", "completed", "failed"}
    (reason,) = ended("failed")
    # The supervisor knows how it died, the other worker only that it did.
    assert reason in ("its worker died (SIGKILL)", "its worker died")
    assert {*ended("waiting")} == {"the worker was stopped by SIGTERM"}
    said = [line for line in tuning.said.read_text().splitlines() if line.startswith("worker ")]
    assert [line.partition(" died ")[2] for line in said] == ["(SIGKILL); starting another"]

    # A signal to the supervisor, or to all processes of the terminal.
    tuning = Tuning(tmp_path, 1)
    tunings.append(tuning)
    until(at_work, "a worker at work", PATIENCE)
    workers = tuning.workers()
    os.killpg(tuning.process.pid, number)
    assert tuning.process.wait() == 130
    assert all(map(gone, workers))
    assert {state for _, state in states(study)} <= {"waiting", "completed", "failed"}
    assert tuning.said.read_text().endswith(
        f"bench: stopped; nothing is lost, and the same command (or bench tune --resume {study.name} --opt"
        f" {SLOW}) continues\n"
    )

    # The same command finishes.
    answer = cli("tune", *LONG_WORDS, "--workers", 1, "--engine", "lightning", "--json")
    assert answer.code == 0, answer.err
    assert states(study) == {("design", "completed"): 4, ("design", "failed"): 1, ("fresh", "completed"): 1}
    assert values(study) == undisturbed
    assert len(list(store.runs())) == 5
    found = strict_json(answer.out)
    assert (found["study"], found["best"], found["trials"], found["missing"]) == (study.name, {"opt.lr": 1.0}, 4, 0)


@pytest.mark.deep
def test_a_worker_with_lanes_that_is_asked_to_stop_gives_all_its_trials_back(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.lanes.engine import Lanes

    study = begin(store, 5, trainer__max_steps="3000")
    step, count = Lanes.step, 0

    def stop_on_the_way(self: Lanes) -> Any:
        nonlocal count
        count += 1
        if count == 1000:
            signal.raise_signal(signal.SIGTERM)
        return step(self)

    # The measurement depends on the load of the machine.
    monkeypatch.setattr(Choices, "_how_many", lambda *_: Choice(lanes=True, width=5))
    with monkeypatch.context() as patch:
        patch.setattr(Lanes, "step", stop_on_the_way)
        assert not work(study, Effort("lanes"))
    assert states(study) == {("design", "waiting"): 5}
    assert {trial.reason for trial in study.trials()} == {"the worker was stopped by SIGTERM"}
    assert [len(block.runs) for block in Store(store).unfinished()] == [5]
    assert work(study, Effort("lanes"))
    assert states(study) == {("design", "completed"): 5, ("fresh", "completed"): 1}
    assert Store(store).unfinished() == []


@pytest.mark.deep
def test_a_worker_keeps_to_the_width_that_it_is_told(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    study = begin(store, 5, seeds=[1000], reports=[])
    assert work(study, Effort("lanes", 2, read_memory("1G")))
    assert states(study) == {("design", "completed"): 5}
    assert sorted(Counter(run.run_id for run in Store(store).runs()).values()) == [1] * 5
    assert {len(lines(path)) for path in store.glob("*/done/runs.jsonl")} <= {1, 2}
    assert "lanes at once" not in capsys.readouterr().err


@pytest.mark.deep
def test_a_study_remembers_its_engine(cli, here: Path, store: Path) -> None:
    words = ("tune", *SMALL, "--sampler", "qmc", "--trials", 1, "--seeds", 1, "--report_seeds", 0)
    words = (*words, "--workers", 1)
    study = Studies(store).create(small_spec(reports=[]), "before")  # by a version without this option
    assert study.request.engine is None

    def engines() -> Counter[str]:
        return Counter(run.engine for run in Store(store).runs())

    assert cli(*words, "--name", "s", "--engine", "lightning").code == 0
    study = Studies(store).open("s")
    assert (study.request.engine, engines()) == ("lightning", {"lightning": 1})
    answer = cli("tune", "--resume", "s", "--trials", 2, "--workers", 1)
    assert answer.code == 0, answer.err
    assert (study.request.engine, engines()) == ("lightning", {"lightning": 2})
    answer = cli("tune", "--resume", "s", "--trials", 3, "--engine", "lanes", "--workers", 1)
    assert (answer.code, study.request.engine) == (0, "lanes"), answer.err
    assert engines() == {"lightning": 2, "lanes": 1}
    assert cli(*words, "--name", "s").code == 0
    assert study.request.engine == "auto"  # the latest command says so


def test_a_worker_without_a_trial_in_one_study_takes_those_of_another(store: Path) -> None:
    first, second = (begin(store, 2, opt=opt, sampler="qmc") for opt in ("sgd", "adam"))
    (held,) = first.claim(this_process()) or ()  # another worker has it
    told: list[Mapping[str, Any]] = []

    def tell(event: Mapping[str, Any]) -> None:
        told.append(event)
        if "idle" in event:
            assert states(second) == {("design", "completed"): 2, ("fresh", "completed"): 1}
            assert states(first) == {("design", "running"): 1, ("design", "completed"): 1}
            first.give_back(held, "a test")

    worker = Worker({"store": store}, tell, Effort("lightning"))
    assert worker.work([first, second])
    assert states(first) == states(second) == {("design", "completed"): 2, ("fresh", "completed"): 1}
    ended = [event["ended"] for event in told if "ended" in event]
    assert [(trial["opt"], trial["fresh"]) for trial in ended] == [
        ("sgd", False), ("adam", False), ("adam", False), ("adam", True), ("sgd", False), ("sgd", True),
    ]  # fmt: skip
    assert sum("idle" in event for event in told) == 1


def test_an_extension_out_of_the_legal_range_fails_alone_when_a_worker_joins(store: Path) -> None:
    study = begin(store, 2, opt="sgdm", opt__lr="0.1", opt__momentum="0.1:0.9", trainer__max_steps=5, report=False)

    def tell(event: Mapping[str, Any]) -> None:
        if event.get("ended", {}).get("kind") == "extension":
            first.stop.signal = signal.SIGTERM

    first = Worker({"store": store}, tell, Effort("lightning"))
    assert not first.work([study])
    assert states(study) == {("design", "completed"): 2, ("extension", "completed"): 1, ("extension", "waiting"): 1}
    assert Worker({"store": store}, lambda event: None, Effort("lightning")).work([study])
    assert states(study).keys() == {("design", "completed"), ("extension", "completed"), ("extension", "failed")}


def test_a_study_whose_runs_cannot_be_lanes_refuses_them(store: Path) -> None:
    study = begin(store, 2, report=False, **{"opt": "ngd", "trainer.max_seconds": 100})
    with pytest.raises(UserError, match=r"--engine lanes: --trainer.max_seconds 100: .*; use --engine lightning"):
        Worker({"store": store}, lambda event: None, Effort("lanes")).work([study])
    assert not list(store.glob("synthetic-*"))


# -- what goes wrong --------------------------------------------------------------------------------------------------


def break_at(lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run with this learning rate fails at its first step."""
    step = torch.optim.SGD.step

    def broken(self: torch.optim.SGD, *args: Any, **kwargs: Any) -> Any:
        if self.param_groups[0]["lr"] == lr:
            raise RuntimeError("the card fell out")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", broken)


@pytest.mark.deep
def test_a_run_that_breaks_is_tried_again_and_then_failed_while_the_study_goes_on(
    cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = begin(store, 5)
    break_at(1000.0, monkeypatch)
    assert work(study, Effort("lightning"))
    assert states(study) == {("design", "completed"): 4, ("design", "failed"): 3, ("fresh", "completed"): 1}
    reasons = [str(trial.reason) for trial in study.trials() if trial.state == "failed"]
    assert len({reason.partition(";")[0] for reason in reasons}) == 1
    assert all("failed: RuntimeError: the card fell out; the traceback is in " in reason for reason in reasons)
    shown = "\n".join(summary.lines(study_result(study)))
    assert "5 trials of 1 seed, 1 failed\n" in shown
    assert "note     opt.lr 1000 failed: run synthetic-sgd-" in shown


@pytest.mark.deep
def test_an_error_outside_of_a_run_counts_as_an_attempt_too(cli, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = begin(store, 3, opt__lr="10,100,1000", report=False)
    monkeypatch.setattr("bench.tuning.worker.run", lambda *_, **__: 1 / 0)
    error = "3 attempts in a row failed here, the last with: ZeroDivisionError: division by zero"
    for attempts in (3, 6, 9):
        with pytest.raises(RunFailed, match=error):
            work(study, Effort("lightning"))
        assert states(study)["design", "failed"] == attempts
    assert work(study, Effort("lightning"))
    assert states(study) == {("design", "failed"): 9}
    assert {trial.reason for trial in study.trials()} == {"ZeroDivisionError: division by zero"}
    assert study_result(study).best is None


def test_a_cause_that_comes_again_and_again_ends_the_worker_and_is_told_once(
    capsys: pytest.CaptureFixture[str], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: torch.optim.SGD, closure: object = None) -> None:
        raise RuntimeError("always the same")

    study = begin(store, 2, opt__lr="10,100", report=False)
    monkeypatch.setattr(torch.optim.SGD, "step", step)
    last = "3 attempts in a row failed here, the last with: run synthetic-sgd-.*always the same"
    with pytest.raises(RunFailed, match=last):
        work(study, Effort("lightning"))
    assert states(study)["design", "failed"] == 3
    first, *again = [line for line in capsys.readouterr().err.splitlines() if "always the same" in line]
    assert "failed run synthetic-sgd-" in first
    assert [line.partition(": ")[2] for line in again] == ["failed again: RuntimeError: always the same"] * 2


@pytest.mark.deep
def test_lanes_that_break_are_made_one_after_the_other(
    capsys: pytest.CaptureFixture[str], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.lanes.engine import Lanes

    study = begin(store, 5)

    def broken(self: Lanes) -> None:
        raise RuntimeError("the card fell out")

    monkeypatch.setattr(Lanes, "step", broken)
    assert work(study, Effort("lanes"))
    said = capsys.readouterr().err
    assert "1 sgd lane failed: RuntimeError: the card fell out" in said
    assert "; continuing with one trial at a time\n" in said
    assert states(study) == {("design", "completed"): 5, ("fresh", "completed"): 1}
    assert {run.engine for run in Store(store).runs()} == {"lightning"}


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("engine", ["lightning", "lanes"])
def test_a_full_disk_is_said_once_and_the_study_goes_on_with_room(
    store: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    study = begin(store, 3)

    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("bench.store.files.json.dump", no_space)
        with pytest.raises(RunFailed) as full:
            work(study, Effort(engine))
    assert str(full.value).startswith("the disk is full: cannot write to the store ")
    assert str(full.value).endswith(": No space left on device; free some space, then repeat the command")
    assert states(study) == {("design", "waiting"): 3}
    assert work(study, Effort(engine))
    assert states(study) == {("design", "completed"): 3, ("fresh", "completed"): 1}


def test_a_database_that_is_deleted_is_missed_by_a_worker(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = begin(store, 3)
    claim = Study.claim

    def delete(self: Study, *words: Any) -> Any:
        (store / "studies.db").unlink()
        monkeypatch.setattr(Study, "claim", claim)
        return claim(self, *words)

    monkeypatch.setattr(Study, "claim", delete)
    with pytest.raises(RunFailed, match=r"/studies\.db was deleted or replaced while it was in use"):
        work(study, Effort("lightning"))
    assert [path.name for path in store.iterdir()] == ["studies.db.lock"]


def test_an_impossible_store_is_named(cli) -> None:
    answer = cli("tune", *SMALL, "--store", "/proc/foo")
    assert answer.code == 2
    assert last_line(answer) == (
        "cannot write to the store /proc/foo: No such file or directory; choose another with --store DIR"
    )


def test_missing_data_leave_no_study(cli, tmp_path: Path) -> None:
    answer = cli("tune", "--task", "mnist", "--opt", "sgd", "--data", tmp_path / "none", "--store", tmp_path / "runs")
    assert (answer.code, answer.out) == (2, "")
    assert str(tmp_path / "none") in answer.err
    assert not (tmp_path / "runs" / "studies.db").exists()


@pytest.mark.deep
def test_settings_that_are_not_ours_and_runs_that_are_gone_are_noted(cli, here: Path, store: Path) -> None:
    words = (
        "tune",
        *SMALL,
        "--trials",
        2,
        "--seeds",
        "1000,",
        "--report_seeds",
        "0,",
        "--engine",
        "lanes",
        "--workers",
        1,
    )
    first = cli(*words, "--name", "one", "--out", "there")
    assert first.code == 0, first.err
    path = here / "there" / "synthetic" / "sgd.yaml"
    assert "study: one\n" in path.read_text()
    use = next(line for line in first.out.splitlines() if line.startswith("use it: "))
    assert use == (
        "use it: bench fit --task synthetic --opt sgd --config there/synthetic/sgd.yaml --device cpu"
        " --trainer.max_steps 40"
    )
    # Another study of the same runs: nothing is trained, and the file belongs to another study.
    again = cli(*words, "--name", "two", "--out", "there")
    assert again.code == 0, again.err
    assert "bench: there/synthetic/sgd.yaml belonged to study one; it now belongs to study two\n" in again.err
    # --resume writes to the study's earlier place, from any folder.
    resumed = cli("tune", "--resume", "one")
    assert resumed.err == f"bench: {path} belonged to study two; it now belongs to study one\n"
    assert f"written to {path.parent.parent}: synthetic/sgd.yaml" in resumed.out
    assert not (here / "tuned").exists()
    # The study keeps its results without the runs.
    for folder in store.glob("*/"):
        if folder.name != "studies":
            shutil.rmtree(folder)
    runs = len(Studies(store).open("one").trials())
    bare = cli("tune", "--resume", "one")
    assert bare.code == 0
    assert bare.err.startswith(
        f"bench: {runs} of the study's {runs} runs are not in the store {store}: deleted, or trained"
    )
    assert [line for line in bare.out.splitlines() if line.startswith("best")] == [
        line for line in resumed.out.splitlines() if line.startswith("best")
    ]


def test_one_study_that_cannot_be_shown_hides_no_other(cli, store: Path) -> None:
    begin(store, 3, name="good")
    studies = Studies(store)
    studies.create(small_spec(), "never-asked")
    studies.rdb.set_study_user_attr(studies.id_of(studies.create(small_spec(), "newer").name), "bench", {"new": 1})
    answer = cli("list", "studies")
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert (answer.code, lines[0]) == (1, "good 0 of 3 trials")
    assert lines[1:] == ["never-asked no requested trials `bench tune --resume never-asked` starts it"]
    assert answer.err.startswith("bench: newer is unreadable: study newer in /")
    rows = strict_json(cli("list", "studies", "--json").out)
    errors = {row["study"]: "error" in row for row in rows}
    assert errors == {"good": False, "never-asked": False, "newer": True}
    begun = cli("tune", "--resume", "never-asked", "--dry-run")
    assert (begun.code, len(begun.out.splitlines())) == (0, 9)


@pytest.mark.deep
def test_missing_data_are_said_once_and_all_trials_wait(cli, here: Path, store: Path) -> None:
    study = begin(store, 3, task="mnist", opt__lr="1e-3:1e1", name="s")
    answer = cli("tune", "--resume", "s", "--data", here / "none", "--workers", 1)
    assert answer.code == 2
    assert "none" in last_line(answer)
    assert set(states(study)) <= {("design", "waiting")}


@pytest.mark.deep
def test_workers_that_die_at_once_are_not_started_for_ever(cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "broken").mkdir()
    (here / "broken" / "torch.py").write_text("import sys; print('no torch for you', file=sys.stderr); sys.exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(here / "broken"))
    answer = cli("tune", *SMALL, "--trials", 3, "--workers", 1)
    assert answer.code == 1
    assert last_line(answer) == "workers die at start (exit code 7): no torch for you"
    assert answer.err.count("died (exit code 7); starting another") == 1  # repeated lines are shown once


@pytest.mark.deep
def test_a_trial_on_two_devices_is_a_bench_fit_of_its_own(cli, store: Path, tmp_path: Path) -> None:
    study = begin(store, 1, report=False, trainer__devices="2")
    assert work(study, Effort())
    assert states(study) == {("design", "completed"): 1}
    fit = ("fit", "--task", "synthetic", "--opt", "sgd", "--trainer.max_steps", 40, "--device", "cpu", "--seed", 1000)
    for trial in study.trials():
        lr = ("--opt.lr", trial.point["opt.lr"])
        stored = cli(*fit, *lr, "--trainer.devices", 2, "--json")
        assert stored.err == "bench: already stored; --rerun trains again\n"
        assert strict_json(stored.out)["final"] == trial.runs[0].final
        alone = strict_json(cli(*fit, *lr, "--store", tmp_path / "alone", "--json").out)
        assert trial.runs[0].final == pytest.approx(alone["final"], rel=1e-9)
    assert list(Store(tmp_path / "runs").folder.glob("*.json")) == []


@pytest.mark.deep
def test_pruning_stops_bad_trials_and_finds_the_same(cli, tmp_path: Path) -> None:
    words = {"opt__lr": "1e0:1e5", "trainer__val_every": "5"}
    found = {}
    for prune in (False, True):
        place = tmp_path / f"prune {prune}"  # a stored run is not stopped early
        study = begin(place, 9, prune=prune, **words)
        assert work(study, Effort("lightning"))
        found[prune] = summary.as_json(study_result(study))
        assert ("pruned (--prune)" in "\n".join(summary.lines(study_result(study)))) == prune
    assert found[False]["pruning"] is False
    assert found[True]["pruning"] is True
    assert (found[True]["best"], found[True]["score"]) == (found[False]["best"], found[False]["score"])
    assert found[True]["fresh"] == found[False]["fresh"]
    pruned = [each["point"]["opt.lr"] for each in found[True]["tried"] if each["state"] == "pruned"]
    assert pruned
    assert max(pruned) < 100
    stopped = {trial.point["opt.lr"]: trial for trial in study.trials() if trial.state == "pruned"}
    assert all(trial.runs[0].steps < 40 for trial in stopped.values())
    assert {trial.reason for trial in stopped.values()} == {"worse than the median of the other trials"}


# -- slots ------------------------------------------------------------------------------------------------------------


def cut(monkeypatch: pytest.MonkeyPatch, workers: str, *, cpus: int, gpus: int = 0, devices: int = 1) -> list[Slot]:
    monkeypatch.setattr("bench.execute.slots._cpus", lambda: list(range(cpus)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = small_spec(trainer__devices=str(devices)).config({"opt.lr": 1.0}, 0, {})
    return slots(workers, config.model_copy(update={"device": "cuda" if gpus else "cpu"}))


def test_processors_are_shared_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut(monkeypatch, "auto", cpus=2) == [Slot((0,), (), 1), Slot((1,), (), 1)]
    assert cut(monkeypatch, "1", cpus=4) == [Slot((0, 1, 2, 3), (), 4)]
    assert cut(monkeypatch, "2", cpus=5) == [Slot((0, 1), (), 2), Slot((2, 3), (), 2)]
    assert cut(monkeypatch, "auto", cpus=4, devices=2) == [Slot((0, 1), (), 1), Slot((2, 3), (), 1)]
    assert cut(monkeypatch, "3", cpus=2) == [Slot((), (), 1)] * 3
    assert Slot((0,), (), 3).environment == {"OMP_NUM_THREADS": "3"}


def test_each_worker_has_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut(monkeypatch, "auto", cpus=8, gpus=2) == [Slot((0, 1, 2, 3), ("0",), 4), Slot((4, 5, 6, 7), ("1",), 4)]
    assert cut(monkeypatch, "auto", cpus=8, gpus=4, devices=2) == [
        Slot((0, 1, 2, 3), ("0", "1"), 2),
        Slot((4, 5, 6, 7), ("2", "3"), 2),
    ]
    assert [slot.gpus for slot in cut(monkeypatch, "1", cpus=2, gpus=2)] == [("0",)]
    assert Slot((), ("0", "1"), 2).environment == {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    config = small_spec().config({"opt.lr": 1.0}, 0, {}).model_copy(update={"device": "cuda"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [slot.gpus for slot in slots("auto", config)] == [("5",), ("7",)]


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("3", "--workers 3: 2 GPUs can serve 2 workers with 1 per run; use --workers 2"),
        ("0", "--workers 0: write how many (--workers 2), or auto"),
        ("-1", "--workers -1: write how many (--workers 2), or auto"),
        ("many", "--workers many: write how many (--workers 2), or auto"),
    ],
)
def test_workers_that_there_cannot_be(monkeypatch: pytest.MonkeyPatch, workers: str, message: str) -> None:
    with pytest.raises(Exception, match=r"--workers") as refused:
        cut(monkeypatch, workers, cpus=8, gpus=2)
    assert str(refused.value) == message


def test_a_worker_keeps_to_its_slot(here: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = here / "python"
    program.write_text(
        "#!/bin/sh\nread study\n"
        'cpus=$(sed -n "s/Cpus_allowed_list:.//p" /proc/self/status)\n'
        'echo "{\\"study\\": \\"$study\\", \\"threads\\": $OMP_NUM_THREADS, \\"gpus\\": \\"$CUDA_VISIBLE_DEVICES\\","'
        ' "\\"cpus\\": \\"$cpus\\", \\"words\\": \\"$1 $2 $3 $4 $5\\"}"\n'
        'printf "%s" "$6" >settings\n'
        'echo "{\\"done\\": true}"\n'
        "read end\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("bench.process.sys.executable", str(program))
    study = begin(store, 1)
    cpu = max(os.sched_getaffinity(0))
    heard: list[Mapping[str, Any]] = []
    monkeypatch.setattr(TuningProgress, "event", lambda self, slot, event: heard.append(event))
    slots = [Slot((cpu,), ("3",), 5)]
    with Workers(slots, {"store": store}, Effort("lanes", 2, read_memory("1G")), [study.spec]) as workers:
        assert workers.work([study], TuningProgress("a study", "loss", enabled=False))
    said, _ = heard
    assert said == {
        "study": study.name,
        "threads": 5,
        "gpus": "3",
        "cpus": str(cpu),
        "words": "-P -m bench _worker studies",
    }
    assert json.loads((here / "settings").read_text()) == {
        "places": {"store": str(store)},
        "engine": "lanes",
        "width": 2,
        "memory": "1G",
        "shared_by": 1,
        "processes": 1,
        "named": {"task": ["synthetic"], "opt": ["sgd"]},
    }


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trials 0", "--trials 0: at least one setting is needed"),
        ("--trials -3", "--trials -3: at least one setting is needed"),
        ("--trials x", "--trials x: it must be a whole number"),
        ("--seeds 0", "--seeds 0: write how many"),
        (
            "--seeds 0,1 --report_seeds 2",
            "--seeds and --report_seeds share 0, 1: the seeds that choose a winner give optimistic scores",
        ),
        ("--seed 3", "--seed 3: trials have several"),
        ("--opt adam,gd", "--opt adam,gd: a study tunes one optimizer; `bench compare` and `bench suite` tune several"),
        ("--opt.lr 1:0.1", "--opt.lr 1:0.1: a range is LOW:HIGH with 0 < LOW < HIGH"),
        ("--opt.lr 1:1", "--opt.lr 1:1: a range is LOW:HIGH with 0 < LOW < HIGH"),
        ("--opt.lr 0.1", "is left to tune"),
        ("--opt.lrr 1:2", "unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        ("--opt sgdd", "unknown optimizer 'sgdd'; did you mean 'sgd'?"),
        ("--task syntetic", "unknown task 'syntetic'; did you mean 'synthetic'?"),
        ("--trainer.max_stepz 3", "unknown option '--trainer.max_stepz'; did you mean '--trainer.max_steps'?"),
        ("--trialz 3", "unknown option '--trialz'; did you mean '--trials'?"),
        ("--sampler gird", "unknown --sampler 'gird'; did you mean 'grid'?"),
        ("--sampler tpe", "--sampler tpe refines a design of 9 trials: write --trials 12"),
        ("--retries -1", "--retries -1: it must be at least 0"),
        ("--workers 0", "--workers 0: write how many (--workers 2), or auto"),
        ("--engine lanes --trainer.max_seconds 9", "--engine lanes: --trainer.max_seconds 9: lanes share the time"),
        ("--resume nobody", "/runs/studies.db: there is no such file; `bench tune` starts a study"),
        ("--seeds 1,1", "--seeds 1,1: 1 is given twice; give each once"),
        ("--report_seeds 3,3", "--report_seeds 3,3: 3 is given twice; give each once"),
        ("--seeds 999999999", "--seeds 999999999: 999,999,999 runs; a command makes from 1 to 100,000"),
        ("--report_seeds 999999999", "--report_seeds 999999999: 999,999,999 runs; a command makes from 1 to 100,000"),
        (f"--seeds 1,{2**63}", f"a seed is an integer from 0 to {2**63 - 1} (2^63 - 1), and {2**63} is larger"),
        ("--trials 999999999", "999999999 trials of 2 seeds: 1,999,999,998 runs; a command makes from 1 to 100,000"),
        ("--seeds 50000", "this search with 50000 seeds: 450,000 runs; a command makes from 1 to 100,000"),
        ("--opt.lr 1e-9:1e9:400 --opt.momentum 1e-9:1:400", "this search with 2 seeds: 320,000 runs; a command makes"),
        ("--name a/b", "--name a/b: a name may contain only letters, digits, dots, - and _"),
        ("--name=", "--name : a name may contain only letters, digits, dots, - and _"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_words_that_make_no_study(cli, here: Path, words: str, message: str, *, dry: bool) -> None:
    usual = {"--task": "synthetic", "--opt": "sgd", "--device": "cpu"}
    given = [part for name, value in usual.items() if name not in words.split() for part in (name, value)]
    answer = cli("tune", *given, *words.split(), *["--dry-run"] * dry)
    assert answer.code == 2
    assert message in last_line(answer)
    assert [path.name for path in here.iterdir()] in ([], ["tuned"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tune", "--task is missing; see `bench list tasks`"),
        ("tune --task synthetic", "--opt is missing; see `bench list optimizers`"),
        ("tune --resume nobody", "unknown study in /"),
        ("suite nothing", "unknown suite 'nothing'"),
        ("suite theory --plan --jobs 0", "--jobs 0: write how many (--workers 2), or auto"),
    ],
)
def test_words_without_a_study(cli, here: Path, words: str, message: str) -> None:
    answer = cli(*words.split())
    assert answer.code == 2
    assert message in last_line(answer)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizers": ["gd", "ngd", "gd"]}, "optimizers: gd is given twice; give each once"),
        ({"tasks": ["synthetic", "synthetic"]}, "tasks: synthetic is given twice; give each once"),
        ({"tasks": {"synthetic": {"trainer.max_stepz": 3}}}, "unknown option '--trainer.max_stepz'; did you mean"),
        ({"optimizers": {"gd": {"opt.lr": "1:0.1"}}}, "--opt.lr 1:0.1: a range is LOW:HIGH with 0 < LOW < HIGH"),
        ({"seeds": 0}, "--report_seeds 0: write how many (--report_seeds 5), or which"),
        ({"tune": {"seeds": [7, 7]}}, "--seeds 7,7,: 7 is given twice; give each once"),
        ({"tune": {"trails": 9}}, "unknown key 'tune.trails'; did you mean 'tune.trials'?"),
        ({"tune": {"trials": "many"}}, "tune.trials is 'many'; it takes how many, as 9"),
        ({"tune": {"trials": 0}}, "--trials 0: at least one setting is needed"),
        (
            {"tasks": None},
            "tasks is None; it takes names, such as [mnist, cifar10], or settings by name, such as {mnist: {",
        ),
        ({"optimizers": []}, "optimizers is []; it takes names"),
        ({"optimizers": {"gd": 0.1}}, "optimizers is 0.1; it takes names"),
        ({"title": None}, "title is None; it takes one line of text"),
        ({"seeds": True}, "seeds is True; it takes how many, as 5, or which, as [0, 3]"),
        ({"seeds": [0, True]}, "seeds is [0, True]; it takes how many, as 5, or which, as [0, 3]"),
        ({"tune": {"trials": True}}, "tune.trials is True; it takes how many, as 9"),
        (
            {"settings": {"trainer.max_steps": True}},
            "--trainer.max_steps True: it takes a whole number or none, and no boolean",
        ),
        ({"seeds": 999999999}, "--report_seeds 999999999: 999,999,999 runs; a command makes from 1 to 100,000"),
        ({"tune": {"trials": 999999999}}, "999999999 trials of 2 seeds: 1,999,999,998 runs; a command makes from 1 to"),
        ({"optimizers": ["gd", "ngd"], "seeds": 60000, "tune": {"seeds": [-1]}}, "--seeds -1,: write how many"),
        (
            {"optimizers": ["gd", "ngd"], "seeds": 60000, "tune": {"seeds": [10**6]}},
            "this suite of 2 studies: 120,018 runs; a command makes from 1 to 100,000",
        ),
    ],
)
@pytest.mark.parametrize("plan", [False, True])
def test_a_suite_that_cannot_be_is_refused_with_its_file(
    cli, here: Path, changes: dict[str, Any], message: str, *, plan: bool
) -> None:
    content = {"title": "a suite", "tasks": ["synthetic"], "optimizers": ["gd"], **changes}
    (here / "my.yaml").write_text(yaml.safe_dump(content))
    answer = cli("suite", "my.yaml", *["--plan"] * plan)
    assert answer.code == 2
    assert last_line(answer).startswith("my.yaml: ")
    assert message in last_line(answer)
    assert [path.name for path in here.iterdir()] == ["my.yaml"]


@pytest.mark.parametrize("parts", [["theory", "nothing"], ["theory", "reference"], "theory", [["theory"]], []])
def test_parts_of_a_suite_are_suites_that_are_shipped(cli, here: Path, parts: Any) -> None:
    (here / "my.yaml").write_text(yaml.safe_dump({"parts": parts}))
    answer = cli("suite", "my.yaml", "--dry-run")
    assert answer.code == 2
    assert "`parts` takes names of suites without parts, such as [theory, lm]; got " in last_line(answer)


def test_settings_of_a_suite_may_be_nested() -> None:
    nested = {"tasks": {"synthetic": {"task": {"T": 3}}}, "optimizers": {"sgdm": {"opt": {"momentum": 0.5}}}}
    mine = suite.Suite(title="one", **nested, settings={"trainer.max_steps": 5})
    (spec,) = mine.specs({})
    assert (spec.settings["task.T"], spec.settings["opt.momentum"]) == (3, 0.5)
    assert list(spec.axes) == ["opt.lr"]


def test_optimizers_with_different_combinations_get_a_common_multiple_of_trials(tmp_path: Path) -> None:
    decays = {"adam": ",".join(map(str, range(1, 8))), "adamw": ",".join(map(str, range(1, 9)))}
    optimizers = {"gd": None, **{opt: {"opt.weight_decay": values} for opt, values in decays.items()}}
    mine = suite.Suite(title="one", tasks=["synthetic"], optimizers=optimizers, settings={"trainer.max_steps": 5})
    specs = mine.specs({})
    assert (mine.common(specs), mine.common(specs, 80)) == (56, 112)
    plan = suite.plan(mine, None, {"store": tmp_path}, lambda spec: 1.0)
    assert {step.trials for step in plan} == {(56, 0)}


def test_lists_cannot_be_extended_with_quasi_random_designs_either() -> None:
    optimizers = {"gd": {"opt.lr": "0.1,0.3,1"}, "ngd": None}
    mine = suite.Suite(title="one", tasks=["synthetic"], optimizers=optimizers, tune={"sampler": "qmc"})
    with pytest.raises(UserError, match="gd: a list of values cannot be extended"):
        mine.specs({})


def test_a_budget_of_runs_is_rounded_down_to_whole_combinations(cli, here: Path) -> None:
    words = ("tune", "--task", "synthetic", "--opt", "adam", "--opt.weight_decay", "0,0.1,0.2")
    answer = cli(*words, "--budget", "30runs", "--dry-run")
    assert (answer.code, len(answer.out.splitlines())) == (0, 9)


def test_a_study_of_a_stopped_suite_runs_its_winner_when_it_is_resumed(cli, here: Path) -> None:
    spec = suite.Suite(
        title="one", tasks=["synthetic"], optimizers=["gd"], settings={"trainer.max_steps": 5}, seeds=1,
        tune={"trials": 3, "seeds": 1},
    ).specs({})[0]  # fmt: skip
    Studies(Path("runs")).create(spec).ask(Request(trials=3, report=False))
    answer = cli("tune", "--resume", spec.name, "--workers", 1, "--engine", "lightning", "--json")
    assert json.loads(answer.out)["fresh"]["seeds"] == [0]


@pytest.mark.parametrize(
    ("tasks", "opts", "left"),
    [
        (None, None, {"one": (["a", "b"], ["x"]), "two": (["c"], ["x", "y"])}),
        (["b"], None, {"one": (["b"], ["x"])}),
        (None, ["y"], {"two": (["c"], ["y"])}),
        (["c", "a"], ["x"], {"one": (["a"], ["x"]), "two": (["c"], ["x"])}),
    ],
)
def test_a_suite_may_be_narrowed(tasks: Any, opts: Any, left: dict[str, Any]) -> None:
    parts = [
        suite.Suite(title="one", tasks={"a": {"trainer.max_steps": 1}, "b": None}, optimizers=["x"]),
        suite.Suite(title="two", tasks=["c"], optimizers=["x", "y"]),
    ]
    kept = suite.narrowed(parts, tasks, opts)
    assert {part.title: ([*part.tasks], [*part.optimizers]) for part in kept} == left
    assert [part.tasks["a"] for part in kept if isinstance(part.tasks, dict) and "a" in part.tasks] == [
        {"trainer.max_steps": 1} for part in left.values() if "a" in part[0]
    ]
    with pytest.raises(UserError, match="unknown task of the suite 'aa'; did you mean 'a'"):
        suite.narrowed(parts, ["aa"], None)
    with pytest.raises(UserError, match="no part of the suite has y on a"):
        suite.narrowed(parts, ["a"], ["y"])


def test_the_reference_suite_is_its_parts_at_equal_budgets() -> None:
    parts = suite.load("reference")
    assert [part.title for part in parts] == [suite.load(name)[0].title for name in ("theory", "lm", "vision", "sst2")]
    for part in parts:
        for of_task in ({spec.opt: spec for spec in part.specs({}) if spec.task == task} for task in part.tasks):
            assert set(of_task) == set(part.optimizers)
            assert len({tuple(spec.seeds) for spec in of_task.values()}) == 1
            # Enough fresh seeds for a verdict.
            assert all(len(spec.report_seeds) >= 7 for spec in of_task.values())


def test_the_estimate_of_a_plan_counts_steps_and_evaluation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "seconds_of", lambda step: 6.0)
    settings = {"trainer.batch_size": 20, "trainer.micro_batch_size": 10, "trainer.max_steps": 25}
    mine = suite.Suite(
        title="one",
        tasks={"synthetic": {"task.n": 40, "task.n_test": 30, "trainer.val_every": 10, "device": "cpu", **settings}},
        optimizers=["sgd"],
    )
    places = {"data": tmp_path, "store": tmp_path}
    estimate = suite.measured(places, 1)
    (spec,) = mine.specs(places)
    steps = 25 * 2  # micro-batches
    looks = reports = 2 * 40  # the metric is that of the training samples
    assert estimate(spec) == pytest.approx(6.0 * (steps + (looks + reports) / 10 / 3))


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
    done = cli("suite", "my.yaml", "--jobs", 1, "--engine", "lanes", "--json")
    assert done.code == 0, done.err
    studies = strict_json(done.out)["studies"]
    assert len({study["trials"] for study in studies}) == 1
    assert [study["fresh"]["seeds"] for study in studies] == [[0, 1], [0, 1]]
    assert "0 runs to do" in cli("suite", "my.yaml", "--dry-run").out
    monkeypatch.setenv("BENCH_REFERENCE", str(here / "runs"))
    assert "are shipped" not in cli("suite", "my.yaml", "--dry-run").err
    assert "2 of these studies are shipped: bench merge " in cli("suite", "my.yaml", "--dry-run", "--store", "new").err
    assert cli("merge", "runs", "new").code == 0
    copied = cli("suite", "my.yaml", "--dry-run", "--store", "new")
    assert (len(re.findall(r"3/3 +", copied.out)), "are shipped" in copied.err) == (2, False)
    blocks = set((here / "new").glob("block-*"))
    again = cli("suite", "my.yaml", "--jobs", 1, "--engine", "lanes", "--store", "new", "--json")
    assert strict_json(again.out)["studies"] == studies
    assert set((here / "new").glob("block-*")) == blocks


def test_no_studies_are_no_error(cli, here: Path) -> None:
    answer = cli("list", "studies")
    assert list(here.iterdir()) == []
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"no studies in {os.environ['BENCH_STORE']}\n"
    assert cli("list", "studies", "--json").out == "[]\n"


def test_points_of_a_study_are_told_apart_by_their_numbers() -> None:
    assert point_key({"opt.lr": 1}) == point_key({"opt.lr": 1.0})
