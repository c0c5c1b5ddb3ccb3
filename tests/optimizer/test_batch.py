"""Methods that use parts of a batch cut everything that has one entry per sample, or refuse it."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.optim import SGD

from ausam import ESAM, KSAM, SAM, SharpnessAware
from ausam.common.rows import samples_in, select_rows

N = 12
ROWS = torch.tensor([2, 0])
Pair = namedtuple("Pair", ["x", "y"])


@dataclass(frozen=True)
class Fields:
    x: object
    name: str = "fields"


@dataclass
class Counted:
    x: object
    n: int = field(init=False)

    def __post_init__(self):
        self.n = len(self.x)


class Own:
    """A user's own sequence."""

    def __init__(self, entries):
        self.entries = entries

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, i):
        return self.entries[i]


class Cuttable(Own):
    def select_rows(self, rows):
        return Cuttable([self.entries[i] for i in rows.tolist()])


def gradient(method, wrap, label):
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    x, y = torch.randn(N, 8), torch.randint(3, (N,))
    opt = SharpnessAware(SGD(model.parameters(), lr=0.1), method, model)

    def losses(x, targets):
        return torch.stack([F.cross_entropy(z, label(t)) for z, t in zip(model(x), targets, strict=True)])

    opt.backward(losses, x, wrap(y))
    return model.weight.grad


@pytest.mark.parametrize(
    "method", [SAM(0.1, m=4), SAM(0.1, ascent=0.5), ESAM(0.1), KSAM(0.1)], ids=["m", "ascent", "ESAM", "KSAM"]
)
@pytest.mark.parametrize(
    ("wrap", "label"),
    [
        (lambda y: [{"label": t, "boxes": torch.zeros(int(t) + 1, 4)} for t in y], lambda t: t["label"]),
        (lambda y: tuple(Fields(t) for t in y), lambda t: t.x),
        (lambda y: list(y), lambda t: t),
        (lambda y: Cuttable(list(y)), lambda t: t),
        (lambda y: y.numpy(), torch.tensor),
    ],
    ids=["dicts", "dataclasses", "scalars", "own", "numpy"],
)
def test_sequences_of_targets_are_cut_with_the_inputs(method, wrap, label):
    assert torch.equal(gradient(method, wrap, label), gradient(method, lambda y: y, lambda t: t))


def test_containers_keep_their_kind():
    x, y = torch.arange(6.0).view(3, 2), torch.tensor([5, 6, 7])
    batch = (
        Pair(x, y),
        {"x": x, "names": ["a", "b", "c"]},
        OrderedDict(x=x),
        UserDict(x=x),
        Fields([x, y, y, 1]),
        [x, y],
        Counted(x),
    )
    pair, plain, ordered, user, fields, both, counted = select_rows(batch, ROWS, 3)
    assert (len(counted.x), counted.n) == (2, 2)
    assert isinstance(pair, Pair)
    assert torch.equal(pair.x, x[ROWS])
    assert plain["names"] == ["c", "a"]
    assert isinstance(ordered, OrderedDict)
    assert isinstance(user, UserDict)
    assert len(user["x"]) == len(ordered["x"]) == 2
    assert [len(t) for t in fields.x[:3]] == [2, 2, 2]
    assert [len(t) for t in both] == [2, 2]
    assert len(batch[4].x[0]) == len(batch[3]["x"]) == 3  # the user's own are left as they were


@pytest.mark.parametrize(
    "whole", [None, "abc", 3, torch.ones(5), [1, 2], np.float32(2.0), nn.ModuleList([nn.ReLU()] * 3)]
)
def test_what_does_not_have_one_entry_per_sample_is_passed_whole(whole):
    (part,) = select_rows((whole,), ROWS, 3)
    assert part is whole or part == whole or torch.equal(part, whole)


def test_a_pair_in_a_batch_of_two_is_a_pair_if_its_tensors_differ():
    x, y = torch.randn(2, 4), torch.tensor([0, 1])
    ((a, b),) = select_rows(((x, y),), torch.tensor([1]), 2)
    assert torch.equal(a, x[1:])
    assert b.tolist() == [1]


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        ((Own([1, 2, 3]),), "select_rows(rows)"),
        (({1, 2, 3},), "select_rows(rows)"),
        ((pack_sequence([torch.ones(3), torch.ones(2), torch.ones(1)]),), "pad_sequence"),
        (([torch.ones(3)] * 3,), "one by one"),
    ],
)
def test_what_has_an_entry_per_sample_and_cannot_be_cut_is_refused(batch, remedy):
    with pytest.raises(TypeError, match="parts of the batch") as error:
        select_rows(batch, ROWS, 3)
    assert remedy in str(error.value)


def test_the_number_of_samples_is_that_of_the_tensors_outside_lists():
    targets = [{"boxes": torch.zeros(k, 4)} for k in (1, 2, 5)]
    assert samples_in((torch.zeros(3, 8), targets)) == 3
    assert samples_in(({"x": torch.zeros(3, 8)}, Fields(torch.zeros(3)), [torch.zeros(7)])) == 3
    assert samples_in(([torch.zeros(3), torch.zeros(3, 2)],)) == 3
    with pytest.raises(ValueError, match="Pass index="):
        samples_in((torch.zeros(3), torch.zeros(4)))
