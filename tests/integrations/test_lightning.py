"""The Lightning adapter: ``Trainer.fit`` does what a plain loop with SharpnessAware does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ausam import SAM, AUSampling, InfoBatch, LookSAM, Plain, SelectiveBatchSampler, SharpnessAware

lightning = pytest.importorskip("lightning", reason='needs pip install "ausam[lightning]"')

from lightning.pytorch import LightningDataModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.utilities.combined_loader import CombinedLoader  # noqa: E402
from lightning.pytorch.utilities.data import _update_dataloader  # noqa: E402

from ausam.integrations.lightning import SelectiveLoader, SharpnessAwareModule  # noqa: E402

# Lightning's own: of torch's pytree, of workers that a loader of so few samples does not need, of checkpoints that hold
# the weights after the step, which is what they should hold, and of resuming without the callback that saved.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization and every_n_train_steps"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create"),
]

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
        return {"x": self.x[i], "y": self.y[i]}


class Net(SharpnessAwareModule):
    def __init__(self, method=None, accumulate=1):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        self.method, self.accumulate = method or LookSAM(rho=0.1, k=2), accumulate
        self.lr = []

    def losses(self, batch):
        z = self.net(batch["x"])
        return F.cross_entropy(z, batch["y"], reduction="none"), z

    def configure_optimizers(self):
        opt = self.sharpness_aware(torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), self.method)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.7)]

    def on_before_optimizer_step(self, optimizer):
        self.lr.append(optimizer.param_groups[0]["lr"])
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")


def sampler(policy=None):
    return SelectiveBatchSampler(N, 8, policy or AUSampling(0.5, ramp=1), drop_last=True)


def trainer(folder, epochs=3, **changes):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoints = {"enable_checkpointing": False} if "callbacks" not in changes else {}
    return Trainer(max_epochs=epochs, default_root_dir=folder, devices=1, **{**quiet, **checkpoints, **changes})


def by_hand(policy, epochs=3, parts=1):
    module, data, chosen = Net(), Points(), sampler(policy)
    opt = SharpnessAware(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), module.method, module)
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
                nn.utils.clip_grad_norm_(module.parameters(), 0.5)
                opt.step()
                opt.zero_grad()
        scheduler.step()
    return module, data, chosen, opt


def same(a, b):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "policy", [AUSampling(0.5, ramp=1), InfoBatch(prune=0.5, epochs=8)], ids=lambda p: type(p).__name__
)
def test_it_trains_as_a_plain_loop(policy, workers, parts, tmp_path):
    module, data, chosen = Net(accumulate=parts), Points(), sampler(policy)
    t = trainer(tmp_path)
    t.fit(module, SelectiveLoader(data, chosen, num_workers=workers))
    plain, read, expected, opt = by_hand(policy, parts=parts)
    same(module, plain)
    assert t.global_step == opt.steps == len(module.lr)
    assert module.lr[0] == 0.1
    assert module.lr[-1] == pytest.approx(0.1 * 0.7**2)
    assert torch.equal(chosen.scores.sum, expected.scores.sum)
    assert int(module.net[1].num_batches_tracked) == int(plain.net[1].num_batches_tracked)
    assert workers or data.read == read.read  # what was not chosen was never read
    assert len(read.read) < 3 * N


def test_without_selection_any_loader_will_do(tmp_path):
    module, data, plain = Net(), Points(), Net()
    trainer(tmp_path, 1).fit(module, DataLoader(data, batch_size=10))
    opt = SharpnessAware(torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), plain.method, plain)
    for batch in DataLoader(data, batch_size=10):
        opt.backward(plain.losses, batch)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
    same(module, plain)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("at", [3, 6, 9])
def test_it_goes_on_from_lightnings_checkpoint(at, workers, tmp_path):
    """In the middle and at the end of an epoch of 6 batches."""
    saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=3)
    whole = Net()
    trainer(tmp_path, callbacks=[saver]).fit(whole, SelectiveLoader(Points(), sampler(), num_workers=workers))
    module, data, chosen = Net(), Points(), sampler()
    t = trainer(tmp_path, callbacks=[])
    t.fit(module, SelectiveLoader(data, chosen, num_workers=workers), ckpt_path=tmp_path / f"step={at}.ckpt")
    assert t.global_step == 18
    same(module, whole)
    _, read, expected, _ = by_hand(None)
    assert torch.equal(chosen.scores.sum, expected.scores.sum)
    if not workers:
        assert data.read == read.read[-len(data.read) :]


def test_it_goes_on_from_a_checkpoint_of_the_end_of_an_epoch(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, save_on_train_epoch_end=True)
    whole = Net()
    trainer(tmp_path, callbacks=[saver]).fit(whole, SelectiveLoader(Points(), sampler()))
    module, data, chosen = Net(), Points(), sampler()
    trainer(tmp_path).fit(module, SelectiveLoader(data, chosen), ckpt_path=tmp_path / "epoch=0.ckpt")
    same(module, whole)
    assert len(data.read) == 2 * 6 * 4  # the scores came along, or the policy could not choose
    assert chosen.epoch == 3


def test_a_scheduler_that_watches_a_metric_sees_the_validation_of_its_epoch(tmp_path):
    seen = []

    class Watched(Net):
        monitor = "val"

        def configure_optimizers(self):
            opt = self.sharpness_aware(torch.optim.SGD(self.parameters(), lr=0.1), self.method)
            return [opt], [torch.optim.lr_scheduler.ReduceLROnPlateau(opt)]

        def validation_step(self, batch, batch_idx):
            self.log("val", float(self.trainer.current_epoch))

        def lr_scheduler_step(self, scheduler, metric):
            seen.append(float(metric))

    loader = SelectiveLoader(Points(), sampler())
    trainer(tmp_path, num_sanity_val_steps=0).fit(Watched(), loader, DataLoader(Points(), batch_size=25))
    assert seen == [0.0, 1.0, 2.0]


def test_schedulers_step_every_step_if_told(tmp_path):
    module = Net()
    module.interval = "step"
    trainer(tmp_path, 1).fit(module, SelectiveLoader(Points(), sampler()))
    assert module.lr == pytest.approx([0.1 * 0.7**k for k in range(6)])


REFUSED = (
    "The DataLoader has a SelectiveBatchSampler, which Lightning does not save, and replaces where there are several "
    "devices. Train on SelectiveLoader(dataset, sampler) from ausam.integrations.lightning."
)


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
    with pytest.raises(TypeError) as told:
        trainer(tmp_path).fit(module, given.get(where))
    assert str(told.value) == REFUSED


def test_lightning_cannot_build_our_sampler_anew():
    """What it does with several devices to a loader in a module that is not ours."""
    loader = DataLoader(Points(), batch_sampler=sampler())
    with pytest.raises(TypeError) as told:
        _update_dataloader(loader, DistributedSampler(Points(), num_replicas=2, rank=0))
    assert str(told.value) == (
        "A framework tried to build the SelectiveBatchSampler again, around a sampler of its own: the one that you "
        "update would no longer be in use. It deals the batches to the processes itself, so with Lightning say "
        "Trainer(use_distributed_sampler=False), or train on ausam.integrations.lightning.SelectiveLoader."
    )


def test_what_cannot_work_is_refused(tmp_path):
    class Unwrapped(Net):
        def configure_optimizers(self):
            return SharpnessAware(torch.optim.SGD(self.parameters(), lr=0.1), SAM(), self)

    with pytest.raises(TypeError) as told:
        trainer(tmp_path).fit(Unwrapped(), SelectiveLoader(Points(), sampler()))
    assert str(told.value) == (
        "configure_optimizers made SharpnessAware, but one optimizer from self.sharpness_aware(base, method) is needed."
    )
    with pytest.raises(ValueError, match="AUSampling ranks samples by sharpness, but Plain never evaluates"):
        trainer(tmp_path).fit(Net(Plain()), SelectiveLoader(Points(), sampler()))
    with pytest.raises(NotImplementedError) as told:
        SharpnessAwareModule().losses(None)
    assert str(told.value) == "Define losses(self, batch) in SharpnessAwareModule; it returns one loss a sample."
