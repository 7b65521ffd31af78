"""`make gpu OUT=DIR`: tests, speed and reference runs on the GPU of this machine, in parts that fit into minutes.

    DIR/gpu.jsonl      a line for each finished part: results and machine
    DIR/gpu.md         the same as tables
    DIR/runs-TASK.zip  a store with the runs of a task of the reference suite, thinned as in results/reference
    DIR/studies.db     their studies

Each part is a separate process and writes its line when it is done. The same command continues with the missing parts,
also in a later session if DIR still has the results so far. Only one command at a time writes to DIR.
"""

import argparse
import errno
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn

from bench.errors import MAKE_ROOM, RunFailed, UserError, first_line, was_interrupted
from bench.output import remark
from bench.process import handle_signals

ROOT = Path(__file__).parents[2]
CELLS = {"cifar10": "vision", "mnist": "vision", "lm": "lm", "sst2": "sst2"}
"""Tasks of the reference suite and the suites they are in, the most valuable first."""
SPEED = ("steps", "runs", "bert", "lanes-synthetic", "lanes-mnist", "lanes-cifar10", "lanes-lm")
PARTS = ("doctor", "tests", *SPEED, *CELLS)
TINY_SUITE = """
title: tiny
tasks: {synthetic: {trainer.max_steps: %d}}
optimizers: [gd, ngd]
tune: {trials: 2, seeds: 1, sampler: qmc}
seeds: 2
"""
"""Replaces a task of the reference suite; each task has a different number of steps, hence different studies."""
GRACE = 45
"""Seconds between a part's SIGTERM and SIGKILL: the suite writes a checkpoint, and its runs are copied."""
EVERY = 60
"""Seconds between two copies of a task's runs, so that an interruption loses no more."""

MOST_FILES, MOST_MB = 8, 16
"""A machine with a GPU is often borrowed and hands back only a few small files."""
AGAIN = "the same command continues with the missing parts"


class Parser(argparse.ArgumentParser):
    """Reports errors on one line, as the suite does."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        remark("error", f"{message}; --help lists the options")
        sys.exit(UserError.exit_code)


def main() -> int:
    """Do the missing parts within the time limit.

    Returns:
        0: all done; 1: a part failed, or DIR is too large; 2: the request or a file of DIR is invalid; 3: the time was
        too short; 130: interrupted.
    """
    handle_signals()
    words = parsed()
    try:
        if words.only:
            with ending_with_parent():
                return one(words.only, words)
        return work(words)
    except UserError as error:
        remark("error", error)
        return error.exit_code
    except (Exception, KeyboardInterrupt) as error:
        if was_interrupted(error):
            if not words.only:
                print(f"bench: interrupted; {AGAIN}", file=sys.stderr)
            return 130
        if not isinstance(error, OSError):
            raise
        todo = MAKE_ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        place = error.filename2 or error.filename or words.out  # of a copy, where it goes
        remark("error", f"{place}: {error.strerror or error}{todo}")
        return RunFailed.exit_code


def parsed() -> argparse.Namespace:
    """The words of the command line."""
    parser = Parser(prog="python -m benchmarks.gpu", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for all results; its contents are kept")
    parser.add_argument("--minutes", type=float, default=8, help="start no part after this many minutes (default: 8)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there is one")
    parser.add_argument("--tiny", action="store_true", help="small models and few steps, as a smoke test")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"A,B of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--again", action="store_true", help="repeat parts that are done")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # for child processes: this part
    words = parser.parse_args()
    words.parts = words.parts.split(",")
    for part in words.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; there are {', '.join(PARTS)}")
    if not words.minutes > 0:
        parser.error(f"--minutes {words.minutes:g}: it must be above 0")
    return words


def work(words: argparse.Namespace) -> int:
    """Do the missing parts; returns the exit code."""
    with locked(words.out) as lock:
        deadline = time.monotonic() + 60 * words.minutes
        machine = facts(words.device)
        print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
        done = [] if words.again else [line["part"] for line in lines(words.out) if same(line, machine, words.tiny)]
        code, short = 0, False
        try:
            for part in words.parts:
                left = deadline - time.monotonic()
                if part in done:
                    print(f"{part}: done earlier", flush=True)
                elif left < 5:
                    short = True
                    print(f"{part}: no time is left", flush=True)
                else:
                    begun = time.monotonic()
                    own = begin(part, left, words, lock)
                    how = "stopped" if own is None else "failed" if own else "done"
                    print(f"{part}: {how} in {time.monotonic() - begun:.0f} s", flush=True)
                    short, code = short or own is None, code or own or 0
        finally:
            (words.out / "gpu.md").write_text(page(lines(words.out)), "utf-8")
    if short:
        print(AGAIN)
    for what in excess(words.out):
        remark("warning", what)
        code = code or RunFailed.exit_code
    return code or 3 * short


@contextmanager
def locked(out: Path) -> Iterator[IO[bytes]]:
    """The lock of the folder, which ends with the processes that have it; removes what killed ones left behind.

    Raises:
        UserError: another command has it, or the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / "gpu.jsonl").open("ab")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; name another folder") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"--out {out}: another `make gpu` writes there; wait for it, or end it") from None
        for task in CELLS:
            unfinished(out / f"runs-{task}.zip").unlink(missing_ok=True)
        unfinished(out / "studies.db").unlink(missing_ok=True)
        yield file


