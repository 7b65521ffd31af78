"""The parameters of a task's model with their shapes and roles, as `bench show TASK` lists them."""

import re
from pathlib import Path

from bench.checks import check_files
from bench.config import resolve
from bench.errors import UserError
from bench.grammar.help import row
from optimizers import ROLES
from tasks.core.files import only_reading


def parameter_lines(task: str, data: Path) -> list[str]:
    """Parameters that are alike in one line, or why they are not known; nothing is downloaded or written for it.

    Args:
        task: name of a task, which has its defaults.
        data: where its data lie, from which its model takes its size.
    """
    try:
        with only_reading():
            any_size = {"trainer.batch_size": "full"}  # so it fits to any data
            config = resolve({"task": task, "opt": "sgd", "data": data, "device": "cpu", **any_size})
            check_files(config)
            from bench.runner import build  # with torch, which takes seconds to import

            model, _ = build(config)
    except UserError as error:
        return [f"parameters: not known here ({error})"]
    alike: dict[tuple[str, tuple[int, ...], int], list[str]] = {}
    for parameter in model.parameter_roles():
        names = alike.setdefault((parameter.role, parameter.shape, parameter.pieces), [])
        if (name := re.sub(r"\.\d+\.", ".*.", parameter.name)) not in names:
            names.append(name)
    order = list[str](ROLES)
    lines = ["parameters by role, for --opt.ROLE.NAME and --opt.rest:"]
    for role, shape, pieces in sorted(alike, key=lambda each: order.index(each[0])):
        size = " x ".join(map(str, shape)) + (f", {pieces} matrices by rows" if pieces > 1 else "")
        lines += row(role, f"{', '.join(alike[role, shape, pieces])}: {size}")
    return lines
