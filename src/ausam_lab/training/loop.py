"""One training run, from top to bottom."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ausam.audit import Audit
from ausam.common.random import generator
from ausam.optimizer import Method, RhoSchedule, SharpnessAware
from ausam.optimizer.nonfinite import NonFinite
from ausam.optimizer.rho_schedule import Shape
from ausam.policies import Policy
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam_lab.config import Config
from ausam_lab.data.catalogue import split_problem
from ausam_lab.data.problem import Problem
from ausam_lab.names.expressions import brief_pair, stable_repr
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.networks.memory_format import to_memory_format
from ausam_lab.records import files, store
from ausam_lab.records.run import VALIDATION, Epoch, Run, Samples, Score, epochs_text
from ausam_lab.training import auditing, checkpoint, kept, run_folder, snapshots, weights
from ausam_lab.training.environment import environment
from ausam_lab.training.identity import explain_misfit
from ausam_lab.training.kept import Best
from ausam_lab.training.logs import NO_LOGS, Logs
from ausam_lab.training.network import network
from ausam_lab.training.ranks import ALONE, Ranks
from ausam_lab.training.schedule import learning_rate
from ausam_lab.training.selection import selection_summary

BASES: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass(frozen=True)
class Batch:
    """A finished step: its position in the epoch, and its number of samples."""

    epoch: int
    batch: int
    batches: int
    samples: int


OnStep = Callable[[Batch], None]


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    on_step: OnStep = lambda _: None,
    here: Ranks = ALONE,
    logs: Logs = NO_LOGS,
) -> Iterator[Epoch]:
    """Train and yield each finished epoch; at the end ``out`` holds result.json.

    With ``resume=True`` a killed run continues from its last checkpoint. On one CPU thread it ends with the same
    weights, bit for bit, as an uninterrupted run. ``on_step`` is called after every step, for progress bars. ``here``
    is this process among those that train one network together; rank 0 writes the files and the ``logs``.
    """
    with contextlib.ExitStack() as until:
        logs = NO_LOGS if here.rank else logs
        if here.from_rank0(lambda: run_folder.claim(out, config, resume, until)):
            if here.rank == 0:
                snapshots.discard_checkpoints(out, config.keep)
            with logs.opened(config, out, run_folder.epochs(out)):
                return
        state = begin(config, here)
        restore(state, out)
        log = until.enter_context(logs.opened(config, out, state.epochs))
        for epoch in range(len(state.epochs), config.epochs):
            state.epochs.append(run_epoch(state, epoch, on_step))
            save(state, out)
            log(state.epochs[-1])
            yield state.epochs[-1]
        result(state, out)
        if here.rank == 0:
            snapshots.discard_checkpoints(out, config.keep)


@dataclass
class State:
    """The parts of a run, and its progress."""

    config: Config
    here: Ranks
    data: Problem
    model: nn.Module
    wrapped: nn.Module  # the model with gradients averaged over ranks
    method: Method
    policy: Policy
    sampler: SelectiveBatchSampler
    opt: SharpnessAware
    rho: RhoSchedule | None  # None: rho is constant
    random: Tensor  # torch's random numbers, used by dropout
    averaged: AveragedModel | None  # None: the network's own weights are judged
    held: Problem | None  # its test samples select the epoch; None: the last epoch is kept
    audit: Audit | None  # None if the checkpoint that it continues from has none
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
        z = self.wrapped(to_memory_format(x, self.config.memory_format))
        return self.data.task.losses(z, y, self.config.label_smoothing), z


def begin(config: Config, here: Ranks) -> State:
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
        rank=here.rank,
        world_size=here.world,
        split=True,
        min_batch=smallest_batch(model),
    )
    wrapped, base = here.wrap(model), base_optimizer(config, model)
    opt = SharpnessAware(
        base,
        method,
        wrapped,
        sync_perturbation=config.sync_perturbation,
        nonfinite=cast("NonFinite", config.nonfinite),
        seed=config.seed,
        replay=config.replay,
    )
    return State(
        config=config,
        here=here,
        data=data,
        model=model,
        wrapped=wrapped,
        method=method,
        policy=policy,
        sampler=sampler,
        opt=opt,
        rho=rho_schedule(config, opt),
        random=generator(here.rank_seed(config.seed), 0xD509).get_state(),
        averaged=kept.averaged(model, config.average),
        held=held,
        audit=auditing.start(data),
    )


def rho_schedule(config: Config, opt: SharpnessAware) -> RhoSchedule | None:
    """The schedule of the radius: to 0 at the end, or proportional to the learning rate."""
    if config.rho_schedule == "constant":
        return None
    total = None if config.rho_schedule == "lr" else config.epochs
    return RhoSchedule(opt, cast("Shape", config.rho_schedule), total_steps=total)


def smallest_batch(model: nn.Module) -> int:
    """The smallest allowed batch: BatchNorm cannot train on one sample."""
    return 2 if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()) else 1


def restore(state: State, out: Path) -> None:
    """Continue from the last checkpoint, or start from the weights in ``init``; then make the files agree."""
    if saved := checkpoint.load(out, state.config.device):
        with explain_misfit(saved, state.config):
            state.model.load_state_dict(saved.model)
            mine, random = checkpoint.for_rank(saved, state.here.rank)
            state.opt.load_state_dict(checkpoint.with_settings_of(state.opt, mine))
            if (at := saved.sampler["epoch"]) != len(saved.epochs):
                raise ValueError(f"its sampler is at epoch {at}, not {len(saved.epochs)}")
            state.sampler.load_state_dict(saved.sampler | {"seed": state.config.seed})
            if state.averaged is not None:
                state.averaged.load_state_dict(saved.average or {})
            state.best = None if saved.best is None else Best(**saved.best)
            state.epochs, state.seconds = saved.epochs, saved.seconds
            state.random = state.random if random is None else random.cpu()
            state.audit = restored_audit(state.audit, saved.audit)
        state.init = saved.init
    elif state.config.init:
        state.init = weights.start_from(state.model, state.config.init)
        state.averaged = kept.averaged(state.model, state.config.average)
    if state.here.rank == 0:
        files.sweep(out)
        files.write_json(out / "config.json", asdict(state.config))
        run_folder.write_epochs(out, state.epochs)


def restored_audit(audit: Audit | None, saved: dict[str, Any] | None) -> Audit | None:
    """The audit as it was saved; None for a checkpoint without one, because part of a training says too little."""
    if audit is None or saved is None:
        return None
    audit.load_state_dict({name: _on_cpu(value) for name, value in saved.items()})
    return audit


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def run_epoch(state: State, epoch: int, on_step: OnStep) -> Epoch:
    """Train one pass of the sampler, then compute the test score."""
    config, here, opt, sampler = state.config, state.here, state.opt, state.sampler
    state.wrapped.train()
    total, finite, count = torch.zeros((), device=config.device), torch.zeros((), device=config.device), 0
    with random_numbers(state.random) as state.random:
        start = time.perf_counter()
        batches = len(sampler)
        for b, (x, y, index) in enumerate(state.data.batches(sampler, epoch, here.rank_seed(config.seed))):
            lr = learning_rate(config, epoch + b / batches)
            for group in opt.param_groups:
                group["lr"] = lr
            if state.rho:
                state.rho.at((epoch + b / batches) / config.epochs)
            feedback = opt.backward(state.losses, x, y, index=index, weight=sampler.weight(index))
            sampler.update(feedback)
            if state.audit is not None:
                auditing.update(state.audit, feedback, y, config.label_smoothing)
            opt.step()
            opt.zero_grad()
            if state.averaged is not None:
                state.averaged.update_parameters(state.model)
            known = feedback.loss.isfinite()  # the loss of a skipped step may not be
            total += feedback.loss.where(known, 0).sum()
            finite += known.sum()
            count += len(index)
            on_step(Batch(epoch + 1, b + 1, batches, here.world * len(index)))
        # reading the total waits for the device, so stop the clock afterwards
        loss, finite, count, forward, backward = here.sum_over_ranks(
            float(total), float(finite), count, opt.samples_forward, opt.samples_backward
        )
        spent = time.perf_counter() - start
    state.seconds += spent
    sampler.exchange()
    if state.audit is not None:
        state.audit.exchange()
    here.broadcast_buffers(state.model)
    if state.averaged is not None:
        here.broadcast_buffers(state.averaged.module)
    if state.held is not None:
        forward += select(state, state.held, epoch + 1)
    return Epoch(
        epoch=epoch + 1,
        lr=lr,
        train_loss=loss / finite if finite else math.nan,
        test=evaluate(here.for_evaluation(state.evaluated), state.data, "test", config.memory_format),
        seconds=state.seconds,
        samples=count,
        samples_forward=forward,
        samples_backward=backward,
        images_per_second=count / spent,
        skipped=opt.skipped,
        ranks=here.world,
    )


def select(state: State, held: Problem, epoch: int) -> int:
    """Keep the weights if they are the best so far on the held-out samples; their number, which counts as cost."""
    start = time.perf_counter()
    score = evaluate(state.here.for_evaluation(state.evaluated), held, "test", state.config.memory_format)
    state.best = kept.better_of(state.best, epoch, score, state.evaluated)
    state.seconds += time.perf_counter() - start
    state.opt.samples_forward += len(held.test_y) if state.here.rank == 0 else 0  # rank 0 counts for all
    return len(held.test_y)


@torch.no_grad()
def evaluate(model: nn.Module, data: Problem, which: str, memory_format: str = Config.memory_format) -> Score:
    """The task's score on the "test" or the "train" samples."""
    model.eval()
    samples = data.test_batches() if which == "test" else data.plain_batches()
    batches = ((to_memory_format(x, memory_format), y) for x, y in samples)
    with random_numbers(generator(0).get_state()):  # a user's dataset may draw random numbers
        score = data.task.score(model, batches)
    held = which == "test" and data.evaluated_on == "validation"
    return replace(score, name=VALIDATION + score.name) if held else score


