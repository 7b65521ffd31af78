"""`make gpu OUT=DIR`: tests, speed and reference runs on the GPU of this machine, in parts that fit into minutes.

    DIR/gpu.jsonl      a line for each finished part: results and machine
    DIR/gpu.md         the same as tables
    DIR/runs-TASK.zip  a bundle of the runs of a task of the reference suite; `bench merge` copies it
    DIR/studies.db     their studies

Each part is a separate process and writes its line when it is done. The same command continues with the missing parts,
also in a later session if DIR still has the results so far.
"""

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
"""Seconds between a part's SIGTERM and SIGKILL: the suite writes a checkpoint, and its runs are bundled."""
EVERY = 60
"""Seconds between two bundles of a task's runs, so that an interruption loses no more."""
POINTS = 200
"""Rows that each curve of a bundle keeps, as in results/reference."""


def main() -> int:
    """Do the missing parts within the time limit; returns 0: all done, 1: a part failed, 3: the time was too short."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for all results; its contents are kept")
    parser.add_argument("--minutes", type=float, default=8, help="start no part after this many minutes (default: 8)")
    parser.add_argument("--device", help="cuda or cpu (default: cuda if there is one)")
    parser.add_argument("--tiny", action="store_true", help="small models and few steps, as a smoke test")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"A,B of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--again", action="store_true", help="repeat parts that are done")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # for child processes: this part
    words = parser.parse_args()
    wanted = [part for part in words.parts.split(",") if part]
    for part in wanted:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; there are {', '.join(PARTS)}")
    if not words.minutes > 0:
        parser.error(f"--minutes {words.minutes:g}: it must be above 0")
    try:
        words.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {words.out}: {error.strerror}")
    if words.only:
        return one(words.only, words)
    deadline = time.monotonic() + 60 * words.minutes
    machine = facts(words.device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    done = [] if words.again else [line["part"] for line in lines(words.out) if same(line, machine, words.tiny)]
    code, short = 0, False
    for part in wanted:
        left = deadline - time.monotonic()
        if part in done:
            print(f"{part}: done earlier", flush=True)
        elif left < 5:
            short = True
            print(f"{part}: no time is left", flush=True)
        else:
            begun = time.monotonic()
            how = begin(part, left, words)
            print(f"{part}: {how} in {time.monotonic() - begun:.0f} s", flush=True)
            short, code = short or how == "stopped", code or int(how == "failed")
    (words.out / "gpu.md").write_text(page(lines(words.out)), "utf-8")
    if short:
        print("the same command continues with the missing parts")
    return code or 3 * short


def begin(part: str, seconds: float, words: argparse.Namespace) -> str:
    """Run a part in a process for at most `seconds`; returns `done`, `stopped` or `failed`."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(words.out.absolute()), "--only", part]
    command += [*(["--device", words.device] if words.device else []), *(["--tiny"] if words.tiny else [])]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)
    try:
        code = process.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all its children
        process.wait()
        return "stopped"
    return "failed" if code else "done"


