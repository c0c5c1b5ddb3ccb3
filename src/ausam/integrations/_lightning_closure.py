"""The closure of a batch in Lightning's loop: one call runs all passes of the method.

Lightning's loop calls the closure of a batch inside ``optimizer.step``, or before it if a GradScaler needs that. It
calls it alone for a batch whose gradient is only accumulated. It clips after the closure. One call of our
closure therefore runs all passes of the method. Clipping, hooks, scalers and schedulers are Lightning's, and see the
final gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor

from ausam.integrations._batches import SelectiveLoader, mean_loss
from ausam.optimizer.sharpness_aware import SharpnessAware
from ausam.optimizer.step import COMPILED


class BatchClosure:
    """All passes of a batch through ``training_step``. Lightning's closure is one of them.

    ``training_step`` runs once per pass. Its logged values and the loss that Lightning sees are those of the first.
    Hooks run once, at ``w``: ``optimizer_zero_grad`` before the passes, ``on_before_backward`` in the first,
    ``on_before_zero_grad`` and ``on_after_backward`` after the last.

    Arguments:
        loop: Lightning's loop of automatic optimisation.
        opt: the optimizer.
        kwargs: the arguments of ``training_step``.
        batch_idx: the position of the batch in its epoch.
    """

    def __init__(self, loop: Any, opt: SharpnessAware, kwargs: Any, batch_idx: int) -> None:
        self._loop, self._opt, self._batch_idx = loop, opt, batch_idx
        self._closure = closure = type(loop)._make_closure(loop, kwargs, opt, batch_idx)
        self._begins_step = closure._zero_grad_fn is not None
        self._lightnings_backward = closure._backward_fn
        closure._zero_grad_fn = None
        if closure._backward_fn is not None:
            closure._backward_fn = self._backward
        self._module = loop.trainer.lightning_module
        self._parts: int = loop.trainer.accumulate_grad_batches
        self._result: Any = None
        self._backwards = 0

    def __call__(self) -> Tensor | None:
        """Leave the gradient of the batch in ``.grad``. Return its loss at ``w``, as Lightning's closure does."""
        if self._closure._backward_fn is None:  # StochasticWeightAveraging only refreshes BatchNorm
            return self._pass()
        if self._begins_step:
            self._loop._optimizer_zero_grad(self._batch_idx, self._opt)
        loss = self._all_passes()
        if self._begins_step:
            self._loop._on_before_zero_grad(self._opt)
        if loss is not None:
            self._loop.trainer.precision_plugin.post_backward(loss, self._module)  # runs on_after_backward
        return loss

    def _all_passes(self) -> Tensor | None:
        scaler = getattr(self._loop.trainer.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else scaler.get_scale()
        loss: Tensor | None = self._opt.accumulate(self._mark_compiled(self._pass), scale=scale / self._parts)
        return loss

    def _backward(self, loss: Tensor) -> None:
        """Lightning's backward, without the hooks that do not belong to this pass."""
        hooks = ["on_after_backward"] if self._backwards == 0 else ["on_after_backward", "on_before_backward"]
        self._backwards += 1
        with _muted([self._module, *self._loop.trainer.callbacks], hooks):
            self._lightnings_backward(loss)

    def consume_result(self) -> Any:
        """The result that Lightning passes to hooks and loggers."""
        return self._result

    def _pass(self) -> Tensor | None:
        with self._logging():
            loss: Tensor | None = self._closure()
        if self._result is None:
            self._result = self._closure.consume_result()
        return loss

    def _mark_compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function. Marked as torch.compile marks its own if Lightning compiled the module behind it."""
        if getattr(self._module, "_compiler_ctx", None) is None:
            return function
        marked = partial(function)
        setattr(marked, COMPILED, function)
        return marked

    def _logging(self) -> Any:
        """Normal logging for the first pass. A context without logging for the others."""
        return nullcontext() if self._result is None else _muted([self._module], ["log"])


class RowsClosure(BatchClosure):
    """All passes of a batch through ``losses``, with the index of each sample if the loader selects."""

    def __init__(self, loop: Any, opt: SharpnessAware, kwargs: Any, batch_idx: int) -> None:
        super().__init__(loop, opt, kwargs, batch_idx)
        (self._batch,) = kwargs.values()
        loader = loop.trainer.train_dataloader
        self._loader = loader if isinstance(loader, SelectiveLoader) else None
        self._index = self._weight = None
        if self._loader is not None:
            self._index = self._loader.take_index()
            self._weight = self._loader.batches.selective.weight(self._index)

    def _all_passes(self) -> Tensor | None:
        feedback = self._opt.backward(
            self._mark_compiled(self._losses),
            self._batch,
            index=self._index,
            weight=self._weight,
            reduce=self._module.reduce,
            backward=lambda loss: self._backward(loss / self._parts),
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
def _muted(objects: Sequence[Any], methods: Sequence[str]) -> Iterator[None]:
    """Replace methods of these objects by one that does nothing."""
    own = [{name: vars(x)[name] for name in methods if name in vars(x)} for x in objects]  # e.g. a LambdaCallback's
    try:
        for x in objects:
            vars(x).update(dict.fromkeys(methods, _nothing))
        yield
    finally:
        for x, kept in zip(objects, own, strict=True):
            for name in methods:
                vars(x).pop(name, None)
            vars(x).update(kept)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces a method and does nothing."""
