"""Attention and logistic loss whose gradients stay exact when they saturate."""

from torch import Tensor
from torch.nn.functional import logsigmoid


def attended_mean(logits: Tensor, values: Tensor, dim: int = -1) -> Tensor:
    """sum_t softmax(logits)_t values_t over a dimension, the last by default, with a gradient that survives saturation.

    The textbook gradient with respect to the logits, p_t (v_t - mean), cancels once one weight is within rounding of 1.
    The sum is therefore taken over differences from a constant, which changes neither sum nor gradient: the mean
    itself, correctly rounded. At saturation this is the value under the largest weight, without a search for it.
    """
    weights = logits.softmax(dim)
    fixed, known = weights.detach(), values.detach()
    mean = (fixed * known).sum(dim, keepdim=True)
    mean = mean + (fixed * (known - mean)).sum(dim, keepdim=True)  # corrects the rounding of the first
    return mean.squeeze(dim) + (weights * (values - mean)).sum(dim)


def logistic_loss(margins: Tensor) -> Tensor:
    """log(1 + exp(-margin)) of each, exact to rounding for all margins (torch's `softplus` only to 1e-9)."""
    return -logsigmoid(margins)
