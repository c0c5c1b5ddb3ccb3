"""The Lightning adapter: ``Trainer.fit`` does what a plain loop with SharpnessAware does, in both packages."""

import copy
import importlib
import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from ausam import (
    ESAM,
    SAM,
    AUSampling,
    FriendlySAM,
    InfoBatch,
    LookSAM,
    Plain,
    SelectiveBatchSampler,
    SelectiveStream,
    SharpnessAware,
)

lightning = pytest.importorskip("lightning", reason='needs pip install "ausam[lightning]"')

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import (  # noqa: E402
    LambdaCallback,
    LearningRateFinder,
    ModelCheckpoint,
)
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from lightning.pytorch.tuner import Tuner  # noqa: E402
from lightning.pytorch.utilities.combined_loader import CombinedLoader  # noqa: E402
from lightning.pytorch.utilities.data import _update_dataloader  # noqa: E402

from ausam.audit import Audit  # noqa: E402
from ausam.integrations import _lightning  # noqa: E402
from ausam.integrations.lightning import AuditCallback, SelectiveLoader, SharpnessAwareModule  # noqa: E402
from tests.helpers import few_of, refused, same_audit, same_weights  # noqa: E402
from tests.integrations import points  # noqa: E402

# Lightning's own: of torch's pytree, of workers that a loader of so few samples does not need, of schedulers that it
# steps before the first step if that one is skipped, and of resuming without the callback that saved.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]

N = points.N
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Points(points.Points):
    """The same by name."""

    def __getitem__(self, i):
        return dict(zip("xy", super().__getitem__(i), strict=True))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def adapter(kind):
    """Our module for the package of this Trainer."""
    return importlib.import_module(f"ausam.integrations.{kind.__module__.partition('.')[0]}")


def trainer(folder, epochs=3, kind=Trainer, attach=True, **changes):
    checkpoints = {"enable_checkpointing": False} if "callbacks" not in changes else {}
    callbacks = [*changes.pop("callbacks", []), *([adapter(kind).SharpnessAwareCallback()] if attach else [])]
    settings = {"devices": 1, "callbacks": callbacks, **QUIET, **checkpoints, **changes}
    return kind(max_epochs=epochs, default_root_dir=folder, **settings)


# -- an ordinary module: one line is new, and a callback ---------------------------------------------------------------


def ordinary(base):
    """An everyday LightningModule of one of the packages; the line that is new is marked."""

    class Everyday(base):
        def __init__(self, method=None, make=SharpnessAware):
            super().__init__()
            self.net = network()
            self.method, self.make = method or SAM(rho=0.1), make
            self.seen, self.passes = [], 0

        def training_step(self, batch, batch_idx):
            self.passes += 1
            loss = F.cross_entropy(self.net(batch["x"]), batch["y"])
            self.log("loss", loss, on_step=False, on_epoch=True, batch_size=1)
            return loss

        def configure_optimizers(self):
            opt = self.make(sgd(self), self.method, self)  # new: around SGD
            return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.7)]

        def on_before_optimizer_step(self, optimizer):
            self.seen.append([p.grad.clone() for p in self.parameters()])

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.shown = outputs.get("loss")

    return Everyday


Everyday = ordinary(LightningModule)


def in_a_loop(method, epochs=2, parts=1, clip=None, scaler=None, cast=None):
    """The same by hand: each micro-batch has its own perturbation, and the sum of their gradients is clipped."""
    plain, losses, grads = Everyday(method), [], []
    opt = SharpnessAware(sgd(plain), method, plain)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.7)
    loader = DataLoader(Points(), batch_size=8)
    scale = (lambda x: x) if scaler is None else scaler.scale
    for _ in range(epochs):
        for b, batch in enumerate(loader):
            with torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None, cache_enabled=False):
                feedback = opt.backward(
                    lambda x, y: F.cross_entropy(plain.net(x), y, reduction="none"),
                    *batch.values(),
                    backward=lambda loss: scale(loss / parts).backward(),
                )
            losses.append(feedback.loss.mean())
            if (b + 1) % parts == 0 or b + 1 == len(loader):
                if scaler is not None:
                    scaler.unscale_(opt)
                grads.append([p.grad.clone() for p in plain.parameters()])
                if clip is not None:
                    clip(plain.parameters())
                if scaler is None:
                    opt.step()
                else:
                    scaler.step(opt)
                    scaler.update()
                opt.zero_grad()
        scheduler.step()
    return plain, opt, losses, grads


