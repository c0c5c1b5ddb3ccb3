"""Changes to the samples of any data set: hold out, reduce, long tail, wrong labels, corrected labels.

:func:`arrange` applies them in this order. Validation samples are held out first, so that they are clean and do not
depend on the other settings. Corrections come last, so that they count whatever a run did to the labels before.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from ausam.audit.review import read_labels
from ausam.common.random import generator
from ausam_lab.config import Config
from ausam_lab.data.problem import Problem

P = TypeVar("P", bound=Problem)


def arrange(data: P, config: Config) -> P:
    """Labelled data with the changes that a run specifies."""
    seed = config.data_seed or 0
    data = with_validation(data, config.validation, seed)
    data = with_sizes(data, config.train_size, config.test_size, seed)
    data = with_label_noise(with_imbalance(data, config.imbalance, seed), config.label_noise, seed)
    return with_corrections(data, config.labels)


def with_validation(data: P, part: float, seed: int = 0) -> P:
    """Hold out ``round(part * n)`` of the n training samples of each class. They replace the test set.

    Every class keeps at least one training sample. Without classes, random samples are held out.
    """
    if not part:
        return data
    kept, held = _stratified(data, part, "validation", generator(seed, len(data.train_y), 0x7A1))
    return data.training_as_test().part(kept, held).changed(evaluated_on="validation")


def split_for_selection(data: P, part: float, seed: int) -> tuple[P, P | None]:
    """The data without a fraction of each class, and a problem whose test samples are that fraction. None for 0.

    Its labels stay as they are, wrong ones included: whoever trains has no others.
    """
    if not part:
        return data, None
    if data.train_y.dim() != 1:
        raise ValueError(
            f"select_epoch is {part}, but {data.name} has no classes, and samples that resemble each other would be on "
            "both sides. Leave out --select-epoch."
        )
    kept, held = _stratified(data, part, "select_epoch", generator(seed, len(data.train_y), 0x5E1))
    rest, chooser = data.part(kept), data.training_as_test().part(kept, held)
    wrong = None if data.wrong is None else data.wrong[kept]
    return rest.changed(wrong=wrong), chooser.changed(wrong=wrong, evaluated_on="validation")


def _stratified(data: Problem, part: float, setting: str, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions of the training samples that stay, and of ``round(part * n)`` of the n of each class."""
    y = data.train_y.cpu() if data.train_y.dim() == 1 else torch.zeros(len(data.train_y), dtype=torch.int64)
    counts = torch.bincount(y)
    count = torch.minimum((part * counts.double()).round().long(), (counts - 1).clamp(min=0))
    held = _rank(y, torch.randperm(len(y), generator=rng)) < count[y]
    if not held.any():
        raise ValueError(
            f"{setting} is {part}, which holds out none of the {len(y):,} training samples of {data.name}. "
            "Use a larger fraction."
        )
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def with_imbalance(data: P, ratio: float, seed: int = 0) -> P:
    """An exponential long tail: class c of C keeps ``ratio ** (c / (C - 1))`` of its training samples."""
    if ratio in (0, 1):
        return data
    return data.part(long_tail(data.train_y, data.classes, ratio, seed)).changed(long_tailed=True)


def long_tail(y: Tensor, classes: int, ratio: float, seed: int = 0) -> Tensor:
    """Positions of the kept samples, ascending: of n_c samples max(1, round(n_c * ratio ** (c / (C - 1)))).

    The samples kept with a smaller ratio are a subset of those kept with a larger one.
    """
    counts = torch.bincount(y, minlength=classes).tolist()
    kept = torch.tensor([max(1, round(n * ratio ** (c / (classes - 1)))) for c, n in enumerate(counts)])
    rank = _rank(y, torch.randperm(len(y), generator=generator(seed, len(y), 0x7A11)))
    return (rank < kept[y]).nonzero().flatten()


def with_sizes(data: P, train: int, test: int, seed: int = 0) -> P:
    """A subset of the data with these sizes. 0 for all samples."""
    for which, size, y in (("train", train, data.train_y), ("test", test, data.test_y)):
        if not 0 <= size <= len(y):
            raise ValueError(
                f"{which}_size is {size}, but {data.name} has only {len(y):,} such samples. "
                f"Use 1 to {len(y)}, or 0 for all of them."
            )
    if not (train or test):
        return data
    return data.part(balanced(data.train_y, train, seed), balanced(data.test_y, test, seed))


def balanced(y: Tensor, size: int, seed: int = 0) -> Tensor:
    """Positions of ``size`` random samples, ascending, with the classes as balanced as possible. 0: all.

    If ``y`` does not contain classes, any random samples.
    """
    if size in (0, len(y)):
        return torch.arange(len(y))
    order = torch.randperm(len(y), generator=generator(seed, len(y), size))
    if y.dim() > 1:
        return order[:size].sort().values
    rank = _rank(y, order)
    # The first of every class, then the second of every class, and so on.
    return order[torch.argsort(rank[order], stable=True)][:size].sort().values


def _rank(y: Tensor, order: Tensor) -> Tensor:
    """For each sample, how many samples of its class come before it in this order."""
    by_class = order[torch.argsort(y[order], stable=True)]
    counts = torch.bincount(y)
    rank = torch.empty_like(order)
    rank[by_class] = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y[by_class]]
    return rank


def with_label_noise(data: P, part: float, seed: int = 0) -> P:
    """Give ``round(part * n)`` training samples a wrong label drawn uniformly."""
    if not part:
        return data
    n = len(data.train_y)
    rng = generator(seed, n, data.classes)
    chosen = torch.randperm(n, generator=rng)[: round(part * n)]
    shift = torch.randint(1, data.classes, (len(chosen),), generator=rng)
    y = data.train_y.clone()
    y[chosen] = (y[chosen] + shift) % data.classes
    wrong = torch.zeros(n, dtype=torch.bool)
    wrong[chosen] = True
    return data.changed(train_y=y, wrong=wrong)


def with_corrections(data: P, path: str) -> P:
    """Give training samples the labels of a file, and leave out those that it removes. An empty path changes nothing.

    The file has the index of a sample in the data set as it was loaded, so it serves every subset. Samples that are
    held out, or not in a subset, are skipped.
    """
    if not path:
        return data
    origin = data.origin.tolist()
    place = {index: i for i, index in enumerate(origin)}
    corrected, y = read_labels(path), data.train_y.clone()
    for index, label in corrected.items():
        if label >= data.classes:
            raise ValueError(
                f"{path}: sample {index} has label {label}, but {data.name} has the classes 0 to {data.classes - 1}. "
                "Is the file of another data set?"
            )
        if index in place and label >= 0:
            y[place[index]] = label
    if data.kept is None and not place.keys() >= corrected.keys():
        raise ValueError(f"{path} has samples that {data.name} does not have. Is the file of another data set?")
    stay = torch.tensor([corrected.get(index, 0) >= 0 for index in origin])
    wrong = None if data.wrong is None else (data.wrong & (y == data.train_y))[stay]  # what was changed is right
    return data.changed(train_y=y).part(stay.nonzero().flatten()).changed(wrong=wrong)
