"""SelectiveBatchSampler: mini-batches of which only the chosen part is ever loaded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Subset

from ausam.feedback import Feedback
from ausam.random import generator
from ausam.selection.dataset import Indexed
from ausam.selection.plan import Plan, draw
from ausam.selection.policy import Policy
from ausam.selection.scores import Scores
from ausam.selection.signals import AT_PERTURBED_WEIGHTS, SIGNALS, check_signal

# Updates that wait on an accelerator before they are read back, so that not every step synchronises.
WAITING = 64


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
        batch_size: samples of a mini-batch before the policy chooses, >= 1.
        policy: ``Full()``, ``Random(alpha)``, ``AUSampling(alpha)``, ...
        drop_last: leave out a last mini-batch that is short.
        seed: with the epoch and the scores it fixes the plan.

    One pass is one epoch; the sampler counts them. Call ``update`` with the feedback of every batch: it feeds the
    scores, and tells what was consumed, which with prefetching workers is less than what was handed out.
    """

    def __init__(
        self, dataset: Sized | int, batch_size: int, policy: Policy, *, drop_last: bool = False, seed: int = 0
    ) -> None:
        if isinstance(dataset, Subset) and isinstance(dataset.dataset, Indexed):
            raise TypeError(
                "Subset(Indexed(dataset)) delivers indices of the whole dataset, but the sampler counts the subset. "
                "Turn them round: Indexed(Subset(dataset, ...))."
            )
        n = dataset if isinstance(dataset, int) else len(dataset)
        if n < 1 or batch_size < 1:
            raise ValueError(f"The dataset has {n} samples and batch_size is {batch_size}; both must be at least 1.")
        if drop_last and n < batch_size:
            raise ValueError(
                f"drop_last=True leaves nothing of {n} samples with batch_size {batch_size}. Use a smaller batch_size."
            )
        if isinstance(policy, type) or not hasattr(policy, "choose"):
            raise TypeError(f"policy is {policy!r}, but an instance such as AUSampling(alpha=0.5) is needed.")
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed is {seed!r}; give a whole number from 0 up.")
        check_signal(type(policy).__name__, policy.signal)
        # Batches differ in length; code that reads batch_size (Accelerate's shards) would drop those that do.
        self.batch_size = None  # type: ignore[assignment]
        self.mini_batch = batch_size
        self.drop_last = drop_last
        self.policy = policy
        self.seed = seed
        self.epoch = 0  # of the next pass
        forgetting = policy.signal == "forgetting"
        self._scores = Scores(n, policy.decay, forgetting=forgetting, spread=getattr(policy, "spread", False))
        self._waiting: list[tuple[Tensor, Tensor]] = []  # index and value
        self._plan: Plan | None = None  # of the pass under way, or of one to be resumed
        self._next: Plan | None = None  # of the next pass, where its length was asked for
        self._held: tuple[int, Tensor] | None = None  # a turn, and which samples are used in it
        self._resume = False
        self._handed_out = 0  # batches of the plan
        self._consumed = 0  # samples of the plan
        self._picked = 0  # candidates that pick() has seen since the epoch was set
        self._picks = 0
        self._weights: Tensor | None = None

    @property
    def scores(self) -> Scores:
        """What is known of each sample, up to the latest update."""
        self._flush()
        return self._scores

    # -- choosing ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: the pass begins with its first batch, for DataLoader's workers ask for an iterator twice.
        if not self._resume:
            self._warn_if_blind(self.epoch)
            self._begin(self._upcoming())
        assert self._plan is not None  # noqa: S101  (a resumed pass has a plan)
        self._resume = False
        self._handed_out = self._consumed = 0
        self.epoch = self._plan.epoch + 1
        self._picked = 0
        plan = self._plan
        for b in range(len(plan)):
            self._handed_out = b + 1
            yield plan.batch(b)

    def __len__(self) -> int:
        """Exact number of batches of the next pass, if no update comes before it."""
        if self._resume and self._plan is not None:
            return len(self._plan)
        if getattr(self.policy, "scope", "batch") == "epoch":
            return len(self._upcoming())
        n, size = len(self._scores), self.mini_batch
        return n // size if self.drop_last else -(-n // size)

    def pick(self, index: Tensor) -> Tensor:
        """Choose inside a batch that is loaded already: positions to keep, ascending, by the same policy and scores.

        For streams and loaders that cannot take a batch sampler: ``keep = sampler.pick(index)``, then train on
        ``x[keep], y[keep]`` with ``index[keep]``. Epochs are counted by the samples offered; ``set_epoch`` overrides.
        """
        index = torch.as_tensor(index)
        if index.dim() != 1 or not len(index):
            raise ValueError(
                f"index has shape {tuple(index.shape)}; give the dataset indices of one batch, shape (n,)."
            )
        candidates = index.to("cpu", torch.int64)
        if int(candidates.min()) < 0 or int(candidates.max()) >= len(self._scores):
            raise ValueError(f"index holds values outside the dataset of {len(self._scores)} samples.")
        epoch = self.epoch + self._picked // len(self._scores)
        self._warn_if_blind(epoch)
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
        if self._next is None or self._next.epoch != self.epoch:
            held = self._held[1] if self._held is not None and self._held[0] == self._turn(self.epoch) else None
            rng = generator(self.seed, self.epoch, 0)
            self._next = draw(self.policy, self.scores, self.epoch, self.mini_batch, self.drop_last, rng, held)
        return self._next

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

    def _warn_if_blind(self, epoch: int) -> None:
        signal = self.policy.signal
        if epoch > 0 and signal in AT_PERTURBED_WEIGHTS and not bool(self.scores.count.any()):
            does = "draws uniformly" if signal == "sharpness" else "has nothing to choose by"
            warnings.warn(
                f"No score has reached the sampler before epoch {epoch}: {type(self.policy).__name__} {does}. "
                "Call sampler.update(opt.backward(..., index=index)) each step, with a method that evaluates the loss "
                "at perturbed weights.",
                stacklevel=3,
            )

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, feedback: Feedback) -> None:
        """Take the losses of one batch into the scores; rows that are not finite leave no trace."""
        if feedback.index is None:
            raise ValueError("The feedback has no index. Pass it: opt.backward(loss_fn, *batch, index=index).")
        self._waiting.append((feedback.index, SIGNALS[self.policy.signal](feedback)))
        self._next = None
        on_cpu = feedback.loss.device.type == "cpu" and feedback.index.device.type == "cpu"
        if on_cpu or len(self._waiting) >= WAITING:
            self._flush()
        self._consumed += len(feedback.index)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for index, value in waiting:
            self._scores.record(index, value)

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Scores, position and, in the middle of an epoch, what is left of its plan; counted by what was consumed."""
        plan = self._plan
        if plan is not None:
            updated = self._consumed or bool(self.scores.count.any())  # else nobody tells what is consumed
            done = plan.complete(self._consumed) if updated else self._handed_out
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
        self._waiting = []
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
