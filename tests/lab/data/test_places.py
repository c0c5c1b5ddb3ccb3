"""Data by its place: class folders, Hugging Face's formats, a file; and labels that no network can learn."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from ausam_lab.data.datasets import from_datasets
from tests.lab.helpers import load, read, run

FLAGS = ["--model", "resnet-tiny", "--epochs", 1, "--batch-size", 8, "--threads", 1]


def picture(label, number, side=8):
    rng = np.random.default_rng([label, number])
    return Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8))


def class_folders(folder, held_out="val", side=lambda i: 8):
    for which, count in (("train", 8), (held_out, 3)):
        for label, cls in enumerate(["cat", "dog"]):
            (folder / which / cls).mkdir(parents=True)
            for i in range(count):
                picture(label, i, side(i)).save(folder / which / cls / f"{i}.png")
    return folder


def test_a_path_without_its_kind(tmp_path, capsys):
    class_folders(tmp_path / "pets")
    assert run("train", "--data", tmp_path / "pets", *FLAGS) == 2
    assert f"write --data folder:{tmp_path / 'pets'}" in capsys.readouterr().err


@pytest.mark.parametrize("held_out", ["val", "test"])
def test_class_folders(tmp_path, held_out):
    folder = class_folders(tmp_path / "pets", held_out)
    data = load(f"folder:{folder}")
    assert (len(data.train_y), len(data.test_y), data.classes, data.channels) == (16, 6, 2, 3)
    x, y = data.train[9]
    assert y == 1
    expected = np.asarray(picture(1, 1), dtype=np.float64).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(x.numpy(), (expected - 0.5) / 0.25, rtol=1e-5, atol=1e-5)
    assert run("train", "--data", f"folder:{folder}", *FLAGS, "--out", tmp_path / "run") == 0
    assert read(tmp_path / "run" / "result.json")["data"] == {"train": 16, "test": 6, "classes": 2}


def test_images_of_several_sizes_need_one(tmp_path, capsys):
    folder = class_folders(tmp_path / "pets", side=lambda i: 8 + i)
    assert run("train", "--data", f"folder:{folder}", *FLAGS, "--out", tmp_path / "run") == 2
    assert f"the images differ in size: 8x8 ({folder}/train/cat/0.png) and 9x9" in capsys.readouterr().err
    assert load(f"folder:{folder}@12").example().shape == (2, 3, 12, 12)


def test_folders_without_a_split_hold_out_a_fifth(tmp_path, caplog):
    for label, cls in enumerate(["cat", "dog"]):
        (tmp_path / "pets" / cls).mkdir(parents=True)
        for i in range(10):
            picture(label, i).save(tmp_path / "pets" / cls / f"{i}.png")
    data = load(f"folder:{tmp_path / 'pets'}")
    assert "20 % of each class are held out for testing" in caplog.text
    assert (torch.bincount(data.train_y).tolist(), torch.bincount(data.test_y).tolist()) == ([8, 8], [2, 2])
    files = [{part.dataset.images[i] for i in part.indices} for part in (data.train, data.test)]
    assert len(files[0] | files[1]) == 20
    assert not files[0] & files[1]
    assert data.evaluated_on == "test"
    (tmp_path / "other").mkdir()
    (tmp_path / "pets").rename(tmp_path / "other" / "train")
    again = load(f"folder:{tmp_path / 'other'}", label_noise=0.25)
    assert torch.equal(again.kept, data.kept)  # the same split for every seed and setting


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda place: (place / "train").rename(place / "training"), "Make a folder there for each of the classes"),
        (lambda place: (place / "train" / "cat" / "x.png").write_text("no"), "is not a readable image"),
    ],
)
def test_folders_that_are_not_so_are_refused(tmp_path, capsys, broken, message):
    folder = class_folders(tmp_path / "pets")
    broken(folder)
    assert run("train", "--data", f"folder:{folder}", *FLAGS, "--out", tmp_path / "run") == 2
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["saved", "parquet", "images"])
def test_hugging_face_formats(tmp_path, monkeypatch, form):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "pets"
    if form == "images":
        class_folders(folder, "test")
    else:
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
        splits = {
            which: datasets.Dataset.from_dict(
                {
                    "image": [picture(c, i) for c in (0, 1) for i in range(n)],
                    "label": [c for c in (0, 1) for _ in range(n)],
                },
                features=features,
            )
            for which, n in (("train", 8), ("test", 3))
        }
        if form == "saved":
            datasets.DatasetDict(splits).save_to_disk(str(folder))
        else:
            folder.mkdir()
            for which, split in splits.items():
                split.to_parquet(str(folder / f"{which}-00000-of-00001.parquet"))
    data = load(f"hf:{folder}")
    assert (len(data.train_y), len(data.test_y), data.classes) == (16, 6, 2)
    expected = np.asarray(picture(1, 1), dtype=np.float64).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(data.train[9][0].numpy(), (expected - 0.5) / 0.25, rtol=1e-5, atol=1e-5)


def test_a_function_in_a_file(tmp_path, capsys):
    (tmp_path / "my data.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "def data():\n    one = TensorDataset(torch.randn(16, 4), torch.arange(16) % 2)\n    return one, one\n"
        "def net(classes, channels):\n    return torch.nn.Linear(channels, classes)\n"
    )
    own = ["--data", f"{tmp_path}/my data.py:data", "--model", f"{tmp_path}/my data.py:net", "--epochs", 1]
    assert run("train", *own, "--threads", 1, "--out", tmp_path / "run") == 0
    assert run("train", "--data", f"{tmp_path}/none.py:data", "--out", tmp_path / "other") == 2
    assert f"No such file or directory: '{tmp_path}/none.py'" in capsys.readouterr().err


def of(*labels):
    return TensorDataset(torch.zeros(len(labels), 2), torch.tensor(labels))


@pytest.mark.parametrize("labels", [(0, 1_000_000), (0, 0), (-1, 0)], ids=["gaps", "one class", "negative"])
def test_labels_that_no_network_can_learn_are_refused(labels):
    with pytest.raises(ValueError, match=f"from {min(labels)} to {max(labels)}.*Number the classes 0, 1, 2"):
        from_datasets("mine", of(*labels), of(0))


def test_a_class_may_be_missing_from_training():
    assert from_datasets("mine", of(0, 1), of(0, 2)).classes == 3
