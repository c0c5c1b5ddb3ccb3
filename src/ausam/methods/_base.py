"""What the methods share: settings that are checked, and what RST and AESAM require of the method inside them."""

from __future__ import annotations

from types import GeneratorType
from typing import Any, Self

from torch.nn import Parameter
from torch.optim import Optimizer

from ausam.common.settings import validate

# A method inside another. With ``second(step, g)`` it starts from an existing gradient ``g = grad L(w)``. With
# ``reuse(step, g)`` (LookSAM) it improves a gradient without a second pass. Both are optional.
Inner = Any


class Settings:
    """The fields of a frozen dataclass are checked when it is made, as their types declare."""

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """Name the remedy for ``SAM(model.parameters(), SGD, lr=0.1)``: Python would only complain about ``lr``."""
        first = args[0] if args else None
        entries = first if isinstance(first, (list, tuple)) else ()
        if isinstance(first, (GeneratorType, Optimizer)) or any(isinstance(entry, Parameter) for entry in entries):
            raise TypeError(
                f"{cls.__name__} is a method, and takes no parameters of a network. Wrap the optimizer: "
                "SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(rho=0.05), model). To keep first_step and "
                "second_step, import SAM from ausam.compat."
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        validate(self)


def require_inner(outer: str, inner: Any, *, needs_second: bool) -> None:
    """Raise a ValueError if ``inner`` cannot serve inside ``outer``."""
    name = inner.__name__ if isinstance(inner, type) else type(inner).__name__
    if isinstance(inner, type) or not hasattr(inner, "gradient"):
        raise ValueError(f"{outer}: inner is {name}, but an instance of a method such as SAM(rho=0.05) is needed.")
    if getattr(inner, "sharpness", "never") == "never":
        raise ValueError(
            f"{outer}: inner is {name}, which never evaluates the loss at perturbed weights, so there is nothing to "
            "choose between. Use SAM() or another method that does."
        )
    if needs_second and not getattr(inner, "starts_from_gradient", hasattr(inner, "second")):
        raise ValueError(
            f"{outer}: inner is {inner!r}, but {outer} starts from the weighted gradient of the whole batch. It needs "
            "a method with second(step, g). Use ASAM(), or SAM() without m, ascent and weighted."
        )
