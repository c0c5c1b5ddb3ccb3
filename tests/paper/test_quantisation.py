"""Quantisation-aware training: the grid, its ranges and gradients, whole networks, and the runs of the lab."""

from __future__ import annotations

import copy
import json
import re
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam import METHODS, POLICIES, SelectiveBatchSampler, SharpnessAware
from ausam.lab.cli.main import main
from ausam.lab.experiments import run_cells
from ausam.lab.networks.build import build
from ausam.lab.problems.catalogue import problem, resolve
from ausam.lab.records.locks import file_lock
from ausam.lab.training import weights
from ausam.lab.training.loop import train
from ausam.lab.training.network import network
from ausam.paper import recipe
from ausam.paper.quantisation import (
    MOMENTUM,
    MovingRange,
    OwnRange,
    QuantConv2d,
    QuantLinear,
    export,
    extremes,
    grid,
    on_grid,
    quantize,
)
from tests.helpers import make
from tests.lab.helpers import pausing, read

TINY = ["--train-size", "256", "--test-size", "200", "--batch-size", "32", "--label-noise", "0", "--threads", "1"]


def layers(model):
    return {k: m for k, m in model.named_modules() if isinstance(m, QuantConv2d | QuantLinear)}


# the grid


@pytest.mark.parametrize(
    ("values", "bits", "scale", "zero_point"),
    [
        ([-1.0, 0.5, 2.0], 2, 1.0, 1),
        ([1.0, 3.0], 2, 1.0, 0),  # zero belongs to every range
        ([-30.0, -5.0], 4, 2.0, 15),
        ([-1.0, 1.2], 4, 2.2 / 15, 7),  # 6.8 steps are no integer: the range moves by a part of one
        ([0.0, 0.0], 4, torch.finfo(torch.float32).eps, 0),
    ],
)
def test_scale_and_zero_point_by_hand(values, bits, scale, zero_point):
    s, z = grid(*extremes(torch.tensor(values)), bits)
    assert s.item() == pytest.approx(scale)
    assert z.item() == zero_point


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_values_and_gradients_against_a_slow_transcription(bits):
    torch.manual_seed(bits)
    x = torch.randn(300, requires_grad=True)
    scale, zero_point = grid(torch.tensor(-1.1), torch.tensor(1.7), bits)  # some values are outside
    upstream = torch.randn(300)
    y = on_grid(x, scale, zero_point, bits)
    y.backward(upstream)
    s, z = Fraction(scale.item()), zero_point.item()
    inside = 0
    for value, after, gradient, above in zip(x.tolist(), y.tolist(), x.grad.tolist(), upstream.tolist(), strict=True):
        q = round(Fraction(value) / s) + z
        clamped = min(max(q, 0), 2**bits - 1)
        assert after == pytest.approx(float(s * (clamped - z)), abs=1e-6)
        assert gradient == (above if q == clamped else 0.0)
        inside += q == clamped
    assert 0 < inside < 300
    assert len(y.unique()) <= 2**bits


