"""User-defined data, named as module:function."""

from __future__ import annotations

import inspect

from ausam.lab.problems.datasets import UserSet, described, from_datasets
from ausam.lab.problems.images import ImageSet
from ausam.lab.problems.user_task import from_targets, user_task
from ausam.lab.registry.user_code import imported


def user_data(name: str, task: str = "") -> ImageSet | UserSet:
    """The problem from the user's ``module:function``, which returns an ImageSet or (train_dataset, test_dataset).

    ``task`` is the user's ``module:Class``, for data that is not classified; it needs two datasets.
    """
    function = imported("data set", name)
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
    train, test = data
    return from_targets(name, train, test, user_task(task)) if task else from_datasets(name, train, test)
