"""Attention as a factor: what each kind computes, the meaning of its sizes, where it can be used, what is refused."""

from collections.abc import Callable
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Attention as TimmAttention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, vmap

import tasks.core.attention
from tasks.core.attention import Kind, MultiHeadAttention, head_size, plain_attention, rotated
from tasks.core.composition import Composers, HeadComposition, composed_attention
from tasks.core.randomness import use_batch_dropout
from tasks.vision.vit import ViTClassifier
from tests.tiny import TinyImages

pytestmark = pytest.mark.numeric

B, T, D, H = 3, 14, 24, 4
WIDTHS = {"standard": None, "fixed_head": 10, "dcmha": None}
each_kind = pytest.mark.parametrize("kind", WIDTHS)
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 4},
    "window both ways": {"window": 3},
    "rotary": {"causal": True, "rotary": True, "bias": False},
}
each_setting = pytest.mark.parametrize("setting", SETTINGS)


@pytest.fixture(autouse=True)
def float64() -> Any:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def make(kind: Kind = "dcmha", **options: Any) -> MultiHeadAttention:
    """Attention of the sizes above; the initial composition is multiplied by 30."""
    options = {"head_dim": WIDTHS[kind], **options}
    module = MultiHeadAttention(D, H, kind=kind, **options)
    with torch.no_grad():
        for p in module.composition.parameters() if module.composition else ():
            p.mul_(30)
    return module


def seen_by_loop(setting: dict[str, Any], length: int) -> Tensor:
    """Which key (column) each query sees, pair by pair."""
    seen = torch.zeros(length, length, dtype=torch.bool)
    for t in range(length):
        for s in range(length):
            past = not setting.get("causal") or s <= t
            seen[t, s] = past and abs(t - s) <= setting.get("window", length)
    return seen


def written_out(module: MultiHeadAttention, x: Tensor, mask: Tensor) -> Tensor:
    """The definition with every composition as a matrix for each pair of tokens; the rows of `mask` are queries."""
    K = module.head_dim
    q, k, v = (
        part.unflatten(-1, (H, K)).transpose(1, 2) for part in module.qkv(x).unflatten(-1, (3, H * K)).unbind(-2)
    )
    if module.rotary:
        q, k = rotated(q), rotated(k)
    logits = (q * K**-0.5).contiguous() @ k.contiguous().mT  # torch rounds differently if it has to copy
    mixed = matrices(module.composition, x) if module.composition else None
    if mixed is not None:
        logits = torch.einsum("bmts,btsmn->bnts", logits, mixed[0])
    weights = logits.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)  # a query that sees no key gets 0
    if mixed is not None:
        weights = torch.einsum("bmts,btsmn->bnts", weights, mixed[1]).masked_fill(~mask, 0)
    return module.proj((weights @ v.contiguous()).transpose(1, 2).flatten(2))


def matrices(composition: HeadComposition, x: Tensor) -> list[Tensor]:
    """I + C(t) + C'(s) for logits and for weights, shape (B, T, S, M, M): PAPERS.md, section D, token by token."""
    rows, length, _ = x.shape
    slots = torch.zeros(4, rows, length, H, H)
    for b in range(rows):
        for t in range(length):
            gates = torch.tanh(torch.einsum("d,dcm->cm", x[b, t], composition.dd))
            for c in range(4):
                inner = nn.functional.gelu(x[b, t] @ composition.dw1[:, c])
                w1, w2 = torch.einsum("k,kim->im", inner, composition.qkw[c]).split(2)
                w1 = w1 / (w1.square().mean(-1, keepdim=True) + 1e-6).sqrt()
                slots[c, b, t] = w1.T @ w2 + torch.diag(gates[c])
    return [torch.eye(H) + slots[i][:, :, None] + slots[i + 1][:, None] for i in (0, 2)]


@each_setting
@each_kind
def test_outputs_equal_the_definition_pair_by_pair(kind: str, setting: str) -> None:
    module, x = make(kind, **SETTINGS[setting]), torch.randn(B, T, D)
    seen = seen_by_loop(SETTINGS[setting], T)
    torch.testing.assert_close(module(x), written_out(module, x, seen), rtol=0, atol=1e-13)
    padding = (torch.arange(T) < torch.tensor([[T], [9], [5]]))[:, None, None]
    torch.testing.assert_close(module(x, padding), written_out(module, x, seen & padding), rtol=0, atol=1e-13)


@each_setting
@pytest.mark.parametrize("masked", [False, True])
def test_results_do_not_depend_on_the_blocks(setting: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = torch.randn(B, T, D), torch.randn(B, T, D)
    mask = torch.rand(B, 1, 1, T) < 0.8 if masked else None
    whole = make(**SETTINGS[setting])
    expected = gradients(whole, x, mask, grad)
    monkeypatch.setattr(tasks.core.attention, "QUERY_CHUNK", 5)
    for a, b in zip(gradients(whole, x, mask, grad), expected, strict=True):
        # Entries are sums of terms up to 1500: the error of each is that times a few rounding units.
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14 * max(1.0, float(b.abs().max())))


