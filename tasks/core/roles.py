"""Roles of a model's parameters: a default from its modules, corrected by the task."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch import nn

from optimizers.groups import ROLES, Parameter, Role

_EMBEDDINGS = nn.Embedding, nn.EmbeddingBag, nn.Conv1d, nn.Conv2d, nn.Conv3d
"""Modules whose weights map tokens and patches to vectors."""
COMPOSITION: Mapping[str, Role] = {"*.composition.*": "vector"}
"""Small weights that mix heads; not matrices of a hidden layer. Ours."""


def parameters_with_roles(model: nn.Module, roles: Mapping[str, Role], pieces: Mapping[str, int]) -> list[Parameter]:
    """Facts about each trained parameter, in the order of `model.parameters()`.

    By default a parameter with fewer than two dimensions is a `vector`, a weight of an embedding or a convolution an
    `embedding`, and all others a `matrix`; modules do not identify a `head`. Declared roles, and numbers of matrices of
    one shape stacked by rows, are by patterns of parameter names (`*` matches anything); the first match counts.
    """
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for what, patterns in {"roles": roles, "pieces": pieces}.items():
        if missing := sorted(name for name in patterns if "*" not in name and name not in every):
            raise ValueError(f"{what} of {type(model).__name__}: it has no parameter {missing[0]}")
    for pattern, role in roles.items():
        if role not in ROLES:
            raise ValueError(f"roles of {type(model).__name__}: {pattern} has {role!r}; roles are {', '.join(ROLES)}")
    modules = dict(model.named_modules())
    parameters: list[Parameter] = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        cut = next((n for pattern, n in pieces.items() if fnmatchcase(name, pattern)), 1)
        if cut > 1 and (p.ndim < 2 or p.shape[-2] % cut):
            raise ValueError(f"{type(model).__name__}: {name} of shape {tuple(p.shape)} cannot be cut into {cut}")
        declared: Role | None = next((role for pattern, role in roles.items() if fnmatchcase(name, pattern)), None)
        is_embedding = isinstance(modules[name.rpartition(".")[0]], _EMBEDDINGS)
        default: Role = "vector" if p.ndim < 2 else "embedding" if is_embedding else "matrix"
        parameters.append(Parameter(name, tuple(p.shape), declared or default, cut))
    return parameters
