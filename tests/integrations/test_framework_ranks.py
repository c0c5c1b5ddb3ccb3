"""Lightning, Accelerate and the Trainer in two processes: equal weights and scores, and those that they should be."""

import contextlib
import os
import tempfile

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ausam import SAM, AUSampling, Indexed, SharpnessAware
from tests.processes import FRAMEWORKS, group

LIGHTNING = {"max_epochs": 3, "strategy": "ddp", "devices": 2, "accelerator": "cpu"}
POLICY = AUSampling(0.5, ramp=1)
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


def state(model, sampler):
    sampler.exchange()
    return [p.detach().clone() for p in model.parameters()], sampler.scores.state_dict()


# -- what each process does --------------------------------------------------------------------------------------------


def an_ordinary_lightning_module():
    """One line is new, and a callback; clipping, accumulation and the sampler of each process are Lightning's."""
    from lightning.pytorch import Trainer

    from ausam.integrations.lightning import SharpnessAwareCallback
    from tests.integrations.test_lightning import Everyday, Points

    module, settings = Everyday(), {"callbacks": [SharpnessAwareCallback()], **LIGHTNING, **QUIET}
    trainer = Trainer(accumulate_grad_batches=2, gradient_clip_val=0.1, **settings)
    trainer.fit(module, DataLoader(Points(), batch_size=5))
    assert trainer.global_step == 3 * 3
    return [p.detach().clone() for p in module.parameters()]


def as_an_ordinary_module():
    """The same by hand: each process perturbs by its own micro-batch, and averages its gradients once per step."""
    from tests.integrations.test_lightning import Everyday, Points

    dist.init_process_group("gloo")
    plain = Everyday()
    model = DistributedDataParallel(plain.net)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.1), model)
    losses = lambda x, y: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    data = Points()
    theirs = DistributedSampler(data, shuffle=True)  # as Lightning makes it, whatever the loader says
    loader = DataLoader(data, batch_size=5, sampler=theirs)
    for epoch in range(3):
        theirs.set_epoch(epoch)
        opt.param_groups[0]["lr"] = 0.1 * 0.7**epoch
        for b, batch in enumerate(loader):
            last = b % 2 == 1 or b == 4
            with contextlib.nullcontext() if last else model.no_sync():
                opt.backward(losses, *batch.values(), backward=lambda loss: (loss / 2).backward())
            if last:
                nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
                opt.step()
                opt.zero_grad()
    return [p.detach().clone() for p in plain.parameters()]


def with_lightning():
    from lightning.pytorch import Trainer

    from ausam.integrations.lightning import SelectiveLoader
    from tests.integrations.test_lightning import Hooked, Net, Points, sampler

    with pytest.raises(TypeError, match="Use SelectiveLoader"):
        Trainer(**LIGHTNING, **QUIET).fit(Hooked())
    module, chosen = Net(SAM(rho=0.1)), sampler()
    trainer = Trainer(gradient_clip_val=0.1, **LIGHTNING, **QUIET)
    trainer.fit(module, SelectiveLoader(Points(), chosen))
    return state(module, chosen)


def with_manual_optimisation():
    """An ordinary DataLoader: Lightning is asked to leave its sampler alone."""
    from lightning.pytorch import LightningModule, Trainer

    from ausam.integrations.lightning import SharpnessAwareCallback
    from tests.integrations.test_lightning import Net, Points, sampler

    data, chosen = Points(), sampler()
    theirs = Net(SAM(rho=0.1))

    class Own(LightningModule):
        automatic_optimization = False

        def __init__(self):
            super().__init__()
            self.net = theirs.net

        def configure_optimizers(self):
            return SharpnessAware(torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), SAM(rho=0.1), self)

        def training_step(self, batch, batch_idx):
            opt, i = self.optimizers(), batch[-1]
            losses = lambda b: theirs.losses(b)[0]  # noqa: E731
            inputs = {"x": data.x[i], "y": data.y[i]}
            chosen.update(opt.backward(losses, inputs, index=i, backward=self.manual_backward))
            nn.utils.clip_grad_norm_(self.parameters(), 0.1)
            opt.param_groups[0]["lr"] = 0.1 * 0.7**self.current_epoch
            opt.step()
            opt.zero_grad()

    loader = DataLoader(Indexed(list(data.x)), batch_sampler=chosen)
    settings = {"callbacks": [SharpnessAwareCallback()], **LIGHTNING, **QUIET}
    trainer = Trainer(use_distributed_sampler=False, **settings)
    trainer.fit(Own(), loader)
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
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
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


