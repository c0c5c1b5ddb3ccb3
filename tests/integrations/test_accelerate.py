"""The Accelerate adapter: a prepared optimizer and loader do what a plain loop does, and keep their handles."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from ausam import SAM, AUSampling, Indexed, InfoBatch, LookSAM, SelectiveBatchSampler, SelectiveStream, SharpnessAware

accelerate = pytest.importorskip("accelerate", reason='needs pip install "ausam[accelerate]"')

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from accelerate.utils import (  # noqa: E402
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
)

from ausam.integrations.accelerate import PreparedOptimizer, prepare  # noqa: E402
from tests.helpers import few_or_many  # noqa: E402
from tests.integrations.points import N, Points  # noqa: E402


@pytest.fixture(autouse=True)
def one_accelerator():
    """Accelerate keeps its settings for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Training:
    """Model, optimizer, sampler and loader, and a loop over them that another accelerator can continue."""

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

    def epoch(self, stop=None, scheduler=None):
        for b, (x, y, index) in enumerate(self.loader):
            if b == stop:
                return
            weight = self.sampler.weight(index)
            with self.accelerator.accumulate(self.model):
                self.sampler.update(self.handle.backward(self.losses, x, y, index=index, weight=weight))
                self.handle.step()
                if scheduler is not None:
                    scheduler.step()
                self.handle.zero_grad()

    def plain_epoch(self, scheduler=None):
        total = len(self.loader)
        for b, (x, y, index) in enumerate(self.loader):
            back = lambda loss: (loss / self.parts).backward()  # noqa: E731
            weight = self.sampler.weight(index)
            self.sampler.update(self.opt.backward(self.losses, x, y, index=index, weight=weight, backward=back))
            if (b + 1) % self.parts == 0 or b + 1 == total:
                self.opt.step()
                if scheduler is not None:
                    scheduler.step()
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
    assert a.handle.optimizer is a.opt
    assert a.data.read == b.data.read  # what was not chosen was never read
    assert len(a.data.read) < 3 * N
    used = 3 * 6 if isinstance(policy, AUSampling) else len(b.data.read) // 8
    assert int(a.model[1].num_batches_tracked) == used  # once a batch, though there are two passes


@pytest.mark.parametrize("stop", [None, 3])
def test_it_continues_from_accelerates_checkpoint(stop, tmp_path):
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


def refusal(accelerator, loader=None, **changes):
    """The error of ``prepare``."""
    t = Training(prepared=False)
    for name, value in changes.items():
        setattr(t, name, value)
    with pytest.raises((TypeError, ValueError)) as raised:
        prepare(accelerator, t.model, t.opt, loader or t.loader)
    return str(raised.value)


def configured(**settings):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))


def of_type(kind):
    def make(monkeypatch):
        accelerator = Accelerator(cpu=True)
        monkeypatch.setattr(accelerator.state, "distributed_type", DistributedType[kind])
        return accelerator

    return make


def with_attribute(owner, name, value):
    def make(monkeypatch):
        accelerator = Accelerator(cpu=True)
        monkeypatch.setattr(accelerator.state if owner == "state" else accelerator, name, value, raising=False)
        return accelerator

    return make


