"""ausam.compat: davda54/sam's interface, its numbers, and what goes wrong in scripts that use it."""

import copy
import gc
import os
import pickle
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adadelta, AdamW

import ausam
from ausam.compat import SAM
from tests.helpers import data, network, refused
from tests.processes import group

pytestmark = pytest.mark.filterwarnings("error")


class Slow:
    """davda54/sam's algorithm, written out: one parameter after the other, the weights put back from a copy."""

    def __init__(self, groups, base, rho=0.05, adaptive=False, **settings):
        self.groups = [{"rho": rho, "adaptive": adaptive, **g, "params": list(g["params"])} for g in groups]
        plain = [{k: v for k, v in g.items() if k not in ("rho", "adaptive")} for g in self.groups]
        self.base = base(plain, **settings)

    def each(self):
        return [(g, p) for g in self.groups for p in g["params"] if p.grad is not None]

    @torch.no_grad()
    def first_step(self):
        norms = [torch.norm((p.abs() if g["adaptive"] else 1.0) * p.grad, p=2) for g, p in self.each()]
        norm = torch.norm(torch.stack(norms), p=2)
        self.old = {p: p.clone() for _, p in self.each()}
        for g, p in self.each():
            p.add_((torch.pow(p, 2) if g["adaptive"] else 1.0) * p.grad * (g["rho"] / (norm + 1e-12)))
        self.base.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p, old in self.old.items():
            p.copy_(old)
        self.base.step()
        self.base.zero_grad()


def quiet(*args, **settings):
    """An optimizer without a model, and without the warning about it."""
    with pytest.warns(RuntimeWarning, match="model=model"):
        return SAM(*args, **settings)


def train(model, opt, steps=20, start=0):
    for step in range(start, start + steps):
        x, y = data(seed=step)
        cross_entropy(model(x), y).backward()
        opt.first_step(zero_grad=True)
        cross_entropy(model(x), y).backward()
        opt.second_step(zero_grad=True)


def same(a, b):
    return all(torch.equal(v, w) for v, w in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


# -- the numbers -------------------------------------------------------------------------------------------------------


def one_group(model):
    return [{"params": model.parameters()}]


def own_radii(model):
    first, *others = model.children()
    rest = [p for m in others for p in m.parameters()]
    return [{"params": first.parameters(), "rho": 0.5, "weight_decay": 0.1}, {"params": rest, "adaptive": True}]


@pytest.mark.parametrize("groups", [one_group, own_radii])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    ("base", "settings"),
    [
        (SGD, {"lr": 0.1}),
        (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}),
        (AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    ],
)
def test_bit_for_bit(groups, adaptive, base, settings):
    ours, theirs = network(batchnorm=False), network(batchnorm=False)
    train(ours, SAM(groups(ours), base, 0.1, adaptive, model=ours, **settings))
    train_slow(theirs, Slow(groups(theirs), base, 0.1, adaptive, **settings))
    assert same(ours, theirs)


def train_slow(model, slow, steps=20):
    for step in range(steps):
        x, y = data(seed=step)
        cross_entropy(model(x), y).backward()
        slow.first_step()
        cross_entropy(model(x), y).backward()
        slow.second_step()


def test_a_closure_takes_both_steps():
    by_closure, by_hand = network(batchnorm=False), network(batchnorm=False)
    settings = {"rho": 0.1, "lr": 0.1, "momentum": 0.9}
    opt = SAM(by_closure.parameters(), SGD, model=by_closure, **settings)
    for step in range(10):
        pass_through(by_closure, step)
        assert opt.step(lambda step=step: pass_through(by_closure, step)) is None
        opt.zero_grad()
    train(by_hand, SAM(by_hand.parameters(), SGD, model=by_hand, **settings), steps=10)
    assert same(by_closure, by_hand)


def test_the_weights_come_back_exactly_and_a_zero_gradient_moves_nothing():
    model = network(batchnorm=False)
    opt = SAM(model.parameters(), SGD, rho=0.3, model=model, lr=0.0)
    before = copy.deepcopy(model)
    x, y = data()
    cross_entropy(model(x), y).backward()
    opt.first_step(zero_grad=True)
    moved = torch.cat(
        [(p - q).detach().flatten() for p, q in zip(model.parameters(), before.parameters(), strict=True)]
    )
    assert moved.norm() == pytest.approx(0.3, rel=1e-4)
    (0 * cross_entropy(model(x), y)).backward()
    opt.second_step()
    assert same(model, before)
    opt.first_step()  # the gradient is zero now
    assert same(model, before)