def test_a_range_gets_no_gradient():
    """The extremes of the weights define the range; their gradient is as everybody's, 1, and not the range's too."""
    w = torch.tensor([-2.0, -0.4, 0.3, 1.0], requires_grad=True)
    OwnRange(4)(w).sum().backward()
    assert w.grad.tolist() == [1.0, 1.0, 1.0, 1.0]
    x = torch.tensor([0.0, 0.5, 3.0], requires_grad=True)
    MovingRange(4)(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_the_moving_range_against_a_slow_transcription():
    torch.manual_seed(0)
    moving, low, high = MovingRange(4), 0.0, 0.0
    for n in range(1, 131):
        x = torch.randn(7) + 0.5
        moving(x)
        part = max(1 / n, MOMENTUM)  # a mean over the first hundred batches, then a moving average
        low += part * (min(*x.tolist(), 0.0) - low)
        high += part * (max(*x.tolist(), 0.0) - high)
        assert moving.low.item() == pytest.approx(low, rel=1e-4)
        assert moving.high.item() == pytest.approx(high, rel=1e-4)
    assert moving.seen.item() == 130
    before = copy.deepcopy(moving.state_dict())
    moving.eval()
    assert torch.equal(moving(100 * torch.ones(3)), torch.full((3,), moving(torch.tensor(1e6)).item()))  # clamped
    assert all(torch.equal(before[k], v) for k, v in moving.state_dict().items())


def test_ranges_that_no_batch_has_shaped_are_refused_in_eval_mode():
    model = quantize(nn.Sequential(nn.Linear(2, 2))).eval()
    with pytest.raises(RuntimeError, match=r"come from batches\. Train it, or run a few batches"):
        model(torch.ones(1, 2))


# networks


def test_names_and_bits_and_what_is_left_alone():
    model = build("resnet18-w8", 10, 3)
    before = copy.deepcopy(model.state_dict())
    quantised = quantize(model, bits=4)
    assert not layers(model)  # a copy was made
    assert [k for k, _ in quantised.named_parameters()] == [k for k, _ in model.named_parameters()]
    new = set(quantised.state_dict()) - set(before)
    assert new == {f"{k}.inputs.{b}" for k in layers(quantised) for b in ("low", "high", "seen")}
    assert all(torch.equal(quantised.state_dict()[k], v) for k, v in before.items())
    bits = {k: (m.inputs.bits, m.weights.bits) for k, m in layers(quantised).items()}
    assert len(bits) == 21  # 17 convolutions, 3 projections, 1 linear
    assert bits.pop("features.0") == bits.pop("head") == (8, 8)
    assert set(bits.values()) == {(4, 4)}
    x = torch.randn(4, 3, 32, 32)
    quantised.load_state_dict(before, strict=False)
    wide = quantize(model, bits=8)  # 8 bits hardly change what the network answers, 4 do
    near, far = ((m.train()(x) - model.train()(x)).norm() for m in (wide, quantised))
    assert near < 0.1 * model(x).norm()
    assert far > 2 * near


def test_layers_of_another_class_are_left_and_told(caplog):
    class Own(nn.Linear):
        pass

    model = quantize(nn.Sequential(nn.Linear(3, 3), Own(3, 3)))
    assert list(layers(model)) == ["0"]
    assert "Not quantised, because they are subclasses of Conv2d or Linear: 1." in caplog.text
    with pytest.raises(ValueError, match="ReLU has no full-precision Conv2d or Linear layer to quantise"):
        quantize(nn.ReLU())
    with pytest.raises(ValueError, match=r"bits is 1\. Use 2 <= bits <= 8"):
        quantize(model, bits=1)
    with pytest.raises(ValueError, match=r"quantize is 1. It must be 0, or a number of bits from 2 to 8"):
        resolve(quantize=1)


def test_a_layer_used_twice_is_quantised_once():
    shared = nn.Linear(3, 3)
    model = quantize(nn.Sequential(nn.Linear(3, 3), shared, nn.ReLU(), shared, nn.Linear(3, 2)))
    assert model[1] is model[3]
    model(torch.randn(4, 3))
    assert model[1].inputs.seen == 2


@pytest.fixture(scope="module")
def trained():
    """Small networks after some steps of SAM in 4 bits, in eval mode, and a batch of their data."""
    networks = {}
    for name, channels, size in (("resnet-tiny", 1, 8), ("mobilenetv1-cifar-quarter", 3, 16)):
        torch.manual_seed(0)
        model = quantize(build(name, 10, channels))
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), METHODS["SAM"](), model)
        x, y = torch.randn(16, channels, size, size), torch.arange(16) % 10
        for _ in range(4):
            opt.backward(lambda x, y, model=model: F.cross_entropy(model(x), y, reduction="none"), x, y)
            opt.step()
            opt.zero_grad()
        networks[name] = model.eval(), x
    return networks


@pytest.fixture(params=["resnet-tiny", "mobilenetv1-cifar-quarter"])
def case(trained, request):
    return trained[request.param]


def seen_by(model, x):
    """What goes in and out of every quantised layer: {name: (its input, quantised input, quantised weight, output)}."""
    seen, hooks = {}, []
    for name, layer in layers(model).items():
        seen[name] = {}
        for what, module in (("input", layer.inputs), ("weight", layer.weights), ("output", layer)):

            def keep(_, inputs, output, name=name, what=what):
                seen[name][what] = (inputs[0].detach(), output.detach())

            hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return seen


