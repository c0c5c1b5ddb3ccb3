"""The weights that a run is evaluated with (its own, their moving average, or those of its best epoch), and snapshots.

A checkpoint is removed once there are two newer ones. A snapshot (``--every N``, or ``--keep weights``) stays, and
holds weights alone: for ``ausam diagnose`` and ``--init``, not to resume from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ausam_lab.records.run import Score
from ausam_lab.training import checkpoint
from ausam_lab.training.checkpoint import Checkpoint

PREFIX = "module."  # of AveragedModel's names
SNAPSHOT = re.compile(r"snapshot-(\d{5,})\.pt")


@dataclass(frozen=True)
class Best:
    """The epoch with the best score so far on samples that are held out to select it, and its weights."""

    epoch: int
    value: float
    model: dict[str, Tensor]


def averaged(model: nn.Module, decay: float) -> AveragedModel | None:
    """The exponential moving average of the weights and the buffers, updated once a step; None without a decay.

    BatchNorm's statistics are averaged with the weights that they were measured at.
    """
    if not decay:
        return None
    ema = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=ema, use_buffers=True)


def better_of(best: Best | None, epoch: int, score: Score, model: nn.Module) -> Best:
    """The better of the best epoch so far and this one; of equal ones, the earlier."""
    sign = -1 if score.lower_is_better else 1
    if best is not None and sign * score.value <= sign * best.value:
        return best
    return Best(epoch, score.value, {name: value.detach().clone() for name, value in model.state_dict().items()})


def epoch_weights(model: dict[str, Tensor], average: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """The weights that an epoch was evaluated with: those of its average, if there is one."""
    if average is None:
        return model
    return {name.removeprefix(PREFIX): value for name, value in average.items() if name.startswith(PREFIX)}


def final_weights(saved: Checkpoint) -> dict[str, Tensor]:
    """The weights that the run of a checkpoint is evaluated with, as far as it has come."""
    if saved.best is None:
        return epoch_weights(saved.model, saved.average)
    weights: dict[str, Tensor] = saved.best["model"]
    return weights


def save_snapshot(folder: Path, epoch: int, weights: dict[str, Tensor]) -> None:
    """Keep the weights that an epoch was evaluated with."""
    checkpoint.write(folder / f"snapshot-{epoch:05d}.pt", {"model": weights})


def available(folder: Path) -> dict[int, Path]:
    """The files with the weights of an epoch, in order: snapshots, and checkpoints for the other epochs."""
    kinds = (checkpoint.NAME, checkpoint.newest_first(folder)), (SNAPSHOT, list(folder.glob("snapshot-*.pt")))
    found = {int(match[1]): path for name, paths in kinds for path in paths if (match := name.fullmatch(path.name))}
    return dict(sorted(found.items()))


def load_weights(path: Path) -> dict[str, Tensor]:
    """The weights in one of these files; a ValueError if it is damaged."""
    try:
        content = checkpoint.read(path)
        return epoch_weights(content["model"], content.get("average"))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}). Remove it; the others can still be measured.") from error


def discard_checkpoints(folder: Path, keep: str) -> None:
    """Remove what a finished run need not keep (all, weights or none); a second call changes nothing.

    "weights" turns the last checkpoint into a snapshot of the final weights, without the state of the optimizer. It is
    written before anything is removed.
    """
    if keep == "all":
        return
    if keep == "weights" and (saved := checkpoint.load(folder)) is not None:
        save_snapshot(folder, len(saved.epochs), final_weights(saved))
    for path in checkpoint.newest_first(folder):
        path.unlink(missing_ok=True)
