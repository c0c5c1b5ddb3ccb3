"""One training run, from top to bottom."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ausam.common.random import generator
from ausam_lab.config import Config
from ausam_lab.data.problem import Problem
from ausam_lab.names.expressions import brief
from ausam_lab.networks.build import to_memory_format
from ausam_lab.records import files, store
from ausam_lab.records.run import VALIDATION, Epoch, Run, Samples, Score
from ausam_lab.training import auditing, checkpoint, run_folder, tensorboard, weights
from ausam_lab.training.checkpoint import Checkpoint
from ausam_lab.training.machine import environment
from ausam_lab.training.ranks import SINGLE_PROCESS, Ranks
from ausam_lab.training.state import State, begin, learning_rate

OnStep = Callable[[float], None]
STATEFUL = ("model", "sampler", "audit", "scaler")  # besides the optimizer, whose state differs by rank
Training = Generator[Epoch, None, Run]


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    on_step: OnStep = lambda _: None,
    ranks: Ranks = SINGLE_PROCESS,
) -> Training:
    """Train, yield each finished epoch and return the record of the run, which is also written to ``out``/result.json.

    With ``resume=True`` a killed run continues from its last checkpoint. On one CPU thread it ends with the same
    weights, bit for bit, as an uninterrupted run. :func:`finish` gives the record. ``on_step`` is called after every
    step with the step's fraction of an epoch, for progress bars. ``ranks`` is this process among those that train one
    network together. Rank 0 writes the files.
    """
    with contextlib.ExitStack() as until:
        shown = config.tensorboard and ranks.rank == 0
        ended = ranks.from_rank0(lambda: run_folder.claim(out, config, resume, until))
        if ended is not None:
            with tensorboard.opened(out, shown, run_folder.epochs(out)):
                return ended
        state = begin(config, ranks)
        restore(state, out)
        log = until.enter_context(tensorboard.opened(out, shown, state.epochs))
        for epoch in range(len(state.epochs), config.epochs):
            state.epochs.append(run_epoch(state, epoch, on_step))
            save(state, out)
            log(state.epochs[-1])
            yield state.epochs[-1]
        if state.best is not None:
            state.evaluated.load_state_dict(state.best["model"])
        run = record(state, evaluate(state.evaluated, state.data, "train", config.memory_format))
        if ranks.rank == 0:
            auditing.write(out, state.audit)
            store.write(out / "result.json", run)
        return run


def finish(training: Training, on_epoch: Callable[[Epoch], None] = lambda _: None) -> Run:
    """Train to the end, calling ``on_epoch`` after every epoch. Returns the record of the run."""
    while True:
        try:
            on_epoch(next(training))
        except StopIteration as end:
            run: Run = end.value
            return run


def restore(state: State, out: Path) -> None:
    """Continue from the last checkpoint, or start from the weights in ``init``. Then make the files agree."""
    config = state.config
    if saved := checkpoint.load(out):
        try:
            mine, random = checkpoint.for_rank(saved, state.ranks.rank)
            state.opt.load_state_dict(mine)
            for name in STATEFUL:
                getattr(state, name).load_state_dict(getattr(saved, name))
            if state.averaged is not None:
                state.averaged.load_state_dict(saved.average or {})
        except (ValueError, TypeError, RuntimeError, LookupError) as error:
            path = checkpoint.newest_first(out)[0]
            raise ValueError(
                f"{path} does not fit this run ({checkpoint.brief(error)}). If the data are those of the run, remove "
                "that file: --resume then uses the previous one. If they have changed, choose another --out."
            ) from error
        state.epochs, state.seconds, state.init, state.best = saved.epochs, saved.seconds, saved.init, saved.best
        state.random = state.random if random is None else random
    elif config.init:
        state.init = weights.start_from(state.model, config.init)
        state.averaged = weights.averaged(state.model, config.average)
    if state.ranks.rank == 0:
        files.sweep(out)
        files.write_json(out / "config.json", asdict(config))
        if config.labels:
            files.write(out / run_folder.LABELS, Path(config.labels).read_bytes())
        run_folder.write_epochs(out, state.epochs)


def run_epoch(state: State, epoch: int, on_step: OnStep) -> Epoch:
    """Train one pass of the sampler, then compute the test score."""
    config, ranks, opt, sampler = state.config, state.ranks, state.opt, state.sampler
    state.wrapped.train()
    total, finite, count = torch.zeros((), device=config.device), torch.zeros((), device=config.device), 0
    with random_numbers(state.random) as state.random:
        start, cpu_start = time.perf_counter(), time.process_time()
        batches = len(sampler)
        for b, (x, y, index) in enumerate(state.data.batches(sampler, epoch, ranks.rank_seed(config.seed))):
            lr = learning_rate(config, epoch + b / batches)
            for group in opt.param_groups:
                group["lr"] = lr
            if state.rho:
                state.rho.at((epoch + b / batches) / config.epochs)
            feedback = opt.backward(
                state.losses, x, y, index=index, weight=sampler.weight(index), backward=state.backward
            )
            sampler.update(feedback)
            auditing.update(state.audit, feedback, y, config.label_smoothing)
            state.step()
            if state.averaged is not None:
                state.averaged.update_parameters(state.model)
            known = feedback.loss.isfinite()  # the loss of a skipped step may not be
            total += feedback.loss.where(known, 0).sum()
            finite += known.sum()
            count += len(index)
            on_step(1 / batches)
        # reading the total waits for the device, so stop the clock afterwards
        cpu = time.process_time() - cpu_start
        loss, finite, count, forward, backward, cpu = ranks.sum_over_ranks(
            float(total), float(finite), count, opt.samples_forward, opt.samples_backward, cpu
        )
        spent = time.perf_counter() - start
    state.seconds += spent
    sampler.exchange()
    state.audit.exchange()
    ranks.broadcast_buffers(state.model)
    if state.averaged is not None:
        ranks.broadcast_buffers(state.averaged.module)
    if state.held is not None:
        forward += select(state, state.held, epoch + 1)
    return Epoch(
        epoch=epoch + 1,
        lr=lr,
        train_loss=loss / finite if finite else math.nan,
        test=evaluate(state.evaluated, state.data, "test", config.memory_format),
        seconds=state.seconds,
        samples=count,
        samples_forward=forward,
        samples_backward=backward,
        images_per_second=count / spent,
        skipped=opt.skipped,
        ranks=ranks.world_size,
        cpu_seconds=cpu + (state.epochs[-1].cpu_seconds if state.epochs else 0.0),
    )


def select(state: State, held: Problem, epoch: int) -> int:
    """Keep the weights if they are the best so far on the held-out samples.

    Returns the number of these samples, which counts as cost.
    """
    start = time.perf_counter()
    score = evaluate(state.evaluated, held, "test", state.config.memory_format)
    state.best = weights.better_of(state.best, epoch, score, state.evaluated)
    state.seconds += time.perf_counter() - start
    state.opt.samples_forward += len(held.test_y) if state.ranks.rank == 0 else 0  # rank 0 counts for all
    return len(held.test_y)


@torch.no_grad()
def evaluate(model: nn.Module, data: Problem, which: str, memory_format: str = Config.memory_format) -> Score:
    """The task's score on the "test" or the "train" samples."""
    model.eval()
    batches = ((to_memory_format(x, memory_format), y) for x, y in data.in_order(which))
    with random_numbers(generator(0).get_state()):  # a user's dataset may draw random numbers
        score = data.task.score(model, batches)
    held = which == "test" and data.evaluated_on == "validation"
    return replace(score, name=VALIDATION + score.name) if held else score


