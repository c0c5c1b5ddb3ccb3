"""Inspection: the first step looks at which modules run in the loss function, to warn of those that are not guarded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from ausam.optimizer.journal import Journal


class Inspection:
    """A look at every module that runs in this thread, until :meth:`end`.

    Arguments:
        modules: those of the model that the optimizer was given.
        journal: records how to end it.
    """

    def __init__(self, modules: Sequence[nn.Module], journal: Journal) -> None:
        self._known = set(modules)
        self._thread = threading.get_ident()
        self._wrapped = False
        self._versions: dict[nn.Module, list[tuple[Tensor, int]]] = {}  # of the buffers of modules outside the model
        handle: Any = register_module_forward_pre_hook(self._look)
        self._remove = handle.hooks_dict_ref().pop, handle.id, None
        journal.append(self._remove)

    def _look(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        if module in self._known:
            wrapper: Any = DistributedDataParallel._active_ddp_module
            self._wrapped = self._wrapped or (wrapper is not None and wrapper not in self._known)
        elif module not in self._versions:
            self._versions[module] = [(b, b._version) for b in module.buffers(recurse=False) if not b.is_inference()]

    def end(self, passes: int) -> Iterator[str]:
        """Stop looking; the warnings after a step of this many passes."""
        pop, *arguments = self._remove
        pop(*arguments)
        if self._wrapped:
            yield (
                "The losses go through DistributedDataParallel, but SharpnessAware was given the module inside it, so "
                "the first pass is averaged over the processes too, as with sync_perturbation=True. Give it the "
                "wrapper: SharpnessAware(base, method, ddp_model). This warning appears once."
            )
        moved = [m for m, seen in self._versions.items() if any(b._version != version for b, version in seen)]
        if moved and passes > 1:
            yield (
                f"A {type(moved[0]).__name__} that ran in the loss function is outside the given model, so its "
                f"buffers moved in each of the {passes} passes of the step. Give it all networks: "
                "SharpnessAware(base, method, [model, other]). This warning appears once."
            )
