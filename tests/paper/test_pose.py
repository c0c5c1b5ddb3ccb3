"""Poses: networks, crops, the loss of a person, PCKh, MPII's files, stick figures, and whole runs on them."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from ausam import Full, Random, SelectiveBatchSampler
from ausam.lab.cli.main import main
from ausam.lab.networks.build import MODELS, build, check_fit
from ausam.lab.problems.catalogue import resolve
from ausam.lab.problems.download import DownloadError
from ausam.lab.problems.loading import DataError
from ausam.lab.records import store
from ausam.lab.training import weights
from ausam.lab.training.loop import learning_rate, train
from ausam.paper import recipe
from ausam.paper.networks.hrnet import Module
from ausam.paper.pose import stick_figures
from ausam.paper.pose.crop import PLAIN, Change, cut, inverse, mapped, random_change, to_crop
from ausam.paper.pose.mpii import mpii
from ausam.paper.pose.overlay import RIGHT, overlay, sheet
from ausam.paper.pose.people import People
from ausam.paper.pose.pose_set import PoseSet
from ausam.paper.pose.simcc import SIMCC, counts, located, pckh, unmirrored
from ausam.paper.pose.skeleton import GROUPS, HEAD, JOINTS, LANK, LIMBS, LKNE, MIRRORED, NECK, RANK, RWRI
from ausam.paper.pose.stick_figures import SIDE
from ausam.paper.pose.stick_figures import many as drawn_figures
from ausam.paper.records.paper_table import PaperTable
from tests.helpers import few_of
from tests.lab.helpers import load


def some(n, seed=0):
    return torch.Generator().manual_seed(n * 1000 + seed)


# the network


def by_hand(stem, widths, modules, blocks):
    """Parameters without the heads: 9ab a 3x3 convolution, ab a 1x1 one, 2b a BatchNorm."""
    count = 27 * stem + 2 * stem + 9 * stem**2 + 2 * stem
    for i in range(blocks):
        a = stem if i == 0 else 4 * stem
        count += a * stem + 2 * stem + 9 * stem**2 + 2 * stem + 4 * stem**2 + 8 * stem
        count += 4 * stem**2 + 8 * stem if i == 0 else 0
    count += 9 * 4 * stem * (widths[0] + widths[1]) + 2 * (widths[0] + widths[1])
    count += sum(9 * a * b + 2 * b for a, b in pairwise(widths[1:]))
    for stage, number in enumerate(modules):
        c = widths[: stage + 2]
        for m in range(number):
            count += sum(blocks * (18 * w * w + 4 * w) for w in c)
            for i in range(1 if stage == len(modules) - 1 and m == number - 1 else len(c)):
                count += sum(c[j] * c[i] + 2 * c[i] for j in range(i + 1, len(c)))
                for j in range(i):
                    count += (i - j - 1) * (9 * c[j] ** 2 + 2 * c[j]) + 9 * c[j] * c[i] + 2 * c[i]
    return count


@pytest.mark.nightly
def test_hrnet_w32_has_the_published_size():
    """Published are 28.5 M parameters, of the backbone with the heatmap head.

    That head is our final_layer, a 1x1 convolution of 32 to 16 channels; SimCC's two linear layers come on top.
    """
    with torch.device("meta"):
        model = MODELS["hrnet-w32"](16, 3)
        maps = model.final_layer(model.features(torch.empty(1, 3, 256, 256)))
    assert maps.shape == (1, 16, 64, 64)
    heads = [p.numel() for name, p in model.named_parameters() if name.startswith("mlp_head")]
    assert heads == [4096 * 512, 512, 4096 * 512, 512]
    backbone = by_hand(64, (32, 64, 128, 256), (1, 4, 3), 4)
    heatmap = backbone + 32 * 16 + 16
    assert sum(p.numel() for p in model.parameters()) - sum(heads) == heatmap == pytest.approx(28.5e6, rel=0.002)


def test_the_small_sibling_by_hand():
    small = sum(p.numel() for p in MODELS["hrnet-w16-small"](16, 3).parameters())
    assert small == by_hand(8, (16, 32, 64), (1, 1), 1) + 16 * 16 + 16 + 2 * (256 * 128 + 128)


def test_names_and_shapes_are_the_published_ones():
    with torch.device("meta"):
        shapes = {k: tuple(v.shape) for k, v in MODELS["hrnet-w32"](16, 3).state_dict().items()}
    for name, shape in {
        "conv2.weight": (64, 64, 3, 3),
        "bn2.running_var": (64,),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.3.conv3.weight": (256, 64, 1, 1),
        "transition1.0.0.weight": (32, 256, 3, 3),
        "transition1.1.0.0.weight": (64, 256, 3, 3),
        "transition2.2.0.0.weight": (128, 64, 3, 3),
        "transition3.3.0.1.weight": (256,),
        "stage2.0.branches.1.3.conv2.weight": (64, 64, 3, 3),
        "stage2.0.fuse_layers.0.1.0.weight": (32, 64, 1, 1),
        "stage2.0.fuse_layers.1.0.0.0.weight": (64, 32, 3, 3),
        "stage3.3.fuse_layers.2.0.0.0.weight": (32, 32, 3, 3),
        "stage3.3.fuse_layers.2.0.1.1.weight": (128,),
        "stage4.2.branches.3.3.bn2.bias": (256,),
        "stage4.2.fuse_layers.0.3.1.weight": (32,),
        "final_layer.bias": (16,),
    }.items():
        assert shapes[name] == shape
    assert not any(name.startswith(("stage4.2.fuse_layers.1", "stage5", "transition2.0")) for name in shapes)


def test_weights_of_a_classifier_land_where_names_fit(tmp_path, caplog):
    made = build("hrnet-w16-small", 16, 3, seed=1).state_dict()
    backbone = {k: v for k, v in made.items() if not k.startswith(("final_layer", "mlp_head"))}
    foreign = {
        "classifier.weight": torch.zeros(1000, 2048),
        "incre_modules.0.0.conv1.weight": torch.zeros(32, 16, 1, 1),
        "stage3.0.fuse_layers.1.0.0.0.weight": torch.zeros(32, 16, 3, 3),
        "final_layer.0.weight": torch.zeros(2048, 1024, 1, 1),
    }
    torch.save(backbone | foreign, tmp_path / "imagenet.pth")
    model = build("hrnet-w16-small", 16, 3, seed=2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    weights.start_from(model, str(tmp_path / "imagenet.pth"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, (backbone if name in backbone else before)[name]), name
    assert "classifier.weight" in caplog.text
    assert "final_layer.weight" in caplog.text


def test_a_module_exchanges_between_all_branches():
    module = Module([4, 8, 16], 1, 3).eval()
    xs = [torch.randn(2, c, s, s, generator=some(c)) for c, s in ((4, 8), (8, 4), (16, 2))]
    b = [branch(x) for branch, x in zip(module.branches, xs, strict=True)]
    f = module.fuse_layers

    def up(layers, x, by):
        return F.interpolate(layers[1](layers[0](x)), scale_factor=by, mode="nearest")

    def down(x, *steps):
        for i, step in enumerate(steps):
            x = F.conv2d(x, step[0].weight, stride=2, padding=1)
            x = step[1](x).relu() if i < len(steps) - 1 else step[1](x)
        return x

    expected = [
        b[0] + up(f[0][1], b[1], 2) + up(f[0][2], b[2], 4),
        down(b[0], f[1][0][0]) + b[1] + up(f[1][2], b[2], 2),
        down(b[0], f[2][0][0], f[2][0][1]) + down(b[1], f[2][1][0]) + b[2],
    ]
    for mine, theirs in zip(module(xs), expected, strict=True):
        torch.testing.assert_close(mine, theirs.relu())


def test_the_head_reads_every_joints_own_map():
    model = build("hrnet-w16-small", 5, 3, seed=0).eval()
    x = torch.randn(2, 3, 64, 64, generator=some(2))
    maps = model.final_layer(model.features(x))
    z = model(x)
    assert z.shape == (2, 5, 2, 128)
    torch.testing.assert_close(z[1, 3, 0], model.mlp_head_x(maps[1, 3].reshape(-1)))
    torch.testing.assert_close(z[0, 4, 1], model.mlp_head_y(maps[0, 4].reshape(-1)))
    with pytest.raises(ValueError, match=r"cannot take a batch of shape \(2, 3, 32, 32\): this network needs .* 64x64"):
        check_fit("hrnet-w16-small", model, x[:, :, :32, :32], (5, 2, 128))


# the loss of a person


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_against_a_slow_twin(smoothing):
    n, joints, bins = 4, 16, 20
    z = torch.randn(n, joints, 2, bins, generator=some(n), requires_grad=True)
    y = torch.cat([10 * torch.rand(n, joints, 2, generator=some(5)), torch.ones(n, joints, 2)], 2)
    y[0, 3, 2] = 0  # not annotated
    y[1, 2, 0] = -3.0  # outside the crop
    y[1, 4, 1] = 9.9  # rounds to bin 20 of 0..19
    y[2, :, 2] = 0  # nobody there
    expected = []
    for person in range(n):
        total = torch.zeros(())
        for joint in range(joints):
            at = [math.floor(2 * float(v) + 0.5) for v in y[person, joint, :2]]
            if y[person, joint, 2] == 0 or not all(0 <= b < bins for b in at):
                continue
            for axis in (0, 1):
                q = torch.full((bins,), smoothing / (bins - 1))
                q[at[axis]] = 1 - smoothing
                total = total + F.kl_div(z[person, joint, axis].log_softmax(0), q, reduction="sum")
        expected.append(total / joints)
    losses = SIMCC.losses(z, y, smoothing)
    assert losses.shape == (n,)
    torch.testing.assert_close(losses, torch.stack(expected))
    assert losses[2].item() == 0.0
    losses.sum().backward()
    assert z.grad.isfinite().all()
    assert not z.grad[2].any()
    assert not z.grad[1, 2].any()


def test_the_loss_is_zero_at_the_smoothed_label_itself():
    q = torch.full((1, 16, 2, 20), 0.2 / 19)
    q[..., 6] = 0.8
    y = torch.tensor([3.0, 3.0, 1, 1]).expand(1, 16, 4)
    assert float(SIMCC.losses(q.log(), y, 0.2)) == pytest.approx(0, abs=1e-6)


# finding joints


def test_unmirrored_against_a_slow_twin():
    width = 6
    p = torch.rand(2, 16, 2, 2 * width, generator=some(6))
    mirrored = unmirrored(p)
    for joint in range(16):
        other = MIRRORED[joint]
        assert torch.equal(mirrored[:, joint, 1], p[:, other, 1])
        for b in range(2 * width - 1):
            pixel = b / 2  # is at width - 1 - pixel in the mirror
            assert torch.equal(mirrored[:, joint, 0, b], p[:, other, 0, round(2 * (width - 1 - pixel))])
        assert not mirrored[:, joint, 0, -1].any()


def test_joints_are_mirrored_in_pairs():
    assert [MIRRORED[m] for m in MIRRORED] == list(range(16))
    for joint, other in enumerate(MIRRORED):
        swapped = {"right": "left", "left": "right"}.get(JOINTS[joint].split()[0], "")
        assert JOINTS[other] == " ".join(filter(None, (swapped, *JOINTS[joint].split()[1:]))) or joint == other


def test_both_views_are_averaged():
    x = torch.arange(8.0).view(1, 1, 1, 8).expand(2, 3, 8, 8)
    there, mirrored = (torch.randn(2, 16, 2, 16, generator=some(k)) for k in (1, 2))

    def model(seen):
        return there if torch.equal(seen, x) else mirrored

    p = there.softmax(-1) + unmirrored(mirrored.softmax(-1))
    joints = located(model, x)
    assert joints.shape == (2, 16, 2)
    for i in range(2):
        for j in range(16):
            assert joints[i, j].tolist() == [max(range(16), key=p[i, j, a].tolist().__getitem__) / 2 for a in (0, 1)]


# PCKh


def hrnet_evaluation(predictions, joints, visible, heads):
    """PCKh@0.5 in pixels of the picture as HRNet's table has it, joint by joint: a literal, slow transcription."""
    share, number = {}, {}
    for j in range(16):
        right = seen = 0
        for i in range(len(joints)):
            if visible[i][j]:
                seen += 1
                away = math.dist(predictions[i][j], joints[i][j])
                right += away / heads[i] <= 0.5
        share[j], number[j] = 100 * right / seen, seen
    counted = [j for j in range(16) if j not in (6, 7)]
    named = {"head": (9,), "shoulder": (12, 13), "elbow": (11, 14), "wrist": (10, 15)}
    named |= {"hip": (2, 3), "knee": (1, 4), "ankle": (0, 5)}
    total = sum(number[j] for j in counted)
    return {
        "mean": sum(share[j] * number[j] / total for j in counted),
        **{k: sum(share[j] for j in js) / len(js) for k, js in named.items()},
    }


