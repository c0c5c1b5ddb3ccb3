"""Exact per-sample gradients, which the paper's scores approximate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from ausam.diagnostics.batches import Batch, rows, size
from ausam.diagnostics.objective import LossFn, Objective
from ausam.diagnostics.untouched import untouched

Means = Literal["auto", "vmap", "loop"]


def sample_gradients(model: nn.Module, loss_fn: LossFn, *batch: Any, chunk: int = 32, means: Means = "auto") -> Tensor:
    """The gradient of every sample's loss, one row per sample.

        G_i = grad L_i(w)

    >>> import torch, torch.nn.functional as F
    >>> from ausam.diagnostics import sample_gradients
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> sample_gradients(model, lambda x, y: F.mse_loss(model(x), y, reduction="none").sum(1), x, y)
    tensor([[2., 0.],
            [0., 8.]])

    Arguments:
        model: the network. It is measured in eval mode: BatchNorm with its running statistics, no dropout.
        loss_fn: ``loss_fn(*batch)`` returns per-sample losses, or losses and outputs, as for ``opt.backward``.
        batch: the arguments of ``loss_fn``. Tensors as long as the first one have one row per sample.
        chunk: samples differentiated at once, >= 1. The result does not depend on it.
        means: "vmap" differentiates all samples of a chunk at once with torch.func; "loop" takes one at a time; "auto"
            tries vmap and falls back to the loop if the model has control flow that depends on the data.

    Refused: models and losses in which samples affect one another (BatchNorm without running statistics, contrastive
    losses), because a sample then has no gradient of its own. They are detected by comparing each sample's loss in the
    batch with its loss on its own.
    Memory: n x P numbers for n samples and P weights; :func:`sample_gradient_norms` needs about 3 x chunk x P.
    Cost: about n forward-backward passes of one sample, and one forward pass of the batch.
    """
    with untouched(model):
        objective = Objective(model, loss_fn, [batch], chunk=chunk)
        return torch.cat(list(gradient_rows(objective, means)))


def sample_gradient_norms(
    model: nn.Module, loss_fn: LossFn, *batch: Any, chunk: int = 32, means: Means = "auto"
) -> Tensor:
    """The exact norm of every sample's gradient, the paper's GNS.

        |grad L_i(w)|

    Deng et al., AAAI 2025, approximate it by DLP / rho.

    >>> import torch, torch.nn.functional as F
    >>> from ausam.diagnostics import sample_gradient_norms
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> sample_gradient_norms(model, lambda x, y: F.mse_loss(model(x), y, reduction="none").sum(1), x, y)
    tensor([2., 8.])

    Arguments, refusals and cost: see :func:`sample_gradients`. Memory: about 3 x chunk x P numbers.
    """
    with untouched(model):
        objective = Objective(model, loss_fn, [batch], chunk=chunk)
        return torch.cat([torch.linalg.vector_norm(part, dim=1) for part in gradient_rows(objective, means)])


def gradient_rows(objective: Objective, means: Means = "auto") -> Iterator[Tensor]:
    """Per-sample gradients, chunk by chunk, as matrices with one row per sample."""
    if means not in ("auto", "vmap", "loop"):
        raise ValueError(f'means is {means!r}. It must be "auto", "vmap" or "loop".')
    at_once = means != "loop"
    for batch in objective.chunks():
        together, reached = objective.traced(batch)
        if not reached:
            objective.check()
        if at_once:
            try:
                gradients, alone = _vmapped(objective, batch)
            except RuntimeError as error:  # data-dependent control flow, or writes to buffers
                if means == "vmap":
                    raise RuntimeError(
                        f'torch.func cannot vectorise this model over samples ({error}). Use means="loop".'
                    ) from error
                at_once = False
        if not at_once:
            gradients, alone = _looped(objective, batch)
        _refuse_coupled(alone, together)
        yield gradients


def _vmapped(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    n = size(batch)
    leaves, shape = tree_flatten(batch)
    dims = [0 if isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == n else None for leaf in leaves]

    def loss(params: list[Tensor], *sample: Any) -> Tensor:
        alone = [s[None] if d == 0 else s for s, d in zip(sample, dims, strict=True)]
        return objective.call(params, tree_unflatten(alone, shape))[0]

    parts, losses = vmap(grad_and_value(loss), in_dims=(None, *dims))(objective.params, *leaves)
    first = objective.params[0]
    return torch.cat([p.reshape(n, -1).to(first.device, first.dtype) for p in parts], dim=1), losses


def _looped(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    n = size(batch)
    gradients, losses = [], []
    for i in range(n):
        with torch.enable_grad():
            params = [p.detach().requires_grad_() for p in objective.params]
            loss = objective.call(params, rows(batch, slice(i, i + 1), n))
            graph = loss.requires_grad  # False for a sample that passes no trained weight
            partial = torch.autograd.grad(loss.sum(), params, allow_unused=True) if graph else [None] * len(params)
        reached = [torch.zeros_like(p) if g is None else g for g, p in zip(partial, params, strict=True)]
        gradients.append(objective.flat(reached))
        losses.append(loss.detach())
    return torch.stack(gradients), torch.cat(losses)


def _refuse_coupled(alone: Tensor, together: Tensor) -> None:
    """Refuse a loss that depends on the rest of the batch; the tolerance covers sums rounded in another order."""
    alone, together = alone.detach(), together.detach()
    tolerance = 10 * torch.finfo(together.dtype).eps ** 0.5
    apart = (alone - together).abs() > tolerance * (together.abs() + together.abs().mean() + 1e-6)
    if bool(apart.any()):
        i = int(apart.nonzero()[0])
        raise ValueError(
            f"The loss of sample {i} is {float(together[i]):.6g} in its batch and {float(alone[i]):.6g} on its own: "
            "samples affect one another, so none has a gradient of its own. Use running statistics in BatchNorm, a "
            "loss that is a sum over samples, and no randomness in loss_fn."
        )
