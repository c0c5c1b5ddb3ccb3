"""User-defined functions, named as module:function."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

# What the name of a data set or network may be besides one of the table.
OWN = "a name, or your own as module:function"


def is_own(name: str) -> bool:
    """Whether a name refers to user-defined code: ``module:function``."""
    return ":" in name


def refuse_other_form(kind: str, name: str) -> None:
    """Raise a ValueError for a name that looks like user-defined code, but is not ``module:function``."""
    if is_own(name):
        return
    if name.endswith(".py"):
        functions = _functions(Path(name))
        meant = f"{name}:{functions[0]}" if len(functions) == 1 else f"{name}:FUNCTION"
        which = f" Its functions: {', '.join(functions)}." if len(functions) > 1 else ""
    elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
        meant, which = ":".join(name.rsplit(".", 1)), ""
    else:
        return
    raise ValueError(f'"{name}" is not a {kind}: did you mean {meant}?{which}')


def _functions(path: Path) -> list[str]:
    """The public functions of a file, which is only read; none if it cannot be."""
    try:
        parts = ast.parse(path.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return [part.name for part in parts if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]


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
    # A network can be called, but with samples: it is not the function that makes it.
    if function is not None and (not callable(function) or isinstance(function, nn.Module)):
        kind_of = type(function).__name__
        raise ValueError(
            f'{kind} "{name}": {function_name} is {"an" if kind_of[0] in "aeiouAEIOU" else "a"} {kind_of}, not a '
            "function. Write a function that returns it."
        )
    if function is None:
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
