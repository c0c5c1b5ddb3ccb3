"""SimCC and PCKh: the loss of a person, joints that are found, and their score, against slow twins."""

import math

import pytest
import torch
import torch.nn.functional as F

from ausam_lab.paper.pose.people import inverse, mapped
from ausam_lab.paper.pose.simcc import (
    GROUPS,
    HEAD,
    JOINTS,
    MIRRORED,
    RANK,
    RWRI,
    SIMCC,
    counts,
    located,
    pckh,
    unmirrored,
)
from tests.lab.paper.pose.helpers import crowd, some

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
