"""People to train on: stick figures drawn from a seed, and MPII's files."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from ausam import Full, Random, SelectiveBatchSampler
from ausam_lab.data.loading import DataError
from ausam_lab.data.sources import DownloadError
from ausam_lab.paper import catalogue
from ausam_lab.paper.pose.mpii import mpii
from ausam_lab.paper.pose.people import PLAIN
from ausam_lab.paper.pose.stick_figures import SIDE
from ausam_lab.paper.pose.stick_figures import many as drawn_figures
from tests.lab.helpers import load
from tests.lab.paper.pose.helpers import person, put_mpii, small_set

catalogue.register()

# the data sets


def test_only_the_chosen_are_opened():
    data, opened = small_set(40), []
    people = replace(data.train, open=lambda i: (opened.append(i), data.train.open(i))[1])
    sampler = SelectiveBatchSampler(40, 8, Random(0.25), seed=0)
    chosen = [i for _, _, index in replace(data, train=people).batches(sampler, 0, 0) for i in index.tolist()]
    assert len(chosen) == 10
    assert opened == chosen


@pytest.mark.parametrize("augment", ["none", "standard"])
def test_batches_do_not_depend_on_workers_or_on_their_neighbours(augment):
    one, two = small_set(augment=augment), small_set(augment=augment, workers=2)
    theirs = list(two.batches(SelectiveBatchSampler(12, 5, Full(), seed=4), 3, 7))
    mine = list(one.batches(SelectiveBatchSampler(12, 5, Full(), seed=4), 3, 7))
    for a, b in zip(mine, theirs, strict=True):
        assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))
    by_index = {i: (x, y) for batch in mine for x, y, i in zip(*batch[:2], batch[2].tolist(), strict=True)}
    for xs, ys, index in one.batches(SelectiveBatchSampler(12, 4, Full(), seed=9), 3, 7):
        for x, y, i in zip(xs, ys, index.tolist(), strict=True):
            assert torch.equal(x, by_index[i][0])
            assert torch.equal(y, by_index[i][1])
    plain = torch.cat([y for _, y in one.in_order("train")])
    assert torch.equal(plain, one.train_y)
    assert torch.equal(torch.stack([by_index[i][1] for i in range(12)]), plain) == (augment == "none")


def test_pixels_are_normalised_as_imagenets():
    data = small_set()
    x, _ = next(data.in_order("test"))
    raw = torch.stack([data.test.shown(i, SIDE, PLAIN)[0] for i in range(4)]).double() / 255
    for channel, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        torch.testing.assert_close(x[:, channel].double(), (raw[:, channel] - mean) / std, atol=1e-5, rtol=1e-4)
    assert torch.equal(data.example(), data.example())
    assert data.output_shape == (16, 2, 128)


def test_stick_figures_are_drawn_from_the_seed_alone():
    five, three = drawn_figures(0, 5), drawn_figures(0, 3)
    np.testing.assert_array_equal(five.joints[:3], three.joints)
    assert all(five.open(i).tobytes() == three.open(i).tobytes() for i in range(3))
    assert five.open(0).size == (64, 64)
    assert not np.allclose(drawn_figures(1, 3).joints, three.joints)
    crop, _ = five.shown(4, SIDE, PLAIN)
    assert crop.permute(1, 2, 0).numpy().tobytes() == five.open(4).tobytes()  # shown as they are


def test_people_may_be_held_out(few_figures):
    data = load("stick-figures", validation=0.1)
    assert (len(data.train_y), len(data.test_y), data.evaluated_on) == (36, 4, "validation")


def test_what_poses_cannot_have_is_refused(few_figures):
    with pytest.raises(ValueError, match=r"label_noise is 0.2, but stick-figures has joints, not classes"):
        load("stick-figures", "", 0.2, train_size=9)
    with pytest.raises(ValueError, match=r'augment is "cutout". For poses, use none or standard'):
        load("stick-figures", train_size=9, augment="cutout")


# MPII's files


def test_people_are_read_as_hrnet_does(tmp_path, caplog):
    test = [person(0), person(1, center=[-1.0, 50.0], scale=2.0), person(2, joints_vis=[1] * 9 + [0] * 7)]
    put_mpii(tmp_path, [person(3)], test)
    data = mpii(str(tmp_path))
    np.testing.assert_allclose(data.test.centre, [[79, 60 + 7.5 - 1], [-2, 49], [79, 66.5]])
    np.testing.assert_allclose(data.test.scale, [0.625, 2.0, 0.625])
    np.testing.assert_allclose(data.test.joints[0, 2], [49, (30 + 14) - 1])
    (ax, ay), (bx, by) = test[0]["joints"][8], test[0]["joints"][9]
    assert data.test.head[0] == pytest.approx(0.6 * math.hypot(ax - bx, ay - by))
    assert data.test.head[2] == 0  # the head top is not annotated
    assert (len(data.train), data.size, data.output_shape) == (1, 256, (16, 2, 512))
    assert caplog.text.count("PCKh will not be comparable with published figures") == 1
    crop, y = data.test.shown(0, 256, PLAIN)
    assert crop.shape == (3, 256, 256)
    ratio = 256 / (200 * 0.625)
    np.testing.assert_allclose(y[5, :2], [128 + ratio * (64 - 79), 128 + ratio * (30 + 35 - 1 - 66.5)], atol=1e-4)


def test_head_boxes_are_taken_from_the_ground_truth(tmp_path, caplog):
    test = [person(0), person(1)]
    boxes = np.array([[[10.0, 20.0], [30.0, 40.0]], [[13.0, 28.0], [34.0, 46.0]]])  # corner, coordinate, person
    where = np.transpose([p["joints"] for p in test], (1, 2, 0))
    put_mpii(tmp_path, [person(2)], test, {"headboxes_src": boxes, "pos_gt_src": where})
    sizes = mpii(str(tmp_path)).test.head
    assert sizes.tolist() == pytest.approx([0.6 * math.hypot(3, 4), 0.6 * math.hypot(8, 6)])
    assert not caplog.text


@pytest.mark.parametrize(
    "change", [lambda where: where[:, :, :1], lambda where: where[:, :, ::-1]], ids=["fewer", "order"]
)
def test_ground_truth_of_other_people_is_refused(tmp_path, change):
    test = [person(0), person(1, joints=[[9.0 * j, 100.0 - j] for j in range(16)])]
    where = change(np.transpose([p["joints"] for p in test], (1, 2, 0)))
    put_mpii(tmp_path, [person(2)], test, {"headboxes_src": np.ones((2, 2, 2)), "pos_gt_src": where})
    with pytest.raises(ValueError, match="Take both from one source"):
        mpii(str(tmp_path))


def test_missing_files_are_named_with_their_place(tmp_path):
    with pytest.raises(DownloadError, match=r"lacks annot/train.json, annot/valid.json, images. Download it by"):
        mpii(str(tmp_path))
    put_mpii(tmp_path, [person(0)], [person(1)])
    data = mpii(str(tmp_path))
    (tmp_path / "mpii" / "images" / "001.jpg").unlink()
    with pytest.raises(DataError, match=r"FileNotFoundError.*001.jpg"):
        next(data.in_order("test"))
    (tmp_path / "mpii" / "images" / "001.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"UnidentifiedImageError.*001.jpg"):
        next(replace(data, workers=1).in_order("test"))
