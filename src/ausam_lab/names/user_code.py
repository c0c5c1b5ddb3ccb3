"""User-defined functions and classes, named as module:function or module:Class. A module may be a file.py."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ausam.policies import Policy

# What the name of a data set or network may be besides one of the table.
OWN = "a name, or your own as module:function"

# Data in folders and on Hugging Face: a colon, but nothing to import.
NOT_CODE = ("folder:", "hf:")

# What a user's own method must have at least.
MEMBERS = ("gradient", "passes", "sharpness")


def is_own(name: str) -> bool:
    """Whether a name refers to user-defined code: ``module:function``, or ``module:Class`` and arguments."""
    return ":" in name.partition("(")[0]


def is_code(setting: str) -> bool:
    """Whether a setting imports something: a name of user-defined code, or an argument that is one."""
    return ":" in setting and not setting.startswith(NOT_CODE)


def refuse_strangers(folder: Path, named: Mapping[str, str], typed: Collection[str] = ()) -> None:
    """Raise a ValueError if the settings of a run's folder name code, which somebody else may have written.

    ``named`` are the settings that would be imported. Those whose name the user has ``typed`` are the user's own.
    """
    code = {k: v for k, v in named.items() if is_code(v) and v not in typed}
    if code:
        what = ", ".join(f"{setting} {name}" for setting, name in code.items())
        raise ValueError(
            f"{folder} would run code that its config.json names: {what}. If you trust it, add --trust. Whoever wrote "
            "the folder chose that code."
        )


def imported_function(kind: str, name: str) -> Callable[..., Any]:
    """The user's function. Modules are searched for in the current directory first."""
    function: Callable[..., Any] = _attribute(kind, name)
    # A network can be called, but with samples: it is not the function that makes it.
    if not callable(function) or isinstance(function, nn.Module):
        raise ValueError(f'{kind} "{name}": it is of type {type(function).__name__}. Write a function that returns it.')
    return function


def imported_class(kind: str, name: str) -> type:
    """The user's own method or policy: a dataclass with what the optimizer reads."""
    cls = _attribute(kind, name)
    if not isinstance(cls, type):
        problem = f"it is of type {type(cls).__name__}, not a class"
    elif not is_dataclass(cls):
        problem = "write @dataclass(frozen=True) above the class"
    elif kind == "policy" and not issubclass(cls, Policy):
        problem = "a class of your own inherits from ausam.Policy"
    elif kind == "method" and (missing := [member for member in MEMBERS if not hasattr(cls, member)]):
        problem = f"a method needs {', '.join(missing)}, which {cls.__name__} lacks"
    else:
        return cls
    raise ValueError(f'{kind} "{name}": {problem}. See docs/adding-a-method.md for a complete one.')


def _attribute(kind: str, name: str) -> Any:
    """The function or class of this name in the user's module."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise ValueError(f'"{name}" is not a {kind}: write module:NAME, e.g. mine:make for make of mine.py.')
    try:
        module = _of_file(Path(module_name).resolve()) if module_name.endswith(".py") else _of_name(module_name)
    except (ImportError, FileNotFoundError, SystemExit) as error:  # after sys.exit(0) the command would seem to succeed
        raise ValueError(
            f'{kind} "{name}": importing {module_name} failed: {type(error).__name__}: {error}. Modules are searched '
            f"for in {os.getcwd()} and among the installed packages."
        ) from error
    if (value := getattr(module, attribute, None)) is None:
        own = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise ValueError(
            f'{kind} "{name}": {module_name} ({module.__file__}) has no {attribute}. '
            f"It has: {', '.join(sorted(own)) or 'none'}."
        )
    return value


def _of_name(module: str) -> ModuleType:
    """The module of this name, in the current directory or an installed package."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may be newer than the cached directory listing
    return importlib.import_module(module)


@functools.cache  # run once: a class must stay the same object however often it is named
def _of_file(file: Path) -> ModuleType:
    """The module in this file. Its imports are searched for in its own folder first."""
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = ModuleType(f"ausam_user_{file.stem}")
    module.__file__ = str(file)
    loader = SourceFileLoader(module.__name__, str(file))
    sys.modules[module.__name__] = module  # needed by dataclasses and pickle
    loader.exec_module(module)
    return module
