"""Journal of a matrix's verdicts in a store: the same command continues after a kill. Imports no torch."""

import fcntl
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.check.report import Report, Verdict
from bench.errors import UserError
from bench.output import writing
from bench.store.block import CHECKS


class Journal:
    """A file with a line for each verdict, written by one process.

    Args:
        store: the store; its folder of checks has the file.
        what: everything that determines the verdicts, as plain values; each `what` has its own file.

    Attributes:
        known: by optimizer, its report when the file was opened.

    Raises:
        UserError: the file cannot be written, or another process writes it.
    """

    def __init__(self, store: Path, what: Any) -> None:
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
        self.path = store / CHECKS / f"matrix-{digest}.jsonl"
        with writing(self.path, "--store"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.path.open("ab+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise UserError(f"another process is making this matrix ({self.path}): wait for it, or end it") from None
        self.known: dict[str, Report] = {}
        self._read()

    def _read(self) -> None:
        self.file.seek(0)
        text = self.file.read()
        whole = text.rpartition(b"\n")[0] + b"\n" * (b"\n" in text)
        self.file.truncate(len(whole))  # a line truncated by a kill
        for line in whole.splitlines():
            with suppress(ValueError, KeyError, TypeError):  # not written by this program
                entry = json.loads(line)
                known = self.known.get(entry["name"], Report(entry["name"]))
                verdict, about = Verdict(**entry["verdict"]), entry["about"] or known.about
                valid = isinstance(entry["about"], dict) and isinstance(verdict.measured, float | int | None)
                if valid and verdict.check not in {each.check for each in known.verdicts}:
                    self.known[entry["name"]] = replace(known, about=about, verdicts=(*known.verdicts, verdict))

    def write(self, report: Report, verdict: Verdict) -> None:
        """Add a verdict; it is in the file when this returns."""
        entry = {"name": report.name, "about": dict(report.about), "verdict": asdict(verdict)}
        os.write(self.file.fileno(), json.dumps(entry).encode() + b"\n")

    def close(self, *, done: bool) -> None:
        """Release the file, or remove it if nothing is left to do."""
        if done:
            self.path.unlink(missing_ok=True)
        self.file.close()
