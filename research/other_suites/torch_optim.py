"""What torch's own tests ask of SGD, asked of our optimizers in its place.

    python research/other_suites/torch_optim.py [--smoke] [--files DIR]

torch's test files do not ship with it, but their list of settings, errors and schedulers does:
``torch.testing._internal.common_optimizers``. The checks below are ours and ask, for each of these, what the names in
test_optim.py and test_lrscheduler.py say. SGD itself goes through them first: a check that it fails says nothing. The
exit code is 1 if anything failed; ``--smoke`` asks for that alone.

With ``--files``, a folder with torch's ``test_optim.py`` (from a checkout of the version that is installed), that file
runs three times, with every optimizer of the list replaced.
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from substitutes import plain, sam
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

Kind = Callable[..., Optimizer]
CONTENDERS: dict[str, Kind] = {"SGD alone": SGD, "SharpnessAware(SGD, Plain())": plain(SGD), "compat.SAM": sam(SGD)}


def settings() -> list[dict[str, Any]]:
    """torch's settings of SGD, with foreach and fused; ``differentiable`` is for parameters that are no leaves."""
    from torch.testing._internal import common_optimizers as common

    info = next(i for i in common.optim_db if i.optim_cls is SGD)
    inputs = common._get_optim_inputs_including_global_cliquey_kwargs(
        "cpu", torch.float32, info, skip=("differentiable",)
    )
    return [i.kwargs for i in inputs]


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def gradient(model: nn.Module, opt: Optimizer) -> Tensor:
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(X), Y)
    torch.autograd.backward(loss)
    return loss


