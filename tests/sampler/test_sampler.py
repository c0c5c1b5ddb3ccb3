"""The sampler: what AUSampling draws, what is loaded, what is remembered and what is refused."""

import itertools
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from ausam import AUSampling, Feedback, Full, Indexed, Random, Scores, SelectiveBatchSampler
from ausam.common.random import generator
from ausam.policies.draws import weighted_sample
from tests.helpers import assert_equal, few_or_many, refused, slow_odds, through_a_file

pytestmark = pytest.mark.filterwarnings("ignore:.*sampler.weight was never called")

# Fixed seeds make every draw below the same each time. A frequency is allowed five of its own standard errors: chance
# alone exceeds that in 6 of 10 million comparisons, so a new seed would do as well.
SIGMAS = 5.0
DRAWS = 60_000


def feed(sampler, index, sharpness):
    """Update with losses of zero, so that the scores are the values given."""
    value = torch.as_tensor(sharpness, dtype=torch.float32)
    sampler.update(Feedback(torch.as_tensor(index), torch.zeros_like(value), value))


def fed(policy, sharpness, batch_size=None, **more):
    """A sampler in its second epoch, with these scores."""
    n = len(sharpness)
    sampler = SelectiveBatchSampler(n, batch_size=batch_size or n, policy=policy, **more)
    feed(sampler, range(n), sharpness)
    sampler.set_epoch(1)
    return sampler


def subsets(odds, k):
    """Exact probability of every subset under sequential weighted sampling without replacement."""
    p = {}
    for order in itertools.permutations(range(len(odds)), k):
        left, chance = sum(odds), 1.0
        for i in order:
            chance *= odds[i] / left
            left -= odds[i]
        key = tuple(sorted(order))
        p[key] = p.get(key, 0.0) + chance
    return p


def inclusion(odds, k):
    p = subsets(odds, k)
    return [sum(v for key, v in p.items() if i in key) for i in range(len(odds))]


def assert_frequency(count, draws, p, what):
    error = (p * (1 - p) / draws) ** 0.5
    assert abs(count / draws - p) <= SIGMAS * error, (what, count / draws, p)


SCORES = [
    ([0.1, 0.2, 0.9], 0.5),
    ([0.5, 0.1, 0.3, 0.9], 0.5),
    ([0.5, 0.1, 0.3, 0.9, 0.2], 0.8),
    ([2.0, 1.0, 0.0, 0.1, 0.1, 0.7], 0.5),
    ([2.0, 1.0, 0.0, 0.1, 0.1, 0.7], 0.34),
]


# -- the draw ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("g", "alpha"), SCORES)
def test_draws_follow_sequential_sampling_without_replacement(g, alpha):
    n, k = len(g), max(1, int(alpha * len(g)))
    policy = AUSampling(alpha=alpha, s_min=0.1, s_max=1.0, ramp=0)
    scores = Scores(n)
    scores.record(torch.arange(n), torch.tensor(g))
    kept, weight = policy.choose(scores, 1, torch.arange(n).expand(DRAWS, n), generator(1, n, k))
    assert weight is None
    assert kept.shape == (DRAWS, k)
    code = (2**kept).sum(1)
    odds = slow_odds(g, 0.1, 1.0)
    exact = subsets(odds, k)
    assert sum(exact.values()) == pytest.approx(1.0)
    for subset, p in exact.items():
        assert_frequency(int((code == sum(2**i for i in subset)).sum()), DRAWS, p, subset)
    for i, p in enumerate(inclusion(odds, k)):
        assert_frequency(int((kept == i).sum()), DRAWS, p, i)


@pytest.mark.parametrize("how", ["iterate", "pick"])
@pytest.mark.parametrize("epochs", few_or_many(600, 3000))
def test_the_sampler_draws_so_too(how, epochs):
    g = [0.5, 0.1, 0.3, 0.9, 0.2]
    sampler = fed(AUSampling(alpha=0.4, ramp=0), g, seed=3)
    counts = [0] * 5
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        for i in next(iter(sampler)) if how == "iterate" else sampler.pick(torch.arange(5)).tolist():
            counts[i] += 1
    assert sum(counts) == 2 * epochs
    for i, p in enumerate(inclusion(slow_odds(g, 0.1, 1.0), 2)):
        assert_frequency(counts[i], epochs, p, i)


