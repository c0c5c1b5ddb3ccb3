"""Hugging Face Accelerate: ``prepare`` for SharpnessAware optimizers, their models and loaders with selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ausam.common.ranks import rank_and_world_size
from ausam.feedback import Feedback
from ausam.integrations._batches import Batches
from ausam.optimizer.errors import Reduction
from ausam.optimizer.passes import LossFn
from ausam.optimizer.sharpness_aware import SharpnessAware
from ausam.sampler import SelectiveBatchSampler, SelectiveStream

# Distributed types that shard or own the parameters themselves: the prepared optimizer is not the one that steps.
OWNERS = (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM, DistributedType.XLA)
OWNED = (
    "with it, another library owns the parameters and the step, so the weights cannot be perturbed in between. Use one "
    "device or DDP."
)
STATIC_GRAPH = "a step has passes with and without averaging, so the graph changes. Leave it off."
UNORDERED = "False lets batches overtake each other, and the sampler counts them in order. Leave it True."
DISPATCHED = "one process would read for all, but the sampler gives each process its own batches. Leave it None."

# A setting, the test of its value, and the reason and the remedy.
Refusal = tuple[str, Callable[[Any], Any], str]

REFUSED: tuple[Refusal, ...] = (
    (
        "num_processes",
        lambda number: number != rank_and_world_size()[1],
        "Accelerate and torch.distributed see different numbers of processes, so each would train its own model. On "
        "CPUs, use Accelerator(cpu=True), or use_cpu=True for the Trainer.",
    ),
    ("distributed_type", lambda kind: kind in OWNERS, OWNED),
    ("parallelism_config", bool, OWNED),
    (
        "mixed_precision",
        lambda precision: precision == "fp8",
        '"fp8" replaces layers and the optimizer by those of another library. Use "bf16", "fp16" or "no".',
    ),
    ("ddp_handler", lambda handler: getattr(handler, "static_graph", False), f"static_graph=True, but {STATIC_GRAPH}"),
)
REFUSED_WITH_SAMPLER: tuple[Refusal, ...] = (
    ("dispatch_batches", bool, DISPATCHED),
    (
        "use_stateful_dataloader",
        bool,
        "it saves the position a second time: save_state already contains the sampler's. Leave it False.",
    ),
)

# What a prepared loader has from the given one.
KEPT = (
    *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
)


def refuse(table: Iterable[Refusal], settings: Any) -> None:
    """Raise a ValueError for the first setting whose value cannot be honoured."""
    for name, is_refused, why in table:
        if is_refused(getattr(settings, name, None)):
            raise ValueError(f"{name}: {why}")


class PreparedOptimizer(AcceleratedOptimizer):
    """Accelerate's optimizer with ``backward``. ``step`` and ``zero_grad`` follow its gradient accumulation."""

    def __init__(self, accelerator: Accelerator, opt: SharpnessAware) -> None:
        super().__init__(opt, device_placement=accelerator.device_placement, scaler=accelerator.scaler)
        self._accelerator = accelerator

    def backward(
        self,
        loss_fn: LossFn,
        *batch: Any,
        index: Any = None,
        weight: Tensor | None = None,
        reduce: Reduction = "mean",
    ) -> Feedback:
        """``SharpnessAware.backward``, using ``accelerator.backward``."""
        opt: SharpnessAware = self.optimizer
        settings: dict[str, Any] = {"index": index, "weight": weight, "reduce": reduce}
        return opt.backward(loss_fn, *batch, backward=self._accelerator.backward, **settings)

    def accumulate(self, closure: Callable[[], Any]) -> Any:
        """``SharpnessAware.accumulate`` for a loss of the whole batch. ``step`` follows, as after ``backward``.

        Arguments:
            closure: computes the loss, calls ``accelerator.backward(loss)`` once and returns the loss. It does not
                clear the gradients. Its first value is returned.
        """
        scaler = self._accelerator.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        opt: SharpnessAware = self.optimizer
        return opt.accumulate(closure, scale=scale / self._accelerator.gradient_accumulation_steps)

    def step(self, closure: Any = None) -> None:
        """The base optimizer's step, once enough batches have accumulated."""
        if closure is not None:
            raise TypeError(
                "Accelerate would not run the closure of a batch that is only accumulated. Call "
                "opt.backward(loss_fn, *batch) and then opt.step(), or opt.accumulate(closure) and then opt.step(), "
                "with accelerator.backward(loss) in the closure."
            )
        super().step()


