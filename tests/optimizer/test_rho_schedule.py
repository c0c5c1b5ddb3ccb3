"""The radius over training: its formulas, every method that has one, saving, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import math

import pytest
import torch

from ausam import AESAM, GSAM, METHODS, RST, SAM, LookSAM, RhoSchedule, SharpnessAware
from tests.helpers import VARIANTS, assert_equal, data, make, network, refused, values, with_logits

WITHOUT = ("Plain", "SAF", "MESA")
WITH = [name for name in [*METHODS, *VARIANTS] if name not in WITHOUT]


def optimizer(method, groups=None, dtype=torch.float32):
    model = network(dtype=dtype)
    params = model.parameters() if groups is None else groups(model)
    return model, SharpnessAware(torch.optim.SGD(params, lr=0.2, momentum=0.9), method, model, seed=2)


def advance(opt, model, step, dtype=torch.float32):
    opt.backward(with_logits(model), *data(step, dtype=dtype), index=torch.arange(8))
    opt.step()
    opt.zero_grad()


def radii(opt):
    return [group["rho"] for group in opt.param_groups]


def with_rho(method, rho):
    """The same method with another radius, wherever it has it."""
    if hasattr(method, "rho"):
        return dataclasses.replace(method, rho=rho)
    return dataclasses.replace(method, inner=with_rho(method.inner, rho))


@pytest.mark.parametrize(
    ("shape", "settings", "expected"),
    [
        ("constant", {"start": 0.5}, lambda t: 0.5),
        ("linear", {"total_steps": 8}, lambda t: max(0.0, 1 - t / 8)),
        ("linear", {"total_steps": 8, "start": 0.0, "end": 2.0}, lambda t: min(2.0, t / 4)),
        (
            "cosine",
            {"total_steps": 8, "end": 0.25},
            lambda t: 0.25 + 0.75 * (1 + math.cos(math.pi * min(t, 8) / 8)) / 2,
        ),
    ],
)
def test_follows_its_formula_and_stays_at_the_end(shape, settings, expected):
    _, opt = optimizer(SAM(0.3))
    schedule = RhoSchedule(opt, shape, **settings)
    for t in range(11):
        assert radii(opt) == [pytest.approx(0.3 * expected(t), abs=1e-15)]
        schedule.step()


def test_follows_the_learning_rate_as_gsam_does():
    """rho = rho_min + (rho_max - rho_min) * (lr - lr_min) / (lr_max - lr_min), group by group."""
    groups = lambda m: [{"params": m[0].parameters(), "lr": 0.4}, {"params": m[3].parameters()}]  # noqa: E731
    _, opt = optimizer(GSAM(0.6), groups)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=6, eta_min=0.02)
    schedule = RhoSchedule(opt, "lr", end=0.1 / 0.6, lr_min=0.02)
    for t in range(7):
        for group, lr_max in zip(opt.param_groups, (0.4, 0.2), strict=True):
            lr = 0.02 + (lr_max - 0.02) * (1 + math.cos(math.pi * t / 6)) / 2
            assert group["lr"] == pytest.approx(lr)
            assert group["rho"] == pytest.approx(0.1 + (0.6 - 0.1) * (lr - 0.02) / (lr_max - 0.02))
        opt.step()
        rates.step()
        schedule.step()


@pytest.mark.parametrize(("lr", "factor"), [(0.9, 1.0), (0.4, 1.0), (0.25, 0.75), (0.1, 0.5), (0.02, 0.5)])
def test_outside_the_given_rates_the_radius_stays_at_its_bounds(lr, factor):
    """GSAM's clamp: a warm-up above lr_max, or a rate that falls below lr_min, takes the radius no further."""
    _, opt = optimizer(SAM(0.3))
    schedule = RhoSchedule(opt, "lr", end=0.5, lr_max=0.4, lr_min=0.1)
    opt.param_groups[0]["lr"] = lr
    schedule.step()
    assert radii(opt) == [pytest.approx(0.3 * factor)]


def test_a_group_that_cannot_follow_changes_no_radius_and_no_count():
    _, opt = optimizer(SAM(0.1))
    schedule = RhoSchedule(opt, end=0.5, shape="lr")
    schedule.step()
    opt.base.param_groups[0]["lr"] = 0.1
    opt.base.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.0})
    before = schedule.count, opt.param_groups[0]["rho"]
    with refused(ValueError, "lr_max"):
        schedule.step()
    assert (schedule.count, opt.param_groups[0]["rho"]) == before


