"""Roles of parameters, hyperparameters by role, and several methods as one optimizer."""

import io
import math
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bench.config.run_config import RunConfig, resolve, settings_of
from bench.config.values import read_seeds
from bench.errors import UserError
from bench.lanes.optimizers import have_pure_update
from bench.run_summary import remarks_on
from bench.sweeps.grid import configurations
from bench.train import runner
from bench.tuning.spec import read_space
from optimizers import OPTIMIZERS, ROLES, SPS, LogUniform, Muon, Parameter, global_norm
from optimizers.groups import divide
from optimizers.hybrid import Hybrid, make
from tasks.core.order import BatchOrder
from tasks.core.roles import parameters_with_roles
from tasks.core.schedule import Schedule
from tests import tiny, tiny_lm, tiny_text
from tests.equivalence import may_clip
from tests.test_lanes import block, fits, gap, lanes_of

SMALL = {"tiny": tiny.SIZES, "tiny_text": tiny_text.SIZES, "tiny_lm": tiny_lm.SIZES}


def config(task: str = "tiny", opt: str = "adamw", **words: Any) -> RunConfig:
    for spec in (tiny.TINY, tiny_text.TINY_TEXT, tiny_lm.TINY_LM):
        tiny.register(spec)
    named = {key.replace("__", "."): value for key, value in words.items()}
    return resolve({"task": task, "opt": opt, "device": "cpu", **SMALL.get(task, {}), **named})


def roles(task: str, **words: Any) -> dict[str, Parameter]:
    return {p.name: p for p in runner.build(config(task, **words))[0].parameter_roles()}


@pytest.mark.parametrize("options", [{}, {"task__attention": "fixed_head"}, {"task__attention": "dcmha"}])
@pytest.mark.parametrize("task", SMALL)
def test_every_parameter_of_a_model_has_its_role(task: str, options: dict[str, str]) -> None:
    model = runner.build(config(task, **options if task != "tiny_text" else {}))[0]
    parameters = model.parameter_roles()
    assert [p.name for p in parameters] == [name for name, p in model.named_parameters() if p.requires_grad]
    by_role = {role: [p.name for p in parameters if p.role == role] for role in ROLES}
    assert all(by_role.values())
    assert all("head" in name or "classifier" in name for name in by_role["head"])
    assert all(math.prod(p.shape) > 1 and len(p.shape) == 2 for p in parameters if p.role == "matrix")
    assert all("norm" not in p.name.lower() and "bias" not in p.name for p in parameters if p.role != "vector")


def test_any_model_has_roles_by_its_modules() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    model[1].bias.requires_grad_(False)
    parameters = parameters_with_roles(model, {"3.weight": "head"}, {"1.*": 3})
    assert [(p.name, p.shape, p.role, p.pieces) for p in parameters] == [
        ("0.weight", (5, 4), "embedding", 1),
        ("1.weight", (6, 4), "matrix", 3),
        ("2.weight", (6,), "vector", 1),
        ("2.bias", (6,), "vector", 1),
        ("3.weight", (2, 6), "head", 1),
        ("3.bias", (2,), "vector", 1),
    ]
    with pytest.raises(ValueError, match=r"0\.weight of shape \(5, 4\) cannot be cut into 2"):
        parameters_with_roles(model, {}, {"0.*": 2})


def test_a_value_by_role_is_part_of_the_identity() -> None:
    plain, by_role = config(), config(opt__vector__weight_decay=0, opt__embedding__lr="1e-3")
    assert "vector.weight_decay" not in plain.opt_options
    assert (by_role.opt_options["vector.weight_decay"], by_role.opt_options["embedding.lr"]) == (0.0, 1e-3)
    assert plain.run_id != by_role.run_id
    again = resolve(settings_of(by_role.model_dump()))
    assert again.run_id == by_role.run_id


