"""The crop of a person is HRNet's, and joints move with the pixels."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from ausam_lab.paper.pose.people import PLAIN, Change, People, cut, inverse, mapped, random_change, to_crop
from ausam_lab.paper.pose.simcc import LANK, RANK


@pytest.mark.parametrize("change", [PLAIN, Change(25.0, 1.1, False), Change(-40.0, 0.8, True)])
def test_the_crop_is_hrnets_affine_map(change):
    """Three points fix it: the centre, the point half a side above it, turned, and one at a right angle to these."""
    wide, size, centre, scale = 500, 256, np.array([130.0, 220.0]), 1.7
    side = 200 * scale * change.growth
    c = np.array([wide - centre[0] - 1, centre[1]]) if change.mirror else centre
    angle = math.radians(change.turn)
    up = np.array([math.sin(angle) * side / 2, -math.cos(angle) * side / 2])
    source = np.array([c, c + up, c + up + [up[1], -up[0]]])
    target = np.array([[size / 2, size / 2], [size / 2, 0], [0, 0]])
    solved = np.linalg.solve(np.column_stack([source, np.ones(3)]), target).T
    points = np.random.default_rng(0).uniform(0, 400, (7, 2))
    seen = points.copy()
    if change.mirror:
        seen[:, 0] = wide - seen[:, 0] - 1
    matrix = to_crop(centre, scale, size, change)
    np.testing.assert_allclose(mapped(points, matrix), mapped(seen, solved), atol=1e-9)
    np.testing.assert_allclose(mapped(mapped(points, matrix), inverse(matrix)), points, atol=1e-9)


@pytest.mark.parametrize("change", [PLAIN, Change(33.0, 0.9, True)])
def test_pixels_of_the_crop_against_slow_bilinear_reading(change):
    pixels = np.random.default_rng(1).integers(0, 256, (60, 70, 3), dtype=np.uint8)
    size, matrix = 32, to_crop(np.array([33.0, 31.0]), 0.2, 32, change)
    crop = cut(Image.fromarray(pixels), matrix, size)
    assert crop.shape == (3, size, size)
    back, checked = inverse(matrix), 0
    for row in range(size):
        for column in range(size):
            x, y = mapped(np.array([float(column), float(row)]), back)
            if not (1 <= x < 68 and 1 <= y < 58):
                continue
            i, j, a, b = int(y), int(x), y % 1, x % 1
            square = pixels[i : i + 2, j : j + 2].astype(float)
            mean = (1 - a) * ((1 - b) * square[0, 0] + b * square[0, 1])
            mean += a * ((1 - b) * square[1, 0] + b * square[1, 1])
            assert np.abs(crop[:, row, column].numpy() - mean).max() <= 1.01
            checked += 1
    assert checked > 900


@pytest.mark.parametrize("index", range(4))
def test_joints_move_with_the_pixels(index):
    """A red dot at the right ankle and a blue one at the left: wherever the crop has them, the target says so."""
    pixels = np.zeros((300, 400, 3), np.uint8)
    joints = np.full((1, 16, 2), 150.0)
    joints[0, RANK], joints[0, LANK] = (120.0, 200.0), (210.0, 130.0)
    pixels[196:205, 116:125, 0], pixels[126:135, 206:215, 2] = 255, 255
    visible = np.ones((1, 16))
    visible[0, RANK] = 0  # told apart from the left one
    position = (np.arange(1), np.array([[170.0, 160.0]]), np.ones(1))
    people = People(lambda _: Image.fromarray(pixels), *position, joints, visible, np.ones(1))
    changes = [PLAIN, Change(50.0, 0.8, False), Change(-20.0, 1.2, True), Change(0.0, 1.0, True)]
    crop, y = people.shown(0, 128, changes[index])
    mirror = changes[index].mirror
    for channel, joint in ((0, LANK if mirror else RANK), (2, RANK if mirror else LANK)):
        weight = crop[channel].double()
        rows, columns = torch.meshgrid(*[torch.arange(128.0)] * 2, indexing="ij")
        at = [float((grid * weight).sum() / weight.sum()) for grid in (columns, rows)]
        assert y[joint, :2].tolist() == pytest.approx(at, abs=0.3)
        assert float(y[joint, 2]) == (channel == 2)
    assert float(y[0, 3]) == pytest.approx(128 / (200 * changes[index].growth), rel=1e-5)


def test_augmentation_is_hrnets_and_a_function_of_seed_epoch_and_person():
    changes = [random_change(0, 1, i) for i in range(2000)]
    assert changes[:50] == [random_change(0, 1, i) for i in range(50)]
    assert changes[:50] != [random_change(0, 2, i) for i in range(50)]
    assert changes[:50] != [random_change(1, 1, i) for i in range(50)]
    growth, turn = np.array([c.growth for c in changes]), np.array([c.turn for c in changes])
    assert growth.min() == 0.75
    assert growth.max() == 1.25
    # A normal of deviation 0.25 leaves 1 +- 0.25 for 32 % of the people; 40 % are not turned, and 4.6 % of the others
    # are clipped at 60 degrees; a half are mirrored.
    assert np.mean(np.abs(growth - 1) == 0.25) == pytest.approx(0.317, abs=0.04)
    assert np.mean(turn == 0) == pytest.approx(0.4, abs=0.04)
    assert np.abs(turn).max() == 60
    assert np.mean(np.abs(turn) == 60) == pytest.approx(0.6 * 0.0455, abs=0.012)
    assert np.std(turn[(turn != 0) & (np.abs(turn) < 60)]) == pytest.approx(30 * 0.88, rel=0.06)
    assert np.mean([c.mirror for c in changes]) == pytest.approx(0.5, abs=0.04)
