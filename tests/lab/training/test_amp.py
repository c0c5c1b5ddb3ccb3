"""``--amp``: mixed precision is what torch's own autocast and scaler do, it resumes, and what cannot be is refused."""

import pytest
import torch
import torch.nn.functional as F

from ausam import Full, SelectiveBatchSampler
from ausam_lab.data.catalogue import resolve
from ausam_lab.networks.build import build
from ausam_lab.training import checkpoint
from ausam_lab.training.loop import finish, train
from tests.lab.helpers import load, run

FEW = {"epochs": 3, "train_size": 128, "test_size": 50, "threads": 1}


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_plain_training_is_what_torch_does(tmp_path, amp):
    config = resolve(method="plain", amp=amp, label_noise=0.0, **FEW | {"train_size": 0, "epochs": 1})
    finish(train(config, tmp_path))
    data, dtype = load("digits"), {"bf16": torch.bfloat16, "fp16": torch.float16}[amp]
    model = build("resnet-tiny", 10, 1, seed=0).to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scaler = torch.amp.GradScaler("cpu", enabled=amp == "fp16")
    model.train()
    for b, chosen in enumerate(SelectiveBatchSampler(1000, 64, Full(), seed=0)):
        opt.param_groups[0]["lr"] = 0.05 * (1 + torch.cos(torch.tensor(torch.pi * b / 16)).item()) / 2
        x = ((data.train_x[chosen] - data.mean[0]) / data.std[0]).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype):
            z = model(x)
        scaler.scale(F.cross_entropy(z.float(), data.train_y[chosen])).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    saved = checkpoint.load(tmp_path)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved.model[name], value, rtol=1e-3, atol=1e-4)
    assert saved.scaler.get("scale") == (scaler.get_scale() if amp == "fp16" else None)


def test_a_device_without_it_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: False)
    assert run("train", "--amp", "bf16", "--epochs", 1, "--out", tmp_path / "run") == 2
    assert "cpu cannot compute. Use --amp off" in capsys.readouterr().err
