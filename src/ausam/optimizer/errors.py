"""The mistakes of a beginner, each with an error that says what to write instead."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ausam.common.tensors import CPU, HALF

Reduction = Literal["mean", "sum"]
REDUCTIONS = get_args(Reduction)

WRITE = "Write SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(rho=0.05), model)."

NO_OUTPUTS = (
    "This method needs the model's outputs, but loss_fn returned only the losses. Return both: "
    'z = model(x); return F.cross_entropy(z, y, reduction="none"), z.'
)

NO_LOSSES = (
    "This method needs per-sample losses, which a closure cannot provide. "
    "Call opt.backward(loss_fn, *batch) and then opt.step()."
)

NO_GRAPH = (
    "The losses have no gradient: loss_fn ran under torch.no_grad(), its result was detached by .detach(), .item() or "
    "numpy, or no parameter of the model has requires_grad=True. Return the losses as the model computes them."
)

GRAPH_FROM_OUTSIDE = (
    "An argument of loss_fn has a grad_fn: it was computed from weights before opt.backward. A method needs its value "
    "at other weights too, so the gradient would be wrong, and retain_graph=True does not help. Compute it inside "
    "loss_fn, or pass x.detach() if no gradient should flow through it."
)

# What torch says, and what we add to it.
NOTES = {
    "is out of bounds": (
        "A label is not one of the model's classes. If it is the index of the sample: the index is the last value of a "
        "batch of Indexed(dataset), for x, y, index in loader."
    ),
    "input size (torch.Size([]))": "If this batch has one sample, replace .squeeze() by .squeeze(1).",
    "backward through the graph a second time": (
        "loss_fn must not call backward itself, and what depends on the weights must be computed inside it, not before "
        "opt.backward. retain_graph=True would make the gradient wrong."
    ),
    "Expected more than 1 value per channel": (
        "BatchNorm cannot train on one sample. Let the sampler join such a batch to its neighbour: "
        "SelectiveBatchSampler(..., min_batch=2). If the method splits the batch, as SAM(m=...) and SAM(ascent=...) "
        "do, make each part two samples or more."
    ),
}


UNCHANGED = (
    "The weights were moved, but not one loss changed, so this is an ordinary step of the base optimizer. Compute what "
    "depends on the weights inside the loss function: a graph from outside, which retain_graph=True keeps alive, "
    "belongs to the weights before the step. With low precision, rho may also be too small."
)

CHANGED_INPUT = (
    "loss_fn changes one of its arguments in place, so the later passes of this method see another input than the "
    "first. Clone it inside loss_fn, or leave out inplace=True in the model's first layer."
)

ADDS = (
    "opt.backward adds to gradients that it did not compute. Remove loss.backward() if it is still there, or call "
    "opt.zero_grad() before. Several optimizers for one network belong into one list: "
    "SharpnessAware([muon, adamw], SAM(0.05), model)."
)

BYPASSED = (
    "opt.step() found gradients that {} did not compute, so this is an ordinary step of the base optimizer. Replace "
    "loss.backward() by opt.backward(loss_fn, *batch), or use opt.step(closure)."
)

NOT_FINITE = (
    "The loss or the gradient of step {} is not finite. Weights and buffers are restored. Look for bad input or too "
    'large a learning rate, or pass nonfinite="skip" to skip such batches.'
)

SKIPPED = "The loss or the gradient of a step is not finite, so this step is skipped. `opt.skipped` counts such steps."

NO_GRADIENT = (
    "No parameter of the optimizer received a gradient, so nothing is trained. Does loss_fn use a model other than the "
    "one whose parameters the optimizer has?"
)

ADDED = (
    "A loss.backward() after opt.backward adds an ordinary gradient to the method's. Remove it, or move that loss into "
    "loss_fn."
)

NOT_SCALED = (
    "A GradScaler steps this optimizer, but opt.backward does not know its scale: with the scale inside loss_fn, every "
    "loss, score and threshold is off by it, and without it the gradient is divided by it. Write "
    "opt.backward(loss_fn, *batch, backward=lambda loss: scaler.scale(loss).backward())."
)

NO_BACKWARD = (
    "The closure returned a loss but left no gradient, so nothing is trained. Call loss.backward() inside the closure."
)

WHOLE_BATCH = (
    "This method evaluates the loss of some rows of the batch, but with whole_batch=True each loss depends on the "
    "other rows. Use SAM() without m and ascent, or another method that keeps the batch whole."
)


UNPREPARED = (
    "accelerator.prepare would hide opt.backward, so every step would be one of the base optimizer. Use "
    "prepare(accelerator, model, opt, ...) from ausam.integrations.accelerate, which takes the same objects; "
    "for the Trainer, use SharpnessAwareTrainer from ausam.integrations.transformers."
)

RUNNING = (
    "opt.backward or opt.step was called while another call is running, and the weights may be displaced. Let the loss "
    "function compute the losses only, and use the optimizer from one thread at a time."
)


def add_note(error: Exception) -> None:
    """Add the remedy to an error of torch's that a loss function often causes."""
    for message, note in NOTES.items():
        if message in str(error):
            error.add_note(note)


