"""Weights to start from: matched by name and shape, never executed; and their digest."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ausam_lab.training import checkpoint
from ausam_lab.training.evaluated_weights import available, final_weights, load_weights

log = logging.getLogger("ausam")

KEYS = ("state_dict", "model", "model_state_dict")  # of the weights in a file that holds more
SHOWN = 5  # names in a message


def start_from(model: nn.Module, source: str) -> str:
    """Copy the weights of a run's folder or of a file into a network; returns the digest of what was copied.

    A tensor is copied if the network has one of its name and shape. All others are logged, and missing ones keep their
    initial value. ``source`` is the folder of a run, a file of ``torch.save`` or a ``.safetensors``.
    """
    saved, mine = read(Path(source)), model.state_dict()
    fitting = {k: v for k, v in saved.items() if k in mine and v.shape == mine[k].shape}
    if not fitting:
        raise ValueError(
            f"{source} has no weights that fit this network: it contains {_some(saved)}, but the network has "
            f"{_some(mine)}. Use the --model they were made for, or another --init."
        )
    try:
        missing = model.load_state_dict(fitting, strict=False).missing_keys
    except RuntimeError as error:  # sparse, quantised or meta tensors
        raise ValueError(f"{source} cannot be copied into this network: {error}") from error
    if unused := saved.keys() - fitting.keys():
        log.warning("%s: not in this network, or with another shape: %s.", source, _some(sorted(unused)))
    # Modules without parameters, such as the range of a quantised activation, start from scratch and are not logged.
    learned = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    if kept := [name for name in missing if name.rpartition(".")[0] in learned]:
        log.warning("%s: missing, so they keep their initial values: %s.", source, _some(kept))
    return sha256(fitting)


def read(path: Path) -> dict[str, Tensor]:
    """The named tensors of a run's folder or of a file; a ValueError if it cannot be read or there are none."""
    if path.is_dir():
        return _of_run(path)
    try:
        content: Any = _safetensors(path) if path.suffix == ".safetensors" else checkpoint.read(path)
    except ValueError as error:
        raise ValueError(
            f"The weights in {path} cannot be read: {error}. Give --init the folder of a run, or a file of torch.save "
            "or safetensors that contains only named tensors."
        ) from error
    content = content if isinstance(content, dict) else {}
    inner: Any = next((content[k] for k in KEYS if isinstance(content.get(k), dict)), content)
    tensors = {str(k): v for k, v in inner.items() if isinstance(v, Tensor)}
    if not tensors:
        raise ValueError(f"{path} holds no named tensors. Give --init a file that does, or the folder of a run.")
    if all(k.startswith("module.") for k in tensors):  # saved from inside DistributedDataParallel
        tensors = {k.removeprefix("module."): v for k, v in tensors.items()}
    return tensors


def _of_run(folder: Path) -> dict[str, Tensor]:
    saved = checkpoint.load(folder)
    if saved is not None:
        if not (folder / "result.json").exists():
            log.warning("The run in %s has not ended; its last checkpoint is used.", folder)
        return final_weights(saved)
    if (folder / "result.json").exists() and (files := available(folder)):  # a run with --keep weights
        return load_weights(files[max(files)])
    raise ValueError(f"The weights in {folder} cannot be read: it has no intact checkpoint. Give --init another run.")


def _safetensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError("there is no such file")
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise ValueError("it needs the package safetensors: pip install safetensors") from None
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"it is damaged ({error})") from error


def sha256(tensors: Mapping[str, Tensor]) -> str:
    """A digest of named tensors, bit for bit."""
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _some(names: Collection[str]) -> str:
    first = [name.encode("unicode_escape").decode() for name in names]  # no escape sequence reaches a terminal or a log
    more = f" and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
    return ", ".join(first[:SHOWN]) + more
