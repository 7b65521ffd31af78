"""How lanes step: one pure update for all of them, or each lane's own `torch.optim` instance.

Shapes: G problems, R lanes of each.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from bench.lanes.replay import Replay
from optimizers import STEP_KEYWORDS
from optimizers.groups import Part
from optimizers.hybrid import own_norms
from optimizers.norms import scalar_dtype
from optimizers.pure import State, Tensors, norm
from optimizers.step_size import once_known
from tasks.core.schedule import Schedule

if TYPE_CHECKING:
    from bench.lanes.engine import Lanes

Weights = dict[str, Tensor]
"""Parameters by name, shape (G, R, ...)."""


class Together:
    """One pure update for all lanes (`OptimizerSpec.update`), which may be replayed (`bench.lanes.replay`).

    A step replaces the tensors in `weights`, those of the lanes.
    """

    def __init__(self, lanes: "Lanes", *, replayed: bool) -> None:
        self.weights = lanes.weights
        self.state: dict[str, Any] = {}  # tensors of shape (G * R, ...)
        first = next(iter(self.weights.values()))
        self.parts, every = lanes.plan.parts, [plan.parts for row in lanes.plans for plan in row]
        self._plain = len(self.parts) == len(self.parts[0].groups) == 1
        # Hyperparameters by name of each group, by its name: values of all lanes, and tensors of each lane's value.
        self.shared: dict[str, dict[str, Any]] = {}
        self.varying: dict[str, dict[str, Tensor]] = {}
        self.initial_lr: dict[str, Tensor] = {}
        for i, part in enumerate(self.parts):
            defaults = {k: p.default for k, p in inspect.signature(part.spec.cls).parameters.items() if k != "params"}
            for j, group in enumerate(part.groups):
                name = f"{i}.{j}"
                given = [defaults | {**parts[i].hyperparameters, **parts[i].groups[j].values} for parts in every]
                self.shared[name], self.varying[name] = _gathered(given, [*defaults | dict(group.values)], first)
                if len(self.parts) == 1 or not part.spec.traits.unscheduled:
                    self.initial_lr[name] = self.varying[name]["lr"]
        self._moved: Sequence[str] = ()
        self._names = {name: i for i, name in enumerate(lanes.trained)}
        keywords = set[str]().union(*(part.spec.update_keywords for part in self.parts))
        self.keywords = sorted(STEP_KEYWORDS if keywords and len(self.parts) > 1 else keywords)
        self._updates: dict[tuple[str, ...], Callable[..., Any]] = {}
        self._replayed = replayed

    def update(self, names: tuple[str, ...]) -> Callable[..., Any]:
        """The update of the parameters with these names, for all lanes.

        It is a function of gradients, state, weights, loss, hyperparameters that vary, and norms.
        """
        if names not in self._updates:
            places = {self._names[name]: k for k, name in enumerate(names)}
            groups = [
                [[places[i] for i in group.indices if i in places] for group in part.groups] for part in self.parts
            ]

            def update_lane(grads: Any, state: Any, params: Any, loss: Tensor, varying: Any, norms: Any) -> Any:
                given = dict(zip(self.keywords, norms, strict=True))
                hparams = {name: values | varying[name] for name, values in self.shared.items()}
                if self._plain:
                    return self.parts[0].spec.pure_update(grads, state, params, loss, hparams["0.0"], **given)
                return self._joined(groups, grads, state, params, loss, hparams, given)

            self._updates[names] = Replay(vmap(update_lane)) if self._replayed else vmap(update_lane)
        return self._updates[names]

    def _joined(
        self,
        places: Sequence[Sequence[Sequence[int]]],
        grads: Tensors,
        state: State,
        params: Tensors,
        loss: Tensor,
        hparams: Mapping[str, Any],
        norms: Mapping[str, Tensor],
    ) -> tuple[Tensors, State]:
        """The updates of all groups of all methods, of one run; `places` has the parameters of each method's groups."""
        moved = list(params)
        new, shown = dict[str, Any](), dict[int, Tensor]()
        for i, (part, groups) in enumerate(zip(self.parts, places, strict=True)):
            given, keywords = norms, part.spec.update_keywords
            if len(self.parts) > 1 and keywords:
                mine = [grads[place] for group in groups for place in group]
                given = own_norms(norm(mine), norms["grad_norm"], norms["loss_grad_norm"]) if mine else norms
            for j, group in enumerate(groups):
                if not group:
                    continue
                name = f"{i}.{j}"
                stepped, new[name] = part.spec.pure_update(
                    [grads[place] for place in group],
                    state.get(name, {}),
                    [params[place] for place in group],
                    loss,
                    hparams[name],
                    **{keyword: given[keyword] for keyword in keywords},
                )
                for place, p in zip(group, stepped, strict=True):
                    moved[place] = p
                shown |= zip(group, new[name].get("evaluated", ()), strict=False)
                if "step_sizes" not in new:  # the curve has those of the first group
                    new["step_sizes"] = new[name].get("step_sizes", (hparams[name]["lr"],) * 2)
        if shown:
            new["evaluated"] = [shown.get(place, p).clone() for place, p in enumerate(moved)]
        return moved, new

    def follow(self, schedule: Schedule, evaluations: NDArray[np.int_]) -> None:
        """Set the learning rates after so many gradients of each lane, shape (G, R)."""
        factor = schedule.factor(int(evaluations.max()))  # that of all lanes that still train
        for name, lr in self.initial_lr.items():
            self.varying[name]["lr"] = lr * factor

    @torch.no_grad()
    def step(self, loss: Tensor, grads: Weights, norms: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Update the weights; returns raw and applied step sizes, shape (G, R).

        The loss and the norms by `STEP_KEYWORDS` have that shape too, gradients by name (G, R, ...).
        """
        shape, self._moved = loss.shape, list(grads)
        params, self.state = self.update(tuple(grads))(
            [g.flatten(0, 1) for g in grads.values()],
            self.state,
            [self.weights[name].flatten(0, 1) for name in grads],
            loss.flatten(),
            self.varying,
            [norms[name].flatten() for name in self.keywords],
        )
        for name, p in zip(grads, params, strict=True):
            self.weights[name] = p.unflatten(0, shape)
        raw, applied = self.state.get("step_sizes", (self.varying["0.0"]["lr"],) * 2)
        return raw.view(shape), applied.view(shape)

    @contextmanager
    def in_eval_mode(self) -> Iterator[None]:
        """Swap in the evaluation weights that some updates keep (`evaluated` in the state) while the context lasts."""
        kept = dict(self.weights)
        for name, p in zip(self._moved, self.state.get("evaluated", ()), strict=False):
            self.weights[name] = p.unflatten(0, kept[name].shape[:2])
        yield
        self.weights |= kept

    def state_dict(self) -> dict[str, Any]:
        """The state of all lanes."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        device = next(iter(self.weights.values())).device
        self.state = tree_map(lambda x: x.to(device), state)


_NO_LR = inspect.Parameter("lr", inspect.Parameter.KEYWORD_ONLY, default=None)


def have_pure_update(parts: Sequence[Part]) -> bool:
    """Whether the methods of a run can step as pure functions.

    Plug-ins are not applied group by group: their updates may combine all gradients. A constructor without a number as
    `lr` is not supported, since schedules and curves of lanes need one.
    """
    is_single = len(parts) == 1 and len(parts[0].groups) == 1
    return all(
        part.spec.pure_update is not None
        and inspect.signature(part.spec.cls).parameters.get("lr", _NO_LR).default is not None
        and part.spec.groups is None
        and (len(part.groups) == 1 or not part.spec.traits.coupled)
        and (is_single or part.spec.package is None)
        for part in parts
    )


class OneByOne:
    """Each lane's own optimizer, on its view of the stacked weights."""

    def __init__(self, lanes: "Lanes") -> None:
        self.lanes = lanes
        G, R = lanes.shape
        self.views = [{name: lanes.weights[name][g, r] for name in lanes.trained} for g in range(G) for r in range(R)]
        self.params = [{name: nn.Parameter(view) for name, view in views.items()} for views in self.views]
        self.optimizers: list[Any] = [
            plan.make_optimizer(params.values())
            for plan, params in zip((plan for row in lanes.plans for plan in row), self.params, strict=True)
        ]
        self.sizes: list[tuple[Any, Any]] = [(0.0, 0.0)] * (G * R)

    def follow(self, schedule: Schedule, evaluations: NDArray[np.int_]) -> None:
        """Set the learning rates after so many gradients of each lane, shape (G, R)."""
        for optimizer, count in zip(self.optimizers, evaluations.flat, strict=True):
            schedule.apply(optimizer, int(count))

    def step(self, loss: Tensor, grads: Weights, norms: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Update the weights; arguments and result as in `Together.step`."""
        lanes, R = self.lanes, loss.shape[1]
        step, alive = lanes.steps_done, lanes.alive.ravel()
        # Copies: autograd may return one tensor for two parameters, and the optimizer may change gradients in place.
        copies = {name: g.flatten(0, 1).clone().unbind() for name, g in grads.items()}
        losses = loss.flatten().unbind()
        arguments = {name: norms[name].flatten().unbind() for name in lanes.plan.step_keywords}
        for i, (optimizer, params) in enumerate(zip(self.optimizers, self.params, strict=True)):
            if not alive[i]:
                continue
            for name, p in params.items():
                p.grad = copies[name][i] if name in copies else None

            def again(needed: bool, i: int = i, params: dict[str, nn.Parameter] = params) -> Tensor:
                lanes.evaluations[i // R, i % R] += needed
                value, fresh = lanes.evaluate_lane(step, i // R, i % R, params)
                for name, p in params.items():
                    p.grad = fresh[name].clone() if name in fresh else None
                return value

            closure = once_known(losses[i], list(params.values()), again)
            try:
                optimizer.step(closure, **{name: values[i] for name, values in arguments.items()})
            except SystemExit as error:  # would end the process without a word
                raise RuntimeError(f"the step raises SystemExit: {error}") from error
            self._take_over(i)
            lr = optimizer.param_groups[0].get("lr", nan)
            self.sizes[i] = getattr(optimizer, "step_sizes", None) or (lr, lr)
        raw, applied = (_column(sizes, loss) for sizes in zip(*self.sizes, strict=True))
        return raw.view_as(loss), applied.view_as(loss)

    @contextmanager
    def in_eval_mode(self) -> Iterator[None]:
        """Swap in the evaluation weights that some optimizers keep (schedule-free methods)."""
        self._switch("eval")
        yield
        self._switch("train")

    def _switch(self, mode: str) -> None:
        for i, optimizer in enumerate(self.optimizers):
            if hasattr(optimizer, mode):
                getattr(optimizer, mode)()
                self._take_over(i)

    @torch.no_grad()
    def _take_over(self, i: int) -> None:
        """Copy back a lane's parameters if its optimizer has moved them to other memory (`p.data = ...`)."""
        for name, p in self.params[i].items():
            view = self.views[i][name]
            if p.data_ptr() != view.data_ptr():
                view.copy_(p)

    def state_dict(self) -> dict[str, Any]:
        """The states of all optimizers; they may contain more than tensors."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from states."""
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _column(sizes: Sequence[Tensor | float], like: Tensor) -> Tensor:
    """Step sizes of lanes, shape (lanes,)."""
    if any(isinstance(size, Tensor) for size in sizes):
        return torch.stack([torch.as_tensor(size, dtype=like.dtype, device=like.device) for size in sizes])
    return torch.tensor(sizes, dtype=like.dtype, device=like.device)


def beside(x: Tensor, like: Tensor) -> Tensor:
    """View a tensor of shape (G, R) with the number of dimensions of `like`, shape (G, R, ...), for broadcasting."""
    return x.view(*x.shape, *[1] * (like.ndim - x.ndim))


def _gathered(
    given: Sequence[Mapping[str, Any]], names: Sequence[str], like: Tensor
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Hyperparameters of all lanes: the values that all share, and tensors of the others and of `lr`."""
    shared, varying = dict[str, Any](), dict[str, Tensor]()
    for name in names:
        values = [hparams[name] for hparams in given]
        if name != "lr" and all(value == values[0] for value in values):
            shared[name] = values[0]
        else:
            varying[name] = torch.tensor(values, dtype=scalar_dtype(like.dtype), device=like.device)
    return shared, varying
