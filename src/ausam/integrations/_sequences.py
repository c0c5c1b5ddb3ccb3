"""One loss per sequence, for the tasks of Transformers' heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

IGNORED = -100  # Transformers' label for tokens without a label


def per_sample(
    logits: Tensor, labels: Tensor, shift: bool = False, smoothing: float = 0.0, problem: str | None = None
) -> Tensor:
    """The loss of each sequence, as the model's head defines it for a single sequence. Shape ``(n,)``.

    Arguments:
        logits: ``(n, classes)``, or ``(n, tokens, classes)``.
        labels: one per sequence, one per class, or one per token. With one per token, the loss is the mean over the
            tokens that have a label, and 0 for a sequence without any.
        shift: token t predicts the label of token t + 1 (causal language models).
        smoothing: label smoothing, in [0, 1).
        problem: the model's ``config.problem_type``. If None, inferred as in Transformers.
    """
    logits = logits.float()  # as in the heads: the sum over a large vocabulary needs it
    if logits.dim() == 3:
        if shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        each = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
        )
        return each.view(labels.shape).sum(1) / (labels != IGNORED).sum(1).clamp(min=1)
    if problem is None and logits.shape[1] == 1:
        problem = "regression"
    elif problem is None:
        whole = labels.dtype in (torch.int32, torch.int64)
        problem = "single_label_classification" if whole else "multi_label_classification"
    if problem == "regression":
        if smoothing:
            raise ValueError(
                f"label_smoothing_factor is {smoothing}, but a regression has no classes to smooth over. Set it to 0."
            )
        return functional.mse_loss(logits, labels.float().view(logits.shape), reduction="none").mean(1)
    if problem == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)
    return functional.cross_entropy(logits, labels.view(-1), reduction="none", label_smoothing=smoothing)


def shifts(model: nn.Module) -> bool:
    """Whether the model is a causal language model, whose token t predicts the label of token t + 1."""
    get_base: Any = getattr(model, "get_base_model", None)  # of an adapter (PEFT)
    inner = model if get_base is None else get_base()
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return False
    known = type(inner).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return known or getattr(inner, "loss_type", None) == "ForCausalLM"