def save(state: State, out: Path) -> None:
    """Write the checkpoint of the finished epoch; rank 0 writes for all ranks."""
    mine, last = state.opt.state_dict(), state.epochs[-1]
    others = state.here.gather_others({"memory": mine["ausam"]["memory"], "random": state.random})
    if state.here.rank:
        return
    mine["ausam"] |= {"samples_forward": last.samples_forward, "samples_backward": last.samples_backward}
    model, sampler = state.model.state_dict(), state.sampler.state_dict()
    average = None if state.averaged is None else state.averaged.state_dict()
    content = {
        "config": json.dumps(asdict(state.config)),
        "model": model,
        "optimizer": mine,
        "sampler": sampler,
        "random": state.random,
        "others": others,
        "epochs": epochs_text(state.epochs),
        "seconds": state.seconds,
        "init": state.init,
        "average": average,
        "best": None if state.best is None else vars(state.best),
    }
    if state.audit is not None:
        content["audit"] = state.audit.state_dict()
    if state.config.every and last.epoch % state.config.every == 0:
        # first: a run killed here passes this point again
        snapshots.save(out, last.epoch, state.config, kept.of_epoch(model, average), sampler)
    checkpoint.save(out, last.epoch, content)
    run_folder.write_epochs(out, state.epochs)


