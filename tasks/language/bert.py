"""Encoders of the BERT family, pretrained and fine-tuned, or small ones from random weights; text classification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy
from transformers import AttentionInterface, AutoConfig, AutoModelForSequenceClassification, BertConfig
from transformers.utils import logging

from optimizers.groups import Role
from optimizers.step_size import check_range
from tasks.core.attention import Maps, check_counts, head_size, plain_attention
from tasks.core.files import DataError, one_line
from tasks.core.tables import sha256
from tasks.core.task import Task
from tasks.core.training_step import Outcome
from tasks.language.labelled_text import TextBatch, TextData
from tasks.language.tokenizer import model_folder

_FAMILY = ("bert", "roberta")
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_SMALL = "a small BERT with random weights"
_HEAD_SIZE = 64  # of all published BERTs


class Encoder(Task):
    """An encoder of the BERT family with a head, which the subclass defines.

    Weights of the head that a checkpoint lacks are drawn from the seed.

    Args:
        model: a name on the Hugging Face Hub, a folder, or `python:PACKAGE/FOLDER` (in an installed package), of a
            BERT or RoBERTa, with config.json and model.safetensors.
        scratch: a small BERT with random weights and the data's vocabulary instead; nothing is loaded.
        layers: number of transformer blocks from scratch, at least 1.
        width: width of a token from scratch, at least 1; the MLPs are four times as wide.
        num_heads: attention heads per block; must divide the width; by default the model's own, from scratch
            width / 64, but at least one.
        heads: effect of num_heads on a pretrained model: `regroup` keeps all weights and splits the same projections
            into heads of size width / num_heads, whose square root divides the logits; `fresh` takes the architecture
            with that many heads and random weights, even if the number is the model's own. By default `regroup`, if
            weights are loaded; a model from scratch has nothing to regroup.
        dropout: rate in [0, 1) everywhere; by default the model's own rates.
        init_std: standard deviation of the weights that are drawn, at least 0; by default the model's own, 0.02, and in
            tasks from scratch 0.02 sqrt(768 / width).
    """

    roles: Mapping[str, Role] = {"*classifier*.weight": "head", "*qa_outputs.weight": "head"}
    AUTO: ClassVar[Any]  # transformers' class of such models
    DRAWN: ClassVar[str]  # prefix of the names of the head's weights

    def __init__(
        self,
        data: TextData,
        *,
        model: str = "bert-base-uncased",
        scratch: bool = False,
        layers: int = 2,
        width: int = 128,
        num_heads: int | None = None,
        heads: Literal["regroup", "fresh"] | None = None,
        dropout: float | None = None,
        init_std: float | None = None,
    ) -> None:
        super().__init__(data)
        check_counts(layers=layers, width=width, num_heads=num_heads)
        if dropout is not None:
            check_range("dropout", dropout, 0, 1, open_high=True)
        if init_std is not None:
            check_range("init_std", init_std, 0)
        if scratch and heads == "regroup":
            raise ValueError("heads=regroup keeps loaded weights, and scratch=true loads none; remove one of them")
        drawn = scratch or heads == "fresh"
        self.num_classes = data.num_classes
        if scratch:
            config: Any = BertConfig(
                vocab_size=data.vocab_size,
                pad_token_id=data.pad_id,
                num_hidden_layers=layers,
                hidden_size=width,
                intermediate_size=4 * width,
                num_attention_heads=max(1, width // _HEAD_SIZE),
            )
            folder = None
            self.part = _SMALL if getattr(data, "SOURCES", True) else None  # own rows are not named after a model
        else:
            folder = _folder_with(model, [_CONFIG] if drawn else [_CONFIG, _WEIGHTS])
            config = _config_of(model, folder, data)
        config.num_attention_heads = num_heads or config.num_attention_heads
        shown = f"{width=}" if scratch else f"the model's width of {config.hidden_size}"
        head_size("standard", config.hidden_size, config.num_attention_heads, None, shown=shown)
        if dropout is not None:
            config.hidden_dropout_prob = config.attention_probs_dropout_prob = config.classifier_dropout = dropout
        if init_std is not None:
            config.initializer_range = init_std
        config.num_labels, config.use_cache = data.num_classes, False
        how = {"attn_implementation": _ATTENTION, "dtype": torch.get_default_dtype()}
        self._facts: dict[str, Any] = {"model": _SMALL if scratch else model}
        if folder is None or drawn:
            self.model = self.AUTO.from_config(config, **how)
        else:
            self.model = _pretrained(type(self), model, folder, config, how)
            self._facts["weights"] = sha256(folder / _WEIGHTS)
        self.model.train()
        self._types = config.type_vocab_size
        self._before_first = config.pad_token_id if config.model_type == "roberta" else None
        positions = config.max_position_embeddings - (0 if self._before_first is None else self._before_first + 1)
        longest = (data.tokenizer.truncation or {"max_length": 0})["max_length"]
        if longest > positions:
            raise ValueError(f"max_length={longest} is more than the {positions} positions of the model")

    def maps(self, weights: Mapping[str, Tensor]) -> list[Maps]:
        """The maps of transformers' own attention."""
        layers, heads = list[Maps](), self.model.config.num_attention_heads
        for name in (name.removesuffix(".query.weight") for name in weights if name.endswith(".query.weight")):
            q, k, v = (weights[f"{name}.{of}.weight"].unflatten(0, (heads, -1)) for of in ("query", "key", "value"))
            o = weights[f"{name.removesuffix('self')}output.dense.weight"]
            layers.append(Maps(q, k, v, o.unflatten(1, (heads, -1)).transpose(0, 1)))
        return layers

    def facts(self) -> dict[str, Any]:
        """The model's name, and the SHA-256 of its weights where they are pretrained."""
        return self._facts

    def encode(self, batch: TextBatch) -> Any:
        """The output of transformers' model for the texts."""
        if self._before_first is None:
            positions = torch.arange(batch.ids.shape[1], device=batch.ids.device)[None]
        else:  # RoBERTa counts from there; padding has a position that is never trained
            positions = batch.mask.cumsum(1) * batch.mask + self._before_first
        return self.model(
            input_ids=batch.ids,
            attention_mask=batch.mask[:, None, None],
            token_type_ids=batch.types.clamp(max=self._types - 1),  # RoBERTa has only one type
            position_ids=positions,
        )