def by_norm(parameters):
    nn.utils.clip_grad_norm_(parameters, 0.1)


def by_value(parameters):
    nn.utils.clip_grad_value_(parameters, 0.02)


NORM, VALUE = {"gradient_clip_val": 0.1}, {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize(
    ("parts", "settings", "clip"), [(1, {}, None), (1, NORM, by_norm), (1, VALUE, by_value), (3, VALUE, by_value)]
)
def test_an_ordinary_module_trains_as_a_plain_loop(package, parts, settings, clip, tmp_path):
    pl = importlib.import_module(package)
    module = ordinary(pl.LightningModule)()
    t = trainer(tmp_path, 2, pl.Trainer, accumulate_grad_batches=parts, **settings)
    t.fit(module, DataLoader(Points(), batch_size=8))
    plain, opt, losses, grads = in_a_loop(SAM(rho=0.1), 2, parts, clip)
    same_weights(module, plain)
    assert t.global_step == opt.steps == 2 * -(-7 // parts)
    assert module.passes == 2 * 2 * 7  # two per batch, and no more
    assert len(module.seen) == len(grads)  # the hook sees the final gradient, once per step
    for seen, expected in zip(module.seen, grads, strict=True):
        assert all(map(torch.equal, seen, expected))
    assert torch.equal(module.shown, losses[-1] / parts)
    torch.testing.assert_close(t.callback_metrics["loss"], torch.stack(losses[7:]).mean())  # that at w, logged once


@pytest.mark.parametrize(
    "method", [LookSAM(rho=0.1, k=2), FriendlySAM(rho=0.1), Plain()], ids=lambda m: type(m).__name__
)
def test_methods_that_remember_go_through_the_closure_too(method, tmp_path):
    module = Everyday(method)
    trainer(tmp_path, 2, accumulate_grad_batches=2, **NORM).fit(module, DataLoader(Points(), batch_size=8))
    same_weights(module, in_a_loop(method, 2, 2, by_norm)[0])


def test_mixed_precision_is_lightnings(tmp_path):
    """bfloat16, and float16 with a GradScaler, of which a method with a memory must know."""
    method = FriendlySAM(rho=0.1)
    module = Everyday(method)
    trainer(tmp_path, 2, precision="bf16-mixed", **NORM).fit(module, DataLoader(Points(), batch_size=8))
    same_weights(module, in_a_loop(method, 2, clip=by_norm, cast=torch.bfloat16)[0])
    module = Everyday(method)
    half = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    t = trainer(tmp_path, 2, plugins=[half], accumulate_grad_batches=2, **NORM)
    t.fit(module, DataLoader(Points(), batch_size=8))
    scaler = torch.amp.GradScaler("cpu")
    plain, opt, *_ = in_a_loop(method, 2, 2, by_norm, scaler, torch.float16)
    same_weights(module, plain)
    assert t.optimizers[0].steps == opt.steps == 8


def test_a_method_that_remembers_continues_from_lightnings_checkpoint(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    loader, method = DataLoader(Points(), batch_size=8), LookSAM(rho=0.1, k=2)
    whole, rest = Everyday(method), Everyday(method)
    trainer(tmp_path, 3, callbacks=[saver], accumulate_grad_batches=2).fit(whole, loader)
    t = trainer(tmp_path, 3, accumulate_grad_batches=2)
    t.fit(rest, loader, ckpt_path=tmp_path / "epoch=0.ckpt")
    same_weights(rest, whole)
    assert t.optimizers[0].steps == t.global_step == 12


def test_a_compiled_module_trains_alike(tmp_path):
    class Silent(Everyday):
        """Lightning's log cannot be compiled, with or without a method."""

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch["x"]), batch["y"])

    module = Silent()
    trainer(tmp_path, 2).fit(torch.compile(module, backend="eager"), DataLoader(Points(), batch_size=8))
    torch.compiler.reset()
    same_weights(module, in_a_loop(SAM(rho=0.1), 2)[0])


def test_a_batch_without_a_loss_is_passed_over(tmp_path):
    class Picky(Everyday):
        def training_step(self, batch, batch_idx):
            return None if batch_idx == 0 else super().training_step(batch, batch_idx)

        def on_before_optimizer_step(self, optimizer):
            pass

    module = Picky()
    with pytest.warns(UserWarning, match="`training_step` returned `None`"):
        trainer(tmp_path, 1, limit_train_batches=2).fit(module, DataLoader(Points(), batch_size=8))
    plain = Everyday()
    opt = SharpnessAware(sgd(plain), SAM(rho=0.1), plain)
    batch = list(DataLoader(Points(), batch_size=8))[1]
    opt.backward(lambda x, y: F.cross_entropy(plain.net(x), y, reduction="none"), *batch.values())
    opt.step()
    same_weights(module, plain)


def test_a_trainer_fits_several_modules(tmp_path):
    """With and without a method, one after the other, and the same one twice."""

    class Bare(Everyday):
        def configure_optimizers(self):
            return sgd(self)

    t = trainer(tmp_path, 1)
    first, bare = Everyday(), Bare()
    t.fit(first, DataLoader(Points(), batch_size=8))
    t.fit_loop.max_epochs = 2
    t.fit(first, DataLoader(Points(), batch_size=8))
    assert first.passes == 2 * 2 * 7
    t.fit_loop.max_epochs = 3
    t.fit(bare, DataLoader(Points(), batch_size=8))
    assert bare.passes == 7
    assert "_make_closure" not in vars(t.fit_loop.epoch_loop.automatic_optimization)  # nothing of ours is left


def test_an_optimizer_made_early_or_for_a_part_of_the_module_is_attached_too(tmp_path):
    class Early(Everyday):
        """Made before there is a trainer."""

        def __init__(self):
            super().__init__()
            self.opt = SharpnessAware(sgd(self), self.method, self)

        def configure_optimizers(self):
            return [self.opt], [torch.optim.lr_scheduler.StepLR(self.opt, 1, gamma=0.7)]

    class Part(Everyday):
        """Made for a part of the module."""

        def configure_optimizers(self):
            opt = SharpnessAware(sgd(self), self.method, self.net)
            return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.7)]

    for kind in (Early, Part):
        module = kind()
        t = trainer(tmp_path, 2, **NORM)
        t.fit(module, DataLoader(Points(), batch_size=8))
        same_weights(module, in_a_loop(SAM(rho=0.1), 2, clip=by_norm)[0])
        assert t.optimizers[0].model is module
        assert not t.optimizers[0]._optimizer_step_pre_hooks  # removed again: the next fit adds its own


