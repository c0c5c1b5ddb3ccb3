"""Measure a model in eval mode and leave it exactly as it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode; on exit restore training flags, buffers and torch's random state.

    Inside, BatchNorm uses its running statistics. A BatchNorm layer without running statistics is refused, because it
    normalises by the batch even in eval mode. DDP and FSDP wrappers are refused too. An inference mode around it is
    switched off, because all gradients would be zero in it.
    """
    modules = list(model.modules())
    _refuse(modules)
    flags = [(m, m.training) for m in modules]
    buffers = [
        (m._buffers, name, b, None if b is None else b.clone()) for m in modules for name, b in m._buffers.items()
    ]
    kinds = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        # Only the plain form of attention has a double backward, and BatchNorm's flag must not be compiled in.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for kind in {d.type for d in kinds} or {"cuda"}:
            stack.enter_context(torch.random.fork_rng([d for d in kinds if d.type == kind], device_type=kind))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
        try:
            for m, _ in flags:
                m.training = False
            yield
        finally:
            for m, flag in flags:
                m.training = flag
            with torch.no_grad():
                for owner, name, buffer, saved in buffers:
                    owner[name] = buffer
                    if buffer is not None and saved is not None and not _same(buffer, saved):
                        buffer.resize_(saved.shape).copy_(saved)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(
        torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
    )


def _refuse(modules: list[nn.Module]) -> None:
    for m in modules:
        kind = type(m).__name__
        if isinstance(m, _BatchNorm) and m.running_mean is None:
            raise ValueError(
                f"{kind} has no running statistics, so it normalises by the batch even in eval mode and no sample has "
                "a loss or gradient of its own. Build it with track_running_stats=True."
            )
        if kind in ("DistributedDataParallel", "FullyShardedDataParallel") or hasattr(m, "unshard"):
            raise ValueError(
                f"The model is wrapped in {kind}, which intercepts its gradients. Pass the wrapped module "
                "(model.module) to the diagnostics, use it in loss_fn, and measure in one process."
            )
