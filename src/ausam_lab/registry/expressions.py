"""A method or policy as text, such as ``LookSAM(k=5)`` or ``mine:MySAM(rho=0.1)``: read, constructed and written."""

from __future__ import annotations

import ast
import contextlib
import math
import re
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any

import torch

from ausam.methods import METHODS
from ausam.policies import POLICIES
from ausam.policies.signals import signal_name
from ausam_lab.registry.lookup import find
from ausam_lab.registry.user_code import imported_class, imported_function, is_own, refuse_other_form

EXAMPLES = {"method": "SAM(rho=0.1)", "policy": "AUSampling(alpha=0.5)"}

NO_LABELS = torch.zeros(1, dtype=torch.int64)  # for a policy that is only looked at

# Arguments that the data and the length of a run decide, with values for a look at the others.
OF_A_RUN = {"total_steps": 1, "epochs": 1, "labels": NO_LABELS}

CALL = re.compile(r"\s*(?P<name>[^()]*[^()\s])\s*(\((?P<arguments>.*)\))?\s*", re.DOTALL)


@dataclass(frozen=True)
class Expression:
    """A method or policy as written: its class, the name of that class, and the arguments that the text sets."""

    cls: Any
    name: str  # the class, or module:Class
    arguments: dict[str, Any]  # an inner method is an Expression

    @property
    def takes(self) -> set[str]:
        """The names of all arguments of the class."""
        return {f.name for f in fields(self.cls)}

    @property
    def inner(self) -> Expression | None:
        """The inner method, SAM if none is given; None if the class takes none."""
        if "inner" not in self.takes:
            return None
        given: Expression = self.arguments.get("inner") or parse("method", "SAM")
        return given


def parse(kind: str, text: str) -> Expression:
    """The class and the arguments in the text; literals and nested methods only, nothing is executed.

    ``module:Class`` and ``file.py:Class`` import the user's own class.
    """
    name, written = _read(kind, text)
    values = dict(written)
    cls = imported_class(kind, name) if is_own(name) else _ours(kind, name)
    if wrong := set(values) - {f.name for f in fields(cls)}:
        raise ValueError(f"{cls.__name__} has no argument {min(wrong)}. It takes {arguments_of(cls) or 'none'}.")
    if isinstance(inner := values.get("inner"), str):
        values["inner"] = parse("method", inner)
    return Expression(cls, name if is_own(name) else cls.__name__, values)


def _ours(kind: str, name: str) -> Any:
    table: dict[str, Any] = METHODS if kind == "method" else POLICIES
    forms = f"its name, its name with arguments such as {EXAMPLES[kind]}, or your own as module:Class"
    return find(kind, name, table, forms)


@cache
def _read(kind: str, text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments as written, without looking at any class; an inner method stays text."""
    match = CALL.fullmatch(text)
    refuse_other_form(kind, text.strip())
    if match is None or not (is_own(match["name"]) or re.fullmatch(r"\w+", match["name"])):
        raise ValueError(f'"{text}" is not a {kind}: write a name, or a name with arguments such as {EXAMPLES[kind]}.')
    try:
        call = ast.parse(f"f({match['arguments'] or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError("every argument needs its name")
        return match["name"], {str(k.arg): _value(str(k.arg), k.value) for k in call.keywords}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f'The arguments of "{text}" cannot be read ({error}). Write e.g. {EXAMPLES[kind]}.') from None


def _value(name: str, node: ast.expr) -> Any:
    """A literal; a bare word is text, or True, False or None in any case."""
    if name == "inner" and not isinstance(node, ast.Constant):
        return ast.unparse(node)
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "none": None}.get(node.id.lower(), node.id)
    return ast.literal_eval(node)


def construct(kind: str, text: str, **settings: Any) -> Any:
    """The object in the text; ``settings`` fill the arguments that the text does not set."""
    try:
        return _construct(parse(kind, text), {k: v for k, v in settings.items() if v is not None})
    except TypeError as error:
        why = str(error).removesuffix(".")
        raise ValueError(f'An argument of "{text}" is missing or has the wrong type: {why}.') from None


def _construct(expression: Expression, settings: dict[str, Any]) -> Any:
    arguments = {k: v for k, v in settings.items() if k in expression.takes} | expression.arguments
    if expression.inner is not None:
        arguments["inner"] = _construct(expression.inner, settings)
    if isinstance(signal := arguments.get("signal"), str) and is_own(signal):
        arguments["signal"] = imported_function("signal", signal)
    return expression.cls(**arguments)


def canonical(kind: str, text: str) -> str:
    """The canonical text: the name of the class, then its arguments in order. ``full`` becomes ``Full``.

    The arguments of the user's own class keep the order in which they were written, so nothing is imported.
    """
    name, values = _read(kind, text)
    if not is_own(name):
        expression = parse(kind, text)
        name = expression.name
        given = expression.arguments
        values = {f.name: given[f.name] for f in fields(expression.cls) if f.name in given}
    arguments = ", ".join(f"{k}={_text(v)}" for k, v in values.items())
    return f"{name}({arguments})" if arguments else name


def with_canonical(settings: dict[str, Any]) -> dict[str, Any]:
    """Saved settings with method and policy in canonical form; unknown names are unchanged."""
    out = dict(settings)
    for kind in ("method", "policy"):
        with contextlib.suppress(ValueError, TypeError):
            out[kind] = canonical(kind, out[kind])
    return out


def _text(value: Any) -> str:
    if isinstance(value, Expression):
        return f"{value.name}({', '.join(f'{k}={_text(v)}' for k, v in value.arguments.items())})"
    if value in (math.inf, -math.inf):
        return "1e999" if value > 0 else "-1e999"  # inf is not a literal
    return repr(value)


def brief(thing: object) -> str:
    """A method or policy as text: its first argument, and those that differ from their defaults.

    What the length of a run decides is left out.
    """
    shown = [f for f in fields(thing) if f.repr and f.name not in OF_A_RUN]  # type: ignore[arg-type]
    given = [
        f"{f.name}={_shown(f.name, value)}"
        for i, f in enumerate(shown)
        if (value := getattr(thing, f.name)) != f.default or i == 0
    ]
    return f"{type(thing).__name__}({', '.join(given)})"


def _shown(name: str, value: Any) -> str:
    if name == "inner":
        return brief(value)
    return repr(signal_name(value)) if name == "signal" else lasting_repr(value)


def lasting_repr(thing: object) -> str:
    """The repr without memory addresses, which differ from run to run: of a function its name, of an object its class.

    >>> lasting_repr(parse) == repr(parse)
    False
    >>> lasting_repr(parse)
    '<function parse>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


def arguments_of(cls: Any) -> str:
    """The arguments of a method or policy with their defaults, if any: ``rho=0.05, k=5``."""
    return ", ".join(f.name + _default(f) for f in fields(cls))


def _default(f: Field[Any]) -> str:
    if f.default_factory is not MISSING:
        return f"={brief(f.default_factory())}"
    return "" if f.default is MISSING else f"={f.default!r}"


def has_radius(text: str) -> bool:
    """Whether the method in the text, or its inner method, has a rho."""
    expression: Expression | None = parse("method", text)
    while expression is not None and "rho" not in expression.takes:
        expression = expression.inner
    return expression is not None


def uses(kind: str, text: str, name: str) -> bool:
    """Whether the object in the text, or its inner method, has this argument and the text does not set it."""
    expression: Expression | None = parse(kind, text)
    while expression is not None:
        if name in expression.arguments:
            return False
        if name in expression.takes:
            return True
        expression = expression.inner
    return False
