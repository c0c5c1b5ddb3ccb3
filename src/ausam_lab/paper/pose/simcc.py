"""SimCC (Li et al. 2022): the position of a joint as two classifications, of its column and of its row.

Its score is PCKh: the fraction of joints located within half the size of the head (Andriluka et al. 2014).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ausam_lab.records.run import Score

# The sixteen joints of MPII, in the order of its annotations.
JOINTS = (
    *("right ankle", "right knee", "right hip", "left hip", "left knee", "left ankle"),
    *("pelvis", "thorax", "upper neck", "head top"),
    *("right wrist", "right elbow", "right shoulder", "left shoulder", "left elbow", "left wrist"),
)
RANK, RKNE, RHIP, LHIP, LKNE, LANK, PELVIS, THORAX, NECK, HEAD, RWRI, RELB, RSHO, LSHO, LELB, LWRI = range(16)

# The mirror image of each joint: left and right are swapped.
MIRRORED = (LANK, LKNE, LHIP, RHIP, RKNE, RANK, PELVIS, THORAX, NECK, HEAD, LWRI, LELB, LSHO, RSHO, RELB, RWRI)

# The columns of the published tables; the figure of a group is the mean over its joints.
GROUPS = {
    "head": (HEAD,),
    "shoulder": (RSHO, LSHO),
    "elbow": (RELB, LELB),
    "wrist": (RWRI, LWRI),
    "hip": (RHIP, LHIP),
    "knee": (RKNE, LKNE),
    "ankle": (RANK, LANK),
}
NOT_EVALUATED = (PELVIS, THORAX)

THRESHOLD = 0.5
SPLIT = 2  # bins per pixel


def counts(located: Tensor, y: Tensor) -> Tensor:
    """For predictions (n, joints, 2), the number of correct and of evaluated joints, as (2, joints).

    ``y`` (n, joints, 4) contains x, y, visible and the head's size in the same pixels. Mapping predictions and truth
    back into the picture would scale distance and head alike, so it is left out. Only visible joints of people with a
    known head size are evaluated.
    """
    distance = (located - y[..., :2]).norm(dim=-1)
    evaluated = (y[..., 2] > 0) & (y[..., 3] > 0)
    right = evaluated & (distance <= THRESHOLD * y[..., 3])
    return torch.stack([right.sum(0), evaluated.sum(0)])


def pckh(count: Tensor) -> tuple[float, dict[str, float]]:
    """From summed `counts`: the mean over joints in percent, weighted by their number, and that of each group.

    As in HRNet's tables, a group is the mean of its two joints' figures, and pelvis and thorax are not in the mean. A
    group without an evaluated joint is left out.
    """
    right, evaluated = count.double().cpu()
    share = 100 * right / evaluated  # NaN if no joint was evaluated
    groups = {
        name: float(share[list(joints)].mean()) for name, joints in GROUPS.items() if evaluated[list(joints)].all()
    }
    rest = [j for j in range(len(evaluated)) if j not in NOT_EVALUATED]
    total = float(evaluated[rest].sum())
    return 100 * float(right[rest].sum()) / total if total else 0.0, groups


class SimCC:
    """The task with outputs (n, joints, 2, bins), for x and y, and targets (n, joints, 4) from `People.target`."""

    metric = "PCKh@0.5"

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """The loss of each person: the mean over joints of visible * (KL of x + KL of y).

        KL(q | p) is taken to the smoothed label q: 1 - s in the true bin, s spread evenly over the others. The mean is
        over all joints, visible or not, as in the official code, which also divides by the number of bins, a constant.
        A joint outside the crop counts as not visible.
        """
        bins = z.shape[-1]
        at = (SPLIT * y[..., :2]).round()
        visible = (y[..., 2] > 0) & ((at >= 0) & (at < bins)).all(-1)
        log_p = z.float().log_softmax(-1)
        true = log_p.gather(-1, at.clamp(0, bins - 1).long()[..., None]).squeeze(-1)
        cross = -(1 - smoothing) * true
        entropy = 0.0
        if smoothing:
            each = smoothing / (bins - 1)
            cross = cross - each * (log_p.sum(-1) - true)
            entropy = -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(each)
        return (visible * (cross - entropy).sum(-1)).mean(-1)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """PCKh@0.5: the mean over joints, and each group of joints."""
        total: Tensor | None = None
        for x, y in batches:
            count = counts(located(model, x), y)
            total = count if total is None else total + count
        if total is None:
            raise ValueError("There are no people to evaluate on. Use a larger test set.")
        mean, groups = pckh(total)
        return Score(mean, self.metric, parts=groups)


SIMCC = SimCC()


def located(model: nn.Module, x: Tensor) -> Tensor:
    """Predicted joints (n, joints, 2) in pixels of the crop, averaged over the crop and its mirror image."""
    p = model(x).softmax(-1) + unmirrored(model(x.flip(3)).softmax(-1))
    at: Tensor = p.argmax(-1) / SPLIT
    return at


def unmirrored(p: Tensor) -> Tensor:
    """Turn probabilities for the mirrored crop into those of the crop: swap left and right joints, and reverse x.

    Pixel x of a crop W wide is W - 1 - x in the mirror, so bin b is 2 W - 2 - b. The last bin has no mirror image.
    """
    p = p[:, list(MIRRORED)]
    x = p[:, :, 0].flip(-1).roll(1 - SPLIT, -1)
    x[..., 1 - SPLIT :] = 0
    return torch.stack([x, p[:, :, 1]], 2)
