"""The closure of a batch in Lightning's loop: one call runs all passes of the method.

Lightning's loop calls the closure of a batch in three ways: inside ``optimizer.step``; before it, if a GradScaler
needs that; and alone, for a batch whose gradient is only accumulated. It clips after the closure. One call of our
closure therefore runs all passes of the method, and everything that follows is Lightning's and sees the final gradient:
clipping, hooks, scalers, schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor

from ausam.integrations._batches import mean_loss
from ausam.integrations._loader import SelectiveLoader
from ausam.optimizer.passes import COMPILED
from ausam.optimizer.sharpness_aware import SharpnessAware


def make_closure(loop: Any, by_rows: bool, kwargs: Any, opt: Any, batch_idx: int) -> Any:
    """In place of the loop's method: the closure of a batch, ours if the optimizer is.

    ``by_rows``: the module has per-sample losses.
    """
    closure = type(loop)._make_closure(loop, kwargs, opt, batch_idx)
    if not isinstance(opt, SharpnessAware):
        return closure
    kind = RowsClosure if by_rows else BatchClosure
    return kind(loop, closure, opt, kwargs)


class BatchClosure:
    """All passes of a batch through ``training_step``; Lightning's closure is one of them.

    ``training_step`` runs once per pass. Its logged values and the loss that Lightning sees are those of the first.
    """

    def __init__(self, loop: Any, closure: Any, opt: SharpnessAware, kwargs: Any) -> None:
        del kwargs
        self._loop, self._closure, self._opt = loop, closure, opt
        self._module = loop.trainer.lightning_module
        self._parts: int = loop.trainer.accumulate_grad_batches
        self._result: Any = None

    def __call__(self) -> Tensor | None:
        """Leave the gradient of the batch in ``.grad``; return its loss at ``w``, as Lightning's closure does."""
        if self._closure._backward_fn is None:  # StochasticWeightAveraging only refreshes BatchNorm
            return self._pass()
        self._clear_gradients()
        scaler = getattr(self._loop.trainer.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else scaler.get_scale()
        loss: Tensor | None = self._opt.accumulate(self._mark_compiled(self._pass), scale=scale / self._parts)
        return loss

    def consume_result(self) -> Any:
        """The result that Lightning passes to hooks and loggers."""
        return self._result

    def _clear_gradients(self) -> None:
        """Clear the gradients if a new step begins, once per batch and not in each pass."""
        if self._closure._zero_grad_fn is not None:
            self._closure._zero_grad_fn()
            self._closure._zero_grad_fn = None

    def _pass(self) -> Tensor | None:
        with self._logging():
            loss: Tensor | None = self._closure()
        if self._result is None:
            self._result = self._closure.consume_result()
        return loss

    def _mark_compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; marked as torch.compile marks its own if Lightning compiled the module behind it."""
        if getattr(self._module, "_compiler_ctx", None) is None:
            return function
        marked = partial(function)
        setattr(marked, COMPILED, function)
        return marked

    def _logging(self) -> Any:
        """Normal logging for the first pass; a context without logging for the others."""
        return nullcontext() if self._result is None else _muted(self._module)


class RowsClosure(BatchClosure):
    """All passes of a batch through ``losses``, with the index of each sample if the loader selects."""

    def __init__(self, loop: Any, closure: Any, opt: SharpnessAware, kwargs: Any) -> None:
        super().__init__(loop, closure, opt, kwargs)
        (self._batch,) = kwargs.values()
        loader = loop.trainer.train_dataloader
        self._loader = loader if isinstance(loader, SelectiveLoader) else None
        self._index = self._weight = None
        if self._loader is not None:
            self._index = self._loader.take_index()
            self._weight = self._loader.batches.selective.weight(self._index)

    def __call__(self) -> Tensor | None:
        """Leave the gradient of the batch in ``.grad`` and its losses in the scores; return the mean loss."""
        if self._closure._backward_fn is None:
            return self._pass()
        self._clear_gradients()
        feedback = self._opt.backward(
            self._mark_compiled(self._losses),
            self._batch,
            index=self._index,
            weight=self._weight,
            reduce=self._module.reduce,
            backward=lambda loss: self._closure._backward_fn(loss / self._parts),
        )
        if self._loader is not None:
            self._loader.batches.update(feedback)
        mean = mean_loss(feedback)
        output = {"loss": mean, "train_loss": mean, "samples": len(feedback.loss), "outputs": feedback.outputs}
        output["feedback"] = feedback  # for on_train_batch_end
        self._result = self._loop.output_result_cls.from_training_step_output(output, self._parts)
        loss: Tensor = self._result.loss
        return loss

    def _losses(self, batch: Any) -> Any:
        with self._logging():
            self._result = self._loop._training_step({"batch": batch})
        return self._result.extra["losses"]


@contextmanager
def _muted(module: Any) -> Iterator[None]:
    module.log = _nothing
    try:
        yield
    finally:
        del module.log


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces ``log`` and does nothing."""
