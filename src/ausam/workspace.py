"""Workspace: what outlives a step and is never saved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ausam import processes
from ausam.tensors import local


class Workspace:
    """What outlives a step and is never saved: the base, the model, and room for one copy of the weights."""

    def __init__(
        self, base: Optimizer, model: nn.Module, sync_perturbation: bool, seed: int, replay: bool = False
    ) -> None:
        self.base = base
        self.model = model
        self.sync_perturbation = sync_perturbation
        self.seed = seed
        self.replay = replay
        self.unsynced = False  # gradients were left in .grad that DDP has not averaged (the user's no_sync)
        self.apart = False  # the same of what the method remembers: gradients made of it are averaged from then on
        self.reached: set[Tensor] = set()  # what DDP with find_unused_parameters saw since it last averaged
        self._copies: dict[Tensor, Tensor] = {}
        self.trained: list[int] = []  # ids of the parameters that the method's memory is of; none: of the present ones

    @property
    def averages(self) -> bool:
        """Whether DDP averages the gradients of a backward now: not inside no_sync."""
        return bool(getattr(self.model, "require_backward_grad_sync", True))

    def copies(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Room for (this process's part of) each parameter, allocated once and reused by every step."""
        for p in params:
            if p not in self._copies or self._copies[p].device != p.device or self._copies[p].dtype != p.dtype:
                self._copies[p] = torch.empty_like(local(p), requires_grad=False)
        return [self._copies[p] for p in params]

    def names(self, params: Sequence[nn.Parameter]) -> list[str]:
        """The model's name for each parameter; empty for one that is not the model's."""
        known = {p: name for name, p in self.model.named_parameters()}
        return [known.get(p, "") for p in params]

    def settle(self, params: Sequence[nn.Parameter], remembers: bool, group: processes.Group) -> None:
        """Average over the processes what the user accumulated in ``.grad`` inside no_sync, at the first call outside.

        DDP averages what a backward leaves in ``.grad``, but the passes of a step begin with an empty one. What a
        method remembers from inside no_sync differs between processes, so from then on all gradients are averaged here.
        """
        if not self.averages:
            self.unsynced, self.apart = True, self.apart or remembers
        elif self.unsynced or self.apart:
            processes.average_gradients(params, group)
            self.unsynced = False
