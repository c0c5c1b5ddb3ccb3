"""Weights from a file: matched by name, copied where they fit, never executed; and their digest."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ausam_lab.training import checkpoint, kept, snapshots

log = logging.getLogger("ausam")

# Common keys for the weights in a file that holds more.
KEYS = ("state_dict", "model", "model_state_dict")
SHOWN = 5  # names in a message


@torch.no_grad()
def start_from(model: nn.Module, source: str) -> str:
    """Copy the weights of a run's folder or of a file into a network; returns the digest of what was copied.

    A tensor is copied if the network has one of its name and shape. All others are logged, and missing ones keep their
    initial value. ``source`` is the folder of a run (its newest intact checkpoint), a file of ``torch.save`` or a
    ``.safetensors``.
    """
    saved, mine = read(Path(source)), model.state_dict()
    fitting = {k: v for k, v in saved.items() if k in mine and v.shape == mine[k].shape}
    if not fitting:
        raise ValueError(
            f"{source} has no weights that fit this network: it contains {_some(saved)}, but the network has "
            f"{_some(mine)}. Use the --model they were made for, or another --init."
        )
    if skipped := [k for k in saved if k not in fitting]:
        log.warning("%s: not in this network, or with another shape: %s.", source, _some(skipped))
    # Modules without parameters, such as the range of a quantised activation, start from scratch and are not logged.
    learned = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    if missing := [k for k in mine if k not in fitting and k.rpartition(".")[0] in learned]:
        log.warning("%s: missing, so they keep their initial values: %s.", source, _some(missing))
    for name, value in fitting.items():
        if odd := _odd(value, mine[name]):
            raise ValueError(f"{source}: {name} is {odd}. Give --init weights that are stored as ordinary numbers.")
    for name, value in fitting.items():
        mine[name].copy_(value)
    return sha256(fitting)


def read(path: Path) -> dict[str, Tensor]:
    """The named tensors of a run's folder or of a file; a ValueError if it cannot be read or there are none."""
    try:
        content = _folder(path) if path.is_dir() else _file(path)
    except ImportError:
        raise ValueError(f"{path} needs safetensors, which is not installed: pip install safetensors.") from None
    except Exception as error:  # a foreign file may cause any exception
        why = checkpoint.brief(error)
        raise ValueError(
            f"The weights in {path} cannot be read: {why}. Give --init the folder of a run, or a file of torch.save "
            "or safetensors that contains only named tensors."
        ) from error
    inner = next((content[k] for k in KEYS if isinstance(content.get(k), dict)), content)
    tensors = {str(k): v for k, v in inner.items() if isinstance(v, Tensor)}
    if not tensors:
        raise ValueError(f"{path} holds no named tensors. Give --init a file that does, or the folder of a run.")
    if all(k.startswith("module.") for k in tensors):  # saved from inside DistributedDataParallel
        tensors = {k.removeprefix("module."): v for k, v in tensors.items()}
    return tensors


def _odd(value: Tensor, mine: Tensor) -> str:
    """Why a tensor cannot be copied without loss into a weight or buffer; empty if it can."""
    if value.is_meta:
        return "a meta tensor, without values"
    if value.is_quantized or value.layout != torch.strided:
        return "quantised" if value.is_quantized else f"stored as {str(value.layout).removeprefix('torch.')}"
    if value.is_complex() and not mine.is_complex():
        return "complex, and the network's is real"
    if mine.is_floating_point() and not value.is_floating_point():
        return f"of type {str(value.dtype).removeprefix('torch.')}, and the network's is a real number"
    return ""


def _folder(path: Path) -> dict[str, Any]:
    saved = checkpoint.load(path)
    if saved is None:
        if (path / "result.json").exists() and (files := snapshots.available(path)):  # a run with --keep weights
            return files[-1].load()
        raise FileNotFoundError("it has no intact checkpoint")
    if not (path / "result.json").exists():
        log.warning("The run in %s has not ended; its last checkpoint is used.", path)
    return {"model": kept.of_run(saved)}


def _file(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    content = torch.load(path, map_location="cpu", weights_only=True)
    return content if isinstance(content, dict) else {}


def sha256(tensors: Mapping[str, Tensor]) -> str:
    """A digest of named tensors, bit for bit."""
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _some(names: Any) -> str:
    first = list(names)
    more = f" and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
    return ", ".join(first[:SHOWN]) + more
