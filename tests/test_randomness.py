"""Random numbers of a batch: a published hash, the same however the batch is split, uniform and independent."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tasks.core.randomness import BatchDropout, BatchRandomness, _key, exact_rate

MANY = 1 << 25
"""So many bits that five standard deviations of a correlation are less than 1e-3."""
BIAS = 1e-3


def at(rows: slice, *, seed: int = 3, step: int = 0) -> BatchRandomness:
    where = BatchRandomness(seed)
    where.step, where.rows = step, rows
    return where


def splitmix(seed: int, n: int) -> np.ndarray:
    """The first n numbers of the published generator, in numpy's unsigned integers."""
    z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def test_words_are_the_published_generators_numbers() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of seed 0
    assert splitmix(0, 3).tolist() == published
    key = _key(3, 7, 1)
    words = at(slice(0, 100), step=7).words(1, 3)
    assert words.flatten()[1:].numpy().view(np.uint64).tolist() == splitmix(key, 299).tolist()


@given(
    size=st.integers(1, 300),
    cut=st.integers(1, 300),
    step=st.integers(0, 2),
    elements=st.integers(1, 9),
    kind=st.sampled_from(["uniform", "keep"]),
)
@settings(max_examples=60, deadline=None)
def test_numbers_are_the_same_however_the_batch_is_cut(
    size: int, cut: int, step: int, elements: int, kind: str
) -> None:
    def drawn(first: int, last: int) -> Tensor:
        where, like = at(slice(first, last), step=step), torch.empty(last - first, elements)
        return where.uniform(1, like) if kind == "uniform" else where.keep(1, like, 0.3)

    parts = [drawn(first, min(first + cut, size)) for first in range(0, size, cut)]
    assert torch.equal(torch.cat(parts), drawn(0, size))


@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.3, 0.5, 0.999999])
def test_a_rate_is_exact_over_all_pieces_of_a_word(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.int64).view(1, -1)
    monkeypatch.setattr(BatchRandomness, "words", lambda *_: every)
    kept = at(slice(0, 1)).keep(1, torch.empty(1, 1 << 16), rate)
    assert int((kept == 0).sum()) == exact_rate(rate) * (1 << 16)
    assert abs(exact_rate(rate) - rate) <= 2**-16
    assert exact_rate(rate) < 1


def test_kept_elements_are_scaled_so_that_the_mean_stays() -> None:
    x = torch.full((512, 1024), 3.0, dtype=torch.float64)
    out = BatchDropout(0.3, at(slice(0, 512)), 1)(x)
    assert sorted(out.unique().tolist()) == [0.0, pytest.approx(3 / (1 - exact_rate(0.3)), rel=1e-12)]
    assert float(out.mean()) == pytest.approx(3, rel=5 * (0.3 / 0.7 / x.numel()) ** 0.5)


@pytest.fixture(scope="module")
def kept() -> Tensor:
    """Bits of one layer, in the order of rows and elements."""
    return at(slice(0, MANY >> 13)).keep(1, torch.empty(MANY >> 13, 1 << 13), 0.5).flatten()


def correlation(a: Tensor, b: Tensor) -> float:
    """Correlation of bits with mean 1/2."""
    return float((a == b).sum() / len(a) * 2 - 1)


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("other", [{"stream": 2}, {"step": 1}, {"seed": 4}], ids=str)
def test_layers_steps_and_seeds_are_independent(kept: Tensor, other: dict[str, int]) -> None:
    stream = other.pop("stream", 1)
    where = at(slice(0, MANY >> 13), **other)
    theirs = where.keep(stream, torch.empty(MANY >> 13, 1 << 13), 0.5).flatten()
    by_lag = {lag: correlation(kept[lag:], theirs[: MANY - lag]) for lag in (0, 1, 2, 4, 64)}
    assert max(map(abs, by_lag.values())) < BIAS, by_lag


def test_pieces_and_numbers_are_uniform() -> None:
    words = at(slice(0, MANY >> 10)).words(1, 1 << 8)
    counts = torch.bincount(words.view(torch.int16).flatten().int() + (1 << 15), minlength=1 << 16).double()
    chi = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert abs(chi - 65535) < 4 * (2 * 65535) ** 0.5
    for dtype, bits in ((torch.float32, 24), (torch.float64, 53)):
        numbers = at(slice(0, MANY >> 10)).uniform(1, torch.empty(MANY >> 10, 1 << 6, dtype=dtype)).flatten()
        assert 0 <= float(numbers.min()) < float(numbers.max()) < 1
        assert torch.equal(numbers * 2.0**bits, (numbers * 2.0**bits).floor())