def prepare(accelerator: Accelerator, *objects: Any) -> Any:
    """``accelerator.prepare`` for SharpnessAware and SelectiveBatchSampler: any objects, in any order.

        model, opt, train_loader, eval_loader, scheduler = prepare(
            accelerator, model, opt, train_loader, eval_loader, scheduler
        )

    Pass an optimizer together with its model. The sampler divides every mini-batch among the processes, so Accelerate
    does not split it again. Its state is part of ``accelerator.save_state``: after ``load_state`` the next pass is the
    rest of the interrupted one, without ``skip_first_batches``. Settings of the accelerator that cannot be honoured
    raise an error: see docs/frameworks.md.

    Arguments:
        accelerator: the Accelerator.
        objects: models, optimizers, loaders, schedulers and anything else that ``accelerator.prepare`` takes.

    Returns:
        The prepared objects in the same order. The object itself if there is one.
    """
    if any(isinstance(obj, SelectiveStream) for obj in objects):
        raise TypeError(
            "prepare takes a DataLoader, but a SelectiveStream makes its own, and Accelerate cannot see where it ends. "
            "Use it in a plain loop, with SharpnessAware alone or with DDP."
        )
    optimizers = [obj for obj in objects if isinstance(obj, Optimizer)]
    if optimizers and not any(isinstance(opt, SharpnessAware) for opt in optimizers):
        raise TypeError(f"The optimizer is a {type(optimizers[0]).__name__}. Pass SharpnessAware(opt, SAM(), model).")
    refuse(REFUSED, accelerator)
    for obj in objects:
        if isinstance(obj, DataLoader) and isinstance(obj.batch_sampler, SelectiveBatchSampler):
            refuse(REFUSED_WITH_SAMPLER, accelerator.dataloader_config)
            if obj.batch_sampler.split != accelerator.dataloader_config.split_batches:
                raise ValueError(
                    "split_batches: the accelerator and the sampler disagree whether processes share a mini-batch. Use "
                    "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)) together with "
                    "SelectiveBatchSampler(..., split=True), or neither."
                )
    # accelerator.prepare takes prepared objects as they are, so ours go first: models, then what depends on them.
    models = {id(obj): accelerator.prepare(obj) for obj in objects if isinstance(obj, nn.Module)}
    return accelerator.prepare(*(models.get(id(obj)) or _prepare_ours(accelerator, obj, models) for obj in objects))


def _prepare_ours(accelerator: Accelerator, obj: Any, models: dict[int, nn.Module]) -> Any:
    """The prepared optimizer or loader, if it is ours. Else the object as it is."""
    if isinstance(obj, SharpnessAware):
        obj.model = _prepared_model(accelerator, obj, models)
        wrapped = PreparedOptimizer(accelerator, obj)
        wrapped._is_accelerate_prepared = True
        return wrapped
    if isinstance(obj, DataLoader) and isinstance(obj.batch_sampler, SelectiveBatchSampler):
        batches = Batches(obj.batch_sampler)
        accelerator.register_for_checkpointing(batches)
        return prepare_loader(accelerator, obj, batches)
    return obj


def _prepared_model(accelerator: Accelerator, opt: SharpnessAware, models: dict[int, nn.Module]) -> nn.Module:
    """The model of the optimizer as Accelerate wraps it: given beside it, or prepared before."""
    if id(opt.model) in models:
        return models[id(opt.model)]
    if any(opt.model is model for model in accelerator._models):
        return opt.model
    if len(models) == 1:  # the optimizer was made for a part of it
        return next(iter(models.values()))
    raise ValueError(
        f"The model of the optimizer ({type(opt.model).__name__}) is not among the {len(models)} modules to prepare, "
        "so its gradients would not be averaged. Pass it too: prepare(accelerator, model, opt, ...)."
    )


def prepare_loader(
    accelerator: Accelerator, loader: DataLoader[Any], batches: Batches, **changed: Any
) -> DataLoader[Any]:
    """The loader with these batches on the accelerator's device. Each process has its own. None is split again."""
    if not loader.in_order:
        raise ValueError(f"DataLoader(in_order=False): {UNORDERED}")
    kept = {name: getattr(loader, name) for name in KEPT}
    prepared: DataLoader[Any] = prepare_data_loader(
        DataLoader(**{**kept, **changed}, batch_sampler=batches),
        accelerator.device,
        num_processes=1,
        process_index=0,
        put_on_device=accelerator.device_placement,
        rng_types=accelerator.rng_types.copy(),
        dispatch_batches=False,
        non_blocking=accelerator.non_blocking,
    )
    prepared._is_accelerate_prepared = True
    accelerator._dataloaders.append(prepared)
    return prepared
