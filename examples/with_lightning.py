"""Lightning: SAM for an ordinary LightningModule; one new line and a callback; the Trainer clips and accumulates.

python examples/with_lightning.py runs/circle

Run it again with the same folder and more epochs, and it continues from the last checkpoint.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ausam import SAM, SharpnessAware
from ausam.integrations.lightning import SharpnessAwareCallback


def data(n, seed):
    """Two classes, divided by a circle."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.norm(dim=1) > 1.2).long())


class Circle(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
        opt = SharpnessAware(opt, SAM(rho=0.05), self)  # the new line
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=16 * 6)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def validation_step(self, batch):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), prog_bar=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(0)
    trainer = Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        callbacks=[
            SharpnessAwareCallback(),  # new
            ModelCheckpoint(args.folder, filename="last", enable_version_counter=False),
        ],
    )
    saved = args.folder / "last.ckpt"
    trainer.fit(
        Circle(),
        DataLoader(data(512, seed=1), batch_size=16),
        DataLoader(data(1000, seed=2), batch_size=1000),
        ckpt_path=saved if saved.exists() else None,
    )
    print(f"steps {trainer.global_step}, accuracy {trainer.callback_metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
