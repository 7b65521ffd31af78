"""Reasons why an optimizer cannot be built, or cannot step, with its default arguments."""

import inspect
from typing import Any

from optimizers import OptimizerSpec

_SAID = {
    "does not support dense gradients": "it takes sparse gradients only",
    "process group has not been initialized": "it needs processes of torch.distributed",
    "active drivers": "it needs a GPU",
    "You need to install": "it needs another package",
    "No module named": "it needs another package",
    "double": "its step takes no float64",
}
"""Texts of errors, ignoring case, and their meaning."""


def explained(spec: OptimizerSpec | None, said: str) -> str:
    """An error, after the reason that the optimizer's class shows, if any."""
    try:
        reason = "" if spec is None else _reason(spec.cls, said)
    except Exception:  # a class that cannot be inspected
        reason = ""
    return f"{reason}: {said}" if reason else said


def _reason(cls: Any, said: str) -> str:
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.kind < p.VAR_KEYWORD]
    names = [p.name for p in parameters if p.kind != p.VAR_POSITIONAL]
    first, required = names[0] if names else "", [p.name for p in parameters[1:] if p.default is p.empty]
    wrapped = next((name for name in names if "optimizer" in name.lower()), None)
    if inspect.isabstract(cls) or "defaults" in required or "NotImplementedError" in said:
        return "it is an abstract base class"
    if wrapped is not None:
        return f"it wraps another optimizer (argument {wrapped})"
    if first in ("model", "module"):
        return f"it takes a model in place of parameters (argument {first})"
    if first and not first.startswith(("param", "named_param")):
        return f"it takes {first} in place of parameters"
    if required:
        return f"it has no default for {', '.join(required)}"
    return next((means for word, means in _SAID.items() if word.lower() in said.lower()), "")
