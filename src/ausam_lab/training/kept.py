"""The weights that a run is judged by: its own, their moving average, or those of its best epoch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ausam_lab.records.run import Score
from ausam_lab.training.checkpoint import Checkpoint

PREFIX = "module."  # of AveragedModel's names


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


def of_epoch(model: dict[str, Tensor], average: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """The weights that an epoch was evaluated with: those of its average, if there is one."""
    if average is None:
        return model
    return {name.removeprefix(PREFIX): value for name, value in average.items() if name.startswith(PREFIX)}


def of_run(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights that the run of a checkpoint is judged by, as far as it has come."""
    if checkpoint.best is None:
        return of_epoch(checkpoint.model, checkpoint.average)
    weights: dict[str, Tensor] = checkpoint.best["model"]
    return weights
