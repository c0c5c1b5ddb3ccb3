"""User-defined functions, named as module:function."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def is_own(name: str) -> bool:
    """Whether a name refers to user-defined code: ``module:function``."""
    return ":" in name


def imported(kind: str, name: str) -> Callable[..., Any]:
    """The function; modules are searched for in the current directory first."""
    module_name, _, function_name = name.rpartition(":")
    if not module_name or not function_name:
        raise ValueError(f'"{name}" is not a {kind}: write module:function, e.g. mine:make for make() of mine.py.')
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        importlib.invalidate_caches()  # the file may be newer than the cached directory listing
        with _staying(kind, name):
            module = _of_file(kind, name, module_name) if module_name.endswith(".py") else _of_name(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f'{kind} "{name}": importing {module_name} failed: {error}.') from error
        raise ValueError(
            f'{kind} "{name}": there is no module {module_name} in {here} or in the installed packages.'
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        mine = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise ValueError(
            f'{kind} "{name}": {module_name} ({module.__file__}) has no function {function_name}. '
            f"It has: {', '.join(sorted(mine)) or 'none'}."
        )

    @functools.wraps(function)
    def called(*args: Any, **how: Any) -> Any:
        with _staying(kind, name):
            return function(*args, **how)

    return called


def _of_name(name: str) -> ModuleType:
    return importlib.import_module(name)


def _of_file(kind: str, name: str, path: str) -> ModuleType:
    """The module in a file anywhere; its imports are searched for in its own folder first."""
    place = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(f"ausam_user_{place.stem}", place)
    if not place.is_file() or spec is None or spec.loader is None:
        raise ValueError(f'{kind} "{name}": there is no file {place}.')
    if str(place.parent) not in sys.path:
        sys.path.insert(0, str(place.parent))
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
