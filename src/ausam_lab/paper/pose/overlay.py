"""Pictures of people with their joints, to inspect the output of a loader or a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ausam_lab.paper.pose.crop import MEAN, STD
from ausam_lab.paper.pose.simcc import located
from ausam_lab.paper.pose.skeleton import JOINTS, LIMBS, PELVIS

if TYPE_CHECKING:
    from PIL.Image import Image

    from ausam_lab.paper.pose.pose_set import PoseSet

RIGHT, LEFT, MIDDLE = (255, 140, 0), (0, 160, 255), (60, 220, 90)  # from the person's point of view
FOUND = (255, 0, 200)


def overlay(crop: Tensor, y: Tensor, joints: Tensor | None = None, zoom: int = 2) -> Image:
    """A crop, bytes (3, size, size), with the visible joints and limbs of its target (16, 4), and predictions (16, 2).

    Dots and lines are the ground truth: orange for the person's right, blue for the left, green for the middle.
    Magenta rings are predictions, with a thin line to the truth. The bar in the corner is half the head's size, PCKh's
    threshold.
    """
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(crop.permute(1, 2, 0).numpy())
    picture = picture.resize((zoom * picture.width, zoom * picture.height), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(picture)
    at = [(float(x), float(v)) for x, v in (y[:, :2] + 0.5) * zoom]
    seen = (y[:, 2] > 0).tolist()
    for a, b in LIMBS:
        if seen[a] and seen[b]:
            pen.line((at[a], at[b]), _colour(a if a != PELVIS else b), 2)
    for j, (px, py) in enumerate(at):
        if seen[j]:
            pen.ellipse((px - 4, py - 4, px + 4, py + 4), _colour(j), (0, 0, 0))
    if joints is not None:
        for j, (px, py) in enumerate(((joints + 0.5) * zoom).tolist()):
            if seen[j]:
                pen.line(((px, py), at[j]), FOUND, 1)
                pen.ellipse((px - 5, py - 5, px + 5, py + 5), None, FOUND, 2)
    half = float(y[0, 3]) * zoom / 2
    pen.line(((6, picture.height - 8), (6 + half, picture.height - 8)), (255, 255, 255), 3)
    pen.text(
        (8, picture.height - 24), "0.5 head" if half else "head unknown", (255, 255, 255), ImageFont.load_default()
    )
    return picture


def _colour(joint: int) -> tuple[int, int, int]:
    name = JOINTS[joint]
    return RIGHT if name.startswith("right") else LEFT if name.startswith("left") else MIDDLE


@torch.no_grad()
def sheet(data: PoseSet, model: nn.Module | None = None, n: int = 8, zoom: int = 2, across: int = 4) -> Image:
    """The first n test people side by side, with the predictions of a network if one is given."""
    from PIL import Image

    pictures: list[Image.Image] = []
    for x, y in data.test_batches(n):
        joints = None if model is None else located(model.eval(), x).cpu()
        pixels = (x.cpu() * torch.tensor(STD).view(-1, 1, 1) + torch.tensor(MEAN).view(-1, 1, 1)).round().clamp(0, 255)
        pictures = [
            overlay(crop.byte(), y[i].cpu(), None if joints is None else joints[i], zoom)
            for i, crop in enumerate(pixels)
        ]
        break
    side = pictures[0].width
    whole = Image.new("RGB", (side * min(across, len(pictures)), side * -(-len(pictures) // across)))
    for i, picture in enumerate(pictures):
        whole.paste(picture, (side * (i % across), side * (i // across)))
    return whole
