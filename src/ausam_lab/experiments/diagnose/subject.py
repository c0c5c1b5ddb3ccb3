"""The run to be measured: its network at the saved epochs, and some of its training samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ausam.common.random import generator
from ausam.methods import SAM
from ausam.optimizer import Method
from ausam.policies import Policy
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam.sampler.scores import Scores
from ausam_lab.config import Config
from ausam_lab.data.catalogue import split_problem
from ausam_lab.data.classification import Classification
from ausam_lab.data.problem import Problem
from ausam_lab.networks.memory_format import to_memory_format
from ausam_lab.registry.devices import device
from ausam_lab.registry.expressions import brief
from ausam_lab.registry.from_config import method_and_policy
from ausam_lab.training import run_folder, snapshots
from ausam_lab.training.network import network
from ausam_lab.training.snapshots import Saved

WATCHED = 12  # most epochs at which a quantity is measured over training
ROOM = 2**26  # numbers that per-sample gradients may occupy at once: 256 MB
DRAWN = 0xD1A6  # seed of the samples, independent of the run: a comparison measures all runs on the same ones
# How many times SAM's radius the authors of a method use for theirs.
OF_SAMS_RHO = {"ASAM": 10.0, "MomentumSAM": 5.0}


@dataclass(frozen=True, eq=False)
class Subject:
    """A run to be measured: its data, its network and its saved weights."""

    folder: Path
    config: Config
    data: Problem
    model: nn.Module
    method: Method
    policy: Policy
    rho: float
    rho_from: str  # where the radius comes from
    index: Tensor  # dataset indices of the measured samples
    x: Tensor
    y: Tensor
    saved: dict[int, Saved]  # by number of completed epochs

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Per-sample losses, as in training."""
        return self.data.task.losses(self.model(x), y, self.config.label_smoothing)

    @property
    def parameters(self) -> int:
        """Number of trainable weights."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def chunk(self) -> int:
        """Samples differentiated at once, chosen so that memory is bounded."""
        return max(1, min(32, ROOM // self.parameters))

    @property
    def epochs(self) -> list[int]:
        """The epochs whose final weights are known, in order; 0 is before training, if those weights can be rebuilt."""
        return [*([] if self.config.init else [0]), *sorted(self.saved)]

    @property
    def last(self) -> int:
        """The last saved epoch."""
        return max(self.saved)

    def watched(self, first: int = 0) -> list[int]:
        """At most ``WATCHED`` of these epochs from ``first`` on, evenly spaced, including the last."""
        return spread([e for e in self.epochs if e >= first], WATCHED)

    def digest(self, epoch: int) -> str:
        """Identifies the weights of this epoch."""
        return self.saved[epoch].digest if epoch else "initial"

    def state(self, epoch: int) -> dict[str, Tensor]:
        """The weights and buffers after this many epochs."""
        if epoch:
            weights: dict[str, Tensor] = self.saved[epoch].load()["model"]
            return weights
        return network(self.config, self.data).state_dict()

    def at(self, epoch: int) -> None:
        """Load the weights of an epoch into the network."""
        try:
            self.model.load_state_dict(self.state(epoch))
        except RuntimeError as error:
            why = " ".join(str(error).split())[:200]
            raise ValueError(f"{self.saved[epoch].path} does not fit the network of this run: {why}.") from error

    @property
    def ranks_sharpness(self) -> bool:
        """Whether the run's policy scores samples by their average DLP."""
        return self.policy.signal == "sharpness"

    def scores(self, epoch: int) -> Scores:
        """The sampler's score table after an epoch, from epoch 1 on."""
        sampler = SelectiveBatchSampler(
            len(self.data.train_y), self.config.batch_size, self.policy, rank=0, world_size=1
        )
        scores = sampler.scores
        scores.load_state_dict(self.saved[epoch].load()["sampler"]["scores"])
        return scores

    def visits(self, epoch: int) -> Tensor:
        """How often each sample had been used after an epoch, from epoch 1 on.

        The table counts values. A score of progress is a difference between two visits, so it has one value less.
        """
        scores = self.scores(epoch)
        first = ~scores.last.isnan() if scores.progress else torch.zeros(len(scores), dtype=torch.bool)
        return scores.count.long() + first

    @property
    def periodic(self) -> list[int]:
        """The saved epochs that are consecutive multiples of the first one."""
        first = min(self.saved)
        return [e for i, e in enumerate(sorted(e for e in self.saved if e % first == 0), start=1) if e == i * first]

    def batches(self, size: int | None = None, limit: int | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The samples in mini-batches: inputs, labels and positions; a batch of one sample is dropped."""
        positions = torch.split(torch.arange(len(self.index)), size or self.config.batch_size)
        return [(self.x[p], self.y[p], p) for p in positions if len(p) > 1][:limit]

    @property
    def pair(self) -> str:
        """Short name of the method and the policy."""
        return f"{brief(self.method)} × {brief(self.policy)}"


def open_run(folder: Path, samples: int, rho: float | None = None, **here: Any) -> Subject:
    """Load the run in a folder and draw the samples; a ValueError if it cannot be measured."""
    if samples < 10:
        raise ValueError(f"--samples is {samples}. Use at least 10, preferably a few hundred.")
    saved_config = run_folder.saved_config(folder) if folder.is_dir() else None
    if saved_config is None:
        more = f" For a comparison use ausam diagnose compare {folder}." if any(folder.glob("runs/*/seed-*")) else ""
        raise ValueError(f"{folder} holds no run. Pass the folder (--out) of ausam train.{more}")
    config = replace(saved_config, **here | {"device": device(here.get("device", "cpu"))})
    if config.quantize:
        raise ValueError(
            f"{folder} is a run with {config.quantize}-bit weights, whose loss is a staircase without a gradient or "
            "curvature to measure. Diagnose the same run in full precision."
        )
    saved = {s.epoch: s for s in snapshots.available(folder)}
    if not saved:
        raise ValueError(f"{folder} has no checkpoint, so there is nothing to measure. Train again with --every N.")
    data, _ = split_problem(config)
    if not isinstance(data.task, Classification):
        raise ValueError(
            f"{folder} is a run on {config.data}, scored by {data.task.metric}, but ausam diagnose supports only "
            "classification."
        )
    steps = config.epochs * -(-len(data.train_y) // config.batch_size)
    method, policy = method_and_policy(config, steps, labels=data.train_y)
    radius, whose = (rho, "the comparison's") if rho is not None else radius_of(config, method)
    n = len(data.train_y)
    index = torch.randperm(n, generator=generator(DRAWN))[: min(samples, n)]
    part = data.part(index, torch.arange(len(data.test_y)))
    xs, ys = zip(*part.plain_batches(), strict=True)
    return Subject(
        folder=folder,
        config=config,
        data=data,
        model=network(config, data).eval(),
        method=method,
        policy=policy,
        rho=radius,
        rho_from=whose,
        index=index,
        x=to_memory_format(torch.cat(xs), config.memory_format),  # done here because vmap cannot do it inside the loss
        y=torch.cat(ys),
        saved=saved,
    )


def radius_of(config: Config, method: Method) -> tuple[float, str]:
    """SAM's radius for this run, and where it comes from; radii of other methods are converted to SAM's scale."""
    inner = getattr(method, "inner", method)
    kind = type(inner).__name__
    if (own := getattr(inner, "rho", 0.0)) > 0:
        scale = OF_SAMS_RHO.get(kind, 1.0)
        return own / scale, f"{kind}'s" if scale == 1.0 else f"{kind}'s, divided by {scale:g}"
    if config.rho:
        return config.rho, "that of SAM in the run's settings"
    return SAM().rho, "SAM's default"


def spread(values: list[int], count: int) -> list[int]:
    """At most ``count`` of the values, evenly spaced, including the first and the last."""
    if len(values) <= count:
        return values
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]