class ByHand(Everyday):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        losses = lambda x, y: F.cross_entropy(self.net(x), y, reduction="none")  # noqa: E731
        opt.backward(losses, *batch.values(), backward=self.manual_backward)
        opt.step()
        opt.zero_grad()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()


def test_manual_optimisation_calls_backward_and_step(tmp_path):
    module, t = ByHand(), trainer(tmp_path, 2)
    t.fit(module, DataLoader(Points(), batch_size=8))
    same_weights(module, in_a_loop(SAM(rho=0.1), 2)[0])
    assert t.global_step == 14


def bare(package):
    pl = importlib.import_module(package)
    return pl.Trainer, ordinary(pl.LightningModule)()


def without_its_callback():
    class LeftOut(Net):
        def configure_callbacks(self):
            return []

    return Trainer, LeftOut()


@pytest.mark.parametrize(
    ("made", "settings"),
    [
        *((lambda: bare("lightning.pytorch"), settings) for settings in ({}, {"accumulate_grad_batches": 3}, NORM)),
        (lambda: bare("pytorch_lightning"), {}),
        (lambda: (Trainer, ByHand()), {}),
        (without_its_callback, {}),
    ],
)
def test_an_optimizer_that_is_not_attached_is_refused(made, settings, tmp_path):
    kind, module = made()
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(RuntimeError, match=r"callbacks=\[SharpnessAwareCallback\(\)\]"):
        trainer(tmp_path, kind=kind, attach=False, **settings).fit(module, DataLoader(Points(), batch_size=8))
    assert all(map(torch.equal, module.parameters(), before))