def with_transformers(batch=8, policy=POLICY, parts=1, rho=0.1):
    """Without BatchNorm and with one perturbation: what one process does with twice the batch."""
    import transformers

    from ausam.integrations.transformers import SharpnessAwareTrainer
    from tests.integrations.test_transformers import Sentences, arguments, classifier

    model = classifier(transformers.BertForSequenceClassification)
    args = arguments(tempfile.gettempdir(), per_device_train_batch_size=batch, ddp_find_unused_parameters=False)
    args.gradient_accumulation_steps, args.max_grad_norm, args.average_tokens_across_devices = parts, 0.5, False
    trainer = SharpnessAwareTrainer(
        model,
        args,
        train_dataset=Sentences(),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None),
        method=SAM(rho=rho),
        policy=policy,
        settings={"sync_perturbation": True},
    )
    trainer.train()
    if policy is None:
        return [p.detach().clone() for p in model.parameters()]
    return state(model, trainer.batches.selective)


def with_accumulation(batch=8, rho=0.0):
    """Micro-batches are averaged over the processes once per step, so each process perturbs by its own."""
    return with_transformers(batch, parts=3, rho=rho)


def with_the_trainers_own_step(batch=8, rho=0.0):
    """Without a policy: the Trainer's own loss, its accumulation and its average over the processes."""
    return with_transformers(batch, policy=None, parts=3, rho=rho)


def with_accumulated_perturbations():
    return [with_accumulation(rho=0.1)[0], with_the_trainers_own_step(rho=0.1)]


def saved(work, folder):
    torch.save(work(), folder / f"{work.__name__}-{os.environ['RANK']}.pt")


def both(work, folder):
    """The weights and scores that two processes agree on."""
    assert group(2, saved, work, folder, preload=FRAMEWORKS, ACCELERATE_USE_CPU="true") == [0, 0]
    one, other = (torch.load(folder / f"{work.__name__}-{rank}.pt", weights_only=True) for rank in range(2))
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return one


# -- tests -------------------------------------------------------------------------------------------------------------


def test_an_ordinary_lightning_module(tmp_path):
    pytest.importorskip("lightning", reason='needs pip install "ausam[lightning]"')
    result, expected = both(an_ordinary_lightning_module, tmp_path), both(as_an_ordinary_module, tmp_path)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    pytest.importorskip("lightning", reason='needs pip install "ausam[lightning]"')
    return both(as_lightning, tmp_path_factory.mktemp("by_hand"))


@pytest.mark.parametrize("work", [with_lightning, with_manual_optimisation], ids=lambda w: w.__name__)
def test_lightning(work, by_hand, tmp_path):
    result, expected = both(work, tmp_path), by_hand
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    assert int(result[1]["count"].sum()) == 48 + 24 + 24


def test_accelerate(tmp_path):
    pytest.importorskip("accelerate", reason='needs pip install "ausam[accelerate]"')
    result, expected = both(with_accelerate, tmp_path), both(as_accelerate, tmp_path)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("work", [with_transformers, with_accumulation])
def test_transformers(work, tmp_path):
    pytest.importorskip("transformers", reason='needs pip install "ausam[transformers]"')
    (weights, scores), (one, likewise) = both(work, tmp_path), work(16)
    torch.testing.assert_close(weights, one, rtol=1e-4, atol=1e-5)
    assert torch.equal(scores["count"], likewise["count"])


def test_transformers_without_a_policy(tmp_path):
    pytest.importorskip("transformers", reason='needs pip install "ausam[transformers]"')
    both(with_accumulated_perturbations, tmp_path)  # equal weights in both processes
    result, one = both(with_the_trainers_own_step, tmp_path), with_the_trainers_own_step(16)
    torch.testing.assert_close(result, one, rtol=1e-4, atol=1e-5)
