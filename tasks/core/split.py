"""The validation split of training samples: fixed, and the same on every platform."""

from functools import lru_cache
from hashlib import sha256

import numpy as np
import torch
from torch import Tensor


@lru_cache
def validation_rows(n: int, n_val: int, salt: str) -> tuple[Tensor, Tensor]:
    """Validation rows of n training samples, ascending, and training rows in hashed order; a prefix is a fair sample.

    Rows are put in the order of SHA-256 of "salt:row", with the dataset's name as salt; the first n_val, in [1, n), are
    the validation set. No random generator is involved, so the split cannot change with a library's version.
    """
    order = sorted(range(n), key=lambda row: sha256(f"{salt}:{row}".encode()).digest())
    return torch.from_numpy(np.sort(np.array(order[:n_val]))), torch.tensor(order[n_val:])


def split_hash(n: int, n_val: int, salt: str) -> str:
    """First 16 hex digits of SHA-256 over the ascending validation rows as decimal numbers joined by commas."""
    rows = validation_rows(n, n_val, salt)[0].tolist()
    return sha256(",".join(map(str, rows)).encode()).hexdigest()[:16]
