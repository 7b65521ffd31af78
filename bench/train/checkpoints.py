"""Checkpoints: written safely to disk, and validated before a run resumes from them."""

import pickle
import zipfile
from contextlib import suppress
from pathlib import Path

import lightning.pytorch as pl
import torch

from bench.errors import first_line
from bench.output import remark
from bench.store.block import read_parts
from bench.store.files import is_file, sync

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


def usable_steps(path: Path | None, *, put_aside: bool) -> int:
    """The step of a checkpoint from which its runs can resume, with their curves; 0 if they must begin anew.

    The answer depends only on the files. With `put_aside`, an unreadable checkpoint is renamed with a warning.
    """
    if path is None or not is_file(path):
        return 0
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
        curves = read_parts(path.parent, steps[0]).get("curve", {}).values()
        if steps[0] and {len(curve["step"]) for curve in curves} != {steps[0]}:
            raise ValueError(f"it is of step {steps[0]}, but its curve ends earlier")
    except MemoryError:
        raise  # not a fault of the file
    except Exception as error:
        with suppress(OSError):  # another process has just ended the run
            if put_aside:
                aside = path.replace(path.with_suffix(".unreadable")).name
                unsafe = isinstance(error, pickle.UnpicklingError)  # torch's message advises to load it anyway
                why = "it holds more than numbers" if unsafe else first_line(error)
                what = f"the checkpoint {path} cannot be used ({why}); it was renamed to {aside}"
                remark("warning", f"{what}; training starts from the beginning")
        return 0
    return steps[0]
