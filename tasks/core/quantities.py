"""Measured quantities of attention (`--trainer.observe`): names and definitions. It imports no torch.

All measurements use a probe batch, the first 32 training samples, without dropout or augmentation, at the trained
weights. A head has maps W_Q, W_K, W_V of shape (K, D) and W_O of shape (D, K); W_QK = W_Q^T W_K. Norms and cosines
are those of Frobenius.
"""

HEADS = {
    "entropy": "-sum_s a_s ln a_s of a query's attention a, in nats; mean over queries",
    "greatest": "max_s a_s, in [0, 1]; mean over queries",
    "top_token": "fraction of a row's attention on its most attended token, in [0, 1]; mean over rows",
    "rank": "number of singular values of a row's attention matrix, largest first, with 99 % of the sum of squares;"
    " mean over 4 rows",
    "logit_scale": "standard deviation of a query's logits",
    "saturated": "fraction of queries with max_s a_s > 0.99",
    "norm_Q": "||W_Q||",
    "norm_K": "||W_K||",
    "norm_V": "||W_V||",
    "norm_O": "||W_O||",
    "norm_QK": "||W_QK||",
    "stable_rank_QK": "||W_QK||^2 divided by its largest squared singular value, in [1, K]",
    "direction_at_N": "cosine of W_QK with its value after N steps, in [-1, 1]; the last row has those with the final"
    " direction (Tarzanagh et al., Transformers as Support Vector Machines, arXiv 2308.16898)",
}
"""Of each head, as `NAME_lLAYER_hHEAD`, counted from 0."""

OBSERVED = ("vision", "text", "lm")
"""Task families whose models have such heads."""


def observed_steps(total: int, per_decade: int) -> list[int]:
    """The measured steps: 0, then log-spaced from 1 on, and the last, `total`."""
    spaced, i = {0, total}, 0
    while (step := round(10 ** (i / per_decade))) < total:
        spaced.add(step)
        i += 1
    return sorted(spaced)
