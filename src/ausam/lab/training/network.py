"""The network of a run, ready to train."""

from __future__ import annotations

from torch import nn

from ausam.lab.config import Config
from ausam.lab.networks.build import build, check_fit
from ausam.lab.networks.quantisation import quantize
from ausam.lab.problems.problem import Problem


def network(config: Config, data: Problem) -> nn.Module:
    """The network that the settings name, made for this data, quantised if they say so, and on its device."""
    model = build(config.model, data.classes, data.channels, config.seed).to(config.device)
    check_fit(config.model, model, data.example(), data.answer)
    return quantize(model, config.quantize) if config.quantize else model
