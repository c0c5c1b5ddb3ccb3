"""Stick figures of 64x64 pixels, drawn from a seed: a pose problem for a laptop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ausam_lab.paper.pose import simcc as s
from ausam_lab.paper.pose.people import SC_BIAS, UNIT, Array, People, PoseSet

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

SIDE = 64
FINE = 4  # drawn larger by this factor, then reduced, for smooth edges
HEAD_WIDTH = 0.75  # of its length

Colour = tuple[int, ...]
GREY, SKIN, SHIRT, TROUSERS = (128, 128, 128), (235, 180, 140), (200, 50, 50), (50, 70, 200)

# Lengths as fractions of a figure's height: child-like, so that the head, PCKh's unit, spans several pixels.
TORSO, THROAT, SKULL, SHOULDER, HIP = 0.28, 0.03, 0.18, 0.12, 0.08
ARM, FOREARM, THIGH, SHIN = 0.17, 0.16, 0.22, 0.22


def posed(rng: np.random.Generator) -> Array:
    """Joints (16, 2) in pixels, y downwards, of a figure that faces the viewer, so that its right is on our left."""
    at = np.zeros((len(s.JOINTS), 2))

    def limb(start: int, end: int, length: float, degrees: float) -> None:
        """A joint at a distance from another, at an angle from straight down (positive to our right), foreshortened."""
        angle = np.deg2rad(degrees)
        at[end] = at[start] + length * rng.uniform(0.8, 1.0) * np.array([np.sin(angle), np.cos(angle)])

    lean = rng.normal(0, 12)
    limb(s.PELVIS, s.THORAX, TORSO, 180 + lean)
    tilt = lean + rng.normal(0, 8)
    limb(s.THORAX, s.NECK, THROAT, 180 + tilt)
    limb(s.NECK, s.HEAD, SKULL, 180 + tilt + rng.normal(0, 8))
    sides = ((-1, s.RSHO, s.RELB, s.RWRI, s.RHIP, s.RKNE, s.RANK), (1, s.LSHO, s.LELB, s.LWRI, s.LHIP, s.LKNE, s.LANK))
    for side, shoulder, elbow, wrist, hip, knee, ankle in sides:
        limb(s.THORAX, shoulder, SHOULDER, side * rng.uniform(70, 95) + lean)
        raised = rng.uniform(0, 110)
        limb(shoulder, elbow, ARM, side * raised + lean)
        limb(elbow, wrist, FOREARM, side * (raised + rng.uniform(-30, 80)) + lean)
        limb(s.PELVIS, hip, HIP, side * rng.uniform(75, 95) + lean)
        spread = rng.uniform(0, 40)
        limb(hip, knee, THIGH, side * spread)
        limb(knee, ankle, SHIN, side * (spread - rng.uniform(-5, 40)))
    height = rng.uniform(0.7, 1.0) * SIDE
    middle = (at.min(0) + at.max(0)) / 2
    return np.asarray((at - middle) * height + SIDE / 2 + rng.uniform(-0.08, 0.08, 2) * SIDE)


def head_size(joints: Array) -> Array:
    """MPII's head size: 0.6 times the diagonal of the head's box, which is drawn 0.75 times as wide as long."""
    length = np.linalg.norm(joints[:, s.HEAD] - joints[:, s.NECK], axis=1)
    return np.asarray(SC_BIAS * np.hypot(1, HEAD_WIDTH) * length)


def painted(joints: Array, rng: np.random.Generator) -> Any:
    """The figure as bytes (64, 64, 3), between clutter in front and behind, with noise."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (SIDE * FINE, SIDE * FINE), _shade(rng, GREY, 60))
    pen = ImageDraw.Draw(picture)
    for _ in range(rng.integers(3, 9)):
        _clutter(pen, rng, 0.4)
    _figure(pen, (joints + 0.5) * FINE, rng)
    for _ in range(rng.integers(0, 3)):
        _clutter(pen, rng, 0.12)
    small = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX), np.float64)
    return np.clip(small + rng.normal(0, 8, small.shape), 0, 255).astype(np.uint8)