def test_a_method_for_the_rest_is_resolved_with_its_values() -> None:
    options = config(opt="muon").opt_options
    assert (options["rest"], options["rest.lr"], options["rest.betas"]) == ("adamw", 1e-3, (0.9, 0.999))
    other = config(opt="sngd", opt__rest="sgd", opt__rest__lr="0.5", opt__rest__vector__weight_decay="0.1")
    assert (other.opt_options["rest.lr"], other.opt_options["rest.vector.weight_decay"]) == (0.5, 0.1)
    assert other.identity["rest"] == OPTIMIZERS["sgd"].version
    assert "rest" not in config().identity
    for resolved in (config(opt="muon"), other, config(opt="muon", opt__rest="none")):
        assert resolve(settings_of(resolved.model_dump())).run_id == resolved.run_id


def test_a_file_may_nest_roles(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("opt:\n  name: muon\n  lr: 0.1\n  rest: {name: adamw, lr: 3.0e-4, vector: {weight_decay: 0}}\n")
    tiny.register()
    options = resolve({"task": "tiny"}, config=path).opt_options
    expected = {"lr": 0.1, "rest": "adamw", "rest.lr": 3e-4, "rest.vector.weight_decay": 0}
    assert options | expected == options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"opt__vector__lrr": "1"}, "--opt.vector.lr"),
        ({"opt__rest": "adamm"}, "adamm"),
        ({"opt__rest__lr": "1"}, "unknown option '--opt.rest.lr'"),
        ({"opt__vecter__lr": "1"}, "did you mean '--opt.vector.lr'?"),
        ({"opt": "muon", "opt__vector__lr": "1"}, "did you mean '--opt.rest.vector.lr'?"),
    ],
)
def test_misspelt_roles_and_values_are_named(words: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=r"(?i)unknown|takes|number|did you mean|write|name it") as error:
        config(**words)
    assert message in str(error.value)


class OneFactor(torch.optim.SGD):
    """It keeps an argument for all parameters."""

    def __init__(self, params: Any, lr: float = 0.1, factor: float = 1.0) -> None:
        super().__init__(params, factor * lr)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--opt", "sngd", "--opt.rest", "adamw", "--opt.rest.lr", "-1"), "--opt.rest.lr=-1"),
        (("--opt", "torch.optim:Muon"), "--opt.rest adamw"),
        (("--opt", "tests.test_roles:OneFactor", "--opt.matrix.factor", "2"), "has one factor for all parameters"),
        (("--opt", "torch.optim:LBFGS", "--opt.rest", "adamw"), "so it must move all parameters"),
    ],
)
def test_impossible_roles_are_refused_in_one_line(cli, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    answer = cli("fit", "--task", "synthetic_joint", "--device", "cpu", "--store", tmp_path, *words,
                 "--trainer.max_steps", "3", "--trainer.batch_size", "full")  # fmt: skip
    assert answer.code != 0
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_the_optimizer_for_the_rest_gets_the_values_of_the_task(tmp_path: Path) -> None:
    tiny.register()
    words = {"task": "tiny", **tiny.SIZES, "opt": "muon", "opt.rest": "sps", "opt.rest.gamma": "2", "device": "cpu"}
    _, plan = runner.build(resolve({**words, "store": tmp_path}))
    assert [part.hyperparameters.get("batches_per_epoch") for part in plan.parts] == [None, 64 // 16]


def test_values_by_role_are_swept_and_tuned_over(tmp_path: Path) -> None:
    tiny.register()
    words = {"task": "tiny", **tiny.SIZES, "opt": "adamw,sgd"}
    configs, varied = configurations(
        words | {"opt.vector.weight_decay": "0,0.1", "opt.adamw.embedding.lr": "1e-3:1e-1:3"},
        read_seeds("1"),
        {"store": tmp_path, "device": "cpu"},
    )
    assert varied == ["opt.vector.weight_decay", "opt.embedding.lr"]
    assert Counter(c.opt for c in configs) == {"adamw": 6, "sgd": 2}
    space, fixed = read_space({"opt.rest.lr": "1e-4:1e-2", "opt.rest.vector.weight_decay": "0", "task": "tiny"}, "muon")
    assert space == {"opt.lr": LogUniform(1e-3, 1.0), "opt.rest.lr": LogUniform(1e-4, 1e-2)}
    assert fixed == {"opt.rest.vector.weight_decay": "0", "task": "tiny"}


EVIL = "import pathlib; pathlib.Path(__file__).with_name('ran').touch(); from torch.optim import SGD as X"


@pytest.mark.parametrize("rest", ["{}/evil.py:X", "torch.optim:SGD", "muon"])
def test_a_rest_outside_the_suite_is_never_imported(tmp_path: Path, rest: str) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    rest = rest.format(tmp_path)
    with pytest.raises(UserError, match=r"unknown --opt\.rest"):
        config(opt__rest=rest)
    stored = config()
    forged = stored.model_copy(update={"opt_options": stored.opt_options | {"rest": rest}})
    for use in (lambda: forged.rest_spec, lambda: forged.run_id, lambda: resolve(settings_of(forged.model_dump()))):
        with pytest.raises(UserError, match=r"unknown --opt\.rest"):
            use()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"opt__embedding__lr": "1"},
            "--opt.embedding.lr=1.0: this model has no parameter of the role embedding for adamw, only of matrix",
        ),
        (
            {"opt": "muon", "opt__rest__lr": "5"},
            "--opt.rest.lr 5.0: all parameters of attention_matrix are matrices, which muon moves",
        ),
    ],
)
def test_a_value_for_an_absent_role_is_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        runner.build(config("attention_matrix", **words))
    assert str(error.value).startswith(message)


