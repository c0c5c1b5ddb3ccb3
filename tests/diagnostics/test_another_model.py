"""A loss function that does not use the model is refused, and one that does is measured as if nothing were checked."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam import diagnostics as dg
from ausam.diagnostics.objective import Objective
from tests.diagnostics.test_untouched import EVERY, checkpoints, plain
from tests.helpers import few_of, few_or_many, losses_of

REFUSED = "No parameter of the model gets a gradient from loss_fn"
LOSSES_ONLY = ("loss_line", "loss_surface", "loss_between")

NETS = {
    "plain": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
    "batchnorm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)),
}


def two(kind):
    """Two networks of one kind in training mode, one of them with buffers of its own, and ten samples."""
    torch.manual_seed(3)
    first, second = NETS[kind]().double(), NETS[kind]().double()
    x, y = torch.randn(10, 4).double(), torch.randint(3, (10,))
    first(x)
    return first, second, x, y


def counted(losses):
    """The loss function, and the number of samples in each of its calls."""
    sizes = []

    def counting(x, y):
        sizes.append(len(x))
        return losses(x, y)

    return counting, sizes


@pytest.fixture
def unchecked(monkeypatch):
    """Call a function as if there were no check."""

    def call(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(Objective, "check", lambda *_, **__: None)
            patch.setattr(Objective, "traced", lambda self, batch: (self._values(batch), True))
            return function(*arguments)

    return call


@pytest.mark.parametrize("kind", few_of(NETS, "batchnorm"))
@pytest.mark.parametrize("name", EVERY)
def test_another_model_is_refused_and_the_model_left_as_it_was(name, kind):
    model, other, x, y = two(kind)
    model[1].eval()  # flags are those of each module
    for p in model.parameters():
        p.grad = torch.rand_like(p)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    tensors = [(id(t), t.data_ptr()) for t in (*model.parameters(), *model.buffers())]
    grads = [(p.grad, p.grad.clone()) for p in model.parameters()]
    flags = [m.training for m in model.modules()]
    rng = torch.get_rng_state()
    with pytest.raises(ValueError, match=REFUSED):
        EVERY[name](model, losses_of(other), x, y, 4)
    assert torch.get_rng_state().equal(rng)
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert [(id(t), t.data_ptr()) for t in (*model.parameters(), *model.buffers())] == tensors
    assert all(p.grad is g and g.equal(saved) for p, (g, saved) in zip(model.parameters(), grads, strict=True))
    assert [m.training for m in model.modules()] == flags
    assert all(p.grad is None for p in other.parameters())
    EVERY[name](model, losses_of(model), x, y, 4)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("means", ["vmap", "loop"])
def test_another_model_is_refused_by_every_means(means, kind):
    model, other, x, y = two(kind)
    with pytest.raises(ValueError, match=REFUSED):
        dg.sample_gradients(model, losses_of(other), x, y, means=means)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("what", dg.MEASURES)
def test_another_model_is_refused_during_training(what, kind):
    model, other, x, y = two(kind)
    diagnostics = dg.Diagnostics(every=1, what=[what])
    with pytest.raises(ValueError, match=REFUSED):
        diagnostics(0, model, losses_of(other), [(x, y)])
    assert not diagnostics.rows


def test_the_message_has_a_reason_and_a_remedy():
    model, other, x, y = two("plain")
    with pytest.raises(ValueError, match=r"another model.*frozen.*no_grad\(\)") as caught:
        dg.sharpness(model, losses_of(other), [(x, y)], 0.1)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == 2
    scope = {"F": F, "model": model, "sharpness": dg.sharpness, "batches": [(x, y)]}
    exec("\n".join(line.strip() for line in lines), scope)
    assert scope["curve"] == dg.sharpness(model, losses_of(model), [(x, y)])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "other",
    [
        lambda model: losses_of(copy.deepcopy(model)),
        lambda model: lambda x, y, w=model[0].weight: (x @ w.T).square().sum(1),  # read before it was substituted
        lambda model: lambda x, y: x.sum(1),
    ],
    ids=["copy", "tensor", "constant"],
)
def test_other_ways_to_miss_the_model(name, other):
    model, _, x, y = two("batchnorm")
    with pytest.raises(ValueError, match=REFUSED):
        EVERY[name](model, other(model), x, y, 4)


@pytest.mark.parametrize("kind", few_of(NETS, "batchnorm"))
@pytest.mark.parametrize("chunk", few_or_many(4, 64))
@pytest.mark.parametrize("name", EVERY)
def test_results_and_cost_with_the_right_model(name, kind, chunk, unchecked):
    model, _, x, y = two(kind)
    losses, sizes = counted(losses_of(model))
    expected = plain(unchecked(EVERY[name], model, losses, x, y, chunk))
    before = sorted(sizes)
    sizes.clear()
    assert plain(EVERY[name](model, losses, x, y, chunk)) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    # Only what needs no gradient pays: one forward pass of one chunk.
    assert sorted(sizes) == sorted(before + ([min(chunk, 10)] if name in LOSSES_ONLY else []))


@pytest.mark.parametrize("name", LOSSES_ONLY)
def test_the_check_takes_no_random_numbers(name, unchecked):
    model, _, x, y = two("plain")

    def noisy(x, y):
        return losses_of(model)(x, y) + torch.rand(len(x))

    torch.manual_seed(0)
    expected = unchecked(EVERY[name], model, noisy, x, y, 4)
    torch.manual_seed(0)
    assert EVERY[name](model, noisy, x, y, 4) == expected


@pytest.mark.parametrize("name", EVERY)
def test_a_gradient_of_zero_is_not_a_missing_one(name):
    model, _, x, y = two("plain")

    def flat(x, y):
        return 0 * losses_of(model)(x, y)

    if name == "step_geometry":
        with pytest.raises(ValueError, match="no direction to perturb in"):
            EVERY[name](model, flat, x, y, 4)
    else:
        EVERY[name](model, flat, x, y, 4)


def test_no_curvature_is_not_a_missing_gradient():
    model, x = nn.Linear(4, 1), torch.randn(6, 4)
    losses = lambda x: model(x)[:, 0]  # noqa: E731
    assert dg.hessian_trace(model, losses, [(x,)], probes=3).value == 0
    assert dg.hessian_eigenvalues(model, losses, [(x,)]).values == (0.0,)


def test_losses_that_are_the_parameter_itself():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.arange(3.0))

    model = Table().eval()
    result = dg.step_geometry(model, lambda x: model.w, [(torch.ones(3, 1),)], 0.1)
    assert result.gradient_norm == pytest.approx(3**-0.5)
    assert Objective(model, lambda x: model.w, [(torch.ones(3, 1),)]).traced((torch.ones(3, 1),))[1]


@pytest.mark.parametrize("hide", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", EVERY)
def test_a_loss_without_a_graph(name, hide):
    model, other, x, y = two("batchnorm")

    def hidden(model):
        return hide()(losses_of(model))

    if name in LOSSES_ONLY:  # needs no gradient
        assert EVERY[name](model, hidden(model), x, y, 4) == EVERY[name](model, losses_of(model), x, y, 4)
        with pytest.raises(ValueError, match=REFUSED):
            EVERY[name](model, hidden(other), x, y, 4)
    else:
        with pytest.raises(ValueError, match=REFUSED):
            EVERY[name](model, hidden(model), x, y, 4)


@pytest.mark.parametrize("name", LOSSES_ONLY)
def test_noise_of_another_model_is_no_change(name):
    model, other, x, y = two("plain")
    rng = torch.Generator().manual_seed(0)  # not torch's own, so it runs on from call to call

    def noisy(x, y):
        return losses_of(other)(x, y) + torch.rand(len(x), generator=rng)

    with pytest.raises(ValueError, match=REFUSED):
        EVERY[name](model, noisy, x, y, 4)


@pytest.mark.parametrize("name", EVERY)
def test_samples_that_miss_the_trained_part_are_fine_beside_others(name):
    class Routed(nn.Module):
        """Samples with a positive first value go through the trained part, all others through a frozen one."""

        def __init__(self):
            super().__init__()
            self.trained, self.frozen = nn.Linear(4, 3).double(), nn.Linear(4, 3).double().requires_grad_(False)

        def forward(self, x):
            parts = (self.trained if v[0] > 0 else self.frozen for v in x)
            return torch.stack([part(v) for part, v in zip(parts, x, strict=True)])

    torch.manual_seed(3)
    model, x, y = Routed(), torch.randn(10, 4).double(), torch.randint(3, (10,))
    x[:, 0] = torch.tensor([-1.0] * 4 + [1.0, -1.0] * 3)
    if name == "hessian_product":
        assert dg.hessian_product(model, losses_of(model), [(x, y)], torch.ones(15).double(), chunk=4).any()
    else:
        assert plain(EVERY[name](model, losses_of(model), x, y, 4))


def test_m_sharpness_of_groups_without_a_gradient():
    torch.manual_seed(3)
    model, x = nn.Linear(2, 1), torch.randn(6, 2)

    def losses(x):
        return torch.stack([model(v)[0].square() if v[0] > 0 else v.sum() for v in x])

    x[:, 0] = torch.tensor([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    alone = dg.sharpness(model, losses, [(x[3:],)], 0.1, m=3).worst[0]
    assert dg.sharpness(model, losses, [(x,)], 0.1, m=3).worst[0] == pytest.approx(alone / 2)
    with pytest.raises(ValueError, match=REFUSED):
        dg.sharpness(model, losses, [(x[:3],)], 0.1, m=3)


def test_frozen_weights_change_between_checkpoints():
    torch.manual_seed(3)
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "unused": nn.Linear(4, 3)}).double()
    model["used"].requires_grad_(False)
    x, y = torch.randn(10, 4).double(), torch.randint(3, (10,))
    losses = losses_of(model["used"])
    result = dg.loss_between(model, losses, [(x, y)], *checkpoints(model), points=3)
    assert len(set(result.loss)) == 3
    for name in EVERY.keys() - {"loss_between", "hessian_product"}:
        with pytest.raises(ValueError, match=REFUSED):
            EVERY[name](model, losses, x, y, 4)


# Without hessian_product, whose vector would be made there.
@pytest.mark.parametrize("name", few_of([n for n in EVERY if n != "hessian_product"], "sample_gradients", "sharpness"))
def test_inside_inference_mode(name):
    model, other, x, y = two("batchnorm")
    expected = plain(EVERY[name](model, losses_of(model), x, y, 4))
    with torch.inference_mode():
        assert plain(EVERY[name](model, losses_of(model), x, y, 4)) == expected
        with pytest.raises(ValueError, match=REFUSED):
            EVERY[name](model, losses_of(other), x, y, 4)
        assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize("name", ["sample_gradients", "sample_gradient_norms", *LOSSES_ONLY])
def test_samples_made_in_inference_mode(name):
    model, other, x, y = two("plain")
    expected = plain(EVERY[name](model, losses_of(model), x, y, 4))
    with torch.inference_mode():
        x = x.clone()
    assert plain(EVERY[name](model, losses_of(model), x, y, 4)) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match=REFUSED):
        EVERY[name](model, losses_of(other), x, y, 4)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_checkpointed_activations():
    from torch.utils.checkpoint import checkpoint

    model, _, x, y = two("plain")
    for reentrant in (False, True):

        def losses(x, y, reentrant=reentrant):
            return F.cross_entropy(checkpoint(model, x, use_reentrant=reentrant), y, reduction="none")

        assert dg.loss_line(model, losses, [(x, y)], points=3) == dg.loss_line(
            model, losses_of(model), [(x, y)], points=3
        )
