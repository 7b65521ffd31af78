"""Attention in forms that several tasks share."""

from torch import Tensor
from torch.nn.functional import logsigmoid


def attended_mean(logits: Tensor, values: Tensor) -> Tensor:
    """sum_t softmax(logits)_t values_t over the last dimension, with a gradient that survives saturation.

    The textbook gradient with respect to the logits, p_t (v_t - mean), cancels once one weight is within rounding of 1.
    Measured from the value under the greatest weight (a constant shift, which changes neither sum nor gradient), the
    differences that matter are kept to full relative precision.

    Args:
        logits: shape (..., T).
        values: shape (..., T).

    Returns:
        Shape (...).
    """
    weights = logits.softmax(dim=-1)
    top = logits.detach().argmax(dim=-1, keepdim=True)
    reference = values.gather(-1, top)
    return reference.squeeze(-1) + (weights * (values - reference)).sum(-1)


def logistic_loss(margins: Tensor) -> Tensor:
    """log(1 + exp(-margin)) of each, exact to rounding for all margins (torch's `softplus` is so to 1e-9 only)."""
    return -logsigmoid(margins)