def test_a_fit_that_fails_leaves_nothing_behind(tmp_path):
    class Failing(Everyday):
        def on_train_batch_start(self, batch, batch_idx):
            raise KeyError("broken")

    t = trainer(tmp_path, 1)
    with pytest.raises(KeyError, match="broken"):
        t.fit(Failing(), DataLoader(Points(), batch_size=8))
    assert not t.optimizers[0]._optimizer_step_pre_hooks
    assert "_make_closure" not in vars(t.fit_loop.epoch_loop.automatic_optimization)


def test_strategies_that_own_the_parameters_are_refused(tmp_path, monkeypatch):
    strategies = importlib.import_module("lightning.pytorch.strategies")
    assert all(hasattr(strategies, name) for name in _lightning.REFUSED)
    t = trainer(tmp_path)
    monkeypatch.setattr(t.strategy, "__class__", type("FSDPStrategy", (type(t.strategy),), {}))
    with refused(ValueError, "FSDPStrategy", "strategy='ddp'"):
        t.fit(Everyday(), DataLoader(Points(), batch_size=8))


# -- losses of each sample ---------------------------------------------------------------------------------------------


class Rows:
    """Per-sample losses and logits."""

    def __init__(self, method=None):
        super().__init__()
        self.net = network()
        self.method = method or LookSAM(rho=0.1, k=2)
        self.lr = []

    def losses(self, batch):
        z = self.net(batch["x"])
        return F.cross_entropy(z, batch["y"], reduction="none"), z

    def configure_optimizers(self):
        opt = SharpnessAware(sgd(self), self.method, self)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.7)]

    def on_before_optimizer_step(self, optimizer):
        self.lr.append(optimizer.param_groups[0]["lr"])


class Net(Rows, SharpnessAwareModule):
    pass


# -- hooks, once per step at w -----------------------------------------------------------------------------------------


class Watch:
    """Counts the hooks around a backward, in a module or a callback, and compares the weights with those at w."""

    def note(self, name, module):
        at_w = all(map(torch.equal, module.at_w, module.parameters()))
        module.hooks.append((type(self).__name__, name, at_w))


class WatchingCallback(Watch, Callback):
    def on_before_zero_grad(self, trainer, module, optimizer):
        self.note("on_before_zero_grad", module)

    def on_before_backward(self, trainer, module, loss):
        self.note("on_before_backward", module)

    def on_after_backward(self, trainer, module):
        self.note("on_after_backward", module)
        module.after.append([p.grad.clone() for p in module.parameters()])


def watching(base):
    class Watching(Watch, base):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 0 and self.current_epoch == 0:
                self.hooks, self.after = [], []
            self.at_w = [p.detach().clone() for p in self.parameters()]

        def on_before_zero_grad(self, optimizer):
            self.note("on_before_zero_grad", self)

        def on_before_backward(self, loss):
            self.note("on_before_backward", self)

        def on_after_backward(self):
            self.note("on_after_backward", self)

        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            self.note("optimizer_zero_grad", self)
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    return Watching(SAM(rho=0.1))


@pytest.mark.parametrize("base", [Everyday, Net])
@pytest.mark.parametrize("parts", [1, 2])
def test_hooks_run_once_per_step_at_w(base, parts, tmp_path):
    module, lambdas = watching(base), []
    lambda_callback = LambdaCallback(on_after_backward=lambda *_: lambdas.append(1))
    t = trainer(tmp_path, 1, callbacks=[WatchingCallback(), lambda_callback], accumulate_grad_batches=parts)
    t.fit(module, DataLoader(Points(), batch_size=8, drop_last=True))
    batches, steps = 6, 6 // parts
    assert all(at_w for *_, at_w in module.hooks)
    counts = Counter((who, name) for who, name, _ in module.hooks)
    assert counts["Watching", "optimizer_zero_grad"] == steps
    for who in ("Watching", "WatchingCallback"):
        assert counts[who, "on_before_zero_grad"] == steps
        assert counts[who, "on_before_backward"] == counts[who, "on_after_backward"] == batches
    assert len(lambdas) == batches
    assert len(module.after) == batches
    if base is Everyday and parts == 1:
        for after, final in zip(module.after, module.seen, strict=True):
            assert all(map(torch.equal, after, final))


