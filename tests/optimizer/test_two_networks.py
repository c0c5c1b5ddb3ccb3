"""Two networks in one loss function, as in a GAN."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from ausam import SAM, Plain, SharpnessAware
from tests.helpers import assert_equal, values


def networks():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    discriminator = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
    return generator, discriminator


def step(generator, discriminator, model, method):
    opt = SharpnessAware(SGD(generator.parameters(), lr=0.1), method, model)
    losses = lambda z: -discriminator(generator(z)).squeeze(1)  # noqa: E731
    opt.backward(losses, torch.randn(8, 2, generator=torch.Generator().manual_seed(1)))
    return opt


def test_the_buffers_of_every_given_network_move_once():
    once = networks()
    step(*once, once[0], Plain())
    both = networks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt = step(*both, list(both), SAM(0.5))
    assert_equal(dict(both[1].named_buffers()), dict(once[1].named_buffers()))
    assert_equal(dict(both[0].named_buffers()), dict(once[0].named_buffers()))
    opt.step()
    assert_equal(values(both[1]), values(once[1]))  # the discriminator is not trained


def test_the_gradient_is_that_of_the_trained_network_alone():
    one, two = networks(), networks()
    with pytest.warns(RuntimeWarning):
        step(*one, one[0], SAM(0.5))
    step(*two, list(two), SAM(0.5))
    for p, q in zip(one[0].parameters(), two[0].parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_a_network_that_moves_in_both_passes_is_warned_of_once():
    generator, discriminator = networks()
    with pytest.warns(RuntimeWarning, match=r"\[model, other\]"):
        opt = step(generator, discriminator, generator, SAM(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.backward(lambda z: discriminator(generator(z)).squeeze(1), torch.randn(8, 2))
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_loss_module_with_buffers_is_no_network():
    generator, _ = networks()
    criterion = nn.CrossEntropyLoss(weight=torch.ones(4), reduction="none")
    opt = SharpnessAware(SGD(generator.parameters(), lr=0.1), SAM(0.5), generator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.backward(lambda z, y: criterion(generator(z), y), torch.randn(8, 2), torch.randint(4, (8,)))


@pytest.mark.parametrize("model", [[], [1], "model", None])
def test_what_is_no_module_is_refused(model):
    generator, _ = networks()
    with pytest.raises(TypeError, match="list of modules"):
        SharpnessAware(SGD(generator.parameters(), lr=0.1), SAM(0.5), model)


def test_a_missing_wrapper_of_ddp_is_warned_of(tmp_path):
    """The gradient of the perturbation would be averaged in silence, as with sync_perturbation=True."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        _train_with_and_without_the_wrapper()  # whose DDP is gone before its process group, or torch may wait for ever
    finally:
        dist.destroy_process_group()


def _train_with_and_without_the_wrapper():
    model = networks()[0]
    ddp = nn.parallel.DistributedDataParallel(model)

    def losses(z):
        return ddp(z).square().sum(1)

    wrapped = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.5), ddp)
    wrapped.backward(losses, torch.randn(8, 2))  # warnings are errors here
    bare = SharpnessAware(SGD(model.parameters(), lr=0.1), SAM(0.5), model)
    with pytest.warns(RuntimeWarning, match="Give it the wrapper"):
        bare.backward(losses, torch.randn(8, 2))
    bare.backward(losses, torch.randn(8, 2))
