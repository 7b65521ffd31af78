"""Roles of parameters, and their division among methods and hyperparameters. Nothing here imports torch.

A hyperparameter `vector.weight_decay` applies to one role and overrides `weight_decay`; `rest` names another optimizer,
with hyperparameters such as `rest.lr` and `rest.vector.lr`. The first one then updates only the matrices.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optimizers.plugins import load
from optimizers.registry import BY_FLAG, OptimizerSpec

Role = Literal["matrix", "embedding", "head", "vector"]
ROLES: dict[Role, str] = {
    "matrix": "weights of hidden layers",
    "embedding": "embeddings of tokens, patches and positions",
    "head": "weights of the output layer",
    "vector": "biases, gains of norms and other scalars",
}
REST = "rest"
"""The hyperparameter that names the method for all other roles, and the prefix of its hyperparameters."""
RESERVED = {*ROLES, REST}
"""First parts of dotted hyperparameters, which no optimizer can have as its name."""


@dataclass(frozen=True)
class Parameter:
    """Facts about a trained parameter.

    A tensor of the role `matrix` with more than two dimensions is a stack of matrices. `pieces` is the number of
    matrices of the same shape stacked along its rows (3 for queries, keys and values in one tensor), which methods for
    matrices treat separately.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    pieces: int = 1


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters, by their indices among all, with these roles and the same hyperparameters.

    `values` are the hyperparameters that differ from the method's.
    """

    indices: tuple[int, ...]
    values: Mapping[str, Any]
    roles: tuple[Role, ...]


@dataclass(frozen=True)
class Part:
    """A method with the arguments of its constructor and the groups of its parameters, the largest first."""

    spec: OptimizerSpec
    hyperparameters: Mapping[str, Any]
    groups: Sequence[ParameterGroup]


def split_rest(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Hyperparameters of the first method, and of the one for the rest."""
    prefix = f"{REST}."
    first = {name: value for name, value in values.items() if name != REST and not name.startswith(prefix)}
    return first, {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def divide(
    spec: OptimizerSpec, rest: OptimizerSpec | None, values: Mapping[str, Any], parameters: Sequence[Parameter]
) -> list[Part]:
    """The methods of a run with their parameters, in order; the one with the largest group first.

    `rest` updates all parameters except matrices; None if the first method updates all. The hyperparameters of both are
    dotted.

    Raises:
        ValueError: there is no matrix for the first method, a value is for a role that no parameter of its method has,
            or `OptimizerSpec.groups` raises or returns something else than mappings.
    """
    every = range(len(parameters))
    of_first, of_rest = split_rest(values)
    if rest is None:
        return [_part(spec, of_first, every, parameters)]
    matrices = [i for i in every if parameters[i].role == "matrix"]
    if not matrices:
        raise ValueError(f"{REST}={rest.name}: there is no parameter of the role matrix for {spec.name}")
    left = [i for i in every if parameters[i].role != "matrix"]
    parts = [_part(spec, of_first, matrices, parameters)]
    if left:
        parts.append(_part(rest, of_rest, left, parameters, f"{REST}."))
    return sorted(parts, key=lambda part: -_size(part.groups[0].indices, parameters))


def _part(
    spec: OptimizerSpec,
    values: Mapping[str, Any],
    indices: Iterable[int],
    parameters: Sequence[Parameter],
    prefix: str = "",
) -> Part:
    common = {name: value for name, value in values.items() if "." not in name}
    by_role: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        role, dot, option = name.partition(".")
        if dot:
            by_role.setdefault(role, {})[option] = value
    indices = list(indices)
    roles = dict.fromkeys(parameters[i].role for i in indices)
    for role, options in by_role.items():
        if role not in roles:
            option, value = next(iter(options.items()))
            why = f"this model has no parameter of the role {role} for {spec.name}, only of {', '.join(roles)}"
            raise ValueError(f"{prefix}{role}.{option}={value}: {why}; remove it")
    declared = _declared(spec, [parameters[i] for i in indices], common)
    members: dict[Any, tuple[list[int], dict[str, Any]]] = {}
    for i, values_of_parameter in zip(indices, declared, strict=True):
        role, pieces = parameters[i].role, parameters[i].pieces if spec.traits.by_piece else 1
        # By role and not by values, so that runs with different values have the same groups.
        key = repr(sorted(values_of_parameter.items())), role if role in by_role else None, pieces
        group_values = {**values_of_parameter, **by_role.get(role, {})} | ({"pieces": pieces} if pieces > 1 else {})
        members.setdefault(key, ([], group_values))[0].append(i)
    groups = [
        ParameterGroup(tuple(places), group_values, tuple(dict.fromkeys(parameters[i].role for i in places)))
        for places, group_values in members.values()
    ]
    groups.sort(key=lambda group: -_size(group.indices, parameters))
    return Part(spec, common, groups)


def _declared(
    spec: OptimizerSpec, parameters: Sequence[Parameter], values: Mapping[str, Any]
) -> Sequence[Mapping[str, Any]]:
    """The hyperparameters of each parameter by `OptimizerSpec.groups`."""
    if not spec.groups:
        return [{}] * len(parameters)
    function = load(spec.groups)
    try:
        return [dict(group) for _, group in zip(parameters, function(parameters, values), strict=True)]
    except Exception as error:  # of a plug-in
        what = "a mapping for each parameter"
        raise ValueError(f"{spec.groups} raises {type(error).__name__}: {error}; it must return {what}") from error


def _size(indices: Iterable[int], parameters: Sequence[Parameter]) -> int:
    return sum(math.prod(parameters[i].shape) for i in indices)


def flags(parameters: Sequence[Parameter], values: Mapping[str, Any]) -> list[dict[str, bool]]:
    """For each parameter, whether the method for matrices trains it."""
    return [{"use_muon": parameter.role == "matrix"} for parameter in parameters]


def flagged(spec: OptimizerSpec, params: Any) -> Any:
    """Parameters, or groups of them; for a spec with `BY_FLAG` as groups of matrices and of others, with `use_muon`."""
    if spec.groups != BY_FLAG:
        return params
    given = list(params)
    groups = given if isinstance(given[0], dict) else [{"params": given}]
    halves = [
        {**group, "use_muon": flag, "params": [p for p in group["params"] if (p.ndim == 2) is flag]}
        for flag in (True, False)
        for group in groups
    ]
    return [group for group in halves if group["params"]]
