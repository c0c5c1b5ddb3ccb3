"""The settings of a run: one flat record that flags fill, files keep and reports show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from ausam.settings import Count, NonNegative, OneOf, Positive, PositiveCount, Range, check

Base = Annotated[str, OneOf(("sgd", "adam", "adamw"))]
Augment = Annotated[str, OneOf(("none", "standard", "cutout"))]
MemoryFormat = Annotated[str, OneOf(("channels_last", "contiguous"))]
Below1 = Annotated[float, Range(low=0.0, high=1.0, high_open=True)]
Threads = Annotated[int, Range(low=0, high=1024, whole=True)]  # far more end in a crash of the process

# Where a run is computed and what is kept of it, not what it is: begun on one machine, it may continue on another.
HERE = ("data_dir", "init", "workers", "threads", "device", "every")

# What a comparison sets for each of its pairs.
OF_ONE_PAIR = ("method", "policy", "alpha", "seed")

# What a setting was before it could be chosen, where that is not its default today.
BEFORE = {"memory_format": "contiguous"}


def setting(default: Any, about: str) -> Any:
    """A field with the text of its flag."""
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True)
class Config:
    """Everything that fixes a run. None for a method's or policy's own default."""

    data: str = setting(
        "digits", "data set by name, folder:PATH, hf:PATH-or-NAME, or your own as module:function or file.py:function"
    )
    data_dir: str = setting("data", "where downloaded data lies")
    label_noise: Below1 = setting(0.0, "part of the training labels that is made wrong, 0 <= p < 1")
    train_size: Count = setting(0, "training samples, a fixed part with balanced classes; 0: all")
    test_size: Count = setting(0, "test samples, likewise")
    augment: Augment = setting("none", "augmentation: none, standard (crop and flip) or cutout (and a hole)")
    workers: Count = setting(0, "processes that load MPII or data of your own; 0: the training process itself")
    model: str = setting("resnet-tiny", "network by name, or your own as module:function")
    quantize: Count = setting(0, "bits of weights and activations, 2 to 8; 0: full precision")
    init: str = setting("", "weights to start from: the folder of a run, or a file, torch or safetensors")
    method: str = setting("SAM", 'method, by name or with arguments: sam, "looksam(k=10)"; plain is the base alone')
    rho: float | None = setting(None, "radius of the perturbation, >= 0")
    policy: str = setting("Full", "selection policy, by name or with arguments; full is no selection")
    alpha: float | None = setting(None, "part of each mini-batch that the policy keeps, 0 < alpha <= 1")
    s_min: float | None = setting(None, "lower bound of AUSampling's odds")
    s_max: float | None = setting(None, "upper bound of AUSampling's odds")
    ramp: int | None = setting(None, "epochs over which the upper bound rises")
    epochs: PositiveCount = setting(30, "epochs, >= 1")
    batch_size: PositiveCount = setting(128, "samples of a mini-batch before selection")
    lr: Positive = setting(0.1, "peak learning rate; it falls to 0 as a cosine")
    lr_steps: str = setting("", "instead, parts of the epochs after which the rate falls tenfold, e.g. 0.8,0.95")
    momentum: Below1 = setting(0.9, "momentum of SGD; Adam's first beta")
    weight_decay: NonNegative = setting(5e-4, "weight decay of the base optimizer")
    label_smoothing: Below1 = setting(0.0, "label smoothing, 0 <= s < 1")
    base: Base = setting("sgd", "base optimizer")
    seed: Count = setting(0, "seed of weights, order and draws")
    sync_perturbation: bool = setting(False, "under torchrun: one perturbation for all ranks, not one each")
    memory_format: MemoryFormat = setting("channels_last", "how images and convolutions lie in memory")
    threads: Threads = setting(0, "CPU threads, at most 1024; 0: torch's choice")
    device: str = setting("auto", "cpu, cuda, cuda:0, mps, xpu; auto: cuda if there is one")
    every: Count = setting(0, "keep the weights of every so many epochs, for ausam diagnose; 0: of the last two alone")

    def __post_init__(self) -> None:
        check(self)
        if self.quantize == 1 or self.quantize > 8:
            raise ValueError(f"Config: quantize is {self.quantize}. It must be 0, or the bits of a grid, 2 to 8.")
        lr_parts(self.lr_steps)


def lr_parts(text: str) -> list[float]:
    """``"0.8,0.95"`` as numbers; a ValueError for what are no parts of a training."""
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [-1.0]
    if not all(0 < part <= 1 for part in found):
        raise ValueError(f'lr_steps is "{text}"; give parts of the epochs, above 0 and at most 1: 0.8,0.95.')
    return found


def completed(saved: dict[str, Any]) -> dict[str, Any]:
    """Saved settings with those that did not exist then."""
    return asdict(Config()) | BEFORE | saved


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The settings in which two saved configs differ, as text."""
    names = [f.name for f in fields(Config)]
    # cut short: what is there may be anything
    return [f"{k} {a.get(k)!r:.80} there, {b.get(k)!r} here" for k in names if a.get(k) != b.get(k)]