def begin(part: str, seconds: float, words: argparse.Namespace, lock: IO[bytes]) -> int | None:
    """Run a part in a process for at most `seconds`; returns its exit code (0, 1 or 2), or None if it was stopped.

    It holds the lock too, and ends when this process has ended, which it sees from its standard input.
    """
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(words.out.absolute()), "--only", part]
    command += [*(["--device", words.device] if words.device else []), *(["--tiny"] if words.tiny else [])]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, start_new_session=True, pass_fds=[lock.fileno()]
    )
    try:
        code = process.wait(seconds)
        return code if code in (0, UserError.exit_code) else RunFailed.exit_code
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        finally:  # also at a second Ctrl-C
            kill_group(process.pid)
            process.wait()


def kill_group(pid: int) -> None:
    """Kill the processes of a part, which this process leads, if there are any."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def ending_with_parent() -> Iterator[None]:
    """Within, stop as the parent would stop this part if the parent ends first: then standard input ends."""
    alone = threading.Event()

    def watch() -> None:
        os.read(0, 1)
        alone.set()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        kill_group(os.getpid())

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        if alone.is_set():
            kill_group(os.getpid())


def excess(out: Path) -> list[str]:
    """What exceeds the size of a result that a borrowed machine hands back."""
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    found = [
        f"{out / name} has {size / 1e6:.1f} MB, more than {MOST_MB}: copy it from this machine by other means"
        for name, size in sizes.items()
        if size > MOST_MB * 1e6
    ]
    if len(sizes) > MOST_FILES:
        found.append(f"--out {out} has {len(sizes)} files, more than {MOST_FILES}: move those that are not results")
    return found


def environment() -> dict[str, str]:
    """Environment for processes of the suite, which need not be installed."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "BENCH_REFERENCE": ""}


def facts(device: str | None) -> dict[str, Any]:
    """The description of the machine, as in each line.

    Raises:
        UserError: it has no such device.
    """
    import torch

    from bench.train.runner import cpu_name

    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise UserError("--device cuda: torch finds no such device on this machine; see `bench doctor`")
    kind = device or ("cuda" if there else "cpu")
    name = torch.cuda.get_device_name() if kind == "cuda" else cpu_name()
    return {"device": kind, "name": name, "torch": torch.__version__}


def same(line: Mapping[str, Any], machine: Mapping[str, Any], tiny: bool) -> bool:
    """Whether a line is a success on this machine, at the same size."""
    return line.get("tiny") == tiny and line.get("ok") is True and line.get("machine") == machine


