"""ETT (Zhou et al. 2021): two years of two electricity transformers, hourly (h1, h2) and every 15 minutes (m1, m2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ausam_lab.data.download import DownloadError, Remote, fetch
from ausam_lab.data.windows import WindowSet

SITE = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small"
PUBLISHED = {  # files with a known digest, which can be downloaded
    "ETTh1": Remote(f"{SITE}/ETTh1.csv", "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"),
}
HEADER = "date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"
ROWS = {"h": 17_420, "m": 69_680}
MONTH = {"h": 30 * 24, "m": 30 * 24 * 4}  # steps of 30 days
MONTHS = (12, 16, 20)  # after which training, validation and test end
LOOK_BACK = 512


def ett(name: str, data_dir: str) -> WindowSet:
    """NAME.csv from DATA_DIR, DATA_DIR/ett or DATA_DIR/ETT-small; ETTh1 is downloaded into ett if it is missing.

    Split into 12, 4 and 4 months of 30 days; every series has mean 0 and standard deviation 1 over the first 12.
    """
    kind = name[3]
    values = _values(_file(name, Path(data_dir)), ROWS[kind])
    ends = MONTHS[0] * MONTH[kind], MONTHS[1] * MONTH[kind], MONTHS[2] * MONTH[kind]
    trained = values[: ends[0]]
    standard = (values - trained.mean(0)) / trained.std(0)
    return WindowSet(name.lower(), torch.from_numpy(standard.T.astype(np.float32).copy()), ends, LOOK_BACK)


def _file(name: str, data_dir: Path) -> Path:
    """The local copy, checked against its digest if that is known."""
    remote = PUBLISHED.get(name)
    for folder in (data_dir, data_dir / "ett", data_dir / "ETT-small"):
        path = folder / f"{name}.csv"
        if path.exists():
            return path if remote is None else fetch(remote, folder)
    if remote is not None:
        return fetch(remote, data_dir / "ett")
    raise DownloadError(
        f"{name}.csv is not in {data_dir}, and it cannot be downloaded because its digest is unknown. Get it from "
        f"{SITE}/{name}.csv and put it at {data_dir / 'ett' / name}.csv."
    )


def _values(path: Path, rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The numbers of the file (rows, 7); a ValueError unless its header and size are the published ones."""
    with path.open(encoding="utf-8") as file:
        header = file.readline().strip()
        try:
            values = np.loadtxt(file, delimiter=",", usecols=range(1, 8), ndmin=2)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}). Replace it with {SITE}/{path.name}.") from None
    if header != HEADER or len(values) != rows or not np.isfinite(values).all():
        what = f'has {len(values):,} rows under the header "{header[:60]}"'
        raise ValueError(
            f"{path} is not {path.stem}: it {what}, or a number that is not finite. The published file has {rows:,} "
            f'rows under "{HEADER}". Replace it with {SITE}/{path.name}.'
        )
    return values
