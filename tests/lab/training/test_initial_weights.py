"""Weights to start from: what fits is copied, what does not is named, and nothing is executed."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from ausam_lab.paper.quantisation import quantize
from ausam_lab.training import weights


@pytest.fixture
def two():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)) for _ in range(2)]


@pytest.mark.parametrize("form", ["w.pt", "w.safetensors"])
def test_weights_from_a_file_by_name(two, tmp_path, caplog, form):
    source, target = two
    state, path = source.state_dict(), tmp_path / form
    save = torch.save if form == "w.pt" else pytest.importorskip("safetensors.torch").save_file
    save(state, path)
    target = quantize(target)  # the names are the same
    digest = weights.start_from(target, str(path))
    assert all(torch.equal(target.state_dict()[k], v) for k, v in state.items())
    assert form != "w.pt" or digest == weights.sha256(state)  # safetensors keeps an order of its own
    assert not caplog.text


def test_what_does_not_fit_is_left_and_told(two, tmp_path, caplog):
    source, target = two
    state = source.state_dict() | {"2.weight": torch.zeros(9, 4), "head.weight": torch.zeros(1)}
    del state["2.bias"]
    torch.save(state, tmp_path / "w.pt")
    before = copy.deepcopy(target.state_dict())
    weights.start_from(target, str(tmp_path / "w.pt"))
    after = target.state_dict()
    assert torch.equal(after["0.weight"], state["0.weight"])
    assert torch.equal(after["2.weight"], before["2.weight"])
    assert "2.bias, 2.weight, head.weight." in caplog.text


def test_escape_sequences_in_names_reach_neither_terminal_nor_logs(two, tmp_path, caplog):
    source, target = two
    evil = "\x1b]0;owned\x07"
    torch.save({**source.state_dict(), evil: torch.zeros(1)}, tmp_path / "w.pt")
    weights.start_from(target, str(tmp_path / "w.pt"))
    assert "owned" in caplog.text
    torch.save({evil: torch.zeros(1)}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="owned") as refused:
        weights.start_from(target, str(tmp_path / "w.pt"))
    assert "\x1b" not in caplog.text + str(refused.value)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_weights_that_cannot_be_used_are_refused(two, tmp_path):
    source, target = two
    torch.save({"a": torch.ones(2), "0.weight": torch.ones(1)}, tmp_path / "other.pt")
    torch.save({**source.state_dict(), "x": Hostile(tmp_path / "executed")}, tmp_path / "hostile.pt")
    torch.save({"model": source.state_dict()}, tmp_path / "nested.pt")
    (tmp_path / "text.pt").write_text("not weights")
    (tmp_path / "text.safetensors").write_text("not weights")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("other.pt", "a, 0.weight, but the network has 0.weight, 0.*--init"),
        ("hostile.pt", "is not executed"),
        ("nested.pt", "more than named tensors.*--init"),
        ("text.pt", "cannot be read"),
        ("text.safetensors", "cannot be read"),
        ("folder", "no intact checkpoint"),
        ("nothing", "no file"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            weights.start_from(target, str(tmp_path / name))
        assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "executed").exists()
