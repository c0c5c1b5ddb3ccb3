"""The settings of a run: one flat record, set by flags, saved in files and shown in reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from ausam.common.settings import (
    Epochs,
    NonNegative,
    OneOf,
    Positive,
    Probability,
    Range,
    validate,
)

RhoShape = Annotated[str, OneOf(("constant", "linear", "cosine", "lr"))]
Base = Annotated[str, OneOf(("sgd", "adam", "adamw"))]
Augment = Annotated[str, OneOf(("none", "standard", "cutout"))]
MemoryFormat = Annotated[str, OneOf(("channels_last", "contiguous"))]
OnNonFinite = Annotated[str, OneOf(("skip", "raise", "ignore"))]
Below1 = Annotated[float, Range(low=0.0, high=1.0, high_open=True)]
Amp = Annotated[str, OneOf(("off", "bf16", "fp16"))]
Threads = Annotated[int, Range(low=0, high=1024, whole=True)]  # far more would crash the process
# What no machine holds is a mistake. Much larger numbers fit into no file of a run.
Count = Annotated[int, Range(low=0, high=1e9, whole=True)]
PositiveCount = Annotated[int, Range(low=1, high=1e9, whole=True)]
Seed = Annotated[int, Range(low=0, high=1e12, whole=True)]

# Where a run is computed and what is kept, not its identity: it may start on one machine and continue on another.
NOT_PART_OF_IDENTITY = ("data_dir", "init", "workers", "threads", "device", "tensorboard", "label", "kind")

# Settings that a comparison chooses for each pair.
PAIR_SETTINGS = ("method", "policy", "alpha", "seed")

# The groups of ``--help-all``, each by its first setting below; without ``-all``, only the first is shown.
GROUPS = {
    **{"data": "Basics", "rho_schedule": "Perturbation", "s_min": "Sampling", "base": "Training"},
    **{"data_dir": "Data", "validation": "Evaluation", "threads": "Machine and files"},
}


def flag_of(setting: str) -> str:
    """The flag of a setting: ``--batch-size``."""
    return f"--{setting.replace('_', '-')}"


def setting(default: Any, about: str, metavar: str = "") -> Any:
    """A field with the help text of its flag, and what stands for its value there."""
    return field(default=default, metadata={"help": about, "metavar": metavar})


@dataclass(frozen=True)
class Config:
    """Everything that determines a run. None stands for the method's or policy's own default."""

    data: str = setting(
        "digits", "data set by name, folder:PATH, hf:PATH-or-NAME, or your own as module:function or file.py:function"
    )
    model: str = setting("resnet-tiny", "network by name, or your own as module:function")
    method: str = setting(
        "SAM", 'method, by name or with arguments: sam, "looksam(k=10)". plain is the base optimizer alone'
    )
    policy: str = setting("Full", "selection policy, by name or with arguments. full is no selection")
    rho: float | None = setting(None, "radius of the perturbation, >= 0")
    alpha: float | None = setting(None, "fraction of each mini-batch that the policy keeps, 0 < alpha <= 1")
    epochs: PositiveCount = setting(30, "epochs, >= 1")
    batch_size: PositiveCount = setting(128, "samples per mini-batch, before selection")
    lr: Positive = setting(0.1, "peak learning rate, which falls to 0 along a cosine")
    label_noise: Below1 = setting(0.0, "fraction of the training labels to corrupt, 0 <= p < 1")
    seed: Seed = setting(0, "seed for weights, sample order, wrong labels and all other random draws")
    device: str = setting("auto", "cpu, cuda, cuda:0, mps, xpu, or auto for cuda if there is one")

    rho_schedule: RhoShape = setting(
        "constant",
        "how rho changes: constant, linear or cosine (to 0 at the end), or lr (proportional to the learning rate)",
    )
    sync_perturbation: bool = setting(False, "under torchrun: one perturbation for all ranks, not one per rank")
    nonfinite: OnNonFinite = setting("skip", "what to do with a step whose loss or gradient is inf or NaN")
    replay: bool = setting(False, "all passes of a step use the same dropout masks")

    s_min: float | None = setting(None, "lower bound of AUSampling's odds")
    s_max: float | None = setting(None, "upper bound of AUSampling's odds")
    ramp: Epochs | None = setting(
        None, "epochs over which AUSampling's upper bound rises, or a fraction of all epochs below 1", "EPOCHS"
    )

    base: Base = setting("sgd", "base optimizer")
    momentum: Below1 = setting(0.9, "momentum of SGD, or Adam's first beta", "NUMBER")
    weight_decay: NonNegative = setting(5e-4, "weight decay of the base optimizer")
    lr_steps: str = setting(
        "", "divide the learning rate by ten after these fractions of the epochs instead, e.g. 0.8,0.95", "PARTS"
    )
    label_smoothing: Below1 = setting(0.0, "label smoothing, 0 <= s < 1")
    augment: Augment = setting("none", "augmentation: none, standard (crop and flip) or cutout (standard and a hole)")
    init: str = setting("", "initial weights: the folder of a run, or a torch or safetensors file", "PATH")
    quantize: Count = setting(0, "bits of weights and activations, 2 to 8, or 0 for full precision", "BITS")
    amp: Amp = setting(
        "off", "mixed precision in training: bf16, or fp16 with a gradient scaler. Evaluation stays in float32"
    )

    data_dir: str = setting("data", "folder for downloaded data", "FOLDER")
    labels: str = setting(
        "",
        "labels.csv of ausam audit --apply: corrected training labels, and samples to leave out. Empty for none",
        "FILE",
    )
    train_size: Count = setting(0, "number of training samples, a subset with balanced classes, or 0 for all")
    test_size: Count = setting(0, "number of test samples, likewise")
    imbalance: Probability = setting(
        0.0, "long tail: class c of C keeps R^(c/(C-1)) of its training samples, 0 < R < 1. 0 or 1 keep all of them"
    )
    data_seed: Seed | None = setting(
        None, "seed for wrong labels, the long tail, held-out samples and subsets. By default that of the run"
    )
    workers: Threads = setting(0, "processes that load MPII or your own data, or 0 for the training process")

    validation: Below1 = setting(0.0, "fraction of the training samples held out to replace the test set, 0 <= p < 1")
    average: Below1 = setting(
        0.0, "evaluate an exponential moving average of the weights with this decay, e.g. 0.99, or 0 for none", "NUMBER"
    )
    select_epoch: Below1 = setting(
        0.0,
        "hold out this fraction of the training samples, with their labels, and keep the weights of the epoch that is "
        "best on them (early stopping); 0: keep the last",
    )

    threads: Threads = setting(0, "CPU threads, at most 1024, or 0 for torch's choice")
    memory_format: MemoryFormat = setting("channels_last", "memory layout of images and convolutions")
    tensorboard: bool = setting(False, "write the figures of every epoch for TensorBoard, too")

    label: str = ""  # what reports call the run, and the kind of its pair (ausam_lab.names): they have no flags
    kind: str = ""

    def __post_init__(self) -> None:
        validate(self)
        if self.quantize == 1 or self.quantize > 8:
            raise ValueError(f"Config: quantize is {self.quantize}. It must be 0, or a number of bits from 2 to 8.")
        if self.amp != "off" and self.quantize:
            raise ValueError(f"amp is {self.amp}, but quantised layers compute in float32. Use --amp off.")
        if self.amp == "fp16" and self.nonfinite != "skip":
            raise ValueError(
                f"nonfinite is {self.nonfinite}, but with amp fp16 the scaler finds its scale by steps that "
                "overflow and are skipped. Use --nonfinite skip, or --amp bf16."
            )
        lr_parts(self.lr_steps)


def lr_parts(text: str) -> list[float]:
    """``"0.8,0.95"`` as numbers. A ValueError unless all are fractions of a training."""
    try:
        parts = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        parts = [-1.0]
    if not all(0 < part <= 1 for part in parts):
        raise ValueError(f'lr_steps is "{text}". Use fractions of the epochs, above 0 and at most 1, e.g. 0.8,0.95.')
    return parts


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The settings in which two configs, as dicts, differ."""
    return [f"{k} {a.get(k)!r:.80} there, {b.get(k)!r} here" for k in a if a.get(k) != b.get(k)]
