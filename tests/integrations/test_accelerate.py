"""The Accelerate adapter: a prepared optimizer and loader do what a plain loop does, and keep their handles."""

import dataclasses
import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from ausam import AUSampling, Indexed, InfoBatch, LookSAM, SelectiveBatchSampler, SelectiveStream, SharpnessAware

accelerate = pytest.importorskip("accelerate", reason='needs pip install "ausam[accelerate]"')

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from accelerate.utils import (  # noqa: E402
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    GradientAccumulationPlugin,
)

from ausam.integrations._accelerator_arguments import ACCELERATOR, ACCUMULATION, LOADER, OUTCOME  # noqa: E402
from ausam.integrations._settings import markdown  # noqa: E402
from ausam.integrations.accelerate import PreparedOptimizer, prepare  # noqa: E402
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


def told(accelerator, loader=None, **changes):
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


OWNER = (
    "Accelerate runs {}, which owns the parameters and the step, so the weights cannot be perturbed in between. "
    + ("Use one device or DDP.")
)
SETTINGS = {
    "distributed_type": (of_type("XLA"), OWNER.format("XLA")),
    "parallelism_config": (
        with_attribute("state", "parallelism_config", object()),
        "with it, another library owns the parameters, so they cannot be perturbed. Use one device or DDP.",
    ),
    "mixed_precision": (
        with_attribute("state", "_mixed_precision", "fp8"),
        '"fp8" replaces layers and the optimizer by those of another library. Use "bf16", "fp16" or "no".',
    ),
    "kwargs_handlers": (
        lambda _: Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)]),
        "DDP's static_graph=True, but a step has passes with and without averaging. Leave it False.",
    ),
    "split_batches": (
        lambda _: configured(split_batches=True),
        "True divides each mini-batch among the processes, but the sampler was built with split=False. Use "
        "SelectiveBatchSampler(..., split=True).",
    ),
    "dispatch_batches": (
        lambda _: configured(dispatch_batches=True),
        "True makes one process read for all, but the sampler gives each process its own batches. Leave it None.",
    ),
    "use_stateful_dataloader": (
        with_attribute(
            "accelerator",
            "dataloader_config",
            SimpleNamespace(split_batches=False, dispatch_batches=None, use_stateful_dataloader=True),
        ),
        "True saves the position a second time: save_state already contains the sampler's. Leave it False.",
    ),
}


def test_every_argument_is_in_a_table():
    """A new version of Accelerate may add one: then decide what happens to it, and say so in the table."""
    assert list(inspect.signature(Accelerator.__init__).parameters)[1:] == list(ACCELERATOR)
    assert [f.name for f in dataclasses.fields(DataLoaderConfiguration)] == list(LOADER)
    assert [f.name for f in dataclasses.fields(GradientAccumulationPlugin)] == list(ACCUMULATION)
    tables = {**ACCELERATOR, **OUTCOME, **LOADER, **ACCUMULATION}
    checked = {name for name, setting in tables.items() if setting.refuse is not None}
    assert checked == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_cannot_be_honoured_is_refused(name, monkeypatch):
    make, message = SETTINGS[name]
    assert told(make(monkeypatch)) == f"{name}: {message}"


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA"])
def test_what_owns_the_parameters_is_refused(kind, monkeypatch):
    assert told(of_type(kind)(monkeypatch)) == f"distributed_type: {OWNER.format(kind)}"


def test_the_tables_in_the_documentation_are_those_in_the_code():
    text = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    assert markdown(ACCELERATOR, "`Accelerator`") in text
    assert markdown(LOADER, "`DataLoaderConfiguration`") in text
    assert markdown(ACCUMULATION, "`GradientAccumulationPlugin`") in text


@pytest.mark.parametrize("plugin", [{"sync_each_batch": True}, {"sync_with_dataloader": False}], ids=str)
def test_the_accumulation_plugin_is_honoured(plugin):
    """The weights and the learning rate are those of a plain loop that does what the plugin says."""
    t, plain = Training(prepared=False), Training(prepared=False)
    t.accelerator = Accelerator(
        cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4, **plugin)
    )
    t.model, t.handle, t.loader = prepare(t.accelerator, t.model, t.opt, t.loader)
    scheduler = t.accelerator.prepare(torch.optim.lr_scheduler.ExponentialLR(t.handle, 0.9))
    steps = 0
    for _ in range(2):
        for x, y, index in t.loader:
            with t.accelerator.accumulate(t.model):
                t.sampler.update(t.handle.backward(t.losses, x, y, index=index))
                t.handle.step()
                scheduler.step()
                t.handle.zero_grad()
        total = len(plain.loader)
        for b, (x, y, index) in enumerate(plain.loader):
            back = lambda loss: (loss / 4).backward()  # noqa: E731
            plain.sampler.update(plain.opt.backward(plain.losses, x, y, index=index, backward=back))
            steps += 1
            last = b + 1 == total and plugin.get("sync_with_dataloader", True)
            if last or steps % 4 == 0:
                plain.opt.step()
                plain.opt.zero_grad()
                for group in plain.opt.param_groups:
                    group["lr"] *= 0.9
                steps = 0 if last else steps
    t.same(plain)
    assert t.opt.steps == (3 if "sync_with_dataloader" in plugin else 4)


def test_split_batches_with_a_sampler_that_splits():
    t = Training(prepared=False)
    t.sampler = SelectiveBatchSampler(N, 8, AUSampling(0.5, ramp=1), drop_last=True, split=True)
    t.loader = DataLoader(Indexed(t.data), batch_sampler=t.sampler)
    assert told(Accelerator(cpu=True), t.loader) == (
        "split_batches: False, but the sampler has split=True, so schedulers would step once per process for a "
        "mini-batch that all processes share. Use "
        "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))."
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    t.accelerator = configured(split_batches=True)
    t.model, t.handle, t.loader = prepare(t.accelerator, t.model, t.opt, t.loader)
    whole = Training()
    for _ in range(2):
        t.epoch()
        whole.epoch()
    t.same(whole)


@pytest.mark.parametrize("precision", ["no", "bf16"])
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
    assert told(accelerator, opt=t.opt.base) == "opt is a SGD. Pass SharpnessAware(opt, SAM(), model)."
    disorderly = DataLoader(Indexed(t.data), batch_sampler=t.sampler, in_order=False)
    assert told(accelerator, disorderly) == (
        "DataLoader(in_order=False) lets batches overtake each other, and the sampler counts them in order. Leave it "
        "True."
    )
    assert told(accelerator, SelectiveStream([], int, t.sampler)) == (
        "prepare takes a DataLoader, but a SelectiveStream makes its own, and Accelerate cannot see where it "
        "ends. Use it in a plain loop, with SharpnessAware alone or with DDP."
    )
    _, handle, _ = prepare(accelerator, t.model, t.opt, t.loader)
    with pytest.raises(TypeError) as raised:
        handle.step(lambda: None)
    assert str(raised.value) == (
        "Accelerate would not run the closure of a batch that is only accumulated. Call opt.backward(loss_fn, *batch) "
        "and then opt.step()."
    )
    monkeypatch.setattr("ausam.integrations.accelerate.rank_and_world_size", lambda: (0, 2))
    assert told(accelerator) == (
        "torch.distributed has 2 processes, but Accelerate sees 1, so each would train its own model. On CPUs, "
        "use Accelerator(cpu=True), or use_cpu=True for the Trainer."
    )