@pytest.mark.parametrize("policy", [Random(0.5), AUSampling(0.5, ramp=0)], ids=["random", "equal scores"])
def test_equal_odds_draw_every_sample_alike(policy):
    scores = Scores(6)
    scores.record(torch.arange(6), torch.full((6,), 0.7))
    kept, _ = policy.choose(scores, 5, torch.arange(6).expand(DRAWS, 6), generator(0))
    for i in range(6):
        assert_frequency(int((kept == i).sum()), DRAWS, 0.5, i)


def test_rows_are_drawn_each_by_its_own_scores():
    scores = Scores(8)
    scores.record(torch.arange(8), torch.tensor([9.0, 1, 1, 1, 1, 1, 1, 0.0]))
    policy = AUSampling(0.25, s_min=0.001, ramp=0)
    rows = torch.arange(8).view(2, 4).repeat(2000, 1)
    kept, _ = policy.choose(scores, 1, rows, generator(0))
    assert float((kept[::2] == 0).float().mean()) > 0.98  # the one that stands out from its own mini-batch
    assert float((kept[1::2] == 3).float().mean()) < 0.02


def test_normalisation_and_ramp():
    g = torch.tensor([[0.2, 0.6, 0.4], [3.0, 1.0, 1.0]])
    policy = AUSampling(s_min=0.1, s_max=0.5, ramp=30)
    for epoch, upper in [(1, 0.1 + 0.4 / 30), (15, 0.3), (29, 0.1 + 0.4 * 29 / 30), (30, 0.5), (199, 0.5)]:
        odds = policy.odds_of(g, epoch)
        expected = [[0.1, upper, (0.1 + upper) / 2], [upper, 0.1, 0.1]]
        torch.testing.assert_close(odds, torch.tensor(expected))
    torch.testing.assert_close(AUSampling(s_min=0.2, ramp=0).odds_of(g, 0)[0], torch.tensor([0.2, 1.0, 0.6]))
    for epoch in (0, 1, 30):  # a rising bound that has not begun to rise, and bounds that are equal: uniform
        flat = AUSampling(s_min=0.3, s_max=0.3, ramp=30).odds_of(g, epoch)
        torch.testing.assert_close(flat / flat[:, :1], torch.ones(2, 3))
    torch.testing.assert_close(AUSampling(s_min=0.0, ramp=30).odds_of(g, 0), torch.ones(2, 3))


def test_unseen_samples_take_the_mean_of_their_mini_batch():
    nan = float("nan")
    g = torch.tensor([[0.2, nan, 0.8, 0.2], [nan, nan, nan, nan], [nan, nan, 5.0, nan]])
    odds = AUSampling(s_min=0.1, s_max=1.0, ramp=0).odds_of(g, 1)
    torch.testing.assert_close(odds, torch.tensor([[0.1, 0.1 + 0.9 / 3, 1.0, 0.1], [1.0] * 4, [1.0] * 4]))


def test_more_places_than_samples_with_odds_are_filled_evenly():
    odds = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(6000, 4)
    kept, _ = weighted_sample(odds, 2, generator(0))
    assert int((kept == 1).sum()) == 6000
    for i in (0, 2, 3):
        assert_frequency(int((kept == i).sum()), 6000, 1 / 3, i)
    _, weight = weighted_sample(odds, 2, generator(0), weigh=True)
    assert bool(weight.isfinite().all())


# -- unbiased weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 0.25])
def test_weights_make_the_mean_unbiased(alpha):
    n, k = 12, int(alpha * 12)
    rng = torch.Generator().manual_seed(0)
    g = torch.rand(n, generator=rng)
    gradients = torch.randn(n, 3, generator=rng).double() + 4 * g[:, None]  # large where the score is large
    scores = Scores(n)
    scores.record(torch.arange(n), g)
    policy = AUSampling(alpha=alpha, s_min=0.1, ramp=0, unbiased=True)
    kept, weight = policy.choose(scores, 1, torch.arange(n).expand(DRAWS, n), generator(4))
    assert weight.shape == kept.shape == (DRAWS, k)
    full = gradients.mean(0)
    weighted = (weight[..., None].double() * gradients[kept]).mean(1)
    error = weighted.std(0) / DRAWS**0.5
    assert bool(((weighted.mean(0) - full).abs() < SIGMAS * error).all())
    assert bool((error < 0.02 * full.abs()).all())  # sharp enough to see a bias of a tenth
    unweighted = gradients[kept].mean(1)
    bias = (unweighted.mean(0) - full).abs() / (unweighted.std(0) / DRAWS**0.5)
    assert bool((bias > 50).all())
    # The number of samples is a mean too: the weights average to one over the draws, not in each.
    assert abs(float(weight.mean()) - 1) < SIGMAS * float(weight.mean(1).std()) / DRAWS**0.5
    assert float(weight.mean(1).std()) > 0.01


