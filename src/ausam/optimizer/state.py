"""What SharpnessAware's part of a saved state must look like: it is checked before anything is loaded."""

from __future__ import annotations

from typing import Any

from ausam.common.settings import COUNT, checked_value

COUNTERS = ("steps", "skipped", "samples_forward", "samples_backward")


def refuse_other_states(found: Any) -> None:
    """Refuse what is no optimizer's state dict, and say where to find one."""
    if not isinstance(found, dict) or not {"state", "param_groups"} <= found.keys():
        keys = f" with the keys {', '.join(map(repr, list(found)[:3]))}" if isinstance(found, dict) and found else ""
        raise ValueError(
            f"This {type(found).__name__}{keys} is not what opt.state_dict() returned. If it is the content of a "
            'checkpoint, pass the optimizer\'s part of it, such as opt.load_state_dict(checkpoint["optimizer"]).'
        )


def validated(ours: dict[str, Any]) -> dict[str, Any]:
    """Our part of a state dict, or an error that says what is wrong with it."""
    memory = ours.get("memory", {}) if isinstance(ours, dict) else None
    if not isinstance(memory, dict) or (memory and not (isinstance(memory.get("values"), dict) and "owners" in memory)):
        raise ValueError(
            'The part "ausam" of the state dict is damaged: its memory has no values and owners. Nothing was loaded. '
            "Use another checkpoint, or remove that part to start the method from scratch."
        )
    for counter in COUNTERS:
        checked_value('state_dict["ausam"]', counter, ours.get(counter, 0), COUNT)
    return ours
