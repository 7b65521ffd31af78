"""A finding of `bench doctor`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report. A FAIL is something that will not work; its text says how to fix it."""

    level: Literal["ok", "note", "FAIL"]
    subject: str
    text: str