def test_weights_before_the_draw_begins_and_with_alpha_one():
    sampler = SelectiveBatchSampler(8, batch_size=4, policy=AUSampling(0.5, ramp=30, unbiased=True))
    list(sampler)  # the first epoch: every sample
    assert sampler.weight(torch.arange(4)) is None
    sampler = fed(AUSampling(1.0, unbiased=True), torch.rand(8), batch_size=4)
    list(sampler)
    assert sampler.weight(torch.arange(8)) is None  # nothing is drawn, so nothing is weighed


def test_the_weights_of_an_earlier_pass_are_forgotten():
    sampler = fed(AUSampling(0.5, ramp=0, unbiased=True), torch.rand(8), batch_size=4)
    list(sampler)
    assert sampler.weight(torch.arange(8)) is not None
    sampler.set_epoch(0)  # which uses every sample and weighs none
    list(sampler)
    assert sampler.weight(torch.arange(8)) is None


@pytest.mark.parametrize("draws", few_or_many(800, 4000))
def test_the_weight_of_a_pick(draws):
    g = torch.rand(6, generator=torch.Generator().manual_seed(1))
    sampler = fed(AUSampling(0.5, ramp=0, unbiased=True), g)
    index = torch.tensor([5, 0, 3, 2, 4, 1])
    total = torch.zeros(draws)
    for epoch in range(draws):
        sampler.set_epoch(epoch + 1)
        chosen = index[sampler.pick(index)]
        total[epoch] = (sampler.weight(chosen) * g[chosen]).mean()
    assert abs(float(total.mean() - g.mean())) < SIGMAS * float(total.std()) / draws**0.5


# -- scores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_scores_are_the_same_whatever_is_read_at_a_time(decay, monkeypatch):
    scores, index = Scores(50, decay), torch.randperm(50).view(5, 10)
    for _ in range(2):
        scores.record(torch.arange(40), torch.rand(40))
    expected = scores.of(index)
    monkeypatch.setattr("ausam.sampler.scores.READ", 7)
    assert torch.equal(scores.of(index).nan_to_num(-1.0), expected.nan_to_num(-1.0))


# -- epochs and sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "size", "alpha", "drop_last", "expected"),
    [
        (10, 4, 0.1, False, [1, 1, 1]),
        (9, 4, 0.5, False, [2, 2, 1]),
        (9, 4, 0.5, True, [2, 2]),
        (9, 4, 0.74, False, [2, 2, 1]),
        (9, 4, 0.75, False, [3, 3, 1]),
        (3, 8, 0.67, False, [2]),
        (8, 4, 1.0, False, [4, 4]),
    ],
)
def test_sizes(n, size, alpha, drop_last, expected):
    sampler = SelectiveBatchSampler(n, size, Random(alpha), drop_last=drop_last)
    assert len(sampler) == len(expected)
    assert [len(b) for b in sampler] == expected


def test_epochs_differ_and_seeds_differ():
    sampler = SelectiveBatchSampler(50, 10, Full(), seed=0)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert list(SelectiveBatchSampler(50, 10, Full(), seed=0)) == first
    assert list(SelectiveBatchSampler(50, 10, Full(), seed=1)) != first
    assert all(isinstance(i, int) for b in first for i in b)


def test_set_epoch():
    counted = SelectiveBatchSampler(50, 10, Full(), seed=0)
    epochs = [list(counted) for _ in range(4)]
    counted = SelectiveBatchSampler(50, 10, Full(), seed=0)
    for epoch in (3, 0, 3, 1):
        counted.set_epoch(epoch)
        assert list(counted) == epochs[epoch]
    assert counted.epoch == 2


def test_batch_size_is_not_published():
    # Trap 12: Accelerate's shards drop every batch whose length differs from this attribute.
    sampler = SelectiveBatchSampler(10, 4, Random(0.5))
    assert sampler.batch_size is None
    assert (sampler.mini_batch, sampler.drop_last) == (4, False)


# -- what is loaded ----------------------------------------------------------------------------------------------------

WORKERS = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on a machine of one core
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Counted(Dataset):
    """Counts how often each sample is read, also in worker processes."""

    def __init__(self, n):
        self.reads = torch.zeros(n, dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, i):
        self.reads[i] += 1
        return torch.tensor(float(i)), i % 3


