"""SelectiveStream: a loader for streams that decodes only the chosen samples of each mini-batch."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from ausam.common.random import generator
from ausam.common.tensors import CPU
from ausam.feedback import Feedback
from ausam.sampler.batch_sampler import SelectiveBatchSampler
from ausam.sampler.indexed import Indexed
from ausam.sampler.plan import STREAM

Pair = tuple[Hashable, Any]


class SelectiveStream:
    """A loader for streamed data: the policy chooses by key, and samples that are not chosen are never decoded.

    The source yields ``(key, raw)``: an IterableDataset, a WebDataset, a streamed Hugging Face dataset. The policy
    keeps some of every ``batch_size`` pairs, and ``decode(raw)`` runs for these only, in a worker if there are any.
    Batches look like those of ``DataLoader(Indexed(dataset))``: the index comes last.

    >>> import torch
    >>> from ausam import AUSampling, Feedback, SelectiveBatchSampler, SelectiveStream
    >>> sampler = SelectiveBatchSampler(100, batch_size=10, policy=AUSampling(alpha=0.5), epochs=30, seed=0)
    >>> source = [(i, str(i)) for i in range(100)]
    >>> stream = SelectiveStream(source, lambda raw: (float(raw), 0), sampler)
    >>> for x, y, index in stream:                                    # the first pass: every sample
    ...     stream.update(Feedback(index, torch.rand(len(x)), torch.rand(len(x))))
    >>> sum(len(index) for x, y, index in stream)                     # from then on half are decoded
    50

    Arguments:
        source: an iterable of ``(key, raw)``, iterated once per pass, with each key at most once.
        decode: turns ``raw`` into a sample, as a dataset's ``__getitem__`` would return it.
        sampler: a SelectiveBatchSampler for as many samples as there are keys. The stream uses its policy, batch size,
            ``drop_last``, seed and scores. Do not iterate over it. Its policy must choose inside mini-batches.
        keys: the dataset index of each key, e.g. ``{name: i for i, name in enumerate(names)}``. If None, keys are
            indices.
        sharded: who divides the stream among workers and processes. True: the source does, and each worker of each
            process sees its own part. False (default): every worker sees the whole source, and the stream forms the
            mini-batches, so that batches do not depend on the number of workers.
        kwargs: arguments of the DataLoader: ``num_workers``, ``collate_fn``, ``pin_memory``, ...

    Call ``update`` with the feedback of every batch, in order. ``state_dict`` counts updated batches: after
    ``load_state_dict`` the next pass continues there, provided that the source repeats its order. Samples that were
    used before are read again, but not decoded. A pass that was saved after its last batch resumes as an empty one.

    The workers choose by the scores at the beginning of the pass. Each sample is a candidate once per pass, so no newer
    score exists, and the choice is the one that the sampler would have made.

    Limits: ``raw`` is always read. Only decoding is saved. The stream does not shuffle: let the source do it. With
    ``sharded=False`` every worker reads the whole source. With several processes, the last mini-batches are left out
    unless there is one for each. With ``sharded=True`` the source must give each process the same number.
    """

    def __init__(
        self,
        source: Iterable[Pair],
        decode: Callable[[Any], Any],
        sampler: SelectiveBatchSampler,
        *,
        keys: Mapping[Any, int] | None = None,
        sharded: bool = False,
        **kwargs: Any,
    ) -> None:
        _check(source, sampler)
        self.sampler = sampler
        self.sharded = sharded
        self._source, self._decode, self._keys = source, decode, keys
        self._collate = kwargs.pop("collate_fn", default_collate)
        self._kwargs = kwargs
        self._workers = int(kwargs.get("num_workers", 0))
        self._epoch = 0  # of the current pass, or of the next
        self._done: list[int] = []  # used mini-batches of the pass, by worker; empty between passes
        self._waiting: deque[int] = deque()  # which worker made the batches that are handed out but not updated

    def __iter__(self) -> Iterator[Any]:
        sampler = self.sampler
        resumed, self._done = bool(self._done), self._done or [0] * self._shards
        self._waiting.clear()
        sampler.begin_stream(self._epoch)
        reader = _Reader(self._frozen(), self._epoch, sampler.rank_and_world_size, list(self._done))
        offered = 0
        # Explicit, so that another batch size, order or lifetime of the workers raises a TypeError.
        fixed: Any = {"batch_size": None, "collate_fn": _as_it_is, "persistent_workers": False, "in_order": True}
        for choice in DataLoader(reader, **fixed, **self._kwargs):
            if choice is None:
                continue
            offered += choice.candidates
            if offered > len(sampler.scores):
                raise RuntimeError(
                    f"The stream yielded more than the {len(sampler.scores)} samples that the sampler was built for. "
                    "Each key may occur once per pass. If every worker sees the whole source, use sharded=False."
                )
            self._waiting.append(choice.worker)
            sampler.set_weight(choice.rows, choice.weight)
            yield choice.batch
        if not resumed:
            self._warn_of_gaps(offered)
        self._epoch, self._done = self._epoch + 1, []

    def _frozen(self) -> SelectiveStream:
        """A copy for the workers, with the scores of now, whatever is updated meanwhile."""
        stream, sampler = copy.copy(self), copy.copy(self.sampler)
        sampler._scores = copy.deepcopy(self.sampler._scores)
        stream.sampler, stream._kwargs = sampler, {}
        return stream

    def update(self, feedback: Feedback) -> None:
        """Take the losses of the oldest batch that was handed out but not updated: all or nothing, as the sampler's."""
        if not self._waiting:
            raise RuntimeError("There is no batch to update. Call update once per batch, after the stream yielded it.")
        self.sampler.update(feedback)
        worker = self._waiting.popleft()
        if self._done:  # empty if the pass has ended
            self._done[worker] += 1

    def weight(self, index: Tensor) -> Tensor | None:
        """The factor of each of these samples' losses, or None if the policy does not reweight."""
        return self.sampler.weight(index)

    def state_dict(self) -> dict[str, Any]:
        """The sampler's scores, the pass and the position in it. After ``exchange`` in all processes."""
        return {"sampler": self.sampler.state_dict(), "epoch": self._epoch, "done": list(self._done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the state was saved. With ``sharded=True`` the number of workers must be the same."""
        if state["done"] and len(state["done"]) != self._shards:
            raise ValueError(
                f"The state was saved with {len(state['done'])} workers and there are {self._shards} now, but the "
                f"source divides the stream among the workers. Resume with num_workers={len(state['done'])}."
            )
        self.sampler.load_state_dict(state["sampler"])
        self._epoch, self._done = state["epoch"], list(state["done"])

    @property
    def epoch(self) -> int:
        """Epoch of the current pass, or of the next."""
        return self._epoch

    @property
    def _shards(self) -> int:
        """Number of parts of the stream that are counted separately."""
        return max(1, self._workers) if self.sharded else 1

    def _warn_of_gaps(self, offered: int) -> None:
        n, (_, world) = len(self.sampler.scores), self.sampler.rank_and_world_size
        lost = world * self.sampler.mini_batch * max(1, self._workers)  # the last mini-batches may be left out
        if offered * world < n - lost:
            warnings.warn(
                f"The stream yielded {offered} of the {n} samples that the sampler was built for. If the source "
                "divides itself among workers or processes, use sharded=True.",
                stacklevel=3,
            )


class _Choice(NamedTuple):
    """A batch from a worker, with what the main process needs to know about it."""

    batch: Any
    rows: Tensor  # dataset indices
    weight: Tensor | None
    worker: int
    candidates: int


@dataclass
class _Reader(IterableDataset[_Choice | None]):
    """One pass: reads pairs, lets the policy choose and decodes the kept ones. Runs in the workers.

    None stands for a worker whose turn was before the pass was interrupted.
    """

    stream: SelectiveStream
    epoch: int
    rank_and_world_size: tuple[int, int]
    done: list[int]

    def __iter__(self) -> Iterator[_Choice | None]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        rank, world = self.rank_and_world_size
        if self.stream.sharded:
            if self.done[worker] == max(self.done) > min(self.done):
                yield None
            for number, pairs in enumerate(self._mini_batches()):
                if number >= self.done[worker]:
                    yield self._choose(pairs, worker, (rank, worker, number))
            return
        for number, dealt in enumerate(_groups(self._mini_batches(), world)):
            mine = number >= self.done[0] and number % workers == (worker + self.done[0]) % workers
            if mine and len(dealt) == world:
                yield self._choose(dealt[rank], 0, (number * world + rank,))

    def _mini_batches(self) -> Iterator[list[Pair]]:
        size, drop_last = self.stream.sampler.mini_batch, self.stream.sampler.drop_last
        return (pairs for pairs in _groups(self.stream._source, size) if len(pairs) == size or not drop_last)

    def _choose(self, pairs: list[Pair], worker: int, number: tuple[int, ...]) -> _Choice:
        candidates = torch.tensor([self._index(key) for key, _ in pairs], device=CPU)
        sampler = self.stream.sampler
        rng = generator(sampler.seed, self.epoch, STREAM, *number)
        kept, weight = sampler.policy.choose(sampler.scores, self.epoch, candidates[None], rng)
        index = candidates[kept[0]]
        decoded = Indexed([self.stream._decode(pairs[k][1]) for k in kept[0].tolist()])
        numbered = [decoded._with_index(sample, int(i)) for sample, i in zip(decoded.dataset, index, strict=True)]
        return _Choice(self.stream._collate(numbered), index, None if weight is None else weight[0], worker, len(pairs))

    def _index(self, key: Hashable) -> int:
        n, keys = len(self.stream.sampler.scores), self.stream._keys
        index = key if keys is None else keys.get(key)
        if not isinstance(index, int) or not 0 <= index < n:
            raise ValueError(
                f"The key {key!r} of the stream has the dataset index {index!r}. Pass one from 0 to {n - 1} for each "
                "key: SelectiveStream(..., keys={name: i for i, name in enumerate(names)})."
            )
        return index


def _groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` items each. The last may be shorter."""
    source = iter(items)
    while group := list(itertools.islice(source, size)):
        yield group


def _as_it_is(choice: _Choice | None) -> _Choice | None:
    """Stands in for collation, which the reader has already done."""
    return choice


def _check(source: Any, sampler: SelectiveBatchSampler) -> None:
    if isinstance(source, Iterator):
        raise TypeError(
            f"source is a {type(source).__name__}, which can be iterated only once, but every pass restarts it. "
            "Pass an object whose __iter__ starts the stream, such as an IterableDataset."
        )
    if sampler.policy.scope != "batch":
        raise ValueError(
            f"{type(sampler.policy).__name__} chooses among all samples, but a stream yields them one by one. "
            "Use a policy that chooses inside each mini-batch, e.g. AUSampling."
        )
    if sampler.split or sampler.min_batch > 1:
        raise ValueError(
            "The sampler has split=True or min_batch > 1, but a mini-batch of a stream belongs to one process and "
            "cannot be joined to another. Leave both at their defaults."
        )
