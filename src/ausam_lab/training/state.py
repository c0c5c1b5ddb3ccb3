"""The parts of a run: its data, its network, its optimizer and its sampler, and how far it has come."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ausam.audit import Audit
from ausam.common.random import generator
from ausam.optimizer import RhoSchedule, SharpnessAware
from ausam.optimizer.nonfinite import NonFinite
from ausam.optimizer.rho_schedule import Shape
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config, lr_parts
from ausam_lab.data.catalogue import split_problem
from ausam_lab.data.problem import Problem
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.networks.build import FORMATS, TRANSFORMS, build, check_fit, to_memory_format
from ausam_lab.records.run import Epoch
from ausam_lab.training import auditing, weights
from ausam_lab.training.checkpoint import Best
from ausam_lab.training.ranks import Ranks

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
BASES: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class State:
    """The parts of a run, and its progress."""

    config: Config
    ranks: Ranks
    data: Problem
    model: nn.Module
    wrapped: nn.Module  # the model with gradients averaged over ranks
    sampler: SelectiveBatchSampler
    opt: SharpnessAware
    rho: RhoSchedule | None  # None: rho is constant
    random: Tensor  # torch's random numbers, used by dropout
    averaged: AveragedModel | None  # None: the network's own weights are evaluated
    held: Problem | None  # its test samples select the epoch; None: the last epoch is kept
    audit: Audit
    scaler: torch.amp.GradScaler  # does nothing unless amp is fp16
    epochs: list[Epoch] = field(default_factory=list)
    best: Best | None = None
    seconds: float = 0.0
    init: str | None = None  # digest of the initial weights

    @property
    def evaluated(self) -> nn.Module:
        """The network with the weights that an epoch is evaluated with."""
        return self.model if self.averaged is None else self.averaged.module

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every sample, and the network's outputs."""
        kind, dtype = torch.device(self.config.device).type, DTYPES.get(self.config.amp)
        with torch.autocast(kind, dtype, enabled=dtype is not None):
            z = self.wrapped(to_memory_format(x, self.config.memory_format))
        z = z if dtype is None else z.float()
        return self.data.task.losses(z, y, self.config.label_smoothing), z

    def backward(self, loss: Tensor) -> None:
        """Back-propagate a scalar loss, scaled with fp16."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Take the step. The scaler skips it if the gradient has overflown."""
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad()


def begin(config: Config, ranks: Ranks) -> State:
    """Build the problem, the network and the two axes."""
    data, held = split_problem(config)
    model = network(config, data)
    n, size = len(data.train_y), config.batch_size
    method, policy = method_and_policy(config, steps=config.epochs * -(-n // size), labels=data.train_y)
    sampler = SelectiveBatchSampler(
        n,
        size,
        policy,
        seed=config.seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
        split=True,
        min_batch=smallest_batch(model),
    )
    wrapped = ranks.wrap(model)
    opt = SharpnessAware(
        base_optimizer(config, model),
        method,
        wrapped,
        sync_perturbation=config.sync_perturbation,
        nonfinite=cast("NonFinite", config.nonfinite),
        seed=config.seed,
        replay=config.replay,
    )
    return State(
        config=config,
        ranks=ranks,
        data=data,
        model=model,
        wrapped=wrapped,
        sampler=sampler,
        opt=opt,
        rho=rho_schedule(config, opt),
        random=generator(ranks.rank_seed(config.seed), 0xD509).get_state(),
        averaged=weights.averaged(model, config.average),
        held=held,
        audit=auditing.start(data),
        scaler=grad_scaler(config),
    )


def grad_scaler(config: Config) -> torch.amp.GradScaler:
    """The scaler of fp16's losses. A ValueError if the device has no such precision."""
    kind = torch.device(config.device).type
    dtype = DTYPES.get(config.amp)
    if dtype is not None:
        available = torch.amp.is_autocast_available(kind)
        if not available or (dtype is torch.bfloat16 and kind == "cuda" and not torch.cuda.is_bf16_supported()):
            raise ValueError(f"amp is {config.amp}, which {config.device} cannot compute. Use --amp off.")
    return torch.amp.GradScaler(kind, enabled=dtype is torch.float16)


def network(config: Config, data: Problem) -> nn.Module:
    """Build the network in the settings for this data: quantised if set, on its device, in its memory format."""
    model = build(config.model, data.classes, data.channels, config.seed).to(config.device)
    check_fit(config.model, model, data.example(), data.output_shape)
    if config.quantize:
        model = TRANSFORMS["quantize"](model, config.quantize)
    return model.to(memory_format=FORMATS[config.memory_format])  # type: ignore[call-overload, no-any-return]


def smallest_batch(model: nn.Module) -> int:
    """The smallest allowed batch: BatchNorm cannot train on one sample."""
    return 2 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()) else 1


def base_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that takes the steps."""
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.base == "sgd":
        settings["momentum"] = config.momentum
    else:
        settings["betas"] = (config.momentum, 0.999)
    optimizer: torch.optim.Optimizer = BASES[config.base](model.parameters(), **settings)
    return optimizer


def learning_rate(config: Config, epoch: float) -> float:
    """The rate after so many epochs: a cosine from lr to 0, or divided by ten after each fraction in ``lr_steps``."""
    if config.lr_steps:
        return config.lr * 0.1 ** sum(epoch >= round(part * config.epochs) for part in lr_parts(config.lr_steps))
    return config.lr * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))


def rho_schedule(config: Config, opt: SharpnessAware) -> RhoSchedule | None:
    """The schedule of the radius: to 0 at the end, or proportional to the learning rate."""
    if config.rho_schedule == "constant":
        return None
    total = None if config.rho_schedule == "lr" else config.epochs
    return RhoSchedule(opt, cast("Shape", config.rho_schedule), total_steps=total)