def lines(out: Path) -> list[dict[str, Any]]:
    """The lines written so far, except truncated and damaged ones."""
    found = []
    with suppress(FileNotFoundError):
        for text in (out / "gpu.jsonl").read_text("utf-8", "replace").splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict) and line.get("part") in PARTS:
                    block(line)
                    found.append(line)
    return found


# -- parts ------------------------------------------------------------------------------------------------------------


def one(part: str, words: argparse.Namespace) -> int:
    """Run a part in this process and write its line; returns 0, or 1 if it failed.

    Raises:
        UserError: a file of the folder is damaged, or data are missing.
    """
    machine, begun = facts(words.device), time.monotonic()
    found: dict[str, Any]
    if part == "doctor":
        done = subprocess.run(
            suite_command("doctor"), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
        ok, found = not done.returncode, {"text": done.stdout + done.stderr}
    elif part == "tests":
        found = tests(words.tiny)
        ok = not found["failures"] and found["passed"] > 0
    elif part in SPEED:
        from benchmarks.gpu import speed

        rows = speed.SPEED[part](machine["device"], words.tiny)
        ok, found = True, {"rows": [vars(row) for row in rows]}
    else:
        ok, found = reference(part, machine["device"], words)
    line = {
        "part": part,
        "ok": ok,
        "tiny": words.tiny,
        "machine": machine,
        "seconds": round(time.monotonic() - begun, 1),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        **found,
    }
    add(words.out, line)
    return 0 if ok else 1


def add(out: Path, line: Mapping[str, Any]) -> None:
    """Add a line; one that was cut off before it ends here."""
    with (out / "gpu.jsonl").open("ab+") as file:
        file.seek(-min(1, file.seek(0, os.SEEK_END)), os.SEEK_END)
        file.write(b"\n" * (file.read(1) not in (b"", b"\n")) + json.dumps(line).encode() + b"\n")


def suite_command(*words: object) -> list[str]:
    """The command line of `bench` with these words."""
    return [sys.executable, "-P", "-m", "bench", *map(str, words)]


def tests(tiny: bool) -> dict[str, Any]:
    """Run the tests marked `gpu`: the number that passed, and names and messages of failures."""
    chosen = ["-k", "scaler or memory or alike"] if tiny else []
    with TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "gpu", "tests/test_gpu.py", *chosen]
        # Other versions of torch or Lightning have other warnings.
        command += [f"--junitxml={report}", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        if not report.is_file():
            return {"passed": 0, "skipped": 0, "failures": {"pytest": (done.stdout + done.stderr)[-2000:]}}
        cases = list(ET.parse(report).iter("testcase"))
    wrong = {
        f"{case.get('name')}": str(broken.get("message"))[:300]
        for case in cases
        for broken in (*case.findall("failure"), *case.findall("error"))
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - len(wrong) - skipped, "skipped": skipped, "failures": wrong}


def reference(task: str, device: str, words: argparse.Namespace) -> tuple[bool, dict[str, Any]]:
    """Train the reference suite on a task and copy its runs every minute; returns success and the number of runs."""
    packed, studies = words.out / f"runs-{task}.zip", words.out / "studies.db"
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (store := folder / "runs").mkdir()
        chosen: list[object] = [CELLS[task], "--task", task]
        if words.tiny:
            (folder / "tiny.yaml").write_text(TINY_SUITE % (20 + [*CELLS].index(task)))
            chosen = [folder / "tiny.yaml"]
        if packed.is_file():
            unpack(packed, store)
        if studies.is_file():
            copy(studies, store / "studies.db")
        command = suite_command(
            "suite",
            *chosen,
            "--store",
            store,
            "-o",
            folder / "tuned",
            *(["--workers", 1] if device == "cpu" else []),
        )
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        process = subprocess.Popen(command, cwd=ROOT, env=environment() | hidden)
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(EVERY)
                kept = keep(folder, packed, studies)
                if process.returncode is not None:
                    break
        finally:
            if process.returncode is None:  # the time is over, or the disk is full
                process.terminate()
                process.wait()
                keep(folder, packed, studies)
    return process.returncode == 0, {"runs": kept}


def unpack(packed: Path, store: Path) -> None:
    """Copy the runs of a zipped store into another one.

    Raises:
        UserError: it is damaged; training would replace it by one without its damaged runs.
    """
    from bench.store.merge import merge

    with TemporaryDirectory() as folder:
        try:
            shutil.unpack_archive(packed, folder)
            damaged: list[object] = [*merge([Path(folder)], store, print).damaged]
        except (shutil.ReadError, zipfile.BadZipFile, zlib.error) as error:
            damaged = [error]
    if damaged:
        raise UserError(f"{packed} is damaged: {damaged[0]}; move it elsewhere, then its runs are trained again")


def keep(folder: Path, packed: Path, studies: Path) -> int:
    """Zip a store with the finished runs and copy the database; returns the number of runs.

    The database is copied first, so that the store has every run of the copied studies wherever a command is killed.
    """
    from bench.store.stores import Stores
    from tools import thinning

    store = folder / "runs"
    if not (store / "studies.db").is_file():
        return 0
    stores = Stores([store])
    if not any(run.finished for run in stores.runs):
        return 0
    copy(store / "studies.db", folder / "kept.db")
    with TemporaryDirectory(dir=folder) as thin:
        kept = thinning.copy(stores, stores.runs, Path(thin))
        shutil.make_archive(str(folder / "kept"), "zip", thin)
    publish(folder / "kept.zip", packed)
    publish(folder / "kept.db", studies)
    return len(kept)


def copy(database: Path, to: Path) -> None:
    """Copy a SQLite database that other processes may be writing to.

    Raises:
        UserError: it is damaged, or the disk is full.
    """
    to.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
            source.backup(target)
            (found,) = target.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found.splitlines()[-1])
    except sqlite3.Error as error:
        todo = "free some space, or move a damaged one elsewhere"
        raise UserError(f"cannot copy the database {database} to {to}: {error}; {todo}") from None