def test_weights_and_activations_have_at_most_sixteen_values(case):
    model, x = case
    layers = seen_by(model, x)
    ends = (next(iter(layers)), list(layers)[-1])
    most = {16: 0, 256: 0}
    for name, tensors in layers.items():
        for what in ("input", "weight"):
            before, after = tensors[what]
            limit, count = 256 if name in ends else 16, len(after.unique())
            assert count <= limit, (name, what)
            assert len(before.unique()) > count
            assert not after[before == 0].any()  # zero stays zero
            most[limit] = max(most[limit], count)
    assert most[16] == 16
    assert most[256] > 100


def integer_layer(layer, x):
    """The layer in integers: q of inputs and weights, sums of products in int64, one multiplication at the end."""
    (sx, zx), (sw, zw) = layer.inputs.grid(), grid(*extremes(layer.weight), layer.weights.bits)
    top = 2**layer.weights.bits - 1
    qx = (torch.round(x / sx).long() + zx).clamp(0, top) - zx
    qw = (torch.round(layer.weight.detach() / sw).long() + zw).clamp(0, top) - zw
    assert qx.dtype == qw.dtype == torch.int64
    if isinstance(layer, nn.Linear):
        total = qx @ qw.T
    else:
        p, k, s = layer.padding[0], layer.kernel_size[0], layer.stride[0]
        padded = F.pad(qx, (p, p, p, p))  # an integer 0 here is the real 0
        patches = padded.unfold(2, k, s).unfold(3, k, s)  # n, channels, h, w, k, k
        n, c, h, w = patches.shape[:4]
        per = c // layer.groups
        groups = patches.reshape(n, layer.groups, per, h, w, k, k)
        kernels = qw.reshape(layer.groups, -1, per, k, k)
        total = torch.einsum("ngchwij,gocij->ngohw", groups, kernels).reshape(n, -1, h, w)
    assert total.dtype == torch.int64
    out = total.double() * (sx.double() * sw.double())
    if layer.bias is not None:
        out = out + (layer.bias if isinstance(layer, nn.Linear) else layer.bias[:, None, None]).detach()
    return out