def crowd(n, size=64, seed=3):
    """People at random places of large pictures."""
    rng = np.random.default_rng(seed)
    centre, scale = rng.uniform(200, 900, (n, 2)), rng.uniform(1, 4, n)
    joints = centre[:, None] + rng.uniform(-0.5, 0.5, (n, 16, 2)) * 200 * scale[:, None, None]
    visible = (rng.uniform(size=(n, 16)) < 0.8).astype(float)
    head = rng.uniform(15, 40, n) * scale
    return People(lambda _: Image.new("RGB", (8, 8)), np.arange(n), centre, scale, joints, visible, head)


def test_pckh_in_the_crop_is_pckh_in_the_picture():
    people, size = crowd(50), 64
    y = torch.stack([people.target(i, size) for i in range(50)])
    joints = (y[..., :2] + 4 * torch.randn(50, 16, 2, generator=some(50))).clamp(0, size - 0.5)
    back = [mapped(joints[i].double().numpy(), inverse(people.matrix(i, size))) for i in range(50)]
    expected = hrnet_evaluation(back, people.joints, people.visible, people.head)
    mean, groups = pckh(counts(joints[:20], y[:20]) + counts(joints[20:], y[20:]))
    assert {"mean": mean, **groups} == pytest.approx(expected)
    assert list(groups) == list(GROUPS)
    assert 20 < mean < 90


