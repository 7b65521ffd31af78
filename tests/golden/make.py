"""Write the golden files of this folder: `uv run python -m tests.golden.make [boards|run_ids|training|claims]...`.

They hold what must not change: boards of the shipped results, ids of runs, values of training, verdicts of claims.
Everything comes from commands, so that the code behind them may change. A file changes only in a commit that says why.
"""

import io
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.cli import main
from bench.machine import cpu_name

FOLDER = Path(__file__).parent
REFERENCE = FOLDER.parents[1] / "results" / "reference" / "runs"
BOARDS = ("quality", "pairs", "speed", "theory")
DETAILS = ("options", "runs", "conformance", "flags", "versions", "machines", "run_ids")
"""Columns of boards that are no results."""
STOCHASTIC = ("sgd", "sgdm", "sngd", "sps", "momo", "adam", "adamw", "sfadamw", "muon")
OPTIMIZERS = ("gd", "ngd", "ps", *STOCHASTIC)
TASKS = {
    "synthetic": "--trainer.max_steps 101",
    "synthetic_joint": "--trainer.max_steps 101",
    "mha_dm1": "--trainer.max_steps 101",
    "mnist": "--task.n_train 500 --trainer.batch_size 50 --trainer.max_steps 4",
    "lm": "--task.layers 1 --task.width 32 --trainer.batch_size 4 --trainer.max_steps 10",
}
"""Settings of the trainings; with 101 steps, row 100 is the loss after 100 steps."""
ENGINES = ("lightning", "lanes")


def run(words: str) -> str:
    """The standard output of a command, which must succeed."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(io.StringIO()) as err:
        try:
            main(shlex.split(words))
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"bench {words}: {err.getvalue()}") from None
    out.seek(0)
    return out.read()


def boards() -> Iterator[dict[str, Any]]:
    """Each row of the boards of the shipped reference results."""
    answer = run(f"leaderboard --no-reference --store {shlex.quote(str(REFERENCE))} --board {','.join(BOARDS)} --json")
    for board in json.loads(answer):
        for table in board["tables"]:
            for row in table["rows"]:
                results = {key: value for key, value in row.items() if key not in DETAILS}
                yield {"board": board["board"], "table": table["title"], **results}


def run_ids() -> Iterator[dict[str, Any]]:
    """The ids of the configurations in `configurations.txt`."""
    for words in (FOLDER / "configurations.txt").read_text("utf-8").splitlines():
        yield {"words": words, "id": json.loads(run(f"fit {words} --dry-run --json"))["run_id"]}


def claims() -> Iterator[dict[str, Any]]:
    """The verdict on each shipped claim."""
    for table in json.loads(run("reproduce --claims --json"))[0]["tables"]:
        if table["title"] == "claims":
            for row in table["rows"]:
                yield {"experiment": row["experiment"], "claim": row["claim"], "verdict": row["said"]}


def training(tasks: Iterable[str] = tuple(TASKS), engines: Iterable[str] = ENGINES) -> Iterator[dict[str, Any]]:
    """The last recorded loss and the final metric of each optimizer at its defaults, trained singly and as lanes."""
    query = (
        "select opt, max(final) as final, max(step) as step, max_by(loss, step) as loss"
        " from runs join curves using (run_id) group by opt order by opt"
    )
    for task in tasks:
        for engine in engines:
            with TemporaryDirectory() as folder:
                store = f"--store {shlex.quote(folder)}"
                for opt in STOCHASTIC if "batch_size" in TASKS[task] else OPTIMIZERS:
                    run(f"fit --task {task} --opt {opt} {TASKS[task]} --seeds 1 --engine {engine} --device cpu {store}")
                for row in json.loads(run(f'sql "{query}" --no-reference {store} --json')):
                    yield {"task": task, "engine": engine, **row}


def machine() -> dict[str, str]:
    """What exact equality of floating point numbers depends on."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": cpu_name().split("(")[0].split()[0],  # its vendor: MKL takes other kernels on AMD
    }


PARTS = {"boards": boards, "run_ids": run_ids, "training": training, "claims": claims}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        with (FOLDER / f"{part}.jsonl").open("w", encoding="utf-8") as file:
            for row in PARTS[part]():
                print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
    (FOLDER / "machine.json").write_text(json.dumps(machine()) + "\n", "utf-8")
