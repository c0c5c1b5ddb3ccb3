"""ClassBalanced: its odds against exact inclusion probabilities, and what it refuses."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from ausam import ClassBalanced, Scores, SelectiveBatchSampler
from ausam.common.random import generator
from tests.helpers import refused
from tests.sampler.test_sampler import inclusion


@pytest.mark.parametrize("k", [1, 2, 4])
def test_samples_are_drawn_with_odds_of_their_class(k):
    labels = [0, 0, 0, 0, 1, 1, 2]
    draws, n = 20_000, len(labels)
    policy = ClassBalanced(labels, (k + 0.5) / n)
    rows = torch.arange(n).expand(draws, n)
    kept, weight = policy.choose(Scores(n), 0, rows, generator(5))
    assert weight is None
    assert kept.shape == (draws, k)
    frequency = np.bincount(kept.flatten().numpy(), minlength=n) / draws
    for i, p in enumerate(inclusion([1 / labels.count(y) for y in labels], k)):
        assert abs(frequency[i] - p) < 4 * math.sqrt(p * (1 - p) / draws), i


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.uint8)])
def test_labels_of_any_kind(kind):
    plain = [0, 1, 1, 5]
    policy = ClassBalanced(kind(plain), alpha=0.25)
    assert policy.labels.tolist() == plain
    assert policy.labels.dtype == torch.int64
    assert repr(policy) == "ClassBalanced(alpha=0.25)"
    assert policy == ClassBalanced(plain, 0.25) != ClassBalanced(plain, 0.5)
    rows = torch.arange(4)[None]
    kept = policy.choose(Scores(4), 0, rows, generator(0))[0]
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert torch.equal(other.choose(Scores(4), 0, rows, generator(0))[0], kept)


@pytest.mark.parametrize("labels", [None, 3, [], [0.5, 1.0], [[0, 1]], ["cat", "dog"], torch.rand(3)], ids=repr)
def test_what_are_no_classes_is_refused(labels):
    with refused(ValueError, "ClassBalanced: labels has shape", "one whole number per sample"):
        ClassBalanced(labels)


def test_other_refusals():
    with refused(ValueError, "labels contain -1", "from 0"):
        ClassBalanced([0, -1])
    with refused(ValueError, "3 labels, but the dataset has 4 samples", "in the order of the dataset"):
        next(iter(SelectiveBatchSampler(4, 2, ClassBalanced([0, 1, 2]))))
