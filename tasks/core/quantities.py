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
MODEL = {
    "sharpness": "largest eigenvalue of the Hessian H of the loss on a quarter of a batch, at most 32 samples, by 12"
    " Lanczos steps (from below); 2 / step size is the edge of stability of gradient descent (Cohen et al., arXiv"
    " 2103.00065)",
    "curvature": "u^T H u / ||u||^2 along the last update u",
    "edge": "u^T H u / (u^T H u - g^T u) along the last update u, with g the gradient after it, both of the loss that"
    " gives the sharpness. For full batches: step size times curvature, and from 2 on the update increased the loss, to"
    " second order. With mini-batches u comes from another batch: negative where u goes uphill on this one",
    "gradient_square": "||G||^2 of the expected gradient, an unbiased estimate (McCandlish et al., arXiv 1812.06162)",
    "gradient_noise": "trace of the covariance of a sample's gradient, an unbiased estimate (McCandlish et al.)",
    "noise_scale": "gradient_noise / gradient_square, in samples; none where the estimate of ||G||^2 is not positive",
    "update_cosine": "cosine of the last two updates, in [-1, 1]",
    "update_ratio_ROLE": "norm of the last update divided by that of the weights, for the parameters of a role",
}
"""Of the model. Sharpness, curvature and edge are measured at every second one of the steps."""


OBSERVED = ("vision", "text", "lm")
"""Task families whose models have such heads."""


def observed_steps(total: int, per_decade: int) -> list[int]:
    """The measured steps: 0, then log-spaced from 1 on, and the last, `total`."""
    spaced, i = {0, total}, 0
    while (step := round(10 ** (i / per_decade))) < total:
        spaced.add(step)
        i += 1
    return sorted(spaced)
