"""Checkpoints: written onto the disk before they count, and looked at before a run goes on from them."""

import pickle
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard, TypeVar

import lightning.pytorch as pl
import numpy as np
import torch

from bench.errors import UserError, first_line
from bench.memory import ran_out
from bench.store.files import sync
from bench.store.load import is_there
from bench.store.tables import TABLES, read_raw

T = TypeVar("T")

STEPS = "steps_done"
"""Key in a recorder's state: optimizer steps made."""
_PARTS = {"callbacks", "optimizer_states", "state_dict"}


def save(trainer: pl.Trainer, path: Path) -> None:
    """Replace a checkpoint in one atomic step once the new one is on the disk; every rank calls this.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    try:
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    except BaseException:
        if trainer.is_global_zero:
            with suppress(OSError):  # on a full disk this makes room for the record
                temporary.unlink(missing_ok=True)
        raise


def usable(path: Path | None, runs: int = 1, *, put_aside: bool) -> bool:
    """Whether runs can go on from a checkpoint and the curve beside it; the answer depends on the files alone.

    Args:
        path: of the checkpoint, or None.
        runs: how many train together.
        put_aside: rename one that cannot be read and say so, so that the run starts afresh.
    """
    if path is None or is_there(path) is None:
        return False
    try:
        with zipfile.ZipFile(path) as file:
            if packed := [part.filename for part in file.infolist() if part.compress_type != zipfile.ZIP_STORED]:
                raise ValueError(f"{packed[0]} is compressed, and torch never compresses")
            if (torn := file.testzip()) is not None:
                raise ValueError(f"{torn} is torn")
        found = torch.load(path, map_location="meta", weights_only=True)
        if lacking := _PARTS - found.keys():
            raise ValueError(f"it has no {min(lacking)}")
        steps = [state[STEPS] for state in found["callbacks"].values() if isinstance(state.get(STEPS), int)]
        if not steps:
            raise ValueError("it does not record the number of steps")
        tables = {name: path.with_name(f"{name}.raw") for name in TABLES}
        curve = read_raw(tables["curve"], runs, 0).get("step", np.empty(0))
        if not all(map(is_there, tables.values())) or (curve <= steps[0]).sum() != steps[0]:
            raise ValueError(f"it is of step {steps[0]}, but its tables end earlier")
    except MemoryError:
        raise  # that is no fault of the file
    except Exception as error:
        if put_aside:
            set_aside(path, error)
        return False
    return True


class DoesNotFit(Exception):
    """A checkpoint that can be read, and not be restored; it was put aside."""


def or_afresh(train: Callable[[bool], T]) -> T:
    """Train from the checkpoint there is; where that does not fit, from the start.

    Args:
        train: is told whether to look for a checkpoint.
    """
    try:
        return train(True)
    except DoesNotFit:
        pass  # and with it goes what the first try holds
    return train(False)


def is_misfit(error: BaseException) -> TypeGuard[Exception]:
    """Whether an error that was raised while a checkpoint was restored is the checkpoint's fault."""
    return isinstance(error, Exception) and not isinstance(error, UserError) and not ran_out(error)


def set_aside(path: Path, error: Exception) -> None:
    """Rename a checkpoint that cannot be used for this reason, and say so."""
    aside = path.with_suffix(".unreadable")
    with suppress(OSError):  # another process has just ended the run
        path.replace(aside)
        unsafe = isinstance(error, pickle.UnpicklingError)  # torch would advise to load it nevertheless
        why = "it holds more than numbers" if unsafe else first_line(error)
        print(
            f"bench: warning: the checkpoint {path} cannot be used ({why}); it was renamed to {aside.name}; training"
            " starts from the beginning",
            file=sys.stderr,
        )