def publish(path: Path, to: Path) -> None:
    """Copy a file as a whole."""
    temporary = unfinished(to)
    try:
        shutil.copyfile(path, temporary)
        temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


def unfinished(path: Path) -> Path:
    """The name of a file while it is written."""
    return path.with_name(f".{path.name}")


# -- the page ---------------------------------------------------------------------------------------------------------


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """The latest line of each part and machine as Markdown."""
    latest = {(json.dumps(line["machine"]), line["part"], line["tiny"]): line for line in found}
    ordered = sorted(latest.values(), key=lambda line: (json.dumps(line["machine"]), PARTS.index(line["part"])))
    return "\n".join(map(block, ordered))


def block(line: Mapping[str, Any]) -> str:
    """A line as Markdown.

    Raises:
        ValueError: it is damaged.
    """
    try:
        if not isinstance(line["tiny"], bool):
            raise TypeError("tiny is not a truth value")
        return _block(line)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"a damaged line: {first_line(error)}") from None


def _block(line: Mapping[str, Any]) -> str:
    from benchmarks.timing import Row, table

    machine = ", ".join(str(value) for value in line["machine"].values()) + (", tiny" if line["tiny"] else "")
    title = f"## {line['part']}: {machine}, {line['when']}, {line['seconds']:.0f} s\n\n"
    if "rows" in line:
        return f"{title}```\n{table([Row(**row) for row in line['rows']])}\n```\n"
    if "text" in line:
        return f"{title}```\n{line['text'].strip()}\n```\n"
    if "failures" in line:
        failures = "".join(f"- `{name}`: {why.splitlines()[0]}\n" for name, why in line["failures"].items())
        return f"{title}{line['passed']} passed, {line['skipped']} skipped, {len(line['failures'])} failed\n{failures}"
    return f"{title}{line['runs']} runs are stored{'' if line['ok'] else ', and not all could be trained'}\n"


if __name__ == "__main__":
    sys.exit(main())
