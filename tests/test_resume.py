"""Interrupted runs: after a signal or a crash, a run continues bit for bit."""

import os
import signal
from pathlib import Path

import pytest
import torch

from bench.progress import Progress
from bench.store.stores import last_checkpoint
from optimizers import OPTIMIZERS
from tests.outcomes import outcome
from tests.stored import Store, read_curve

VIT = (
    "fit", "--task", "mnist", "--task.patch_size", "14", "--task.depth", "1", "--task.num_heads", "2",
    "--task.embed_dim", "8", "--task.mlp_width", "8", "--task.dropout", "0.3", "--task.flip", "--task.crop", "2",
    "--trainer.max_steps", "40", "--device", "cpu",
)  # fmt: skip
SYNTHETIC = (
    "fit", "--task", "synthetic", "--trainer.batch_size", "5", "--trainer.max_steps", "400",
    "--trainer.val_every", "10", "--device", "cpu",
)  # fmt: skip
SPS = ("--opt", "sps", "--opt.gamma", "2", "--opt.max_step", "5")


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
    "muon-and-sps-ema": (
        "--opt",
        "muon",
        "--opt.rest",
        "sps",
        "--opt.rest.gamma",
        "2",
        "--opt.rest.max_step",
        "5",
        "--trainer.average",
        "ema",
    ),
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
    answer = cli(*words)
    assert answer.code == 0, answer.err
    assert outcome(store) == outcome(tmp_path / "whole")
    assert len(read_curve(store / killed.run_id)) == 40


def test_a_resumed_run_counts_all_gradients_of_its_steps(cli, interrupt, store, tmp_path):
    words = (*SYNTHETIC, "--opt", "torch.optim:LBFGS", "--opt.max_iter", "3", "--opt.lr", "0.01")
    assert cli(*words, "--store", tmp_path / "whole").code == 0
    interrupt(20)
    assert cli(*words).code == 130
    assert cli(*words).code == 0
    assert outcome(store) == outcome(tmp_path / "whole")
    run = only_run(store)
    assert run.steps < 300 < 400 <= run.evaluations


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on(cli, interrupt, store, number):
    before = signal.getsignal(number)
    interrupt(100, number)
    answer = cli(*SYNTHETIC, *SPS)
    assert answer.code == 130
    killed = only_run(store)
    assert answer.out.startswith("synthetic sps: killed, ")
    assert f"note: stopped by {number.name} at step 100\n" in answer.out
    assert "the same command continues it\n" in answer.out
    assert (killed.status, killed.steps, killed.final, killed.best) == ("killed", 100, None, None)
    assert last_checkpoint(store, [killed.run_id])
    assert signal.getsignal(number) == before


def test_a_second_interrupt_ends_at_once(cli, interrupt, store, monkeypatch):
    interrupt(100)
    monkeypatch.setattr("bench.train.stop.ONE_REQUEST_SECONDS", 0)
    monkeypatch.setattr("bench.train.callbacks.Recorder._save", lambda *_: signal.raise_signal(signal.SIGINT))
    answer = cli(*SYNTHETIC, *SPS)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.splitlines()[-1] == "bench: interrupted"
    assert only_run(store).status == "killed"


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
    path = last_checkpoint(store, [killed.run_id])
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
    path = last_checkpoint(store, [killed.run_id]).with_name("runs.jsonl")
    path.write_text(path.read_text().replace('"engine": "lightning"', '"engine": "lanes"'))
    assert last_checkpoint(store, [killed.run_id]) is None
    assert cli(*SYNTHETIC, *SPS).code == 0
    assert outcome(store) == outcome(tmp_path / "whole")