def test_pckh_by_hand():
    y = torch.zeros(3, 16, 4)
    y[:, :, 2], y[:, :, 3] = 1, 8.0  # the threshold is 4 pixels
    y[2, :, 3] = 0  # a head that is not known: not judged
    joints = torch.zeros(3, 16, 2)
    joints[0, RWRI] = torch.tensor([4.0, 0.0])  # just right
    joints[1, RWRI] = torch.tensor([4.0, 0.1])  # just wrong
    joints[:, 6:8] = 50.0  # pelvis and thorax are wrong, but not in the mean
    y[1, RANK, 2] = 0  # one right ankle is judged, and wrong
    joints[0, RANK] = 9.0
    mean, scores = pckh(counts(joints, y))
    assert scores["wrist"] == 75.0  # (50 + 100) / 2
    assert scores["ankle"] == 50.0  # (0 + 100) / 2: joints count alike, however many people have them
    assert scores["head"] == scores["hip"] == 100.0
    assert mean == pytest.approx(100 * 25 / 27)  # 14 joints of two people less one; two are wrong
    y[:, HEAD, 2] = 0
    assert "head" not in pckh(counts(joints, y))[1]
    y[..., 2] = 0
    assert pckh(counts(joints, y)) == (0.0, {})


# crops


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


# the data sets


