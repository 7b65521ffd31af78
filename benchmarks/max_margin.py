"""The max-margin direction W_mm of paper A's largest instance."""

import time

from benchmarks.timing import Row
from tasks.theory.synthetic import FixedDecoderData


def measure(quick: bool) -> list[Row]:
    """Seconds to solve the Att-SVM with n=100, T=10, d=64: 900 constraints on 4,096 numbers."""
    seconds = []
    for seed in range(2 if quick else 5):
        data = FixedDecoderData(seed=seed, n=100, T=10, d=64)
        begun = time.perf_counter()
        if isinstance(data.att_svm, str):
            raise RuntimeError(f"seed {seed}: {data.att_svm}")
        seconds.append(time.perf_counter() - begun)
    return [Row("W_mm, n=100, T=10, d=64", "-", seconds, 5, unit=" s")]
