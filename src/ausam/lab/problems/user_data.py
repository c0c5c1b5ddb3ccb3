"""User-defined data, named as module:function."""

from __future__ import annotations

import inspect

from ausam.lab.problems.datasets import UserSet, described, from_datasets
from ausam.lab.problems.images import ImageSet
from ausam.lab.registry.user_code import imported


def user_data(name: str) -> ImageSet | UserSet:
    """The problem from the user's ``module:function``, which returns an ImageSet or (train_dataset, test_dataset)."""
    function = imported("data set", name)
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise ValueError(
            f"{name} takes {inspect.signature(function)}, but it is called without arguments. Give each a default."
        ) from None
    data = function()
    if isinstance(data, ImageSet):
        return data
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise ValueError(
            f"{name} returned {described(data)}. Return a pair (train_dataset, test_dataset) or an ImageSet."
        )
    return from_datasets(name, *data)
