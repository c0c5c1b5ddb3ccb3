"""A stream: AUSAM on parquet files that Hugging Face datasets reads row by row; nothing is downloaded.

python examples/with_stream.py runs/stream

Of every 32 rows, half are decoded. Run it again with the same folder and more epochs, and it continues.
"""

import argparse
from pathlib import Path

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ausam import SAM, AUSampling, SelectiveBatchSampler, SelectiveStream, SharpnessAware

N, FILES = 512, 4


def points(n, seed):
    """Two classes, divided by a circle."""
    x = np.random.default_rng(seed).standard_normal((n, 2)).astype(np.float32)
    return x, (np.linalg.norm(x, axis=1) > 1.2).astype(np.int64)


def write(folder):
    """Parquet files of encoded rows, each with a permanent name."""
    datasets.disable_progress_bars()
    x, y = points(N, seed=1)
    for part in np.array_split(np.arange(N), FILES):
        rows = {"name": [f"point-{i}" for i in part], "x": [x[i].tobytes() for i in part], "y": y[part].tolist()}
        datasets.Dataset.from_dict(rows).to_parquet(folder / f"part-{part[0]:04}.parquet")


class Rows:
    """Pairs of a name and an encoded row; datasets divides the files among the workers."""

    def __init__(self, folder):
        files = sorted(str(path) for path in folder.glob("*.parquet"))
        rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        self.rows = rows.shuffle(seed=0, buffer_size=64)

    def __iter__(self):
        for row in self.rows:
            yield row["name"], row


def decode(row):
    return np.frombuffer(row["x"], np.float32).copy(), row["y"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write(args.folder)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.05), model)
    sampler = SelectiveBatchSampler(N, batch_size=32, policy=AUSampling(alpha=0.5, ramp=2), seed=0)
    rows = Rows(args.folder)
    keys = {f"point-{i}": i for i in range(N)}
    stream = SelectiveStream(rows, decode, sampler, keys=keys, sharded=True, num_workers=args.workers)

    saved = args.folder / "last.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        for part, name in ((model, "model"), (opt, "opt"), (stream, "stream")):
            part.load_state_dict(state[name])

    def losses(x, y):
        return F.cross_entropy(model(x), y, reduction="none")

    while stream.epoch < args.epochs:
        rows.rows.set_epoch(stream.epoch)  # a different order in every epoch, the same when it is repeated
        for x, y, index in stream:
            stream.update(opt.backward(losses, x, y, index=index))
            opt.step()
            opt.zero_grad()
        state = {"model": model.state_dict(), "opt": opt.state_dict(), "stream": stream.state_dict()}
        torch.save(state, saved)

    x, y = map(torch.from_numpy, points(1000, seed=2))
    accuracy = (model.eval()(x).argmax(1) == y).float().mean()
    print(f"steps {opt.steps}, samples {int(sampler.scores.count.sum())}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
