"""A pytest plugin: ``SharpnessAware(..., Plain(), ...)`` around every optimizer that timm's own tests make.

timm imports torchvision, which its optimizers do not use; an empty one stands in for it.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from typing import Any

from substitutes import wrap


class Names(type):
    """A class that has every attribute."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Empty(types.ModuleType):
    """A package in which every name is a class."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":  # what makes a module a package
            return []
        if name.startswith("__"):
            raise AttributeError(name)
        return Names(name, (), {})


class Finder:
    """Finds torchvision and everything in it."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG004
        """The spec of an empty package, for torchvision only."""
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, Finder, is_package=True)  # type: ignore[arg-type]
        return None

    @staticmethod
    def create_module(spec: Any) -> types.ModuleType:
        """The empty package."""
        return Empty(spec.name)

    @staticmethod
    def exec_module(module: types.ModuleType) -> None:
        """Nothing is in it."""


sys.meta_path.append(Finder)  # type: ignore[arg-type]

import timm.optim  # noqa: E402

create = timm.optim.create_optimizer_v2
if os.environ.get("SUBSTITUTE", "1") == "1":  # 0: timm's optimizers alone, to compare with
    timm.optim.create_optimizer_v2 = lambda *args, **kwargs: wrap(create(*args, **kwargs))
