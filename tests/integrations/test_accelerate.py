"""The Accelerate adapter: a prepared optimizer and loader do what a plain loop does, and keep their handles."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from ausam import AUSampling, Indexed, InfoBatch, LookSAM, SelectiveBatchSampler, SharpnessAware

accelerate = pytest.importorskip("accelerate", reason='needs pip install "ausam[accelerate]"')

from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402

from ausam.integrations.accelerate import PreparedOptimizer, prepare  # noqa: E402

N = 50


class Points(Dataset):
    """Two classes, divided by a circle; counts what is read."""

    def __init__(self):
        self.x = torch.randn(N, 2, generator=torch.Generator().manual_seed(1))
        self.y = (self.x.norm(dim=1) > 1.2).long()
        self.read = []

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.read.append(i)
        return self.x[i], self.y[i]


class Training:
    """Model, optimizer, sampler and loader, and a loop over them that another accelerator can go on with."""

    def __init__(self, policy=None, parts=1, prepared=True, method=None):
        torch.manual_seed(0)
        self.data = Points()
        self.model = torch.nn.Sequential(
            torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        )
        self.sampler = SelectiveBatchSampler(N, 8, policy or AUSampling(0.5, ramp=1), drop_last=True)
        self.opt = SharpnessAware(
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9), method or LookSAM(rho=0.1, k=2), self.model
        )
        self.loader = DataLoader(Indexed(self.data), batch_sampler=self.sampler)
        self.parts, self.handle = parts, self.opt
        if prepared:
            self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
            self.model, self.handle, self.loader = prepare(self.accelerator, self.model, self.opt, self.loader)

    def losses(self, x, y):
        return F.cross_entropy(self.model(x), y, reduction="none")

    def epoch(self, stop=None):
        for b, (x, y, index) in enumerate(self.loader):
            if b == stop:
                return
            weight = self.sampler.weight(index)
            with self.accelerator.accumulate(self.model):
                self.sampler.update(self.handle.backward(self.losses, x, y, index=index, weight=weight))
                self.handle.step()
                self.handle.zero_grad()

    def plain_epoch(self):
        total = len(self.loader)
        for b, (x, y, index) in enumerate(self.loader):
            back = lambda loss: (loss / self.parts).backward()  # noqa: E731
            weight = self.sampler.weight(index)
            self.sampler.update(self.opt.backward(self.losses, x, y, index=index, weight=weight, backward=back))
            if (b + 1) % self.parts == 0 or b + 1 == total:
                self.opt.step()
                self.opt.zero_grad()

    def same(self, other):
        for (name, a), b in zip(self.model.state_dict().items(), other.model.state_dict().values(), strict=True):
            assert torch.equal(a, b), name
        assert torch.equal(self.sampler.scores.sum, other.sampler.scores.sum)
        assert self.opt.steps == other.opt.steps


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    "policy", [AUSampling(0.5, ramp=1), InfoBatch(prune=0.5, epochs=8)], ids=lambda p: type(p).__name__
)
def test_it_trains_as_a_plain_loop(policy, parts):
    a, b = Training(policy, parts), Training(policy, parts, prepared=False)
    for _ in range(3):
        a.epoch()
        b.plain_epoch()
    a.same(b)
    assert a.data.read == b.data.read  # what was not chosen was never read
    assert len(a.data.read) < 3 * N
    used = 3 * 6 if isinstance(policy, AUSampling) else len(b.data.read) // 8
    assert int(a.model[1].num_batches_tracked) == used  # once a batch, though there are two passes


@pytest.mark.parametrize("stop", [None, 3])
def test_it_goes_on_from_accelerates_checkpoint(stop, tmp_path):
    """At the end and in the middle of the second epoch, though the loader is always one batch ahead."""
    whole, first, second = Training(), Training(), Training()
    for _ in range(3):
        whole.epoch()
    first.epoch()
    first.epoch(stop)
    first.accelerator.save_state(tmp_path / "state")
    second.accelerator.load_state(tmp_path / "state")
    while second.sampler.epoch < 3:
        second.epoch()
    second.same(whole)
    assert second.data.read == whole.data.read[-len(second.data.read) :]
    assert len(second.data.read) == 4 * (6 if stop is None else 6 + 3)


def test_the_handles_stay(tmp_path):
    t = Training()
    assert isinstance(t.handle, PreparedOptimizer)
    assert t.handle.optimizer is t.opt
    assert t.opt.model is t.model
    assert t.loader.batch_sampler.selective is t.sampler
    assert t.accelerator._optimizers == [t.handle]
    scheduler = t.accelerator.prepare(torch.optim.lr_scheduler.StepLR(t.opt, 1, gamma=0.5))
    t.epoch(1)
    scheduler.step()
    assert t.opt.base.param_groups[0]["lr"] == 0.05


def test_an_ordinary_loader_is_prepared_as_ever():
    t = Training(prepared=False)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(t.data, batch_size=10)
    _, handle, prepared = prepare(accelerator, t.model, t.opt, loader)
    for x, y in prepared:
        handle.backward(t.losses, x, y)
        handle.step()
        handle.zero_grad()
    assert t.opt.steps == 5
    assert not accelerator._custom_objects


def test_what_cannot_work_is_refused(monkeypatch):
    t = Training(prepared=False)
    accelerator = Accelerator(cpu=True)
    with pytest.raises(TypeError) as told:
        prepare(accelerator, t.model, t.opt.base, t.loader)
    assert str(told.value) == "opt is a SGD, but SharpnessAware(opt, SAM(), model) is needed."
    monkeypatch.setattr(accelerator.state, "distributed_type", DistributedType.DEEPSPEED)
    with pytest.raises(ValueError) as told:
        prepare(accelerator, t.model, t.opt, t.loader)
    assert str(told.value) == (
        "Accelerate runs DEEPSPEED, which owns the parameters and the step, so no weights can be perturbed in between. "
        "Use one device or DDP."
    )
    monkeypatch.undo()
    monkeypatch.setattr("ausam.distributed.place", lambda: (0, 2))
    with pytest.raises(ValueError) as told:
        prepare(accelerator, t.model, t.opt, t.loader)
    assert str(told.value) == (
        "torch.distributed has 2 processes, but Accelerate knows of 1, so each would train a model of its own. "
        "On CPUs say so: Accelerator(cpu=True), or use_cpu=True for the Trainer."
    )
