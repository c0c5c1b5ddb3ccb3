"""A method or policy as text, written as in Python, such as ``LookSAM(k=5)`` or ``mine:MySAM(rho=0.1)``."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from ausam.methods import METHODS
from ausam.policies import POLICIES
from ausam.policies.signals import signal_name
from ausam_lab.names.lookup import find
from ausam_lab.names.user_code import imported_class, imported_function, is_own

FORMS = "its name with arguments as in {}, or your own as module:Class"
EXAMPLES = {"method": "SAM(rho=0.1)", "policy": "AUSampling(alpha=0.5)"}

# Arguments that the data and the length of a run decide.
SET_BY_RUN = ("total_steps", "epochs", "labels")

CALL = re.compile(r"\s*(?P<name>[^()]*[^()\s])\s*(\((?P<arguments>.*)\))?\s*", re.DOTALL)


@dataclass(frozen=True)
class Expression:
    """A method or policy as written: its class, the name of that class, and the arguments that the text sets."""

    cls: Any
    name: str  # the class, or module:Class
    arguments: dict[str, Any]  # an inner method is an Expression

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.arguments.items())
        return f"{self.name}({arguments})" if arguments else self.name

    @property
    def takes(self) -> set[str]:
        """The names of all arguments of the class."""
        return {f.name for f in fields(self.cls)}

    @property
    def inner(self) -> Expression | None:
        """The inner method, SAM if none is given. None if the class takes none."""
        return self.arguments.get("inner") or Expression(METHODS["SAM"], "SAM", {}) if "inner" in self.takes else None

    def nested(self) -> Iterator[Expression]:
        """The expression, then its inner method, then that one's."""
        yield self
        if self.inner is not None:
            yield from self.inner.nested()


def parse(kind: str, text: str) -> Expression:
    """The class and the arguments in the text. Literals and nested methods only, nothing is executed.

    ``module:Class`` and ``file.py:Class`` import the user's own class.
    """
    name, call = _read(kind, text)
    own = is_own(name)
    table: dict[str, Any] = METHODS if kind == "method" else POLICIES
    cls: Any = imported_class(kind, name) if own else find(kind, name, table, FORMS.format(EXAMPLES[kind]))
    named = {str(k.arg): k.value for k in call.keywords}
    try:
        given = inspect.signature(cls).bind_partial(*call.args, **named).arguments
    except TypeError as error:
        raise ValueError(f'"{text}": {error}. {cls.__name__} takes {arguments_of(cls) or "no arguments"}.') from None
    arguments = {k: _value(kind, text, v) for k, v in given.items()}
    if not isinstance(inner := arguments.get("inner"), Expression | str | None):
        raise ValueError(
            f'"{text}": inner is {inner!r}, which is not a method. {cls.__name__} takes {arguments_of(cls)}.'
        )
    return Expression(cls, name if own else cls.__name__, arguments)


def _read(kind: str, text: str) -> tuple[str, ast.Call]:
    """The name, and a call with the arguments as written."""
    match = CALL.fullmatch(text)
    if match is None:
        raise ValueError(f'"{text}" is not a {kind}: write a name, or a name with arguments such as {EXAMPLES[kind]}.')
    try:
        call = ast.parse(f"f({match['arguments'] or ''})", mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise _unreadable(kind, text, error) from None
    if not isinstance(call, ast.Call) or any(k.arg is None for k in call.keywords):
        raise _unreadable(kind, text, "it is not one call")
    return match["name"], call


def _value(kind: str, text: str, node: ast.expr) -> Any:
    """A literal, or a nested method."""
    if isinstance(node, ast.Call | ast.Name):
        return parse("method", ast.unparse(node))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _unreadable(kind, text, error) from None


def _unreadable(kind: str, text: str, why: object) -> ValueError:
    return ValueError(f'The arguments of "{text}" cannot be read ({why}). Write e.g. {EXAMPLES[kind]}.')


def construct(kind: str, text: str, **settings: Any) -> Any:
    """The object in the text. ``settings`` fill the arguments that the text does not set."""
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
    """The canonical text: the class's name and every argument with its name. ``full`` becomes ``Full``.

    The user's own class keeps its arguments as written, so nothing is imported.
    """
    name, call = _read(kind, text)
    if is_own(name):
        return name + (ast.unparse(call).removeprefix("f") if call.args or call.keywords else "")
    return repr(parse(kind, text))


def brief(thing: object) -> str:
    """A method or policy as text: its first argument, and those that differ from their defaults.

    What the length of a run decides is left out.
    """
    shown = [f for f in fields(thing) if f.repr and f.name not in SET_BY_RUN]  # type: ignore[arg-type]
    given = [
        f"{f.name}={_shown(f.name, value)}"
        for i, f in enumerate(shown)
        if (value := getattr(thing, f.name)) != f.default or i == 0
    ]
    return f"{type(thing).__name__}({', '.join(given)})"


def _shown(name: str, value: Any) -> str:
    if name == "inner":
        return brief(value)
    return repr(signal_name(value) if name == "signal" else value)


def arguments_of(cls: Any) -> str:
    """The arguments of a method or policy with their defaults, if any: ``rho=0.05, k=5``."""
    return ", ".join(f.name + _default(f) for f in fields(cls))


def _default(f: Field[Any]) -> str:
    if f.default_factory is not MISSING:
        return f"={brief(f.default_factory())}"
    return "" if f.default is MISSING else f"={f.default!r}"


def has_radius(text: str) -> bool:
    """Whether the method in the text, or its inner method, has a rho."""
    return any("rho" in part.takes for part in parse("method", text).nested())


def uses(kind: str, text: str, name: str) -> bool:
    """Whether the object in the text, or its inner method, has this argument and the text does not set it."""
    part = next((part for part in parse(kind, text).nested() if name in part.takes), None)
    return part is not None and name not in part.arguments
