"""Other readings of paper A; `optimizer_cases` has their formulas, which test_optimizers and test_updates check."""

from typing import Any

import pytest
import torch
from torch import nn

from bench.config.run_config import resolve
from bench.train.runner import run
from optimizers import OPTIMIZERS
from optimizers.normalized import SeparateNGD


def test_powers_differ_by_group_and_step_counts_resume() -> None:
    params = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2)]
    groups = [{"params": params[:1], "power": 1.0}, {"params": params[1:]}]
    optimizer = SeparateNGD(groups, lr=1.0, power=0.5)
    for p in params:
        p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    for t in range(1, 5):
        before = [p.detach().clone() for p in params]
        optimizer.step()
        lengths = [float((p.detach() - b).norm()) for p, b in zip(params, before, strict=True)]
        assert lengths == pytest.approx([1 / t, t**-0.5], rel=1e-12)
    resumed = SeparateNGD([{"params": params[:1]}, {"params": params[1:]}])
    resumed.load_state_dict(optimizer.state_dict())
    assert [(group["steps"], group["power"]) for group in resumed.param_groups] == [(4, 1.0), (4, 0.5)]


def test_readings_train_by_the_name_of_their_module(tmp_path: Any) -> None:
    assert not {"separate_ngd", "length_sps"} & set(OPTIMIZERS)
    assert OPTIMIZERS["optimizers.readings:LENGTH_SPS"].package is None  # its version counts, not the suite's files
    words = {"task": "synthetic_joint", "opt": "optimizers.readings:SEPARATE_NGD", "opt.lr": 0.5, "device": "cpu"}
    words |= {"opt.head.power": 0.5, "opt.matrix.power": 1.0, "trainer.max_steps": 3, "store": str(tmp_path)}
    result = run(resolve(words))
    assert (result.status, result.steps) == ("completed", 3)
