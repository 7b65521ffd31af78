"""Optimizers learn on a slice of the real files; the full results are in docs/results.md."""

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, BertConfig

from bench.config.run_config import resolve
from bench.train.runner import build, run
from tasks import TASKS
from tests.conftest import folder_with
from tests.tiny import ROOT

pytestmark = pytest.mark.numeric


@pytest.mark.deep
@pytest.mark.parametrize(("task", "lr", "least"), [("mnist", 3e-3, 0.35), ("cifar10", 2e-3, 0.2)])
def test_adam_learns_a_slice_of_the_real_images(
    task: str, lr: float, least: float, real_data: Path, store: Path
) -> None:
    words = {"task": task, "opt": "adam", "opt.lr": lr, "data": real_data, "store": store, "task.n_train": 4000}
    result = run(resolve(words | {"trainer.max_steps": 90, "trainer.val_every": 90}), progress=False)
    assert result.status == "completed"
    assert result.final is not None
    assert result.final > least


@pytest.mark.deep
def test_the_tiny_language_model_learns_real_text(store: Path) -> None:
    folder = Path(os.environ.get("BENCH_DATA", "data"))
    if not (folder / "tiny_shakespeare" / "input.txt").is_file():
        pytest.skip(
            f"no real data: tiny_shakespeare/input.txt is not in {folder.resolve()}; name its folder with BENCH_DATA"
        )
    words = {"task": "lm", "opt": "adamw", "opt.lr": 3e-3, "data": folder, "store": store, "trainer.max_steps": 30}
    result = run(resolve(words), progress=False)
    assert result.status == "completed"
    assert result.part is None
    assert result.facts["validation"] == "c54f3753a4e6e3c3"  # the standard split: the last tenth
    assert (result.facts["vocabulary"], result.facts["tokens"]) == (65, {"train": 1_003_854, "val": 111_540})
    assert result.final is not None
    assert result.final < 2.8  # log 65 is 4.17


def counted() -> dict[str, tuple[str, str, str]]:
    """The parameters and samples that the site states; importing `docs/conf.py` would write files."""
    tree = ast.parse((ROOT / "docs/conf.py").read_text("utf-8"))
    named = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return ast.literal_eval(named["COUNTED"])


@pytest.mark.deep
@pytest.mark.parametrize("task", ["mnist", "cifar10", "lm"])
def test_the_site_states_the_parameters_and_samples_of_a_task(task: str, real_data: Path) -> None:
    if task == "lm":
        folder_with("tiny_shakespeare/input.txt")
    built, _ = build(resolve({"task": task, "opt": "sgd", "data": real_data, "device": "cpu"}))
    sizes = dict.fromkeys(("train", built.data.select, built.data.report))
    parameters, samples, _ = counted()[task]
    assert parameters == f"{sum(p.numel() for p in built.parameters()):,}"
    assert re.findall(r"[\d,]+\d", samples)[: len(sizes)] == [f"{built.data.sizes[split]:,}" for split in sizes]


@pytest.mark.parametrize(
    ("task", "head", "labels"),
    [
        ("mnli", AutoModelForSequenceClassification, 3),
        ("sst2", AutoModelForSequenceClassification, 2),
        ("civil_comments", AutoModelForSequenceClassification, 2),
        ("squad", AutoModelForQuestionAnswering, 2),
    ],
)
def test_the_site_states_the_parameters_of_bert_base(task: str, head: Any, labels: int) -> None:
    with torch.device("meta"):  # BertConfig's defaults are bert-base-uncased
        model = head.from_config(BertConfig(num_labels=labels))
    assert counted()[task][0] == f"{model.num_parameters():,}"
    assert TASKS[task].module_cls.AUTO is head
