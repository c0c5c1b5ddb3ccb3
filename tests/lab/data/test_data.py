"""Parts of a data set, wrong labels, and runs that share one loading."""

import pytest
import torch

from ausam.common.random import generator
from ausam_lab.data.catalogue import DATASETS, resolve
from ausam_lab.data.labels import balanced
from ausam_lab.networks.build import MODELS
from tests.lab.data.archives import cifar10_files, put
from tests.lab.helpers import load


@pytest.mark.parametrize("size", [1, 3, 10, 14, 59])
def test_parts_are_as_balanced_as_the_classes_allow(size):
    y = torch.tensor([0] * 3 + [1] * 40 + [2] * 7 + [4] * 10)[torch.randperm(60, generator=generator(1))]
    chosen = balanced(y, size)
    assert chosen.tolist() == sorted({*chosen.tolist()}) == balanced(y, size).tolist()
    assert len(chosen) == size
    got, there = torch.bincount(y[chosen], minlength=5).tolist(), torch.bincount(y).tolist()
    for a in range(5):
        for b in range(5):
            assert got[a] <= got[b] + 1 or got[b] == there[b]  # none has two more than one that has some left
    assert balanced(y, 60).tolist() == balanced(y, 0).tolist() == list(range(60))


def test_a_part_is_the_same_for_all_seeds_and_noise_comes_after(tmp_path):
    files, _, _ = cifar10_files()
    put(files, tmp_path / "cifar-10-batches-bin")
    whole = load("cifar10", str(tmp_path))
    part = load("cifar10", str(tmp_path), 0.5, train_size=30, test_size=10)
    assert torch.bincount(part.test_y).tolist() == [1] * 10
    chosen = balanced(whole.train_y, 30)
    assert torch.equal(part.train_x, whole.train_x[chosen])
    assert int(part.wrong.sum()) == 15
    assert ((part.train_y != whole.train_y[chosen]) == part.wrong).all()
    assert torch.bincount(whole.train_y[chosen]).tolist() == [3] * 10
    with pytest.raises(
        ValueError, match=r"train_size is 101, but cifar10 has only 100 such samples. Use 1 to 100, or 0"
    ):
        load("cifar10", str(tmp_path), train_size=101)
    with pytest.raises(ValueError, match=r"test_size is -1. It must be a whole number in"):
        resolve(test_size=-1)


def test_settings_that_suit_the_data_are_settings():
    for name, entry in DATASETS.items():
        config = resolve(data=name)
        assert all(getattr(config, k) == v for k, v in entry.settings.items())
        assert config.model in MODELS
    assert resolve(data="cifar10").augment == resolve(data="cifar100").augment == "cutout"
    assert resolve(data="cifar10", augment="none", epochs=3).augment == "none"
    with pytest.raises(ValueError, match=r'augment is .crop.\. It must be "none", "standard" or "cutout"'):
        resolve(augment="crop")