def test_true_integers_give_the_same_layer(case):
    model, x = case
    for name, tensors in seen_by(model, x[:4]).items():
        before = tensors["input"][0]
        expected = integer_layer(layers(model)[name], before)
        torch.testing.assert_close(tensors["output"][1].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Computing zero point of output accumulator")
def test_a_layer_against_brevitas():
    """Its weight range is its own statistic and must be ours; of the input, both are given the same range."""
    qnn = pytest.importorskip("brevitas.nn")
    quant = pytest.importorskip("brevitas.quant")
    core = pytest.importorskip("brevitas.core.quant")
    enum = pytest.importorskip("brevitas.inject.enum")
    views = pytest.importorskip("brevitas.core.function_wrapper")
    torch.manual_seed(1)
    plain = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    mine = quantize(plain, bits=4, first_last=4)
    x = torch.randn(6, 3, 9, 9).relu()
    mine(x)  # one batch: the range is this batch's

    class Weights(quant.ShiftedUint8WeightPerTensorFloat):
        bit_width = 4

    class Inputs(quant.Uint8ActPerTensorFloat):
        bit_width = 4
        scaling_impl_type = enum.ScalingImplType.CONST
        scaling_init = float(mine.inputs.high)

    theirs = qnn.QuantConv2d(3, 4, 3, stride=2, padding=1, weight_quant=Weights, input_quant=Inputs)
    theirs.load_state_dict(plain.state_dict(), strict=False)
    weight = theirs.quant_weight()
    scale, zero_point = grid(*extremes(plain.weight), 4)
    assert (weight.scale.item(), weight.zero_point.item()) == (pytest.approx(scale.item()), zero_point.item())
    torch.testing.assert_close(weight.value, mine.weights(mine.weight))
    inputs = [(1.5 * x).requires_grad_() for _ in range(2)]  # some are above the range now
    outputs = mine.eval()(inputs[0]), theirs.eval()(inputs[1])
    torch.testing.assert_close(*outputs)
    for out in outputs:
        out.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    assert 0 < (1.5 * x > 16 / 15 * mine.inputs.high).sum() < (inputs[0].grad == 0).sum()
    # of the weights, with the range held: brevitas' own lets gradients into its statistics
    fixed = core.IntQuant(narrow_range=False, signed=False, input_view_impl=views.Identity())
    values = [torch.randn(50).requires_grad_() for _ in range(2)]
    values[1].data.copy_(values[0].data)
    upstream = torch.randn(50)
    args = (torch.tensor(0.2), torch.tensor(5.0), torch.tensor(4.0))
    on_grid(values[0], args[0], args[1].int(), 4).backward(upstream)
    fixed(*args, values[1]).backward(upstream)
    torch.testing.assert_close(values[0].grad, values[1].grad)
    assert 0 < (values[0].grad == 0).sum() < 50


def test_export_keeps_integers_and_scales(case, tmp_path):
    model, x = case
    program = export(model, x)
    torch.export.save(program, tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2")
    assert torch.equal(loaded.module()(x), model(x))
    assert torch.equal(loaded.module()(x[:3]), model(x[:3]))
    state = loaded.state_dict
    for name, layer in layers(model).items():
        q, bits = state[f"{name}.weight"], layer.weights.bits
        assert q.dtype == torch.uint8
        assert q.max() == 2**bits - 1
        for part, (scale, zero_point) in (
            ("weights", grid(*extremes(layer.weight), bits)),
            ("inputs", layer.inputs.grid()),
        ):
            assert torch.equal(state[f"{name}.{part}.scale"], scale)
            assert torch.equal(state[f"{name}.{part}.zero_point"], zero_point)
        values = (q.double() - state[f"{name}.weights.zero_point"]) * state[f"{name}.weights.scale"].double()
        torch.testing.assert_close(values.float(), layer.weights(layer.weight))
    ops = [str(node.target) for node in loaded.graph.nodes if node.op == "call_function"]
    assert ops.count("aten.round.default") == ops.count("aten.clamp.default") == len(layers(model))
    assert not [op for op in ops if not op.startswith("aten.")]  # runs wherever torch's own operators do
    assert layers(model)  # the network itself is as it was


# methods and policies


def small(seed=0):
    torch.manual_seed(seed)
    body = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    return quantize(nn.Sequential(*body, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)))


def ranges(model):
    return {k: v.clone() for k, v in model.state_dict().items() if ".inputs." in k}


@pytest.mark.parametrize("name", METHODS)
def test_ranges_move_once_a_step_from_the_pass_at_w(name):
    model = small()
    method = METHODS["MESA"](start=1) if name == "MESA" else make(name)  # its teacher needs ranges to be evaluated
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), method, model)
    torch.manual_seed(1)
    for step in range(4):
        x, y, index = torch.randn(12, 1, 4, 4), torch.arange(12) % 3, torch.arange(12)
        expected = copy.deepcopy(model)
        expected(x)
        before = [p.detach().clone() for p in model.parameters()]

        def losses(x, y):
            z = model(x)
            return F.cross_entropy(z, y, reduction="none"), z

        opt.backward(losses, x, y, index=index)
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert {int(v) for k, v in ranges(model).items() if k.endswith("seen")} == {step + 1}
        # K-SAM's pass at w that counts is of some rows; Momentum-SAM and PreviousGradientSAM have none at w
        if name not in ("KSAM", "MomentumSAM", "PreviousGradientSAM"):
            theirs = ranges(expected)
            assert all(torch.equal(v, theirs[k]) for k, v in ranges(model).items())
        opt.step()
        opt.zero_grad()
        assert not all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert opt.skipped == 0