@pytest.mark.parametrize("base", [Everyday, Net])
def test_the_learning_rate_finder(base, tmp_path):
    """It replaces the callbacks for its own run."""

    class Tuned(base):
        def __init__(self):
            super().__init__(SAM(rho=0.1))
            self.lr_given = 0.1

        def configure_optimizers(self):
            base = torch.optim.SGD(self.parameters(), lr=self.lr_given, momentum=0.9)
            return SharpnessAware(base, SAM(rho=0.1), self)

        def on_before_optimizer_step(self, optimizer):
            pass

    loader, module = DataLoader(Points(), batch_size=8), Tuned()
    found = Tuner(trainer(tmp_path, 1)).lr_find(module, loader, num_training=6, attr_name="lr_given")
    assert len(found.results["loss"]) == 6
    assert math.isfinite(found.results["loss"][-1])
    same_weights(module, Tuned())
    module, finder = Tuned(), LearningRateFinder(num_training_steps=6, attr_name="lr_given")
    t = trainer(tmp_path, 1, callbacks=[finder])
    t.fit(module, loader)
    assert t.optimizers[0].steps == 7
    assert len(t.optimizers[0]._optimizer_step_pre_hooks) == 0
    if base is Net:  # the scores would be those of the search
        with pytest.raises(TypeError, match="Search on an ordinary loader"):
            Tuner(trainer(tmp_path, 1)).lr_find(Tuned(), SelectiveLoader(Points(), sampler()), attr_name="lr_given")


# -- selection ---------------------------------------------------------------------------------------------------------


def sampler(policy=None):
    return SelectiveBatchSampler(N, 8, policy or AUSampling(0.5, ramp=1), drop_last=True)


def by_hand(policy, epochs=3, parts=1):
    module, data, chosen = Net(), Points(), sampler(policy)
    opt = SharpnessAware(sgd(module), module.method, module)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.7)
    for _ in range(epochs):
        total = len(chosen)
        for b, rows in enumerate(chosen):
            data.read += rows
            i = torch.tensor(rows)
            batch, weight = {"x": data.x[i], "y": data.y[i]}, chosen.weight(i)
            back = lambda loss: (loss / parts).backward()  # noqa: E731
            chosen.update(opt.backward(module.losses, batch, index=i, weight=weight, backward=back))
            if (b + 1) % parts == 0 or b + 1 == total:
                nn.utils.clip_grad_norm_(module.parameters(), 0.1)
                opt.step()
                opt.zero_grad()
        scheduler.step()
    return module, data, chosen, opt


def options(policy):
    return {"reload_dataloaders_every_n_epochs": 1} if isinstance(policy, InfoBatch) else {}


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "policy", [AUSampling(0.5, ramp=1), InfoBatch(prune=0.5, epochs=8)], ids=lambda p: type(p).__name__
)
def test_it_trains_as_a_plain_loop(policy, workers, parts, tmp_path):
    module, data, chosen = Net(), Points(), sampler(policy)
    t = trainer(tmp_path, attach=False, accumulate_grad_batches=parts, **NORM, **options(policy))  # it brings its own
    t.fit(module, SelectiveLoader(data, chosen, num_workers=workers))
    plain, read, expected, opt = by_hand(policy, parts=parts)
    same_weights(module, plain)
    assert t.global_step == opt.steps == len(module.lr)
    assert module.lr[0] == 0.1
    assert module.lr[-1] == pytest.approx(0.1 * 0.7**2)
    assert torch.equal(chosen.scores.sum, expected.scores.sum)
    assert int(module.net[1].num_batches_tracked) == int(plain.net[1].num_batches_tracked)
    assert workers or data.read == read.read  # what was not chosen was never read
    assert len(read.read) < 3 * N


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_without_selection_any_loader_will_do(how, tmp_path):
    class Reduced(Net):
        reduce = how

    module, plain = Reduced(SAM(rho=0.1)), Net(SAM(rho=0.1))
    trainer(tmp_path, 1, attach=False).fit(module, DataLoader(Points(), batch_size=10))
    opt = SharpnessAware(sgd(plain), plain.method, plain)
    for batch in DataLoader(Points(), batch_size=10):
        opt.backward(plain.losses, batch, reduce=how)
        opt.step()
        opt.zero_grad()
    same_weights(module, plain)