def small_set(n=12, **how):
    return PoseSet("small", drawn_figures(0, n), drawn_figures(1, 4), SIDE, **how)


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
    plain = torch.cat([y for _, y in one.plain_batches()])
    assert torch.equal(plain, one.train_y)
    assert torch.equal(torch.stack([by_index[i][1] for i in range(12)]), plain) == (augment == "none")


def test_pixels_are_normalised_as_imagenets():
    data = small_set()
    x, _ = next(data.test_batches())
    raw = torch.stack([data.test.shown(i, SIDE, PLAIN)[0] for i in range(4)]).double() / 255
    for channel, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        torch.testing.assert_close(x[:, channel].double(), (raw[:, channel] - mean) / std, atol=1e-5, rtol=1e-4)
    assert torch.equal(data.example(), data.example())
    assert data.answer == (16, 2, 128)


def test_stick_figures_are_drawn_from_the_seed_alone():
    five, three = drawn_figures(0, 5), drawn_figures(0, 3)
    np.testing.assert_array_equal(five.joints[:3], three.joints)
    assert all(five.open(i).tobytes() == three.open(i).tobytes() for i in range(3))
    assert five.open(0).size == (64, 64)
    assert not np.allclose(drawn_figures(1, 3).joints, three.joints)
    crop, _ = five.shown(4, SIDE, PLAIN)
    assert crop.permute(1, 2, 0).numpy().tobytes() == five.open(4).tobytes()  # shown as they are


