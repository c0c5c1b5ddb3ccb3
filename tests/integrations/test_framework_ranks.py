"""Lightning, Accelerate and the Trainer in two processes: equal weights and scores, and those that they should be."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ausam import SAM, AUSampling, Indexed, SharpnessAware
from tests.lab.training.test_torchrun import group

LIGHTNING = {"max_epochs": 3, "strategy": "ddp", "devices": 2, "accelerator": "cpu"}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def state(model, sampler):
    sampler.exchange()
    return [p.detach().clone() for p in model.parameters()], sampler.scores.state_dict()


# -- what each process does --------------------------------------------------------------------------------------------


def with_lightning():
    from lightning.pytorch import Trainer

    from ausam.integrations.lightning import SelectiveLoader
    from tests.integrations.test_lightning import REFUSED, Hooked, Net, Points, sampler

    with pytest.raises(TypeError) as told:
        Trainer(**LIGHTNING, **QUIET).fit(Hooked())
    assert str(told.value) == REFUSED
    module, chosen = Net(SAM(rho=0.1)), sampler()
    trainer = Trainer(**LIGHTNING, **QUIET)
    trainer.fit(module, SelectiveLoader(Points(), chosen))
    return state(module, chosen)


def with_a_lightning_module_of_ones_own():
    """An ordinary DataLoader: Lightning is told to leave its sampler alone."""
    from lightning.pytorch import LightningModule, Trainer

    from tests.integrations.test_lightning import Net, Points, sampler

    data, chosen = Points(), sampler()
    theirs = Net(SAM(rho=0.1))

    class Own(LightningModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.net = theirs.net

        def configure_optimizers(self):
            # Lightning steps it with a closure of its own, so it holds the plain optimizer.
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

        def on_train_start(self):
            base = self.optimizers().optimizer
            self.opt = SharpnessAware(base, SAM(rho=0.1), self.trainer.strategy.model)

        def training_step(self, batch, batch_idx):
            i = batch[-1]
            losses = lambda b: theirs.losses(b)[0]  # noqa: E731
            inputs = {"x": data.x[i], "y": data.y[i]}
            chosen.update(self.opt.backward(losses, inputs, index=i, backward=self.manual_backward))
            nn.utils.clip_grad_norm_(self.parameters(), 0.5)
            self.opt.param_groups[0]["lr"] = 0.1 * 0.7**self.current_epoch
            self.opt.step()
            self.opt.zero_grad()

    module = Own()
    loader = DataLoader(Indexed(list(data.x)), batch_sampler=chosen)
    trainer = Trainer(use_distributed_sampler=False, **LIGHTNING, **QUIET)
    trainer.fit(module, loader)
    return state(theirs, chosen)


class Losses(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, batch):
        return self.module.losses(batch)[0]


def as_lightning():
    """The same training by a plain loop with DDP."""
    from tests.integrations.test_lightning import Net, Points, sampler

    dist.init_process_group("gloo")
    module, data, chosen = Net(SAM(rho=0.1)), Points(), sampler()
    model = DistributedDataParallel(Losses(module))
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.1), model)
    for epoch in range(3):
        opt.param_groups[0]["lr"] = 0.1 * 0.7**epoch
        for rows in chosen:
            i = torch.tensor(rows)
            chosen.update(opt.backward(model, {"x": data.x[i], "y": data.y[i]}, index=i))
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            opt.step()
            opt.zero_grad()
    return state(module, chosen)


def with_accelerate():
    from tests.integrations.test_accelerate import Training

    t = Training()
    for _ in range(3):
        t.epoch()
    assert t.accelerator.num_processes == 2
    return state(t.model, t.sampler)


def as_accelerate():
    from tests.integrations.test_accelerate import Training

    dist.init_process_group("gloo")
    t = Training(prepared=False)
    t.model = t.opt.model = DistributedDataParallel(t.model)
    for _ in range(3):
        t.plain_epoch()
    return state(t.model, t.sampler)


def with_transformers(batch=8):
    """Without BatchNorm and with one perturbation: what one process does with twice the batch."""
    import transformers

    from ausam.integrations.transformers import SharpnessAwareTrainer
    from tests.integrations.test_transformers import Sentences, arguments, classifier

    model = classifier(transformers.BertForSequenceClassification)
    args = arguments(tempfile.gettempdir(), per_device_train_batch_size=batch, ddp_find_unused_parameters=False)
    trainer = SharpnessAwareTrainer(
        model,
        args,
        train_dataset=Sentences(),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None),
        method=SAM(rho=0.1),
        policy=AUSampling(0.5, ramp=1),
        settings={"sync_perturbation": True},
    )
    trainer.train()
    return state(model, trainer.batches.selective)


def saved(work, folder):
    torch.save(work(), folder / f"{work.__name__}-{os.environ['RANK']}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def both(work, folder):
    """The weights and scores that two processes agree on."""
    imported = ["lightning.pytorch", "accelerate", "transformers"]
    assert group(2, saved, work, folder, preload=imported, ACCELERATE_USE_CPU="true") == [0, 0]
    one, other = (torch.load(folder / f"{work.__name__}-{rank}.pt", weights_only=True) for rank in range(2))
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return one


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    pytest.importorskip("lightning", reason='needs pip install "ausam[lightning]"')
    return both(as_lightning, tmp_path_factory.mktemp("by_hand"))


@pytest.mark.parametrize("work", [with_lightning, with_a_lightning_module_of_ones_own], ids=lambda w: w.__name__)
def test_lightning(work, by_hand, tmp_path):
    found, expected = both(work, tmp_path), by_hand
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert int(found[1]["count"].sum()) == 48 + 24 + 24


def test_accelerate(tmp_path):
    pytest.importorskip("accelerate", reason='needs pip install "ausam[accelerate]"')
    found, expected = both(with_accelerate, tmp_path), both(as_accelerate, tmp_path)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_transformers(tmp_path):
    pytest.importorskip("transformers", reason='needs pip install "ausam[transformers]"')
    (weights, scores), (one, likewise) = both(with_transformers, tmp_path), with_transformers(16)
    torch.testing.assert_close(weights, one, rtol=1e-4, atol=1e-5)
    assert torch.equal(scores["count"], likewise["count"])
