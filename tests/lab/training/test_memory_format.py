"""Channels last: the default for images, the same training, and resumed bit for bit."""

import torch

from ausam_lab.data.catalogue import problem, resolve
from ausam_lab.networks.build import to_memory_format
from ausam_lab.training.state import network

FEW = {"train_size": 96, "test_size": 40, "epochs": 3, "batch_size": 32, "threads": 1, "model": "resnet-small-w8"}
METHODS = ["sam", "esam", "friendlysam", "mesa(start=0)"]


def last_is_last(weight):
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def test_it_is_the_default_for_what_has_images_and_convolutions():
    config = resolve(**FEW)
    assert config.memory_format == "channels_last"
    kernels = [p for p in network(config, problem(config)).parameters() if p.dim() == 4 and min(p.shape[1:]) > 1]
    assert kernels
    assert all(map(last_is_last, kernels))
    plain = network(resolve(**FEW, memory_format="contiguous"), problem(config))
    assert all(p.is_contiguous() for p in plain.parameters())
    assert last_is_last(to_memory_format(torch.zeros(2, 3, 4, 4), "channels_last"))
    assert to_memory_format(torch.zeros(2, 3, 4, 4), "contiguous").is_contiguous()
    vectors = torch.zeros(2, 3)
    assert to_memory_format(vectors, "channels_last") is vectors
