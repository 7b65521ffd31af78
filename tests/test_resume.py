"""Interrupted runs: after a signal or a crash, a run continues bit for bit."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from bench.cli import main
from bench.progress import Progress
from bench.store.store import Store
from bench.train.callbacks import Recorder
from optimizers import OPTIMIZERS
from tasks import TASKS
from tests.stored import read_curve, read_tables

VIT = (
    "fit", "--task", "mnist", "--task.patch_size", "14", "--task.depth", "1", "--task.num_heads", "2",
    "--task.embed_dim", "8", "--task.mlp_width", "8", "--task.dropout", "0.3", "--task.flip", "--task.crop", "2",
    "--trainer.max_steps", "40", "--device", "cpu",
)  # fmt: skip
SYNTHETIC = (
    "fit",
    "--task",
    "synthetic",
    "--trainer.batch_size",
    "5",
    "--trainer.max_steps",
    "400",
    "--trainer.val_every",
    "10",
    "--device",
    "cpu",
)
SPS = ("--opt", "sps", "--opt.gamma", "2", "--opt.max_step", "5")
CLOCKS = ("wall_s", "train_s", "seconds_to_target", "memory", "begun")


def outcome(store: Path) -> tuple[dict, dict]:
    """The results of the only run of a store, without times: its record, its curve and its measurements.

    Values are given as bytes, since NaN is not equal to NaN.
    """
    (run,) = Store(store).runs()
    record = {name: value for name, value in asdict(run).items() if name not in CLOCKS}
    record["validations"] = [{k: v for k, v in row.items() if k != "train_s"} for row in run.validations]
    tables = read_tables(store / run.run_id)
    return record, {name: {k: v.tobytes() for k, v in table.items()} for name, table in tables.items()}


@pytest.fixture
def interrupt(monkeypatch):
    """Send this process a signal when a run has taken this many steps."""
    update = Progress.update

    def at(step: int, number: int = signal.SIGINT) -> None:
        def update_and_interrupt(self, now, *rest):
            if now >= step:
                monkeypatch.setattr(Progress, "update", update)
                signal.raise_signal(number)
            update(self, now, *rest)

        monkeypatch.setattr(Progress, "update", update_and_interrupt)

    return at


def only_run(store: Path):
    (run,) = Store(store).runs()
    return run


# -- in this process ------------------------------------------------------------------------------------------------

CASES = {name: ("--opt", name) for name in OPTIMIZERS} | {
    "sgd-nesterov": ("--opt", "sgd", "--opt.momentum", "0.9", "--opt.nesterov"),
    "sngd-momentum": ("--opt", "sngd", "--opt.momentum", "0.9", "--opt.max_step", "0.1", "--opt.weight_decay", "0.1"),
    "sps-smoothed": SPS,
    "adamw-scheduled": ("--opt", "adamw", "--trainer.schedule", "cosine", "--trainer.warmup", "0.6"),
    "adam-amsgrad": ("--opt", "adam", "--opt.amsgrad", "--opt.betas", "0.8,0.9"),
    "adamw-by-role": ("--opt", "adamw", "--opt.vector.weight_decay", "0", "--opt.embedding.lr", "1e-3"),
    "adamw-ema": ("--opt", "adamw", "--trainer.average", "ema", "--trainer.average_decay", "0.9"),
    "muon-lawa": ("--opt", "muon", "--trainer.average", "lawa", "--trainer.average_every", "4"),
    "adamw-observed": ("--opt", "adamw", "--trainer.observe", "12"),  # also after 22 steps, where a call takes 20
    "muon-and-sps": ("--opt", "muon", "--opt.rest", "sps", "--opt.rest.gamma", "2", "--opt.rest.max_step", "5"),
    "sps-clipped-micro": ("--opt", "sps", "--trainer.gradient_clip_val", "0.1", "--trainer.micro_batch_size", "7"),
}


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_an_uninterrupted_one(cli, interrupt, fake_mnist, store, tmp_path, case):
    opt = CASES[case]
    batch = () if OPTIMIZERS[opt[1]].traits.full_batch else ("--trainer.batch_size", "20")
    words = (*VIT, *opt, *batch)
    assert cli(*words, "--store", tmp_path / "whole").code == 0
    interrupt(15)
    answer = cli(*words)
    assert answer.code == 130
    killed = only_run(store)
    assert killed.status == "killed"
    assert 15 <= killed.steps < 40
    answer = cli("fit", "--resume", killed.run_id)
    assert answer.code == 0, answer.err
    assert outcome(store) == outcome(tmp_path / "whole")
    assert len(read_curve(store / killed.run_id)) == 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on(cli, interrupt, store, number):
    before = signal.getsignal(number)
    interrupt(100, number)
    answer = cli(*SYNTHETIC, *SPS)
    assert answer.code == 130
    killed = only_run(store)
    assert answer.out.startswith("synthetic sps: killed, ")
    assert f"note: stopped by {number.name} at step 100\n" in answer.out
    assert f"continue with: bench fit --resume {killed.run_id} --store {store}\n" in answer.out
    assert (killed.status, killed.steps, killed.final, killed.best) == ("killed", 100, None, None)
    assert Store(store).last_checkpoint([killed.run_id])
    assert [row[0] for row in read_curve(store / killed.run_id)] == list(range(1, 101))
    assert signal.getsignal(number) == before


def test_an_interrupted_run_goes_on_elsewhere(cli, interrupt, store, tmp_path):
    cli(*SYNTHETIC, *SPS, "--store", tmp_path / "whole")
    interrupt(100)
    cli(*SYNTHETIC, *SPS)
    shutil.copytree(store, tmp_path / "copy")
    assert cli("fit", "--resume", only_run(store).run_id, "--store", tmp_path / "copy").code == 0
    assert outcome(tmp_path / "copy") == outcome(tmp_path / "whole")


def test_a_second_interrupt_ends_at_once(cli, interrupt, store, monkeypatch):
    interrupt(100)
    monkeypatch.setattr("bench.train.stop.ONE_REQUEST_SECONDS", 0)
    monkeypatch.setattr("bench.train.callbacks.Recorder._save", lambda *_: signal.raise_signal(signal.SIGINT))
    answer = cli(*SYNTHETIC, *SPS)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.splitlines()[-1] == "bench: interrupted"
    assert only_run(store).status == "killed"


def test_one_request_may_come_as_several_signals(cli, interrupt, store, monkeypatch):
    """A terminal sends Ctrl-C to all processes of a group, and a parent may pass it on."""
    interrupt(100)
    save = Recorder._save

    def save_and_interrupt(self, trainer):
        signal.raise_signal(signal.SIGTERM)
        save(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr("bench.train.stop.ONE_REQUEST_SECONDS", 1e9)
        patch.setattr(Recorder, "_save", save_and_interrupt)
        answer = cli(*SYNTHETIC, *SPS)
    assert answer.code == 130
    assert "stopped by SIGINT at step 100" in answer.out
    assert Store(store).last_checkpoint([only_run(store).run_id])


def test_resuming_a_finished_run_returns_it(cli, store):
    first = cli(*SYNTHETIC, *SPS, "--json")
    assert cli("fit", "--resume", only_run(store).run_id, "--json").out == first.out


# -- what cannot be resumed -----------------------------------------------------------------------------------------


@pytest.fixture
def killed(cli, interrupt, store):
    interrupt(100)
    cli(*SYNTHETIC, *SPS)
    return only_run(store)


def refused(cli, *words: object) -> str:
    answer = cli("fit", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    return answer.err


def test_only_a_run_of_the_store_can_be_resumed(cli, killed, tmp_path):
    assert f"did you mean '{killed.run_id}'?" in refused(cli, "--resume", killed.run_id[:-1])
    assert f"there is no store {tmp_path}/none" in refused(cli, "--resume", killed.run_id, "--store", tmp_path / "none")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--opt.lr 2", "--opt.lr"),
        ("--seed 1", "--seed"),
        ("--rerun", "--rerun"),
        ("--tuned", "--tuned"),
        ("--config x.yaml", "--config"),
    ],
)
def test_a_resumed_run_keeps_its_settings(cli, killed, words, named):
    error = refused(cli, "--resume", killed.run_id, *words.split())
    assert "--resume takes the run's own settings" in error
    assert named in error


@pytest.mark.parametrize(("known", "name"), [(TASKS, "synthetic"), (OPTIMIZERS, "sps")])
def test_a_run_of_another_version_is_not_continued(cli, killed, monkeypatch, known, name):
    monkeypatch.setitem(known, name, replace(known[name], version=99))
    assert "was started with another version of its task or optimizer" in refused(cli, "--resume", killed.run_id)


def test_without_a_checkpoint_there_is_nothing_to_continue(cli, killed, store):
    Store(store).last_checkpoint([killed.run_id]).unlink()
    assert "was killed before its first checkpoint; train again without --resume" in refused(
        cli, "--resume", killed.run_id
    )
    assert cli(*SYNTHETIC, *SPS).code == 0


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def of_another_program(path: Path) -> None:
    torch.save({"callbacks": {}, "state_dict": {}}, path)


def without_curve(path: Path) -> None:
    for part in path.parent.glob("part-*"):
        part.unlink()


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("harm", [halve, of_another_program, without_curve])
def test_an_unusable_checkpoint_is_set_aside_and_the_run_restarts(cli, killed, store, tmp_path, harm):
    cli(*SYNTHETIC, *SPS, "--store", tmp_path / "whole")
    path = Store(store).last_checkpoint([killed.run_id])
    harm(path)
    answer = cli(*SYNTHETIC, *SPS)
    assert answer.code == 0
    (line,) = [line for line in answer.err.splitlines() if "checkpoint" in line]
    assert line.startswith(f"bench: warning: the checkpoint {path} cannot be used (")
    assert line.endswith("); it was renamed to last.unreadable; training starts from the beginning")
    assert outcome(store) == outcome(tmp_path / "whole")


@pytest.mark.deep
def test_a_checkpoint_of_lanes_is_left_to_lanes(cli, killed, store, tmp_path):
    cli(*SYNTHETIC, *SPS, "--store", tmp_path / "whole")
    path = Store(store).last_checkpoint([killed.run_id]).with_name("runs.jsonl")
    path.write_text(path.read_text().replace('"engine": "lightning"', '"engine": "lanes"'))
    assert Store(store).last_checkpoint([killed.run_id]) is None
    assert "was killed in a sweep, which trains it with others; repeat the sweep's command" in refused(
        cli, "--resume", killed.run_id
    )
    assert cli(*SYNTHETIC, *SPS).code == 0
    assert outcome(store) == outcome(tmp_path / "whole")


# -- in separate processes --------------------------------------------------------------------------------------


class Program:
    """A real `bench fit` that waits for its reader: its progress goes to a pipe with room for a few lines."""

    def __init__(self, *words: object) -> None:
        # As many threads as in this process: another number rounds differently.
        environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        command = [sys.executable, "-W", "error", "-m", "bench.cli", *map(str, words)]
        reading, writing = os.pipe()
        if sys.platform == "linux":
            import fcntl

            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True, env=environment)
        os.close(writing)
        self.lines = os.fdopen(reading, "rb", buffering=0)

    def until(self, reached: Callable[[], object]) -> None:
        """Let the program continue until the condition holds."""
        read = []
        while not reached():
            read.append(self.lines.readline())
            assert read[-1], f"the program ended early: {read}"

    def end(self) -> tuple[int, str]:
        """Let the program run to its end: its exit code and standard output."""
        self.lines.read()
        return self.process.wait(), self.process.stdout.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.lines.close()
        self.process.stdout.close()


LONG = (*SYNTHETIC, *SPS, "--trainer.max_steps", "2000")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A program for each signal, with its store; they start together, because starting takes long."""
    stores = {number: tmp_path_factory.mktemp(number.name) for number in (signal.SIGINT, signal.SIGTERM)}
    started = {
        number: (Program(*LONG, "--trainer.checkpoint_seconds", "1e-3", "--store", store), store)
        for number, store in stores.items()
    }
    yield started
    for program, _ in started.values():
        program.close()


@pytest.fixture(scope="module")
def whole(programs, tmp_path_factory):
    """The results of the uninterrupted run."""
    store = tmp_path_factory.mktemp("whole")
    with pytest.raises(SystemExit, match="0"):
        main([*LONG, "--store", str(store)])
    return outcome(store)


@pytest.mark.deep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside(cli, programs, whole, number):
    program, store = programs[number]
    program.until(lambda: any(read_curve(folder) for folder in store.glob("*")))
    run_id = only_run(store).run_id
    assert only_run(store).status == "running"
    busy = f"bench: error: run {run_id} is in training by another process\n"
    for words in (LONG, ("fit", "--resume", run_id)):
        assert cli(*words, "--store", store) == (2, "", busy)
    program.process.send_signal(number)
    code, out = program.end()
    assert code == 130
    assert f"stopped by {number.name} at step " in out
    assert only_run(store).status == "killed"
    assert 0 < only_run(store).steps < 2000
    assert cli("fit", "--resume", run_id, "--store", store).code == 0
    record, curve = outcome(store)
    record["config"]["trainer"]["checkpoint_seconds"] = 60.0
    del record["chosen"]["trainer.checkpoint_seconds"]
    assert (record, curve) == whole