def result(state: State, out: Path) -> None:
    """The record of the finished run."""
    last, data, model = state.epochs[-1], state.data, state.evaluated
    if state.best is not None:
        model.load_state_dict(state.best.model)
    run = Run(
        method=stable_repr(state.method),
        policy=stable_repr(state.policy),
        pair=brief_pair(state.method, state.policy),
        seed=state.config.seed,
        epochs=state.config.epochs,
        test=last.test if state.best is None else state.epochs[state.best.epoch - 1].test,
        train=evaluate(state.here.for_evaluation(model), data, "train", state.config.memory_format),
        train_seconds=state.seconds,
        samples_forward=last.samples_forward,
        samples_backward=last.samples_backward,
        steps=state.opt.steps,
        skipped_steps=state.opt.skipped,
        weights_sha256=weights.sha256(model.state_dict()),
        init_sha256=state.init,
        parameters=sum(p.numel() for p in state.model.parameters()),
        ranks=last.ranks,
        data=Samples(len(data.train_y), len(data.test_y), data.num_outputs),
        selection=selection_summary(
            state.policy, state.sampler.scores, data.wrong, data.train_y if data.long_tailed else None
        ),
        environment=environment(state.config.device),
        config=state.config,
        best_epoch=None if state.best is None else state.best.epoch,
        audit=None if state.here.rank else auditing.findings(state.audit, data, state.config.policy),
    )
    if state.here.rank == 0:
        auditing.write(out, state.audit)
        store.write(out / "result.json", run)


def base_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that takes the steps."""
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.base == "sgd":
        settings["momentum"] = config.momentum
    else:
        settings["betas"] = (config.momentum, 0.999)
    optimizer: torch.optim.Optimizer = BASES[config.base](model.parameters(), **settings)
    return optimizer


@contextlib.contextmanager
def random_numbers(state: Tensor) -> Iterator[Tensor]:
    """Inside, torch's global random numbers continue from this state, so dropout is the run's own. Updated on exit."""
    outer = torch.get_rng_state()
    torch.set_rng_state(state)
    inner = state.clone()
    try:
        yield inner
    finally:
        inner.copy_(torch.get_rng_state())
        torch.set_rng_state(outer)
