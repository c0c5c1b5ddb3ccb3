"""Augmentation against slow twins; it depends on seed, epoch and batch alone."""

from dataclasses import replace

import pytest
import torch

from ausam import Full, SelectiveBatchSampler
from ausam.common.random import generator
from ausam_lab.data import images as augment
from ausam_lab.data.images import ImageSet
from tests.lab.data.archives import images


def slow_crop(image, down, right, margin):
    h, w = image.shape[1:]
    out = torch.zeros_like(image)
    for i in range(h):
        for j in range(w):
            row, column = i + down - margin[0], j + right - margin[1]
            if 0 <= row < h and 0 <= column < w:
                out[:, i, j] = image[:, row, column]
    return out


def slow_cutout(image, row, column, size):
    out = image.clone()
    for i in range(row - size // 2, row - size // 2 + size):
        for j in range(column - size // 2, column - size // 2 + size):
            if 0 <= i < image.shape[1] and 0 <= j < image.shape[2]:
                out[:, i, j] = 0
    return out


SHAPES = [(3, 16, 16), (1, 8, 12), (2, 9, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_augmentation_against_a_slow_twin(shape):
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (40, *shape), generator=rng, dtype=torch.uint8)
    margin = (2, 3)
    down, right = torch.randint(0, 5, (40,), generator=rng), torch.randint(0, 7, (40,), generator=rng)
    which = torch.rand(40, generator=rng) < 0.5
    row, column = torch.randint(0, shape[1], (40,), generator=rng), torch.randint(0, shape[2], (40,), generator=rng)
    mean, std = tuple(100.0 + c for c in range(shape[0])), tuple(50.0 + c for c in range(shape[0]))
    normal = augment.normalise(x, mean, std)
    for size in (4, 5):
        holes = augment.cut_out(normal, row, column, size)
        for i in range(40):
            assert torch.equal(holes[i], slow_cutout(normal[i], int(row[i]), int(column[i]), size))
    crops, flips = augment.crop(x, down, right, margin), augment.flip(x, which)
    assert crops.dtype == flips.dtype == torch.uint8
    for i in range(40):
        assert torch.equal(crops[i], slow_crop(x[i], int(down[i]), int(right[i]), margin))
        mirrored = torch.stack([x[i, :, :, shape[2] - 1 - j] for j in range(shape[2])], -1)
        assert torch.equal(flips[i], mirrored if which[i] else x[i])
        for c in range(shape[0]):
            assert torch.equal(normal[i, c], (x[i, c].float() - mean[c]) / std[c])


@pytest.mark.parametrize("kind", ["none", "standard", "cutout"])
def test_the_whole_augmentation_against_a_slow_twin(kind):
    x = torch.from_numpy(images(64, 3, 16))
    mean, std = (120.0, 110.0, 100.0), (60.0, 61.0, 62.0)
    augmented = augment.augment_images(x, kind, mean, std, generator(5, 1))
    rng = generator(5, 1)  # the same draws, in the same order
    down, right = (torch.randint(0, 5, (64,), generator=rng).tolist() for _ in range(2))
    mirrored = torch.randint(0, 2, (64,), generator=rng).tolist()
    row, column = (torch.randint(0, 16, (64,), generator=rng).tolist() for _ in range(2))
    cut = torch.randint(0, 2, (64,), generator=rng).tolist()
    for i in range(64):
        image = x[i]
        if kind != "none":
            image = slow_crop(image, down[i], right[i], (2, 2))
            image = image.flip(2) if mirrored[i] else image
        image = (image.float() - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        if kind == "cutout" and cut[i]:
            image = slow_cutout(image, row[i], column[i], 8)
        assert torch.equal(augmented[i], image)
    # every offset, both directions and every centre occur
    assert {*down} == {*right} == set(range(5))
    assert {*mirrored} == {*cut} == {0, 1}


def test_a_pass_is_augmented_by_seed_epoch_and_batch_alone(tmp_path):
    x = torch.from_numpy(images(40, 3, 16))
    y = torch.arange(40) % 4
    data = ImageSet("mine", x, y, x, y, 4, (120.0,) * 3, (60.0,) * 3, augment="cutout")

    def a_pass(epoch, seed=0):
        sampler = SelectiveBatchSampler(40, 16, Full(), seed=3)  # the same order in each
        return list(data.batches(sampler, epoch, seed))

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again, later, other = a_pass(0), a_pass(0), a_pass(1), a_pass(0, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [len(index) for _, _, index in first] == [16, 16, 8]
    for (xa, ya, ia), (xb, _, _), (xc, _, ic), (xd, _, _) in zip(first, again, later, other, strict=True):
        assert torch.equal(xa, xb)
        assert torch.equal(ia, ic)
        assert torch.equal(ya, y[ia])
        assert not torch.equal(xa, xc)
        assert not torch.equal(xa, xd)
    same = replace(data, train_x=x[:1].expand(40, -1, -1, -1))
    one, two, _ = (x for x, _, _ in same.batches(SelectiveBatchSampler(40, 16, Full()), 0, 0))
    assert not torch.equal(one, two)
    assert torch.equal(torch.cat([a for a, _ in data.in_order("test", size=7)]), data.normalise(x))
    assert torch.equal(torch.cat([b for _, b in data.in_order("train", size=7)]), y)
