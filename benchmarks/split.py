"""A step of SAM on a fraction alpha of the samples takes ``alpha T_f + T_b``: measured on your network and data.

    python benchmarks/split.py --data digits --model resnet-tiny --batch-size 64 [--device cuda] [--repeats 30]

The paper divides the time T of SAM into T_f, forward and backward, and the remaining T_b. Choosing samples shortens T_f
alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from side_by_side import conditions, interleaved

from ausam_lab.config import Config
from ausam_lab.data.catalogue import resolve
from ausam_lab.training.ranks import SINGLE_PROCESS
from ausam_lab.training.state import State, begin

ALPHAS = (0.7, 0.6, 0.5, 0.4)


@dataclass(frozen=True)
class Split:
    """Seconds of a step of SAM.

    Attributes:
        loading: of a mini-batch, with its augmentation.
        passes: forward and backward, twice: the paper's T_f.
        half: the same on half of the mini-batch.
        step: the whole step, without loading.
    """

    loading: float
    passes: float
    half: float
    step: float

    @property
    def whole(self) -> float:
        """T, with loading."""
        return self.loading + self.step

    @property
    def rest(self) -> float:
        """The paper's T_b: loading, the perturbation and the base optimizer's step."""
        return max(0.0, self.whole - self.passes)

    def chosen(self, alpha: float) -> float:
        """What a step on a fraction of the mini-batch takes by the paper's rule, ``alpha T_f + T_b``."""
        return alpha * self.passes + self.rest


def measure(config: Config, repeats: int) -> Split:
    """The medians over as many repeats, taken in turns."""
    state = begin(config, SINGLE_PROCESS)
    state.wrapped.train()
    batches = _endless(state)
    x, y, index = next(batches)
    few = max(1, len(index) // 2)

    def passes(n: int) -> None:
        for _ in range(2):
            torch.autograd.backward(state.losses(x[:n], y[:n])[0].mean())
            state.opt.zero_grad()

    def step() -> None:
        state.opt.backward(state.losses, x, y, index=index)
        state.opt.step()
        state.opt.zero_grad()

    tasks = {
        "loading": lambda: next(batches),
        "passes": lambda: passes(len(index)),
        "half": lambda: passes(few),
        "step": step,
    }
    waited = {name: _waited(task, config.device) for name, task in tasks.items()}
    seconds = interleaved(waited, repeats)
    return Split(**{name: statistics.median(values) for name, values in seconds.items()})


def _endless(state: State) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Mini-batches of whole size, epoch after epoch."""
    epoch = 0
    while True:
        for x, y, index in state.data.batches(state.sampler, epoch, state.config.seed):
            if len(index) == min(state.config.batch_size, len(state.data.train_y)):
                yield x, y, index
        epoch += 1


def _waited(task: Callable[[], object], device: str) -> Callable[[], None]:
    """The task, until the device has finished it."""

    def run() -> None:
        task()
        if torch.device(device).type != "cpu":
            torch.accelerator.synchronize()

    return run


def text(config: Config, split: Split) -> str:
    """What the figures mean."""
    own = max(0.0, split.step - split.passes)
    lines = [
        f"A step of SAM, {config.model} on {config.data}, batch {config.batch_size}: {_ms(split.whole)} ms",
        f"  T_f, forward and backward, twice:  {_ms(split.passes)} ms, {split.passes / split.whole:.0%}",
        f"  T_b, the rest:                     {_ms(split.rest)} ms, {split.rest / split.whole:.0%} "
        f"(loading {_ms(split.loading)}, perturbation and base step {_ms(own)})",
        "With a fraction alpha of the samples, alpha T_f + T_b:",
        *(
            f"  alpha {a}: {_ms(split.chosen(a))} ms, {split.whole / split.chosen(a):.2f} times as fast as SAM"
            for a in ALPHAS
        ),
        f"Forward and backward of half the batch take {split.half / split.passes:.0%} of the whole batch's time: near "
        "50 %, the rule holds; above, the batch is too small for this device. Samples that are not chosen are not "
        "loaded either.",
    ]
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("data", str), ("model", str), ("batch_size", int), ("augment", str), ("device", str)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=30)
    args = vars(parser.parse_args())
    repeats, config = args.pop("repeats"), resolve(**args)
    conditions()
    print(text(config, measure(config, repeats)))


if __name__ == "__main__":
    main()
