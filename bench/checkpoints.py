"""Checkpoints: written onto the disk before they count, and looked at before a run goes on from them."""

import sys
import zipfile
from pathlib import Path

import lightning.pytorch as pl
import torch

from bench.doctor import first_line
from bench.store.files import sync
from bench.store.load import is_there
from bench.store.tables import rows_of_raw

STEPS = "steps_done"
"""Key in a recorder's state: optimizer steps made."""


def save(trainer: pl.Trainer, path: Path) -> None:
    """Replace a checkpoint in one atomic step once the new one is on the disk; every rank calls this.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    trainer.save_checkpoint(temporary)
    if trainer.is_global_zero:
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


def usable(path: Path | None, *, runs: int = 1, put_aside: bool) -> bool:
    """Whether a run can go on from a checkpoint; all ranks that look at the same file find the same.

    Args:
        path: of the checkpoint, or None; the table of the curve lies beside it.
        runs: how many train together.
        put_aside: rename one that cannot be read and say so, so that the run starts afresh.
    """
    if path is None or is_there(path) is None:
        return False
    try:
        with zipfile.ZipFile(path) as file:
            if (torn := file.testzip()) is not None:
                raise ValueError(f"{torn} is torn")
        states = torch.load(path, map_location="meta", weights_only=True)["callbacks"].values()
        steps = next((state[STEPS] for state in states if isinstance(state.get(STEPS), int)), None)
        if steps is None:
            raise ValueError("it does not say how many steps were made")
        if (rows := rows_of_raw(path.with_name("curve.raw"), runs)) < steps:
            raise ValueError(f"the curve beside it has {rows} rows of {steps} steps")
    except Exception as error:
        if put_aside:
            aside = path.with_suffix(".unreadable")
            path.replace(aside)
            print(
                f"bench: warning: the checkpoint {path} cannot be used ({first_line(error)}); it is put aside as {aside.name}, and"
                " the training starts afresh",
                file=sys.stderr,
            )
        return False
    return True
