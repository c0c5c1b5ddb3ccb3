"""SelectiveStream: what the policy does not keep is never decoded, and everything else is as with the sampler."""

import contextlib
import multiprocessing

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ausam import (
    AUSampling,
    Feedback,
    Full,
    Indexed,
    InfoBatch,
    Random,
    Scores,
    SelectiveBatchSampler,
    SelectiveStream,
    TopLoss,
    Trusted,
)
from ausam.common.random import generator
from ausam.policies.draws import kept_count
from ausam.sampler.plan import STREAM
from tests.helpers import few_of, refused, through_a_file

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes")  # on two cores

N, SIZE = 46, 8  # five whole mini-batches, and one of six
decoded = multiprocessing.Value("i", 0)  # shared with the workers


def decode(raw):
    with decoded.get_lock():
        decoded.value += 1
    return torch.tensor(float(raw)), int(raw) % 3


class Source(IterableDataset):
    """Keys and raw samples; divided among workers by itself if asked to. The order is that of the pass, or fixed."""

    def __init__(self, n=N, *, divides=False, names=None):
        self.n, self.divides, self.names = n, divides, names

    def __iter__(self):
        info = get_worker_info()
        mine = (info.id, info.num_workers) if self.divides and info is not None else (0, 1)
        for i in range(mine[0], self.n, mine[1]):
            yield (i if self.names is None else self.names[i]), str(i)


def sampler(policy=None, n=N, **changes):
    return SelectiveBatchSampler(n, SIZE, policy or AUSampling(0.5, ramp=1), **changes)


def losses(index, turn=0):
    """Any function of the sample that is not the same in each pass."""
    return torch.sin(index * 1.7 + turn) ** 2 + 0.1


def feedback(index, turn=0):
    """Both the loss and the sharpness of each sample are its ``losses``."""
    return Feedback(index, losses(index, turn), 2 * losses(index, turn))


def a_pass(stream, stop=None, turn=0):
    """The batches of a pass, up to where it is stopped; each is updated."""
    seen = []
    with contextlib.closing(iter(stream)) as batches:
        for b, (x, y, index) in enumerate(batches):
            if b == stop:
                break
            assert torch.equal(x, index.float())
            assert torch.equal(y, index % 3)
            stream.weight(index)
            stream.update(feedback(index, turn))
            seen.append(index.tolist())
    return seen


def literally(policy, epochs):
    """The same by hand: mini-batches in the order of the stream, scores of the pass before."""
    scores, passes = Scores(N, policy.decay), []
    for epoch in range(epochs):
        passes.append([])
        for b, candidates in enumerate(torch.arange(N).split(SIZE)):
            kept, _ = policy.choose(scores, epoch, candidates[None], generator(0, epoch, STREAM, b))
            passes[-1].append(candidates[kept[0]].tolist())
        for index in map(torch.tensor, passes[-1]):
            scores.record(index, losses(index, epoch))
    return passes


@pytest.mark.parametrize(
    ("policy", "workers"),
    [
        *((policy, 0) for policy in (Random(0.3), TopLoss(0.5), Full())),
        *((AUSampling(0.5, ramp=1), workers) for workers in (0, 1, 3)),
    ],
    ids=lambda v: v if isinstance(v, int) else type(v).__name__,
)
def test_batches_are_those_of_the_policy_whatever_the_number_of_workers(policy, workers):
    stream = SelectiveStream(Source(), decode, sampler(policy), num_workers=workers)
    decoded.value = 0
    passes = [a_pass(stream, turn=turn) for turn in range(3)]
    assert passes == literally(policy, 3)
    used = sum(len(b) for batches in passes for b in batches)
    assert decoded.value == used  # what was not chosen was never decoded
    assert sum(map(len, passes[2])) == sum(kept_count(policy.kept, n) for n in [SIZE] * 5 + [6])
    assert int(stream.sampler.scores.count.sum()) == used
    assert stream.epoch == 3


@pytest.mark.parametrize("workers", few_of([1, 2, 5], 2))
def test_a_source_that_divides_itself(workers):
    stream = SelectiveStream(Source(divides=True), decode, sampler(), sharded=True, num_workers=workers)
    first, second = a_pass(stream), a_pass(stream)
    assert sorted(i for b in first for i in b) == list(range(N))
    decoded.value = 0
    third = a_pass(stream)
    assert decoded.value == sum(map(len, third))
    for batches in (second, third):
        parts = [range(w, N, workers) for w in range(workers)]
        assert sum(map(len, batches)) == sum(
            kept_count(0.5, len(p[i : i + SIZE])) for p in parts for i in range(0, len(p), SIZE)
        )
        assert all(len({i % workers for i in b}) == 1 for b in batches)  # a mini-batch comes from one worker