def test_tuned_values_belong_to_their_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tuned" / "tiny"
    folder.mkdir(parents=True)
    (folder / "muon.yaml").write_text("task: tiny\nopt: {name: muon, lr: 0.5, rest.lr: 0.25}\n")
    (folder / "adam.yaml").write_text("task: tiny\nopt: {name: adam, lr: 0.5, vector.lr: 0.25}\n")

    def tuned(opt: str, **words: Any) -> dict[str, Any]:
        config()
        return resolve({"task": "tiny", "opt": opt, **words}, tuned=True).opt_options

    assert (tuned("muon")["rest.lr"], tuned("muon", **{"opt.rest": "adamw"})["rest.lr"]) == (0.25, 0.25)
    other = tuned("muon", **{"opt.rest": "sgd"})
    assert (other["lr"], other["rest.lr"]) == (0.5, 0.1)
    assert "rest.lr" not in tuned("muon", **{"opt.rest": "none"})
    assert tuned("adam")["vector.lr"] == 0.25
    assert "vector.lr" not in tuned("adam", **{"opt.rest": "sgd"})


parameters = st.lists(
    st.builds(
        Parameter,
        st.just("p"),
        st.tuples(st.sampled_from([3, 6]), st.integers(1, 9)),
        st.sampled_from([*ROLES]),
        st.sampled_from([1, 3]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(parameters, st.sets(st.sampled_from([*ROLES])), st.booleans())
def test_every_parameter_is_in_one_group_largest_first(every: list[Parameter], with_lr: set[str], hybrid: bool) -> None:
    with_lr &= {p.role for p in every}
    by_role = {f"{role}.lr": i for i, role in enumerate(sorted(with_lr))}
    values = {"lr": 0.1, **by_role}
    if hybrid:
        dotted = {f"rest.{name}" * ("matrix" not in name) or name: value for name, value in by_role.items()}
        values = {"lr": 0.1, "rest": "adamw", "rest.lr": 0.1, **dotted}
    rest = OPTIMIZERS["adamw"] if hybrid else None
    if hybrid and all(p.role != "matrix" for p in every):
        with pytest.raises(ValueError, match="no parameter of the role matrix for muon"):
            divide(OPTIMIZERS["muon"], rest, values, every)
        return
    parts = divide(OPTIMIZERS["muon"], rest, values, every)
    groups = [(part, group) for part in parts for group in part.groups]
    assert sorted(i for _, group in groups for i in group.indices) == list(range(len(every)))
    sizes = [sum(math.prod(every[i].shape) for i in group.indices) for _, group in groups]
    assert sizes[0] == max(sizes)
    for part, group in groups:
        for i in group.indices:
            used = {**part.hyperparameters, **group.values}
            assert used["lr"] == by_role.get(f"{every[i].role}.lr", 0.1)
            assert used.get("pieces", 1) == (every[i].pieces if part.spec.name == "muon" else 1)
            assert not hybrid or (part.spec.name == "muon") == (every[i].role == "matrix")


SCALED = '''
from torch.optim import SGD
from optimizers import LogUniform, OptimizerSpec

def by_layer(parameters, hparams):
    """Half the step for each further block, as in layer-wise scaling."""
    blocks = [int(p.name.split("blocks.")[1].split(".")[0]) + 1 if "blocks." in p.name else 0 for p in parameters]
    return [{"lr": hparams["lr"] * 0.5**block} for block in blocks]

SPEC = OptimizerSpec(name="layers", target="torch.optim.sgd:SGD", formula="", source="", groups="scaled:by_layer")
'''


def test_a_plug_in_may_give_each_parameter_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scaled.py").write_text(SCALED)
    monkeypatch.syspath_prepend(tmp_path)
    task, plan = runner.build(config(opt=f"{tmp_path}/scaled.py:SPEC", opt__lr=0.8, opt__vector__lr=0.01))
    optimizer = plan.make_optimizer(task.parameters())
    lrs = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for known, p in zip(task.parameter_roles(), task.parameters(), strict=True):
        block = int(known.name.split("blocks.")[1][0]) + 1 if "blocks." in known.name else 0
        assert lrs[id(p)] == (0.01 if known.role == "vector" else 0.8 * 0.5**block)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[{'lrr': 0.1} for _ in parameters]", "scaled:by_layer gives lrr, which"),
        ("[hparams['missing']]", "scaled:by_layer raises KeyError: 'missing'"),
    ],
)
def test_faulty_groups_of_a_plug_in_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: str, message: str
) -> None:
    (tmp_path / "scaled.py").write_text(re.sub(r"    return \[.*", f"    return {returned}", SCALED))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scaled", raising=False)
    settings = config(opt=f"{tmp_path}/scaled.py:SPEC")
    with pytest.raises(UserError, match=re.escape(message)):
        (lambda task, plan: plan.make_optimizer(task.parameters()))(*runner.build(settings))


