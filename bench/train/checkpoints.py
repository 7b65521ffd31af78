"""Checkpoints: written safely to disk, and validated before a run resumes from them."""

import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeGuard, TypeVar

import lightning.pytorch as pl
import torch

from bench.errors import UserError, first_line
from bench.output import remark
from bench.store.files import sync
from bench.store.load import is_there
from bench.store.tables import read_parts
from bench.train.memory import ran_out

P = ParamSpec("P")
T = TypeVar("T")

STEPS = "steps_done"
"""Key in a recorder's state: optimizer steps taken."""
_PARTS = {"callbacks", "optimizer_states", "state_dict"}


def save(trainer: pl.Trainer, path: Path) -> None:
    """Replace a checkpoint atomically once the new one is on disk; every rank calls this.

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
    """Whether runs can resume from a checkpoint and its curve; the answer depends only on the files.

    Args:
        path: of the checkpoint, or None.
        runs: number of runs that train together.
        put_aside: rename an unreadable one with a warning, so that the run starts from the beginning.
    """
    if path is None or is_there(path) is None:
        return False
    try:
        with zipfile.ZipFile(path) as file:
            if (torn := file.testzip()) is not None:
                raise ValueError(f"{torn} is torn")
        content = torch.load(path, map_location="meta", weights_only=True)
        if lacking := _PARTS - content.keys():
            raise ValueError(f"it has no {min(lacking)}")
        steps = [state[STEPS] for state in content["callbacks"].values() if isinstance(state.get(STEPS), int)]
        if not steps:
            raise ValueError("it does not record the number of steps")
        if len(read_parts(path.parent, runs, steps[0]).curve) != steps[0]:
            raise ValueError(f"it is of step {steps[0]}, but its curve ends earlier")
    except MemoryError:
        raise  # not a fault of the file
    except Exception as error:
        if put_aside:
            set_aside(path, error)
        return False
    return True


class DoesNotFit(Exception):
    """A checkpoint is readable but cannot be restored; it was renamed."""


def or_afresh(train: Callable[P, T]) -> Callable[P, T]:
    """`train`, which continues from a checkpoint; if that does not fit, it begins again, with `resume=False`."""

    @wraps(train)
    def trained(*args: P.args, **options: P.kwargs) -> T:
        try:
            return train(*args, **options)
        except DoesNotFit:
            pass  # leaving the block frees the memory of the first attempt
        options["resume"] = False
        return train(*args, **options)

    return trained


def is_misfit(error: BaseException) -> TypeGuard[Exception]:
    """Whether the checkpoint caused an error during its restoration."""
    return isinstance(error, Exception) and not isinstance(error, UserError) and not ran_out(error)


def set_aside(path: Path, error: Exception) -> None:
    """Rename an unusable checkpoint, with a warning."""
    aside = path.with_suffix(".unreadable")
    with suppress(OSError):  # another process has just ended the run
        path.replace(aside)
        unsafe = isinstance(error, pickle.UnpicklingError)  # torch's message advises to load it anyway
        why = "it holds more than numbers" if unsafe else first_line(error)
        remark(
            "warning",
            f"the checkpoint {path} cannot be used ({why}); it was renamed to {aside.name}; training starts from the"
            " beginning",
        )