def test_groups_keep_their_ratio():
    """A group with rho 0 stays out of the perturbation, and one that is added later joins in."""
    groups = lambda m: [{"params": m[0].parameters(), "rho": 0.0}, {"params": m[3].parameters()}]  # noqa: E731
    model, opt = optimizer(SAM(0.4), groups)
    schedule = RhoSchedule(opt, "linear", total_steps=4)
    assert radii(opt) == [0.0, 0.4]
    opt.add_param_group({"params": model[1].parameters(), "rho": 0.8})
    schedule.step()
    assert radii(opt) == [0.0, pytest.approx(0.3), pytest.approx(0.6)]


@pytest.mark.parametrize("name", WITH)
def test_every_method_with_a_radius_takes_it_from_the_groups(name):
    """Bit for bit the method that was built with that radius, and not the one with another."""
    method, paths = make(name), []
    for built, scheduled in (
        (with_rho(method, 0.5), False),
        (with_rho(method, 0.25), True),
        (with_rho(method, 0.25), False),
    ):
        model, opt = optimizer(built)
        if scheduled:
            RhoSchedule(opt, "constant", start=2.0)
        for step in range(8):
            advance(opt, model, step)
        paths.append(values(model))
    assert_equal(paths[0], paths[1])
    assert any(not torch.equal(paths[0][k], paths[2][k]) for k in paths[0])


@pytest.mark.parametrize("name", WITH)
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_resumes_bit_for_bit(name, optimizer_first):
    def begin():
        model, opt = optimizer(make(name))
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=9)
        return model, opt, rates, RhoSchedule(opt, "cosine", end=0.1, total_steps=9)

    def run(parts, steps):
        model, opt, rates, schedule = parts
        for step in steps:
            advance(opt, model, step)
            rates.step()
            schedule.step()

    whole = begin()
    run(whole, range(4))
    file = io.BytesIO()
    torch.save([part.state_dict() for part in whole], file)
    run(whole, range(4, 9))
    file.seek(0)
    resumed, saved = begin(), torch.load(file, weights_only=True)
    order = range(4) if optimizer_first else reversed(range(4))
    for i in order:
        resumed[i].load_state_dict(saved[i])
    assert radii(resumed[1]) == [group["rho"] for group in saved[1]["param_groups"]]
    run(resumed, range(4, 9))
    for a, b in zip(whole, resumed, strict=True):
        assert_equal(a.state_dict(), b.state_dict())


def test_the_schedule_alone_brings_the_radius_back():
    first, second = (optimizer(SAM(0.4))[1] for _ in range(2))
    before, after = (RhoSchedule(opt, "linear", total_steps=4) for opt in (first, second))
    for _ in range(3):
        before.step()
    after.load_state_dict(before.state_dict())
    assert radii(second) == radii(first) == [pytest.approx(0.1)]


def test_the_radius_inside_other_methods():
    for method in (RST(SAM(0.4)), AESAM(LookSAM(0.4), total_steps=9), RST(RST(SAM(0.4)))):
        _, opt = optimizer(method)
        RhoSchedule(opt, "constant", start=0.5)
        assert radii(opt) == [0.2]


def test_what_cannot_work_is_refused():
    for name in WITHOUT:
        with refused(ValueError, f"RhoSchedule: {name} has no rho to change", "Use it with SAM"):
            RhoSchedule(optimizer(make(name))[1], "linear", total_steps=4)
    _, opt = optimizer(SAM())
    for shape, settings, parts in (
        ("quadratic", {}, ("shape is 'quadratic'", '"constant", "linear", "cosine" or "lr"')),
        ("linear", {}, ("total_steps is None", "a whole number >= 1")),
        ("lr", {"total_steps": 4}, ("total_steps is 4", "Leave total_steps out")),
        ("cosine", {"total_steps": 0}, ("total_steps is 0", "a whole number >= 1")),
        ("linear", {"total_steps": 4, "end": -1.0}, ("end is -1.0", ">= 0")),
        ("constant", {"end": 0.5}, ("end is 0.5", "Leave end out")),
        ("cosine", {"total_steps": 4, "lr_max": 0.1}, ("lr_max is 0.1", "Leave lr_max out")),
        ("lr", {"lr_min": 0.2}, ("lr_max is 0.2 and lr_min is 0.2", "Pass lr_max > lr_min")),
    ):
        with refused((ValueError, TypeError), "RhoSchedule: ", *parts):
            RhoSchedule(opt, shape, **settings)
    assert opt.param_groups[0].keys() == optimizer(SAM())[1].param_groups[0].keys()  # nothing is left behind
    with refused(TypeError, "opt is a SGD", "SharpnessAware"):
        RhoSchedule(opt.base, "linear", total_steps=4)
    one, other = RhoSchedule(opt, "linear", total_steps=4), RhoSchedule(opt, "linear", total_steps=5)
    with refused(ValueError, "total_steps is 5, but 4 in the saved state"):
        other.load_state_dict(one.state_dict())