# -- SharpnessAware(base, method, model) -------------------------------------------------------------------------------


def checked_base(base: Any, method: Any) -> Optimizer:
    """The base if it is an optimizer with one gradient per step that can take this method's. Otherwise an error."""
    if not isinstance(base, Optimizer):
        raise TypeError(f"base is {base!r:.60}, but a torch.optim.Optimizer is needed. {WRITE}")
    if any(isinstance(part, LBFGS) for part in getattr(base, "optimizers", [base])):
        raise TypeError(
            "LBFGS evaluates its closure many times per step, so one sharpness-aware gradient per step has no meaning "
            "for it. Use SGD, Adam, AdamW or RMSprop."
        )
    if isinstance(method, type) or not hasattr(method, "gradient"):
        raise TypeError(f"method is {method!r:.60}, but an instance such as SAM(rho=0.05) is needed. {WRITE}")
    if getattr(method, "needs_rows", False) and any(g.get("maximize") for g in base.param_groups):
        raise ValueError(
            f"{type(method).__name__} compares losses that are minimised, but the optimizer has maximize=True. Return "
            "the negative losses and leave maximize out."
        )
    return base


def as_module(model: Any) -> nn.Module:
    """The model, or several as one. Raises a TypeError if its parameters or buffers cannot be moved."""
    several = isinstance(model, (list, tuple)) and bool(model) and all(isinstance(m, nn.Module) for m in model)
    if not several and not isinstance(model, nn.Module):
        raise TypeError(
            f"model is {model!r:.60}, but it must be the torch.nn.Module being trained, or a list of modules."
        )
    module = nn.ModuleList(model) if several else model
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in module.modules()):
        raise TypeError(
            "FullyShardedDataParallel (FSDP1) hides the parameters in flat buffers, so their norm over all "
            "processes cannot be computed. Shard the model with torch.distributed.fsdp.fully_shard (FSDP2)."
        )
    return module


# -- opt.backward(loss_fn, *batch, index=..., weight=...) --------------------------------------------------------------


def index_and_weight(loss_fn: Any, index: Any, weight: Any, reduce: Any) -> tuple[Tensor | None, Tensor | None]:
    """Both as tensors, after a look at what else ``opt.backward`` was given."""
    if not callable(loss_fn):
        raise TypeError(
            f"opt.backward got a {type(loss_fn).__name__}, but it needs the function that computes the losses, "
            "because a method evaluates them more than once. In place of loss.backward() write "
            'opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y).'
        )
    if reduce not in REDUCTIONS:
        raise ValueError(f'opt.backward: reduce is {reduce!r}. It must be "mean" or "sum".')
    if weight is not None and not isinstance(weight, Tensor):
        weight = _as_tensor(weight, "weight", "one number per sample: sampler.weight(index)").float()
    if index is None:
        return None, weight
    needed = "one whole number per sample: the dataset index that Indexed(dataset) returns"
    index = _as_tensor(index, "index", needed)
    if index.dim() != 1 or index.dtype.is_floating_point or index.dtype == torch.bool:
        raise TypeError(f"index has shape {tuple(index.shape)} and type {index.dtype}, but it must be {needed}.")
    return index, weight


