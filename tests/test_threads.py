"""Threads of torch: one for small models, as before for others."""

import pytest
import torch

import bench
from bench.train.threads import SMALL, limit_threads, set_threads


@pytest.fixture(autouse=True)
def three():
    before = torch.get_num_threads()
    set_threads(3)
    yield
    set_threads(before)


SMALLEST, LARGEST = [torch.empty(SMALL - 1)], [torch.empty(SMALL // 2), torch.empty(SMALL // 2)]


def test_a_small_model_trains_on_one_thread_and_the_next_large_one_on_all():
    counts = []
    for model in (LARGEST, SMALLEST, SMALLEST, LARGEST, LARGEST):
        limit_threads(model)
        counts.append(torch.get_num_threads())
    assert counts == [3, 1, 1, 3, 3]


def test_a_number_that_was_set_after_a_small_model_holds():
    limit_threads(SMALLEST)
    set_threads(1)
    limit_threads(LARGEST)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)  # as a user of the Python API may
    limit_threads(LARGEST)
    assert torch.get_num_threads() == 2


def test_the_python_api_leaves_the_number_of_threads_as_it_was(tmp_path):
    bench.fit("synthetic", "sgd", trainer={"max_steps": 2}, store=tmp_path, progress=False)
    assert torch.get_num_threads() == 3