def test_stick_figures_have_bodies_where_the_joints_say():
    people = drawn_figures(5, 60)
    limbs = np.stack([np.linalg.norm(people.joints[:, a] - people.joints[:, b], axis=1) for a, b in LIMBS])
    assert limbs.min() > 0.5
    assert limbs.max() < 25
    assert people.visible.mean() > 0.97
    assert people.joints.min() > -8
    assert people.joints.max() < 72
    head = np.linalg.norm(people.joints[:, HEAD] - people.joints[:, NECK], axis=1)
    np.testing.assert_allclose(people.head, 0.6 * np.hypot(head, 0.75 * head))
    assert (people.joints[:, RANK, 0] < people.joints[:, LANK, 0]).mean() > 0.8  # they face us
    shins = (people.joints[:, LKNE] + people.joints[:, LANK]) / 2
    colours = [people.open(i).getpixel((round(x), round(y))) for i, (x, y) in enumerate(shins)]
    assert np.mean([blue > red + 40 for red, _, blue in colours]) > 0.85  # trousers


@pytest.fixture
def few_figures(monkeypatch):
    monkeypatch.setattr(stick_figures, "TRAIN", 40)
    monkeypatch.setattr(stick_figures, "TEST", 20)


def test_parts_of_the_people(few_figures):
    data = load("stick-figures", train_size=7, test_size=5)
    assert (len(data.train_y), len(data.test_y), len(data.train), len(data.test)) == (7, 5, 7, 5)
    whole = drawn_figures(0, 40)
    places = [next(i for i in range(40) if np.array_equal(whole.joints[i], j)) for j in data.train.joints]
    assert places == sorted(places)
    assert places != list(range(7))
    assert data.train.open(data.train.number[3]).tobytes() == whole.open(places[3]).tobytes()
    with pytest.raises(ValueError, match="train_size is 41, but stick-figures has only 40 such samples"):
        load("stick-figures", train_size=41)


def test_what_poses_cannot_have_is_refused(few_figures):
    with pytest.raises(ValueError, match=r"label_noise is 0.2, but stick-figures has joints, not labels"):
        load("stick-figures", "", 0.2, train_size=9)
    with pytest.raises(ValueError, match=r'augment is "cutout". For poses, use none or standard'):
        load("stick-figures", train_size=9, augment="cutout")


# MPII's files


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
    assert (len(data.train), data.size, data.answer) == (1, 256, (16, 2, 512))
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
    ("change", "message"),
    [
        (lambda where: where[:, :, :1], "has 1 people, but valid.json has 2"),
        (lambda where: where[:, :, ::-1], "list people in different orders"),
    ],
)
def test_ground_truth_of_other_people_is_refused(tmp_path, change, message):
    test = [person(0), person(1, joints=[[9.0 * j, 100.0 - j] for j in range(16)])]
    where = change(np.transpose([p["joints"] for p in test], (1, 2, 0)))
    put_mpii(tmp_path, [person(2)], test, {"headboxes_src": np.ones((2, 2, 2)), "pos_gt_src": where})
    with pytest.raises(ValueError, match=message):
        mpii(str(tmp_path))