def _as_tensor(value: Any, name: str, needed: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value, device=CPU)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} is {value!r:.60}, but it must be {needed}.") from None


# -- what loss_fn returns ----------------------------------------------------------------------------------------------


def losses_and_outputs(result: tuple[Any, ...]) -> tuple[Any, Any]:
    """The two things that a loss function may return."""
    if len(result) != 2:
        raise TypeError(
            f"loss_fn returned {len(result)} things, but the losses, or the losses and the outputs, are needed. Put "
            "further outputs into one: return losses, (z, features)."
        )
    return result[0], result[1]


def per_sample(losses: Any, expected: int | None) -> Tensor:
    """The losses in at least float32 if there is one per sample. Otherwise an error that says what to return."""
    if not isinstance(losses, Tensor):
        raise TypeError(
            f"loss_fn returned a {type(losses).__name__}, but per-sample losses are needed: a tensor of shape (n,), "
            "or (losses, outputs)."
        )
    shape = losses.shape
    if not shape:
        one = " If this batch has one sample, replace .squeeze() by .squeeze(1)." if expected in (None, 1) else ""
        raise TypeError(
            "loss_fn returned a scalar, but per-sample losses are needed. "
            f'Build the loss with reduction="none", e.g. F.cross_entropy(model(x), y, reduction="none").{one}'
        )
    if len(shape) != 1:
        square = len(shape) == 2 and 1 < shape[0] == shape[1] and expected in (None, shape[0])
        broadcast = "If outputs of shape (n, 1) met targets of shape (n,), use outputs.squeeze(1). " if square else ""
        raise ValueError(
            f"loss_fn returned losses of shape {tuple(shape)}, but one loss per sample is needed, shape (n,). "
            f"{broadcast}Average what belongs to one sample, e.g. losses.flatten(1).mean(1)."
        )
    if expected is not None and shape[0] != expected:
        raise ValueError(f"loss_fn returned {shape[0]} losses for {expected} samples. Return one loss per sample.")
    if shape[0] == 0:
        raise ValueError("The batch is empty, so it has no loss. Skip empty batches.")
    return losses.float() if losses.dtype in HALF else losses


# -- states, and frameworks that step the optimizer themselves ---------------------------------------------------------


def check_state_dict(found: Any) -> None:
    """Raise a ValueError for what is no optimizer's state dict, and say where to find one."""
    if not isinstance(found, dict) or not {"state", "param_groups"} <= found.keys():
        raise ValueError(
            f"This {type(found).__name__} is not what opt.state_dict() returned. If it is the content of a "
            'checkpoint, pass the optimizer\'s part of it, such as opt.load_state_dict(checkpoint["optimizer"]).'
        )


def check_closure(closure: Any) -> None:
    """Raise for a loss in place of the closure, and for Lightning's own closure: it would clip in every pass."""
    if not callable(closure):
        raise TypeError(
            f"opt.step got a {type(closure).__name__}, but it takes no argument, or a closure that computes the loss "
            "and its gradient. Call opt.backward(loss_fn, *batch) and then opt.step()."
        )
    owner = str(getattr(getattr(closure, "func", closure), "__module__", None)).partition(".")[0]
    if owner in ("lightning", "pytorch_lightning"):
        raise RuntimeError(
            "Lightning steps this optimizer without its adapter, so clipping, accumulation and DDP would silently go "
            "wrong. Use Trainer(callbacks=[SharpnessAwareCallback()]), from ausam.integrations.lightning, or derive "
            "the module from SharpnessAwareModule."
        )


def refuse_attribute(name: str, unprepared: str) -> None:
    """Raise for an attribute of another library's optimizer that ours must not seem to have."""
    if name == "_is_accelerate_prepared":  # an adapter that lets Accelerate wrap the optimizer sets this mark itself
        raise TypeError(unprepared)
    if name in ("first_step", "second_step"):
        raise AttributeError(
            f"SharpnessAware has no {name}: it makes both passes itself. Replace both, and loss.backward(), by "
            "opt.backward(loss_fn, *batch) and opt.step(). To keep a loop with both, use SAM from ausam.compat."
        )