def train(model: nn.Module, opt: Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        gradient(model, opt)
        opt.step()


def own(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A copy: a learning rate that is a tensor must not be one for all."""
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in kwargs.items()}


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, in tensors, dicts and lists."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def base_state(opt: Optimizer) -> dict[str, Any]:
    """The state dict without what a wrapper adds to it."""
    saved = opt.state_dict()
    ours = ("rho", "sam_rho", "adaptive")
    groups = [{k: v for k, v in group.items() if k not in ours} for group in saved["param_groups"]]
    return {"state": saved["state"], "param_groups": groups}


# -- steps -------------------------------------------------------------------------------------------------------------


def steps_equal_those_of_sgd(make: Kind) -> None:
    for kwargs in settings():
        results = []
        for kind in (SGD, make):
            model = network()
            opt = kind(model.parameters(), **own(kwargs))
            train(model, opt)
            results.append((model.state_dict(), base_state(opt)))
        assert same(*results), kwargs


def steps_with_closures_equal_those_of_sgd(make: Kind) -> None:
    for kwargs in settings():
        results = []
        for kind in (SGD, make):
            model = network()
            model[1] = nn.Identity()  # a closure may run twice
            opt = kind(model.parameters(), **own(kwargs))
            values = [opt.step(lambda model=model, opt=opt: gradient(model, opt)) for _ in range(3)]
            results.append((model.state_dict(), [v.detach() for v in values]))
        assert same(*results), kwargs


def a_closure_runs_with_gradients_under_no_grad(make: Kind) -> None:
    model = network()
    opt = make(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        opt.step(lambda: gradient(model, opt))
        assert not torch.is_grad_enabled()
    assert not same(before, model.state_dict())


def parameters_that_are_not_contiguous(make: Kind) -> None:
    for kwargs in settings():
        if kwargs.get("fused"):
            continue  # torch 2.13's own goes the wrong way on the CPU
        weight = nn.Parameter(torch.randn(5, 3, 2)[..., 0])
        opt = make([weight], **own(kwargs))

        def loss(weight: Tensor = weight, opt: Optimizer = opt) -> Tensor:
            opt.zero_grad()
            value = weight.square().sum()
            torch.autograd.backward(value)
            return value

        first = loss().item()
        for _ in range(5):
            opt.step(loss)
        assert loss().item() > first if kwargs.get("maximize") else loss().item() <= first, kwargs


def complex_parameters_equal_their_real_view(make: Kind) -> None:
    for kwargs in settings():
        if kwargs.get("fused"):
            continue  # SGD has none for complex parameters
        z = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
        r = torch.view_as_real(z).detach().clone().requires_grad_()
        a, b = make([z], **own(kwargs)), make([r], **own(kwargs))
        for _ in range(3):
            z.grad = torch.randn_like(z)
            r.grad = torch.view_as_real(z.grad).clone()
            a.step()
            b.step()
        assert torch.allclose(torch.view_as_real(z), r, atol=1e-6), kwargs


def sparse_gradients(make: Kind) -> None:
    table = {}
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Embedding(6, 3, sparse=sparse)
        opt = make(model.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            torch.autograd.backward(model(torch.tensor([1, 1, 4])).square().sum())
            opt.step()
        table[sparse] = model.weight.detach()
    assert torch.allclose(table[True], table[False])


def foreach_and_fused_are_handed_on(make: Kind) -> None:
    for flag in ("foreach", "fused"):
        results = []
        for value in (False, True):
            model = network(dtype=torch.float64)
            opt = make(model.parameters(), lr=0.1, momentum=0.9, **{flag: value})
            assert opt.param_groups[0][flag] is value
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            opt.step()
            results.append(model.state_dict())
        assert all(torch.allclose(a, b) for a, b in zip(*(r.values() for r in results), strict=True))


def nothing_moves_without_a_gradient(make: Kind) -> None:
    for grad in (None, 0.0):
        p = nn.Parameter(torch.randn(3))
        opt, before = make([p], lr=0.1, momentum=0.9), p.detach().clone()
        p.grad = grad if grad is None else torch.zeros_like(p)
        opt.step()
        assert torch.equal(p, before)


# -- groups and errors -------------------------------------------------------------------------------------------------


def errors_are_those_of_sgd(make: Kind) -> None:
    from torch.testing._internal import common_optimizers as common

    info = next(i for i in common.optim_db if i.optim_cls is SGD)
    for error in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        given = error.optimizer_error_input
        message = raised(lambda given=given: make(given.params, **given.kwargs))
        assert message == raised(lambda given=given: SGD(given.params, **given.kwargs)), message


def raised(call: Callable[[], Any]) -> str:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "; ".join(str(w.message) for w in caught if "model=" not in str(w.message))


def a_group_has_settings_of_its_own(make: Kind) -> None:
    model = network()
    still = model[3].weight.detach().clone()
    opt = make([{"params": [model[0].weight]}, {"params": [model[3].weight], "lr": 0.0}], lr=0.1, weight_decay=0.1)
    train(model, opt)
    assert torch.equal(model[3].weight, still)
    opt.add_param_group({"params": [model[3].bias], "weight_decay": 0.0})
    assert [g["weight_decay"] for g in opt.param_groups] == [0.1, 0.1, 0.0]
    for bad in ("no group", {"params": [model[0].weight]}, {"params": [torch.zeros(2) * model[0].bias[0]]}):
        assert raised(lambda bad=bad: opt.add_param_group(bad))


def parameters_with_names(make: Kind) -> None:
    model = network()
    opt = make(model.named_parameters(), lr=0.1)
    train(model, opt)
    assert opt.state_dict()["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()]


def it_can_be_printed(make: Kind) -> None:
    assert "SGD" in repr(make(network().parameters(), lr=0.1)) or "lr: 0.1" in repr(
        make(network().parameters(), lr=0.1)
    )


# -- state -------------------------------------------------------------------------------------------------------------


def a_loaded_state_trains_on_alike(make: Kind) -> None:
    for kwargs in settings():
        model = network()
        opt = make(model.parameters(), **own(kwargs))
        train(model, opt)
        other = network()
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        loaded = make(other.parameters(), **own(kwargs))
        file = io.BytesIO()
        torch.save(opt.state_dict(), file)
        file.seek(0)
        loaded.load_state_dict(torch.load(file, weights_only=True))
        train(model, opt)
        train(other, loaded)
        assert same(model.state_dict(), other.state_dict()), kwargs
        assert same(opt.state_dict(), loaded.state_dict()), kwargs


def the_plain_optimizer_loads_the_state_and_back(make: Kind) -> None:
    model = network()
    opt = make(model.parameters(), lr=0.1, momentum=0.9)
    train(model, opt)
    alone = SGD(network().parameters(), lr=0.2)
    alone.load_state_dict(opt.state_dict())
    opt.load_state_dict(alone.state_dict())
    assert alone.param_groups[0]["momentum"] == 0.9
    train(model, opt)


def an_older_state_without_new_flags_loads(make: Kind) -> None:
    model = network()
    opt = make(model.parameters(), lr=0.1, momentum=0.9)
    train(model, opt)
    state = copy.deepcopy(opt.state_dict())
    for group, flag in itertools.product(state["param_groups"], ("maximize", "foreach", "fused", "differentiable")):
        group.pop(flag, None)
    opt.load_state_dict(state)
    train(model, opt)


def a_state_of_other_groups_is_refused(make: Kind) -> None:
    model = network()
    opt = make(model.parameters(), lr=0.1)
    other = make([model[0].weight], lr=0.1)
    assert raised(lambda: other.load_state_dict(opt.state_dict())).startswith("ValueError")


def copies_and_pickles_keep_everything(make: Kind) -> None:
    for kwargs in settings():
        model = network()
        opt = make(model.parameters(), **own(kwargs))
        train(model, opt)
        other, copied = copy.deepcopy((model, opt))
        public = {name for name in vars(opt) if not name.startswith("_")}
        assert public == {name for name in vars(copied) if not name.startswith("_")}
        train(model, opt)
        train(other, copied)
        assert same(model.state_dict(), other.state_dict()), kwargs


def it_can_be_pickled(make: Kind) -> None:
    opt = make(network().parameters(), lr=0.1, momentum=0.9)
    type(opt).__qualname__ = type(opt).__name__  # the classes of this script are made in a function
    vars(sys.modules[type(opt).__module__])[type(opt).__name__] = type(opt)
    again = pickle.loads(pickle.dumps(opt))
    assert again.state_dict()["param_groups"][0]["momentum"] == 0.9


def no_cycle_keeps_it_alive(make: Kind) -> None:
    gc.collect()
    gc.disable()
    try:
        opt = make(network().parameters(), lr=0.1)
        lr_scheduler.LambdaLR(opt, lambda _: 1.0)
        gone = weakref.ref(opt)
        del opt
        assert gone() is None, "only the garbage collector frees it"
    finally:
        gc.enable()


# -- hooks -------------------------------------------------------------------------------------------------------------


def hooks_run_once_in_order(make: Kind) -> None:
    calls: list[str] = []
    opt = make(network().parameters(), lr=0.1)
    opt.register_step_pre_hook(lambda *_: calls.append("before"))
    handle = opt.register_step_post_hook(lambda *_: calls.append("after"))
    opt.register_state_dict_pre_hook(lambda _: calls.append("saving"))
    opt.register_state_dict_post_hook(lambda _, state: calls.append("saved") or state)
    opt.register_load_state_dict_pre_hook(lambda _, state: calls.append("loading") or state)
    opt.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    opt.step()
    handle.remove()
    opt.step()
    opt.load_state_dict(opt.state_dict())
    assert calls == ["before", "after", "before", "saving", "saved", "loading", "loaded"], calls


def a_hook_of_every_optimizer_runs_once(make: Kind) -> None:
    calls: list[Optimizer] = []
    handle = register_optimizer_step_post_hook(lambda opt, *_: calls.append(opt))
    try:
        make(network().parameters(), lr=0.1).step()
    finally:
        handle.remove()
    assert len(calls) == 1


# -- schedulers --------------------------------------------------------------------------------------------------------

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.9**e),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.95),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.25, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, mode="triangular2"),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.StepLR(o, 2)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, total_iters=2), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "SWALR": lambda o: SWALR(o, swa_lr=0.02, anneal_epochs=4),
}


def scheduled(kind: Kind, name: str, *, restart: bool = False) -> list[tuple[float, ...]]:
    """Learning rates and momenta of two groups over ten steps; in the middle, saved and loaded."""
    model = network()
    groups = [{"params": [model[0].weight]}, {"params": [model[3].weight], "lr": torch.tensor(0.5)}]
    opt = kind(groups, lr=0.05, momentum=0.9)
    scheduler = SCHEDULERS[name](opt)
    seen = []
    for epoch in range(10):
        if restart and epoch == 5:
            saved = copy.deepcopy((opt.state_dict(), scheduler.state_dict()))
            opt = kind(groups, lr=0.05, momentum=0.9)
            scheduler = SCHEDULERS[name](opt)
            opt.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
        gradient(model, opt)
        opt.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        seen.append(tuple(float(g[key]) for g in opt.param_groups for key in ("lr", "momentum")))
    return seen


def every_scheduler_sets_what_it_sets_for_sgd(make: Kind) -> None:
    for name in SCHEDULERS:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*lr_scheduler.step.*")
            assert scheduled(make, name) == scheduled(SGD, name), name


def every_scheduler_resumes(make: Kind) -> None:
    for name in SCHEDULERS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert scheduled(make, name, restart=True) == scheduled(SGD, name, restart=True), name


def a_rate_that_is_a_tensor_stays_that_tensor(make: Kind) -> None:
    rate = torch.tensor(0.1)
    model = network()
    opt = make(model.parameters(), lr=rate, foreach=False)
    scheduler = lr_scheduler.ExponentialLR(opt, 0.5)
    train(model, opt, 1)
    scheduler.step()
    assert opt.param_groups[0]["lr"] is rate
    assert float(rate) == 0.05000000074505806


def the_wrong_order_of_steps_is_warned_of(make: Kind) -> None:
    model = network()
    opt = make(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(opt, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            scheduler.step()
            gradient(model, opt)
            opt.step()
    assert any("how-to-adjust-learning-rate" in str(w.message) for w in caught)


# -- averages of weights -----------------------------------------------------------------------------------------------


def averages_of_weights_equal_those_of_sgd(make: Kind) -> None:
    results = []
    for kind in (SGD, make):
        model = network()
        opt = kind(model.parameters(), lr=0.1, momentum=0.9)
        averages = [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))]
        scheduler = SWALR(opt, swa_lr=0.05, anneal_epochs=2)
        for _ in range(5):
            train(model, opt, 1)
            scheduler.step()
            for average in averages:
                average.update_parameters(model)
        for average in averages:
            update_bn([X], average)
        results.append([average.state_dict() for average in averages])
    assert same(*results)


CHECKS: tuple[Callable[[Kind], None], ...] = (
    steps_equal_those_of_sgd,
    steps_with_closures_equal_those_of_sgd,
    a_closure_runs_with_gradients_under_no_grad,
    parameters_that_are_not_contiguous,
    complex_parameters_equal_their_real_view,
    sparse_gradients,
    foreach_and_fused_are_handed_on,
    nothing_moves_without_a_gradient,
    errors_are_those_of_sgd,
    a_group_has_settings_of_its_own,
    parameters_with_names,
    it_can_be_printed,
    a_loaded_state_trains_on_alike,
    the_plain_optimizer_loads_the_state_and_back,
    an_older_state_without_new_flags_loads,
    a_state_of_other_groups_is_refused,
    copies_and_pickles_keep_everything,
    it_can_be_pickled,
    no_cycle_keeps_it_alive,
    hooks_run_once_in_order,
    a_hook_of_every_optimizer_runs_once,
    every_scheduler_sets_what_it_sets_for_sgd,
    every_scheduler_resumes,
    a_rate_that_is_a_tensor_stays_that_tensor,
    the_wrong_order_of_steps_is_warned_of,
    averages_of_weights_equal_those_of_sgd,
)


def outcomes() -> Iterator[tuple[str, list[str]]]:
    """Each check with "passed", or what went wrong, for each contender."""
    for check in CHECKS:
        found = []
        for make in CONTENDERS.values():
            torch.manual_seed(0)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    check(make)
                found.append("passed")
            except Exception as error:  # noqa: BLE001  (a table of whatever goes wrong)
                found.append(f"failed ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})")
        yield check.__name__.replace("_", " "), found


def run_files(folder: Path) -> None:
    """torch's own file, once for each contender."""
    for name in ("alone", "plain", "sam"):
        code = f"import torch_optim; torch_optim.replace_all({name!r})"
        with tempfile.TemporaryDirectory() as place:
            Path(place, "substituted.py").write_text(code, encoding="utf-8")
            paths = os.pathsep.join([place, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
            print(f"-- {name}", flush=True)
            flags = ["-q", "-p", "substituted", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore"]
            command = [sys.executable, "-m", "pytest", *flags, str(folder / "test_optim.py")]
            subprocess.run(command, check=False, env=os.environ | {"PYTHONPATH": paths})


def replace_all(how: str) -> None:
    """Put our classes in the place of torch's in its list of optimizers."""
    from torch.testing._internal import common_optimizers as common

    for info in common.optim_db if how != "alone" else ():
        name = info.optim_cls.__name__
        info.optim_cls = {"plain": plain, "sam": sam}[how](info.optim_cls)
        info.optim_cls.__name__ = name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="print only what failed")
    parser.add_argument("--files", type=Path, metavar="DIR", help="the folder of torch's test_optim.py")
    args = parser.parse_args()
    if args.files:
        run_files(args.files)
        return
    if not args.smoke:
        print("| | " + " | ".join(CONTENDERS) + " |\n|---|" + "---|" * len(CONTENDERS))
    failed = False
    for name, found in outcomes():
        bad = any(outcome != "passed" for outcome in found)
        failed = failed or bad
        if bad or not args.smoke:
            print(f"| {name} | " + " | ".join(found) + " |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
