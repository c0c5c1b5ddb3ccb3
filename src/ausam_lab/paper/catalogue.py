"""The paper's own networks, data and quantisation, added to the lab's tables by :func:`register`."""

from __future__ import annotations

from functools import partial

from ausam_lab.data.catalogue import DATASETS, Entry
from ausam_lab.networks.build import MODELS, POSE_MODELS, TRANSFORMS, Builder
from ausam_lab.networks.resnet import ResNet, basic
from ausam_lab.paper.networks.convolutional import MobileNet, PyramidNet, WideResNet
from ausam_lab.paper.networks.hrnet import HRNet
from ausam_lab.paper.pose.mpii import mpii
from ausam_lab.paper.pose.stick_figures import stick_figures
from ausam_lab.paper.quantisation import quantize

NETWORKS: dict[str, Builder] = {
    "resnet10-w16": partial(ResNet, basic, (1, 1, 1, 1), 16),
    "wrn10-2": partial(WideResNet, 10, 2),
    "wrn28-10": partial(WideResNet, 28, 10),
    "wrn34-10": partial(WideResNet, 34, 10),  # what the official code calls WideResNet-28-10
    "pyramidnet14-24": partial(PyramidNet, 14, 24),
    "pyramidnet110-270": partial(PyramidNet, 110, 270),
    "mobilenetv1-cifar-quarter": partial(MobileNet, 0.25, 1),
    "mobilenetv1-cifar": partial(MobileNet, 1.0, 1),
    "mobilenetv1": partial(MobileNet, 1.0, 2),
    "mobilenetv1-224": partial(MobileNet, 1.0, 2, pixels=224),
}

# for poses, whose outputs are joints
POSE_NETWORKS: dict[str, Builder] = {
    "hrnet-w16-small": partial(HRNet, 16, (1, 1), 1, 8, 64),  # for 64x64 pixels
    "hrnet-w32": partial(HRNet, 32, (1, 4, 3), 4, 64, 256),
}

# The paper's settings for SimCC, and those that it takes from SimCC.
POSE = {
    "model": "hrnet-w32",
    "epochs": 210,
    "batch_size": 64,
    "base": "adam",
    "lr": 0.001,
    "lr_steps": "0.8095,0.9524",  # after 170 and 200 of 210
    "weight_decay": 0.0001,
    "rho": 0.05,
    "label_smoothing": 0.2,
    "augment": "standard",
    "workers": 4,
}

DATA: dict[str, Entry] = {
    "stick-figures": Entry(
        load=stick_figures,
        about="poses: drawn figures of 64x64 with 16 joints, embedded: 1,000 for training, 250 for testing",
        image=(3, 64, 64),
        num_outputs=16,
        train=1_000,
        test=250,
        settings=POSE
        | {
            "model": "hrnet-w16-small",
            "epochs": 20,
            "batch_size": 32,
            "lr": 0.005,
            "augment": "none",
            "workers": 0,
            "threads": 1,
        },
    ),
    "mpii": Entry(
        load=mpii,
        about="poses: people with 16 joints, shown at 256x256. Download its files by hand",
        image=(3, 256, 256),
        num_outputs=16,
        train=22_246,
        test=2_958,
        settings=POSE,
    ),
}


def register() -> None:
    """Add the paper's networks, data and quantisation to the lab's tables. A second call changes nothing."""
    MODELS.update(NETWORKS | POSE_NETWORKS)
    POSE_MODELS.update(POSE_NETWORKS)
    DATASETS.update(DATA)
    TRANSFORMS["quantize"] = quantize
