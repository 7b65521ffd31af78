"""The parameters of a task's model with their shapes and roles, for `bench show TASK`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from bench.config.checks import check_files
from bench.config.run_config import resolve
from bench.errors import UserError
from bench.grammar.help import row
from optimizers import ROLES
from tasks.core.files import only_reading


class Alike(TypedDict):
    """Parameters of one role and shape.

    Keys:
        names: with `*` for the number of a layer.
        role: one of `optimizers.ROLES`.
        shape: of each.
        pieces: matrices in each, stacked by rows.
    """

    names: list[str]
    role: str
    shape: list[int]
    pieces: int


def model_parameters(task: str, data: Path, settings: Mapping[str, Any]) -> list[Alike] | str:
    """The parameters of a task's model, or why they are unknown; nothing is downloaded or written.

    Args:
        task: its name.
        data: the folder of the datasets.
        settings: of the task, in dotted form.
    """
    any_size = {"trainer.batch_size": "full"}  # so it fits any data
    try:
        with only_reading():
            config = resolve({"task": task, "opt": "sgd", "data": data, "device": "cpu", **any_size, **settings})
            check_files(config)
            from bench.train.runner import build  # imports torch, which takes seconds

            model, _ = build(config)
    except UserError as error:
        return str(error)
    alike: dict[tuple[str, tuple[int, ...], int], list[str]] = {}
    for parameter in model.parameter_roles():
        names = alike.setdefault((parameter.role, parameter.shape, parameter.pieces), [])
        if (name := re.sub(r"\.\d+\.", ".*.", parameter.name)) not in names:
            names.append(name)
    order = list[str](ROLES)
    return [
        Alike(names=alike[each], role=each[0], shape=[*each[1]], pieces=each[2])
        for each in sorted(alike, key=lambda each: order.index(each[0]))
    ]


def parameter_lines(found: list[Alike] | str) -> list[str]:
    """The result of `model_parameters` for a terminal."""
    if isinstance(found, str):
        return [f"parameters: unknown ({found})"]
    lines = ["parameters by role, for --opt.ROLE.NAME and --opt.rest:"]
    for own in found:
        size = " x ".join(map(str, own["shape"])) + f", {own['pieces']} matrices by rows" * (own["pieces"] > 1)
        lines += row(own["role"], f"{', '.join(own['names'])}: {size}")
    return lines