def test_the_other_package_selects_too(tmp_path):
    pl = pytest.importorskip("pytorch_lightning")
    theirs = importlib.import_module("ausam.integrations.pytorch_lightning")

    class Other(Rows, theirs.SharpnessAwareModule):
        pass

    module = Other()
    trainer(tmp_path, kind=pl.Trainer, attach=False, **NORM).fit(module, theirs.SelectiveLoader(Points(), sampler()))
    same_weights(module, by_hand(None)[0])


def test_hooks_see_batches_without_an_index_and_metrics_the_outputs_at_w(tmp_path):
    class Metrics(Net):
        seen = 0

        def on_train_batch_start(self, batch, batch_idx):
            assert sorted(batch) == ["x", "y"]
            net = copy.deepcopy(self.net)
            self.expected = net(batch["x"]).detach()  # in training mode, before the step

        def on_train_batch_end(self, outputs, batch, batch_idx):
            torch.testing.assert_close(outputs["outputs"], self.expected)
            assert not outputs["outputs"].requires_grad
            mean = F.cross_entropy(self.expected, batch["y"])
            torch.testing.assert_close(outputs["loss"], mean)
            self.seen += 1

    module, fit = Metrics(), trainer(tmp_path, 2)
    fit.fit(module, SelectiveLoader(Points(), sampler()))
    assert module.seen == fit.global_step > 0


@pytest.mark.parametrize("at", [3, 6])
def test_an_audit_is_fed_and_continues_from_a_checkpoint(at, tmp_path):
    """It equals one that is fed by hand; in the middle and at the end of an epoch of 6 batches."""

    class Feed(Callback):
        def __init__(self):
            self.audit = Audit(N, Points().y)

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.audit.update(outputs["feedback"])

    saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=3)
    by_hand, whole, rest = Feed(), Audit(N, Points().y), Audit(N, Points().y)
    fed = trainer(tmp_path, 2, attach=False, callbacks=[by_hand, AuditCallback(whole), saver])
    fed.fit(Net(), SelectiveLoader(Points(), sampler()))
    same_audit(whole, by_hand.audit)
    assert whole.table()["visits"].sum() > 0
    again = trainer(tmp_path, 2, attach=False, callbacks=[AuditCallback(rest)])
    again.fit(Net(), SelectiveLoader(Points(), sampler()), ckpt_path=tmp_path / f"step={at}.ckpt")
    same_audit(whole, rest)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("at", few_of([3, 6, 9], 3))
def test_it_continues_from_lightnings_checkpoint(at, workers, tmp_path):
    """In the middle and at the end of an epoch of 6 batches."""
    saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=3)
    whole = Net()
    t = trainer(tmp_path, callbacks=[saver], **NORM)
    t.fit(whole, SelectiveLoader(Points(), sampler(), num_workers=workers))
    module, data, chosen = Net(), Points(), sampler()
    t = trainer(tmp_path, callbacks=[], **NORM)
    t.fit(module, SelectiveLoader(data, chosen, num_workers=workers), ckpt_path=tmp_path / f"step={at}.ckpt")
    assert t.global_step == 18
    same_weights(module, whole)
    _, read, expected, _ = by_hand(None)
    assert torch.equal(chosen.scores.sum, expected.scores.sum)
    if not workers:
        assert data.read == read.read[-len(data.read) :]


