"""Settings that an adapter cannot honour, as data: each adapter has a table of them, and this raises the error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# The name of a setting, whether it is set so that it cannot be honoured, and the reason and the remedy.
Refusal = tuple[str, Callable[..., Any], str]

OWNED = (
    "with it, another library owns the parameters and the step, so the weights cannot be perturbed in between. Use one "
    "device or DDP."
)
STATIC_GRAPH = "a step has passes with and without averaging, so the graph changes. Leave it off."
UNORDERED = "False lets batches overtake each other, and the sampler counts them in order. Leave it True."
DISPATCHED = (
    "dispatch_batches=True makes one process read for all, but the sampler gives each process its own batches. "
    "Leave it None."
)


def refuse(table: Iterable[Refusal], *facts: Any) -> None:
    """Raise a ValueError for the first setting that these facts (the arguments, the accelerator) do not allow."""
    for name, is_refused, why in table:
        if is_refused(*facts):
            raise ValueError(f"{name}: {why}")
