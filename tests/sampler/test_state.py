"""Saved states: damaged ones change nothing, copies continue, one process can save; and what the sampler answers."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ausam import (
    UCB,
    AUSampling,
    Feedback,
    Full,
    Indexed,
    InfoBatch,
    Repeated,
    SelectiveBatchSampler,
    SelectiveStream,
    Trusted,
    Weighted,
)
from tests.helpers import Elsewhere, assert_equal, feedback, moved, refused

N = 30


def in_mid_epoch(policy, seed=3):
    """A sampler in its second epoch, after one of its batches, and the iterator."""
    sampler = SelectiveBatchSampler(N, 5, policy, seed=seed)
    for index in sampler:
        sampler.update(feedback(index))
    batches = iter(sampler)
    sampler.update(feedback(next(batches)))
    return sampler, batches


def changed(path, value):
    """A damage: another value, or a function of the old one."""

    def change(state):
        *folders, name = path.split(".")
        for folder in folders:
            state = state[folder]
        state[name] = value(state[name]) if callable(value) else value

    return change


def removed(path):
    """A damage: a missing entry."""

    def change(state):
        *folders, name = path.split(".")
        for folder in folders:
            state = state[folder]
        del state[name]

    return change


def entry(value):
    """The same tensor with another first entry."""

    def change(column):
        column = column.clone()
        column[0] = value
        return column

    return change


DAMAGED = [
    *(removed(p) for p in ("seed", "signal", "epoch", "updated", "picked", "picks", "scores", "plan", "choice")),
    *(removed(p) for p in ("scores.sum", "scores.count", "scores.last", "scores.decay", "plan.done", "plan.index")),
    *(changed(p, v) for p in ("seed", "epoch", "picked", "picks") for v in ("x", None, -1, 1.5, True)),
    *(changed("updated", v) for v in (1, None)),
    changed("signal", 3),
    changed("scores.fit", "x"),
    changed("scores.fit_epoch", None),
    changed("scores", []),
    changed("scores.last", lambda c: c[:5]),
    changed("scores.count", lambda c: c[:5]),
    changed("scores.sum", lambda c: c[:, None]),
    changed("scores.sum", list),
    changed("scores.count", lambda c: c.float()),
    changed("scores.count", entry(-3)),
    changed("scores.sum", entry(math.nan)),
    changed("scores.sum", entry(-math.inf)),
    changed("scores.last", entry(math.inf)),
    *(changed(f"plan.{p}", v) for p in ("epoch", "seed", "samples", "size", "kept", "total") for v in ("x", -1, None)),
    changed("plan.samples", N + 1),
    changed("plan.done", 10_000),
    changed("plan.total", 10**12),
    changed("plan.total", lambda total: total + 1),
    changed("plan.index", lambda c: c[:-1]),
    *(changed(f"scores.{p}", lambda c: c.to("meta")) for p in ("sum", "count", "last")),
    *(changed(f"scores.{p}", lambda c: c.to_sparse()) for p in ("sum", "count", "last")),
    changed("plan.scope", "row"),
    changed("plan.shuffle", 2),
    changed("plan.index", entry(500)),
    changed("plan.index", entry(-1)),
    changed("plan.index", lambda c: torch.cat([c, c])),
    changed("plan.index", lambda c: c.float()),
    changed("plan", 3),
    changed("choice", {"mask": 1}),
]
OF_A_CHOICE = [
    changed("choice", None),
    changed("choice.mask", lambda c: c[:4]),
    changed("choice.mask", lambda c: c.int()),
    changed("choice.order_id", "x"),
    changed("scores.spread", entry(math.nan)),
    changed("scores.spread", lambda c: c[:4]),
]


@pytest.mark.parametrize(
    "policy", [AUSampling(0.5, ramp=0), UCB(0.5, period=2), Repeated(0.5)], ids=lambda p: type(p).__name__
)
def test_a_damaged_state_is_refused_and_changes_nothing(policy):
    saved = in_mid_epoch(policy)[0].state_dict()
    sampler, _ = in_mid_epoch(policy, seed=8)
    before = sampler.state_dict()
    for damage in DAMAGED + (OF_A_CHOICE if policy.scope == "epoch" else []):
        state = copy.deepcopy(saved)
        damage(state)
        with pytest.raises(ValueError, match="saved"):
            sampler.load_state_dict(state)
        assert_equal(sampler.state_dict(), before)
    for nothing in (None, [], 3):
        with refused(ValueError, "the state is a", "start again"):
            sampler.load_state_dict(nothing)
    sampler.load_state_dict(saved)
    assert_equal(sampler.state_dict(), saved)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("policy", [AUSampling(0.5, ramp=0), UCB(0.5, period=2), Repeated(0.8)])
def test_a_pass_that_was_cut_short_ends_with_a_sentence(policy):
    state = in_mid_epoch(policy)[0].state_dict()
    state["plan"]["index"] = state["plan"]["index"][:-1]
    sampler = SelectiveBatchSampler(N, 5, policy)
    sampler.load_state_dict(state)  # the block is damaged, and the others are not planned yet
    with refused(ValueError, "cannot be loaded", "ends before"):
        list(sampler)


def test_a_damaged_state_of_a_stream_is_refused_and_changes_nothing():
    def stream():
        sampler = SelectiveBatchSampler(N, 5, AUSampling(0.5, ramp=30), seed=3)
        return SelectiveStream([(i, i) for i in range(N)], lambda raw: (float(raw), 0), sampler)

    a, b = stream(), stream()
    for _, _, index in a:
        a.update(feedback(index))
    before = b.state_dict()
    damages = [removed("sampler"), removed("epoch"), removed("done"), removed("sampler.seed")]
    damages += [changed("epoch", "x"), changed("done", 3), changed("done", [-1]), changed("sampler.scores.sum", [])]
    for damage in damages:
        state = copy.deepcopy(a.state_dict())
        damage(state)
        with pytest.raises(ValueError, match="saved"):
            b.load_state_dict(state)
        assert_equal(b.state_dict(), before)


POLICIES = [Full(), AUSampling(0.5, ramp=0, unbiased=True), InfoBatch(), UCB(0.5, period=2), Repeated(0.5), Weighted()]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_continues_the_epoch(policy, how):
    sampler, batches = in_mid_epoch(policy)
    again = copy.deepcopy(sampler) if how == "deepcopy" else pickle.loads(pickle.dumps(sampler))
    assert_equal(again.state_dict(), sampler.state_dict())
    for _ in range(2):  # the rest of this epoch, and the next
        mine, theirs = [], []
        for one, which, index in ((sampler, mine, batches), (again, theirs, iter(again))):
            for batch in index:
                which.append(batch)
                one.update(feedback(batch))
        assert mine == theirs
        batches = iter(sampler)


def test_a_new_for_after_a_broken_one_begins_the_next_epoch():
    sampler, _ = in_mid_epoch(Full())
    assert sampler.epoch == 2
    assert sum(map(len, sampler)) == N
    assert sampler.epoch == 3


def test_one_of_several_processes_cannot_save_what_the_others_do_not_have():
    sampler = SelectiveBatchSampler(N, 5, Full(), rank=0, world_size=2)
    assert sampler.state_dict()["epoch"] == 0
    sampler.update(feedback([1, 2]))
    with refused(RuntimeError, "sampler.exchange() in every process", "any of them"):
        sampler.state_dict()


def test_the_sampler_says_what_it_is():
    text = repr(in_mid_epoch(AUSampling(0.5, ramp=0))[0])
    for part in ("30 samples", "batch_size=5", "AUSampling(alpha=0.5", "seed=3", "next epoch 2", "30 samples have a"):
        assert part in text
    assert "rank 1 of 2" in repr(SelectiveBatchSampler(N, 5, Full(), rank=1, world_size=2))


def test_a_batch_sampler_is_not_a_sampler():
    data = Indexed(TensorDataset(torch.arange(N)))
    for arguments in ({"batch_size": 8}, {}):
        with refused(TypeError, "DataLoader(sampler=...)", "batch_sampler=sampler"):
            list(DataLoader(data, sampler=SelectiveBatchSampler(data, 5, Full()), **arguments))


def test_what_has_no_length_is_not_a_dataset():
    class Source(IterableDataset):
        def __iter__(self):
            yield 1

    for source in (Source(), iter([1, 2])):
        with refused(TypeError, "no random access", "SelectiveStream", "sampler.pick(index)"):
            SelectiveBatchSampler(source, 5, Full())
    assert len(SelectiveBatchSampler(torch.tensor(10), 5, Full())) == 2


def test_wrong_objects_get_a_sentence():
    sampler, _ = in_mid_epoch(AUSampling(0.5, ramp=0, unbiased=True))
    with refused(TypeError, "not a list", "opt.backward"):
        sampler.update([0.5])
    with refused(ValueError, "no index", "Indexed(dataset)", "index=index"):
        sampler.update(Feedback(None, torch.ones(2), torch.ones(2)))
    with refused(TypeError, "loss", "is a list", "tensor"):
        sampler.update(Feedback(torch.arange(2), [1.0, 2.0], torch.ones(2)))
    assert torch.equal(sampler.weight([1, 2]), sampler.weight(torch.tensor([1, 2])))
    with refused(TypeError, "index is 'a'", "indices of one batch"):
        sampler.weight("a")
    with refused(ValueError, "outside the dataset of 30", "from 0 to 29"):
        sampler.weight([30])
    with refused(TypeError, "keys is a list", "enumerate(names)"):
        SelectiveStream([(0, 0)], int, SelectiveBatchSampler(1, 1, Full()), keys=[])


@pytest.mark.parametrize("policy", [AUSampling(0.5, ramp=1), InfoBatch(), Weighted(0.5), Trusted(torch.arange(40) % 2)])
def test_a_state_that_was_loaded_onto_another_device_comes_back(policy):
    """``torch.load(file, map_location=device)`` moves the tensors of the sampler, too."""

    def batches(sampler, stop=None):
        seen = []
        for index in itertools.islice(sampler, stop):
            loss = torch.sin(torch.tensor(index) * 1.7) ** 2
            sampler.update(Feedback(torch.tensor(index), loss, 2 * loss))
            seen.append(index)
        return seen

    whole, first, second = (SelectiveBatchSampler(40, 8, policy, epochs=4) for _ in range(3))
    expected = [batches(whole) for _ in range(3)]
    assert [batches(first), begun := batches(first, 2)] == [expected[0], expected[1][:2]]
    second.load_state_dict(moved(first.state_dict()))
    assert begun + batches(second) == expected[1]
    assert batches(second) == expected[2]
    for tensor in tree_leaves(second.state_dict()):
        assert not isinstance(tensor, Elsewhere)