class TextClassifier(Encoder):
    """An encoder of the BERT family with a classifier on the first token; the loss is the mean cross-entropy.

    The model is transformers' own for sequence classification: BERT's pooler, dropout and a linear layer; for RoBERTa
    dropout, a linear layer with tanh, dropout and a linear layer. Logits have the shape (rows, num_classes).
    """

    AUTO = AutoModelForSequenceClassification
    DRAWN = "classifier."

    def loss(self, batch: TextBatch) -> Outcome:
        """Mean cross-entropy of the logits."""
        logits = self.encode(batch).logits
        return Outcome(cross_entropy(logits, batch.labels), logits, batch.labels)

    def metrics(self) -> dict[str, Metric]:
        """Accuracy, by the largest logit."""
        return {"accuracy": MulticlassAccuracy(self.num_classes, average="micro", validate_args=False)}


_ATTENTION = "module_dropout"


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scaling: float, dropout: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention with transformers' signature and the module's dropout: theirs draws from the global generator.

    The mask is bool, shape (rows, 1, 1, width), True at tokens; the result has shape (rows, width, heads, head size).
    """
    mixed = plain_attention(query, key, value, mask, scale=scaling, dropout=module.dropout if dropout else None)
    return mixed.transpose(1, 2), None


AttentionInterface.register(_ATTENTION, _attention)


def _folder_with(model: str, needed: list[str]) -> Path:
    folder = model_folder(
        model, needed, lambda folder: all((folder / name).is_file() for name in needed), " and ".join(needed)
    )
    if missing := [name for name in needed if not (folder / name).is_file()]:
        why = "weights in a pickle (pytorch_model.bin) can run any code and are not read: transformers' save_pretrained"
        raise DataError(f"model {model!r} has no {' and no '.join(missing)}; {why} converts them where that is safe")
    return folder


def _config_of(model: str, folder: Path, data: TextData) -> Any:
    """The configuration of a model, which must fit the data."""
    try:
        config: Any = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / _CONFIG} cannot be read: {one_line(error)}") from error
    if config.model_type not in _FAMILY:
        raise ValueError(f"model={model} is a {config.model_type}; it must be one of {', '.join(_FAMILY)}")
    if config.vocab_size != data.vocab_size:
        sizes = f"embeddings of {config.vocab_size:,} tokens and the data have {data.vocab_size:,}"
        raise ValueError(f"model={model} has {sizes}; prepare the data with this model's tokenizer")
    return config


def _pretrained(kind: type[Encoder], model: str, folder: Path, config: Any, how: dict[str, Any]) -> Any:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        loaded, info = kind.AUTO.from_pretrained(
            folder, config=config, use_safetensors=True, output_loading_info=True, **how
        )
    except Exception as error:  # safetensors has its own errors; a wrong shape is a RuntimeError
        raise DataError(f"{folder / _WEIGHTS} cannot be read: {one_line(error)}") from error
    # Loading draws missing weights at random, so a half-random model would be trained.
    lacking = sorted(name for name in info["missing_keys"] if not name.startswith(kind.DRAWN) and "pooler" not in name)
    if lacking:
        raise DataError(f"model {model!r}: {_WEIGHTS} lacks {len(lacking)} weights, such as {lacking[0]}")
    return loaded
