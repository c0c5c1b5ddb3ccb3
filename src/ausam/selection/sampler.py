"""SelectiveBatchSampler: mini-batches of which only the chosen part is ever loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from ausam.feedback import Feedback
from ausam.random import generator
from ausam.selection.arguments import checked_size, refuse_sampler, warn_if_blind
from ausam.selection.inbox import Inbox
from ausam.selection.plan import Plan, draw
from ausam.selection.policy import Policy
from ausam.selection.scores import Scores
from ausam.selection.signals import SIGNALS


class SelectiveBatchSampler(BatchSampler):
    """Batches of dataset indices for ``DataLoader(dataset, batch_sampler=...)``, chosen by a policy before loading.

    The epoch's plan is drawn when iteration begins: the samples are shuffled and cut into mini-batches, and the policy
    keeps a part of each (or of the whole epoch, which is then cut). A sample that is not kept is never read, decoded or
    copied.

    >>> from ausam import AUSampling, Feedback, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(100, batch_size=10, policy=AUSampling(alpha=0.5), seed=0)
    >>> for index in sampler:                                         # the first epoch: every sample
    ...     loss = torch.rand(len(index))
    ...     sampler.update(Feedback(torch.tensor(index), loss, loss + 0.1))
    >>> sum(len(index) for index in sampler)                          # from then on: half
    50

    Arguments:
        dataset: what is sampled (only its length is used), or that length.
        batch_size: samples of a mini-batch before the policy chooses, >= 1; of one process's, where there are several.
        policy: ``Full()``, ``Random(alpha)``, ``AUSampling(alpha)``, ...
        drop_last: leave out a last mini-batch that is short.
        seed: with the epoch and the scores it fixes the plan.
        rank, world_size: which process this is, of how many; None: torch.distributed's, or the only one.
        split: batch_size is that of all processes together, and each gets its share: any number of them has one plan.

    One pass is one epoch; the sampler counts them. Call ``update`` with the feedback of every batch: it feeds the
    scores, and tells what was consumed, which with prefetching workers is less than what was handed out.

    Several processes share one plan: the policy chooses from mini-batches of ``world_size * batch_size`` (``split``: of
    ``batch_size``), as one process with that batch size would, and what it keeps is dealt out without overlap, in equal
    numbers up to one. All get the same number of batches and none an empty one: a batch of fewer samples than processes
    joins the next, the last one the one before. Scores are exchanged when a pass begins: every process must begin every
    pass.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> SelectiveBatchSampler:
        """Refuse to be built from another sampler, as a framework does that replaces the batch sampler of a loader."""
        refuse_sampler(*args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        policy: Policy,
        *,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        split: bool = False,
    ) -> None:
        n = checked_size(dataset, batch_size, policy, drop_last, seed)
        # Batches differ in length; code that reads batch_size (Accelerate's shards) would drop those that do.
        self.batch_size = None  # type: ignore[assignment]
        self.mini_batch = batch_size
        self.split = split
        self.drop_last = drop_last
        self.policy = policy
        self.seed = seed
        self.epoch = 0  # of the next pass
        forgetting = policy.signal == "forgetting"
        self._scores = Scores(n, policy.decay, forgetting=forgetting, spread=getattr(policy, "spread", False))
        self._inbox = Inbox(self._scores, rank, world_size)
        self._place = 0, 1  # rank and number of processes, in the pass under way
        self._plan: Plan | None = None  # of the pass under way, or of one to be resumed
        self._next: tuple[int, Plan] | None = None  # number of processes, and the plan of the next pass
        self._held: tuple[int, Tensor] | None = None  # a turn, and which samples are used in it
        self._resume = False
        self._handed_out = 0  # batches of the plan
        self._consumed = 0  # samples of the plan
        self._picked = 0  # candidates that pick() has seen since the epoch was set
        self._picks = 0
        self._weights: Tensor | None = None

    @property
    def scores(self) -> Scores:
        """What is known of each sample, up to the latest update; with several processes, to the latest exchange."""
        self._inbox.flush()
        return self._scores

    # -- choosing ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: the pass begins with its first batch, for DataLoader's workers ask for an iterator twice.
        self.exchange()
        self._place = self._inbox.place
        if self._resume and self._plan is not None:
            self._plan = self._plan.dealt(self._place[1])
        else:
            warn_if_blind(self.policy, self.scores, self.epoch)
            self._begin(self._upcoming())
        assert self._plan is not None  # noqa: S101  (a resumed pass has a plan)
        self._resume = False
        self._handed_out = self._consumed = 0
        self.epoch = self._plan.epoch + 1
        self._picked = 0
        plan = self._plan
        for b in range(len(plan)):
            self._handed_out = b + 1
            yield plan.batch(b, *self._place)

    def __len__(self) -> int:
        """Exact number of batches of the next pass, if no update comes before it.

        With several processes it goes by the scores of the last exchange: the same in all, and exact also after updates
        unless the number of samples depends on the scores (InfoBatch); then call ``exchange`` before.
        """
        world = self._inbox.place[1]
        if self._resume and self._plan is not None:
            return len(self._plan.dealt(world))
        if world > 1 or getattr(self.policy, "scope", "batch") == "epoch":
            return len(self._upcoming())
        n, size = len(self._scores), self.mini_batch
        return n // size if self.drop_last else -(-n // size)

    def pick(self, index: Tensor) -> Tensor:
        """Choose inside a batch that is loaded already: positions to keep, ascending, by the same policy and scores.

        For streams and loaders that cannot take a batch sampler: ``keep = sampler.pick(index)``, then train on
        ``x[keep], y[keep]`` with ``index[keep]``. Epochs are counted by the samples offered; ``set_epoch`` overrides.
        With several processes each chooses from its own batches; call ``exchange`` in all of them once an epoch.
        """
        index = torch.as_tensor(index)
        if index.dim() != 1 or not len(index):
            raise ValueError(
                f"index has shape {tuple(index.shape)}; give the dataset indices of one batch, shape (n,)."
            )
        candidates = index.to("cpu", torch.int64)
        if int(candidates.min()) < 0 or int(candidates.max()) >= len(self._scores):
            raise ValueError(f"index holds values outside the dataset of {len(self._scores)} samples.")
        epoch = self.epoch + self._picked * self._inbox.place[1] // len(self._scores)
        warn_if_blind(self.policy, self.scores, epoch)
        rng = generator(self.seed, epoch, 1, self._picks)
        kept, weight = self.policy.choose(self.scores, epoch, candidates[None], rng)
        self._picked += len(candidates)
        self._picks += 1
        if weight is not None:
            self._weigh(candidates[kept[0]], weight[0])
        return kept[0].to(index.device)

    def weight(self, index: Tensor) -> Tensor | None:
        """Factor of each of these samples' losses, for policies that reweigh; None for those that do not."""
        if self._weights is None:
            return None
        return self._weights[index.to("cpu", torch.int64)].to(index.device)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is, where a framework counts; an interrupted pass of that epoch goes on."""
        if not (self._resume and self._plan is not None and self._plan.epoch == epoch):
            self._resume = False
            self._plan = None
        self.epoch, self._picked = epoch, 0
        self._next = None

    def _upcoming(self) -> Plan:
        """The plan of the next pass, drawn once for len() and for the pass itself."""
        world = self._inbox.place[1]
        if self._next is None or self._next[0] != world or self._next[1].epoch != self.epoch:
            size = self.mini_batch if self.split else world * self.mini_batch
            if self.drop_last and len(self._scores) < size:
                raise ValueError(
                    f"drop_last=True leaves nothing of {len(self._scores)} samples for {world} processes with "
                    f"batch_size {self.mini_batch} each. Use a smaller batch_size."
                )
            held = self._held[1] if self._held is not None and self._held[0] == self._turn(self.epoch) else None
            rng = generator(self.seed, self.epoch, 0)
            plan = draw(self.policy, self.scores, self.epoch, size, self.drop_last, rng, held)
            self._next = world, plan.dealt(world)
        return self._next[1]

    def _begin(self, plan: Plan) -> None:
        self._plan, self._next, self._weights = plan, None, None
        if plan.weight is not None:
            self._weigh(plan.index, plan.weight)
        if getattr(self.policy, "period", 1) > 1:
            mask = torch.zeros(len(self._scores), dtype=torch.bool)
            mask[plan.index] = True
            self._held = self._turn(plan.epoch), mask

    def _turn(self, epoch: int) -> int:
        """Which choice of the policy an epoch belongs to: -1 for the first epoch, then one a period."""
        return (epoch - 1) // int(getattr(self.policy, "period", 1))

    def _weigh(self, index: Tensor, weight: Tensor) -> None:
        if self._weights is None:
            self._weights = torch.ones(len(self._scores))
        self._weights[index] = weight

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, feedback: Feedback) -> None:
        """Take the losses of one batch into the scores; rows that are not finite leave no trace."""
        if feedback.index is None:
            raise ValueError("The feedback has no index. Pass it: opt.backward(loss_fn, *batch, index=index).")
        self._inbox.add(feedback.index, SIGNALS[self.policy.signal](feedback))
        if self._inbox.place[1] == 1:
            self._next = None  # with several processes the table stays as it is until they exchange
        self._consumed += len(feedback.index)

    def exchange(self) -> None:
        """Give all processes the scores of all; every pass begins with it. Every process must call it."""
        left = len(self._plan) if self._resume and self._plan is not None else 0
        if self._inbox.place[1] > 1:
            self._inbox.exchange((self.epoch, left))
            self._next = None

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Scores, position and, in the middle of an epoch, what is left of its plan; counted by what was consumed.

        The same in all processes, for the plan is that of all: any number of them can go on with it. After an update it
        begins with ``exchange``, so all must call it, or call ``exchange`` before one of them saves.
        """
        if self._inbox.stale:
            self.exchange()
        plan = self._plan
        if plan is not None:
            updated = self._consumed or bool(self.scores.count.any())  # else nobody tells what is consumed
            done = plan.complete(self._consumed, *self._place) if updated else self._handed_out
            plan = plan.rest(done) if done < len(plan) else None
        return {
            "seed": self.seed,
            "signal": self.policy.signal,
            "epoch": self.epoch if plan is None else plan.epoch,
            "picked": self._picked,
            "picks": self._picks,
            "scores": self.scores.state_dict(),
            "plan": None if plan is None else plan.state_dict(),
            "held": self._held,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was saved; a state of another dataset or signal is refused and changes nothing."""
        if state["signal"] != self.policy.signal:
            raise ValueError(
                f"The saved scores hold {state['signal']}, but {type(self.policy).__name__} ranks by "
                f"{self.policy.signal}. Resume with the policy of the saved run."
            )
        self._inbox.clear()
        self._scores.load_state_dict(state["scores"])
        self.seed, self.epoch = state["seed"], state["epoch"]
        self._picked, self._picks = state["picked"], state["picks"]
        self._plan = None if state["plan"] is None else Plan(**state["plan"])
        self._held = state.get("held")
        self._next = None
        self._resume = self._plan is not None
        self._handed_out = self._consumed = 0
        self._weights = None
        if self._plan is not None and self._plan.weight is not None:
            self._weigh(self._plan.index, self._plan.weight)
