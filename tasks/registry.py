"""The tasks that the suite knows by name. Importing this file imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from optimizers.plugins import Origin, PluginError, Registry, load


@dataclass(frozen=True)
class TaskSpec:
    """A model, its data, a metric, a target and a budget.

    The options of a task are the keyword arguments of its data and its module.

    Attributes:
        name: what the user types after `--task`.
        title: one line for people.
        module: `module:Class` of the `tasks.base.Task`.
        data: `module:Class` of the `tasks.base.TaskData`.
        metric: what is compared: a name that the task's metrics have.
        mode: whether the metric is better when greater ("max") or smaller ("min").
        target: value of the metric on the selection split for time-to-target, or None.
        budget: default `max_epochs` or `max_steps`.
        source: where model and constants come from.
        version: raised when a change alters results; part of every run's identity.
        batch_size: samples of one optimizer step; "full" for all of them.
        micro_batch_size: default of `--trainer.micro_batch_size`; also the samples of one forward pass in evaluation,
            at most.
        precision: default of `--precision`.
        steps_per_call: optimizer steps per `training_step`: more make a small model faster, fewer make Ctrl-C and the
            progress bar prompter.
        measure_every: optimizer steps between measurements (`Task.measure_at`); None if the task has none.
        measures: what is measured, for people.
        datasets: where it can be trained on several: their folders in the data folder, the one that it is named for
            first. Its option `dataset` names one, by default the first that is there.
        presets: named values of its options; the first preset's are the defaults. Its option `preset` names one.
        lanes: the loss is a function of weights and batch alone, so many runs can be trained as one program: no buffers
            that training changes, nothing drawn but through the batch's randomness.
        files: `module:function` that makes sure that the files of its data are there, fetched if need be; it takes the
            data folder and, by name, those of its options that say which files they are, and imports no torch, so that
            a command can ask before it does. Empty where nothing is read.
        package: of a plug-in: its distribution and version, or a digest of its file; part of every run's identity.
    """

    name: str
    title: str
    module: str
    data: str
    metric: str
    mode: Literal["max", "min"]
    target: float | None
    budget: Mapping[str, int]
    source: str
    version: int = 1
    batch_size: int | Literal["full"] = 100
    micro_batch_size: int = 1000
    precision: str = "32-true"
    steps_per_call: int = 10
    measure_every: int | None = None
    measures: str = ""
    lanes: bool = False
    datasets: tuple[str, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: str = ""
    package: str | None = None

    def dataset_in(self, root: Path) -> str | None:
        """The first of its data sets that is in this data folder, or else the first; None where there is no choice."""
        return next((name for name in self.datasets if (root / name).is_dir()), next(iter(self.datasets), None))

    @cached_property
    def module_cls(self) -> Any:
        """The Lightning module, a `tasks.base.Task`."""
        return load(self.module)

    @cached_property
    def data_cls(self) -> Any:
        """The data, a `tasks.base.TaskData`."""
        return load(self.data)


_VIT = "Vasudeva, Deora, Thrampoulidis (TMLR 2025): patch 4, depth 2, 8 heads, MLP width 128; the rest is ours"
_BERT_A = "Vasudeva, Deora, Thrampoulidis (TMLR 2025): bert-base-uncased, batch 32; epochs are ours"
_PAPER_A = (
    "Vasudeva, Deora, Thrampoulidis (TMLR 2025); sizes and distributions are ours,"
    " or of Tarzanagh et al., Transformers as Support Vector Machines"
)
_MEASURES_A = (
    "norm_W, alignment, distance, min_margin, mean_margin, on_optimal, off_optimal, entropy, train_error,"
    " test_loss, test_error"
)
_MEASURES_B = "avg_norm_W, avg_norm_U, entropy, train_error, test_loss, test_error"
_PAPER_B = "Deora, Ghaderi, Taheri, Thrampoulidis (TMLR 2024); open constants are ours"


def _theory(**options: Any) -> TaskSpec:
    """A synthetic task of the theory: the full batch in float64, ranked by its loss; options win."""
    defaults: dict[str, Any] = {
        "metric": "loss", "mode": "min", "target": None, "budget": {"max_steps": 2000}, "batch_size": "full",
        "precision": "64-true", "steps_per_call": 200, "measure_every": 20, "lanes": True,
    }  # fmt: skip
    return TaskSpec(**(defaults | options))


def _language(**options: Any) -> TaskSpec:
    """A model of the BERT family, fine-tuned on texts; options win."""
    defaults: dict[str, Any] = {
        "module": "tasks.language:TextClassifier", "metric": "accuracy", "mode": "max", "target": None,
        "budget": {"max_epochs": 3}, "source": _BERT_A, "batch_size": 32, "micro_batch_size": 128, "steps_per_call": 4,
    }  # fmt: skip
    return TaskSpec(**(defaults | options))


_LM_6L = {
    "layers": 6, "mlp": "gelu", "mlp_width": 1024, "dropout": 0.1, "tokens": "bpe", "vocab": 32_000, "length": 256,
}  # fmt: skip
_LM_PRESETS = {
    "tiny": {},
    "6l-256": {**_LM_6L, "width": 256, "num_heads": 8},
    "6l-512": {**_LM_6L, "width": 512, "num_heads": 8},
    "405m": {
        "layers": 24, "width": 1024, "num_heads": 16, "mlp": "swiglu", "mlp_width": 2816,
        "tokens": "bpe", "vocab": 50_304, "length": 2048,
    },
}  # fmt: skip


def _plugin(name: str, value: Any, origin: Origin) -> TaskSpec:
    if not isinstance(value, TaskSpec):
        raise PluginError(f"{origin.target} is a {type(value).__name__}; a task is a tasks.TaskSpec")
    return replace(value, name=name, package=origin.package)


TASKS = Registry(
    "task",
    "bench.tasks",
    (
        _theory(
            name="synthetic",
            title="single-head self-attention classifier with a fixed decoder on random tokens",
            module="tasks.synthetic:AttentionClassifier",
            data="tasks.synthetic:FixedDecoderData",
            source=_PAPER_A,
            version=2,
            measures=_MEASURES_A,
        ),
        _theory(
            name="synthetic_joint",
            title="single-head self-attention classifier, attention and decoder trained, on a mixture of tokens",
            module="tasks.synthetic_joint:JointClassifier",
            data="tasks.synthetic_joint:MixtureTokenData",
            source=_PAPER_A,
            measures=f"{_MEASURES_A}, norm_u, alignment_u, distance_u",
        ),
        _theory(
            name="mha_dm1",
            title="multi-head attention classifier on a tokenized mixture (DM1)",
            module="tasks.multihead:MultiHeadClassifier",
            data="tasks.multihead:MixtureData",
            source=_PAPER_B,
            version=2,
            measures=f"{_MEASURES_B}, attn_score, off_relevant",
            steps_per_call=40,
        ),
        _theory(
            name="mha_planted",
            title="multi-head attention classifier on Gaussian tokens labelled by a planted head",
            module="tasks.multihead:MultiHeadClassifier",
            data="tasks.multihead:PlantedData",
            source=_PAPER_B,
            version=2,
            measures=f"{_MEASURES_B}, align_W, align_U",
            budget={"max_steps": 1000},
            steps_per_call=20,
        ),
        _theory(
            name="attention_matrix",
            title="one attention head, fitted to given attention weights",
            module="tasks.attention_matrix:AttentionMatrix",
            data="tasks.attention_matrix:AttentionMatrixData",
            source="Bhojanapalli et al., Low-Rank Bottleneck in Multi-head Attention Models (ICML 2020), theorem 1;"
            " sizes and distributions are ours",
            measures="error, divergence, construction_error, construction_divergence",
        ),
        TaskSpec(
            name="mnist",
            title="ViT-small on MNIST",
            module="tasks.vision:ViTClassifier",
            data="tasks.mnist:MNISTData",
            files="tasks.sources:MNIST.require",
            metric="accuracy",
            mode="max",
            target=0.85,
            budget={"max_epochs": 5},
            source=_VIT,
            lanes=True,
        ),
        TaskSpec(
            name="cifar10",
            title="ViT-small on CIFAR-10",
            module="tasks.vision:ViTClassifier",
            data="tasks.cifar10:CIFAR10Data",
            files="tasks.sources:CIFAR10.require",
            metric="accuracy",
            mode="max",
            target=0.45,
            budget={"max_epochs": 5},
            source=_VIT,
            lanes=True,
        ),
        _language(
            name="mnli",
            title="BERT fine-tuned on MNLI: does a premise entail a hypothesis?",
            data="tasks.mnli:MNLIData",
            files="tasks.sources:MNLI.require",
        ),
        _language(
            name="civil_comments",
            title="BERT fine-tuned on Civil Comments: is a comment toxic?",
            data="tasks.civil_comments:CivilCommentsData",
            files="tasks.sources:civil_comments",
            datasets=("civil_comments", "jigsaw_toxicity"),
        ),
        _language(
            name="sst2",
            title="BERT with any number of heads, fine-tuned on SST-2: is a phrase positive?",
            data="tasks.sst2:SST2Data",
            files="tasks.sources:SST2.require",
            budget={"max_epochs": 5},
            source="Deora, Ghaderi, Taheri, Thrampoulidis (TMLR 2024): batch 32, 5 epochs; the rest is ours",
        ),
        _language(
            name="squad",
            title="BERT fine-tuned on SQuAD: which words of a paragraph answer a question?",
            module="tasks.spans:SpanExtractor",
            data="tasks.squad:SquadData",
            files="tasks.sources:SQUAD.require",
            metric="f1",
            source="Rajpurkar et al. (EMNLP 2016); batch, epochs and windows of Devlin et al. (NAACL 2019)",
        ),
        TaskSpec(
            name="lm",
            title="decoder-only transformer that predicts the next token of a text",
            module="tasks.lm:LanguageModel",
            data="tasks.corpus:CorpusData",
            files="tasks.sources:corpus",
            metric="loss",
            mode="min",
            target=None,
            budget={"max_steps": 2000},
            source="sizes of 6l-*: Bhojanapalli et al. (ICML 2020), of 405m: Xiao et al. (ICML 2024);"
            " its vocabulary and length, and the rest, are ours; its windows by --task.window 256",
            batch_size=32,
            micro_batch_size=32,
            steps_per_call=4,
            lanes=True,
            presets=_LM_PRESETS,
        ),
    ),
    _plugin,
)