def _shade(rng: np.random.Generator, colour: tuple[int, int, int], spread: int) -> Colour:
    """A colour near this one."""
    return tuple(int(c) for c in np.clip(np.array(colour) + rng.integers(-spread, spread + 1, 3), 0, 255))


def _figure(pen: ImageDraw, at: Array, rng: np.random.Generator) -> None:
    skin, shirt, trousers = (_shade(rng, c, 40) for c in (SKIN, SHIRT, TROUSERS))
    head = float(np.linalg.norm(at[s.HEAD] - at[s.NECK]))
    thick = head * rng.uniform(0.25, 0.4)

    def limb(joints: tuple[int, ...], colour: Colour) -> None:
        points = [(float(x), float(y)) for x, y in at[list(joints)]]
        pen.line(points, colour, round(thick), "curve")
        for x, y in points:
            pen.ellipse((x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2), colour)

    limb((s.RHIP, s.RKNE, s.RANK), trousers)
    limb((s.LHIP, s.LKNE, s.LANK), trousers)
    pen.polygon([(float(x), float(y)) for x, y in at[[s.RSHO, s.LSHO, s.LHIP, s.RHIP]]], shirt)
    limb((s.THORAX, s.NECK), skin)
    pen.polygon(_oval(at[s.NECK], at[s.HEAD]), skin)
    limb((s.RSHO, s.RELB, s.RWRI), skin)
    limb((s.LSHO, s.LELB, s.LWRI), skin)


def _oval(a: Array, b: Array) -> list[tuple[float, float]]:
    """An ellipse whose long axis runs from a to b."""
    turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)[:, None]
    along, across = (b - a) / 2, HEAD_WIDTH * np.array([a[1] - b[1], b[0] - a[0]]) / 2
    return [(float(x), float(y)) for x, y in (a + b) / 2 + np.cos(turn) * along + np.sin(turn) * across]


def _clutter(pen: ImageDraw, rng: np.random.Generator, size: float) -> None:
    """A line, an ellipse or a rectangle at a random position, up to a fraction of the picture in size."""
    colour = _shade(rng, GREY, 90)
    (x, y), (w, h) = rng.uniform(0, SIDE * FINE, 2), rng.uniform(0.03, size, 2) * SIDE * FINE
    box = (float(x - w / 2), float(y - h / 2), float(x + w / 2), float(y + h / 2))
    kind = rng.integers(3)
    if kind == 0:
        pen.line(box if rng.integers(2) else (box[0], box[3], box[2], box[1]), colour, int(rng.integers(4, 12)))
    elif kind == 1:
        pen.ellipse(box, colour)
    else:
        pen.rectangle(box, colour)


TRAIN, TEST = 1_000, 250


def stick_figures(data_dir: str = "") -> PoseSet:  # noqa: ARG001  (nothing lies there)
    """1,000 figures for training and 250 for testing, always the same ones."""
    return PoseSet("stick-figures", many(0, TRAIN), many(1, TEST), SIDE)


def many(seed: int, n: int) -> People:
    """Draw n figures, each from the seed and its number. A joint outside the picture is not visible."""
    rngs = [np.random.default_rng([seed, i, 0xF16]) for i in range(n)]
    joints = np.stack([posed(rng) for rng in rngs])
    pictures = np.stack([painted(points, rng) for points, rng in zip(joints, rngs, strict=True)])
    visible = np.asarray(((joints >= 0) & (joints <= SIDE - 1)).all(2), np.float64)
    centre, scale = np.full((n, 2), SIDE / 2), np.full(n, SIDE / UNIT)
    return People(partial(_picture, pictures), np.arange(n), centre, scale, joints, visible, head_size(joints))


def _picture(pictures: NDArray[np.uint8], i: int) -> Image:
    from PIL import Image

    return Image.fromarray(pictures[i])