@pytest.mark.parametrize("policy", ["AUSampling", "InfoBatch", "Random"])
def test_policies_train_a_quantised_network(policy):
    model = small()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05), METHODS["SAM"](), model)
    sampler = SelectiveBatchSampler(48, 12, POLICIES[policy](), epochs=3)
    torch.manual_seed(1)
    x, y = torch.randn(48, 1, 4, 4), torch.arange(48) % 3
    for _ in range(2):
        for chosen in sampler:
            i = torch.tensor(chosen)

            def losses(x, y):
                return F.cross_entropy(model(x), y, reduction="none")

            sampler.update(opt.backward(losses, x[i], y[i], index=i, weight=sampler.weight(i)))
            opt.step()
            opt.zero_grad()
    assert (opt.skipped, int(model[0].inputs.seen)) == (0, opt.steps)


def test_a_step_that_is_not_finite_leaves_the_ranges():
    model = small()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05), METHODS["SAM"](), model)
    x, y = torch.randn(12, 1, 4, 4), torch.arange(12) % 3
    model(x)
    before = ranges(model)
    x[3, 0, 0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="is not finite"):
        opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)
    opt.step()
    assert all(torch.equal(v, before[k]) for k, v in ranges(model).items())
    assert opt.skipped == 1


# weights to start from


@pytest.fixture
def two():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)) for _ in range(2)]


@pytest.mark.parametrize("form", ["plain", "state_dict", "module.", "safetensors"])
def test_weights_from_a_file_by_name(two, tmp_path, caplog, form):
    source, target = two
    state = source.state_dict()
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pt")
    if form == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(state, path)
    elif form == "state_dict":
        torch.save({"epoch": 3, "state_dict": state}, path)
    else:
        torch.save({("module." if form == "module." else "") + k: v for k, v in state.items()}, path)
    target = quantize(target)  # the names are the same
    digest = weights.start_from(target, str(path))
    assert all(torch.equal(target.state_dict()[k], v) for k, v in state.items())
    assert form == "safetensors" or digest == weights.sha256(state)  # safetensors keeps an order of its own
    assert not caplog.text