def gradients(module: MultiHeadAttention, x: Tensor, mask: Tensor | None, grad: Tensor) -> list[Tensor]:
    """Output and gradients."""
    x = x.clone().requires_grad_()
    out = module(x, mask)
    return [out.detach(), *torch.autograd.grad(out, [x, *module.parameters()], grad)]


def test_composition_under_nested_vmap_with_masks_of_their_own() -> None:
    module, x = make(causal=True), torch.randn(2, B, T, D)
    masks = torch.rand(5, B, 1, 1, T) < 0.8
    masks[..., 0] = True
    both: Callable[..., Tensor] = vmap(vmap(module, (None, 0)), (0, None))
    out = both(x, masks)
    for i in range(2):
        for j in range(5):
            torch.testing.assert_close(out[i, j], module(x[i], masks[j]), rtol=0, atol=1e-13)
    for_all_rows = masks[:, :1]
    out = vmap(module, (None, 0))(x[0], for_all_rows)
    for mask, row in zip(for_all_rows, out, strict=True):
        torch.testing.assert_close(row, module(x[0], mask), rtol=0, atol=1e-13)


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("options", [{"causal": True}, {"rotary": True}, {"window": 1}])
def test_gradients_are_those_of_finite_differences_twice(options: dict[str, Any]) -> None:
    module = MultiHeadAttention(4, 2, kind="dcmha", **options)
    names, weights = zip(*module.named_parameters(), strict=True)
    with torch.no_grad():
        for p in weights:
            p.add_(torch.randn_like(p), alpha=0.3)
    x = torch.randn(2, 4, 4, requires_grad=True)

    def function(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(module, dict(zip(names, values, strict=True)), (x,))

    assert gradcheck(function, (x, *weights))
    assert gradgradcheck(lambda x: function(x, *weights), (x,))


@pytest.mark.parametrize("scale", [1, 2.0**16])
def test_gradients_in_float16_are_finite_at_the_initial_weights(scale: float) -> None:
    """Rows of w1 begin at about 1e-3: the slope of the inverse root of their square, 5e8, is beyond float16."""
    torch.manual_seed(0)
    module, x = MultiHeadAttention(D, H, kind="dcmha", causal=True).float(), torch.randn(B, T, D, dtype=torch.float32)
    exact = torch.autograd.grad(module(x).square().mean(), list(module.parameters()))
    with torch.autocast("cpu", torch.float16):
        out = module(x)
    assert out.dtype == torch.float16
    half = torch.autograd.grad(scale * out.float().square().mean(), list(module.parameters()))
    for (name, _), grad, ours in zip(module.named_parameters(), exact, half, strict=True):
        if name != "qkv.bias":  # the gradient of a key bias is rounding error only
            assert float((ours / scale - grad).norm() / grad.norm()) < 0.1, name


@pytest.mark.parametrize("side", ["post_q", "post_k"])
def test_half_precision_keeps_compositions_below_its_spacing_at_one(side: str) -> None:
    gate, M, T = 0.003, 4, 64  # bfloat16 has no value between 1 and 1.0078
    nothing = Composers(*(torch.zeros(2, *shape) for shape in [(T, M, M), (5, M, T)] * 2))
    by_key = torch.zeros(2, 5, M, T)
    by_key[:, -1] = gate
    composition = (gate * torch.eye(M)).expand(2, T, M, M) if side == "post_q" else by_key
    q, k, v = (torch.randn(2, M, T, 16).bfloat16() for _ in range(3))
    v = (v.abs() + 1).requires_grad_()
    blocks = [(slice(0, T), slice(0, T))]
    plain, gated = (
        composed_attention(q, k, v, c, None, blocks) for c in (nothing, nothing._replace(**{side: composition}))
    )
    back = [torch.autograd.grad(out, v, torch.ones_like(out))[0] for out in (plain, gated)]
    for before, after in ((plain, gated), back):
        assert float(after.detach().double().sum() / before.detach().double().sum()) - 1 == pytest.approx(gate, rel=0.2)


PLACES = {"pre": [0, 1], "post": [2, 3], "query": [0, 2], "key": [1, 3], "mix": [0, 1, 2, 3], "gate": [0, 1, 2, 3]}


@pytest.mark.parametrize("parts", PLACES)
def test_parts_of_a_composition_are_zero_elsewhere(parts: str) -> None:
    part, whole, x = HeadComposition(D, H, parts), HeadComposition(D, H), torch.randn(B, T, D)
    assert {n for n, _ in part.named_parameters()} == {"mix": {"dw1", "qkw"}, "gate": {"dd"}}.get(
        parts, {"dw1", "qkw", "dd"}
    )
    with torch.no_grad():
        for name, p in whole.named_parameters():
            p.zero_()
            if (value := getattr(part, name)) is not None:
                value.normal_()
                p[(slice(None),) * (name != "qkw") + (PLACES[parts],)] = value
    for value, expected in zip(part(x), whole(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-13)
    assert any(bool(value.count_nonzero()) for value in part(x))


@torch.no_grad()
def test_composition_begins_with_the_papers_standard_deviations() -> None:
    width, M = 512, 16
    composition = HeadComposition(width, M)
    expected = {
        "dw1": sqrt(2 / (width + 4 * M)),
        "qkw": 0.02 / (sqrt(4 * M) * (M + 2)),
        "dd": 0.005 * sqrt(2 / (width + M)),
    }
    assert {name: float(p.std()) for name, p in composition.named_parameters()} == pytest.approx(expected, rel=0.03)
    assert all(abs(float(p.mean())) < 0.02 * float(p.std()) + 1e-4 for p in composition.parameters())


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("standard", 24, 4, 8), {}, "^head_dim=8 is not 6, the size of 4 standard heads of width=24"),
        (("dcmha", 24, 5, None), {"shown": "embed_dim=24"}, "^num_heads=5 does not divide embed_dim=24"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head_size(*arguments, **options)


def vit(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return ViTClassifier(TinyImages(Path()), **{"embed_dim": 16, "num_heads": 2, "mlp_width": 32, **options})


def images() -> TinyImages:
    data = TinyImages(Path())
    data.to(torch.device("cpu"), torch.float64)
    return data


def in_training(task: Any) -> Any:
    use_batch_dropout(task, task.randomness)
    task.randomness.seed, task.randomness.step, task.randomness.rows = 1, 2, slice(0, 6)
    return task


def test_standard_attention_of_the_vit_is_timms_bit_for_bit() -> None:
    ours = vit(3, dropout=0.3)
    theirs = vit(3, dropout=0.3)
    torch.manual_seed(3)
    sizes = dict(img_size=(8, 8), patch_size=4, in_chans=1, num_classes=4, embed_dim=16, depth=2, num_heads=2)
    theirs.model = VisionTransformer(**sizes, mlp_ratio=2, pos_drop_rate=0.3, proj_drop_rate=0.3)
    assert any(isinstance(module, TimmAttention) for module in theirs.model.modules())
    start, expected = ours.model.state_dict(), theirs.model.state_dict()
    assert list(start) == list(expected)
    assert all(torch.equal(start[name], expected[name]) for name in start)
    batch = images().batch("train", slice(0, 6))
    for train in (True, False):
        losses = [in_training(task).train(train).loss(batch) for task in (ours, theirs)]
        assert torch.equal(losses[0].predictions, losses[1].predictions)
        grads = [torch.autograd.grad(x.loss, list(t.parameters())) for x, t in zip(losses, (ours, theirs), strict=True)]
        assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("masked", ["no", "causal", "keys", "queries", "by lane", "by lane and row"])
def test_attention_of_lanes_equals_that_of_single_runs(masked: str, levels: int) -> None:
    torch.manual_seed(0)
    lanes, B, H, T, K = (2, 3)[:levels], 4, 2, 5, 3
    q, k, v, weight = (torch.randn(*lanes, B, H, T, K, dtype=torch.float64) for _ in range(4))
    shapes = {"keys": (B, 1, 1, T), "queries": (T, T)}
    shapes |= {"by lane": (*lanes, T, T), "by lane and row": (*lanes, B, 1, T, T)}
    mask = None
    if masked in shapes:
        mask = torch.rand(shapes[masked]) < 0.5
        mask[..., 0] = True  # each query sees a key

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return plain_attention(q, k, v, mask, causal=masked == "causal", scale=0.7)

    many: Any = attend
    for _ in lanes:
        many = vmap(many, in_dims=(0, 0, 0, 0 if masked.startswith("by lane") else None))
    places = list(product(*map(range, lanes)))
    results = {}
    for way in ("lanes", "each"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        if way == "lanes":
            result = many(*leaves, mask)
        else:
            masks = {
                place: mask[place] if mask is not None and masked.startswith("by lane") else mask for place in places
            }
            outputs = [attend(*(x[place] for x in leaves), masks[place]) for place in places]
            result = torch.stack(outputs).view(*lanes, B, H, T, K)
        results[way] = [result, *torch.autograd.grad((result * weight).sum(), leaves)]
    for one, other in zip(results["lanes"], results["each"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
