"""Slurm: an array of workers for a study. Slurm and the database do the rest."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.plugins import naming
from bench.process import bench_command
from bench.tuning.study import Study
from bench.tuning.trials import StudySpec
from optimizers.plugins import absolute

MOST_TASKS = 8
"""Tasks of the array if nothing is said, unless the design has fewer trials. Ours."""


def script(
    name: str,
    spec: StudySpec,
    trials: int,
    workers: str,
    places: Mapping[str, Any],
    engine: str,
    options: Sequence[str],
) -> str:
    """A script for `sbatch` that works on a study: an array with a worker for each task.

    The address of the database, which may hold a password, is no part of it: `sbatch` hands BENCH_STORAGE on.

    Args:
        name: of the study; it need not be there yet.
        spec: of the study.
        trials: of its design.
        workers: tasks of the array, or `auto`.
        places: where data and store are, on a file system that all nodes see.
        engine: as in `bench.tuning.worker.Worker`.
        options: further options of sbatch, such as `--partition=gpu`.

    Raises:
        UserError: the number of workers is none, or a path cannot be written in a script.
    """
    devices, nodes = spec.trainer.devices, spec.trainer.num_nodes
    try:
        count = min(trials, MOST_TASKS) if workers == "auto" else int(workers)
    except ValueError:
        count = 0
    if count < 1:
        raise UserError(f"--workers {workers}: write how many tasks the array has (--workers 8), or auto")
    if nodes > 1:
        raise UserError(f"--trainer.num_nodes {nodes}: a task of the array has one machine; leave it out")
    places = {name: Path(place).absolute() for name, place in places.items()}
    for place, path in places.items():
        if re.search(r"[\\\r\n]", str(path)):
            raise UserError(
                f"--{place} {str(path)!r}: sbatch cannot read a path with a backslash or a line break;"
                " choose another folder"
            )
    command = bench_command("worker", "--study", name, "--engine", engine)
    command += ["--shared-by", str(count), *naming({kind: absolute(each) for kind, each in spec.names.items()})]
    command += [word for name, place in places.items() for word in (f"--{name}", str(place))]
    gpus = [] if spec.settings["device"] == "cpu" else [f"--gres=gpu:{devices}"]
    directives = [
        f"--job-name=bench-{name}", f"--array=0-{count - 1}", "--nodes=1", "--ntasks=1", *gpus,
        "--requeue", "--signal=B:USR1@90", "--open-mode=append",
        f"--output={str(places['store']).replace('%', '%%')}/slurm-%A_%a.log",
    ]  # fmt: skip
    lines = [[directive] for directive in directives] + ([list(options)] if options else [])
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {' '.join(map(_quoted, line))}" for line in lines),
            ": ${BENCH_STORAGE:?set it to the address of the database}",
            'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
            "unset SLURM_NTASKS SLURM_PROCID  # a run on several devices starts its own processes",
            f"{shlex.join(command)} &",
            "worker=$!",
            (
                "# Asked to stop, the worker saves its run and gives its trial back;"
                " before the time limit the task goes on afterwards."
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
    """A word as sbatch reads its own lines: with a backslash that escapes everywhere, and # as the end."""
    if re.fullmatch(r"[\w%+,./:=@^-]+", word):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def submit(study: Study, text: str, folder: Path) -> str:
    """Write a script and give it to sbatch.

    Args:
        study: what it works on.
        text: of the script.
        folder: where it is kept.

    Returns:
        What sbatch said.

    Raises:
        UserError: there is no sbatch, or it refuses.
    """
    path = folder.absolute() / f"slurm-{study.name}.sh"
    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm: there is no sbatch here; log in to the cluster, or write the script with --slurm --print"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    environment = os.environ | {"BENCH_STORAGE": study.studies.url.render_as_string(hide_password=False)}
    done = subprocess.run(["sbatch", str(path)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"--slurm: sbatch refused {path}: {' '.join(done.stderr.split())}")
    return f"{done.stdout.strip()}, with {path}"
