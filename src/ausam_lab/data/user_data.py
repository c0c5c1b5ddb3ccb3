"""Data of your own, named as module:function, and a task of your own for targets that are not classes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ausam_lab.config import Config
from ausam_lab.data.datasets import UserSet, described, from_datasets, targets
from ausam_lab.data.images import ImageSet
from ausam_lab.data.labels import refuse_labels, with_sizes, with_validation
from ausam_lab.data.problem import Task
from ausam_lab.names.user_code import imported_class, imported_function
from ausam_lab.records.run import Score


@dataclass(frozen=True)
class UserTask:
    """The task that a user's class defines.

    Arguments:
        own: an instance of the class: ``metric`` (the name of the score), ``losses(outputs, targets)`` (one per
            sample), ``score(outputs, targets)`` (a number over all samples), and optionally ``lower_is_better``
            (False), ``unit`` ("") and ``outputs`` (how many the network has; as many as a target has numbers).
        name: how the user wrote it.
    """

    own: Any
    name: str

    @property
    def metric(self) -> str:
        """The name of the score."""
        return str(self.own.metric)

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:  # noqa: ARG002  (refused by the data)
        """The user's loss of each sample."""
        losses = self.own.losses(z, y)
        if not isinstance(losses, Tensor) or losses.shape != (len(y),):
            raise ValueError(
                f"losses of {self.name} returned {described(losses)} for {len(y)} samples. Return one loss per sample, "
                f"shape ({len(y)},), not their mean."
            )
        return losses

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """The user's score over all samples at once."""
        pairs = [(model(x).cpu(), y.cpu()) for x, y in batches]
        value = float(self.own.score(torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])))
        if not math.isfinite(value):
            raise ValueError(
                f"The {self.metric} of {self.name} is {value}: training diverged. Use a smaller --lr or --rho."
            )
        lower = bool(getattr(self.own, "lower_is_better", False))
        return Score(value, self.metric, unit=str(getattr(self.own, "unit", "")), lower_is_better=lower)


@dataclass(frozen=True)
class TargetSet(UserSet):
    """Two datasets of samples (x, y), where y is a number or a vector; the targets are kept as (samples, numbers)."""

    own_task: Task | None = None

    @property
    def task(self) -> Task:
        """The user's task."""
        if self.own_task is None:
            raise TypeError("A TargetSet needs a task.")
        return self.own_task

    def prepare(self, config: Config) -> TargetSet:
        """The data set that a run specifies; a ValueError for settings that only apply to classes."""
        refuse_labels(self.name, "targets of a task of your own", config)
        for setting, off in (("augment", "none"), ("label_smoothing", 0.0)):
            if (value := getattr(config, setting)) != off:
                flag = setting.replace("_", "-")
                raise ValueError(f"{setting} is {value}, which --task does not support. Leave out --{flag}.")
        seed = config.data_seed or 0
        part = with_sizes(with_validation(self, config.validation, seed), config.train_size, config.test_size, seed)
        return replace(part, workers=config.workers, device=config.device)


def from_targets(name: str, train: Any, test: Any, task: UserTask) -> TargetSet:
    """The problem made of two datasets and a task."""
    train_y, test_y = (_numbers(d, f"the {which} set of {name}") for d, which in ((train, "training"), (test, "test")))
    outputs = int(getattr(task.own, "outputs", train_y.shape[1]))
    return TargetSet(name, train, test, train_y, test_y, outputs, own_task=task)


def _numbers(dataset: Any, what: str) -> Tensor:
    """The targets of all samples, as (samples, numbers)."""
    y = targets(dataset, what)
    y = y.reshape(len(y), -1)
    return y.to(torch.float32) if y.is_floating_point() else y


def user_data(name: str, task: str = "") -> ImageSet | UserSet:
    """The problem from the user's ``module:function``, which returns an ImageSet or (train_dataset, test_dataset).

    ``task`` is the user's ``module:Class``, for data that is not classified; it needs two datasets.
    """
    function = imported_function("data set", name)
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise ValueError(
            f"{name} takes {inspect.signature(function)}, but it is called without arguments. Give each a default."
        ) from None
    data = function()
    if isinstance(data, ImageSet) and not task:
        return data
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise ValueError(
            f"{name} returned {described(data)}. Return a pair (train_dataset, test_dataset)"
            f"{', which --task needs' if task else ' or an ImageSet'}."
        )
    if not task:
        return from_datasets(name, *data)
    train, test = data
    return from_targets(name, train, test, UserTask(imported_class("task", task)(), task))
