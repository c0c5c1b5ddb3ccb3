"""Frozen dataclasses as JSON and back; errors name the field that does not fit."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

LARGEST = 1e15  # no figure of a run is larger, and a larger one would break sums and charts


def plain(value: Any) -> Any:
    """A record as dicts, lists, strings and numbers."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def typed(kind: type[T], value: Any, where: str = "") -> T:
    """The record of this kind from a plain value; a ValueError names the first field that does not fit."""
    checked: T = _typed(kind, value, where)
    return checked


def _typed(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        inner = [a for a in arguments if a is not NoneType]
        if len(inner) == 1:
            return _typed(inner[0], value, where)
        if type(value) in inner:
            return value
    elif origin is tuple and isinstance(value, list):
        return tuple(_typed(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return {k: _typed(arguments[1], v, _inside(where, k)) for k, v in value.items()}
    elif is_dataclass(kind) and isinstance(value, dict):
        return _record(kind, value, where)
    elif kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        if (kind is float or isinstance(value, int)) and not (abs(value) >= LARGEST and abs(value) != float("inf")):
            return kind(value)
    elif kind in (str, bool) and isinstance(value, kind):
        return value
    raise ValueError(f"{where or 'it'} is {value!r:.80}")


def _record(kind: Any, value: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    if strange := sorted(set(value) - set(hints)):
        raise ValueError(f"{_inside(where, strange[0])} is not known")
    missing = [f.name for f in fields(kind) if f.name not in value and f.default is f.default_factory is MISSING]
    if missing:
        raise ValueError(f"{_inside(where, missing[0])} is missing")
    entries = {k: _typed(hints[k], v, _inside(where, k)) for k, v in value.items()}
    try:
        return kind(**entries)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)  # without the ranges, which the record checks itself
