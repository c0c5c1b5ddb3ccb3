"""What there is: methods, policies, pairs, networks and data sets."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from ausam import METHODS, POLICIES
from ausam.lab.networks.build import MODELS, POSE_MODELS, parameter_count
from ausam.lab.problems.catalogue import DATASETS
from ausam.lab.registry.pairs import PAIRS, arguments_of
from ausam.lab.report.text import text_table


def everything() -> dict[str, Any]:
    """All tables as plain data."""
    return {
        "methods": [_method(m) for m in METHODS.values()],
        "policies": [_policy(p) for p in POLICIES.values()],
        "pairs": [{"name": k, "label": p.label, "method": p.method, "policy": p.policy} for k, p in PAIRS.items()],
        "models": [{"name": name, "parameters": parameter_count(name, _answers(name))} for name in MODELS],
        "data": [{"name": k, "about": d.about, "settings": d.settings} for k, d in DATASETS.items()],
    }


def _answers(model: str) -> int:
    return 16 if model in POSE_MODELS else 10


def text(found: dict[str, Any]) -> str:
    """The same for people."""
    methods = [[m["name"], f"{m['forward']:.2f} + {m['backward']:.2f}", m["about"]] for m in found["methods"]]
    policies = [[p["name"], f"{p['kept']:.2f}", p["signal"], p["about"]] for p in found["policies"]]
    pairs = [[p["name"], f"{p['method']} × {p['policy']}"] for p in found["pairs"]]
    models = [[m["name"], f"{m['parameters']:,}"] for m in found["models"]]
    data = [[d["name"], d["about"]] for d in found["data"]]
    parts = [
        "Methods (passes: samples through forward + backward, per sample of the batch)",
        text_table(["Method", "Passes", "What it does"], methods, left=(0, 2)),
        "Policies (kept: part of the samples that is computed)",
        text_table(["Policy", "Kept", "Ranks by", "What it does"], policies, left=(0, 2, 3)),
        "Pairs (also METHOD-ALPHA for METHOD × AUSampling(ALPHA), and NAME@F for a fraction F of the epochs)",
        text_table(["Pair", "Method × policy"], pairs, left=(0, 1)),
        "Networks (parameters for 10 classes or 16 joints; or your own as module:function)",
        text_table(["Network", "Parameters"], models),
        "Data sets (or your own as module:function)",
        text_table(["Data set", "What it is"], data, left=(0, 1)),
    ]
    return "\n\n".join(parts)


def _method(cls: Any) -> dict[str, Any]:
    forward, backward = _example(cls).passes
    about = _about(cls)
    return {"name": cls.__name__, "forward": forward, "backward": backward, "sharpness": cls.sharpness, **about}


def _policy(cls: Any) -> dict[str, Any]:
    example = _example(cls)
    return {"name": cls.__name__, "kept": example.kept, "signal": example.signal, **_about(cls)}


def _about(cls: Any) -> dict[str, Any]:
    return {
        "arguments": arguments_of(cls),
        "about": (cls.__doc__ or "").partition("\n")[0],
    }


def _example(cls: Any) -> Any:
    """An instance with default arguments; a required number (a length of training) does not change what is shown."""
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return cls(**dict.fromkeys(required, 100))
