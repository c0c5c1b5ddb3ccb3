"""HRNet: its size, its names, and what its branches exchange."""

import pytest
import torch
import torch.nn.functional as F

from ausam_lab.networks.build import MODELS, build, check_fit
from ausam_lab.paper import catalogue
from ausam_lab.paper.networks.hrnet import Module
from ausam_lab.training import weights
from tests.lab.paper.pose.helpers import some

catalogue.register()


def test_hrnet_w32_has_the_published_size():
    """Published are 28.5 M parameters, of the backbone with the heatmap head.

    That head is our final_layer, a 1x1 convolution of 32 to 16 channels; SimCC's two linear layers come on top.
    """
    with torch.device("meta"):
        model = MODELS["hrnet-w32"](16, 3)
        maps = model.final_layer(model.features(torch.empty(1, 3, 256, 256)))
    assert maps.shape == (1, 16, 64, 64)
    heads = [p.numel() for name, p in model.named_parameters() if name.startswith("mlp_head")]
    assert heads == [4096 * 512, 512, 4096 * 512, 512]
    assert sum(p.numel() for p in model.parameters()) - sum(heads) == pytest.approx(28.5e6, rel=0.002)


def test_names_and_shapes_are_the_published_ones():
    with torch.device("meta"):
        shapes = {k: tuple(v.shape) for k, v in MODELS["hrnet-w32"](16, 3).state_dict().items()}
    for name, shape in {
        "conv2.weight": (64, 64, 3, 3),
        "bn2.running_var": (64,),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.3.conv3.weight": (256, 64, 1, 1),
        "transition1.0.0.weight": (32, 256, 3, 3),
        "transition1.1.0.0.weight": (64, 256, 3, 3),
        "transition2.2.0.0.weight": (128, 64, 3, 3),
        "transition3.3.0.1.weight": (256,),
        "stage2.0.branches.1.3.conv2.weight": (64, 64, 3, 3),
        "stage2.0.fuse_layers.0.1.0.weight": (32, 64, 1, 1),
        "stage2.0.fuse_layers.1.0.0.0.weight": (64, 32, 3, 3),
        "stage3.3.fuse_layers.2.0.0.0.weight": (32, 32, 3, 3),
        "stage3.3.fuse_layers.2.0.1.1.weight": (128,),
        "stage4.2.branches.3.3.bn2.bias": (256,),
        "stage4.2.fuse_layers.0.3.1.weight": (32,),
        "final_layer.bias": (16,),
    }.items():
        assert shapes[name] == shape
    assert not any(name.startswith(("stage4.2.fuse_layers.1", "stage5", "transition2.0")) for name in shapes)


def test_weights_of_a_classifier_land_where_names_fit(tmp_path, caplog):
    made = build("hrnet-w16-small", 16, 3, seed=1).state_dict()
    backbone = {k: v for k, v in made.items() if not k.startswith(("final_layer", "mlp_head"))}
    foreign = {
        "classifier.weight": torch.zeros(1000, 2048),
        "incre_modules.0.0.conv1.weight": torch.zeros(32, 16, 1, 1),
        "stage3.0.fuse_layers.1.0.0.0.weight": torch.zeros(32, 16, 3, 3),
        "final_layer.0.weight": torch.zeros(2048, 1024, 1, 1),
    }
    torch.save(backbone | foreign, tmp_path / "imagenet.pth")
    model = build("hrnet-w16-small", 16, 3, seed=2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    weights.start_from(model, str(tmp_path / "imagenet.pth"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, (backbone if name in backbone else before)[name]), name
    assert "classifier.weight" in caplog.text
    assert "final_layer.weight" in caplog.text


def test_a_module_exchanges_between_all_branches():
    module = Module([4, 8, 16], 1, 3).eval()
    xs = [torch.randn(2, c, s, s, generator=some(c)) for c, s in ((4, 8), (8, 4), (16, 2))]
    b = [branch(x) for branch, x in zip(module.branches, xs, strict=True)]
    f = module.fuse_layers

    def up(layers, x, by):
        return F.interpolate(layers[1](layers[0](x)), scale_factor=by, mode="nearest")

    def down(x, *steps):
        for i, step in enumerate(steps):
            x = F.conv2d(x, step[0].weight, stride=2, padding=1)
            x = step[1](x).relu() if i < len(steps) - 1 else step[1](x)
        return x

    expected = [
        b[0] + up(f[0][1], b[1], 2) + up(f[0][2], b[2], 4),
        down(b[0], f[1][0][0]) + b[1] + up(f[1][2], b[2], 2),
        down(b[0], f[2][0][0], f[2][0][1]) + down(b[1], f[2][1][0]) + b[2],
    ]
    for mine, theirs in zip(module(xs), expected, strict=True):
        torch.testing.assert_close(mine, theirs.relu())


def test_the_head_reads_every_joints_own_map():
    model = build("hrnet-w16-small", 5, 3, seed=0).eval()
    x = torch.randn(2, 3, 64, 64, generator=some(2))
    maps = model.final_layer(model.features(x))
    z = model(x)
    assert z.shape == (2, 5, 2, 128)
    torch.testing.assert_close(z[1, 3, 0], model.mlp_head_x(maps[1, 3].reshape(-1)))
    torch.testing.assert_close(z[0, 4, 1], model.mlp_head_y(maps[0, 4].reshape(-1)))
    with pytest.raises(ValueError, match=r"cannot take a batch of shape \(2, 3, 32, 32\)"):
        check_fit("hrnet-w16-small", model, x[:, :, :32, :32], (5, 2, 128))


def test_it_starts_with_the_official_weights_distribution():
    model = build("hrnet-w16-small", 16, 3, seed=1)
    kernels = torch.cat([p.flatten() for name, p in model.named_parameters() if p.dim() == 4])
    assert kernels.std().item() == pytest.approx(0.001, rel=0.01)
    assert not model.final_layer.bias.any()
    z = model(torch.randn(4, 3, 64, 64, generator=some(1)))
    assert z.softmax(-1).sub(1 / 128).abs().max() < 0.01  # nearly every bin alike