def test_names_are_mapped_to_indices():
    names = [f"image-{(7 * i) % N:03}" for i in range(N)]
    keys = {name: int(name[-3:]) for name in names}

    class Named(Source):
        def __iter__(self):
            for name in names:
                yield name, str(keys[name])

    stream = SelectiveStream(Named(), decode, sampler(), keys=keys)
    a_pass(stream)
    assert stream.sampler.scores.count.tolist() == [1] * N
    assert torch.allclose(stream.sampler.scores.sum, losses(torch.arange(N)))


@pytest.mark.parametrize("workers", few_of([(0, 0), (2, 2), (2, 0), (0, 3)], (0, 0), (2, 0)), ids=str)
@pytest.mark.parametrize("stop", few_of([1, 3, None], 3, None))
def test_it_continues_where_it_was_saved(workers, stop):
    """In the second pass; the number of workers may change, because the stream deals the mini-batches itself."""
    before, after = workers
    whole = SelectiveStream(Source(), decode, sampler())
    expected = [a_pass(whole, turn=turn) for turn in range(3)]
    first = SelectiveStream(Source(), decode, sampler(), num_workers=before)
    a_pass(first)
    begun = a_pass(first, stop, turn=1)
    second = SelectiveStream(Source(), decode, sampler(), num_workers=after)
    second.load_state_dict(through_a_file(first.state_dict()))
    decoded.value = 0
    rest = a_pass(second, turn=1) if stop is not None else []
    assert begun + rest == expected[1]
    assert a_pass(second, turn=2) == expected[2]
    if after == 0:
        assert decoded.value == sum(map(len, rest + expected[2]))  # what was used before is not decoded again
    assert torch.equal(second.sampler.scores.sum, whole.sampler.scores.sum)


