"""Lightning: AUSAM in a LightningModule, with its checkpoints; run it again with more epochs and it continues.

python examples/with_lightning_selection.py runs/circle
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, AUSampling, SelectiveBatchSampler, SharpnessAware
from ausam.integrations.lightning import SelectiveLoader, SharpnessAwareModule


def data(n, seed):
    """Two classes, divided by a circle."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.norm(dim=1) > 1.2).long())


class Circle(SharpnessAwareModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    def losses(self, batch):  # in place of training_step
        x, y = batch
        return F.cross_entropy(self.net(x), y, reduction="none")

    def configure_optimizers(self):
        return SharpnessAware(torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.05), self)

    def validation_step(self, batch):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), prog_bar=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    train = data(512, seed=1)
    sampler = SelectiveBatchSampler(train, batch_size=32, policy=AUSampling(alpha=0.5, ramp=2), seed=0)
    trainer = Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(args.folder, filename="last", enable_version_counter=False)],
    )
    saved = args.folder / "last.ckpt"
    trainer.fit(
        Circle(),
        SelectiveLoader(train, sampler),  # in place of DataLoader(train, batch_size=32, shuffle=True)
        DataLoader(data(1000, seed=2), batch_size=1000),
        ckpt_path=saved if saved.exists() else None,
    )
    accuracy, used = trainer.callback_metrics["accuracy"], int(sampler.scores.count.sum())
    print(f"steps {trainer.global_step}, samples {used}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
