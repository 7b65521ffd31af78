"""Texts: tokenising against the raw tokenizer, a second start from the cache, padding, and time of a batch."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.timing import Row, alternate, timed
from tasks import BatchRandomness
from tasks.core.order import BatchOrder, validation_rows
from tasks.language.labelled_text import MNLIData

BATCH = 32
_CPU = torch.device("cpu")


def measure(quick: bool) -> list[Row]:
    """Seconds against `tokenizers`, seconds of a second start, share of padding, and seconds of a batch."""
    with TemporaryDirectory() as folder, pairs(Path(folder), quick) as (root, source):
        cache = {"BENCH_CACHE": str(Path(folder) / "cache")}
        with patch.dict(os.environ, cache):
            begun = time.perf_counter()
            data = MNLIData(root, scratch=True)
            first = time.perf_counter() - begun
            seconds = []
            for _ in range(2 if quick else 7):
                validation_rows.cache_clear()  # as in a fresh process
                seconds.append(timed(lambda: MNLIData(root, scratch=True))())
            return [
                *tokenising(data, source, quick),
                Row("first start, vocabulary trained", "-", [first], unit=" s"),
                Row("second start", "-", seconds, 2, unit=" s"),
                *batches(data, source, quick),
            ]


def tokenising(data: MNLIData, source: str, quick: bool) -> list[Row]:
    """Reading, checking, tokenising and packing the training pairs, against the tokenizer alone on texts in memory."""
    table = data._read("train", data.source.texts)[0]
    texts = list(zip(*(table[name].to_pylist() for name in data.source.texts), strict=True))
    raw = timed(lambda: data.tokenizer.encode_batch(texts))
    ours = timed(lambda: data._encode("train", data._read("train", data.source.columns)[0]))
    measured = alternate(raw, {"ours": ours}, 1 if quick else 5)["ours"]
    what = f"tokenise {len(texts):,} pairs of {source}"
    return [
        Row(what, "tokenizers, encode_batch", measured.ratios, 1.2),
        Row(what, "-", measured.candidate, unit=" s"),
    ]


def batches(data: MNLIData, source: str, quick: bool) -> list[Row]:
    """Padding of an epoch, with rows sorted in pools and in random order, and the time of a batch."""
    data.to(_CPU, torch.float32)
    assert data.lengths is not None
    order = BatchOrder(data.sizes["train"], BATCH, 0, _CPU, data.lengths)
    plain = BatchOrder(data.sizes["train"], BATCH, 0, _CPU)
    steps, where = range(order.batches_per_epoch), BatchRandomness()
    tokens = [int(data.lengths[order.rows(step)].sum()) for step in steps]
    widths = {
        "sorted in pools": [order.width(step) or 0 for step in steps],
        "without": [int(data.lengths[plain.rows(step)].max()) for step in steps],
    }
    padding = {name: 100 * (1 - sum(tokens) / (BATCH * sum(own))) for name, own in widths.items()}
    some = range(50 if quick else 2000)

    def epoch() -> None:
        for step in some:
            where.width = order.width(step)
            data.batch("train", order.rows(step), where)

    epoch()
    seconds = [timed(epoch)() / len(some) * 1e6 for _ in range(2 if quick else 7)]
    what = f"padding of {BATCH} pairs of {source}"
    return [
        Row(f"{what}, sorted in pools", "-", [padding["sorted in pools"]], 15, unit=" %"),
        Row(f"{what}, in random order", "-", [padding["without"]], unit=" %"),
        Row("order and TextData.batch", "-", seconds, unit=" us"),
    ]


@contextmanager
def pairs(folder: Path, quick: bool) -> Iterator[tuple[Path, str]]:
    """A data folder with MNLI, and its source: if MNLI is missing, synthetic pairs of similar lengths."""
    data = Path(os.environ.get("BENCH_DATA", "data"))
    if (data / "mnli" / "train.parquet").is_file() and not quick:
        yield data, "MNLI"
        return
    draw = np.random.default_rng(0)
    (folder / "mnli").mkdir()
    for name, n in (("train", 3000), ("validation_matched", 100), ("validation_mismatched", 100)):
        columns = {
            column: [" ".join(f"w{i}" for i in draw.zipf(1.3, k) % 5000) for k in draw.geometric(1 / mean, n)]
            for column, mean in (("premise", 20), ("hypothesis", 10))
        }
        pq.write_table(pa.table({**columns, "label": draw.integers(0, 3, n)}), folder / "mnli" / f"{name}.parquet")
    yield folder, "made-up pairs"
