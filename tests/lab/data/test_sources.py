"""The published data sets: their formats and layouts."""

import gzip
import io
import struct
import zipfile

import numpy as np
import torch
from PIL import Image

from ausam_lab.data import catalogue as lab_data
from ausam_lab.data import sources
from tests.lab.data.archives import cifar10_files, images, put, tar_gz
from tests.lab.helpers import load


def test_cifar10_from_the_archive_and_from_the_folder(published, tmp_path, monkeypatch):
    files, x, y = cifar10_files()
    monkeypatch.setitem(sources.REMOTES, "cifar10", published.remote(tar_gz(files, "cifar-10-batches-bin")))
    for folder in (tmp_path / "downloaded", tmp_path / "there"):
        if folder.name == "there":
            put(files, folder / "cifar-10-batches-bin")
        data = load("cifar10", str(folder))
        assert (data.train_x.dtype, data.train_y.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(data.train_x.numpy(), x[:100])
        assert np.array_equal(data.test_x.numpy(), x[100:])
        assert data.train_y.tolist() == y[:100].tolist()
        assert data.test_y.tolist() == y[100:].tolist()
        assert (data.classes, data.channels) == (10, 3)
        published.withdraw()


def test_cifar100_has_the_fine_labels(tmp_path):
    x = images(30)
    files = {
        name: b"".join(bytes([i % 20, 3 * i]) + x[i].tobytes() for i in rows)
        for name, rows in (("train.bin", range(20)), ("test.bin", range(20, 30)))
    }
    put(files, tmp_path / "cifar-100-binary")
    data = load("CIFAR100", str(tmp_path))
    assert np.array_equal(torch.cat([data.train_x, data.test_x]).numpy(), x)
    assert torch.cat([data.train_y, data.test_y]).tolist() == [3 * i for i in range(30)]


def idx(array):
    head = struct.pack(">HBB", 0, 8, array.ndim) + b"".join(struct.pack(">I", n) for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def fashion_arrays():
    x = images(50, 1, 28)[:, 0]
    y = np.arange(50) % 10
    names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    return dict(zip(names, (x[:40], y[:40], x[40:], y[40:]), strict=True)), x, y


def test_fashion_mnist_is_downloaded_file_by_file(published, tmp_path, monkeypatch):
    arrays, x, y = fashion_arrays()
    for name, array in arrays.items():
        remote = published.remote(gzip.compress(idx(array)), f"{name}.gz")
        monkeypatch.setitem(sources.REMOTES, name, remote)
    for _ in range(2):
        data = load("fashion-mnist", str(tmp_path))
        assert data.train_x.shape == (40, 1, 28, 28)
        assert np.array_equal(torch.cat([data.train_x, data.test_x])[:, 0].numpy(), x)
        assert torch.cat([data.train_y, data.test_y]).tolist() == y.tolist()
        published.withdraw()  # they are there
        lab_data._read.cache_clear()


def jpeg(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def tiny_files(train=4, val=3, side=64):
    """The official layout: the ids are not in order, and one picture is grey."""
    ids, files = ["n03", "n01", "n02"], {}
    flat = np.full((side, side, 3), 0, np.uint8)
    for c, wnid in enumerate(ids):
        for i in range(train):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(flat + np.uint8(60 * c + 10 * i))
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
    files["train/n01/images/n01_0.JPEG"] = jpeg(np.tile(np.arange(side, dtype=np.uint8) * 3, (side, 1)))
    lines = []
    for i in range(val):
        files[f"val/images/val_{i}.JPEG"] = jpeg(flat + np.uint8(200 + 10 * i))
        lines.append(f"val_{i}.JPEG\t{ids[i % 3]}\t0\t0\t62\t62\n")
    files["val/val_annotations.txt"] = "".join(lines).encode()
    files["wnids.txt"] = "\n".join(ids).encode() + b"\n"
    return files


def test_tiny_imagenet_is_decoded_once(published, tmp_path, monkeypatch):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in tiny_files().items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    monkeypatch.setitem(sources.REMOTES, "tiny-imagenet", published.remote(buffer.getvalue(), "tiny.zip"))
    data = load("tiny-imagenet", str(tmp_path))
    assert (data.train_x.shape, data.test_x.shape) == ((12, 3, 64, 64), (3, 3, 64, 64))
    assert data.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4  # n01, n02, n03
    assert data.test_y.tolist() == [2, 0, 1]
    grey = data.train_x[0].float()
    assert torch.equal(grey[0], grey[1])
    assert (grey[2] - torch.arange(64) * 3).abs().max() < 4  # columns in their place
    assert [int(i) for i in data.train_x[5:, 0, 9, 9].float().round()] == [130, 140, 150, 0, 10, 20, 30]
    assert [int(i) for i in data.test_x[:, 1, 9, 9]] == [200, 210, 220]

    monkeypatch.setattr(sources, "_decode", None)
    published.withdraw()
    lab_data._read.cache_clear()
    assert torch.equal(load("tiny-imagenet", str(tmp_path)).train_x, data.train_x)
    (tmp_path / "tiny-imagenet-200").rename(tmp_path / "elsewhere")  # the cache is enough
    lab_data._read.cache_clear()
    assert torch.equal(load("tiny-imagenet", str(tmp_path)).train_x, data.train_x)
    before = (tmp_path / "tiny-imagenet-200-uint8" / "train_x.npy").read_bytes()
    data.train_x[0] = 7  # somebody's mistake stays in this process
    assert (tmp_path / "tiny-imagenet-200-uint8" / "train_x.npy").read_bytes() == before
