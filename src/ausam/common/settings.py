"""One way to check a setting: a field's type declares the allowed values, and :func:`validate` enforces it.

    @dataclass(frozen=True)
    class SAM:
        rho: NonNegative = 0.05

        def __post_init__(self) -> None:
            validate(self)

The ranges are data, so the command line lists them and a test can visit every setting of every class.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor


@dataclass(frozen=True)
class Range:
    """The allowed numbers: between ``low`` and ``high``, integers only if ``whole``. Never inf or NaN."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    whole: bool = False

    def holds(self, x: float) -> bool:
        """Whether ``x`` lies inside."""
        if self.whole and not isinstance(x, int):
            return False
        above = x > self.low if self.low_open else x >= self.low
        below = x < self.high if self.high_open else x <= self.high
        return above and below and math.isfinite(x)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a finite number"
        if math.isfinite(self.high):
            return (
                f"{kind} in {'(' if self.low_open else '['}{self.low:g}, {self.high:g}{')' if self.high_open else ']'}"
            )
        return f"{kind} {'>' if self.low_open else '>='} {self.low:g}" if math.isfinite(self.low) else kind


@dataclass(frozen=True)
class OneOf:
    """The allowed names."""

    names: tuple[str, ...]

    def holds(self, value: object) -> bool:
        """Whether it is one of them."""
        return isinstance(value, str) and value in self.names

    def __str__(self) -> str:
        quoted = [f'"{name}"' for name in self.names]
        return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


@dataclass(frozen=True)
class Duration:
    """A number of epochs, or a fraction of all epochs."""

    def holds(self, x: float) -> bool:
        """Whether ``x`` is one or the other."""
        return 0 <= x < 1 or (x >= 1 and math.isfinite(x) and x == int(x))

    def __str__(self) -> str:
        return "a whole number of epochs >= 0, or a fraction of them in (0, 1)"


@dataclass(frozen=True)
class YesNo:
    """True or False."""

    def holds(self, value: object) -> bool:
        """Whether it is one of them."""
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "True or False"


Finite = Annotated[float, Range()]
NON_NEGATIVE = Range(low=0.0)
NonNegative = Annotated[float, NON_NEGATIVE]
POSITIVE = Range(low=0.0, low_open=True)
Positive = Annotated[float, POSITIVE]
Part = Annotated[float, Range(low=0.0, high=1.0, low_open=True)]  # a fraction to keep: never nothing
Probability = Annotated[float, Range(low=0.0, high=1.0)]
Decay = Annotated[float, Range(low=0.0, high=1.0, high_open=True)]  # the weight of the past in an average
COUNT = Range(low=0, whole=True)
Count = Annotated[int, COUNT]
POSITIVE_COUNT = Range(low=1, whole=True)
PositiveCount = Annotated[int, POSITIVE_COUNT]
Flag = Annotated[bool, YesNo()]
Epochs = Annotated[float, Duration()]

Rule = Range | OneOf | YesNo | Duration


def validate(settings: Any) -> None:
    """Raise a TypeError or ValueError for the first field of a dataclass whose value its type does not allow.

    A number that comes as a numpy scalar or a one-element tensor is replaced by the Python number.
    """
    owner = type(settings).__name__
    kind: type = type(settings)
    for name, (rule, optional) in rules(kind).items():
        value = getattr(settings, name)
        if not (optional and value is None):
            checked = checked_value(owner, name, value, rule, optional=optional)
            if checked is not value:
                object.__setattr__(settings, name, checked)


def checked_value(owner: str, name: str, value: Any, rule: Rule, *, optional: bool = False) -> Any:
    """The value as a plain Python value if the rule holds. Otherwise an error that says what is allowed."""
    plain = value
    if isinstance(rule, YesNo):
        plain = value if isinstance(value, bool) else None
    elif not isinstance(rule, OneOf):
        plain = _number(value)
    if plain is not None and rule.holds(plain):
        return int(plain) if isinstance(rule, Duration) and plain == int(plain) else plain
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    error = TypeError if plain is None else ValueError
    raise error(f"{owner}: {name} is {shown}. It must be {rule}{', or None' if optional else ''}.")


@cache
def rules(cls: type) -> dict[str, tuple[Rule, bool]]:
    """For each field with a rule: the rule, and whether None is also allowed."""
    hints = get_type_hints(cls, include_extras=True)
    every = {f.name: _rule(hints[f.name]) for f in fields(cls)}
    return {name: rule for name, rule in every.items() if rule is not None}


def _rule(hint: Any) -> tuple[Rule, bool] | None:
    if get_origin(hint) in (Union, UnionType):
        inner = [_rule(h) for h in get_args(hint) if h is not NoneType]
        return None if len(inner) != 1 or inner[0] is None else (inner[0][0], True)
    marks = [m for m in get_args(hint)[1:] if isinstance(m, Rule)] if get_origin(hint) is Annotated else []
    return (marks[0], False) if marks else None


def _number(value: Any) -> float | None:
    """A real number as a Python int or float. None for anything else, including True and False."""
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and value.device.type != "meta" else None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return int(value) if isinstance(value, numbers.Integral) else float(value)
