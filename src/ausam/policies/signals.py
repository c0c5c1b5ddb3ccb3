"""The signals that a policy can rank by: pure functions from the feedback of a step to one value per sample."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated

import torch
from torch import Tensor

from ausam.common.settings import OneOf
from ausam.feedback import Feedback


def signed(feedback: Feedback) -> Tensor:
    """``max(0, L(w + e) - L(w))``: a loss that the perturbation lowers counts as 0."""
    return (feedback.perturbed - feedback.loss).clamp_min(0.0)


def uncertainty(feedback: Feedback) -> Tensor:
    """``1 - max_c p_c`` with ``p = softmax(outputs)``."""
    return 1.0 - _logits(feedback, "uncertainty").softmax(1).amax(1)


def el2n(feedback: Feedback) -> Tensor:
    """``||p - onehot(y)||_2`` (Paul et al. 2021), with the label from :func:`label`."""
    z = _logits(feedback, "el2n")
    error = z.softmax(1)
    error.scatter_add_(1, label(z, feedback.loss)[:, None], torch.full_like(error[:, :1], -1.0))
    return torch.where(feedback.loss.isfinite(), error.norm(dim=1), torch.nan)


def wrong(feedback: Feedback) -> Tensor:
    """1 if the largest output is not that of the label, otherwise 0. The label is from :func:`label`."""
    z = _logits(feedback, "wrong")
    miss = (z.argmax(1) != label(z, feedback.loss)).to(z.dtype)
    return torch.where(feedback.loss.isfinite() & z.isfinite().all(1), miss, torch.nan)


def label(z: Tensor, losses: Tensor) -> Tensor:
    """Infer the label, which feedback does not hold: the class of each row whose ``-log p`` is nearest to the loss.

    For plain cross-entropy ``p_y = exp(-loss)``, so this is the label, or a class of equal probability. With any other
    loss (label smoothing, mixup, an added penalty) it is reliable only where the prediction is confident.
    """
    return (z.log_softmax(1) + losses[:, None]).abs().argmin(1)


def _logits(feedback: Feedback, name: str) -> Tensor:
    z, n = feedback.outputs, len(feedback.loss)
    if not isinstance(z, Tensor) or z.dim() != 2 or len(z) != n or z.shape[1] < 2:
        given = f"of shape {tuple(z.shape)}" if isinstance(z, Tensor) else f"{type(z).__name__}"
        raise TypeError(
            f'Ranking samples by "{name}" needs the model\'s outputs, one per class for each of the {n} samples, but '
            f"the feedback has outputs {given}. Return both from loss_fn: "
            'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
        )
    return z.detach().to(torch.promote_types(z.dtype, torch.float32))


SIGNALS: dict[str, Callable[[Feedback], Tensor]] = {
    "loss": attrgetter("loss"),
    "perturbed": attrgetter("perturbed"),
    "sharpness": attrgetter("sharpness"),  # |L(w + e) - L(w)|, the paper's DLP
    "signed": signed,
    "uncertainty": uncertainty,
    "el2n": el2n,
    "wrong": wrong,
    "forgetting": wrong,  # the scores count how often it turns from 0 to 1
    "progress": attrgetter("loss"),  # the scores average how much it falls from visit to visit
}

# Signals that need a method which evaluates the loss at perturbed weights, with their names in messages.
AT_PERTURBED_WEIGHTS = {"sharpness": "sharpness", "signed": "signed sharpness", "perturbed": "perturbed loss"}

AnySignal = str | Callable[[Feedback], Tensor] | None


class SignalRule(OneOf):
    """A name in SIGNALS, where you may add your own, or a function of a Feedback."""

    def holds(self, value: object) -> bool:
        """Whether the value is a signal."""
        return callable(value) or (isinstance(value, str) and value in SIGNALS)

    def __str__(self) -> str:
        return f"{super().__str__()}, or a function of a Feedback"


SIGNAL = SignalRule(tuple(SIGNALS))
Signal = Annotated[str | Callable[[Feedback], Tensor], SIGNAL]


def signal_name(signal: AnySignal) -> str:
    """The name of a signal in messages and saved states. Of a function, with its module."""
    if signal is None or isinstance(signal, str):
        return signal or "none"
    function = signal if hasattr(signal, "__qualname__") else type(signal)
    return f"{function.__module__}.{function.__qualname__}"


def measure(signal: AnySignal, feedback: Feedback) -> Tensor | None:
    """The value of each sample. None if the signal is None."""
    if signal is None:
        return None
    value = (SIGNALS[signal] if isinstance(signal, str) else signal)(feedback)
    if not isinstance(value, Tensor) or value.shape != feedback.loss.shape:
        shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TypeError(
            f"The signal {signal_name(signal)} returned {shape} for {len(feedback.loss)} samples. "
            f"Return a tensor with one value per sample, shape ({len(feedback.loss)},)."
        )
    return value
