"""People for the tests of poses, made by hand or drawn."""

import json

import numpy as np
import torch
from PIL import Image

from ausam_lab.paper.pose.people import People, PoseSet
from ausam_lab.paper.pose.stick_figures import SIDE
from ausam_lab.paper.pose.stick_figures import many as drawn_figures


def some(n, seed=0):
    return torch.Generator().manual_seed(n * 1000 + seed)


def crowd(n, size=64, seed=3):
    """People at random places of large pictures."""
    rng = np.random.default_rng(seed)
    centre, scale = rng.uniform(200, 900, (n, 2)), rng.uniform(1, 4, n)
    joints = centre[:, None] + rng.uniform(-0.5, 0.5, (n, 16, 2)) * 200 * scale[:, None, None]
    visible = (rng.uniform(size=(n, 16)) < 0.8).astype(float)
    head = rng.uniform(15, 40, n) * scale
    return People(lambda _: Image.new("RGB", (8, 8)), np.arange(n), centre, scale, joints, visible, head)


def small_set(n=12, **how):
    return PoseSet("small", drawn_figures(0, n), drawn_figures(1, 4), SIDE, **how)


def person(i, **other):
    joints = [[40.0 + 5 * j, 30.0 + (7 * j * (i + 1)) % 60] for j in range(16)]
    own = {"image": f"{i:03d}.jpg", "center": [80.0, 60.0], "scale": 0.5, "joints": joints, "joints_vis": [1] * 16}
    return own | other


def put_mpii(folder, train, test, matrix=None):
    (folder / "mpii" / "annot").mkdir(parents=True)
    (folder / "mpii" / "images").mkdir()
    for name, content in (("train", train), ("valid", test)):
        (folder / "mpii" / "annot" / f"{name}.json").write_text(json.dumps(content))
    for p in (*train, *test):
        pixels = np.random.default_rng(len(p["image"])).integers(0, 256, (120, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "mpii" / "images" / p["image"])
    if matrix is not None:
        from scipy.io import savemat

        savemat(folder / "mpii" / "annot" / "gt_valid.mat", matrix)
