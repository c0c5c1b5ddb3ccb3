"""User-defined functions and classes, named as module:function or module:Class; a module may be a file.py."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ausam.policies import Policy

# What the name of a data set or network may be besides one of the table.
OWN = "a name, or your own as module:function"

# Data in folders and on Hugging Face: a colon, but nothing to import.
NOT_CODE = ("folder:", "hf:")

# What a user's own class must have at least: what the optimizer and the reports read. A policy is an ausam.Policy.
MEMBERS = {"method": ("gradient", "passes", "sharpness"), "policy": (), "task": ("metric", "losses", "score")}

# The page that shows a complete one.
PAGES = {"method": "docs/adding-a-method.md", "policy": "docs/adding-a-method.md", "task": "docs/data.md"}


def is_own(name: str) -> bool:
    """Whether a name refers to user-defined code: ``module:function``, or ``module:Class`` and arguments."""
    return ":" in name.partition("(")[0]


def is_code(setting: str) -> bool:
    """Whether a setting imports something: a name of user-defined code, or an argument that is one."""
    return ":" in setting and not setting.startswith(NOT_CODE)


def refuse_strangers(folder: Path, named: Mapping[str, str], typed: Collection[str] = ()) -> None:
    """Raise a ValueError if the settings of a run's folder name code, which somebody else may have written.

    ``named`` are the settings that would be imported; those whose name the user has ``typed`` are the user's own.
    """
    code = {k: v for k, v in named.items() if is_code(v) and v not in typed}
    if code:
        what = ", ".join(f"{setting} {name}" for setting, name in code.items())
        raise ValueError(
            f"{folder} would run code that its config.json names: {what}. If you trust it, add --trust. Whoever wrote "
            "the folder chose that code."
        )


def imported(kind: str, name: str) -> Callable[..., Any]:
    """The user's function, which may not end the program; modules are searched for in the current directory first."""
    function = imported_function(kind, name)

    @functools.wraps(function)
    def called(*args: Any, **how: Any) -> Any:
        with _staying(kind, name):
            return function(*args, **how)

    return called


def imported_function(kind: str, name: str) -> Callable[..., Any]:
    """The user's function as it is."""
    function: Callable[..., Any] = _attribute(kind, name, "function")
    # A network can be called, but with samples: it is not the function that makes it.
    if not callable(function) or isinstance(function, nn.Module):
        kind_of = type(function).__name__
        raise ValueError(
            f'{kind} "{name}": {name.rpartition(":")[2]} is {"an" if kind_of[0] in "aeiouAEIOU" else "a"} {kind_of}, '
            "not a function. Write a function that returns it."
        )
    return function


def imported_class(kind: str, name: str) -> type:
    """The user's own method, policy or task, with the members that each must have; the first two are dataclasses."""
    cls = _attribute(kind, name, "class")
    see = f"See {PAGES[kind]} for a complete one."
    if not isinstance(cls, type):
        raise ValueError(f'{kind} "{name}": it is a {type(cls).__name__}, not a class. {see}')
    if kind != "task" and not is_dataclass(cls):
        raise ValueError(f'{kind} "{name}": write @dataclass(frozen=True) above the class. {see}')
    if kind == "policy" and not issubclass(cls, Policy):
        raise ValueError(f'{kind} "{name}": a class of your own inherits from ausam.Policy. {see}')
    if missing := [member for member in MEMBERS[kind] if not hasattr(cls, member)]:
        raise ValueError(f'{kind} "{name}": a {kind} needs {", ".join(missing)}, which {cls.__name__} lacks. {see}')
    return cls


def _attribute(kind: str, name: str, what: str) -> Any:
    """The function or class of this name in the user's module."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        example = "mine:MySAM for MySAM of mine.py" if what == "class" else "mine:make for make() of mine.py"
        raise ValueError(f'"{name}" is not a {kind}: write module:{what}, e.g. {example}.')
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.invalidate_caches()  # the file may be newer than the cached directory listing
        with _staying(kind, name):
            module = (
                _of_file(kind, name, module_name)
                if module_name.endswith(".py")
                else importlib.import_module(module_name)
            )
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f'{kind} "{name}": importing {module_name} failed: {error}.') from error
        raise ValueError(
            f'{kind} "{name}": there is no module {module_name} in {here} or in the installed packages.'
        ) from None
    if (value := getattr(module, attribute, None)) is None:
        own = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        mine = [k for k in own if isinstance(vars(module)[k], type) or what == "function"]
        raise ValueError(
            f'{kind} "{name}": {module_name} ({module.__file__}) has no {what} {attribute}. '
            f"It has: {', '.join(sorted(mine)) or 'none'}."
        )
    return value


def _of_file(kind: str, name: str, path: str) -> ModuleType:
    """The module in a file anywhere."""
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f'{kind} "{name}": there is no file {file}.')
    return _loaded(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)  # run once: a class must stay the same object however often it is named
def _loaded(file: Path, changed: int) -> ModuleType:  # noqa: ARG001  (a changed file is another module)
    """The module in this file; its imports are searched for in its own folder first."""
    spec = importlib.util.spec_from_file_location(f"ausam_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} cannot be imported as Python.")
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # needed by dataclasses and pickle
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _staying(kind: str, name: str) -> Iterator[None]:
    """Turn SystemExit in user code into an error: otherwise the command would look as if it had succeeded."""
    try:
        yield
    except SystemExit as error:
        raise ValueError(f'{kind} "{name}": it raised SystemExit ({error}) instead of returning a value.') from None