def test_a_parameter_that_only_one_pass_reaches_returns_too():
    model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    opt = SAM(model.parameters(), SGD, rho=0.1, model=model, lr=0.0)
    before, x = copy.deepcopy(model), torch.ones(3, 2)
    model[0](x).sum().backward()
    opt.first_step(zero_grad=True)
    model[1](x).sum().backward()
    opt.second_step()
    assert same(model, before)


def test_maximise_perturbs_downhill_and_adadelta_keeps_its_own_rho():
    w = nn.Parameter(torch.tensor([2.0]))
    opt = quiet([w], SGD, rho=0.5, lr=0.1, maximize=True)
    w.square().sum().backward()
    opt.first_step()
    assert w.item() == 1.5
    w = nn.Parameter(torch.tensor([2.0]))
    opt = quiet([w], Adadelta, rho=0.5)
    assert (opt.param_groups[0]["rho"], opt.param_groups[0]["sam_rho"]) == (0.9, 0.5)
    w.square().sum().backward()
    opt.first_step()
    assert w.item() == 2.5


# -- buffers -----------------------------------------------------------------------------------------------------------


def test_with_a_model_batchnorm_moves_once():
    model, plain = network(), network()
    opt = SAM(model.parameters(), SGD, rho=0.5, model=model, lr=0.0)
    for step in range(3):
        x, y = data(seed=step)
        plain(x)
        cross_entropy(model(x), y).backward()
        opt.first_step(zero_grad=True)
        cross_entropy(model(x), y).backward()
        opt.second_step(zero_grad=True)
    assert same(model, plain)
    assert model[1].num_batches_tracked == 3


def test_without_a_model_they_move_twice_with_one_warning():
    model = network()
    opt = quiet(model.parameters(), SGD, lr=0.1)
    train(model, opt, steps=3)
    assert model[1].num_batches_tracked == 6


# -- two processes -----------------------------------------------------------------------------------------------------


def in_two_processes(folder):
    rank, outcomes = int(os.environ["RANK"]), {}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for averaged in (True, False):
        net = network(batchnorm=False)
        model = nn.parallel.DistributedDataParallel(net)
        opt = SAM(model.parameters(), SGD, rho=0.5, model=model, lr=0.1)
        for step in range(4):
            x, y = data(seed=2 * step + rank)
            with nullcontext() if averaged else model.no_sync():
                cross_entropy(model(x), y).backward()
            opt.first_step(zero_grad=True)
            cross_entropy(model(x), y).backward()
            opt.second_step(zero_grad=True)
        outcomes[averaged] = [p.detach() for p in net.parameters()]
    torch.save(outcomes, folder / f"{rank}.pt")


def test_ddp_perturbs_with_the_global_batch_or_with_each_process_its_own(tmp_path):
    assert group(2, in_two_processes, tmp_path, seconds=300, GLOO_SOCKET_IFNAME="lo") == [0, 0]
    mine, theirs = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for averaged in (True, False):  # both processes are at the same w
        assert all(map(torch.equal, mine[averaged], theirs[averaged]))
    model = network(batchnorm=False)
    opt = SAM(model.parameters(), SGD, rho=0.5, model=model, lr=0.1)
    for step in range(4):
        (x0, y0), (x1, y1) = data(seed=2 * step), data(seed=2 * step + 1)
        x, y = torch.cat([x0, x1]), torch.cat([y0, y1])
        cross_entropy(model(x), y).backward()
        opt.first_step(zero_grad=True)
        cross_entropy(model(x), y).backward()
        opt.second_step(zero_grad=True)
    for p, a, b in zip(model.parameters(), mine[True], mine[False], strict=True):
        torch.testing.assert_close(p, a, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(p, b, rtol=1e-5, atol=1e-6)


# -- groups, schedulers, copies, checkpoints ---------------------------------------------------------------------------


def test_schedulers_of_either_optimizer_and_no_false_warning():
    model = network(batchnorm=False)
    opt = SAM(model.parameters(), SGD, model=model, lr=0.1)
    assert opt.base_optimizer.param_groups is opt.param_groups
    schedules = [torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)]
    train(model, opt, steps=1)
    schedules[0].step()  # torch warns if it has seen no step
    assert opt.base_optimizer.param_groups[0]["lr"] == 0.05
    torch.optim.lr_scheduler.LambdaLR(opt.base_optimizer, lambda step: 2.0)
    assert opt.param_groups[0]["lr"] == 0.2
    opt.param_groups[0]["rho"] = 0.0  # a schedule of one's own
    train(model, opt, steps=1)


