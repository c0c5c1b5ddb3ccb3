"""SelectiveBatchSampler: a batch sampler that loads only the chosen samples of each mini-batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sized
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler

from ausam.common.label_errors import LabelErrors
from ausam.common.random import generator
from ausam.common.settings import COUNT, POSITIVE_COUNT, YesNo, checked_value
from ausam.common.tensors import CPU, clone_tensors
from ausam.feedback import Feedback
from ausam.policies.base import Policy, validate_policy, with_epochs
from ausam.policies.signals import measure, signal_name
from ausam.sampler.errors import (
    OWNER,
    checked_ranks,
    dataset_index,
    dataset_length,
    feedback_index,
    refuse_rebuilding,
    warn_if_unscored,
    warn_of_positions,
    warn_that_unused,
    warn_that_unweighted,
)
from ausam.sampler.plan import (
    PICK,
    EpochChoice,
    EpochIterator,
    Plan,
    batch_count,
    batch_starts,
    choice_number,
    choose_among_all,
    plan_batches,
    plan_choice,
    put_weights,
    samples_used,
)
from ausam.sampler.scores import Scores, SharedScores, on_accelerator


class SelectiveBatchSampler(BatchSampler):
    """Batches of dataset indices for ``DataLoader(dataset, batch_sampler=...)``, chosen by a policy before loading.

    The samples are shuffled and split into mini-batches, and the policy keeps some of each (or of the whole epoch,
    which is then split). A sample that is not kept is never read, decoded or copied. The epoch is planned when it
    begins: each sample is a candidate once, so its score was last written in an earlier epoch.

    >>> import torch
    >>> from ausam import AUSampling, Feedback, SelectiveBatchSampler
    >>> sampler = SelectiveBatchSampler(100, batch_size=10, policy=AUSampling(alpha=0.5), epochs=30, seed=0)
    >>> for index in sampler:                                         # the first epoch: every sample
    ...     loss = torch.rand(len(index))
    ...     sampler.update(Feedback(torch.tensor(index), loss, loss + 0.1))
    >>> sum(len(index) for index in sampler)                          # from then on: half
    50

    Arguments:
        dataset: the dataset (only its length is used, and it must not change), or its length, >= 1.
        batch_size: samples per mini-batch before the policy chooses, >= 1. Per process if there are several.
        policy: ``Full()``, ``Random(alpha)``, ``AUSampling(alpha)``, ...
        epochs: number of epochs of the whole training, >= 1, for a policy that counts in fractions of it
            (``AUSampling(ramp=0.15)``, ``InfoBatch``). If None, not known, or known to the policy or the framework.
        drop_last: leave out a short last mini-batch.
        seed: determines the plan, together with the epoch and the scores. A whole number >= 0.
        rank: rank of this process. If None, torch.distributed's, or 0 for a single process.
        world_size: number of processes. Given with ``rank`` or not at all.
        split: if True, batch_size is the total over all processes, and each gets a share. The plan then does not depend
            on the number of processes.
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

    Cost: 12 bytes per sample for the scores, 4 for the plan, 4 more if the policy weights samples. Planning ten million
    samples takes up to two seconds of a CPU core, and for the moment up to 24 bytes per sample.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> SelectiveBatchSampler:
        """Raise an error if built from another sampler: frameworks that replace a loader's batch sampler do that."""
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
        self._dataset: Sized | int = dataset
        validate_policy(policy)
        # Batches differ in length. Code that reads batch_size (Accelerate's shards) would drop the shorter ones.
        self.batch_size = None  # type: ignore[assignment]
        self.mini_batch: int = checked_value(OWNER, "batch_size", batch_size, POSITIVE_COUNT)
        self.min_batch: int = checked_value(OWNER, "min_batch", min_batch, POSITIVE_COUNT)
        self.split: bool = checked_value(OWNER, "split", split, YesNo())
        self.drop_last = checked_value(OWNER, "drop_last", drop_last, YesNo())
        self.policy = self._given_policy = policy
        if epochs is not None:
            self.set_total_epochs(epochs)
            self._given_policy = self.policy
            own = getattr(self.policy, "epochs", None)
            if own not in (None, epochs):
                raise ValueError(
                    f"{OWNER}: epochs is {epochs}, but {type(policy).__name__} has epochs={own}. Give the number once."
                )
        self.seed: int = checked_value(OWNER, "seed", seed, COUNT)
        self.epoch = 0  # of the next pass
        if n < self.min_batch:
            raise ValueError(f"min_batch is {min_batch}, but the dataset has {n} samples. Use a smaller min_batch.")
        self._scores = SharedScores(
            n,
            *checked_ranks(rank, world_size),
            repeats=getattr(policy, "replacement", False),
            decay=policy.decay,
            forgetting=policy.signal == "forgetting",
            progress=policy.signal == "progress",
            spread=policy.spread,
        )
        if self._candidates_per_batch() == 1 < n and policy.scope == "batch" and policy.kept < 1:
            warnings.warn(
                f"{type(policy).__name__} keeps at least one sample of every mini-batch, so with batch_size=1 it "
                "leaves none out. Use a larger batch_size, or Full().",
                stacklevel=2,
            )
        self._weight: Tensor | None = None  # factor of every sample's loss, if the policy sets it
        self._current: EpochIterator | None = None  # the latest pass that has begun
        self._interrupted: Plan | None = None  # the rest of a loaded pass, to be resumed
        self._choice: EpochChoice | None = None  # of a policy of scope "epoch", if it may hold for several epochs
        self._updated = False  # whether update was ever called
        self._picked = 0  # candidates that pick() has seen since the epoch was set
        self._picks = 0
        self._weighed = False  # whether anybody asked for the weights, or was told to
        self._unasked = 0 if policy.kept < 1 else None  # samples updated; None once batches were asked for

    @property
    def scores(self) -> Scores:
        """The scores of all samples, as of the latest update. With several processes, as of the latest exchange.

        ``sampler.scores.set(index, values)`` sets scores by hand.
        """
        self._scores.flush()
        return self._scores

    def set_total_epochs(self, epochs: int) -> None:
        """Set the number of epochs of the whole training, for frameworks that know it. One that you gave is kept."""
        self.policy = with_epochs(self._given_policy, checked_value(OWNER, "epochs", epochs, POSITIVE_COUNT))

    @property
    def rank_and_world_size(self) -> tuple[int, int]:
        """Rank of this process and number of processes: as given, else torch.distributed's."""
        return self._scores.rank_and_world_size

    # -- choosing ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[int]]:
        # A generator, so that the pass begins with its first batch: DataLoader's workers ask for an iterator twice.
        if (now := dataset_length(self._dataset)) != len(self._scores):
            raise RuntimeError(
                f"The dataset had {len(self._scores)} samples when the sampler was built, but it has {now} now. "
                "Build a new SelectiveBatchSampler for it."
            )
        self.exchange()
        self._unasked = None
        plan = self._interrupted or self._plan()
        current = EpochIterator(plan, *self.rank_and_world_size, self.min_batch, updated=self._updated)
        self._current, self._interrupted = current, None
        self._weight = plan.weight
        self.epoch, self._picked = plan.epoch + 1, 0
        yield from current

    def __len__(self) -> int:
        """Exact number of batches of the next pass, if no update comes before it.

        With several processes it is computed from the scores of the last exchange, so all agree. It stays exact after
        updates unless the number of samples depends on the scores (InfoBatch): in that case, call ``exchange`` first.
        """
        world_size = self.rank_and_world_size[1]
        if self._interrupted is not None:
            return len(self._interrupted.split(world_size, self.min_batch))
        samples, kept = self._samples_and_kept()
        what = f"{samples} samples are chosen for epoch {self.epoch}"
        return len(batch_starts(samples, kept, world_size, self.min_batch, what))

    def _plan(self) -> Plan:
        """Plan the next epoch."""
        self._prepare(self.epoch)
        size = self._candidates_per_batch()
        if self.policy.scope == "batch":
            return plan_batches(self.policy, self.scores, self.epoch, self.seed, size, drop_last=self.drop_last)
        choice = self._chosen()
        self._choice = choice if self.policy.period > 1 else None
        return plan_choice(self.policy, choice, self.epoch, self.seed, size, drop_last=self.drop_last)

    def _samples_and_kept(self) -> tuple[int, int]:
        """Number of samples of the next epoch, and how many of them are in a mini-batch."""
        policy, n, size = self.policy, len(self._scores), self._candidates_per_batch()
        if policy.scope == "batch":
            kept, short = batch_count(policy, self.epoch, size), n % size
            last = batch_count(policy, self.epoch, short) if short and not self.drop_last else 0
            return n // size * kept + last, kept
        count = policy.count(self.epoch, n)
        kept = policy.size(size)
        samples = len(self._chosen().index) if count is None else count
        return samples_used(samples, kept, drop_last=self.drop_last), kept

    def _candidates_per_batch(self) -> int:
        world_size, n = self.rank_and_world_size[1], len(self._scores)
        size = self.mini_batch if self.split else world_size * self.mini_batch
        if self.drop_last and n < size:
            raise ValueError(
                f"drop_last=True leaves nothing of {n} samples for {world_size} processes with batch_size "
                f"{self.mini_batch} each. Use a smaller batch_size."
            )
        return min(size, n)

    def _chosen(self) -> EpochChoice:
        """The choice of a policy of scope "epoch" for the next epoch: one that still holds, or a new one."""
        if self._choice is not None and self._choice.number == choice_number(self.policy, self.epoch):
            return self._choice
        return choose_among_all(self.policy, self.scores, self.epoch, self.seed)

    def _prepare(self, epoch: int) -> None:
        """Let the policy derive what it needs from all scores, before the first choice of an epoch."""
        warn_if_unscored(self.policy, self.scores, epoch)
        fit = self.policy.fit(self.scores, epoch)
        self._scores.fit, self._scores.fit_epoch = tuple(map(float, fit)), epoch  # NumPy's numbers are in no file

    def pick(self, index: Tensor) -> Tensor:
        """Choose inside a loaded batch, with the same policy and scores. Returns the positions to keep, ascending.

        For streams and loaders that cannot take a batch sampler: ``keep = sampler.pick(index)``, then train on
        ``x[keep], y[keep]`` with ``index[keep]``. Epochs are counted by the samples offered, unless you call
        ``set_epoch``. With several processes, each chooses from its own batches. Call ``exchange`` in all of them once
        per epoch. ``min_batch`` does not apply, because there is no other batch to join.
        """
        candidates = dataset_index(index, len(self._scores))
        self._unasked = None
        epoch = self.epoch + self._picked * self.rank_and_world_size[1] // len(self._scores)
        if epoch != self._scores.fit_epoch or not self.scores.known:
            self._prepare(epoch)
        rng = generator(self.seed, epoch, PICK, self._picks)
        kept, weight = self.policy.choose(self.scores, epoch, candidates[None], rng)
        self._picked += len(candidates)
        self._picks += 1
        self.set_weight(candidates[kept[0]], None if weight is None else weight[0])
        return kept[0].to(getattr(index, "device", CPU))

    def begin_stream(self, epoch: int) -> None:
        """Begin an epoch whose batches a :class:`SelectiveStream` makes, with the policy and the scores from here."""
        self.set_epoch(epoch)
        self.exchange()
        self._unasked = self._weight = None
        if epoch != self._scores.fit_epoch:  # a resumed pass keeps what the policy found when it began
            self._prepare(epoch)
        self.set_epoch(epoch + 1)

    def set_weight(self, index: Tensor, weight: Tensor | None) -> None:
        """Set the factors that :meth:`weight` returns for samples that were chosen outside of a plan."""
        if weight is not None:
            self._weight = put_weights(self._weight, len(self._scores), index, weight)

    def weight(self, index: Tensor) -> Tensor | None:
        """The factor of each of these samples' losses, or None if the policy does not reweight."""
        self._weighed = True
        if self._weight is None:
            return None
        return self._weight[dataset_index(index, len(self._scores))].to(getattr(index, "device", CPU))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, for frameworks that count. An interrupted pass of that epoch continues."""
        epoch = checked_value(OWNER, "epoch", epoch, COUNT)
        if self._interrupted is not None and self._interrupted.epoch != epoch:
            self._interrupted = None
        self._current = None
        self.epoch, self._picked = epoch, 0

    def label_errors(self) -> LabelErrors:
        """All samples, ranked by how wrong their labels look to the policy, and those that are flagged now.

        For policies with a method ``label_errors(scores)``, such as :class:`~ausam.Trusted`. Any training can ask
        :class:`ausam.audit.Audit`, which also remembers earlier epochs.
        """
        if not hasattr(self.policy, "label_errors"):
            raise TypeError(
                f"{type(self.policy).__name__} does not flag labels. Use Trusted(labels), or feed an "
                "ausam.audit.Audit with the same feedback."
            )
        errors: LabelErrors = self.policy.label_errors(self.scores)
        return errors

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, feedback: Feedback) -> None:
        """Add the losses of one batch to the scores, ignoring rows that are not finite.

        An error changes nothing. On an accelerator, several batches are read together, so that a step does not wait for
        the device. An index out of range raises its error then.
        """
        index = feedback_index(feedback)
        self._warn_of_mistakes(index)
        value = measure(self.policy.signal, feedback)
        if value is not None:
            self._scores.add(index, value)
        self._updated = True
        if self._current is not None:
            self._current.consumed += len(index)
        if self._unasked is not None:
            self._unasked += len(index) * self.rank_and_world_size[1]
            if self._unasked > len(self._scores):
                self._unasked = None
                warn_that_unused(self.policy, len(self._scores))

    def _warn_of_mistakes(self, index: Tensor) -> None:
        """Warn if this is feedback on other samples than the sampler gave, or if its weights are not in use."""
        current = self._current
        if current is not None and not (current.consumed or current.finished or on_accelerator(index)):
            warn_of_positions(index, current.plan.index[: current.handed_out])
        if self._weight is not None and not self._weighed and bool((self._weight != 1).any()):
            self._weighed = True
            warn_that_unweighted(self.policy)

    def exchange(self) -> None:
        """Share the scores among all processes. Runs at the start of every pass. Every process must call it."""
        world = self.rank_and_world_size[1]
        if world > 1:
            self._scores.exchange(self.epoch, self._interrupted.done if self._interrupted else 0, self.seed)

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Scores, position and, in the middle of an epoch, the state needed to plan the rest.

        The state is the same in all processes, because they share one plan, and any number of processes can resume from
        it. With several processes, call ``exchange`` in all of them first. Then save in one.
        """
        if self._scores.has_unshared:
            raise RuntimeError(
                "The scores of this process have not reached the others since the last update, so the state would not "
                "be whole. Call sampler.exchange() in every process, then sampler.state_dict() in any of them."
            )
        plan = self._rest()
        return {
            "policy": type(self.policy).__name__,
            "signal": signal_name(self.policy.signal),
            "seed": self.seed,
            "epoch": self.epoch if plan is None else plan.epoch,
            "updated": self._updated,
            "picked": self._picked,
            "picks": self._picks,
            "scores": self.scores.state_dict(),
            "plan": None if plan is None else clone_tensors(vars(plan)),
            "choice": None if self._choice is None else clone_tensors(vars(self._choice)),
        }

    def _rest(self) -> Plan | None:
        """The plan of what is not consumed of the current epoch, or of the loaded one."""
        if self._interrupted is not None:
            return self._interrupted
        return None if self._current is None else self._current.rest()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. The rest of a saved epoch is used as it was planned.

        A state of other samples or another policy raises an error and changes nothing.
        """
        if not (isinstance(state, dict) and {"policy", "signal", "scores", "plan", "choice"} <= state.keys()):
            raise ValueError(
                "This is not the state of a sampler of this version. Load what sampler.state_dict() returned, or start "
                "again without it."
            )
        for what, mine in (("policy", type(self.policy).__name__), ("signal", signal_name(self.policy.signal))):
            if state[what] != mine:
                raise ValueError(
                    f"The saved state has the {what} {state[what]}, but the sampler has {mine}. "
                    "Resume with the policy of the saved run."
                )
        plan = None if state["plan"] is None else Plan(**clone_tensors(state["plan"]))
        choice = None if state["choice"] is None else EpochChoice(**clone_tensors(state["choice"]))
        self._scores.load_state_dict(state["scores"])
        self.seed, self.epoch, self._updated = state["seed"], state["epoch"], state["updated"]
        self._picked, self._picks = state["picked"], state["picks"]
        self._current, self._interrupted, self._choice = None, plan, choice
        self._weight = None if plan is None else plan.weight

    def __getstate__(self) -> dict[str, Any]:
        """For copies: a pass that is under way is interrupted here, so that the copy continues it."""
        plan = self._rest()
        epoch = self.epoch if plan is None else plan.epoch
        changed = {"_interrupted": plan, "_current": None, "epoch": epoch, "_dataset": len(self._scores)}
        return {**self.__dict__, **changed}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self._scores)} samples, batch_size={self.mini_batch}, policy={self.policy}, "
            f"seed={self.seed}, next epoch {self.epoch})"
        )
