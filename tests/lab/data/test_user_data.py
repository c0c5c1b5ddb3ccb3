"""Data and networks of the user's own: only what is chosen is loaded, and mistakes are one clear line."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from ausam import AUSampling, Feedback, Full, Indexed, SelectiveBatchSampler
from ausam_lab.cli.main import main
from ausam_lab.data import sources
from ausam_lab.data.catalogue import resolve
from ausam_lab.data.loading import DataError, load_batches
from ausam_lab.networks.build import build
from ausam_lab.training.loop import evaluate, train
from tests.lab.helpers import ROOT, load

DOCS = ROOT / "docs"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_the_example_of_the_documentation_runs(here, capsys):
    text = (DOCS / "data.md").read_text()
    text = text[text.index("```python\n# mine.py\n") :]
    (here / "mine.py").write_text(text.split("```python\n")[1].split("```")[0])
    command = shlex.split(text.split("```console\n")[1].split("```")[0])
    assert command[0] == "ausam"
    assert "mine:data" in command
    assert main(command[1:]) == 0
    results = json.loads((here / "runs" / "mine" / "results.json").read_text())
    assert [row["seeds"] for row in results["rows"]] == [[0, 1, 2]] * 3
    assert results["runs"][0]["run"]["data"] == {"train": 400, "test": 200, "classes": 2}


class Squares(Dataset):
    """Samples with noise drawn from torch, and labels that only the samples know."""

    def __init__(self, n, first=0):
        self.n, self.first, self.asked = n, first, []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        self.asked.append(i)
        return torch.full((1, 4, 4), float(i)).double() + 0.01 * torch.randn(1, 4, 4), (self.first + i) % 3


SQUARES = "from test_user_data import Squares\ndef make(): return Squares(30), Squares(12, 1)\n"


@pytest.fixture
def squares(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_user_data", sys.modules[__name__])
    (here / "mine_squares.py").write_text(SQUARES)
    return load("mine_squares:make", label_noise=0.1, train_size=24)


def test_only_what_is_chosen_is_asked_for(squares):
    assert (len(squares.train_y), len(squares.test_y), squares.classes, squares.channels) == (24, 12, 3, 1)
    assert torch.bincount(squares.train_y[~squares.wrong]).sum() == 22
    asked = squares.train.dataset.asked
    sampler = SelectiveBatchSampler(24, 8, AUSampling(0.5, ramp=30), seed=0)
    for epoch, count in ((0, 24), (1, 12)):
        asked.clear()
        seen = []
        for x, y, index in squares.batches(sampler, epoch, 0):
            assert x.dtype == torch.float32
            samples = [squares.train.indices[i] for i in index]
            torch.testing.assert_close(x[:, 0].mean((1, 2)), torch.tensor(samples).float(), rtol=0, atol=0.05)
            assert torch.equal(y, squares.train_y[index])
            right = torch.tensor([s % 3 for s in samples])
            assert torch.equal(y != right, squares.wrong[index])
            sampler.update(Feedback(index, x.mean((1, 2, 3)), x.mean((1, 2, 3)) + 1))
            seen += samples
        assert seen == asked
        assert len(set(seen)) == count
    tested = [
        (round(float(a.mean())), int(b)) for x, y in squares.in_order("test", 5) for a, b in zip(x, y, strict=True)
    ]
    assert tested == [(i, (i + 1) % 3) for i in range(12)]
    assert [int(b) for _, y in squares.in_order("train", 5) for b in y] == squares.train_y.tolist()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_on_own_data_resumes_bit_for_bit(here, squares, workers):
    (here / "mine_net.py").write_text(
        "import torch\nclass Net(torch.nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))\n"
    )
    config = resolve(
        data="mine_squares:make", model="mine_net:Net", epochs=3, batch_size=8, lr=0.001, threads=1, workers=workers
    )
    torch.manual_seed(1)
    list(train(config, here / "whole"))
    torch.manual_seed(2)
    rows = train(config, here / "parts")
    next(rows)
    rows.close()
    list(train(config, here / "parts", resume=True))
    mine, theirs = (json.loads((here / k / "result.json").read_text()) for k in ("whole", "parts"))
    for key in ("weights_sha256", "test", "train"):
        assert mine[key] == theirs[key]


def test_a_dataset_that_reads_whole_batches_is_asked_for_them():
    class Whole(Squares):
        def __getitems__(self, indices):
            batches.append(indices)
            return [self[i] for i in indices]

    batches = []
    loaded = load_batches(Indexed(Whole(8)), 0, "cpu", torch.Generator(), batch_sampler=[[3, 1], [0, 4, 2]])
    assert [index.tolist() for _, _, index in loaded] == batches == [[3, 1], [0, 4, 2]]
    too_far = load_batches(Indexed(Whole(8)), 0, "cpu", torch.Generator(), batch_sampler=[[1, 9]])
    with pytest.raises(DataError, match="Sample 9 of the data cannot be read"):  # one by one, to name it
        list(too_far)


def test_evaluation_draws_the_same_each_time_and_leaves_the_global_state(squares):
    class Noise(Squares):
        def __getitem__(self, i):
            return torch.randn(3), i % 3

    noisy = replace(squares, test=Noise(300), test_y=torch.arange(300) % 3)
    scores = set()
    for seed in range(3):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        scores.add(evaluate(torch.nn.Identity(), noisy, "test").value)
        assert torch.equal(torch.get_rng_state(), state)
    assert len(scores) == 1
    still = replace(squares, train=TensorDataset(torch.zeros(24, 3), squares.train_y))
    for _ in still.in_order("train"):
        pass
    for _ in still.batches(SelectiveBatchSampler(24, 8, Full()), 0, 0):
        pass
    assert torch.equal(torch.get_rng_state(), state)


def test_labels_are_found_without_loading_where_datasets_keep_them(here):
    (here / "mine.py").write_text(
        "import torch\nfrom torch.utils.data import Subset, TensorDataset\n"
        "class Kept(torch.utils.data.Dataset):\n"
        "    def __init__(self, targets, transform=None):\n"
        "        self.targets, self.target_transform, self.asked = targets, transform, set()\n"
        "    def __len__(self): return len(self.targets)\n"
        "    def __getitem__(self, i):\n"
        "        self.asked.add(i)\n"
        "        y = self.targets[i]\n"
        "        return torch.zeros(2), y if self.target_transform is None else self.target_transform(y)\n"
        "def kept():\n"
        "    test = TensorDataset(torch.zeros(2, 2), torch.tensor([1, 0]))\n"
        "    return Subset(Kept([0, 1, 2, 3, 4]), [4, 1, 2]), test\n"
        "def changed(): return Kept([5, 6, 5], lambda y: y - 5), Kept([0, 1])\n"
    )
    kept, changed = load("mine:kept"), load("mine:changed")
    assert (kept.train_y.tolist(), kept.test_y.tolist(), kept.classes) == ([4, 1, 2], [1, 0], 5)
    assert kept.train.dataset.asked == {4}
    assert isinstance(kept.train, Subset)
    assert isinstance(kept.test, TensorDataset)
    assert (changed.train_y.tolist(), changed.classes) == ([0, 1, 0], 2)
    assert changed.train.asked == {0, 1, 2}


def test_an_image_set_of_the_users_own_may_be_augmented(here, capsys):
    (here / "mine.py").write_text(
        "import torch\nfrom ausam_lab.data.images import ImageSet\n"
        "def data():\n"
        "    x, y = torch.arange(40 * 64).view(40, 1, 8, 8).to(torch.uint8), torch.arange(40) % 4\n"
        "    return ImageSet('mine', x, y, x, y, 4, (128.0,), (74.0,))\n"
    )
    flags = ["--data", "mine:data", "--augment", "cutout", "--epochs", "1", "--threads", "1", "--out", "run"]
    assert main(["train", *flags]) == 0
    assert json.loads(Path("run/result.json").read_text())["data"] == {"train": 40, "test": 40, "classes": 4}


BAD = """
import torch
from torch import nn
from torch.utils.data import TensorDataset, IterableDataset