@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=WORKERS)], ids=["in the process", "two persistent workers"]
)
def test_samples_that_are_not_chosen_are_never_read(workers):
    counted = Counted(21)
    data = Indexed(counted)
    sampler = SelectiveBatchSampler(data, batch_size=8, policy=AUSampling(alpha=0.5), epochs=200, seed=0)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    assert len(loader) == 3
    for epoch in range(3):
        before = counted.reads.clone()
        seen, sizes = [], []
        for x, y, index in loader:
            assert torch.equal(x, index.float())
            assert torch.equal(y, index % 3)
            seen += index.tolist()
            sizes.append(len(index))
            feed(sampler, index, torch.rand(len(index)))
        reads = counted.reads - before
        assert sizes == ([8, 8, 5] if epoch == 0 else [4, 4, 2])
        assert sorted(seen) == reads.nonzero().flatten().tolist()
        assert int(reads.max()) == 1
        assert int(reads.sum()) == (21 if epoch == 0 else 10)


class Pair(NamedTuple):
    x: float
    y: int


def test_indexed_adds_the_index_to_every_kind_of_sample():
    assert Indexed([("a", 0), ("b", 1)])[1] == ("b", 1, 1)
    assert Indexed([["a", 0], ["b", 1]])[0] == ("a", 0, 0)
    assert Indexed([Pair(0.5, 3)])[0] == (0.5, 3, 0)
    assert Indexed([{"x": 1}, {"x": 2}])[1] == {"x": 2, "index": 1}
    assert Indexed([{"index": 7}], key="row")[0] == {"index": 7, "row": 0}
    sample = Indexed(torch.arange(6.0).view(3, 2))[2]
    assert (sample[0].tolist(), sample[1]) == ([4.0, 5.0], 2)
    assert len(Indexed(range(7))) == 7


class Batched(Dataset):
    def __init__(self):
        self.asked = []

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return 10 * i, i

    def __getitems__(self, indices):
        self.asked.append(indices)
        return [(10 * i, i) for i in indices]


def test_indexed_asks_for_a_whole_batch_where_the_dataset_can_answer():
    inner = Batched()
    assert Indexed(inner).__getitems__([3, 1]) == [(30, 3, 3), (10, 1, 1)]
    assert inner.asked == [[3, 1]]
    assert Indexed([5, 6, 7]).__getitems__([2, 0]) == [(7, 2), (5, 0)]
    x, _, index = next(iter(DataLoader(Indexed(inner), batch_size=4)))
    assert (x.tolist(), index.tolist()) == ([0, 10, 20, 30], [0, 1, 2, 3])
    assert inner.asked[1:] == [[0, 1, 2, 3]]


def test_indexed_of_a_subset_counts_the_subset():
    data = Indexed(Subset(TensorDataset(torch.arange(10)), [7, 8, 9]))
    assert data[2] == (torch.tensor(9), 2)
    assert data.__getitems__([1]) == [(torch.tensor(8), 1)]


# -- resume (traps 11, 16) ---------------------------------------------------------------------------------------------


def signal(index, epoch):
    """A made-up sharpness that depends on the sample and the epoch, the same in every run."""
    return ((torch.as_tensor(index) * 37 + epoch * 11) % 17).float() / 17


def run_epochs(sampler, epochs):
    """Whole epochs with an update after each batch; the batches of each."""
    seen = []
    for epoch in epochs:
        seen.append([])
        for index in sampler:
            seen[-1].append(index)
            feed(sampler, index, signal(index, epoch))
    return seen


POLICY = AUSampling(alpha=0.5, ramp=2)


def new(policy=POLICY, seed=5, n=40):
    return SelectiveBatchSampler(n, batch_size=8, policy=policy, seed=seed)


def test_split_micro_batches_count_when_the_batch_is_complete():
    sampler = new()
    batches = iter(sampler)
    first, second = next(batches), next(batches)
    feed(sampler, first[:4], torch.ones(4))
    assert [len(sampler.state_dict()["plan"]["index"]), sampler.state_dict()["epoch"]] == [40, 0]
    feed(sampler, first[4:], torch.ones(4))
    assert sampler.state_dict()["plan"]["index"][:8].tolist() == second
    feed(sampler, second[:7], torch.ones(7))
    assert sampler.state_dict()["plan"]["index"][:8].tolist() == second
    feed(sampler, second[7:], torch.ones(1))
    assert len(sampler.state_dict()["plan"]["index"]) == 24


