"""SelectiveBatchSampler: a batch sampler that loads only the chosen samples of each mini-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, cast

from torch import Tensor
from torch.utils.data import BatchSampler

from ausam.common.atomic import Action, commit
from ausam.common.random import generator
from ausam.common.settings import COUNT, POSITIVE_COUNT, YesNo, checked_value
from ausam.common.tensors import CPU, clone_tensors
from ausam.feedback import Feedback
from ausam.policies.base import Policy, Sliced, validate_policy, with_epochs
from ausam.policies.signals import measure, signal_name
from ausam.policies.trusted import Suspected, Trusted
from ausam.sampler.checks import (
    OWNER,
    checked_ranks,
    dataset_length,
    feedback_index,
    index_vector,
    refuse_other_epochs,
    refuse_rebuilding,
    refuse_sizes,
    warn_if_not_unpacked,
    warn_if_unscored,
    warn_of_evaluation,
    warn_of_updates,
    warn_that_unused,
)
from ausam.sampler.current_pass import Pass, resume
from ausam.sampler.exchange import SharedScores
from ausam.sampler.plan import PICK, EpochChoice, choose_epoch, plan_batches, plan_chosen, plan_slice
from ausam.sampler.scores import Scores
from ausam.sampler.state import validate_state
from ausam.sampler.weights import Weights


class SelectiveBatchSampler(BatchSampler):
    """Batches of dataset indices for ``DataLoader(dataset, batch_sampler=...)``, chosen by a policy before loading.

    The samples are shuffled and split into mini-batches, and the policy keeps some of each (or of the whole epoch,
    which is then split). A sample that is not kept is never read, decoded or copied. An epoch is planned in blocks, as
    they are needed. The result is the same as planning it all at the start: a sample is a candidate once per epoch, so
    feedback from earlier batches concerns other samples. (Feedback on samples still to come would count.)

    >>> import torch
    >>> from ausam import AUSampling, Feedback, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(100, batch_size=10, policy=AUSampling(alpha=0.5), epochs=30, seed=0)
    >>> for index in sampler:                                         # the first epoch: every sample
    ...     loss = torch.rand(len(index))
    ...     sampler.update(Feedback(torch.tensor(index), loss, loss + 0.1))
    >>> sum(len(index) for index in sampler)                          # from then on: half
    50

    Arguments:
        dataset: the dataset (only its length is used), or its length, >= 1.
        batch_size: samples per mini-batch before the policy chooses, >= 1; per process if there are several.
        policy: ``Full()``, ``Random(alpha)``, ``AUSampling(alpha)``, ...
        epochs: number of epochs of the whole training, >= 1, for a policy that counts in fractions of it
            (``AUSampling(ramp=0.15)``, ``InfoBatch``); None: not known, or known to the policy or the framework.
        drop_last: leave out a short last mini-batch.
        seed: determines the plan, together with the epoch and the scores; a whole number >= 0.
        rank: rank of this process; None: torch.distributed's, or 0 for a single process.
        world_size: number of processes; given with ``rank`` or not at all.
        split: if True, batch_size is the total over all processes and each gets a share, so the plan does not depend on
            the number of processes.
        min_batch: smallest batch in each process, >= 1. A smaller batch is joined to the next one, and the last to the
            one before. Use 2 for a network with BatchNorm.

    One pass is one epoch, and the sampler counts them. After a pass that was broken off, a new ``for`` begins the next
    epoch. To continue the pass, load its ``state_dict()`` into this or another sampler, or iterate over a copy
    (``copy.deepcopy``, pickle). Call ``update`` with the feedback of every batch: it feeds the
    scores and records which batches were consumed. With prefetching workers, that is fewer than were handed out.

    Several processes share one plan: the policy chooses from mini-batches of ``world_size * batch_size`` (``split``: of
    ``batch_size``), as one process with that batch size would. The kept samples are divided without overlap, and
    shares differ by at most one. All get the same number of batches, none with fewer than ``min_batch`` samples.
    Scores are exchanged when a pass begins, so every process must begin every pass.

    Cost: 12 bytes per sample for the scores, 4 more if the policy weights samples. Planning takes about one random
    memory access per sample and per column that the policy reads.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> SelectiveBatchSampler:
        """Refuse to be built from another sampler: frameworks that replace a loader's batch sampler do that."""
        refuse_rebuilding(*args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        policy: Policy,
        *,
        epochs: int | None = None,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        split: bool = False,
        min_batch: int = 1,
    ) -> None:
        n = dataset_length(dataset)
        validate_policy(policy)
        # Batches differ in length. Code that reads batch_size (Accelerate's shards) would drop the shorter ones.
        self.batch_size = None  # type: ignore[assignment]
        self.mini_batch: int = checked_value(OWNER, "batch_size", batch_size, POSITIVE_COUNT)
        self.min_batch: int = checked_value(OWNER, "min_batch", min_batch, POSITIVE_COUNT)
        self.split: bool = checked_value(OWNER, "split", split, YesNo())
        self.drop_last = checked_value(OWNER, "drop_last", drop_last, YesNo())
        refuse_other_epochs(policy, epochs)
        self.policy = self._given_policy = with_epochs(policy, epochs)
        self.seed: int = checked_value(OWNER, "seed", seed, COUNT)
        self.epoch = 0  # of the next pass
        refuse_sizes(n, self.mini_batch, self.min_batch, self.drop_last)
        self._scores = SharedScores(
            n,
            *checked_ranks(rank, world_size),
            repeats=getattr(policy, "replacement", False),
            decay=policy.decay,
            forgetting=policy.signal == "forgetting",
            progress=policy.signal == "progress",
            spread=policy.spread,
        )
        self._weights = Weights(n)
        self._pass: Pass | None = None  # the latest pass that has begun
        self._next: Pass | None = None  # the next pass once it is needed, or one to be resumed
        self._choice: EpochChoice | None = None  # the latest choice of a policy of scope "epoch"
        self._updated = False  # whether update was ever called
        self._picked = 0  # candidates that pick() has seen since the epoch was set
        self._picks = 0
        self._warned: set[str] = set()  # what is said once
        self._unasked = 0 if policy.kept < 1 else None  # samples updated; None once batches were asked for

    @property
    def scores(self) -> Scores:
        """The scores of all samples, as of the latest update; with several processes, as of the latest exchange.

        ``sampler.scores.set(index, values)`` sets scores by hand.
        """
        self._scores.flush()
        return self._scores

    def set_total_epochs(self, epochs: int) -> None:
        """Set the number of epochs of the whole training, for frameworks that know it; one that you gave is kept."""
        self.policy = with_epochs(self._given_policy, checked_value(OWNER, "epochs", epochs, POSITIVE_COUNT))
        if self._interrupted:
            self._interrupted.policy = self.policy
        else:
            self._next = None

    @property
    def rank_and_world_size(self) -> tuple[int, int]:
        """Rank of this process and number of processes: as given, else torch.distributed's."""
        return self._scores.rank_and_world_size

    # -- choosing ------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Record that the scores are in use, and warn if no score has arrived that the policy needs."""
        self._unasked = None
        warn_if_unscored(self.policy, self.scores, self.epoch, updated=self._updated)
        self._fit(self.epoch)

    def __iter__(self) -> Iterator[list[int]]:
        # A generator, so that the pass begins with its first batch: DataLoader's workers ask for an iterator twice.
        self.exchange()
        self._unasked = None
        last, expected = self._pass, self._updated and getattr(self.policy, "reads_scores", False)
        if expected and last is not None and last.delivered and not last.consumed and self._first("evaluation"):
            warn_of_evaluation(last.plan.epoch)
        rank, world = self.rank_and_world_size
        current = self._upcoming()
        current.split(world, self.min_batch)
        if not current.resumed:
            warn_if_unscored(self.policy, self.scores, current.plan.epoch, updated=self._updated)
            self._begin(current)
        self._next, self._pass = None, current
        self.epoch, self._picked = current.plan.epoch + 1, 0
        current.running = True
        try:
            yield from current.batches(rank, world, self.min_batch)
        except GeneratorExit:
            if not self._updated:
                warn_if_not_unpacked()
            raise
        finally:
            current.running = False

    def __len__(self) -> int:
        """Exact number of batches of the next pass, if no update comes before it.

        With several processes it is computed from the scores of the last exchange, so all agree. It stays exact after
        updates unless the number of samples depends on the scores (InfoBatch): in that case, call ``exchange`` first.
        """
        return len(self._upcoming().split(self.rank_and_world_size[1], self.min_batch))

    def pick(self, index: Tensor) -> Tensor:
        """Choose inside a loaded batch, with the same policy and scores. Returns the positions to keep, ascending.

        For streams and loaders that cannot take a batch sampler: ``keep = sampler.pick(index)``, then train on
        ``x[keep], y[keep]`` with ``index[keep]``. Epochs are counted by the samples offered, unless you call
        ``set_epoch``. With several processes, each chooses from its own batches; call ``exchange`` in all of them once
        per epoch. ``min_batch`` does not apply, because there is no other batch to join.
        """
        candidates = index_vector(index, len(self._scores))
        self._unasked = None
        epoch = self.epoch + self._picked * self.rank_and_world_size[1] // len(self._scores)
        warn_if_unscored(self.policy, self.scores, epoch, updated=self._updated)
        if epoch != self._scores.fit_epoch:
            self._fit(epoch)
        rng = generator(self.seed, epoch, PICK, self._picks)
        kept, weight = self.policy.choose(self.scores, epoch, candidates[None], rng)
        self._picked += len(candidates)
        self._picks += 1
        if weight is not None:
            self._weights.put(candidates[kept[0]], weight[0])
        return kept[0].to(getattr(index, "device", CPU))

    def weight(self, index: Tensor) -> Tensor | None:
        """The factor of each of these samples' losses, or None if the policy does not reweight.

        Valid for samples that were handed out or picked; later batches may not be planned yet.
        """
        return self._weights.of(index)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for frameworks that count. An interrupted pass of that epoch continues."""
        epoch = checked_value(OWNER, "epoch", epoch, COUNT)
        if not (self._interrupted and self._interrupted.plan.epoch == epoch):
            self._next = None
        self._pass = None
        self.epoch, self._picked = epoch, 0

    @property
    def _interrupted(self) -> Pass | None:
        """The loaded pass that is to be resumed."""
        return self._next if self._next is not None and self._next.resumed else None

    def _upcoming(self) -> Pass:
        """The next pass: the interrupted one, or that of the next epoch, not planned yet."""
        world, n = self.rank_and_world_size[1], len(self._scores)
        size = self.mini_batch if self.split else world * self.mini_batch
        known = self._next is not None and (self._next.plan.epoch, self._next.plan.size) == (self.epoch, min(size, n))
        if self._next is not None and (self._next.resumed or known):
            return self._next
        if self.drop_last and n < size:
            raise ValueError(
                f"drop_last=True leaves nothing of {n} samples for {world} processes with batch_size "
                f"{self.mini_batch} each. Use a smaller batch_size."
            )
        shape = self.epoch, self.seed, size, self.drop_last
        choice = None
        if self.policy.scope == "batch":
            plan = plan_batches(self.policy, n, *shape)
        elif self.policy.scope == "slice":
            plan = plan_slice(cast("Sliced", self.policy), n, *shape)
        else:
            choice = self._lasting_choice()
            used = self.policy.count(self.epoch, n) if choice is None else choice.samples
            if used is None:
                choice = self._choose(self.epoch)
                used = choice.samples
            plan = plan_chosen(used, n, *shape)
        self._next = Pass(plan, self.policy, self._scores, self._weights, choice, updated=self._updated)
        return self._next

    def _fit(self, epoch: int) -> None:
        """Let the policy derive what it needs from all scores, before the first choice of an epoch."""
        if isinstance(self.policy, Policy):
            self._scores.fit = self.policy.fit(self.scores, epoch)
        self._scores.fit_epoch = epoch

    def _begin(self, current: Pass) -> None:
        self._fit(current.plan.epoch)
        if self.policy.scope == "epoch":
            current.choice = self._choice = current.choice or self._choose(current.plan.epoch)
        self._weights.table = current.choice.weight if current.choice else None

    def _lasting_choice(self) -> EpochChoice | None:
        """The choice of an earlier epoch that still applies to the next one."""
        choice = self._choice if self.policy.period > 1 else None
        return choice if choice is not None and choice.order_id == self._order_id(self.epoch) else None

    def _choose(self, epoch: int) -> EpochChoice:
        return choose_epoch(self.policy, self.scores, epoch, self.seed, self._order_id(epoch))

    def _order_id(self, epoch: int) -> int:
        """Number of the policy's choice that an epoch uses: -1 for the first epoch, then one per period."""
        return (epoch - 1) // self.policy.period

    def suspects(self) -> Suspected:
        """The samples that the policy does not trust now: index, probability, estimated share of wrong labels.

        For policies that judge labels (:class:`~ausam.Trusted`); any training can ask :class:`ausam.audit.Audit`.
        """
        if not isinstance(self.policy, Trusted):
            raise TypeError(
                f"{type(self.policy).__name__} does not judge labels. Use Trusted(labels), or feed an "
                "ausam.audit.Audit with the same feedback."
            )
        return self.policy.suspects(self.scores)

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, feedback: Feedback) -> None:
        """Add the losses of one batch to the scores, ignoring rows that are not finite.

        All or nothing: an error or a signal leaves scores and position as they were, or both as they are afterwards.
        """
        self.update_with(feedback)

    def update_with(self, feedback: Feedback, also: Sequence[Action] = ()) -> None:
        """As ``update``, with other changes that must happen together with it (see :mod:`ausam.common.atomic`)."""
        index = feedback_index(feedback)
        value = measure(self.policy.signal, feedback)
        changes: list[Action] = [(setattr, self, "_updated", True), *self._forgetting_choice(), *also]
        if self._pass is not None:
            changes.append((setattr, self._pass, "consumed", self._pass.consumed + len(index)))
        if value is None:
            commit(changes)
        else:
            self._scores.add(index, value, changes)
        if self._pass is not None and self._pass.ahead and self._first("updates"):
            warn_of_updates()
        if self._unasked is not None:
            self._unasked += len(index) * self.rank_and_world_size[1]
            if self._unasked > len(self._scores):
                self._unasked = None
                warn_that_unused(self.policy, len(self._scores))

    def _first(self, warning: str) -> bool:
        """Whether this warning has not been shown yet; from now on it has."""
        first = warning not in self._warned
        self._warned.add(warning)
        return first

    def exchange(self) -> None:
        """Share the scores among all processes. Runs at the start of every pass; every process must call it."""
        world = self.rank_and_world_size[1]
        if world > 1:
            left = len(self._interrupted.split(world, self.min_batch)) if self._interrupted else 0
            self._scores.exchange((self.epoch, left))
            commit(self._forgetting_choice())

    @property
    def has_unshared_scores(self) -> bool:
        """Whether this process has scores that the others do not have: ``exchange`` comes before ``state_dict``."""
        return self.rank_and_world_size[1] > 1 and self._scores.has_unshared

    def _forgetting_choice(self) -> list[Action]:
        """The change that discards a choice which was made for len() from scores that change now."""
        stale = self._next is not None and self._next.choice is not None and not self._next.resumed
        return [(setattr, self, "_next", None)] if stale else []

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Scores, position and, in the middle of an epoch, the state needed to plan the rest.

        The state is the same in all processes, because they share one plan, and any number of processes can resume from
        it. With several processes, call ``exchange`` in all of them first; then save in one.
        """
        if self.has_unshared_scores:
            raise RuntimeError(
                "The scores of this process have not reached the others since the last update, so the state would not "
                "be whole. Call sampler.exchange() in every process, then sampler.state_dict() in any of them."
            )
        current = self._interrupted or self._pass
        plan = None if current is None else current.state_dict()
        choice = self._choice if plan is not None or self.policy.period > 1 else None
        return {
            "seed": self.seed,
            "signal": signal_name(self.policy.signal),
            "epoch": self.epoch if plan is None else plan["epoch"],
            "updated": self._updated,
            "picked": self._picked,
            "picks": self._picks,
            "scores": self.scores.state_dict(),
            "plan": plan,
            "choice": None if choice is None else clone_tensors(vars(choice)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. A state that does not fit is refused and changes nothing."""
        commit(self.loading(state))

    def loading(self, state: dict[str, Any]) -> list[Action]:
        """The changes that load a saved state; refused if it does not fit. Nothing is changed yet."""
        validate_state(state, len(self._scores))
        if state["signal"] != signal_name(self.policy.signal):
            raise ValueError(
                f"The saved scores are of {state['signal']}, but {type(self.policy).__name__} ranks by "
                f"{signal_name(self.policy.signal)}. Resume with the policy of the saved run."
            )
        plan = None if state["plan"] is None else clone_tensors(state["plan"])
        choice = None if state["choice"] is None else EpochChoice(**clone_tensors(state["choice"]))
        interrupted = None
        if plan is not None:
            interrupted = resume(plan, self.policy, self._scores, self._weights, choice, updated=state["updated"])
        weights = Weights(len(self._scores))
        weights.table = choice.weight if choice else None
        if plan is not None and plan["weight"] is not None:
            weights.put(plan["index"].long(), plan["weight"])
        values = {name: state[name] for name in ("seed", "epoch")}
        values |= {f"_{name}": state[name] for name in ("updated", "picked", "picks")}
        values |= {"_pass": None, "_next": interrupted, "_choice": choice}
        changes: list[Action] = [(setattr, self, name, value) for name, value in values.items()]
        return [*self._scores.loading(state["scores"]), (setattr, self._weights, "table", weights.table), *changes]

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a pass that is under way is interrupted here, so that the copy continues it."""
        values = self.__dict__.copy()
        current = None if self._pass is None else self._pass.state_dict()
        if current is not None:
            parts = self.policy, self._scores, self._weights, self._pass.choice if self._pass else None
            values |= {"_next": resume(current, *parts, updated=self._updated), "epoch": current["epoch"]}
        return {**values, "_pass": None}

    def __repr__(self) -> str:
        rank, world = self.rank_and_world_size
        process = f", rank {rank} of {world}" if world > 1 else ""
        known = int((self.scores.count > 0).sum())
        return (
            f"{type(self).__name__}({len(self._scores)} samples, batch_size={self.mini_batch}, policy={self.policy}, "
            f"seed={self.seed}{process}; next epoch {self.epoch}, {known} samples have a score)"
        )
