"""The user's own methods and policies by ``module:Class``, beside the library's."""

import textwrap

import pytest

from ausam_lab.experiments.tune import best_command, load
from ausam_lab.names.expressions import canonical, construct, has_radius, parse, uses
from ausam_lab.names.pairs import pair
from tests.lab.helpers import read, run

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from ausam import Policy
from ausam.common.tensors import ascent


@dataclass(frozen=True)
class RandomDirection:
    """The gradient at a random point at distance rho."""

    rho: float = 0.05
    sharpness: ClassVar[str] = "always"
    passes: ClassVar[tuple[float, float]] = (2.0, 1.0)

    def gradient(self, step):
        step.forward(grad=False)
        rng = step.rng()
        z = [torch.randn(p.shape, generator=rng).to(p) for p in step.params]
        with step.shifted(ascent(z, step.radius(self.rho))):
            return step.gradient()


@dataclass(frozen=True)
class FirstHalf(Policy):
    """The first samples of each mini-batch."""

    alpha: float = 0.5
    full_epochs: ClassVar[int] = 0

    def select(self, scores, epoch, candidates, rng):
        k = self.count(epoch, candidates.shape[1])
        return torch.arange(k).expand(len(candidates), k), None


@dataclass(frozen=True)
class Half:
    alpha: float = 0.5


class Bare:
    pass


thing = 3


def negative(feedback):
    return -feedback.loss
'''
FEW = ["--epochs", 2, "--train-size", 64, "--test-size", 20, "--threads", 1]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module in the current directory."""
    name = f"mine_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MINE))
    monkeypatch.chdir(tmp_path)
    return name


def test_a_method_and_a_policy_of_a_module_and_of_a_file(mine, tmp_path):
    method = construct("method", f"{mine}:RandomDirection", rho=0.3, total_steps=5)
    assert (type(method).__name__, method.rho) == ("RandomDirection", 0.3)
    assert construct("method", f"{mine}:RandomDirection(rho=0.1)", rho=0.3).rho == 0.1
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "policies.py"
    path.write_text(textwrap.dedent(MINE))
    assert construct("policy", f"{path}:FirstHalf(alpha=0.25)").alpha == 0.25
    assert parse("policy", f"{path}:FirstHalf").cls is parse("policy", f"{path}:FirstHalf").cls  # run once
    assert has_radius(f"{mine}:RandomDirection")
    assert uses("policy", f"{mine}:FirstHalf", "alpha")
    assert not uses("policy", f"{mine}:FirstHalf(alpha=0.5)", "alpha")


def test_their_names_need_no_import_and_keep_their_letters():
    """A report must be possible where the module is not."""
    assert canonical("method", "absent:MySAM( rho = .1 )") == "absent:MySAM(rho=0.1)"
    both = pair("some/where/absent.py:MySAM(mode='a B') + TopLoss(alpha=0.3)@0.5")
    assert both.method == "some/where/absent.py:MySAM(mode='a B')"
    assert both.label == "absent.py:MySAM(mode='a B') + TopLoss(alpha=0.3) (half the epochs)"
    assert pair(both.name) == both
    assert pair("absent:MySAM").label == "absent:MySAM"
    assert pair("sam + absent:MyPolicy").method == "SAM"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{mine}:Nothing", "It has: Bare, FirstHalf, Half, RandomDirection, negative."),
        ("{mine}:thing", "it is of type int, not a class"),
        ("{mine}:Bare", "write @dataclass(frozen=True)"),
        ("{mine}:Half", "a method needs gradient, passes, sharpness, which Half lacks"),
        ("{mine}:RandomDirection(rhoo=1)", "RandomDirection takes rho=0.05"),
        ("absent_module:A", "No module named 'absent_module'"),
        ("absent.py:A", "No such file"),
        ("{mine}.RandomDirection", "Did you mean {mine}:RandomDirection?"),
        ("{mine}.py", "Did you mean {mine}.py:NAME?"),
        (":A", "write module:NAME"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_remedy(mine, text, message):
    with pytest.raises(ValueError) as error:
        construct("method", text.format(mine=mine))
    assert message.format(mine=mine) in str(error.value)


def test_train_compare_and_tune_take_them(mine, tmp_path, capsys):
    method, policy = f"{mine}:RandomDirection", f"{mine}:FirstHalf"
    assert run("train", "--method", f"{method}(rho=0.1)", "--policy", policy, *FEW, "--out", "one") == 0
    assert read(tmp_path / "one" / "result.json")["policy"] == "FirstHalf(alpha=0.5)"
    assert run("train", f"{method} + TopLoss(alpha=0.5)", *FEW, "--out", "two") == 0
    assert "RandomDirection" in capsys.readouterr().out
    names = ["sam", method, f"{mine}.py:RandomDirection(rho=0.3) + AUSampling", f"sam + {policy}"]
    assert run("compare", *names, *FEW, "--rho", 0.1, "--seeds", 1, "--out", "all") == 0
    table = capsys.readouterr().out
    labels = [method, names[2], f"SAM + {policy}"]
    assert all(f"\n{label}  " in table for label in labels)
    rows = {row["name"]: row for row in read(tmp_path / "all" / "results.json")["rows"]}
    assert list(rows) == names
    assert rows[f"sam + {policy}"]["samples_forward"] == rows["sam"]["samples_forward"] / 2
    methods = [one["run"]["method"] for one in read(tmp_path / "all" / "results.json")["runs"]]
    assert methods[1:3] == ["RandomDirection(rho=0.1)", "RandomDirection(rho=0.3)"]
    tune = ["tune", "--method", method, "--policy", policy, "--over", "rho=0.1,0.2", *FEW, "--seeds", 1]
    assert run(*tune, "--out", "tuned") == 0
    assert f"--method {method} --policy {policy}" in best_command(load(tmp_path / "tuned"), tmp_path)


def test_a_report_is_rebuilt_where_their_module_is_not(mine, tmp_path, monkeypatch, capsys):
    names = ["sam", f"{mine}:RandomDirection"]
    assert run("compare", *names, *FEW, "--seeds", 1, "--out", "all") == 0
    (tmp_path / f"{mine}.py").unlink()
    monkeypatch.delitem(__import__("sys").modules, mine)
    capsys.readouterr()
    assert run("report", "all") == 0
    assert f"{mine}:RandomDirection" in capsys.readouterr().out


def test_a_signal_of_the_users_own(mine, tmp_path, capsys):
    policy = construct("policy", f"TopLoss(alpha=0.5, signal='{mine}:negative')")
    assert policy.signal.__name__ == "negative"
    both = pair(f"sam + TopLoss(signal='{mine}:negative')")
    assert both.policy == f"TopLoss(signal='{mine}:negative')"
    assert pair(both.name) == both
    names = ["sam + TopLoss", f"sam + TopLoss(signal='{mine}:negative')"]
    assert run("compare", *names, *FEW, "--seeds", 1, "--out", "all") == 0
    shown = [one["run"]["policy"] for one in read(tmp_path / "all" / "results.json")["runs"]]
    assert shown == ["TopLoss(alpha=0.5)", f"TopLoss(alpha=0.5, signal='{mine}.negative')"]
    with pytest.raises(ValueError, match="has no nothing"):
        construct("policy", f"TopLoss(signal='{mine}:nothing')")
