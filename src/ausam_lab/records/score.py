"""Score: the result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from ausam.common.settings import Finite, validate

VALIDATION = "validation "  # prefix of the name of a score measured on held-out training samples


def measured_on(name: str) -> str:
    """The name of a score with the data that it was measured on: test accuracy, validation accuracy."""
    return name if name.startswith(VALIDATION) else f"test {name}"


def decimals(unit: str) -> int:
    """Number of decimals of a score: two for a percentage, four for an error such as 0.3857."""
    return 2 if unit == "%" else 4


@dataclass(frozen=True)
class Score:
    """The result of an evaluation: a figure with its name and unit, and further figures as parts, if any."""

    value: Finite
    name: str = "accuracy"
    unit: str = "%"  # empty for a plain number
    parts: dict[str, float] = field(default_factory=dict)
    lower_is_better: bool = False
    nll: float | None = None  # mean negative log-likelihood of the right class, of a classifier
    calibration_error: float | None = None  # of a classifier, in percent

    def __post_init__(self) -> None:
        validate(self)

    def __str__(self) -> str:
        return f"{self.name} {self.value:.{decimals(self.unit)}f} {self.unit}".rstrip()