def test_a_group_added_later_has_our_settings():
    model, more = network(batchnorm=False), nn.Linear(2, 2)
    opt = SAM(model.parameters(), SGD, rho=0.2, adaptive=True, model=model, lr=0.1)
    opt.add_param_group({"params": more.parameters(), "lr": 0.01})
    assert (opt.param_groups[1]["rho"], opt.param_groups[1]["adaptive"]) == (0.2, True)


@pytest.mark.parametrize("how", ["state", "pickle", "deepcopy"])
def test_a_resumed_training_is_the_uninterrupted_one(how, tmp_path):
    def begin():
        model = network()
        return model, SAM(own_radii(model), SGD, rho=0.1, model=model, lr=0.1, momentum=0.9)

    whole, opt = begin()
    train(whole, opt, steps=10)
    model, opt = begin()
    train(model, opt, steps=5)
    if how == "state":
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, tmp_path / "checkpoint.pt")
        saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        model, opt = begin()
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
    elif how == "pickle":
        model, opt = pickle.loads(pickle.dumps((model, opt)))
    else:
        model, opt = copy.deepcopy((model, opt))
    train(model, opt, steps=5, start=5)
    assert same(model, whole)
    assert set(opt.state_dict()) == {"state", "param_groups"}
    assert all(set(state) == {"momentum_buffer"} for state in opt.state_dict()["state"].values())


def test_states_of_the_base_and_of_davda54():
    model = network(batchnorm=False)
    opt = SAM(model.parameters(), AdamW, rho=0.3, model=model, lr=0.1)
    base = AdamW(model.parameters(), lr=0.01)
    opt.load_state_dict(base.state_dict())
    assert (opt.param_groups[0]["lr"], opt.param_groups[0]["rho"]) == (0.01, 0.3)
    theirs = opt.state_dict()
    theirs["state"] = {i: {"old_p": p.detach().clone()} for i, p in enumerate(model.parameters())}
    with pytest.warns(RuntimeWarning, match="starts from scratch"):
        opt.load_state_dict(theirs)
    train(model, opt, steps=1)
    both = copy.deepcopy(opt.state_dict())  # of a fork that keeps old_p beside the base's state
    for state in both["state"].values():
        state["old_p"] = torch.zeros(())
    opt.load_state_dict(both)
    assert all({"exp_avg", "old_p"} & state.keys() == {"exp_avg"} for state in opt.state.values())


def test_nothing_is_saved_at_the_perturbed_weights():
    model = network()
    opt = SAM(model.parameters(), SGD, model=model, lr=0.1)
    x, y = data()
    cross_entropy(model(x), y).backward()
    opt.first_step()
    with pytest.raises(RuntimeError, match="Save after second_step"):
        opt.state_dict()


# -- mistakes ----------------------------------------------------------------------------------------------------------


def pass_through(model, seed=0):
    x, y = data(seed=seed)
    cross_entropy(model(x), y).backward()


def one(lr=0.1):
    model = network(batchnorm=False)
    return model, SAM(model.parameters(), SGD, rho=0.1, model=model, lr=lr)


def test_first_step_twice_warns_once_and_does_not_drift():
    model, opt = one(lr=0.0)
    before = copy.deepcopy(model)
    pass_through(model)
    opt.first_step()
    with pytest.warns(RuntimeWarning, match="without second_step"):
        opt.first_step()
    opt.first_step()
    opt.second_step()
    assert same(model, before)


def test_step_without_a_closure():
    model, opt = one()
    twin = copy.deepcopy(model)
    sgd = SGD(twin.parameters(), lr=0.1)
    pass_through(model)
    pass_through(twin)
    for expected in (pytest.warns(RuntimeWarning, match="not of SAM"), nullcontext()):
        with expected:
            opt.step()
        sgd.step()
    assert same(model, twin)
    opt.first_step(zero_grad=True)
    pass_through(model)
    with pytest.warns(RuntimeWarning, match="taken as second_step"):
        opt.step()
    assert not opt._saved