@pytest.mark.parametrize(
    ("roles_", "pieces", "message"),
    [
        ({"0.wieght": "head"}, {}, "roles of Sequential: it has no parameter 0.wieght"),
        ({"0.*": "heads"}, {}, "roles of Sequential: 0.* has 'heads'; roles are matrix, embedding, head, vector"),
        ({}, {"1.weight": 2}, "pieces of Sequential: it has no parameter 1.weight"),
    ],
)
def test_faulty_roles_and_pieces_are_named(roles_: Any, pieces: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parameters_with_roles(nn.Sequential(nn.Linear(4, 6)), roles_, pieces)


NAMED = """
import torch

class ByName(torch.optim.SGD):
    def __init__(self, named_parameters, lr: float = 0.1):
        named = list(named_parameters)
        self.names = [name for name, _ in named]
        super().__init__([p for _, p in named], lr=lr)
"""


@pytest.mark.parametrize("rest", ["none", "adamw"])
def test_a_class_that_takes_named_parameters_gets_names(rest: str, tmp_path: Path, store: Path) -> None:
    (tmp_path / "named.py").write_text(NAMED)
    settings = config(opt=f"{tmp_path}/named.py:ByName", opt__rest=rest, trainer__max_steps=3, store=store)
    task, plan = runner.build(settings)
    optimizer: Any = plan.make_optimizer(task.parameters())
    (named,) = (part for part in getattr(optimizer, "parts", [optimizer]) if hasattr(part, "names"))
    assert named.names == [p.name for p in task.parameter_roles() if rest == "none" or p.role == "matrix"]
    assert runner.run(settings, progress=False).status == "completed"


def problem(seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=torch.float64)) for shape in ((4, 3), (6, 2), (3,))]


def loss_of(params: list[Any]) -> Tensor:
    a, b, c = params
    return (a @ c - 1).square().mean() + (b - 0.5).square().mean() + c.square().mean() / 10


