"""The network of a run, ready to train."""

from __future__ import annotations

from torch import nn

from ausam_lab.config import Config
from ausam_lab.data.problem import Problem
from ausam_lab.networks.build import TRANSFORMS, build, check_fit
from ausam_lab.networks.memory_format import with_format


def network(config: Config, data: Problem) -> nn.Module:
    """Build the network in the settings for this data: quantised if asked, on its device, in its memory format."""
    model = build(config.model, data.num_outputs, data.channels, config.seed).to(config.device)
    check_fit(config.model, model, data.example(), data.output_shape)
    if config.quantize:
        model = TRANSFORMS["quantize"](model, config.quantize)
    return with_format(model, config.memory_format)