def test_missing_files_are_named_with_their_place(tmp_path):
    with pytest.raises(DownloadError, match=r"lacks annot/train.json, annot/valid.json, images. Download it by"):
        mpii(str(tmp_path))
    put_mpii(tmp_path, [person(0)], [person(1)])
    data = mpii(str(tmp_path))
    (tmp_path / "mpii" / "images" / "001.jpg").unlink()
    with pytest.raises(DataError, match=r"001.jpg is missing. Get MPII's images"):
        next(data.test_batches())
    (tmp_path / "mpii" / "images" / "001.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"001.jpg is not a readable picture"):
        next(replace(data, workers=1).test_batches())


@pytest.mark.parametrize(
    "content", [[], [{"image": "a.jpg"}], [person(0, joints=[[0.0, 0.0]] * 15)], [person(0, center="middle")], {"a": 1}]
)
def test_other_annotations_are_refused(tmp_path, content):
    put_mpii(tmp_path, [person(0)], [person(1)])
    (tmp_path / "mpii" / "annot" / "train.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"train.json is not in HRNet's format"):
        mpii(str(tmp_path))


# drawing


def test_drawing_shows_truth_and_prediction():
    crop = torch.zeros(3, 64, 64, dtype=torch.uint8)
    y = torch.zeros(16, 4)
    y[:, 3] = 8
    y[RWRI] = torch.tensor([20.0, 30.0, 1, 8])
    picture = overlay(crop, y, torch.full((16, 2), 50.0), zoom=2)
    assert picture.size == (128, 128)
    assert picture.getpixel((38, 60)) == RIGHT
    assert overlay(crop, y).getpixel((96, 101)) == (0, 0, 0)
    assert picture.getpixel((96, 101)) != (0, 0, 0)
    assert sheet(small_set(), build("hrnet-w16-small", 16, 3), n=3, zoom=1, across=2).size == (128, 128)


# whole runs


FEW = {"data": "stick-figures", "train_size": 24, "test_size": 8, "epochs": 3, "batch_size": 8, "threads": 1}


PAIRS = [("plain", "full"), ("sam", "full"), ("sam", "ausampling"), ("esam", "full")]


@pytest.mark.parametrize("pair", few_of(PAIRS, ("sam", "ausampling")), ids="-".join)
def test_a_run_resumes_bit_for_bit(tmp_path, few_figures, pair):
    method, policy = pair
    config = resolve(**FEW, method=method, policy=policy, augment="standard", ramp=1)
    assert (config.base, config.label_smoothing, config.rho) == ("adam", 0.2, 0.05)
    list(train(config, tmp_path / "whole"))
    rows = train(config, tmp_path / "parts")
    first = next(rows)
    rows.close()
    list(train(config, tmp_path / "parts", resume=True))
    mine, theirs = (json.loads((tmp_path / run / "result.json").read_text()) for run in ("parts", "whole"))
    for key in ("weights_sha256", "test", "train", "samples_forward", "selection"):
        assert mine[key] == theirs[key]
    assert {"head", "ankle"} <= set(mine["test"]["parts"])
    assert (mine["test"]["name"], mine["test"]["unit"]) == (first.test.name, first.test.unit) == ("PCKh@0.5", "%")
    if policy == "ausampling":  # all people in the first epoch, then half of each eight
        assert mine["samples_forward"] == 2 * (24 + 2 * 12)


@pytest.mark.nightly
def test_mpii_end_to_end_with_workers(tmp_path, monkeypatch):
    put_mpii(tmp_path, [person(i) for i in range(6)], [person(i) for i in (6, 7)])
    (tmp_path / "netpose.py").write_text(
        "from ausam.paper.networks.hrnet import HRNet\n"
        "def small(joints, channels):\n    return HRNet(4, (1,), 1, 4, 256, joints, channels)\n"
    )
    monkeypatch.chdir(tmp_path)
    digests = set()
    for workers in (0, 2):
        settings = {
            "data_dir": str(tmp_path),
            "model": "netpose:small",
            "epochs": 2,
            "batch_size": 4,
            "workers": workers,
        }
        config = resolve(data="mpii", **settings, method="sam", policy="ausampling", threads=1)
        assert (config.augment, config.base) == ("standard", "adam")
        rows = list(train(config, tmp_path / f"run{workers}"))
        assert [epoch.samples for epoch in rows] == [6, 3]
        digests.add(json.loads((tmp_path / f"run{workers}" / "result.json").read_text())["weights_sha256"])
    assert len(digests) == 1


@pytest.mark.nightly
def test_the_small_network_learns_a_few_figures_by_heart(tmp_path, monkeypatch):
    monkeypatch.setattr(stick_figures, "TRAIN", 16)
    monkeypatch.setattr(stick_figures, "TEST", 16)
    settings = {"data": "stick-figures", "epochs": 40, "batch_size": 8, "test_size": 15, "threads": 1}
    config = resolve(**settings, method="plain", policy="full", lr_steps="")
    rows = list(train(config, tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert rows[0].test.value < 20
    assert result["train"]["value"] > 60
    assert rows[-1].train_loss < 0.7 * rows[0].train_loss


# table 4


def test_the_recipe_is_the_papers():
    cells = {c.name: c.config for c in recipe.cells(recipe.read("table4", seeds=1), device="cpu")}
    assert list(cells) == ["sgd", "sam", "ausam-0.5", "sam@0.5", "sam@0.5x0.5", "sam+random"]
    for name, config in cells.items():
        assert (config.data, config.model, config.base) == ("mpii", "hrnet-w32", "adam")
        assert config.batch_size == (32 if name == "sam@0.5x0.5" else 64)
        assert (config.lr, config.weight_decay, config.rho, config.label_smoothing) == (1e-3, 1e-4, 0.05, 0.2)
        assert (config.s_min, config.s_max, config.ramp, config.augment) == (0.1, 1.0, 30, "standard")
        assert config.epochs == (105 if name.startswith("sam@0.5") else 210)
        part = config.epochs / 210
        rates = [learning_rate(config, epoch * part) for epoch in (0, 169, 170, 199, 200, 209)]
        assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    rows = {row.name: row for row in recipe.read("table4").blocks[0].rows}
    assert list(rows["sam"].parts.values()) == [97.0, 95.7, 89.6, 84.2, 88.4, 85.5, 81.9]
    assert [rows[n].score for n in ("sgd", "sam", "ausam-0.5")] == [89.3, 89.4, 89.5]
    assert [rows[n].speed for n in ("sgd", "sam", "ausam-0.5")] == [183, 100, 144]
    small = recipe.cells(recipe.read("table4", "small"), device="cpu")[0].config
    assert (small.data, small.model) == ("stick-figures", "hrnet-w16-small")


@pytest.fixture(scope="module")
def part_of_table4(tmp_path_factory):
    """Two of the rows, in next to no time."""
    folder, patch = tmp_path_factory.mktemp("recipes"), pytest.MonkeyPatch()
    text = (recipe.FOLDER / "table4.toml").read_text()
    text = text.replace("epochs = 14\n", "epochs = 1\ntrain_size = 16\ntest_size = 8\n")
    (folder / "table4.toml").write_text(text)
    patch.setattr(recipe, "FOLDER", folder)
    patch.setattr(stick_figures, "TRAIN", 40)
    patch.setattr(stick_figures, "TEST", 20)
    out = tmp_path_factory.mktemp("table4") / "out"
    flags = ["--scale", "small", "--seeds", "1", "--only", "sgd", "--only", "sam", "--out", str(out), "--threads", "1"]
    assert main(["reproduce", "table4", *flags]) == 0
    yield out
    patch.undo()


def test_table4_in_the_papers_form(part_of_table4, capsys):
    assert main(["report", str(part_of_table4)]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = store.read(part_of_table4 / "results.json", PaperTable)
    ours = {cell.name: cell for cell in table.columns[0].cells}["sam"].ours
    groups = " ".join(f"{ours.parts[k]:.1f}" for k in GROUPS)
    marked = {ord(mark): None for mark in "●○"}  # best and second best of a column
    words, none = [" ".join(line.translate(marked).split()) for line in lines], " ".join(["missing"] * 8)
    for line in (
        f"Method {table.columns[0].heading}: Whose (runs) Hea Sho Elb Wri Hip Kne Ank Mean SAM%",
        "Adam paper 96.8 95.8 89.7 84.3 88.7 85.1 81.4 89.3 183",
        f"SAM ours (1) {groups} {ours.mean:.1f} 100",
        "AUSAM-0.5¹ paper 96.9 95.7 89.4 84.8 89.1 85.7 81.3 89.5 144",
        f"AUSAM-0.5¹ ours {none} –",
        f"SAM@0.5† ours {none} –",
    ):
        assert line in words
    assert not any(line.startswith("SAM@0.5† ") and "paper" in line for line in lines)
    assert "¹ In the paper called AUSAM, without its α: 0.5 is our choice." in lines
    assert any(line.startswith("PCKh@0.5 in percent, mean") for line in lines)
    page, tex, md = ((part_of_table4 / name).read_text() for name in ("report.html", "table.tex", "table.md"))
    assert '<th scope="row">Adam</th><td>paper</td><td>96.8</td><td>95.8</td>' in page
    assert "<td>missing</td>" in page
    assert "Adam & paper & 96.8 & 95.8 & 89.7 & 84.3 & 88.7 & 85.1 & 81.4 & 89.3 & 183 \\\\" in tex
    assert "| Adam | paper | 96.8 | 95.8 | 89.7 | 84.3 | 88.7 | 85.1 | 81.4 | 89.3 | 183 |" in md
    inner = (part_of_table4 / "hrnet-w32" / "report.html").read_text()
    assert "PCKh@0.5,\u00a0%" in inner
    assert "test PCKh@0.5 (%)" in inner
    assert "16 joints" in inner
    assert "ccuracy" not in inner.partition("Conditions")[0]
