"""What SharpnessAware takes, and for everything else an error that says what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, get_args

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils._pytree import tree_leaves

from ausam.common.tensors import CPU

Reduction = Literal["mean", "sum"]
P = ParamSpec("P")

WRITE = "Write SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(rho=0.05), model)."

GRAPH_FROM_OUTSIDE = (
    "An argument of loss_fn has a grad_fn: it was computed from weights before opt.backward. A method needs its value "
    "at other weights too, so the gradient would be wrong, and retain_graph=True does not help. Compute it inside "
    "loss_fn, or pass x.detach() if no gradient should flow through it."
)


def refuse_parameters(init: Callable[P, None]) -> Callable[P, None]:
    """Refuse what other libraries take, before Python complains of a missing or an unexpected argument."""

    @functools.wraps(init)
    def checked_init(*arguments: P.args, **settings: P.kwargs) -> None:
        base = arguments[1] if len(arguments) > 1 else settings.get("base")
        if not isinstance(base, Optimizer):
            raise TypeError(f"base is {_kind(base)}, but a torch.optim.Optimizer is needed. {WRITE}")
        if "rho" in settings:
            raise TypeError(f"rho is a setting of the method. {WRITE}")
        init(*arguments, **settings)

    return checked_init


def _kind(value: Any) -> str:
    """What a value is, in a few words: the text of a model would fill the screen."""
    if value is None or isinstance(value, str):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def validate_parts(base: Optimizer, method: Any) -> None:
    """Refuse an optimizer that takes more than one gradient per step, and what is no method."""
    if isinstance(base, LBFGS):
        raise TypeError(
            "LBFGS searches along a line and evaluates its closure many times per step, so one sharpness-aware "
            "gradient per step has no meaning for it. Use SGD, Adam, AdamW or RMSprop."
        )
    if isinstance(method, type) or not hasattr(method, "gradient"):
        raise TypeError(f"method is {_kind(method)}, but an instance such as SAM(rho=0.05) is needed. {WRITE}")


def as_module(model: Any) -> nn.Module:
    """The model, or several as one; refused if its parameters or buffers cannot be moved."""
    module = _one_module(model)
    parts = module if type(module) is nn.ModuleList else [module]
    if any(type(m).__name__ == "FullyShardedDataParallel" for m in parts):
        raise TypeError(
            "FullyShardedDataParallel (FSDP1) hides the parameters in flat buffers, so their norm over all "
            "processes cannot be computed. Shard the model with torch.distributed.fsdp.fully_shard (FSDP2)."
        )
    if any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
        raise TypeError(
            "The model is, or contains, a TorchScript module, whose parameters and buffers cannot be moved. Train "
            "the module that it was made from, and script or trace it afterwards."
        )
    return module


def _one_module(model: Any) -> nn.Module:
    """The module, or several as one."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, (list, tuple)) and model and all(isinstance(m, nn.Module) for m in model):
        return nn.ModuleList(model)
    raise TypeError(
        f"model is a {type(model).__name__}, but it must be the torch.nn.Module being trained, or a list of modules."
    )


def backward_arguments(
    loss_fn: Any, batch: tuple[Any, ...], index: Any, weight: Any, reduce: Any
) -> tuple[Tensor | None, Tensor | None]:
    """The index and the weight as tensors, after a look at all arguments of ``opt.backward``."""
    if not callable(loss_fn):
        raise TypeError(
            f"opt.backward got a {type(loss_fn).__name__}, but it needs the function that computes the losses, "
            "because a method evaluates them more than once. In place of loss.backward() write "
            'opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y).'
        )
    if reduce not in get_args(Reduction):
        raise ValueError(f'opt.backward: reduce is {reduce!r}. It must be "mean" or "sum".')
    if any(isinstance(x, Tensor) and x.grad_fn is not None for x in tree_leaves(batch)):
        raise ValueError(GRAPH_FROM_OUTSIDE)
    return _as_index(index), _as_weight(weight)


def _as_index(index: Any) -> Tensor | None:
    if index is None:
        return None
    needed = "but it must be one whole number per sample: the dataset index that Indexed(dataset) returns."
    try:
        given: Tensor = index if isinstance(index, Tensor) else torch.as_tensor(index, device=CPU)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"index is {index!r:.60}, {needed}") from None
    if given.dim() != 1 or given.dtype.is_floating_point or given.dtype == torch.bool:
        raise TypeError(f"index has shape {tuple(given.shape)} and type {given.dtype}, {needed}")
    return given


def _as_weight(weight: Any) -> Tensor | None:
    if weight is None or isinstance(weight, Tensor):
        return weight
    try:
        return torch.as_tensor(weight, dtype=torch.float32, device=CPU)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"weight is a {type(weight).__name__}, but one number per sample is needed: sampler.weight(index)."
        ) from None
