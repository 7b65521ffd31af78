"""The tasks that the suite knows by name. Importing this file imports no torch."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from optimizers.plugins import PluginError, Registry, provenance
from tasks.core.spec import TaskSpec

_VIT = "Vasudeva, Deora, Thrampoulidis (TMLR 2025): patch 4, depth 2, 8 heads, MLP width 128; the rest is ours"
_BERT_A = "Vasudeva, Deora, Thrampoulidis (TMLR 2025): bert-base-uncased, batch 32; epochs are ours"
_PAPER_A = (
    "Vasudeva, Deora, Thrampoulidis (TMLR 2025); sizes and distributions are ours,"
    " or of Tarzanagh et al., Transformers as Support Vector Machines"
)
_PAPER_B = "Deora, Ghaderi, Taheri, Thrampoulidis (TMLR 2024); open constants are ours"


_theory = partial(
    TaskSpec,
    metric="loss",
    mode="min",
    target=None,
    budget={"max_steps": 2000},
    batch_size="full",
    precision="64-true",
    steps_per_call=200,
    measure_every=20,
    lanes=True,
    scale="log",
    family="theory",
)
"""A synthetic task of the theory: full batch, float64, ranked by a suboptimality gap; options override defaults."""


image_spec = partial(
    TaskSpec,
    module="tasks.vision.vit:ViTClassifier",
    metric="accuracy",
    mode="max",
    target=None,
    budget={"max_epochs": 5},
    source=_VIT,
    lanes=True,
    family="vision",
    version=2,
)
"""A ViT-small that classifies images; options override defaults."""


def _scratch_std(options: Mapping[str, Any]) -> float | None:
    """The `init_std` of a model from scratch: the narrower, the larger, as in BERT-base 0.02 at width 768. Ours.

    With 0.02 at a width of 128, the first layers pass on so little that no plain SGD leaves the initial plateau.
    """
    return float(f"{0.02 * (768 / max(1, options['width'])) ** 0.5:.4g}") if options["scratch"] else None


text_spec = partial(
    TaskSpec,
    module="tasks.language.bert:TextClassifier",
    metric="accuracy",
    mode="max",
    target=None,
    budget={"max_epochs": 3},
    source=_BERT_A,
    batch_size=32,
    micro_batch_size=128,
    steps_per_call=4,
    family="text",
    derived={"init_std": _scratch_std},
    version=2,
)
"""A model of the BERT family, fine-tuned on texts; options override defaults."""


_LM_6L = dict(layers=6, mlp="gelu", mlp_width=1024, dropout=0.1, tokens="bpe", vocab=32_000, length=256, num_heads=8)
_LM_405M = dict(layers=24, width=1024, num_heads=16, mlp="swiglu", mlp_width=2816, vocab=50_304, length=2048)
_LM_PRESETS = {
    "tiny": {},
    "6l-256": {**_LM_6L, "width": 256},
    "6l-512": {**_LM_6L, "width": 512},
    "405m": {**_LM_405M, "tokens": "bpe"},
}


def _plugin(name: str, value: Any, target: str) -> TaskSpec:
    if not isinstance(value, TaskSpec):
        raise PluginError(f"{target} is of type {type(value).__name__}; a task is a tasks.TaskSpec")
    return replace(value, name=name, package=provenance(target), display_name=value.name if ":" in name else "")


TASKS = Registry(
    "bench.tasks",
    (
        _theory(
            name="synthetic",
            title="single-head self-attention classifier with a fixed decoder on random tokens",
            module="tasks.theory.synthetic:AttentionClassifier",
            data="tasks.theory.synthetic:FixedDecoderData",
            source=_PAPER_A,
            version=2,
            ranks_training=True,
        ),
        _theory(
            name="synthetic_joint",
            title="single-head self-attention classifier, attention and decoder trained, on a mixture of tokens",
            module="tasks.theory.synthetic:JointClassifier",
            data="tasks.theory.synthetic:MixtureTokenData",
            source=_PAPER_A,
            ranks_training=True,
        ),
        _theory(
            name="mha_dm1",
            title="multi-head attention classifier on a tokenized mixture (DM1)",
            module="tasks.theory.multihead:MultiHeadClassifier",
            data="tasks.theory.multihead:MixtureData",
            source=_PAPER_B,
            version=3,
            steps_per_call=40,
        ),
        _theory(
            name="mha_planted",
            title="multi-head attention classifier on Gaussian tokens labelled by a planted head",
            module="tasks.theory.multihead:MultiHeadClassifier",
            data="tasks.theory.multihead:PlantedData",
            source=_PAPER_B,
            version=3,
            budget={"max_steps": 1000},
            steps_per_call=20,
        ),
        _theory(
            name="attention_matrix",
            title="one attention head fitted to given attention weights",
            module="tasks.theory.attention_matrix:AttentionMatrix",
            data="tasks.theory.attention_matrix:AttentionMatrixData",
            source="Bhojanapalli et al., Low-Rank Bottleneck in Multi-head Attention Models (ICML 2020), theorem 1;"
            " sizes and distributions are ours",
            ranks_training=True,
        ),
        image_spec(
            name="mnist",
            title="ViT-small on MNIST",
            data="tasks.vision.images:MNISTData",
            files="tasks.vision.sources:MNIST.require",
            target=0.85,
        ),
        image_spec(
            name="cifar10",
            title="ViT-small on CIFAR-10",
            data="tasks.vision.images:CIFAR10Data",
            files="tasks.vision.sources:CIFAR10.require",
            target=0.45,
        ),
        text_spec(
            name="mnli",
            title="BERT fine-tuned on MNLI: does a premise entail a hypothesis?",
            data="tasks.language.labelled_text:MNLIData",
            files="tasks.language.sources:MNLI.require",
        ),
        text_spec(
            name="civil_comments",
            title="BERT fine-tuned on Civil Comments: is a comment toxic?",
            data="tasks.language.labelled_text:CivilCommentsData",
            files="tasks.language.sources:civil_comments",
            datasets=("civil_comments", "jigsaw_toxicity"),
        ),
        text_spec(
            name="sst2",
            title="BERT with any number of heads, fine-tuned on SST-2: is a phrase positive?",
            data="tasks.language.labelled_text:SST2Data",
            files="tasks.language.sources:SST2.require",
            budget={"max_epochs": 5},
            source="Deora, Ghaderi, Taheri, Thrampoulidis (TMLR 2024): batch 32, 5 epochs; the rest is ours",
        ),
        text_spec(
            name="squad",
            title="BERT fine-tuned on SQuAD: which words of a paragraph answer a question?",
            module="tasks.language.squad:SpanExtractor",
            data="tasks.language.squad:SquadData",
            files="tasks.language.sources:SQUAD.require",
            metric="f1",
            source="Rajpurkar et al. (EMNLP 2016); batch, epochs and windows of Devlin et al. (NAACL 2019)",
        ),
        TaskSpec(
            name="lm",
            title="decoder-only transformer that predicts the next token of a text",
            module="tasks.language.lm:LanguageModel",
            data="tasks.language.corpus:CorpusData",
            files="tasks.language.sources:corpus",
            metric="loss",
            mode="min",
            target=None,
            budget={"max_steps": 2000},
            source="sizes of 6l-*: Bhojanapalli et al. (ICML 2020), of 405m: Xiao et al. (ICML 2024);"
            " vocabulary, length and the rest are ours; windows with --task.window 256",
            batch_size=32,
            micro_batch_size=32,
            steps_per_call=4,
            lanes=True,
            family="lm",
            version=2,
            presets=_LM_PRESETS,
        ),
    ),
    _plugin,
)