def hybrid(params: list[Any], first: Any, second: Any) -> Hybrid:
    return Hybrid([first(params[:2]), second(params[2:])])


PAIRS: dict[str, tuple[Any, Any]] = {
    "muon+adamw": (lambda p: Muon(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
    "sps+sgd": (lambda p: SPS(p, c=2.0, gamma=2.0, max_step=0.5), lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)),
    "adamw+sps": (lambda p: torch.optim.AdamW(p, lr=0.01), lambda p: SPS(p, c=3.0)),
}


def train(optimizer: Any, params: list[Any], steps: int, clip: float | None = None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        norms: dict[str, Tensor] = {}
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(params, clip)
            norms = {"grad_norm": norm.clamp(max=clip), "loss_grad_norm": norm}
        optimizer.step(lambda loss=loss: loss.detach(), **norms)


def test_a_polyak_part_steps_by_its_unclipped_gradient() -> None:
    params, clip = problem(), 0.01
    before = [p.detach().clone() for p in params]
    loss = loss_of(params)
    grads = torch.autograd.grad(loss, params)
    norm = global_norm(grads)
    assert norm > 2 * clip
    train(hybrid(params, *PAIRS["sps+sgd"]), params, 1, clip)
    step = min(float(loss.detach()) / (2.0 * float(global_norm(grads[:2])) ** 2), 0.5)
    for p, q, g in zip(params[:2], before, grads, strict=False):
        torch.testing.assert_close(p.detach(), q - step * g * clip / norm, rtol=1e-5, atol=1e-9)


class MovesFirst(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad, alpha=0.1)
        return closure()


def test_a_part_that_moves_before_its_closure_is_refused() -> None:
    params = problem()
    one = hybrid(params, lambda p: MovesFirst(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1))
    with pytest.raises(RuntimeError, match="MovesFirst needs another loss than that of its first weights"):
        train(one, params, 1)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_resumed_hybrid_goes_on_bit_for_bit(pair: tuple[Any, Any]) -> None:
    params = problem()
    one = hybrid(params, *pair)
    train(one, params, 4)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    resumed = [nn.Parameter(p.detach().clone()) for p in params]
    again = hybrid(resumed, *pair)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert {id(p) for group in again.param_groups for p in group["params"]} == set(map(id, resumed))
    train(one, params, 4)
    train(again, resumed, 4)
    assert all(torch.equal(p, q) for p, q in zip(params, resumed, strict=True))


def test_a_schedule_leaves_methods_with_their_own_step_alone() -> None:
    every = [Parameter("a", (4, 3), "matrix"), Parameter("b", (6, 2), "matrix"), Parameter("c", (3,), "vector")]
    parts = divide(OPTIMIZERS["muon"], OPTIMIZERS["sps"], {"lr": 0.1, "rest": "sps", "rest.lr": 1.0}, every)
    optimizer = make(parts, problem(), every)
    Schedule("constant", 10, warmup=0.5).apply(optimizer, 0)
    assert [group["lr"] for group in optimizer.param_groups] == [pytest.approx(0.02), 1.0]


def role_of(name: str, p: Tensor) -> str:
    """The role of a parameter of the tiny ViT, by its name."""
    if p.ndim == 1:
        return "vector"
    return "head" if name == "model.head.weight" else "matrix" if ".blocks." in name else "embedding"


@pytest.mark.numeric
def test_a_run_with_groups_equals_a_plain_loop() -> None:
    by_role = {"opt": "adamw", "opt__lr": 0.003, "opt__vector__weight_decay": 0, "opt__embedding__lr": 0.01}
    cut = {"trainer__max_steps": 12, "task__dropout": 0.0, "trainer__gradient_clip_val": 0.02}
    settings = config(**by_role, **cut, precision="64-true")
    task, plan = runner.build(settings)
    plain, _ = runner.build(settings)
    runner.make_trainer(settings, []).fit(task, runner.StepRanges(task, 1000, 7))
    plain.double().data.to(torch.device("cpu"), torch.float64)
    order = BatchOrder(64, plan.batch_size, 0, torch.device("cpu"))
    of: dict[str, list[Tensor]] = {role: [] for role in ROLES}
    for name, p in plain.named_parameters():
        of[role_of(name, p)].append(p)
    assert {role: len(several) for role, several in of.items()} == Counter(p.role for p in task.parameter_roles())
    groups: list[dict[str, Any]] = [
        {"params": of["matrix"] + of["head"]},
        {"params": of["vector"], "weight_decay": 0.0},
        {"params": of["embedding"], "lr": 0.01},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.003)
    for step in range(12):
        plain.zero_grad()
        plain.loss(plain.data.batch("train", order.rows(step))).loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.02)
        optimizer.step()
    for (_, p), (_, expected) in zip(task.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(p.detach(), expected.detach(), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(
    ("words", "step_of"),
    [
        ({"opt": "adamw"}, ""),
        ({"opt": "adamw", "opt__vector__lr": 0.25}, "adamw: embedding and matrix and head"),
        ({"opt": "muon"}, "muon: matrix"),
    ],
)
def test_a_record_says_whose_step_sizes_the_curve_has(words: dict[str, Any], step_of: str, store: Path) -> None:
    result = runner.run(config(**words, trainer__max_steps=2, store=store), progress=False)
    assert result.step_of == step_of
    remarks = [line for line in remarks_on(result) if "step sizes in the curve" in line]
    assert bool(remarks) == bool(step_of)


LANES: dict[str, list[dict[str, Any]]] = {
    "adamw": [{"lr": 0.003, "vector.lr": 0.01}, {"lr": 0.001, "vector.lr": 0.001}],
    "momo": [{"lr": 0.05, "vector.lr": 0.1}, {"lr": 0.5, "vector.lr": 0.1}],
    "sngd": [{"lr": lr, "vector.max_step": 0.1, "head.momentum": 0.5} for lr in (0.05, 0.02)],
    "sps": [{"c": 8.0, "vector.c": 16.0, "max_step": 1.0}, {"c": 8.0, "vector.c": 8.0, "max_step": 0.5}],
    "muon": [{"lr": 0.01, "rest": "adamw", "rest.lr": 0.003}, {"lr": 0.02, "rest": "adamw", "rest.lr": 0.001}],
    "adam": [{"lr": 0.002, "rest": "sps", "rest.c": 80.0}, {"lr": 0.003, "rest": "sps", "rest.c": 40.0}],
}


@pytest.mark.matrix(keep=2)
@pytest.mark.numeric
@pytest.mark.parametrize("opt", LANES)
def test_lanes_with_groups_equal_single_runs(opt: str, store: Path) -> None:
    for spec in (tiny.TINY, tiny_lm.TINY_LM):
        tiny.register(spec)
    words = {"trainer__max_steps": 12, "precision": "64-true"}
    words |= {"trainer__gradient_clip_val": 0.05} if may_clip(OPTIMIZERS[opt]) else {}
    words |= {"trainer__schedule": "cosine", "trainer__warmup": 0.2, "task__dropout": 0.1, "task__depth": 1}
    grid = block(store, "tiny", opt, LANES[opt], **words)
    for lane, alone in zip(lanes_of(grid), fits(grid), strict=True):
        assert gap(lane, alone) < 1e-9


def test_foreign_and_coupled_pure_updates_are_not_applied_group_by_group() -> None:
    every = [Parameter("a", (4, 3), "matrix"), Parameter("b", (3,), "vector")]
    ours, theirs = OPTIMIZERS["adamw"], replace(OPTIMIZERS["adamw"], package="mine 1.0")
    assert have_pure_update(divide(ours, None, {"lr": 0.1, "vector.lr": 0.2}, every))
    assert have_pure_update(divide(theirs, None, {"lr": 0.1}, every))
    for spec in (theirs, OPTIMIZERS["momo"]):  # one model of the loss for all groups
        assert not have_pure_update(divide(spec, None, {"lr": 0.1, "vector.lr": 0.2}, every))


# -- what a reader of a hybrid's run is told --------------------------------------------------------------------------
