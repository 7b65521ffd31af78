"""Slurm: a job array of workers for a plan or a study; they coordinate through the store or the database."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.errors import UserError
from bench.process import as_options, bench_command
from bench.store.files import making

MOST_TASKS = 8
"""Default number of tasks of the array, unless there are fewer runs or trials. Ours."""


def array_size(workers: str, most: int) -> int:
    """The number of tasks of the array; `auto` is at most the number of runs or trials."""
    return min(most, MOST_TASKS) if workers == "auto" else int(workers)


def absolute_places(places: Mapping[str, Path]) -> dict[str, Path]:
    """Absolute paths of data and store, for a script.

    Raises:
        UserError: sbatch cannot read a path.
    """
    there = {name: Path(place).absolute() for name, place in places.items()}
    for name, path in there.items():
        if re.search(r"[\\\r\n]", str(path)):
            raise UserError(
                f"--{name} {str(path)!r}: sbatch cannot read a path with a backslash or a line break;"
                " choose another folder"
            )
    return there


def script(
    name: str,
    words: Sequence[str],
    count: int,
    gpus: int,
    places: Mapping[str, Path],
    sbatch: str,
    *,
    only_if: Path | None = None,
) -> str:
    """A script for `sbatch`: a job array with one worker per task.

    It does not contain the database URL, which may include a password: `sbatch` passes BENCH_STORAGE on.

    Args:
        name: of the plan or the study.
        words: of a task's `bench` command, without the places.
        count: number of tasks of the array.
        gpus: GPUs of a task.
        places: paths of data and store, on a file system that all nodes see; Slurm's logs go to the store.
        sbatch: further options of sbatch, as typed, such as `--partition=gpu`.
        only_if: a file that exists while work is left; if None, workers need a database (BENCH_STORAGE).

    Raises:
        UserError: a quote of `sbatch` is not closed, or sbatch cannot read a path.
    """
    places = absolute_places(places)
    try:
        options = shlex.split(sbatch)
    except ValueError as error:
        raise UserError(f"--sbatch {sbatch}: {str(error).lower()}") from None
    directives = [
        f"--job-name=bench-{name}",
        f"--array=0-{count - 1}",
        "--nodes=1",
        "--ntasks=1",
        *([f"--gres=gpu:{gpus}"] if gpus else []),
        "--requeue",
        "--signal=B:USR1@90",
        "--open-mode=append",
        f"--output={str(places['store']).replace('%', '%%')}/slurm-%A_%a.log",
    ]
    lines = [[directive] for directive in directives] + ([options] if options else [])
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {' '.join(map(_quoted, line))}" for line in lines),
            ": ${BENCH_STORAGE:?set it to the address of the database}"
            if only_if is None
            else f"[ -e {shlex.quote(str(only_if))} ] || exit 0  # others have made all runs",
            'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
            "unset SLURM_NTASKS SLURM_PROCID  # a run on several devices starts its own processes",
            f"{shlex.join(bench_command(*words, *as_options(places)))} &",
            "worker=$!",
            (
                "# Asked to stop, the worker saves its runs and gives them back;"
                " before the time limit the task is requeued."
            ),
            "trap 'kill -TERM $worker' TERM",
            "trap 'again=1; kill -TERM $worker' USR1",
            "wait $worker; code=$?",
            "while kill -0 $worker 2>/dev/null; do wait $worker; code=$?; done",
            '[ -z "$again" ] || scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
            "exit $code",
            "",
        ]
    )


def _quoted(word: str) -> str:
    """A word quoted for an #SBATCH line: there a backslash always escapes, and # starts a comment."""
    if re.fullmatch(r"[\w%+,./:=@^-]+", word):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def need_slurm() -> None:
    """Refuse to submit where there is no Slurm.

    Raises:
        UserError: there is no sbatch.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm: there is no sbatch here; log in to the cluster, or write the script with --slurm --print"
        )


def submit(name: str, text: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Write a script and submit it with sbatch.

    Returns:
        The output of sbatch, and the path of the script.

    Raises:
        UserError: there is no sbatch, or it refuses.
    """
    need_slurm()
    path = folder.absolute() / f"slurm-{name}.sh"
    with making(folder):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    command, given = ["sbatch", str(path)], os.environ | dict(environment)
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"--slurm: sbatch refused {path}: {' '.join(done.stderr.split())}")
    return f"{done.stdout.strip()}, with {path}"
