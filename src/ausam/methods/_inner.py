"""What RST and AESAM require of the method inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ausam.common.tensors import Vector

if TYPE_CHECKING:
    from ausam.optimizer.step import Step


class Inner(Protocol):
    """A method that evaluates the loss at perturbed weights.

    With ``second(step, g)`` it starts from an existing gradient ``g = grad L(w)``. With ``reuse(step, g)`` (LookSAM) it
    improves a gradient without a second pass. Both are optional. ``takes_parts``: its first pass uses parts of the
    batch (SAM(m=...), SAM(ascent=...)), so it cannot use a gradient of the whole batch.
    """

    @property
    def sharpness(self) -> str:
        """Whether it evaluates the loss at perturbed weights: "always" or "sometimes"."""

    @property
    def passes(self) -> tuple[float, float]:
        """Samples through forward and through backward, per sample of the batch."""

    def gradient(self, step: Step) -> Vector:
        """The gradient, with all passes."""


def second(inner: Inner, step: Step, g: Vector) -> Vector:
    """The inner method's gradient, with ``g`` as its first pass."""
    gradient: Vector = inner.second(step, g)  # type: ignore[attr-defined]
    return gradient


def reuse(inner: Inner, step: Step, g: Vector) -> Vector:
    """The inner method's gradient from ``g`` without a second pass: ``g`` itself unless it has ``reuse``."""
    gradient: Vector = inner.reuse(step, g) if hasattr(inner, "reuse") else g
    return gradient


def refuse(outer: str, inner: object, *, needs_second: bool) -> None:
    """Raise a ValueError if ``inner`` cannot serve inside ``outer``."""
    name = inner.__name__ if isinstance(inner, type) else type(inner).__name__
    if isinstance(inner, type) or not hasattr(inner, "gradient"):
        raise ValueError(f"{outer}: inner is {name}, but an instance of a method such as SAM(rho=0.05) is needed.")
    if getattr(inner, "sharpness", "never") == "never":
        raise ValueError(
            f"{outer}: inner is {name}, which never evaluates the loss at perturbed weights, so there is nothing to "
            "choose between. Use SAM() or another method that does."
        )
    if needs_second and getattr(inner, "takes_parts", False):
        raise ValueError(
            f"{outer}: inner is {inner!r}, which perturbs by parts of the batch, but {outer} starts from a gradient of "
            "the whole batch. Use SAM() without m and ascent."
        )
    if needs_second and getattr(inner, "weighted", "both") == "second":
        raise ValueError(
            f"{outer}: inner is {inner!r}, whose first pass has no weights, but {outer} starts from a weighted one. "
            'Use SAM() with weighted="both" or "first".'
        )
    if needs_second and not hasattr(inner, "second"):
        raise ValueError(
            f"{outer}: inner is {name}, which cannot start from an existing gradient: it has no "
            "second(step, g). Use SAM(), ASAM() or another method that has."
        )