@pytest.mark.parametrize("n", [46, 32 + 1])  # as many mini-batches in both workers, or one more in the first
@pytest.mark.parametrize("stop", few_of([1, 2, 3, 4], 3))
def test_a_source_that_divides_itself_continues_with_as_many_workers(n, stop):
    """The turn is that of the next worker, so that the order of the batches is the one of an undisturbed pass."""
    make = lambda workers: SelectiveStream(  # noqa: E731
        Source(n, divides=True), decode, sampler(n=n), sharded=True, num_workers=workers
    )
    whole, first, second = make(2), make(2), make(2)
    expected = [a_pass(whole, turn=turn) for turn in range(3)]
    a_pass(first)
    begun = a_pass(first, stop, turn=1)
    state = first.state_dict()
    assert state["done"] == [(stop + 1) // 2, stop // 2]
    second.load_state_dict(state)
    rest = a_pass(second, turn=1)
    assert begun + rest == expected[1]
    assert a_pass(second, turn=2) == expected[2]
    with refused(ValueError, "saved with 2 workers", "there are 3 now", "num_workers=2"):
        make(3).load_state_dict(state)


def test_a_pass_that_was_saved_after_its_last_batch_continues_as_an_empty_one():
    first = SelectiveStream(Source(), decode, sampler())
    a_pass(first)
    batches = iter(first)
    for _ in range(6):
        _, _, index = next(batches)
        first.update(feedback(index))
    second = SelectiveStream(Source(), decode, sampler())
    second.load_state_dict(first.state_dict())
    assert a_pass(second) == []
    assert second.epoch == 2


def test_a_resumed_pass_keeps_what_the_policy_found_when_it_began():
    """Trusted fits its limit once per pass: the losses of half a pass would move it."""
    n = 400
    labels = [i % 2 for i in range(n)]

    def go_on(stream, stop=None):
        seen = []
        for b, (_, _, index) in enumerate(stream):
            wrong, now = index % 9 == 0, losses(index, stream.epoch)
            loss = torch.where(wrong, 3 * now + 2, now / 20 if stream.epoch < 3 else now)
            stream.update(Feedback(index, loss, loss))
            seen.append(index.tolist())
            if b + 1 == stop:
                break
        return seen

    whole, first, second = (
        SelectiveStream(Source(n), decode, sampler(Trusted(labels, start=1, epochs=5), n=n)) for _ in range(3)
    )
    for stream in (whole, first):
        for _ in range(3):
            go_on(stream)
    expected, begun = go_on(whole), go_on(first, 25)
    second.load_state_dict(through_a_file(first.state_dict()))
    assert begun + go_on(second) == expected
    assert len(second.sampler.scores.fit) >= 2
    assert second.sampler.scores.fit == whole.sampler.scores.fit


def test_weights_come_along():
    policy = AUSampling(0.5, ramp=1, unbiased=True)
    stream = SelectiveStream(Source(), decode, sampler(policy), num_workers=2)
    a_pass(stream)
    scores = Scores(N, 1.0)
    scores.record(torch.arange(N), losses(torch.arange(N)))
    for b, (_, _, index) in enumerate(stream):
        candidates = torch.arange(b * SIZE, min(N, b * SIZE + SIZE))
        kept, weight = policy.choose(scores, 1, candidates[None], generator(0, 1, STREAM, b))
        assert torch.equal(index, candidates[kept[0]])
        assert torch.equal(stream.weight(index), weight[0])
        stream.update(feedback(index, 1))
    unweighted = SelectiveStream(Source(), decode, sampler(AUSampling(0.5, ramp=1, full_epochs=0, unbiased=True)))
    _, _, index = next(iter(unweighted))
    with pytest.warns(UserWarning, match="weight=sampler.weight"):
        unweighted.update(feedback(index))
    assert SelectiveStream(Source(), decode, sampler()).weight(torch.tensor([0])) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_get_mini_batches_of_their_own(workers):
    """Two processes: of six mini-batches each gets three, of five two, and none twice."""
    for n, each in ((N, 3), (5 * SIZE, 2)):
        by_rank = []
        for rank in range(2):
            mine = sampler(Full(), n, rank=rank, world_size=2)
            stream = SelectiveStream(Source(n), decode, mine, num_workers=workers)
            by_rank.append([index.tolist() for _, _, index in stream])
        assert [len(batches) for batches in by_rank] == [each, each]
        together = [i for pair in zip(*by_rank, strict=True) for b in pair for i in b]
        assert together == list(range(len(together)))


def test_dicts_collation_and_dropping():
    def as_dict(raw):
        return {"x": float(raw)}

    stream = SelectiveStream(Source(), as_dict, sampler(Full(), drop_last=True))
    batches = list(stream)
    assert [sorted(batch) for batch in batches] == [["index", "x"]] * 5
    plain = SelectiveStream(Source(), as_dict, sampler(Full()), collate_fn=lambda rows: rows)
    assert next(iter(plain)) == [Indexed([as_dict(str(i)) for i in range(SIZE)])[i] for i in range(SIZE)]


def test_a_wrong_division_is_noticed():
    twice = SelectiveStream(Source(), decode, sampler(), sharded=True, num_workers=2)
    with pytest.raises(RuntimeError, match=r"more than the 46 samples .* use sharded=False"):
        a_pass(twice)
    half = SelectiveStream(Source(460, divides=True), decode, sampler(n=460), num_workers=2)
    with pytest.warns(UserWarning, match="yielded 230 of the 460 samples .* use sharded=True"):
        a_pass(half)


REFUSED = {
    "an iterator": (
        lambda: SelectiveStream(iter([]), decode, sampler()),
        "source is a list_iterator",
        "such as an IterableDataset",
    ),
    "a policy for whole epochs": (
        lambda: SelectiveStream(Source(), decode, sampler(InfoBatch(epochs=3))),
        "InfoBatch chooses among all samples",
        "e.g. AUSampling",
    ),
    "a batch that is split": (
        lambda: SelectiveStream(Source(), decode, sampler(split=True)),
        "split=True or min_batch > 1",
        "Leave both at their defaults",
    ),
    "a second batch size": (
        lambda: list(SelectiveStream(Source(), decode, sampler(), batch_size=4)),
        "batch_size",
    ),
    "keys that are no indices": (
        lambda: list(SelectiveStream(Source(names=[f"a{i}" for i in range(N)]), decode, sampler())),
        "The key 'a0'",
        "keys={name: i for i, name in enumerate(names)}",
    ),
    "a key without an index": (
        lambda: list(SelectiveStream(Source(), decode, sampler(), keys={})),
        "The key 0",
        "keys={name: i for i, name in enumerate(names)}",
    ),
    "an index outside": (
        lambda: list(SelectiveStream(Source(), decode, sampler(n=40))),
        "The key 40",
        "40. Pass one from 0 to 39",
    ),
    "an update too many": (
        lambda: SelectiveStream(Source(), decode, sampler()).update(None),
        "no batch to update",
        "Call update once per batch",
    ),
}


def test_what_cannot_work_is_refused():
    for make, *parts in REFUSED.values():
        with refused((TypeError, ValueError, RuntimeError), *parts):
            make()
