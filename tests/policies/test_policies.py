"""Every policy against a slow transcription on plain lists, which takes nothing from the library but its generator."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ausam import (
    METHODS,
    POLICIES,
    SAM,
    UCB,
    AUSampling,
    ClassBalanced,
    EpsilonGreedy,
    Feedback,
    Full,
    InfoBatch,
    MomentumSAM,
    OrderDP,
    Plain,
    Random,
    Repeated,
    Scores,
    SelectiveBatchSampler,
    TopLoss,
    Uncertainty,
    check,
)
from ausam.common.random import generator
from ausam.policies.signals import SIGNALS
from tests.helpers import (
    data,
    few_or_many,
    make,
    network,
    optimizer,
    order_of_candidates,
    order_of_choice,
    order_of_epoch,
    policy_for,
    refused,
    with_logits,
)

N, BATCH, SEED, CLASSES = 53, 8, 3, 5
NAMES = ("loss", "perturbed", "sharpness", "signed", "uncertainty", "el2n", "wrong", "forgetting", "progress")


# -- a world of its own: logits of every sample in every epoch, and the list-based twins ------------------------------


class World:
    """Made-up logits, labels and losses; what is written here is what the twins see, in float64."""

    def __init__(self, n: int = N, epochs: int = 12, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.z = torch.from_numpy(rng.normal(size=(epochs, n, CLASSES)) * 2).float()
        self.y = torch.from_numpy(rng.integers(CLASSES, size=n))
        self.loss = torch.stack([F.cross_entropy(z, self.y, reduction="none") for z in self.z])
        self.perturbed = self.loss + torch.from_numpy(rng.normal(size=(epochs, n))).float()

    def feedback(self, epoch: int, index: list[int]) -> Feedback:
        i = torch.tensor(index)
        return Feedback(i, self.loss[epoch, i], self.perturbed[epoch, i], self.z[epoch, i])

    def value(self, signal: str, epoch: int, i: int) -> float:
        z, y = self.z[epoch, i].double().tolist(), int(self.y[i])
        total = sum(math.exp(v) for v in z)
        p = [math.exp(v) / total for v in z]
        if signal in ("loss", "progress"):  # the memory makes a fall of two losses
            return float(self.loss[epoch, i])
        if signal == "perturbed":
            return float(self.perturbed[epoch, i])
        if signal == "sharpness":
            return abs(float(self.perturbed[epoch, i]) - float(self.loss[epoch, i]))
        if signal == "signed":
            return max(0.0, float(self.perturbed[epoch, i]) - float(self.loss[epoch, i]))
        if signal == "uncertainty":
            return 1 - max(p)
        if signal == "el2n":
            return math.sqrt(sum((p[c] - (c == y)) ** 2 for c in range(CLASSES)))
        return float(p.index(max(p)) != y)


class Falls(list):
    """Takes losses and holds how much each is below the one before."""

    before: float | None = None

    def append(self, loss: float) -> None:
        if self.before is not None:
            super().append(self.before - loss)
        self.before = loss


class Memory:
    """What a twin remembers of one sample: all its values, oldest first."""

    def __init__(self, signal: str = "") -> None:
        self.values: list[float] = Falls() if signal == "progress" else []

    def average(self, decay: float) -> float:
        weights = [decay ** (len(self.values) - 1 - j) for j in range(len(self.values))]
        return sum(w * v for w, v in zip(weights, self.values, strict=True)) / sum(weights)

    def variance(self, decay: float) -> float:
        v = 0.0
        for j in range(1, len(self.values)):
            before = Memory()
            before.values = self.values[:j]
            v = decay * v + (1 - decay) * (self.values[j] - before.average(decay)) ** 2
        return v

    def changes(self, decay: float) -> float:
        v = 0.0
        for a, b in zip(self.values[:-1], self.values[1:], strict=True):
            v = decay * v + (1 - decay) * (b - a) ** 2
        return v

    def forgotten(self) -> float:
        if 0.0 not in self.values:
            return math.inf
        return float(sum(a == 0 and b == 1 for a, b in zip(self.values[:-1], self.values[1:], strict=True)))

    def score(self, signal: str, decay: float) -> float:
        return self.forgotten() if signal == "forgetting" else self.average(decay)


def shuffled(epoch: int, n: int = N, seed: int = SEED) -> list[int]:
    return order_of_epoch(n, seed, epoch)


def cut(items: list[int], size: int = BATCH) -> list[list[int]]:
    return [items[a : a + size] for a in range(0, len(items), size)]


def rank(memory: list[Memory], index: list[int], score) -> list[int]:
    """Best first; without a score before all; equal ones as they come."""
    return sorted(index, key=lambda i: (0, 0.0) if not memory[i].values else (1, -score(memory[i])))


def flat(batches: list[list[int]]) -> list[int]:
    return [i for b in batches for i in b]


# -- signals ------------------------------------------------------------


@pytest.mark.parametrize("signal", NAMES)
@pytest.mark.parametrize("spread", [1.0, 8.0, 40.0])
def test_signals_against_softmax_and_the_true_labels(signal, spread):
    z = torch.randn(300, 7, generator=torch.Generator().manual_seed(1)) * spread
    y = torch.randint(7, (300,), generator=torch.Generator().manual_seed(2))
    loss = F.cross_entropy(z, y, reduction="none")
    perturbed = loss + torch.linspace(-1, 1, 300)
    p = torch.softmax(z.double(), 1)
    expected = {
        "loss": loss.double(),
        "perturbed": perturbed.double(),
        "sharpness": (perturbed.double() - loss.double()).abs(),
        "signed": (perturbed.double() - loss.double()).relu(),
        "progress": loss.double(),
        "uncertainty": 1 - p.max(1).values,
        "el2n": (p - F.one_hot(y, 7)).pow(2).sum(1).sqrt(),
        "wrong": (p.argmax(1) != y).double(),
        "forgetting": (p.argmax(1) != y).double(),
    }[signal]
    values = SIGNALS[signal](Feedback(None, loss, perturbed, z))
    torch.testing.assert_close(values.double(), expected, rtol=1e-5, atol=2e-6)


def test_signals_of_bfloat16_outputs_find_the_labels():
    z = (torch.randn(500, 10, generator=torch.Generator().manual_seed(1)) * 3).bfloat16()
    y = torch.randint(10, (500,), generator=torch.Generator().manual_seed(2))
    loss = F.cross_entropy(z.float(), y, reduction="none")
    top = z.float().gather(1, y[:, None])[:, 0] < z.float().max(1).values  # equal outputs: not wrong
    assert SIGNALS["wrong"](Feedback(None, loss, loss, z)).tolist() == top.float().tolist()


def test_rows_that_are_not_finite_have_no_value():
    z = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [1.0, 0.0]])
    loss = torch.tensor([torch.nan, 1.0, 0.3])
    for signal in ("el2n", "wrong", "forgetting"):
        assert SIGNALS[signal](Feedback(None, loss, loss, z)).isnan().tolist() == [True, True, False]
    assert SIGNALS["uncertainty"](Feedback(None, loss, loss, z)).isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("outputs", "shown"),
    [
        (None, "outputs NoneType"),
        (torch.zeros(2), "of shape (2,)"),
        (torch.zeros(3, 4), "of shape (3, 4)"),
        (torch.zeros(2, 1), "of shape (2, 1)"),
        (torch.zeros(2, 3, 4), "of shape (2, 3, 4)"),
        ({"logits": torch.zeros(2, 4)}, "outputs dict"),
    ],
)
def test_missing_outputs_and_those_of_another_form_are_refused(outputs, shown):
    sampler = SelectiveBatchSampler(4, 2, Uncertainty())
    with refused(TypeError, '"uncertainty"', shown, 'reduction="none"), z'):
        sampler.update(Feedback(torch.tensor([0, 1]), torch.ones(2), torch.ones(2), outputs))


# -- outputs in the feedback ------------------------------------------------------------


def test_feedback_has_the_outputs_at_w_of_all_rows_detached():
    for method in (Plain(), SAM(rho=0.5), METHODS["ESAM"](), METHODS["KSAM"]()):
        model = network(batchnorm=False)
        opt, losses, (x, y) = optimizer(model, method), with_logits(model), data(n=10)
        with torch.no_grad():
            z = model(x)
        feedback = opt.backward(losses, x, y)
        assert not feedback.outputs.requires_grad
        assert torch.equal(feedback.outputs, z), method


def test_a_method_that_never_looks_at_w_gives_the_outputs_of_its_pass():
    model = network(batchnorm=False)
    opt, losses, (x, y) = optimizer(model, MomentumSAM(rho=0.5)), with_logits(model), data(n=10)
    opt.backward(losses, x, y)
    opt.step()
    opt.zero_grad()
    feedback = opt.backward(losses, x, y)
    assert not torch.equal(feedback.outputs, model(x).detach())
    torch.testing.assert_close(F.cross_entropy(feedback.outputs, y, reduction="none"), feedback.loss)


# -- scores ------------------------------------------------------------


def recorded(scores, twin):
    """Record random values of nine samples in both, some of them not finite."""
    rng = np.random.default_rng(0)
    for _ in range(15):
        index = rng.permutation(9)[: rng.integers(1, 8)]
        value = rng.normal(size=len(index)).astype(np.float32)
        value[rng.random(len(index)) < 0.15] = np.nan
        scores.record(torch.from_numpy(index), torch.from_numpy(value))
        for i, v in zip(index.tolist(), value.tolist(), strict=True):
            if math.isfinite(v):
                twin[i].values.append(v)


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.9, 1.0])
def test_average_and_spread_against_the_twin(decay):
    scores, twin = Scores(9, decay, spread=True), [Memory() for _ in range(9)]
    recorded(scores, twin)
    assert all(m.values for m in twin)
    torch.testing.assert_close(scores.mean, torch.tensor([m.average(decay) for m in twin]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scores.spread, torch.tensor([m.variance(decay) for m in twin]), rtol=1e-4, atol=1e-6)


def test_columns_that_share_memory_survive_copies_and_do_not_leave_with_a_state():
    for n in (1, 5):
        scores = Scores(n)
        scores.record(torch.tensor([0]), torch.tensor([0.5]))
        state = scores.state_dict()
        for other in (copy.deepcopy(scores), pickle.loads(pickle.dumps(scores)), Scores(n)):
            other.load_state_dict(state)
            other.record(torch.tensor([0]), torch.tensor([1.0]))
            assert (float(other.sum[0]), int(other.count[0]), float(other.mean[0])) == (1.5, 2, 0.75)
        assert (float(scores.sum[0]), int(scores.count[0])) == (0.5, 1)
        assert (float(state["sum"][0]), int(state["count"][0])) == (0.5, 1)
        assert all(column.is_contiguous() for column in state.values() if isinstance(column, torch.Tensor))


def test_forgetting_against_the_twin_and_by_hand():
    by_hand = [([1, 1, 1], math.inf), ([0, 0], 0), ([1, 0], 0), ([0, 1], 1), ([1, 0, 1, 1, 0, 1], 2), ([], math.nan)]
    scores, twin = Scores(len(by_hand), 0.2, forgetting=True, spread=True), []
    for i, (values, _) in enumerate(by_hand):
        twin.append(Memory())
        for v in values:
            scores.record(torch.tensor([i]), torch.tensor([float(v)]))
            twin[i].values.append(float(v))
    assert scores.mean.tolist()[:-1] == [events for _, events in by_hand[:-1]] == [m.forgotten() for m in twin[:-1]]
    assert scores.mean[-1].isnan()
    torch.testing.assert_close(scores.spread, torch.tensor([m.changes(0.2) for m in twin]))


def test_a_fourth_column_is_there_only_for_the_policy_that_asks():
    for policy in (Full(), AUSampling(), InfoBatch(), TopLoss(), EpsilonGreedy()):
        assert SelectiveBatchSampler(5, 2, policy).scores.spread is None
        saved = SelectiveBatchSampler(5, 2, policy).scores.state_dict()
        assert set(saved) == {"decay", "sum", "count", "last", "fit", "fit_epoch"}
    assert SelectiveBatchSampler(5, 2, UCB()).scores.spread.shape == (5,)


# -- TopLoss ------------------------------------------------------------


@pytest.mark.parametrize("signal", NAMES)
@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.8])
def test_top_loss_keeps_what_the_twin_keeps(signal, alpha):
    world, memory = World(), [Memory(signal) for _ in range(N)]
    sampler = SelectiveBatchSampler(N, BATCH, TopLoss(alpha, signal), seed=SEED)
    for epoch in range(6):
        expected = []
        for batch in cut(shuffled(epoch)):
            k = len(batch) if epoch == 0 else max(1, int(alpha * len(batch)))
            best = set(rank(memory, batch, lambda m: m.score(signal, 0.0))[:k])
            expected.append([i for i in batch if i in best])
        assert len(sampler) == len(expected)
        batches = list(sampler)
        assert batches == expected
        for batch in batches:
            seen = [i for i in batch if not (epoch == 0 and i % 5 == 0)]  # these are unseen in epoch 1
            sampler.update(world.feedback(epoch, seen))
            for i in seen:
                memory[i].values.append(world.value(signal, epoch, i))


# -- policies that prune an epoch ------------------------------------------------------------


def prune_by_twin(policy, signal: str, kept_by, epochs: int = 9, drop_last: bool = False) -> None:
    """Run a policy of scope "epoch" beside its twin; ``kept_by(memory, batches)`` says what should be kept."""
    world, memory = World(), [Memory(signal) for _ in range(N)]
    sampler = SelectiveBatchSampler(N, BATCH, policy, seed=SEED, drop_last=drop_last)
    chosen: set[int] = set()
    for epoch in range(epochs):
        announced, batches = len(sampler), list(sampler)
        if epoch == 0:
            chosen = set(range(N))
        elif (epoch - 1) % policy.period == 0:
            chosen = kept_by(memory, set(flat(batches)))
        expected = cut(order_of_choice(chosen, SEED, epoch))
        if drop_last and len(expected[-1]) < BATCH:
            expected.pop()
        assert batches == expected
        assert announced == len(expected)
        for batch in batches:
            seen = [i for i in batch if not (epoch == 0 and i % 7 == 0)]  # these are unseen in epoch 1
            sampler.update(world.feedback(epoch, seen))
            for i in seen:
                memory[i].values.append(world.value(signal, epoch, i))


def top(memory: list[Memory], k: int, score, kept: set[int]) -> set[int]:
    """The k best; where the last of them are equal, whichever of the equal ones were kept."""
    order = rank(memory, list(range(N)), score)

    def key(i: int) -> float:
        return score(memory[i]) if memory[i].values else math.pi  # a score of its own: unseen equals unseen alone

    edge = key(order[k - 1])
    better = {i for i in order[:k] if key(i) != edge}
    equal = {i for i in order if key(i) == edge}
    some = equal & kept
    assert len(some) >= k - len(better)
    return better | set(sorted(some)[: k - len(better)] if len(some) > k - len(better) else some)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.7])
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_uncertainty_keeps_what_the_twin_keeps(alpha, period, drop_last):
    k = int(alpha * N)
    alone = drop_last and k < BATCH  # the only mini-batch is short: it stays
    prune_by_twin(
        Uncertainty(alpha, period),
        "uncertainty",
        # With drop_last the tail of the kept is not among what was kept, so the twin has to know it all.
        lambda memory, kept: (
            set(rank(memory, list(range(N)), lambda m: m.score("uncertainty", 0.0))[:k])
            if k > sum(not m.values for m in memory)
            else top(memory, k, lambda m: m.score("uncertainty", 0.0), kept)
        ),
        drop_last=drop_last and not alone,
    )


@pytest.mark.parametrize("signal", NAMES)
@pytest.mark.parametrize("period", [1, 4])
def test_ucb_keeps_what_the_twin_keeps(signal, period):
    decay, c = 0.3, 0.7

    def bound(m: Memory) -> float:
        if signal == "forgetting":
            return round(m.forgotten() + c * m.changes(decay), 5)
        return round(m.average(decay) + c * m.variance(decay), 5)

    prune_by_twin(
        UCB(0.5, c, signal, decay, period), signal, lambda memory, kept: top(memory, int(0.5 * N), bound, kept)
    )


@pytest.mark.parametrize("signal", NAMES)
@pytest.mark.parametrize("period", [1, 4])
def test_epsilon_greedy_without_eps_keeps_the_best(signal, period):
    prune_by_twin(
        EpsilonGreedy(0.5, 0.0, signal, 0.6, period),
        signal,
        lambda memory, kept: top(memory, int(0.5 * N), lambda m: round(m.score(signal, 0.6), 5), kept),
    )


@pytest.mark.parametrize(("alpha", "eps"), [(0.5, 0.1), (0.5, 0.3), (0.7, 0.5), (0.3, 1.0)])
def test_epsilon_greedy_keeps_the_best_and_as_many_others_as_it_says(alpha, eps):
    m = int(alpha * N)
    random = int(eps * m)

    def kept(memory: list[Memory], among: set[int]) -> set[int]:
        best = top(memory, m - random, lambda x: x.score("loss", 0.2), among) if m > random else set()
        others = among - best
        assert len(others) == random
        return best | others

    prune_by_twin(EpsilonGreedy(alpha, eps), "loss", kept, epochs=3)


def after_one_epoch(policy, seed: int, loss: torch.Tensor, batch: int = 10) -> SelectiveBatchSampler:
    sampler = SelectiveBatchSampler(len(loss), batch, policy, seed=seed)
    for index in sampler:
        i = torch.tensor(index)
        sampler.update(Feedback(i, loss[i], loss[i]))
    return sampler


@pytest.mark.parametrize("draws", few_or_many(200, 600))
def test_epsilon_greedy_explores_every_other_sample_equally_often(draws):
    n = 60
    count = np.zeros(n)
    for seed in range(draws):
        count[flat(list(after_one_epoch(EpsilonGreedy(0.5, 0.4), seed, torch.arange(n).float())))] += 1
    # 30 are kept, 12 at random: the best 18 always, each of the 42 others with probability 12 / 42.
    assert count[42:].tolist() == [draws] * 18
    p = 12 / 42
    assert abs(count[:42] / draws - p).max() < 4.5 * math.sqrt(p * (1 - p) / draws)  # P < 3e-4 for any of 42 samples


@pytest.mark.parametrize("draws", few_or_many(200, 600))
def test_equal_scores_are_drawn_equally_often_and_from_the_whole_epoch(draws):
    n = 40
    count, place = np.zeros(n), []
    for seed in range(draws):
        kept = flat(list(after_one_epoch(EpsilonGreedy(0.5, 0.0), seed, torch.ones(n))))
        count[kept] += 1
        order = order_of_candidates(n, seed, 1)
        place.append(np.mean([order.index(i) for i in kept]))
    assert abs(count / draws - 0.5).max() < 4.5 * math.sqrt(0.25 / draws)
    # The mean place of 20 of 40 has standard deviation sqrt((n + 1)(n - k) / (12 k)) = 1.85 about 19.5.
    assert abs(np.mean(place) - 19.5) < 4.5 * math.sqrt(41 * 20 / (12 * 20)) / math.sqrt(draws)


def test_unseen_samples_come_before_those_never_learned():
    sampler = SelectiveBatchSampler(10, 10, EpsilonGreedy(0.3, 0.0, "forgetting", period=1), seed=1)
    next(iter(sampler))
    z = torch.tensor([[2.0, 0.0]]).repeat(8, 1)
    loss = F.cross_entropy(z, torch.ones(8, dtype=torch.int64), reduction="none")
    sampler.update(Feedback(torch.arange(8), loss, loss, z))  # 0..7 are wrong, 8 and 9 unseen
    assert sampler.scores.mean.isinf().tolist() == [True] * 8 + [False] * 2
    kept = set(flat(list(sampler)))
    assert {8, 9} < kept
    assert len(kept) == 3


# -- OrderDP ------------------------------------------------------------


@pytest.mark.parametrize(("s", "q"), [(0.75, 0.85), (0.5, 0.3), (1.0, 0.5), (0.01, 0.01)])
def test_orderdp_keeps_the_largest_losses_of_what_it_drew(s, q):
    """What it drew is what its generator draws: a permutation of the places, of which the first are taken."""
    world, last = World(), {}
    sampler = SelectiveBatchSampler(N, BATCH, OrderDP(s, q), seed=SEED)
    for epoch in range(6):
        announced, batches = len(sampler), list(sampler)
        order = order_of_candidates(N, SEED, epoch)
        drawn = [order[place] for place in torch.randperm(N, generator=generator(SEED, epoch, 2))]
        drawn = drawn[: max(1, int(s * N))]
        k = max(1, int(q * len(drawn)))
        kept = set(flat(batches))
        assert kept <= set(drawn)
        assert len(kept) == k
        unseen = [i for i in drawn if i not in last]
        known = sorted((i for i in drawn if i in last), key=lambda i: -last[i])
        if len(unseen) >= k:
            assert kept <= set(unseen)
        else:
            assert kept == {*unseen, *known[: k - len(unseen)]}
        assert batches == cut(order_of_choice(kept, SEED, epoch))
        assert announced == len(batches)
        for batch in batches:
            sampler.update(world.feedback(epoch, batch))
            last |= {i: world.value("loss", epoch, i) for i in batch}


# -- progress ------------------------------------------------------------


@pytest.mark.parametrize("decay", [1.0, 0.0, 0.5])
def test_progress_is_how_much_the_loss_fell_between_visits(decay):
    scores, twin = Scores(9, decay, progress=True), [Memory("progress") for _ in range(9)]
    recorded(scores, twin)
    torch.testing.assert_close(scores.mean, torch.tensor([m.average(decay) for m in twin]), rtol=1e-5, atol=1e-6)
    assert scores.count.tolist() == [len(m.values) for m in twin]


# -- InfoBatch ------------------------------------------------------------


@pytest.mark.parametrize("on", ["first", "second"])
@pytest.mark.parametrize("prune", [0.0, 0.3, 0.5, 0.9])
def test_infobatch_keeps_and_weighs_as_the_twin(on, prune):
    world, last = World(), {}
    sampler = SelectiveBatchSampler(N, BATCH, InfoBatch(prune, on=on), seed=SEED)
    for epoch in range(6):
        announced, batches = len(sampler), list(sampler)
        kept = set(flat(batches))
        mean = sum(last.values()) / len(last) if last else 0.0
        well = {i for i in last if last[i] < mean} if epoch else set()
        assert set(range(N)) - well <= kept
        stay = int((1 - prune) * len(well))
        assert len(kept & well) == stay
        assert batches == cut(order_of_choice(kept, SEED, epoch))
        assert announced == len(batches)
        index = torch.tensor(flat(batches))
        factors = [1 / (1 - prune) if i in well else 1.0 for i in index.tolist()]
        torch.testing.assert_close(sampler.weight(index), torch.tensor(factors))
        for batch in batches:
            seen = [i for i in batch if not (epoch == 0 and i % 7 == 0)]
            sampler.update(world.feedback(epoch, seen))
            for i in seen:
                last[i] = world.value("loss" if on == "first" else "perturbed", epoch, i)


@pytest.mark.parametrize("draws", few_or_many(300, 800))
def test_infobatch_keeps_the_expected_sum_of_losses(draws):
    loss = torch.cat([torch.linspace(0, 1, 40), torch.linspace(4, 8, 20)])  # 40 are below the mean
    keep = 0.25
    sums, count = [], np.zeros(60)
    for seed in range(draws):
        sampler = after_one_epoch(InfoBatch(prune=1 - keep), seed, loss)
        kept = torch.tensor(flat(list(sampler)))
        assert len(kept) == 10 + 20
        sums.append(float((sampler.weight(kept) * loss[kept]).sum()))
        count[kept] += 1
    # A simple random sample of k of W without replacement: Var(sum) = k (1 - k / W) S^2, here divided by keep^2.
    error = math.sqrt(10 * (1 - 10 / 40) * float(loss[:40].var())) / keep / math.sqrt(draws)
    assert abs(np.mean(sums) / 60 - float(loss.mean())) < 4 * error / 60
    assert error < 0.01 * float(loss.sum())  # so the bound above says something
    assert abs(count[:40] / draws - keep).max() < 4.5 * math.sqrt(keep * (1 - keep) / draws)
    assert count[40:].tolist() == [draws] * 20


@pytest.mark.parametrize("value", [0.1, 3.0, 1.7e-7])
def test_infobatch_with_equal_losses_keeps_everything_once(value):
    sampler = after_one_epoch(InfoBatch(), 0, torch.full((1001,), value))
    index = torch.tensor(flat(list(sampler)))
    assert sorted(index.tolist()) == list(range(1001))
    assert sampler.weight(index).tolist() == [1.0] * 1001


@pytest.mark.parametrize(
    ("epochs", "anneal", "first_full"),
    [(8, 0.125, 7), (10, 0.125, 9), (90, 0.125, 79), (100, 0.125, 88), (200, 0.125, 175), (10, 0.3, 7), (5, 0.0, 5)],
)
def test_infobatch_uses_everything_in_the_first_epoch_and_in_the_last(epochs, anneal, first_full):
    policy, scores = InfoBatch(0.5, anneal, epochs), Scores(20)
    scores.record(torch.arange(20), torch.arange(20).float())
    full = []
    for epoch in range(epochs):
        kept, weight = policy.choose(scores, epoch, torch.arange(20)[None], generator(0, epoch))
        assert kept.shape == weight.shape
        if kept.shape[1] == 20:
            full.append(epoch)
            assert weight.tolist() == [[1.0] * 20]
        else:
            assert kept.shape[1] == 15
    assert full == [0, *range(first_full, epochs)]


def test_infobatch_never_anneals_without_epochs():
    sampler = after_one_epoch(InfoBatch(anneal=1.0), 0, torch.arange(20).float())
    sampler.set_epoch(10_000)
    assert sum(map(len, sampler)) == 15


# -- planning, length and resuming ------------------------------------------------------------


def test_length_follows_updates_epochs_and_loading():
    sampler = after_one_epoch(InfoBatch(0.5, 0.5, 8), 0, torch.arange(40).float())
    assert len(sampler) == 3  # 20 of 40 are below the mean, 10 of them stay
    sampler.update(Feedback(torch.arange(40), torch.ones(40), torch.ones(40)))
    assert len(sampler) == 4
    sampler.update(Feedback(torch.tensor([0]), torch.zeros(1), torch.zeros(1)))
    assert len(sampler) == 4  # 39 of 40
    sampler.update(Feedback(torch.tensor([1]), torch.full((1,), 99.0), torch.zeros(1)))
    assert len(sampler) == 2  # all but one are below the mean: 19 and 1
    sampler.set_epoch(4)
    assert len(sampler) == 4
    other = after_one_epoch(InfoBatch(0.5, 0.5, 8), 0, torch.arange(40).float())
    assert len(other) == 3
    other.load_state_dict(sampler.state_dict())
    assert len(other) == 4


def test_drop_last_keeps_a_short_mini_batch_that_is_the_only_one():
    sampler = after_one_epoch(EpsilonGreedy(0.3, 0.0), 0, torch.arange(20).float(), batch=10)
    sampler.drop_last = True
    assert len(sampler) == 1
    assert [len(b) for b in sampler] == [6]


def test_pick_follows_the_policy_inside_a_loaded_batch():
    sampler = after_one_epoch(InfoBatch(0.5), 0, torch.arange(40).float())
    index = torch.tensor([0, 1, 2, 3, 30, 31])
    keep = sampler.pick(index)
    assert len(keep) == 4
    assert keep.tolist()[-2:] == [4, 5]
    assert sampler.weight(index[keep]).tolist() == [2.0, 2.0, 1.0, 1.0]
    sampler = after_one_epoch(UCB(0.5), 0, torch.arange(40).float())
    assert sampler.pick(torch.tensor([9, 1, 8, 2])).tolist() == [0, 2]


# -- refusing ------------------------------------------------------------

PARTNERS = [name for name in METHODS if name not in ("Plain", "SAF", "MESA", "MomentumSAM", "PreviousGradientSAM")]


# What a policy ranks by, where that needs a loss at perturbed weights.
RANKED_BY = {
    "sharpness": [AUSampling(), *(p(signal="sharpness") for p in (TopLoss, EpsilonGreedy, UCB))],
    "signed sharpness": [AUSampling(score="signed"), *(p(signal="signed") for p in (TopLoss, EpsilonGreedy, UCB))],
    "perturbed loss": [InfoBatch(on="second"), *(p(signal="perturbed") for p in (TopLoss, EpsilonGreedy, UCB))],
    None: [
        *(Full(), Random(), Repeated(), ClassBalanced([0]), OrderDP(), InfoBatch(), Uncertainty()),
        AUSampling(score="progress"),
        *(p(signal=s) for p in (TopLoss, EpsilonGreedy, UCB) for s in NAMES if s not in NAMES[1:4]),
    ],
}


def test_check_refuses_exactly_the_pairs_that_cannot_work():
    mismatches = []
    for method, (signal, policies) in itertools.product(METHODS, RANKED_BY.items()):
        for policy in policies:
            try:
                check(make(method), policy)
                answer = None
            except ValueError as error:
                answer = str(error)
            if signal is None or method in PARTNERS:
                right = answer is None
            else:
                right = answer is not None and all(part in answer for part in (method, signal, "Pair it with SAM"))
            if not right:
                mismatches.append((method, policy, answer))
    assert mismatches == []


class TooMany(Random):
    """Keeps one more than it says."""

    def count(self, epoch, n):
        return super().count(epoch, n) - 1


class Silent(Random):
    """Does not say how many it keeps."""

    def count(self, epoch, n):
        return None


class EpochLong(UCB):
    """Keeps all, but says that it does not."""

    def choose(self, scores, epoch, candidates, rng):
        return torch.arange(candidates.shape[1])[None], None


def test_a_policy_keeps_what_it_announces():
    with refused(ValueError, "TooMany kept 4 of 8", "epoch 0", "count(0, 8) is 3", "as many positions as count says"):
        next(iter(SelectiveBatchSampler(10, 8, TooMany(0.5))))
    with refused(TypeError, "Silent: count(epoch, n) returned None", "Return that number."):
        len(SelectiveBatchSampler(10, 8, Silent(0.5)))
    sampler = after_one_epoch(EpochLong(0.5), 0, torch.ones(10), batch=8)
    with pytest.raises(ValueError, match=r"^EpochLong kept 10 of 10 candidates in epoch 1, but"):
        next(iter(sampler))


def test_a_policy_with_an_unknown_signal_or_scope_is_refused_by_the_sampler():
    with refused(ValueError, "Odd: scope is 'row'"):
        SelectiveBatchSampler(4, 2, type("Odd", (Full,), {"scope": "row"})())

    class Odd(Full):
        signal = "odds"

    with refused(ValueError, "Odd: signal is 'odds'", '"loss", "perturbed"', "or a function of a Feedback"):
        SelectiveBatchSampler(4, 2, Odd())


# -- the house ------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_keeps_about_what_it_says(name):
    """Losses of an exponential distribution, as skewed as those of a trained network: 63 % lie below their mean."""
    n, rng = 1000, torch.Generator().manual_seed(0)
    sampler = SelectiveBatchSampler(n, 50, policy_for(name, n), seed=1)
    for index in map(torch.tensor, sampler):
        loss = torch.empty(len(index)).exponential_(generator=rng)
        z = torch.randn(len(index), 4, generator=rng)
        sampler.update(Feedback(index, loss, loss + torch.rand(len(index), generator=rng), z))
    used = sum(map(len, sampler))
    assert used / n == pytest.approx(sampler.policy.kept, abs=0.04)
