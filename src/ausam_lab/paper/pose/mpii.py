"""MPII Human Pose: 22,246 people for training and 2,958 for testing, in the annotation format of HRNet."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ausam_lab.data.sources import DownloadError
from ausam_lab.paper.pose.people import SC_BIAS, Array, People, PoseSet, estimated_head

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("ausam")

SIZE = 256
SOURCE = "http://human-pose.mpi-inf.mpg.de"


def mpii(data_dir: str, size: int = SIZE) -> PoseSet:
    """MPII from DATA_DIR/mpii: annot/train.json, annot/valid.json, images/ and annot/gt_valid.mat for head sizes."""
    folder = Path(data_dir) / "mpii"
    needed = ("annot/train.json", "annot/valid.json", "images")
    if missing := [name for name in needed if not (folder / name).exists()]:
        raise DownloadError(
            f"MPII is incomplete: {folder} lacks {', '.join(missing)}. Download it by hand: its authors require a "
            f"form. Get the images from {SOURCE} and put the *.jpg files into {folder / 'images'}. Put HRNet's "
            f"annotations (train.json, valid.json, gt_valid.mat) into {folder / 'annot'}."
        )
    train, test = (annotated(folder / "annot" / f"{name}.json", folder / "images") for name in ("train", "valid"))
    truth = folder / "annot" / "gt_valid.mat"
    if truth.exists():
        test = replace(test, head=head_sizes(truth, test))
    else:
        log.warning(
            "%s is missing, so head sizes are estimated as 0.6 times the distance from upper neck to head top. "
            "PCKh will not be comparable with published figures.",
            truth,
        )
    return PoseSet("mpii", train, test, size)


def annotated(annotation: Path, images: Path) -> People:
    """The people of an annotation file, with centre and scale corrected and pixels counted from 0, as in HRNet."""
    content = json.loads(annotation.read_text(encoding="utf-8"))
    paths = [images / str(person["image"]) for person in content]
    centre, scale, joints, visible = (
        np.array([person[key] for person in content], np.float64) for key in ("center", "scale", "joints", "joints_vis")
    )
    known = centre[:, 0] != -1
    centre[known, 1] += 15 * scale[known]  # the annotators' centre is too high for the feet
    scale[known] *= 1.25
    head = estimated_head(joints, visible)
    return People(partial(_picture, paths), np.arange(len(paths)), centre - 1, scale, joints - 1, visible, head)


def _picture(paths: list[Path], i: int) -> Image:
    from PIL import Image

    with Image.open(paths[i]) as picture:
        return picture.convert("RGB")


def head_sizes(path: Path, test: People) -> Array:
    """0.6 times the diagonal of each person's head box, from MPII's ground truth in the order of valid.json."""
    from scipy.io import loadmat

    contents = loadmat(path)
    boxes, joints = contents["headboxes_src"], np.transpose(contents["pos_gt_src"], (2, 0, 1))
    same = joints.shape == test.joints.shape
    if not same or np.median(np.abs(joints - 1 - test.joints)[test.visible > 0]) > 1:
        raise ValueError(f"{path} and valid.json list other people, or in another order. Take both from one source.")
    return np.asarray(SC_BIAS * np.linalg.norm(boxes[1] - boxes[0], axis=0), np.float64)
