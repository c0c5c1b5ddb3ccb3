"""The weights of a run: those it is evaluated with, those it starts from, and their digest.

A run is evaluated with its own weights, their moving average, or those of its best epoch.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ausam_lab.records.run import Score
from ausam_lab.training import checkpoint
from ausam_lab.training.checkpoint import Best, Checkpoint

log = logging.getLogger("ausam")

PREFIX = "module."  # of the names of AveragedModel
SHOWN = 5  # names in a message


def averaged(model: nn.Module, decay: float) -> AveragedModel | None:
    """The exponential moving average of the weights and the buffers, updated once a step. None without a decay.

    BatchNorm's statistics are averaged with the weights that they were measured at.
    """
    if not decay:
        return None
    ema = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=ema, use_buffers=True)


def better_of(best: Best | None, epoch: int, score: Score, model: nn.Module) -> Best:
    """The better of the best epoch so far and this one. Of equal ones, the earlier."""
    if best is not None and score.value <= best["value"]:
        return best
    copied = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Best(epoch=epoch, value=score.value, model=copied)


def final_weights(saved: Checkpoint) -> dict[str, Tensor]:
    """The weights that the run of a checkpoint is evaluated with, as far as it has come."""
    if saved.best is not None:
        return saved.best["model"]
    if saved.average is None:
        return saved.model
    return {name.removeprefix(PREFIX): value for name, value in saved.average.items() if name.startswith(PREFIX)}


def of_run(folder: Path) -> dict[str, Tensor]:
    """The weights that the run in a folder is evaluated with. A ValueError if it has none."""
    saved = checkpoint.load(folder)
    if saved is None:
        raise ValueError(f"The weights in {folder} cannot be read: it has no intact checkpoint. Use another run.")
    if not (folder / "result.json").exists():
        log.warning("The run in %s has not ended. Its last checkpoint is used.", folder)
    return final_weights(saved)


def start_from(model: nn.Module, source: str) -> str:
    """Copy the weights of a run's folder or of a file into a network. Returns the digest of what was copied.

    A tensor is copied if the network has one of its name and shape. All others are logged, and keep their initial
    value. ``source`` is the folder of a run, a file of ``torch.save`` or a ``.safetensors``.
    """
    saved, mine = read(Path(source)), model.state_dict()
    fitting = {k: v for k, v in saved.items() if k in mine and v.shape == mine[k].shape}
    if not fitting:
        raise ValueError(
            f"{source} has no weights that fit this network: it contains {_some(saved)}, but the network has "
            f"{_some(mine)}. Use the --model they were made for, or another --init."
        )
    model.load_state_dict(fitting, strict=False)
    learned = {name for name, _ in model.named_parameters()}
    if left := (saved.keys() | learned) - fitting.keys():
        log.warning("%s: not copied, because the name or the shape differs: %s.", source, _some(sorted(left)))
    return sha256(fitting)


def read(path: Path) -> dict[str, Tensor]:
    """The named tensors of a run's folder or of a file. A ValueError if it cannot be read or there are none."""
    if path.is_dir():
        return of_run(path)
    content: Any = _safetensors(path) if path.suffix == ".safetensors" else checkpoint.read(path)
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(
            f"{path} holds more than named tensors. Give --init a file of a state_dict, or a run's folder."
        )
    return content


def _safetensors(path: Path) -> dict[str, Tensor]:
    if find_spec("safetensors") is None:
        raise ValueError(f"{path} needs the package safetensors. Install it: pip install safetensors")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def sha256(tensors: Mapping[str, Tensor]) -> str:
    """A digest of named tensors, bit for bit."""
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _some(names: Collection[str]) -> str:
    """The first names, without escape sequences: they come from a file, and reach a terminal and logs."""
    first = [name.encode("unicode_escape").decode() for name in names]
    more = f" and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
    return ", ".join(first[:SHOWN]) + more
