"""The data of the tests of Accelerate and Lightning."""

import torch
from torch.utils.data import Dataset

N = 50


class Points(Dataset):
    """Two classes, divided by a circle; counts what is read."""

    def __init__(self):
        self.x = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))
        self.y = (self.x.norm(dim=1) > 1.2).long()
        self.read = []

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.read.append(i)
        return self.x[i], self.y[i]
