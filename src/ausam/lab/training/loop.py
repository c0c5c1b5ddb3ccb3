"""One training run, from top to bottom."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ausam import SelectiveBatchSampler, SharpnessAware
from ausam.lab.config import Config, parts
from ausam.lab.io import files
from ausam.lab.problems.catalogue import Problem, load
from ausam.lab.registry.pairs import brief, method_and_policy
from ausam.lab.training import checkpoint, environment, folder, weights
from ausam.lab.training.network import network
from ausam.lab.training.ranks import ALONE, Ranks
from ausam.lab.training.selection import selection_summary
from ausam.random import generator

log = logging.getLogger("ausam")

BASES: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}

Row = dict[str, Any]


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    on_step: Callable[[Row], None] = lambda _: None,
    here: Ranks = ALONE,
) -> Iterator[Row]:
    """Train and yield a row of metrics after each epoch; ``out`` then holds result.json.

    A run that was killed goes on from its last checkpoint with ``resume=True`` and ends with the same weights, bit for
    bit on one CPU thread, as one that was not. ``on_step`` is told of every step, for progress bars. ``here`` is this
    process among those that train one network together; the first of them writes the files.
    """
    if here.told(lambda: folder.is_done(out, config, resume)):
        return

    # the problem
    data = problem(config)
    model = network(config, data)
    steps = config.epochs * -(-len(data.train_y) // config.batch_size)
    method, policy = method_and_policy(config, steps)

    # the two axes
    n, size = len(data.train_y), config.batch_size
    sampler = SelectiveBatchSampler(
        n, size, policy, seed=config.seed, rank=here.rank, world_size=here.world, split=True
    )
    wrapped, base = here.wrapped(model), base_optimizer(config, model)
    opt = SharpnessAware(base, method, wrapped, sync_perturbation=config.sync_perturbation, seed=config.seed)

    def losses(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = wrapped(x)
        return data.task.losses(z, y, config.label_smoothing), z

    # where it stands
    random_state = generator(here.own(config.seed), 0xD509).get_state()
    rows: list[Row] = []
    seconds = 0.0
    init: str | None = None  # digest of the weights it started from
    if saved := checkpoint.load(out, config.device):
        with checkpoint.fitting(saved, config):
            model.load_state_dict(saved["model"])
            mine, random = checkpoint.part(saved, here.rank)
            opt.load_state_dict(mine)
            sampler.load_state_dict(saved["sampler"])
            rows, seconds = json.loads(saved["rows"]), saved["seconds"]
            random_state = random_state if random is None else random.cpu()
        init = saved.get("init")
    elif config.init:
        init = weights.start_from(model, config.init)
    if here.rank == 0:
        files.sweep(out)
        files.write_json(out / "config.json", asdict(config))
        folder.write_rows(out, rows)

    for epoch in range(len(rows), config.epochs):
        wrapped.train()
        total, count = torch.zeros((), device=config.device), 0
        with random_numbers(random_state) as random_state:
            start = time.perf_counter()
            batches = len(sampler)
            for b, (x, y, index) in enumerate(data.batches(sampler, epoch, here.own(config.seed))):
                lr = learning_rate(config, epoch + b / batches)
                for group in opt.param_groups:
                    group["lr"] = lr
                feedback = opt.backward(losses, x, y, index=index, weight=sampler.weight(index))
                sampler.update(feedback)
                opt.step()
                opt.zero_grad()
                total += feedback.loss.sum()
                count += len(index)
                on_step({"epoch": epoch + 1, "batch": b + 1, "batches": batches, "samples": here.world * len(index)})
            # reading the total waits for the device, so the clock stops after it
            loss, count, forward, backward = here.sums(float(total), count, opt.samples_forward, opt.samples_backward)
            spent = time.perf_counter() - start
        seconds += spent
        sampler.exchange()
        here.level(model)
        rows.append(
            {
                "epoch": epoch + 1,
                "lr": lr,
                "train_loss": loss / count,
                "metric": data.task.metric,
                **evaluate(here.shared(model), data, "test"),
                "seconds": seconds,
                "samples": count,
                "samples_forward": forward,
                "samples_backward": backward,
                "images_per_second": count / spent,
                "skipped": opt.skipped,
                "ranks": here.world,
            }
        )
        state = opt.state_dict()
        others = here.others({"memory": state["ausam"]["memory"], "random": random_state})
        if here.rank == 0:
            state["ausam"] |= {"samples_forward": forward, "samples_backward": backward}
            content = {
                "config": json.dumps(asdict(config)),
                "model": model.state_dict(),
                "optimizer": state,
                "sampler": sampler.state_dict(),
                "random": random_state,
                "others": others,
                "rows": json.dumps(rows),
                "seconds": seconds,
                "init": init,
            }
            checkpoint.save(out, epoch + 1, content)
            folder.write_rows(out, rows)
        yield rows[-1]

    result = {
        "method": repr(method),
        "policy": repr(policy),
        "pair": f"{brief(method)} × {brief(policy)}",
        "seed": config.seed,
        "epochs": config.epochs,
        "metric": data.task.metric,
        **{k: v for k, v in rows[-1].items() if k.startswith("test_")},
        **evaluate(here.shared(model), data, "train"),
        "train_seconds": seconds,
        "samples_forward": rows[-1]["samples_forward"],
        "samples_backward": rows[-1]["samples_backward"],
        "skipped_steps": opt.skipped,
        "weights_sha256": weights_sha256(model),
        "init_sha256": init,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": {"train": len(data.train_y), "test": len(data.test_y), "classes": data.classes},
        "selection": selection_summary(policy, sampler.scores, data.wrong),
        "versions": environment.versions(),
        "hardware": environment.hardware(config.device),
        "ranks": here.world,
        "commit": environment.commit(),
        "config": asdict(config),
    }
    if here.rank == 0:
        files.write_json(out / "result.json", result)


def problem(config: Config) -> Problem:
    """The data of a run."""
    return load(
        config.data,
        config.data_dir,
        config.label_noise,
        train_size=config.train_size,
        test_size=config.test_size,
        augment=config.augment,
        workers=config.workers,
        device=config.device,
    )


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
    """The rate after so many epochs: a cosine from lr to 0, or tenfold falls after the parts in ``lr_steps``."""
    if config.lr_steps:
        return config.lr * 0.1 ** sum(epoch >= round(part * config.epochs) for part in parts(config.lr_steps))
    return config.lr * 0.5 * (1 + math.cos(math.pi * epoch / config.epochs))


@torch.no_grad()
def evaluate(model: nn.Module, data: Problem, which: str) -> Row:
    """The task's scores on the "test" or the "train" samples, their names prefixed with which."""
    model.eval()
    batches = data.test_batches() if which == "test" else data.plain_batches()
    with random_numbers(generator(0).get_state()):  # a dataset of the user's may draw
        return {f"{which}_{name}": value for name, value in data.task.scores(model, batches).items()}


def weights_sha256(model: nn.Module) -> str:
    """A digest of every parameter and buffer, bit for bit."""
    return weights.sha256(model.state_dict())


@contextlib.contextmanager
def random_numbers(state: Tensor) -> Iterator[Tensor]:
    """Torch's global random numbers from this state inside; what dropout draws is the run's own. Filled on leaving."""
    outer = torch.get_rng_state()
    torch.set_rng_state(state)
    inner = state.clone()
    try:
        yield inner
    finally:
        inner.copy_(torch.get_rng_state())
        torch.set_rng_state(outer)
