"""The pass under way: what a saved one holds, and that it continues bit for bit, in the middle of a block or not."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ausam import (
    UCB,
    AUSampling,
    ClassBalanced,
    EpsilonGreedy,
    Full,
    Indexed,
    InfoBatch,
    OrderDP,
    Random,
    Repeated,
    SelectiveBatchSampler,
    TopLoss,
    Uncertainty,
)
from tests.helpers import feedback, few_or_many, property_test, through_a_file

pytestmark = pytest.mark.usefixtures("small_blocks")

N = 97
POLICIES = [
    Full(),
    Random(0.3),
    Repeated(0.5),
    Repeated(0.4, "reduced"),
    AUSampling(0.5, ramp=0),
    AUSampling(0.4, ramp=0, unbiased=True),
    AUSampling(0.4, ramp=0, trim=0.7, mix=0.2, score="progress"),
    ClassBalanced(torch.arange(N) ** 2 % 11, 0.4),
    TopLoss(0.4),
    OrderDP(0.6, 0.5),
    InfoBatch(0.5),
    Uncertainty(0.5, 2),
    EpsilonGreedy(0.5, 0.3, period=3),
    UCB(0.4, period=2),
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


def same_scores(a, b):
    for column in ("sum", "count", "last"):
        torch.testing.assert_close(getattr(a.scores, column), getattr(b.scores, column), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("min_batch", few_or_many(5, 1))
@pytest.mark.parametrize("points", few_or_many(5, 30))
def test_a_pass_of_many_blocks_continues_wherever_it_was_interrupted(policy, min_batch, points):
    whole = new(policy, min_batch=min_batch)
    expected = go(whole, 50)
    saving, states = new(policy, min_batch=min_batch), []
    while len(states) < 30:
        for index in saving:
            saving.update(feedback(index, saving.epoch - 1))
            states.append(through_a_file(saving.state_dict()))
    for done, state in list(enumerate(states, start=1))[:: len(states) // points]:
        resumed = new(policy, seed=99, min_batch=min_batch)
        resumed.load_state_dict(state)
        more = 50 - done if done % 5 == 0 else min(16, 50 - done)  # an epoch has at most 14
        assert go(resumed, more) == expected[done : done + more], done
        if done + more == 50:
            same_scores(resumed, whole)


@property_test(60)
@given(
    policy=st.sampled_from(POLICIES),
    done=st.integers(0, 20),
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    least=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    block=st.sampled_from([1, 20, 1 << 16]),
)
def test_another_number_of_processes_or_min_batch_continues_without_loss(policy, done, worlds, least, block):
    """Every sample of the epoch once, whoever consumes it; where the cut is the same, the same batches."""

    def ranks(world, min_batch):
        samplers = []
        for r in range(world):
            place = {} if world == 1 else {"rank": r, "world_size": world}
            samplers.append(new(policy, 6 // world, min_batch=min_batch, **place))
        return samplers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ausam.sampler.plan.BLOCK", block)
        before, after = ranks(worlds[0], least[0]), ranks(worlds[1], least[1])
        everything = list(itertools.chain(*list(new(policy, 6))))
        passes = [iter(s) for s in before]
        done = min(done, len(before[0]) - 1)
        used = [[next(p) for p in passes] for _ in range(done)]
        # Nothing was fed back, so what was handed out counts, in all processes alike.
        states = [through_a_file(s.state_dict()) for s in before]
        if done:
            for state in states[1:]:
                assert torch.equal(state["plan"]["index"], states[0]["plan"]["index"])
                assert {k: v for k, v in state["plan"].items() if k != "index" and k != "weight"} == {
                    k: v for k, v in states[0]["plan"].items() if k != "index" and k != "weight"
                }
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
    flat = [i for shares in (*used, *rest) for b in shares for i in b]
    assert sorted(flat) == sorted(everything)
    if worlds[0] == worlds[1] and least[0] == least[1]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ausam.sampler.plan.BLOCK", block)
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
def test_blocks_that_workers_asked_for_in_advance_are_planned_again(policy, consumed):
    expected = go(new(policy), 40)
    whole = new(policy)
    first = len(whole)
    go(whole, first)
    loader = DataLoader(Indexed(Rows()), batch_sampler=whole, num_workers=2, prefetch_factor=3)
    batches = iter(loader)  # asks for six batches at once: three blocks
    for _ in range(consumed):
        _, index = next(batches)
        whole.update(feedback(index.tolist(), 1))
    assert whole._pass.handed_out >= 6
    state = through_a_file(whole.state_dict())
    del batches
    resumed = new(policy)
    resumed.load_state_dict(state)
    assert go(resumed, 40 - first - consumed) == expected[first + consumed :]


def test_a_saved_pass_holds_the_rest_of_one_block():
    sampler = SelectiveBatchSampler(10_000, 10, AUSampling(0.5, ramp=0, unbiased=True))
    sampler.update(feedback(range(10_000), 0))
    sampler.set_epoch(1)
    for b, index in enumerate(sampler):
        sampler.update(feedback(index, 1))
        plan = sampler.state_dict()["plan"]
        if b == 999:
            assert plan is None
            break
        tensors = {k for k, v in plan.items() if isinstance(v, torch.Tensor)}
        assert tensors == {"index", "weight"}
        assert len(plan["index"]) == len(plan["weight"]) == (5 if b % 2 == 0 else 0)  # blocks of two mini-batches
        assert plan["done"] == 5 * (b + 1)


@pytest.mark.filterwarnings("ignore:No score has reached the sampler")
def test_a_choice_for_an_epoch_is_saved_while_it_is_needed():
    sampler = new(InfoBatch(0.5))
    assert sampler.state_dict()["choice"] is None
    next(iter(sampler))
    assert set(sampler.state_dict()["choice"]) == {"order_id", "mask", "weight", "draws"}
    go(sampler, len(sampler))
    assert sampler.state_dict()["choice"] is None
    list(sampler)
    assert sampler.state_dict()["choice"] is not None  # handed out, but not consumed
    held = new(EpsilonGreedy(0.5, period=3))
    go(held, len(held))
    assert held.state_dict()["plan"] is None
    assert held.state_dict()["choice"] is not None  # it may hold for the next epoch too


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (Random(0.5), Random(0.3), True),
        (Random(0.5), Full(), True),
        (InfoBatch(0.5), Full(), True),
        (Full(), InfoBatch(0.5), True),
        (AUSampling(0.5, s_max=0.5, ramp=30), AUSampling(0.5, ramp=30), False),
        (Repeated(0.5), Repeated(0.4), True),
        (Repeated(0.5), Repeated(0.5, "reduced"), True),
        (Repeated(0.5), Full(), True),
        (Full(), Repeated(0.5), True),
        (Repeated(0.4), Repeated(0.4 + 1e-12), False),
    ],
    ids=repr,
)
def test_a_pass_that_the_policy_would_plan_in_another_way_is_refused(before, after, refused):
    sampler = new(before)
    batches = list(itertools.islice(iter(sampler), 3))
    for index in batches:
        sampler.update(feedback(index, 0))
    state = through_a_file(sampler.state_dict())
    other = new(after)
    if not refused:
        other.load_state_dict(state)
        assert list(other) == list(new(before))[3:]
        return
    earlier = through_a_file(other.state_dict())
    with pytest.raises(ValueError) as error:
        other.load_state_dict(state)
    assert "in the middle of epoch 0" in str(error.value)
    assert f"{type(after).__name__} would plan" in str(error.value)
    assert "Resume with the policy of the saved run" in str(error.value)
    assert not bool(other.scores.count.any())
    assert other.state_dict()["plan"] == earlier["plan"] is None


def test_too_few_samples_left_for_a_larger_min_batch():
    sampler = new(Full())
    for index in itertools.islice(iter(sampler), 13):
        sampler.update(feedback(index, 0))
    other = new(Full(), min_batch=7)
    other.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError) as error:
        next(iter(other))
    for part in ("6 samples are left of epoch 0", "7 are needed", "min_batch=7 for each of 1", "set_epoch(1)"):
        assert part in str(error.value)
    other.set_epoch(1)  # the remedy
    assert len(other) == 13


def test_two_passes_at_once_each_keep_their_place():
    sampler = new(Full())
    first = iter(sampler)
    a = [next(first), next(first)]
    second = iter(sampler)
    b = [next(second)]
    a += list(first)
    b += list(second)
    assert sorted(itertools.chain(*a)) == sorted(itertools.chain(*b)) == list(range(N))
    assert a != b


def test_asking_for_the_length_does_not_choose_where_the_number_is_known():
    class Watched(UCB):
        def choose(self, *arguments):
            raise AssertionError("it was asked to choose")

    sampler = new(Watched(0.4))
    sampler.set_epoch(3)
    assert len(sampler) == 6  # 38 of 97 in sevens


@pytest.mark.parametrize("policy", [Full(), Random(0.5), InfoBatch()], ids=lambda p: type(p).__name__)
def test_batches_taken_long_before_the_first_update_are_part_of_a_saved_pass(policy):
    """Loaders prefetch. Until the first update nobody knows how far they are ahead, so no plan may be forgotten."""
    n, size, ahead = 1 << 18, 1 << 12, 40  # 163,840 samples: two and a half blocks
    sampler = SelectiveBatchSampler(n, size, policy)
    iterator = iter(sampler)
    taken = [next(iterator) for _ in range(ahead)]
    for batch in taken[:2]:
        sampler.update(feedback(batch, 0))
    again = SelectiveBatchSampler(n, size, policy)
    again.load_state_dict(sampler.state_dict())
    resumed = list(itertools.islice(again, ahead - 2))
    assert resumed == taken[2:]


def test_a_plan_that_is_gone_is_named(monkeypatch):
    monkeypatch.setattr("ausam.sampler.current_pass.AHEAD", 1)
    sampler = SelectiveBatchSampler(1 << 18, 1 << 12, Full())
    iterator = iter(sampler)
    taken = [next(iterator) for _ in range(40)]
    sampler.update(feedback(taken[0], 0))
    with pytest.raises(RuntimeError, match=r"took 40 batches before the first update.* Prefetch fewer"):
        sampler.state_dict()