def good(): return [TensorDataset(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))] * 2
def number(): return 3
class Stream(IterableDataset):
    def __iter__(self): return iter([])
def stream(): return Stream(), Stream()
def empty(): return [], []
def single(): return [torch.zeros(2)], [torch.zeros(2)]
def text(): return [("a", 1)], [("a", 1)]
def raw(): return [(torch.zeros(1, 8, 8, dtype=torch.uint8), 1)], [(torch.zeros(1, 8, 8), 1)]
def regression(): return [(torch.zeros(2), 0.5)], [(torch.zeros(2), 0.5)]
def negative(): return [(torch.zeros(2), -1)], [(torch.zeros(2), 0)]
def strings(): return [(torch.zeros(2), "cat")], [(torch.zeros(2), "dog")]
def vectors(): return [TensorDataset(torch.zeros(4, 5), torch.tensor([0, 1, 0, 1]))] * 2
def one(classes): return nn.Linear(2, classes)
def nothing(): return None
def wide(classes, channels): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))
def narrow(classes, channels): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes - 1))
def pair(classes, channels):
    class Pair(nn.Linear):
        def forward(self, x): return x, x
    return Pair(1, 1)
value = 3
network = nn.Sequential()
"""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data", "absent:make"], "No module named 'absent'"),
        (["--data", "mine_bad:maek"], "It has: Stream, empty, good"),
        (["--data", "mine_bad:value"], "Write a function that returns it."),
        (["--model", "mine_bad:network"], "Write a function that returns it."),
        (["--model", "mine_bad.wide"], "Did you mean mine_bad:wide?"),
        (["--data", "mine_bad:"], "write module:NAME"),
        (["--data", "mine_broken:f"], "No module named 'not_installed'"),
        (["--data", "mine_bad:number"], "Return a pair (train_dataset, test_dataset)"),
        (["--data", "mine_bad:stream"], "Selection needs access by index"),
        (["--data", "mine_bad:empty"], "is empty"),
        (["--data", "mine_bad:single"], "Return a pair (x, y)"),
        (["--data", "mine_bad:text"], "Convert it to a tensor"),
        (["--data", "mine_bad:raw"], "Convert them to floats"),
        (["--data", "mine_bad:regression"], "number of a class"),
        (["--data", "mine_bad:strings"], "not numbers of one shape"),
        (["--data", "mine_bad:negative"], "Number the classes 0, 1, 2"),
        (["--data", "mine_bad:good", "--augment", "cutout"], "Use --augment none"),
        (["--data", "mine_bad:good", "--train-size", "5"], "only 4 such samples"),
        (["--data", "mine_bad:vectors"], "cannot take a batch of shape (2, 5)"),
        (["--model", "mine_bad:one"], "called with (classes, channels)"),
        (["--model", "mine_bad:nothing"], "Return a torch.nn.Module"),
        (["--model", "mine_bad:wide"], "the data needs (2, 10)"),
        (["--model", "mine_bad:narrow"], "numbered from 0"),
        (["--model", "mine_bad:pair"], "a tuple"),
    ],
)
def test_mistakes_in_own_data_and_networks_are_one_clear_line(here, capsys, flags, message):
    (here / "mine_bad.py").write_text(BAD)
    (here / "mine_broken.py").write_text("import not_installed\n")
    assert main(["train", "--epochs", "1", "--threads", "1", *flags, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("ausam: ")
    assert message in error
    assert not (here / "run").exists()


def test_a_mistake_costs_no_download(here, capsys, monkeypatch):
    monkeypatch.setattr(sources, "folder_of", None)
    for flags in (["--model", "resnet-81"], ["--method", "smm"]):
        assert main(["train", "--data", "cifar10", *flags, "--out", "run"]) == 2
        assert "There is no" in capsys.readouterr().err


def test_own_networks_are_seeded_and_keep_their_weights(here):
    (here / "mine.py").write_text(
        "from torch import nn\ndef net(classes, channels):\n"
        "    made = nn.Conv2d(channels, classes, 3)\n    nn.init.constant_(made.bias, 4.0)\n    return made\n"
    )
    first, again, other = (build("mine:net", 3, 2, seed=s) for s in (0, 0, 1))
    assert first.weight.shape == (3, 2, 3, 3)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    assert (first.bias == 4).all()
    assert first.weight.abs().max() <= (1 / 18) ** 0.5  # torch's own, not this package's, initialisation