def test_it_continues_from_a_checkpoint_of_the_end_of_an_epoch(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    whole = Net()
    trainer(tmp_path, callbacks=[saver]).fit(whole, SelectiveLoader(Points(), sampler()))
    module, data, chosen = Net(), Points(), sampler()
    trainer(tmp_path).fit(module, SelectiveLoader(data, chosen), ckpt_path=tmp_path / "epoch=0.ckpt")
    same_weights(module, whole)
    assert len(data.read) == 2 * 6 * 4  # the scores came along, or the policy could not choose
    assert chosen.epoch == 3


# -- refusals ----------------------------------------------------------------------------------------------------------


class Hooked(Net):
    """Lightning captures the arguments of samplers that are made in this hook."""

    def train_dataloader(self):
        return DataLoader(Points(), batch_sampler=sampler())


@pytest.mark.parametrize("where", ["alone", "list", "dict", "combined", "module", "data module"])
def test_a_data_loader_with_our_sampler_is_refused(where, tmp_path):
    loader = DataLoader(Points(), batch_sampler=sampler())
    given = {
        "alone": loader,
        "list": [SelectiveLoader(Points(), sampler()), loader],
        "dict": {"a": loader},
        "combined": CombinedLoader([loader]),
        "data module": LightningDataModule.from_datasets(Points()),
    }
    if where == "data module":
        given[where].train_dataloader = lambda: loader
    module = Hooked() if where == "module" else Net()
    with pytest.raises(TypeError, match=r"Use SelectiveLoader\(dataset, sampler\)"):
        trainer(tmp_path).fit(module, given.get(where))


def test_lightning_cannot_build_our_sampler_again():
    """What it does with several devices to a loader in a module that is not ours."""
    loader = DataLoader(Points(), batch_sampler=sampler())
    with pytest.raises(TypeError, match=r"Trainer.use_distributed_sampler=False. or .*SelectiveLoader"):
        _update_dataloader(loader, DistributedSampler(Points(), num_replicas=2, rank=0))


class KeepsItsStep(Net):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch["x"]), batch["y"])


class Unwrapped(Net):
    def configure_optimizers(self):
        return sgd(self)


class Manual(Net):
    automatic_optimization = False


class Lossless(Net):
    losses = SharpnessAwareModule.losses


class Forgetful(Net):
    def train_dataloader(self):
        return SelectiveLoader(Points(), sampler(InfoBatch(epochs=8)))


def refusals():
    loader, plain = SelectiveLoader(Points(), sampler()), DataLoader(Points(), 8)
    shorter = SelectiveLoader(Points(), sampler(InfoBatch(epochs=8)))
    audit = {"attach": False, "callbacks": [AuditCallback(Audit(N))]}
    return {
        "a training_step that would not run": (KeepsItsStep(), loader, {}, "Rename it to losses"),
        "no method": (Unwrapped(), loader, {}, "Return SharpnessAware(base, method, self)"),
        "manual optimisation": (Manual(), loader, {}, "derive from LightningModule and call opt.backward"),
        "no losses": (Lossless(), loader, {}, "return one loss per sample"),
        "selection without losses": (Everyday(), loader, {}, "define losses(batch)"),
        "a method that needs rows": (Everyday(ESAM()), plain, {}, "define losses(batch)"),
        "a stream": (Net(), SelectiveStream([], int, sampler()), {}, "Call stream.update yourself"),
        "one of several loaders": (Net(), [loader, plain], {}, "the only training loader"),
        "batches to overfit": (Net(), loader, {"overfit_batches": 2}, "Subset(dataset, range(n))"),
        "epochs of several lengths": (Net(), shorter, {}, "Trainer(reload_dataloaders_every_n_epochs=1)"),
        "a sampler per epoch": (Forgetful(), None, options(InfoBatch()), "Create the sampler once"),
        "a pair that cannot work": (Net(Plain()), loader, {}, "Plain never evaluates"),
        "an audit without indices": (Net(), plain, audit, "SelectiveLoader"),
    }


@pytest.mark.parametrize("name", refusals())
def test_what_cannot_work_is_refused(name, tmp_path):
    module, loader, settings, remedy = refusals()[name]
    with refused((TypeError, ValueError, RuntimeError, NotImplementedError), remedy):
        trainer(tmp_path, **settings).fit(module, loader)


@pytest.mark.parametrize(
    ("limits", "epochs"),
    [({"epochs": 2}, 2), ({"epochs": -1, "max_steps": 11, "accumulate_grad_batches": 2}, 4)],
    ids=["epochs", "steps"],
)
def test_the_sampler_learns_how_many_epochs_the_trainer_runs(limits, epochs, tmp_path):
    chosen = sampler(AUSampling(0.5))
    trainer(tmp_path, **limits).fit(Net(), SelectiveLoader(Points(), chosen))
    assert chosen.policy == AUSampling(0.5, epochs=epochs)
