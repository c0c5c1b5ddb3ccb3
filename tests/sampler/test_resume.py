"""An interrupted epoch: a saved state or a copy continues it bit for bit, with any number of processes."""

import copy
import dataclasses
import itertools
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from ausam import (
    POLICIES,
    UCB,
    AUSampling,
    EpsilonGreedy,
    Feedback,
    Full,
    Indexed,
    InfoBatch,
    Random,
    Repeated,
    SelectiveBatchSampler,
    SelectiveStream,
    Trusted,
    Weighted,
)
from tests.helpers import (
    Elsewhere,
    assert_equal,
    feedback,
    few_or_many,
    moved,
    policy_for,
    property_test,
    refused,
    through_a_file,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*sampler.weight was never called")

N = 97
EVERY = [
    *(policy_for(name, N) for name in POLICIES if name not in ("AUSampling", "Random", "Weighted")),
    AUSampling(0.5, ramp=0),
    AUSampling(0.4, ramp=0, unbiased=True),
    AUSampling(0.4, ramp=0, trim=0.7, mix=0.2, score="progress"),
    EpsilonGreedy(0.5, 0.3, period=3),
    Random(0.3),
    Repeated(0.4, "reduced"),
    UCB(0.4, period=2),
    Weighted(0.5),
]


def new(policy, size=7, **more):
    return SelectiveBatchSampler(N, size, policy, **{"seed": 3, **more})


def go(sampler, batches):
    """Train on so many batches, with an epoch after another: what was handed out, with its weights."""
    seen = []
    while len(seen) < batches:
        for index in sampler:
            weight = sampler.weight(torch.tensor(index))
            seen.append((index, None if weight is None else weight.tolist()))
            sampler.update(feedback(index, sampler.epoch - 1))
            if len(seen) == batches:
                break
    return seen


@pytest.mark.parametrize("policy", EVERY, ids=repr)
@pytest.mark.parametrize("points", few_or_many(5, 30))
def test_an_epoch_continues_wherever_it_was_interrupted(policy, points):
    whole = new(policy, min_batch=5)
    expected = go(whole, 50)
    saving, states = new(policy, min_batch=5), []
    while len(states) < 30:
        for index in saving:
            saving.update(feedback(index, saving.epoch - 1))
            states.append(through_a_file(saving.state_dict()))
    for done, state in list(enumerate(states, start=1))[:: len(states) // points]:
        resumed = new(policy, seed=99, min_batch=5)
        resumed.load_state_dict(state)
        more = 50 - done if done % 5 == 0 else min(16, 50 - done)  # an epoch has at most 14
        assert go(resumed, more) == expected[done : done + more], done
        if done + more == 50:
            assert_equal(resumed.state_dict(), whole.state_dict())


@property_test(60)
@given(
    policy=st.sampled_from(EVERY),
    done=st.integers(0, 20),
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    least=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_another_number_of_processes_or_min_batch_continues_without_loss(policy, done, worlds, least):
    """Every sample of the epoch once, whoever consumes it; where the cut is the same, the same batches."""

    def ranks(world, min_batch):
        places = [{} if world == 1 else {"rank": r, "world_size": world} for r in range(world)]
        return [new(policy, 6 // world, min_batch=min_batch, **place) for place in places]

    before, after = ranks(worlds[0], least[0]), ranks(worlds[1], least[1])
    everything = list(itertools.chain(*list(new(policy, 6))))
    passes = [iter(s) for s in before]
    done = min(done, len(before[0]) - 1)
    used = [[next(p) for p in passes] for _ in range(done)]
    # Nothing was fed back, so what was handed out counts, in all processes alike.
    states = [through_a_file(s.state_dict()) for s in before]
    for state in states[1:]:
        assert_equal(state, states[0])
    for s in after:
        s.load_state_dict(states[0])
    left = len(everything) - sum(len(b) for shares in used for b in shares)
    if left < worlds[1] * least[1]:
        with pytest.raises(ValueError, match="left of epoch 0, but"):
            len(after[0])
        return
    assert {len(s) for s in after} == {len(after[0])}
    rest = list(zip(*(list(s) for s in after), strict=True))
    assert min(len(b) for shares in rest for b in shares) >= least[1]
    assert sorted(i for shares in (*used, *rest) for b in shares for i in b) == sorted(everything)
    if worlds[0] == worlds[1] and least[0] == least[1]:
        undisturbed = list(zip(*(list(s) for s in ranks(worlds[0], least[0])), strict=True))
        assert [tuple(b) for b in used] + rest == undisturbed


class Rows:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return i


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("policy", [AUSampling(0.5, ramp=0, unbiased=True), InfoBatch(0.5)], ids=repr)
@pytest.mark.parametrize("consumed", [0, 1, 3])
def test_batches_that_workers_asked_for_in_advance_come_again(policy, consumed):
    expected = go(new(policy), 40)
    whole = new(policy)
    first = len(whole)
    go(whole, first)
    loader = DataLoader(Indexed(Rows()), batch_sampler=whole, num_workers=2, prefetch_factor=3)
    batches = iter(loader)  # asks for six batches at once
    for _ in range(consumed):
        _, index = next(batches)
        whole.update(feedback(index.tolist(), 1))
    assert whole._current.handed_out >= 6 * 3
    state = through_a_file(whole.state_dict())
    del batches
    resumed = new(policy)
    resumed.load_state_dict(state)
    assert go(resumed, 40 - first - consumed) == expected[first + consumed :]


def test_a_saved_epoch_takes_four_bytes_per_sample():
    sampler = SelectiveBatchSampler(10_000, 10, AUSampling(0.5, ramp=0))
    sampler.update(feedback(range(10_000), 0))
    sampler.set_epoch(1)
    sampler.update(feedback(next(iter(sampler)), 1))
    plan = sampler.state_dict()["plan"]
    assert (plan["index"].dtype, len(plan["index"]), plan["done"], plan["weight"]) == (torch.int32, 4995, 5, None)


def test_the_rest_of_a_saved_epoch_is_used_as_it_was_planned():
    sampler, expected = new(Random(0.5)), list(new(Random(0.5)))
    sampler.update(feedback(next(iter(sampler)), 0))
    other = new(Random(0.3))
    other.load_state_dict(through_a_file(sampler.state_dict()))
    assert list(other) == expected[1:]
    assert {len(b) for b in list(other)[:-1]} == {2}  # from then on by its own policy


def test_too_few_samples_left_for_a_larger_min_batch():
    sampler = new(Full())
    for index in itertools.islice(iter(sampler), 13):
        sampler.update(feedback(index, 0))
    other = new(Full(), min_batch=7)
    other.load_state_dict(sampler.state_dict())
    with refused(ValueError, "6 samples are left of epoch 0", "7 are needed", "min_batch=7", "set_epoch"):
        next(iter(other))
    other.set_epoch(1)  # the remedy
    assert len(other) == 13


# -- states ------------------------------------------------------------------------------------------------------------


def in_mid_epoch(policy, seed=3):
    """A sampler in its second epoch, after one of its batches, and the iterator."""
    sampler = new(policy, seed=seed)
    for index in sampler:
        sampler.update(feedback(index))
    batches = iter(sampler)
    sampler.update(feedback(next(batches)))
    return sampler, batches


@pytest.mark.parametrize(
    ("state", "parts"),
    [
        (None, ("not the state of a sampler", "start again")),
        ({"epoch": 3}, ("not the state of a sampler", "start again")),
        (in_mid_epoch(Full())[0].state_dict(), ("policy Full", "has AUSampling", "policy of the saved run")),
        (in_mid_epoch(AUSampling(ema=0.9, ramp=0))[0].state_dict(), ("decay 0.9", "1.0", "policy of the saved run")),
        (SelectiveBatchSampler(9, 2, AUSampling(ramp=0)).state_dict(), ("9 samples", "97", "dataset of the saved run")),
    ],
    ids=["nothing", "something else", "policy", "decay", "size"],
)
def test_a_state_of_another_kind_size_or_policy_is_refused_and_changes_nothing(state, parts):
    sampler, _ = in_mid_epoch(AUSampling(0.5, ramp=0))
    before = sampler.state_dict()
    with refused(ValueError, *parts):
        sampler.load_state_dict(state)
    assert_equal(sampler.state_dict(), before)
    stream = SelectiveStream([(i, i) for i in range(N)], float, new(AUSampling(0.5, ramp=0)))
    before = stream.state_dict()
    with refused(ValueError, *parts):
        stream.load_state_dict({**before, "sampler": state, "epoch": 7})
    assert_equal(stream.state_dict(), before)


@pytest.mark.parametrize("policy", EVERY, ids=lambda p: type(p).__name__)
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
    sampler = new(Full(), rank=0, world_size=2)
    assert sampler.state_dict()["epoch"] == 0
    sampler.update(feedback([1, 2]))
    with refused(RuntimeError, "sampler.exchange() in every process", "any of them"):
        sampler.state_dict()


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


def test_what_a_policy_derived_with_numpy_can_be_saved():
    @dataclasses.dataclass(frozen=True)
    class Own(Random):
        def fit(self, scores, epoch):
            return tuple(scores.mean.double().numpy()[:2])

    sampler = new(Own())
    list(sampler)
    assert [type(x) for x in through_a_file(sampler.state_dict())["scores"]["fit"]] == [float, float]
