"""What several tests share: a working example of every method."""

from __future__ import annotations

from ausam import METHODS

# Arguments that have no default, or one that is meant for trainings longer than a test.
EXAMPLES = {
    "AESAM": {"total_steps": 60},
    "ESAM": {"gamma": 0.5},
    "LookSAM": {"k": 4},
    "MESA": {"start": 0, "decay": 0.9},
    "MomentumSAM": {"rho": 0.3},
    "SAF": {"start": 0, "gap": 1},
    "VSAM": {"window": 6, "blocks": 2, "warmup": 4},
}


def make(name):
    """The method of this name, with settings that show what it does within a few steps."""
    return METHODS[name](**EXAMPLES.get(name, {}))
