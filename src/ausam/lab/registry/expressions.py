"""A method or policy as text, such as ``LookSAM(k=5)``: read, constructed, and written again."""

from __future__ import annotations

import ast
import contextlib
import math
import re
from dataclasses import MISSING, Field, fields
from typing import Any

import torch

from ausam import METHODS, POLICIES
from ausam.lab.registry.lookup import find

EXAMPLES = {"method": "SAM(rho=0.1)", "policy": "AUSampling(alpha=0.5)"}

NO_LABELS = torch.zeros(1, dtype=torch.int64)  # for a policy that is only looked at


def parse(kind: str, text: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    """``"LookSAM(k=5)"`` as a class name and its arguments; literals and nested methods only, nothing is executed."""
    match = re.fullmatch(r"\s*([A-Za-z0-9_]+)\s*(\((.*)\))?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(f'"{text}" is not a {kind}: write a name, or a name with arguments such as {EXAMPLES[kind]}.')
    table: dict[str, Any] = METHODS if kind == "method" else POLICIES
    cls = find(kind, match[1], table, f"its name, or its name with arguments such as {EXAMPLES[kind]}")
    try:
        call = ast.parse(f"f({match[3] or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError("every argument needs its name")
        values = {str(k.arg): k.value for k in call.keywords}
        nested = {k: construct("method", ast.unparse(v), **settings) for k, v in values.items() if k == "inner"}
        arguments = {k: nested[k] if k in nested else _value(v) for k, v in values.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f'The arguments of "{text}" cannot be read ({error}). Write e.g. {EXAMPLES[kind]}.') from None
    wrong = set(arguments) - {f.name for f in fields(cls)}
    if wrong:
        raise ValueError(f"{cls.__name__} has no argument {sorted(wrong)[0]}. It takes {arguments_of(cls)}.")
    return cls.__name__, arguments


def _value(node: ast.expr) -> Any:
    """A literal; a bare word is text, or True, False or None in any case."""
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "none": None}.get(node.id.lower(), node.id)
    return ast.literal_eval(node)


def construct(kind: str, text: str, **settings: Any) -> Any:
    """The object in the text; ``settings`` fill the arguments that the text does not set."""
    settings = {k: v for k, v in settings.items() if v is not None}
    name, arguments = parse(kind, text, **settings)
    cls: Any = (METHODS if kind == "method" else POLICIES)[name]
    takes = {f.name for f in fields(cls)}
    if "inner" in takes and "inner" not in arguments:
        arguments["inner"] = construct("method", "SAM", **settings)
    try:
        return cls(**{k: v for k, v in settings.items() if k in takes} | arguments)
    except TypeError as error:
        raise ValueError(f'An argument of "{text}" has the wrong type: {error}.') from None


def canonical(kind: str, text: str) -> str:
    """The canonical text: the name of the class, then its arguments in order. ``full`` becomes ``Full``."""
    name, arguments = parse(kind, text)
    cls: Any = (METHODS if kind == "method" else POLICIES)[name]
    given = [f"{f.name}={_text(arguments[f.name])}" for f in fields(cls) if f.name in arguments]
    return f"{name}({', '.join(given)})" if given else name


def with_canonical(settings: dict[str, Any]) -> dict[str, Any]:
    """Saved settings with method and policy in canonical form; unknown names are unchanged."""
    out = dict(settings)
    for kind in ("method", "policy"):
        with contextlib.suppress(ValueError, TypeError):
            out[kind] = canonical(kind, out[kind])
    return out


def _text(value: Any) -> str:
    if value in (math.inf, -math.inf):
        return "1e999" if value > 0 else "-1e999"  # inf is not a literal
    return f"{type(value).__name__}({', '.join(_given(value))})" if type(value).__name__ in METHODS else repr(value)


def _given(thing: Any) -> list[str]:
    """The arguments that differ from their defaults, as text."""
    return [
        f"{f.name}={_text(value)}"
        for f in fields(thing)
        if (value := getattr(thing, f.name)) != (f.default if f.default_factory is MISSING else f.default_factory())
    ]


def brief(thing: object) -> str:
    """A method or policy as text: its first argument, and those that differ from their defaults."""
    shown = [f for f in fields(thing) if f.repr]  # type: ignore[arg-type]
    given = [
        f"{f.name}={brief(value) if f.name == 'inner' else repr(value)}"
        for i, f in enumerate(shown)
        if (value := getattr(thing, f.name)) != f.default or i == 0
    ]
    return f"{type(thing).__name__}({', '.join(given)})"


def arguments_of(cls: Any) -> str:
    """The arguments of a method or policy with their defaults, if any: ``rho=0.05, k=5``."""
    return ", ".join(f.name + _default(f) for f in fields(cls))


def _default(f: Field[Any]) -> str:
    if f.default_factory is not MISSING:
        return f"={brief(f.default_factory())}"
    return "" if f.default is MISSING else f"={f.default!r}"


def has_radius(text: str) -> bool:
    """Whether the method in the text, or its inner method, has a rho."""
    names = {f.name for f in fields(METHODS[parse("method", text)[0]])}
    return "rho" in names or ("inner" in names and has_radius(_inner(text)))


def uses(kind: str, text: str, name: str) -> bool:
    """Whether the object in the text, or its inner method, has this argument and the text does not set it."""
    cls, arguments = parse(kind, text)
    names = {f.name for f in fields((METHODS if kind == "method" else POLICIES)[cls])}
    if name in arguments:
        return False
    return name in names or ("inner" in names and uses(kind, _inner(text), name))


def _inner(text: str) -> str:
    """The text of the inner method; SAM if none is given."""
    call = ast.parse(text.strip(), mode="eval").body
    found = [ast.unparse(k.value) for k in call.keywords if k.arg == "inner"] if isinstance(call, ast.Call) else []
    return found[0] if found else "SAM"
