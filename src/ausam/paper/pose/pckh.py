"""PCKh: the fraction of joints located within half the size of the head (Andriluka et al. 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from ausam.paper.pose.skeleton import GROUPS, NOT_JUDGED

THRESHOLD = 0.5


def counts(located: Tensor, y: Tensor) -> Tensor:
    """For predictions (n, joints, 2), the number of correct and of evaluated joints, as (2, joints).

    ``y`` (n, joints, 4) contains x, y, visible and the head's size in the same pixels. Mapping predictions and truth
    back into the picture would scale distance and head alike, so it is left out. Only visible joints of people with a
    known head size are evaluated.
    """
    distance = (located - y[..., :2]).norm(dim=-1)
    judged = (y[..., 2] > 0) & (y[..., 3] > 0)
    right = judged & (distance <= THRESHOLD * y[..., 3])
    return torch.stack([right.sum(0), judged.sum(0)])


def pckh(count: Tensor) -> tuple[float, dict[str, float]]:
    """From summed `counts`: the mean over joints in percent, weighted by their number, and that of each group.

    As in HRNet's tables, a group is the mean of its two joints' figures, and pelvis and thorax are not in the mean. A
    group without an evaluated joint is left out.
    """
    right, judged = count.double().cpu()
    share = 100 * right / judged  # NaN if no joint was evaluated
    groups = {name: float(share[list(joints)].mean()) for name, joints in GROUPS.items() if judged[list(joints)].all()}
    rest = [j for j in range(len(judged)) if j not in NOT_JUDGED]
    total = float(judged[rest].sum())
    return 100 * float(right[rest].sum()) / total if total else 0.0, groups