def test_what_does_not_fit_is_left_and_told(two, tmp_path, caplog):
    source, target = two
    state = source.state_dict() | {"2.weight": torch.zeros(9, 4), "head.weight": torch.zeros(1)}
    del state["1.running_var"]
    torch.save(state, tmp_path / "w.pt")
    before = copy.deepcopy(target.state_dict())
    weights.start_from(target, str(tmp_path / "w.pt"))
    after = target.state_dict()
    assert torch.equal(after["0.weight"], state["0.weight"])
    assert torch.equal(after["2.weight"], before["2.weight"])
    assert "not in this network, or with another shape: 2.weight, head.weight." in caplog.text
    assert "missing, so they keep their initial values: 1.running_var, 2.weight." in caplog.text


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_weights_that_cannot_be_used_are_refused(two, tmp_path):
    source, target = two
    before = copy.deepcopy(target.state_dict())
    torch.save({"a": torch.ones(2), "0.weight": torch.ones(1)}, tmp_path / "other.pt")
    torch.save({**source.state_dict(), "x": Hostile(tmp_path / "executed")}, tmp_path / "hostile.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("not weights")
    (tmp_path / "text.safetensors").write_text("not weights")
    (tmp_path / "folder").mkdir()
    for name, message in (
        (
            "other.pt",
            "other.pt has no weights that fit this network: it contains a, 0.weight, but the network has 0.weight, 0",
        ),
        (
            "hostile.pt",
            "hostile.pt cannot be read: .*Give --init the folder of a run, or a file of torch.save or safetensors",
        ),
        ("list.pt", "list.pt holds no named tensors. Give --init a file that does"),
        ("text.pt", "text.pt cannot be read: "),
        ("text.safetensors", r"text\.safetensors (cannot be read: |needs safetensors, which is not installed: pip)"),
        ("folder", "folder cannot be read: it has no intact checkpoint"),
        ("nothing", "nothing cannot be read: .*No such file"),
    ):
        with pytest.raises(ValueError, match=message):
            weights.start_from(target, str(tmp_path / name))
    assert not (tmp_path / "executed").exists()
    assert all(torch.equal(before[k], v) for k, v in target.state_dict().items())


# runs


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run in full precision to start from."""
    out = tmp_path_factory.mktemp("full") / "run"
    assert main(["train", "--method", "plain", "--epochs", "8", "--out", str(out), *TINY]) == 0
    return out


QAT = {"train_size": 256, "test_size": 200, "batch_size": 32, "label_noise": 0.0, "threads": 1, "epochs": 3, "lr": 0.01}
KINDS = {
    "sgd": {"method": "plain"},
    "sam": {"method": "sam"},
    "ausam": {"method": "sam", "policy": "ausampling", "ramp": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_training_from_full_precision_and_its_resumption(full, tmp_path, caplog, kind):
    config = resolve(**QAT, **KINDS[kind], quantize=4, init=str(full))
    rows = list(train(config, tmp_path / "whole"))
    result, theirs = read(tmp_path / "whole" / "result.json"), read(full / "result.json")
    assert result["init_sha256"] == theirs["weights_sha256"]
    assert result["parameters"] == theirs["parameters"]
    first = json.loads((full / "metrics.jsonl").read_text().splitlines()[0])
    assert rows[0].train_loss < 0.75 * first["train_loss"]  # it did not start over
    assert result["test"]["value"] > theirs["test"]["value"] - 10

    moved = tmp_path / "moved"
    moved.mkdir()
    for path in full.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    config = resolve(**QAT, **KINDS[kind], quantize=4, init=str(moved))
    stopped = train(config, tmp_path / "parts")
    next(stopped)
    stopped.close()
    for path in moved.iterdir():  # what was begun needs it no more
        path.unlink()
    list(train(config, tmp_path / "parts", resume=True))
    again = read(tmp_path / "parts" / "result.json")
    assert (again["weights_sha256"], again["init_sha256"]) == (result["weights_sha256"], result["init_sha256"])
    assert not caplog.text


def test_compare_with_quantised_networks(full, tmp_path, capsys):
    flags = ["--quantize", "4", "--init", str(full), "--epochs", "2", "--lr", "0.01", "--seeds", "1", *TINY]
    assert main(["compare", "full", "sgd", "sam", "ausam-0.5", *flags, "--out", str(tmp_path)]) == 0
    runs = {name: read(tmp_path / "runs" / name / "seed-0" / "result.json") for name in ("full", "sgd", "sam")}
    assert {name: run["config"]["quantize"] for name, run in runs.items()} == {"full": 0, "sgd": 4, "sam": 4}
    assert (runs["full"]["init_sha256"], len(runs["sam"]["init_sha256"])) == (None, 64)
    rows = {row["name"]: row for row in read(tmp_path / "results.json")["rows"]}
    assert rows["sgd"]["speed_of_sam"] > 0
    assert (rows["full"]["label"], rows["full"]["speed_of_sam"], rows["full"]["samples_of_sam"]) == (
        "Full prec.",
        None,
        None,
    )


def test_an_unfinished_run_may_be_started_from_and_is_told(tmp_path, caplog):
    config = resolve(**QAT)
    rows = train(config, tmp_path / "run")
    next(rows)
    rows.close()
    weights.start_from(network(config, problem(config)), str(tmp_path / "run"))
    assert "has not ended; its last checkpoint is used" in caplog.text


# the table

MICRO = """
title = "Micro 6"
seeds = 1
[settings]
data = "digits"
model = "resnet-tiny"
quantize = 4
epochs = 2
lr = 0.01
rho = 0.1
label_noise = 0.0
batch_size = 32
[small]
train_size = 128
test_size = 100
[settings_of.full]
lr = 0.05
epochs = 4
[small.settings_of.full]
epochs = 3
[[block]]
name = "one"
column = "A"
settings = {}
small = {}
extra = ["sam@0.5"]
rows = [
  { name = "full", score = 90.0 },
  { name = "sgd", score = 88.0, std = 0.5, speed = 180 },
  { name = "sam", score = 89.0, std = 0.25, speed = 100 },
]
[[block]]
name = "two"
column = "B"
settings = { model = "resnet-small-w8" }
small = {}
rows = [{ name = "full", score = 91.0 }, { name = "sam", score = 89.5 }]
"""
RUN = ["reproduce", "micro6", "--scale", "small", "--threads", "1", "--seeds", "1"]


@pytest.fixture
def micro6(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "micro6.toml").write_text(MICRO)
    monkeypatch.setattr(recipe, "FOLDER", folder)
    return folder


def results(out):
    return {str(p.parent.relative_to(out)): read(p) for p in sorted(out.rglob("result.json"))}


def test_full_precision_is_trained_once_and_the_others_start_from_it(micro6, tmp_path, capsys):
    out = tmp_path / "out"
    only = ["--only", "one/sgd", "--only", "one/sam", "--only", "sam@0.5"]  # what they start from comes along
    assert main([*RUN, *only, "--out", str(out)]) == 0
    said = capsys.readouterr()
    done = re.findall(r"^(\S+): accuracy", said.err, re.MULTILINE)
    assert done == ["one/full/seed-0", "one/sgd/seed-0", "one/sam/seed-0", "one/sam@0.5/seed-0"]
    runs = results(out)
    full = runs.pop("one/runs/full/seed-0")
    assert {k: full["config"][k] for k in ("quantize", "init", "lr", "epochs", "method", "train_size")} == {
        "quantize": 0,
        "init": "",
        "lr": 0.05,
        "epochs": 3,
        "method": "Plain",
        "train_size": 128,
    }
    assert {r["init_sha256"] for r in runs.values()} == {full["weights_sha256"]}
    assert {(r["config"]["quantize"], r["config"]["lr"]) for r in runs.values()} == {(4, 0.01)}
    assert runs["one/runs/sam@0.5/seed-0"]["epochs"] == 1
    line = next(line for line in said.out.splitlines() if line.startswith("Full prec."))
    assert re.match(r"Full prec\. +90\.00 ● +– +\d+\.\d\d \(1\) +– +91\.00 ● +– +missing +–", line)
    assert "resnet-tiny with 4-bit weights and activations on digits, 128 images, 2 epochs" in said.out

    # the folder moves to another place, and what is missing is done there
    moved = tmp_path / "elsewhere"
    out.rename(moved)
    (moved / "one" / "runs" / "sgd" / "seed-0" / "result.json").unlink()
    for path in (moved / "one" / "runs" / "sgd" / "seed-0").glob("checkpoint-00002.pt"):
        path.unlink()
    assert main([*RUN, *only, "--out", str(moved)]) == 0
    assert re.findall(r"^(\S+): accuracy", capsys.readouterr().err, re.MULTILINE) == ["one/sgd/seed-0"]
    again = results(moved)
    assert again["one/runs/sgd/seed-0"]["weights_sha256"] == runs["one/runs/sgd/seed-0"]["weights_sha256"]
    assert again["one/runs/sgd/seed-0"]["config"]["init"] == str(moved / "one" / "runs" / "full" / "seed-0")
    assert main(["report", str(moved / "one")]) == 0
    assert "Full prec." in capsys.readouterr().out


def test_a_cell_waits_for_full_precision_in_another_process(micro6, tmp_path, capsys, monkeypatch):
    args = [*RUN, "--only", "one/sam", "--only", "two/sam", "--out", str(tmp_path)]
    with file_lock(tmp_path / "one" / "runs" / "full" / "seed-0.lock"):
        assert main(args) == 0
        err = capsys.readouterr().err
        assert "one/full/seed-0: another process is working on it\n" in err
        assert "one/sam/seed-0: another process is working on it or its initial weights" in err
        assert "two/sam/seed-0: accuracy" in err
        assert not (tmp_path / "one" / "runs" / "sam").exists()
    # the other process is ready when the rest is done: the cell is looked at again
    original, calls = run_cells._run, []

    def run(cell, out, *args):
        calls.append(cell.id)
        return None if calls == ["one/full/seed-0"] else original(cell, out, *args)

    monkeypatch.setattr(run_cells, "_run", run)
    assert main(args) == 0
    assert calls == ["one/full/seed-0", "one/sam/seed-0", "two/full/seed-0", "two/sam/seed-0", *calls[:2]]
    assert re.findall(r"^(\S+): accuracy", capsys.readouterr().err, re.MULTILINE) == calls[:2]


def test_what_starts_from_a_failed_run_is_not_tried(micro6, tmp_path, capsys, monkeypatch):
    original = run_cells.train

    def failing(config, *args, **settings):
        if config.model == "resnet-tiny":
            raise ValueError("no such luck")
        return original(config, *args, **settings)

    monkeypatch.setattr(run_cells, "train", failing)
    assert main([*RUN, "--out", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "4 cells failed: one/full/seed-0, one/sgd/seed-0, one/sam/seed-0, one/sam@0.5/seed-0." in err
    assert "two/sam/seed-0: accuracy" in err


def test_weights_that_are_given_take_the_place_of_full_precision(micro6, full, tmp_path, capsys):
    assert main([*RUN, "--init", str(full), "--only", "one/sam", "--out", str(tmp_path)]) == 0
    runs = results(tmp_path)
    assert list(runs) == ["one/runs/sam/seed-0"]
    assert runs["one/runs/sam/seed-0"]["init_sha256"] == read(full / "result.json")["weights_sha256"]
    cells = recipe.cells(recipe.read("micro6", seeds=1), device="cpu")
    assert main([*RUN, "--dry-run", "--cells"]) == 0
    shown = re.findall(r"^(\S+/\S+/seed-\d) +(\d) epochs", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in shown] == [c.id for c in cells]
    assert dict(shown)["one/full/seed-0"] == "3"


@pytest.mark.nightly
def test_a_killed_table_goes_on(micro6, tmp_path):
    """kill -9 while a quantised row is trained; the end is that of a table nobody disturbed."""
    code = pausing("ausam.lab.experiments.run_cells", "sam", 1)
    code += "from pathlib import Path; from ausam.paper import recipe; "
    code += "recipe.FOLDER = Path(sys.argv[1]); sys.exit(main(sys.argv[2:]))"
    args = [*RUN, "--only", "one/sam"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-c", code, str(micro6), *args, "--out", str(killed)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 200
        while not list(killed.glob("one/runs/sam/seed-0/checkpoint-00001.pt")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert len(results(killed)) == 1
    for out in (killed, whole):
        assert main([*args, "--out", str(out)]) == 0
    mine, theirs = results(killed), results(whole)
    assert len(mine) == 2
    for name in mine:
        assert mine[name]["weights_sha256"] == theirs[name]["weights_sha256"]


@pytest.mark.parametrize("scale", recipe.SCALES)
def test_the_recipe_of_table_6(scale):
    table = recipe.read("table6", scale, seeds=2)
    cells = {c.id: c for c in recipe.cells(table, device="cpu")}
    assert len(cells) == 2 * 2 * 7
    for block, models in (
        ("resnet18", ("resnet18", "resnet18-w8")),
        ("mobilenetv1", ("mobilenetv1-cifar", "mobilenetv1-cifar-quarter")),
    ):
        for seed in (0, 1):
            full = cells[f"{block}/full/seed-{seed}"]
            assert (full.config.quantize, full.config.method, full.first) == (0, "Plain", None)
            for name in ("sgd", "sam", "ausam-0.5", "sam@0.5", "sam+random"):
                cell = cells[f"{block}/{name}/seed-{seed}"]
                c = cell.config
                assert cell.first is full
                assert (c.data, c.model) == ("cifar10", models[scale == "small"])
                assert (c.quantize, c.lr, c.weight_decay, c.rho, c.s_max) == (4, 0.005, 0.0005, 0.05, 0.5)
                assert (c.augment, c.label_smoothing) == ("none", 0.0)
                assert c.batch_size == (128 if scale == "paper" else 32)
    figures = {b.name: [(r.name, r.score, r.std, r.speed) for r in b.rows if r.score is not None] for b in table.blocks}
    assert figures == {  # typed anew from the paper
        "resnet18": [
            ("full", 88.72, None, None),
            ("sgd", 88.86, 0.18, 174),
            ("sam", 89.75, 0.21, 100),
            ("ausam-0.5", 89.63, 0.10, 130),
        ],
        "mobilenetv1": [
            ("full", 85.81, None, None),
            ("sgd", 84.04, 0.13, 153),
            ("sam", 84.72, 0.11, 100),
            ("ausam-0.5", 84.91, 0.19, 117),
        ],
    }