def test_a_saved_state_is_a_copy():
    sampler = new()
    run_epochs(sampler, [0])
    index = next(iter(sampler))
    feed(sampler, index, signal(index, 1))
    state = sampler.state_dict()
    kept = through_a_file(state)
    run_epochs(sampler, [2, 3])
    assert_equal(state, kept)
    resumed = new()
    resumed.load_state_dict(state)
    run_epochs(resumed, [1, 2])
    assert_equal(state, kept)


def test_set_epoch_goes_on_with_an_interrupted_pass_of_that_epoch_only():
    expected = run_epochs(new(), range(2))
    broken = new()
    run_epochs(broken, [0])
    index = next(iter(broken))
    feed(broken, index, signal(index, 1))
    state = broken.state_dict()
    same, other = new(), new()
    same.load_state_dict(state)
    same.set_epoch(1)
    assert len(same) == 4
    assert list(same) == expected[1][1:]
    other.load_state_dict(state)
    other.set_epoch(6)
    assert len(other) == 5
    assert sum(map(len, other)) == 20
    assert other.epoch == 7


# -- pick --------------------------------------------------------------------------------------------------------------


def test_pick_counts_epochs_by_the_samples_offered():
    sampler = SelectiveBatchSampler(10, 5, AUSampling(0.4, ramp=0))
    assert sampler.pick(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert sampler.pick(torch.arange(5, 10)).tolist() == [0, 1, 2, 3, 4]
    feed(sampler, range(10), torch.rand(10))
    for _ in range(20):
        keep = sampler.pick(torch.tensor([9, 3, 0, 4, 7]))
        assert keep.dtype == torch.int64
        assert len(keep) == 2
        assert 0 <= keep[0] < keep[1] < 5
    sampler.set_epoch(0)
    assert len(sampler.pick(torch.arange(5))) == 5


def test_pick_looks_up_the_scores_of_the_indices_it_is_given():
    sampler = fed(AUSampling(0.25, s_min=0.0001, ramp=0), [0.0, 0.0, 0.0, 9.0, 0.0, 0.0])
    index = torch.tensor([1, 3, 5, 0])
    assert [int(sampler.pick(index)) for _ in range(30)].count(1) >= 29


def test_picks_can_be_reproduced_and_resumed():
    g = torch.rand(20, generator=torch.Generator().manual_seed(0))
    one, two = (fed(AUSampling(0.5, ramp=0), g, seed=8) for _ in range(2))
    index = torch.arange(10)
    picks = [one.pick(index).tolist() for _ in range(12)]
    assert [two.pick(index).tolist() for _ in range(5)] == picks[:5]
    assert len({tuple(p) for p in picks}) > 6  # each pick is a new draw
    resumed = SelectiveBatchSampler(20, 20, AUSampling(0.5, ramp=0), seed=1)
    resumed.load_state_dict(through_a_file(two.state_dict()))
    assert [resumed.pick(index).tolist() for _ in range(7)] == picks[5:]


def test_pick_errors():
    sampler = fed(AUSampling(ramp=30), [1.0, 2.0, 3.0])
    before = sampler.state_dict()
    with refused(ValueError, "index has shape (2, 2)", "shape (n,)"):
        sampler.pick(torch.zeros(2, 2, dtype=torch.int64))
    for bad in (-1, 3):
        with refused(ValueError, "outside the dataset of 3 samples"):
            sampler.pick(torch.tensor([0, bad]))
    assert_equal(sampler.state_dict(), before)


# -- warnings and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["iterate", "pick", "nothing but NaN"])
def test_no_score_at_all_is_said(how):
    sampler = SelectiveBatchSampler(6, 3, AUSampling(0.5, ramp=30))
    for index in sampler:
        if how == "nothing but NaN":  # the feedback of a method that does not evaluate perturbed weights
            feed(sampler, index, [float("nan")] * 3)
    with pytest.warns(UserWarning, match="No score") as caught:
        kept = [sampler.pick(torch.arange(3))] if how == "pick" else list(sampler)
    assert [len(k) for k in kept] == ([1] if how == "pick" else [1, 1])
    assert len(caught) == 1
    for part in ("sampler.update(opt.backward(..., index=index))", "perturbed weights", "sampler.set_epoch(0)"):
        assert part in str(caught[0].message)


@pytest.mark.parametrize(
    ("feedback", "parts"),
    [
        (Feedback(None, torch.ones(2), torch.ones(2)), ("no index", "opt.backward(loss_fn, *batch, index=index)")),
        (Feedback(torch.tensor([0, 40]), torch.ones(2), torch.ones(2)), ("index 40", "40 samples", "Indexed(dataset)")),
        (Feedback(torch.tensor([0, -3]), torch.ones(2), torch.ones(2)), ("index -3", "40 samples", "Indexed(dataset)")),
        (
            Feedback(torch.tensor([4, 2, 4]), torch.ones(3), torch.ones(3)),
            ("index 4", "twice", "at most once", "for x, y, index in loader"),
        ),
        (
            Feedback(torch.tensor([4, 2]), torch.ones(3), torch.ones(3)),
            ("2 indices and 3 values", "one value per index"),
        ),
    ],
    ids=["no index", "above", "below", "twice", "length"],
)
def test_update_errors_change_nothing(feedback, parts):
    sampler = new()
    index = next(iter(sampler))
    feed(sampler, index, signal(index, 0))
    before = through_a_file(sampler.state_dict())
    with refused(ValueError, *parts):
        sampler.update(feedback)
    assert_equal(sampler.state_dict(), before)
    assert len(before["plan"]["index"]) == 32


@pytest.mark.parametrize(
    ("changed", "kind", "allowed"),
    [
        ({"dataset": 0}, ValueError, ">= 1"),
        ({"dataset": []}, ValueError, ">= 1"),
        ({"dataset": None}, TypeError, ">= 1"),
        ({"batch_size": 2.5}, ValueError, ">= 1"),
        ({"batch_size": "4"}, TypeError, ">= 1"),
        ({"min_batch": 0}, ValueError, ">= 1"),
        ({"min_batch": 10}, ValueError, "smaller min_batch"),
        ({"seed": -1}, ValueError, ">= 0"),
        ({"drop_last": "no"}, TypeError, "True or False"),
        ({"rank": 2, "world_size": 2}, ValueError, "from 0 to 1"),
        ({"rank": 0}, ValueError, "Pass both"),
        ({"policy": Full}, TypeError, "an instance, such as"),
        ({"batch_size": 10, "drop_last": True}, ValueError, "smaller batch_size"),
    ],
    ids=repr,
)
def test_constructor_errors(changed, kind, allowed):
    with refused(kind, next(iter(changed)), allowed):
        SelectiveBatchSampler(**{"dataset": 9, "batch_size": 4, "policy": Full(), **changed})


def test_bounds_that_cross_are_refused():
    with refused(ValueError, "s_min is 0.6 and s_max is 0.5", "Use s_min <= s_max."):
        AUSampling(s_min=0.6, s_max=0.5)


# -- a sampler that nobody asks ----------------------------------------------------------------------------------------


def test_updates_of_more_than_a_pass_without_a_question_are_warned_about_once():
    sampler = new()
    for _ in range(5):
        feed(sampler, range(8), torch.ones(8))  # a pass, and no more
    with pytest.warns(UserWarning, match="more than a whole pass") as caught:
        feed(sampler, [3], [1.0])
    assert len(caught) == 1
    assert "keep = sampler.pick(index)" in str(caught[0].message)
    assert caught[0].filename == __file__  # where update was called
    feed(sampler, range(40), torch.ones(40))  # not a second time


@pytest.mark.filterwarnings("ignore:The first update of this pass")
@pytest.mark.parametrize("how", ["iterate", "pick", "everything is kept"])
def test_updates_of_a_sampler_that_is_asked_are_not(how):
    sampler = new(AUSampling(1.0) if how == "everything is kept" else POLICY)
    if how == "iterate":
        next(iter(sampler))
    elif how == "pick":
        sampler.pick(torch.arange(4))
    for _ in range(12):
        feed(sampler, range(8), torch.ones(8))


def test_weights_need_a_chance_for_every_sample():
    with pytest.raises(ValueError, match="unbiased=True divides by inclusion probabilities, and s_min=0 makes some of"):
        AUSampling(s_min=0.0, unbiased=True)


# -- edges -------------------------------------------------------------------------------------------------------------


def test_drop_last_keeps_a_batch_that_is_just_whole():
    assert [len(batch) for batch in SelectiveBatchSampler(8, 8, Full(), drop_last=True)] == [8]


@pytest.mark.parametrize("how", ["by position", "by name"])
def test_a_framework_that_builds_the_sampler_again_is_refused(how):
    given = torch.utils.data.SequentialSampler(range(8))
    with refused(TypeError, "use_distributed_sampler=False"):
        if how == "by position":
            SelectiveBatchSampler(given, 4, False)
        else:
            SelectiveBatchSampler(dataset=given, batch_size=4, drop_last=False)
