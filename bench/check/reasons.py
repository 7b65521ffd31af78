"""Reasons why an optimizer cannot be built, or cannot step, with its default arguments."""

import inspect
from typing import Any

_SAID = {
    "does not support dense gradients": "it takes sparse gradients only",
    "process group has not been initialized": "it needs processes of torch.distributed",
    "active drivers": "it needs a GPU",
    "You need to install": "it needs another package",
    "No module named": "it needs another package",
    "double": "its step takes no float64",
}
"""Texts of errors, ignoring case, and their meaning."""


def why(cls: Any, said: str) -> str:
    """The reason why a class is not built, followed by the error.

    Args:
        cls: the class.
        said: the error.
    """
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.kind < p.VAR_KEYWORD]
    names = [p.name for p in parameters if p.kind != p.VAR_POSITIONAL]
    first, required = names[0] if names else "", [p.name for p in parameters[1:] if p.default is p.empty]
    wrapped = next((name for name in names if "optimizer" in name.lower()), None)
    reason = ""
    if inspect.isabstract(cls) or "defaults" in required or "NotImplementedError" in said:
        reason = "it is an abstract base class"
    elif wrapped is not None:
        reason = f"it wraps another optimizer (argument {wrapped})"
    elif first in ("model", "module"):
        reason = f"it takes a model in place of parameters (argument {first})"
    elif first and not first.startswith(("param", "named_param")):
        reason = f"it takes {first} in place of parameters"
    elif required:
        reason = f"it has no default for {', '.join(required)}"
    else:
        reason = next((means for word, means in _SAID.items() if word.lower() in said.lower()), "")
    return f"{reason}: {said}" if reason else said