def save(state: State, out: Path) -> None:
    """Write the checkpoint of the finished epoch. Rank 0 writes for all ranks."""
    last = state.epochs[-1]
    mine = state.opt.state_dict()
    others = state.ranks.gather_others({"memory": mine["ausam"]["memory"], "random": state.random})
    if state.ranks.rank:
        return
    mine["ausam"] |= {"samples_forward": last.samples_forward, "samples_backward": last.samples_backward}
    saved = Checkpoint(
        epochs=state.epochs,
        optimizer=mine,
        random=state.random,
        seconds=state.seconds,
        init=state.init,
        others=others,
        average=None if state.averaged is None else state.averaged.state_dict(),
        best=state.best,
        **{name: getattr(state, name).state_dict() for name in STATEFUL},
    )
    checkpoint.save(out, saved)
    run_folder.write_epochs(out, state.epochs)


def record(state: State, train: Score) -> Run:
    """The record of a run after its last epoch. ``train`` is its score on the training samples."""
    config, data, last = state.config, state.data, state.epochs[-1]
    best = None if state.best is None else state.epochs[state.best["epoch"] - 1]
    method, policy = state.opt.method, state.sampler.policy
    return Run(
        method=brief(method),
        policy=brief(policy),
        seed=config.seed,
        epochs=config.epochs,
        test=(best or last).test,
        train=train,
        train_seconds=state.seconds,
        cpu_seconds=last.cpu_seconds,
        samples_forward=last.samples_forward,
        samples_backward=last.samples_backward,
        steps=state.opt.steps,
        skipped_steps=state.opt.skipped,
        weights_sha256=weights.sha256(state.evaluated.state_dict()),
        init_sha256=state.init,
        parameters=sum(p.numel() for p in state.model.parameters()),
        ranks=last.ranks,
        data=Samples(len(data.train_y), len(data.test_y), data.classes),
        environment=environment(config.device),
        config=config,
        best_epoch=None if best is None else best.epoch,
        audit=None if state.ranks.rank else auditing.findings(state.audit),
    )


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