def test_clipping_before_first_step_only():
    model, opt = one()

    def step(clip_first, clip_second):
        for clip, then in ((clip_first, opt.first_step), (clip_second, opt.second_step)):
            pass_through(model)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            then(zero_grad=True)

    step(False, True)
    step(True, True)
    with pytest.warns(RuntimeWarning, match="not clipped"):
        step(True, False)
    step(True, False)


@pytest.mark.parametrize("both", [True, False])
def test_grad_scaler(both):
    model, opt = one()
    twin = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10**6)
    x, y = data()
    for then, unscale in ((opt.first_step, True), (opt.second_step, both)):
        scaler.scale(cross_entropy(model(x), y)).backward()
        if unscale:
            scaler.unscale_(opt)
        with nullcontext() if unscale else pytest.warns(RuntimeWarning, match="multiplied by the scale"):
            then(zero_grad=True)
        if unscale:
            scaler.update()
    train_slow(twin, Slow(one_group(twin), SGD, 0.1, lr=0.1), steps=1)
    assert same(model, twin) == both


def test_no_reference_keeps_a_replaced_optimizer_alive():
    _, opt = one()
    gone = weakref.ref(opt)
    del opt
    gc.collect()
    assert gone() is None


def test_a_step_that_is_not_finite_is_skipped():
    model, opt = one()
    before = copy.deepcopy(model)
    x, y = data()
    for expected in (pytest.warns(RuntimeWarning, match="skipped"), nullcontext()):
        (float("inf") * cross_entropy(model(x), y)).backward()
        opt.first_step(zero_grad=True)
        cross_entropy(model(x), y).backward()
        with expected:
            opt.second_step(zero_grad=True)
    assert same(model, before)
    assert opt.skipped == 2


def test_errors():
    model, opt = one()
    with pytest.raises(RuntimeError, match=r"loss.backward\(\) before"):
        opt.first_step()
    pass_through(model)
    with pytest.raises(RuntimeError, match="Call first_step"):
        opt.second_step()
    with pytest.raises(TypeError, match=r"torch.optim.SGD"):
        SAM(model.parameters(), SGD(model.parameters(), lr=0.1), lr=0.1)
    with pytest.raises(ValueError, match="rho is -1"):
        SAM(model.parameters(), SGD, rho=-1, lr=0.1)
    with pytest.raises(TypeError, match="LBFGS"):
        SAM(model.parameters(), torch.optim.LBFGS)
    with pytest.raises(TypeError, match=r"got a Tensor.*step\(closure\)"):
        opt.step(torch.zeros(()))


def test_setting_rho_names_the_groups_of_this_class():
    with refused(AttributeError, "SAM has no rho to set", 'group["rho"] = 0.1', "For SharpnessAware, RhoSchedule"):
        quiet(network().parameters(), SGD, lr=0.1).rho = 0.1


def test_accelerate_prepares_the_model_and_not_the_optimizer():
    accelerate = pytest.importorskip("accelerate")
    (model, opt), (alone, twin) = one(), one()
    accelerator = accelerate.Accelerator(cpu=True)
    with pytest.raises(TypeError, match=r"first_step.*accelerator.prepare\(model, loader\)"):
        accelerator.prepare(opt)
    prepared = accelerator.prepare(model)
    x, y = data()
    for net, optimizer, backward in ((prepared, opt, accelerator.backward), (alone, twin, torch.Tensor.backward)):
        backward(cross_entropy(net(x), y))
        optimizer.first_step(zero_grad=True)
        backward(cross_entropy(net(x), y))
        optimizer.second_step(zero_grad=True)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), alone.parameters(), strict=True))


def test_the_other_classes_name_this_one():
    model = network()
    with pytest.raises(TypeError, match=r"ausam\.compat"):
        ausam.SAM(model.parameters(), SGD)
    opt = ausam.SharpnessAware(SGD(model.parameters(), lr=0.1), ausam.SAM(0.1), model)
    with pytest.raises(AttributeError, match=r"ausam\.compat"):
        opt.first_step(zero_grad=True)