def environment() -> dict[str, str]:
    """Environment for processes of the suite, which need not be installed."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "BENCH_REFERENCE": ""}


def facts(device: str | None) -> dict[str, Any]:
    """The description of the machine, as in each line."""
    import torch

    from bench.runner import cpu_name

    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if kind == "cuda" else cpu_name()
    return {"device": kind, "name": name, "torch": torch.__version__}


def same(line: Mapping[str, Any], machine: Mapping[str, Any], tiny: bool) -> bool:
    """Whether a line is a success on this machine, at the same size."""
    return line.get("tiny") == tiny and line.get("ok") is True and line.get("machine") == machine


def lines(out: Path) -> list[dict[str, Any]]:
    """The lines written so far, except truncated ones."""
    found = []
    with suppress(FileNotFoundError):
        for text in (out / "gpu.jsonl").read_text("utf-8").splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                if isinstance(line, dict) and line.get("part") in PARTS:
                    found.append(line)
    return found


# -- parts ------------------------------------------------------------------------------------------------------------


def one(part: str, words: argparse.Namespace) -> int:
    """Run a part in this process and write its line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    machine, begun = facts(words.device), time.monotonic()
    found: dict[str, Any]
    if part == "doctor":
        done = subprocess.run(
            suite_command("doctor"), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
        ok, found = True, {"text": done.stdout}
    elif part == "tests":
        found = tests(words.tiny)
        ok = not found["failures"] and found["passed"] > 0
    elif part in SPEED:
        from bench.errors import UserError
        from benchmarks.gpu import speed

        try:
            rows = speed.SPEED[part](machine["device"], words.tiny)
        except UserError as error:  # data are missing
            print(f"{part}: {error}", file=sys.stderr)
            return 1
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
    with (words.out / "gpu.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return 0 if ok else 1


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
    """Train the reference suite on a task and bundle its runs every minute; returns success and the number of runs."""
    bundle, studies = words.out / f"runs-{task}.zip", words.out / "studies.db"
    with TemporaryDirectory() as folder:
        store, database = Path(folder) / "runs", Path(folder) / "studies.db"
        chosen: list[object] = [CELLS[task], "--task", task]
        if words.tiny:
            (Path(folder) / "tiny.yaml").write_text(TINY_SUITE % (20 + [*CELLS].index(task)))
            chosen = [Path(folder) / "tiny.yaml"]
        if bundle.is_file():
            subprocess.run(suite_command("merge", bundle, store), cwd=ROOT, env=environment(), check=True)
        if studies.is_file():
            copy(studies, database)
        command = suite_command(
            "suite",
            *chosen,
            "--store",
            store,
            "--storage",
            f"sqlite:///{database}",
            "-o",
            Path(folder) / "tuned",
            *(["--workers", 1] if device == "cpu" else []),
        )
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        process = subprocess.Popen(command, cwd=ROOT, env=environment() | hidden)
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(EVERY)
                kept = keep(store, bundle, database, studies)
                if process.returncode is not None:
                    break
        except SystemExit:  # the time is over
            process.terminate()
            process.wait()
            keep(store, bundle, database, studies)
            raise
    return process.returncode == 0, {"runs": kept}


def keep(store: Path, bundle: Path, database: Path, studies: Path) -> int:
    """Bundle the finished runs and copy the database; returns the number of runs.

    The database is copied first, so that the bundle has every run of the copied studies wherever a command is killed.
    """
    if database.is_file():
        copy(database, database.with_suffix(".kept"))
    done = subprocess.run(
        suite_command("bundle", "-o", bundle, "--points", POINTS, "--store", store),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return 0
    copy(database.with_suffix(".kept"), studies)
    return int(done.stdout.split(" runs")[0].split()[-1])


def copy(database: Path, to: Path) -> None:
    """Copy a SQLite database that other processes may be writing to."""
    temporary = to.with_name(f".{to.name}")
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(temporary)) as target:
        source.backup(target)
    temporary.replace(to)


# -- the page ---------------------------------------------------------------------------------------------------------


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """The latest line of each part and machine as Markdown."""
    from benchmarks.timing import Row, table

    latest = {(json.dumps(line["machine"]), line["part"], line["tiny"]): line for line in found}
    blocks = []
    for line in sorted(latest.values(), key=lambda line: (json.dumps(line["machine"]), PARTS.index(line["part"]))):
        machine = ", ".join(str(value) for value in line["machine"].values()) + (", tiny" if line["tiny"] else "")
        blocks.append(f"## {line['part']}: {machine}, {line['when']}, {line['seconds']:.0f} s\n")
        if "rows" in line:
            blocks.append(f"```\n{table([Row(**row) for row in line['rows']])}\n```\n")
        elif "text" in line:
            blocks.append(f"```\n{line['text'].strip()}\n```\n")
        elif "failures" in line:
            failures = "".join(f"- `{name}`: {why.splitlines()[0]}\n" for name, why in line["failures"].items())
            blocks.append(
                f"{line['passed']} passed, {line['skipped']} skipped, {len(line['failures'])} failed\n{failures}"
            )
        else:
            blocks.append(f"{line['runs']} runs are stored{'' if line['ok'] else ', and not all could be trained'}\n")
    return "\n".join(blocks)


if __name__ == "__main__":
    sys.exit(main())
