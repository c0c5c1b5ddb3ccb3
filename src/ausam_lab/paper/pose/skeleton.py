"""The sixteen joints of MPII, in the order of its annotations."""

from __future__ import annotations

JOINTS = (
    *("right ankle", "right knee", "right hip", "left hip", "left knee", "left ankle"),
    *("pelvis", "thorax", "upper neck", "head top"),
    *("right wrist", "right elbow", "right shoulder", "left shoulder", "left elbow", "left wrist"),
)
RANK, RKNE, RHIP, LHIP, LKNE, LANK, PELVIS, THORAX, NECK, HEAD, RWRI, RELB, RSHO, LSHO, LELB, LWRI = range(16)

# The mirror image of each joint: left and right are swapped.
MIRRORED = (LANK, LKNE, LHIP, RHIP, RKNE, RANK, PELVIS, THORAX, NECK, HEAD, LWRI, LELB, LSHO, RSHO, RELB, RWRI)

LIMBS = (
    *((RANK, RKNE), (RKNE, RHIP), (RHIP, PELVIS), (PELVIS, LHIP), (LHIP, LKNE), (LKNE, LANK)),
    *((PELVIS, THORAX), (THORAX, NECK), (NECK, HEAD)),
    *((RWRI, RELB), (RELB, RSHO), (RSHO, THORAX), (THORAX, LSHO), (LSHO, LELB), (LELB, LWRI)),
)

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
