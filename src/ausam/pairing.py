"""The one place that raises an error for a method and a policy that cannot work together."""

from __future__ import annotations

from ausam.methods import METHODS
from ausam.optimizer.step import Method
from ausam.policies import Policy
from ausam.policies.signals import AT_PERTURBED_WEIGHTS, signal_name


def check(method: Method, policy: Policy) -> None:
    """Raise a ValueError if ``policy`` ranks samples by something that ``method`` never measures.

    >>> from ausam import AUSampling, Plain, check
    >>> check(Plain(), AUSampling())
    Traceback (most recent call last):
      ...
    ValueError: AUSampling ranks samples by sharpness, but Plain never evaluates the loss at perturbed weights. ...
    """
    for what, name, example in ((method, "method", "SAM()"), (policy, "policy", "AUSampling()")):
        needs = "gradient" if name == "method" else "signal"
        if isinstance(what, type) or not hasattr(what, needs):
            raise TypeError(f"check: {name} is {what!r}, but an instance such as {example} is needed.")
    signal = signal_name(policy.signal)
    if signal in AT_PERTURBED_WEIGHTS and method.sharpness == "never":
        partners = [name for name, m in METHODS.items() if m.sharpness != "never"]
        raise ValueError(
            f"{type(policy).__name__} ranks samples by {AT_PERTURBED_WEIGHTS[signal]}, but "
            f"{type(method).__name__} never evaluates the loss at perturbed weights. "
            f"Pair it with {', '.join(partners[:-1])} or {partners[-1]}, or choose a policy that ranks by loss."
        )