# The setting, and the remedy that its error names.
SETTINGS = {
    **{kind: ("distributed_type", of_type(kind), "DDP") for kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA")},
    "parallel": ("parallelism_config", with_attribute("state", "parallelism_config", object()), "DDP"),
    "fp8": ("mixed_precision", with_attribute("state", "_mixed_precision", "fp8"), 'Use "bf16"'),
    "static": (
        "ddp_handler",
        lambda _: Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)]),
        "Leave it off",
    ),
    "split": ("split_batches", lambda _: configured(split_batches=True), "SelectiveBatchSampler(..., split=True)"),
    "dispatch": ("dispatch_batches", lambda _: configured(dispatch_batches=True), "Leave it None"),
    "stateful": (
        "use_stateful_dataloader",
        with_attribute(
            "accelerator",
            "dataloader_config",
            SimpleNamespace(split_batches=False, dispatch_batches=None, use_stateful_dataloader=True),
        ),
        "Leave it False",
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_setting_that_cannot_be_honoured_is_refused(case, monkeypatch):
    name, make, remedy = SETTINGS[case]
    message = refusal(make(monkeypatch))
    assert message.startswith(f"{name}: ")
    assert remedy in message


def test_split_batches_with_a_sampler_that_splits():
    t = Training(prepared=False)
    t.sampler = SelectiveBatchSampler(N, 8, AUSampling(0.5, ramp=1), drop_last=True, split=True)
    t.loader = DataLoader(Indexed(t.data), batch_sampler=t.sampler)
    assert "DataLoaderConfiguration(split_batches=True)" in refusal(Accelerator(cpu=True), t.loader)
    AcceleratorState._reset_state(reset_partial_state=True)
    t.accelerator = configured(split_batches=True)
    t.model, t.handle, t.loader = prepare(t.accelerator, t.model, t.opt, t.loader)
    whole = Training()
    for _ in range(2):
        t.epoch()
        whole.epoch()
    t.same(whole)


@pytest.mark.parametrize("precision", few_or_many("bf16", "no"))
@pytest.mark.parametrize("compiled", [False, True])
def test_precision_and_compilation_are_honoured(precision, compiled):
    t, plain = Training(prepared=False), Training(prepared=False)
    t.accelerator = Accelerator(cpu=True, mixed_precision=precision, dynamo_backend="eager" if compiled else None)
    t.model, t.handle, t.loader = prepare(t.accelerator, t.model, t.opt, t.loader)
    t.epoch()
    assert t.opt.model is t.model
    for x, y, index in plain.loader:

        def losses(x, y):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                z = plain.model(x)
            return F.cross_entropy(z.float(), y, reduction="none")

        plain.sampler.update(plain.opt.backward(losses, x, y, index=index))
        plain.opt.step()
        plain.opt.zero_grad()
    torch.compiler.reset()
    for a, b in zip(t.opt.param_groups[0]["params"], plain.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_cannot_work_is_refused(monkeypatch):
    t = Training(prepared=False)
    accelerator = Accelerator(cpu=True)
    assert "SharpnessAware(opt, SAM(), model)" in refusal(accelerator, opt=t.opt.base)
    disorderly = DataLoader(Indexed(t.data), batch_sampler=t.sampler, in_order=False)
    assert "in_order=False" in refusal(accelerator, disorderly)
    assert "Use it in a plain loop" in refusal(accelerator, SelectiveStream([], int, t.sampler))
    monkeypatch.setattr("ausam.integrations.accelerate.rank_and_world_size", lambda: (0, 2))
    assert "Accelerator(cpu=True)" in refusal(accelerator)


# -- what accelerator.prepare takes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 1, 3)])
def test_it_takes_what_accelerator_prepare_takes_in_any_order(order):
    """Model, optimizer, training and evaluation loader, scheduler, as in Accelerate's own examples."""
    t, plain = Training(prepared=False), Training(parts=2, prepared=False)
    t.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    given = [t.model, t.opt, t.loader, DataLoader(t.data, batch_size=25), StepLR(t.opt, 4, gamma=0.5)]
    prepared = dict(zip(order, prepare(t.accelerator, *(given[i] for i in order)), strict=True))
    t.model, t.handle, t.loader, evaluation, scheduler = (prepared[i] for i in range(5))
    assert type(evaluation).__name__ == "DataLoaderShard"
    rate = StepLR(plain.opt, 4, gamma=0.5)
    for _ in range(2):
        t.epoch(scheduler=scheduler)
        plain.plain_epoch(rate)
    t.same(plain)
    assert t.opt.param_groups[0]["lr"] == plain.opt.param_groups[0]["lr"] < 0.1


def test_one_object_comes_back_alone_and_two_models_keep_their_optimizers():
    a, b = Training(prepared=False), Training(prepared=False)
    accelerator = Accelerator(cpu=True)
    plain = torch.optim.SGD(b.model.parameters(), lr=0.1)  # a second network with an optimizer of its own
    first, second, handle, other = prepare(accelerator, b.model, a.model, a.opt, plain)
    assert a.opt.model is second
    assert first is not second
    assert isinstance(handle, PreparedOptimizer)
    assert other.optimizer is plain
    assert len(prepare(accelerator, DataLoader(a.data, batch_size=5))) == N // 5
    late = SharpnessAware(torch.optim.SGD(second.parameters(), lr=0.1), LookSAM(), second)
    assert prepare(accelerator, late).optimizer is late  # the model was prepared before
    part = SharpnessAware(torch.optim.SGD(second.parameters(), lr=0.1), LookSAM(), second[0])
    assert prepare(accelerator, second, part)[1].optimizer.model is second
    stray = SharpnessAware(torch.optim.SGD(a.model.parameters(), lr=0.1), LookSAM(), torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"prepare\(accelerator, model, opt"):
        prepare(accelerator, stray)


def test_a_plain_prepare_is_refused():
    t = Training(prepared=False)
    with pytest.raises(TypeError, match=r"prepare\(accelerator, model, opt"):
        Accelerator(cpu=True).prepare(t.model, t.opt)


def test_a_loss_that_is_a_sum():
    t, plain = Training(prepared=False), Training(prepared=False)
    loader = DataLoader(t.data, batch_size=10)
    t.model, t.handle, loader = prepare(Accelerator(cpu=True), t.model, t.opt, loader)
    for x, y in loader:
        t.handle.backward(t.losses, x, y, reduce="sum")
        t.handle.step()
        t.handle.zero_grad()
        plain.opt.backward(plain.losses, x, y, reduce="sum")
        plain.opt.step()
        plain.opt.zero_grad()
    t.same(plain)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_loss_of_the_whole_batch_in_a_closure(parts):
    t, plain = Training(prepared=False, method=SAM(rho=0.1)), Training(prepared=False, method=SAM(rho=0.1))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
    loader = DataLoader(t.data, batch_size=10)
    t.model, t.handle, loader = prepare(accelerator, t.model, t.opt, loader)

    def closure(model, x, y, backward):
        def run():
            z = model(x)
            loss = F.cross_entropy(z, y) + z.softmax(1).mean(0).square().sum()
            backward(loss)
            return loss

        return run

    for b, (x, y) in enumerate(loader):
        with accelerator.accumulate(t.model):
            t.handle.accumulate(closure(t.model, x, y, accelerator.backward))
            t.handle.step()
            t.handle.zero_grad()
        plain.opt.accumulate(closure(plain.model, x, y, lambda loss: (loss / parts).backward()), scale=1 / parts)
        if (b + 1) % parts == 0 or b + 1 == len(loader):
            plain.opt.step()
            plain.opt.zero_grad()
    t.same(plain)
    with pytest.raises(TypeError, match=r"opt.accumulate\(closure\)"):
        t.handle.step(lambda: None)
