"""Hugging Face Accelerate: ``prepare`` for a model, a SharpnessAware optimizer and a loader with selection."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ausam.common.ranks import rank_and_world_size
from ausam.feedback import Feedback
from ausam.integrations._accelerator_arguments import ACCELERATOR, LOADER, OUTCOME, Circumstances
from ausam.integrations._batches import Batches
from ausam.integrations._settings import refuse_settings
from ausam.optimizer.sharpness_aware import SharpnessAware
from ausam.optimizer.step import LossFn
from ausam.sampler import SelectiveBatchSampler, SelectiveStream


class PreparedOptimizer(AcceleratedOptimizer):
    """Accelerate's optimizer with ``backward``. ``step`` and ``zero_grad`` follow its gradient accumulation."""

    def __init__(self, accelerator: Accelerator, opt: SharpnessAware) -> None:
        super().__init__(opt, device_placement=accelerator.device_placement, scaler=accelerator.scaler)
        self._accelerator = accelerator

    def backward(self, loss_fn: LossFn, *batch: Any, index: Any = None, weight: Tensor | None = None) -> Feedback:
        """``SharpnessAware.backward``, using ``accelerator.backward``."""
        opt: SharpnessAware = self.optimizer
        return opt.backward(loss_fn, *batch, index=index, weight=weight, backward=self._accelerator.backward)

    def step(self, closure: Any = None) -> None:
        """The base optimizer's step, once enough batches have accumulated."""
        if closure is not None:
            raise TypeError(
                "Accelerate would not run the closure of a batch that is only accumulated. "
                "Call opt.backward(loss_fn, *batch) and then opt.step()."
            )
        super().step()


def prepare(
    accelerator: Accelerator, model: nn.Module, opt: SharpnessAware, loader: DataLoader[Any]
) -> tuple[nn.Module, PreparedOptimizer, DataLoader[Any]]:
    """Prepare a model, a SharpnessAware ``opt`` and a loader; use ``accelerator.prepare`` for everything else.

    The sampler divides every mini-batch among the processes, so Accelerate does not split it again. Its state is part
    of ``accelerator.save_state``: after ``load_state`` the next pass is the rest of the interrupted one, without
    ``skip_first_batches``. Every setting of the accelerator is honoured or refused: see the table in
    docs/frameworks.md.
    """
    if isinstance(loader, SelectiveStream):
        raise TypeError(
            "prepare takes a DataLoader, but a SelectiveStream makes its own, and Accelerate cannot see where it ends. "
            "Use it in a plain loop, with SharpnessAware alone or with DDP."
        )
    sampler = loader.batch_sampler if isinstance(loader.batch_sampler, SelectiveBatchSampler) else None
    refuse(accelerator, sampler)
    if not isinstance(opt, SharpnessAware):
        raise TypeError(f"opt is a {type(opt).__name__}. Pass SharpnessAware(opt, SAM(), model).")
    prepared = accelerator.prepare(model)
    opt.model = prepared
    wrapped = PreparedOptimizer(accelerator, opt)
    wrapped._is_accelerate_prepared = True
    accelerator._optimizers.append(wrapped)
    if sampler is None:
        return prepared, wrapped, accelerator.prepare(loader)
    accelerator.register_for_checkpointing(sampler)
    return prepared, wrapped, prepare_loader(accelerator, loader, Batches(sampler))


def refuse(accelerator: Accelerator, sampler: SelectiveBatchSampler | None = None) -> None:
    """Raise a ValueError if a setting cannot be honoured, or if nothing averages the gradients."""
    circumstances = Circumstances(accelerator, sampler)
    for table in (OUTCOME, ACCELERATOR, LOADER):
        refuse_settings(table, circumstances)
    world = rank_and_world_size()[1]
    if accelerator.num_processes != world:
        raise ValueError(
            f"torch.distributed has {world} processes, but Accelerate sees {accelerator.num_processes}, so each would "
            "train its own model. On CPUs, use Accelerator(cpu=True), or use_cpu=True for the Trainer."
        )


def prepare_loader(accelerator: Accelerator, loader: DataLoader[Any], batches: Any) -> DataLoader[Any]:
    """The loader with these batches on the accelerator's device. Each process has its own; none is split again."""
    if not loader.in_order:
        raise ValueError(
            "DataLoader(in_order=False) lets batches overtake each other, and the sampler counts them in order. "
            "Leave it True."
        )
    found: DataLoader[Any] = prepare_data_loader(
        DataLoader(
            loader.dataset,
            batch_sampler=batches,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        ),
        accelerator.device,
        num_processes=1,
        process_index=0,
        put_on_device=accelerator.device_placement,
        rng_types=accelerator.rng_types.copy(),
        dispatch_batches=False,
        non_blocking=accelerator.non_blocking,
    )
    found._is_accelerate_prepared = True
    accelerator._dataloaders.append(found)
    return found
