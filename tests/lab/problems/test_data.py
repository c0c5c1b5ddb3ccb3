"""The data sets: formats, downloads over the loopback, augmentation, parts, and data of the user's own."""

import gzip
import hashlib
import http.server
import io
import json
import os
import random
import shlex
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from ausam import AUSampling, Feedback, Full, SelectiveBatchSampler
from ausam.common.random import generator
from ausam.lab.cli.main import main
from ausam.lab.networks.build import MODELS, build
from ausam.lab.problems import augment, download
from ausam.lab.problems import catalogue as lab_data
from ausam.lab.problems.catalogue import DATASETS, resolve
from ausam.lab.problems.download import DownloadError, Remote, fetch, unpack
from ausam.lab.problems.images import ImageSet
from ausam.lab.problems.labels import balanced
from ausam.lab.problems.sources import cifar, ett, fashion, tiny
from ausam.lab.training.loop import evaluate, train
from tests.lab.helpers import ROOT, load

DOCS = ROOT / "docs"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No data set, module or path is left over from another test."""
    lab_data.forget()
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and name.startswith("mine"):
            del sys.modules[name]


# -- tiny archives in the official formats --------------------------------------------------------------------------


def images(n, channels=3, side=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, channels, side, side), dtype=np.uint8)


def cifar10_files(per_file=20):
    """Official names and records: a label byte, then red, green and blue planes."""
    files, x, y = {}, images(6 * per_file), np.arange(6 * per_file) % 10
    for i, name in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
        rows = range(i * per_file, (i + 1) * per_file)
        files[name] = b"".join(bytes([y[r]]) + x[r].tobytes() for r in rows)
    return files, x, y


def tar_gz(files, folder):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files, folder):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{folder}/{name}", content)
    return buffer.getvalue()


def put(files, folder):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def md5(content):
    return hashlib.md5(content).hexdigest()


# -- a server on the loopback ---------------------------------------------------------------------------------------


class Server:
    """Serves one file; can break off, ignore ranges, or answer anything else."""

    def __init__(self, content):
        self.content, self.asked = content, []
        self.ranges, self.break_after, self.status = True, [], None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/files/thing.tar.gz"

    def answer(self, request):
        asked = request.headers.get("Range")
        self.asked.append(asked)
        if self.status:
            request.send_error(self.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if start >= len(self.content):
            request.send_error(416)
            return
        body = self.content[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.break_after.pop(0)] if self.break_after else body)

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server():
    made = Server(random.Random(0).randbytes(300_000))
    yield made
    made.close()


def remote(server):
    return Remote(server.url, md5(server.content))


def test_a_file_is_downloaded_once_and_announced_in_a_line(server, tmp_path, capsys):
    path = fetch(remote(server), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "thing.tar.gz"
    assert path.read_bytes() == server.content
    assert [name for name in os.listdir(path.parent) if not name.endswith(".lock")] == ["thing.tar.gz"]
    assert capsys.readouterr().err == f"Downloading {server.url}\n"
    assert fetch(remote(server), path.parent) == path
    assert server.asked == [None]


def test_on_a_terminal_there_is_a_bar(server, tmp_path, capsys, monkeypatch):
    for key, value in {"TTY_COMPATIBLE": "1", "FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(key, value)
    fetch(remote(server), tmp_path)
    error = capsys.readouterr().err
    assert "thing.tar.gz" in error
    assert "300.0" in error
    assert "Downloading" not in error


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    server.break_after = [100_000, 50_000]
    assert fetch(remote(server), tmp_path).read_bytes() == server.content
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_call_goes_on_too(server, tmp_path):
    server.break_after = [100_000, 0]
    with pytest.raises(DownloadError, match="Run the same command again to continue where it stopped"):
        fetch(remote(server), tmp_path)
    assert (tmp_path / "thing.tar.gz.part").read_bytes() == server.content[:100_000]
    assert not (tmp_path / "thing.tar.gz").exists()
    assert fetch(remote(server), tmp_path).read_bytes() == server.content
    assert server.asked[-1] == "bytes=100000-"


def test_a_complete_partial_file_needs_no_byte(server, tmp_path):
    (tmp_path / "thing.tar.gz.part").write_bytes(server.content)
    assert fetch(remote(server), tmp_path).read_bytes() == server.content
    assert server.asked == ["bytes=300000-"]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "thing.tar.gz.part").write_bytes(server.content[:1000])
    assert fetch(remote(server), tmp_path).read_bytes() == server.content
    assert server.asked == ["bytes=1000-"]


@pytest.mark.parametrize("size", [1000, 300_000, 400_000])
def test_a_partial_file_of_something_else_is_replaced(server, tmp_path, size):
    (tmp_path / "thing.tar.gz.part").write_bytes(b"?" * size)
    assert fetch(remote(server), tmp_path).read_bytes() == server.content
    assert server.asked == [f"bytes={size}-", None]


def test_a_wrong_checksum_is_refused_and_nothing_is_placed(server, tmp_path):
    with pytest.raises(DownloadError) as error:
        fetch(Remote(server.url, "0" * 32), tmp_path)
    assert f"its md5 is {md5(server.content)}, not {'0' * 32}. It was deleted." in str(error.value)
    assert not (tmp_path / "thing.tar.gz").exists()
    assert (tmp_path / "thing.tar.gz.part").read_bytes() == b""


def test_a_file_put_there_by_hand_is_checked(server, tmp_path):
    (tmp_path / "thing.tar.gz").write_bytes(b"other")
    with pytest.raises(DownloadError, match=r"thing\.tar\.gz is not the published file: its md5 is .* Delete it"):
        fetch(remote(server), tmp_path)
    (tmp_path / "thing.tar.gz").write_bytes(server.content)
    fetch(remote(server), tmp_path)
    assert server.asked == []


def test_without_a_network_it_says_what_to_put_where(server, tmp_path, capsys, monkeypatch):
    gone = Remote("http://127.0.0.1:1/cifar-10-binary.tar.gz", "0" * 32)
    monkeypatch.setattr(cifar, "CIFAR10", gone)
    assert main(["train", "--data", "cifar10", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "cifar-10-binary.tar.gz could not be downloaded ([Errno" in error
    assert "Connection refused)" in error
    assert f"download {gone.url} on another machine and put it at {tmp_path / 'cifar-10-binary.tar.gz'}." in error
    server.status = 404
    with pytest.raises(DownloadError, match="could not be downloaded \\(HTTP Error 404: Not Found\\)"):
        fetch(remote(server), tmp_path)


# -- unpacking ------------------------------------------------------------------------------------------------------


def tar_of(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, link in [("thing/good.txt", tarfile.REGTYPE, ""), *members]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            tar.addfile(member)
    return path


HOSTILE_TAR = {
    "absolute": ("/tmp/evil.txt", tarfile.REGTYPE, ""),
    "above": ("thing/../../evil.txt", tarfile.REGTYPE, ""),
    "windows": ("thing\\..\\..\\evil.txt", tarfile.REGTYPE, ""),
    "drive": ("C:/evil.txt", tarfile.REGTYPE, ""),
    "symbolic link": ("thing/link", tarfile.SYMTYPE, "/etc/passwd"),
    "inner link": ("thing/link", tarfile.SYMTYPE, "good.txt"),
    "hard link": ("thing/link", tarfile.LNKTYPE, "../../evil.txt"),
    "device": ("thing/device", tarfile.CHRTYPE, ""),
    "pipe": ("thing/pipe", tarfile.FIFOTYPE, ""),
}


@pytest.mark.parametrize("member", HOSTILE_TAR.values(), ids=HOSTILE_TAR)
def test_hostile_tar_files_write_nothing(tmp_path, member):
    folder = tmp_path / "deep" / "data"
    folder.mkdir(parents=True)
    archive = tar_of(folder / "thing.tar.gz", member)
    with pytest.raises(DownloadError, match=r"was not unpacked: its member .* Do not use this file"):
        unpack(archive, folder, "thing")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["data", "deep", "thing.tar.gz"]


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "thing/../../evil.txt", "..\\evil.txt", "link", "fifo"])
def test_hostile_zip_files_write_nothing(tmp_path, name):
    folder = tmp_path / "data"
    folder.mkdir()
    with zipfile.ZipFile(folder / "thing.zip", "w") as archive:
        archive.writestr("thing/good.txt", "good")
        member = zipfile.ZipInfo(name)
        if name in ("link", "fifo"):
            member.external_attr = (0o120777 if name == "link" else 0o010666) << 16
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(DownloadError, match="was not unpacked"):
        unpack(folder / "thing.zip", folder, "thing")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["data", "thing.zip"]


def test_good_archives_are_unpacked_and_damaged_ones_leave_nothing(tmp_path):
    assert (unpack(tar_of(tmp_path / "a.tar.gz"), tmp_path, "thing") / "good.txt").exists()
    # a second process that is slower finds the folder of the first
    (tmp_path / "thing" / "mark").touch()
    unpack(tar_of(tmp_path / "a.tar.gz"), tmp_path, "thing")
    assert (tmp_path / "thing" / "mark").exists()
    whole = tar_gz({"x": random.Random(0).randbytes(50_000)}, "other")
    for content in (whole[:20_000], b"nonsense"):
        (tmp_path / "b.tar.gz").write_bytes(content)
        with pytest.raises(DownloadError, match=r"b\.tar\.gz cannot be unpacked"):
            unpack(tmp_path / "b.tar.gz", tmp_path, "other")
    (tmp_path / "b.tar.gz").write_bytes(whole)
    with pytest.raises(DownloadError, match="has no folder third"):
        unpack(tmp_path / "b.tar.gz", tmp_path, "third")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "b.tar.gz", "thing"]


# -- formats --------------------------------------------------------------------------------------------------------


def test_cifar10_from_the_archive_and_from_the_folder(server, tmp_path, monkeypatch):
    files, x, y = cifar10_files()
    server.content = tar_gz(files, "cifar-10-batches-bin")
    monkeypatch.setattr(cifar, "CIFAR10", remote(server))
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
    assert len(server.asked) == 1


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


def test_damaged_cifar_is_named(tmp_path):
    files, _, _ = cifar10_files()
    folder = put(files, tmp_path / "cifar-10-batches-bin")
    for content in (files["data_batch_2.bin"][:-1], b"", bytes([10]) + files["data_batch_2.bin"][1:]):
        (folder / "data_batch_2.bin").write_bytes(content)
        with pytest.raises(ValueError, match=r"data_batch_2.bin is damaged"):
            load("cifar10", str(tmp_path))
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(DownloadError, match=r"cifar-10-batches-bin lacks data_batch_2.bin. Add them from https"):
        load("cifar10", str(tmp_path))


def idx(array):
    head = struct.pack(">HBB", 0, 8, array.ndim) + b"".join(struct.pack(">I", n) for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def fashion_arrays():
    x = images(50, 1, 28)[:, 0]
    y = np.arange(50) % 10
    names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    return dict(zip(names, (x[:40], y[:40], x[40:], y[40:]), strict=True)), x, y


@pytest.mark.parametrize("layout", ["fashion-mnist packed", "fashion-mnist", "FashionMNIST/raw"])
def test_fashion_mnist_in_its_layouts(tmp_path, layout):
    arrays, x, y = fashion_arrays()
    folder, packed = layout.removesuffix(" packed"), layout.endswith("packed")
    put({k + ".gz" * packed: gzip.compress(idx(v)) if packed else idx(v) for k, v in arrays.items()}, tmp_path / folder)
    data = load("fashion-mnist", str(tmp_path))
    assert data.train_x.shape == (40, 1, 28, 28)
    assert np.array_equal(torch.cat([data.train_x, data.test_x])[:, 0].numpy(), x)
    assert torch.cat([data.train_y, data.test_y]).tolist() == y.tolist()


def test_fashion_mnist_is_downloaded_file_by_file(server, tmp_path, monkeypatch):
    arrays, _, y = fashion_arrays()
    packed = {k: gzip.compress(idx(v)) for k, v in arrays.items()}
    names = list(packed)
    put({f"{name}.gz": packed[name] for name in names[:3]}, tmp_path / "fashion-mnist")
    server.content = packed[names[3]]
    last = Remote(server.url.replace("thing.tar.gz", f"{names[3]}.gz"), md5(server.content))
    monkeypatch.setitem(fashion.FILES, names[3], last)
    assert load("fashion-mnist", str(tmp_path)).test_y.tolist() == y[40:].tolist()
    for damaged in (packed[names[3]][:-9], gzip.compress(idx(arrays[names[3]])[:-1]), gzip.compress(b"\0\0"), b"no"):
        (tmp_path / "fashion-mnist" / f"{names[3]}.gz").write_bytes(damaged)
        lab_data.forget()
        with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz is damaged"):
            load("fashion-mnist", str(tmp_path))


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


def test_tiny_imagenet_is_decoded_once(server, tmp_path, monkeypatch):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in tiny_files().items():
            archive.writestr(f"tiny-imagenet-200/{name}", content)
    server.content = buffer.getvalue()
    monkeypatch.setattr(tiny, "TINY", remote(server))
    data = load("tiny-imagenet", str(tmp_path))
    assert (data.train_x.shape, data.test_x.shape) == ((12, 3, 64, 64), (3, 3, 64, 64))
    assert data.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4  # n01, n02, n03
    assert data.test_y.tolist() == [2, 0, 1]
    grey = data.train_x[0].float()
    assert torch.equal(grey[0], grey[1])
    assert (grey[2] - torch.arange(64) * 3).abs().max() < 4  # columns in their place
    assert [int(i) for i in data.train_x[5:, 0, 9, 9].float().round()] == [130, 140, 150, 0, 10, 20, 30]
    assert [int(i) for i in data.test_x[:, 1, 9, 9]] == [200, 210, 220]

    monkeypatch.setattr(tiny, "decode", None)
    lab_data.forget()
    assert torch.equal(load("tiny-imagenet", str(tmp_path)).train_x, data.train_x)
    (tmp_path / "tiny-imagenet-200").rename(tmp_path / "elsewhere")  # the cache is enough
    lab_data.forget()
    assert torch.equal(load("tiny-imagenet", str(tmp_path)).train_x, data.train_x)
    assert len(server.asked) == 1
    before = (tmp_path / "tiny-imagenet-200-uint8" / "train_x.npy").read_bytes()
    data.train_x[0] = 7  # somebody's mistake stays in this process
    assert (tmp_path / "tiny-imagenet-200-uint8" / "train_x.npy").read_bytes() == before


@pytest.mark.nightly
def test_a_disk_that_fills_while_pictures_are_decoded_is_told(tmp_path):
    put(tiny_files(), tmp_path / "tiny-imagenet-200")
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from ausam.lab.problems.catalogue import load;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"  # of 147,456 bytes
        "load('tiny-imagenet', sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    cache = tmp_path / "tiny-imagenet-200-uint8"
    assert f"WriteError: {cache} cannot be written: File too large." in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny-imagenet-200"]


def test_other_pictures_are_decoded_anew_and_bad_ones_named(tmp_path):
    put(tiny_files(), tmp_path / "tiny-imagenet-200")
    load("tiny-imagenet", str(tmp_path))
    put(tiny_files(train=5), tmp_path / "tiny-imagenet-200")
    lab_data.forget()
    assert len(load("tiny-imagenet", str(tmp_path)).train_y) == 15
    for damage, message in (
        ({"train/n02/images/n02_9.JPEG": b"no"}, r"n02_9.JPEG is not a readable picture"),
        ({"train/n02/images/n02_9.JPEG": jpeg(np.zeros((64, 50, 3), np.uint8))}, r"n02_9.JPEG is 50x64 pixels"),
        ({"wnids.txt": b"n01\nn02\nn03\nn04\n"}, r"is not the official Tiny-ImageNet: train/n04/images is empty"),
        ({"wnids.txt": b"n01\nn02\n"}, r"val_annotations.txt names no or other classes"),
    ):
        put(damage, tmp_path / "tiny-imagenet-200")
        lab_data.forget()
        with pytest.raises(ValueError, match=message):
            load("tiny-imagenet", str(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny-imagenet-200", "tiny-imagenet-200-uint8"]


def test_published_files_have_a_checksum_each():
    remotes = [cifar.CIFAR10, cifar.CIFAR100, tiny.TINY, *fashion.FILES.values(), *ett.PUBLISHED.values()]
    assert len({r.digest for r in remotes}) == len({r.url for r in remotes}) == 8
    assert all(len(bytes.fromhex(r.digest)) == {"md5": 16, "sha256": 32}[r.kind] for r in remotes)


# -- augmentation ---------------------------------------------------------------------------------------------------


def slow_crop(image, down, right, margin):
    h, w = image.shape[1:]
    out = torch.zeros_like(image)
    for i in range(h):
        for j in range(w):
            row, column = i + down - margin[0], j + right - margin[1]
            if 0 <= row < h and 0 <= column < w:
                out[:, i, j] = image[:, row, column]
    return out


def slow_cutout(image, row, column, size):
    out = image.clone()
    for i in range(row - size // 2, row - size // 2 + size):
        for j in range(column - size // 2, column - size // 2 + size):
            if 0 <= i < image.shape[1] and 0 <= j < image.shape[2]:
                out[:, i, j] = 0
    return out


SHAPES = [(3, 16, 16), (1, 8, 12), (2, 9, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_augmentation_against_a_slow_twin(shape):
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (40, *shape), generator=rng, dtype=torch.uint8)
    margin = (2, 3)
    down, right = torch.randint(0, 5, (40,), generator=rng), torch.randint(0, 7, (40,), generator=rng)
    which = torch.rand(40, generator=rng) < 0.5
    row, column = torch.randint(0, shape[1], (40,), generator=rng), torch.randint(0, shape[2], (40,), generator=rng)
    mean, std = tuple(100.0 + c for c in range(shape[0])), tuple(50.0 + c for c in range(shape[0]))
    normal = augment.normalise(x, mean, std)
    for size in (4, 5):
        holes = augment.cut_out(normal, row, column, size)
        for i in range(40):
            assert torch.equal(holes[i], slow_cutout(normal[i], int(row[i]), int(column[i]), size))
    crops, flips = augment.crop(x, down, right, margin), augment.flip(x, which)
    assert crops.dtype == flips.dtype == torch.uint8
    for i in range(40):
        assert torch.equal(crops[i], slow_crop(x[i], int(down[i]), int(right[i]), margin))
        mirrored = torch.stack([x[i, :, :, shape[2] - 1 - j] for j in range(shape[2])], -1)
        assert torch.equal(flips[i], mirrored if which[i] else x[i])
        for c in range(shape[0]):
            assert torch.equal(normal[i, c], (x[i, c].float() - mean[c]) / std[c])


@pytest.mark.parametrize("kind", ["none", "standard", "cutout"])
def test_the_whole_augmentation_against_a_slow_twin(kind):
    x = torch.from_numpy(images(64, 3, 16))
    mean, std = (120.0, 110.0, 100.0), (60.0, 61.0, 62.0)
    augmented = augment.augment_images(x, kind, mean, std, generator(5, 1))
    rng = generator(5, 1)  # the same draws, in the same order
    down, right = (torch.randint(0, 5, (64,), generator=rng).tolist() for _ in range(2))
    mirrored = torch.randint(0, 2, (64,), generator=rng).tolist()
    row, column = (torch.randint(0, 16, (64,), generator=rng).tolist() for _ in range(2))
    cut = torch.randint(0, 2, (64,), generator=rng).tolist()
    for i in range(64):
        image = x[i]
        if kind != "none":
            image = slow_crop(image, down[i], right[i], (2, 2))
            image = image.flip(2) if mirrored[i] else image
        image = (image.float() - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        if kind == "cutout" and cut[i]:
            image = slow_cutout(image, row[i], column[i], 8)
        assert torch.equal(augmented[i], image)
    # every offset, both directions and every centre occur
    assert {*down} == {*right} == set(range(5))
    assert {*mirrored} == {*cut} == {0, 1}


def test_cifar_is_padded_by_4_and_cut_by_16():
    x = torch.full((400, 3, 32, 32), 255, dtype=torch.uint8)
    standard = augment.augment_images(x, "standard", (0.0,) * 3, (255.0,) * 3, generator(0))
    black = [int((image[0].sum(1) == 0).sum()) for image in standard]
    assert {*black} == {0, 1, 2, 3, 4}
    holes = augment.augment_images(x, "cutout", (0.0,) * 3, (255.0,) * 3, generator(0))
    most = (standard - holes).sum((1, 2, 3)) / 3
    assert most.max() == 16 * 16
    assert most[most > 0].min() < 12 * 12  # a hole at a corner lies half outside
    assert 160 < (most > 0).sum() < 240  # every second image has one


def test_a_pass_is_augmented_by_seed_epoch_and_batch_alone(tmp_path):
    x = torch.from_numpy(images(40, 3, 16))
    y = torch.arange(40) % 4
    data = ImageSet("mine", x, y, x, y, 4, (120.0,) * 3, (60.0,) * 3, augment="cutout")

    def a_pass(epoch, seed=0):
        sampler = SelectiveBatchSampler(40, 16, Full(), seed=3)  # the same order in each
        return list(data.batches(sampler, epoch, seed))

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again, later, other = a_pass(0), a_pass(0), a_pass(1), a_pass(0, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [len(index) for _, _, index in first] == [16, 16, 8]
    for (xa, ya, ia), (xb, _, _), (xc, _, ic), (xd, _, _) in zip(first, again, later, other, strict=True):
        assert torch.equal(xa, xb)
        assert torch.equal(ia, ic)
        assert torch.equal(ya, y[ia])
        assert not torch.equal(xa, xc)
        assert not torch.equal(xa, xd)
    same = replace(data, train_x=x[:1].expand(40, -1, -1, -1))
    one, two, _ = (x for x, _, _ in same.batches(SelectiveBatchSampler(40, 16, Full()), 0, 0))
    assert not torch.equal(one, two)
    assert torch.equal(torch.cat([a for a, _ in data.test_batches(size=7)]), data.normalise(x))
    assert torch.equal(torch.cat([b for _, b in data.plain_batches(size=7)]), y)


# -- parts and noise ------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"test_size is -1. It must be a whole number >= 0"):
        resolve(test_size=-1)


def test_runs_share_one_loading(tmp_path):
    files, _, _ = cifar10_files()
    put(files, tmp_path / "cifar-10-batches-bin")
    assert load("cifar10", str(tmp_path)) is load("cifar10", str(tmp_path))
    assert load("cifar10", str(tmp_path)) is not load("cifar10", str(tmp_path), 0.1)


def test_settings_that_suit_the_data_are_settings():
    for name, entry in DATASETS.items():
        config = resolve(data=name)
        assert all(getattr(config, k) == v for k, v in entry.settings.items())
        assert config.model in MODELS
    assert resolve(data="cifar10").augment == resolve(data="cifar100").augment == "cutout"
    assert resolve(data="cifar10", augment="none", epochs=3).augment == "none"
    with pytest.raises(ValueError, match=r'augment is .crop.\. It must be "none", "standard" or "cutout"'):
        resolve(augment="crop")


def test_an_augmented_run_resumes_bit_for_bit(tmp_path):
    files, _, _ = cifar10_files()
    put(files, tmp_path / "cifar-10-batches-bin")
    config = resolve(
        data="cifar10",
        data_dir=str(tmp_path),
        model="resnet-tiny",
        epochs=3,
        batch_size=32,
        policy="ausampling",
        threads=1,
    )
    assert config.augment == "cutout"
    list(train(config, tmp_path / "whole"))
    rows = train(config, tmp_path / "parts")
    next(rows)
    rows.close()
    list(train(config, tmp_path / "parts", resume=True))
    digests = [json.loads((tmp_path / k / "result.json").read_text())["weights_sha256"] for k in ("whole", "parts")]
    assert digests[0] == digests[1]
    plain = resolve(**{**config.__dict__, "augment": "none"})
    list(train(plain, tmp_path / "plain"))
    assert json.loads((tmp_path / "plain" / "result.json").read_text())["weights_sha256"] != digests[0]


# -- the user's own -------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_the_example_of_the_documentation_runs(here, capsys):
    text = (DOCS / "data.md").read_text()
    (here / "mine.py").write_text(text.split("```python\n")[1].split("```")[0])
    command = shlex.split(text.split("```console\n")[1].split("```")[0])
    assert command[0] == "ausam"
    assert main(command[1:]) == 0
    results = json.loads((here / "runs" / "mine" / "results.json").read_text())
    assert [row["seeds"] for row in results["rows"]] == [[0, 1, 2]] * 3
    assert results["data"] == {"train": 400, "test": 200, "classes": 2}


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


SQUARES = "from test_data import Squares\ndef make(): return Squares(30), Squares(12, 1)\n"


@pytest.fixture
def squares(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_data", sys.modules[__name__])
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
    tested = [(round(float(a.mean())), int(b)) for x, y in squares.test_batches(5) for a, b in zip(x, y, strict=True)]
    assert tested == [(i, (i + 1) % 3) for i in range(12)]
    assert [int(b) for _, y in squares.plain_batches(5) for b in y] == squares.train_y.tolist()


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
    for _ in still.plain_batches():
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
        "import torch\nfrom ausam.lab.problems.images import ImageSet\n"
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
def three(): return 1, 2, 3
class Stream(IterableDataset):
    def __iter__(self): return iter([])
class Counted(Stream):
    def __len__(self): return 3
def stream(): return Stream(), Stream()
def counted(): return Counted(), Counted()
def two(a, b): return a, b
def empty(): return [], []
def single(): return [torch.zeros(2)], [torch.zeros(2)]
def dicts(): return [{"x": 1}], [{"x": 1}]
def text(): return [("a", 1)], [("a", 1)]
def raw(): return [(torch.zeros(1, 8, 8, dtype=torch.uint8), 1)], [(torch.zeros(1, 8, 8), 1)]
def regression(): return [(torch.zeros(2), 0.5)], [(torch.zeros(2), 0.5)]
def onehot(): return [(torch.zeros(2), torch.tensor([0, 1]))], [(torch.zeros(2), 0)]
def negative(): return [(torch.zeros(2), -1)], [(torch.zeros(2), 0)]
def vectors(): return [TensorDataset(torch.zeros(4, 5), torch.tensor([0, 1, 0, 1]))] * 2
def one(classes): return nn.Linear(2, classes)
def nothing(): return None
def wide(classes, channels): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))
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
        (["--data", "absent:make"], 'data set "absent:make": there is no module absent in'),
        (["--data", "absent.deep:make"], "there is no module absent.deep in"),
        (["--data", "mine_bad:maek"], "has no function maek. It has: Counted, Stream, counted, dicts, empty, good"),
        (["--data", "mine_bad:value"], "value is an int, not a function. Write a function that returns it."),
        (["--data", "mine_bad:network"], 'data set "mine_bad:network": network is a Sequential, not a function.'),
        (["--model", "mine_bad:network"], 'model "mine_bad:network": network is a Sequential, not a function.'),
        (["--data", "mine_bad.value"], '"mine_bad.value" is not a data set: did you mean mine_bad:value?'),
        (["--model", "mine_bad.wide"], '"mine_bad.wide" is not a model: did you mean mine_bad:wide?'),
        (["--model", "mine_bad.py"], "did you mean mine_bad.py:FUNCTION? Its functions: "),
        (["--data", "mine_single.py"], '"mine_single.py" is not a data set: did you mean mine_single.py:data?'),
        (["--data", "absent.py"], "did you mean absent.py:FUNCTION?"),
        (["--data", "mine_bad:"], '"mine_bad:" is not a data set: write module:function, e.g. mine:make'),
        (["--data", ":good"], '":good" is not a data set'),
        (["--data", "mine_broken:f"], "importing mine_broken failed: No module named 'not_installed'"),
        (["--data", "mine_bad:number"], "mine_bad:number returned a int. Return a pair (train_dataset, test_dataset)"),
        (["--data", "mine_bad:three"], "returned a tuple of 3. Return a pair"),
        (["--data", "mine_bad:stream"], "Selection needs access by index"),
        (["--data", "mine_bad:counted"], "is a Counted. Selection needs access by index"),
        (
            ["--data", "mine_bad:two"],
            ("mine_bad:two takes (a, b), but it is called without arguments. Give each a default."),
        ),
        (["--data", "mine_bad:empty"], "The training set of mine_bad:empty is empty."),
        (["--data", "mine_bad:single"], "returns a Tensor of shape (2,) as a sample. Return a pair (x, y)"),
        (["--data", "mine_bad:dicts"], "returns a dict as a sample"),
        (["--data", "mine_bad:text"], "returns a str as x. Convert it to a tensor"),
        (["--data", "mine_bad:raw"], "returns bytes as x. Convert them to floats"),
        (["--data", "mine_bad:regression"], "returns a float as y. Return the number of a class"),
        (["--data", "mine_bad:onehot"], "returns a Tensor of shape (2,) as y"),
        (["--data", "mine_bad:negative"], "Use one whole number >= 0 per sample"),
        (["--data", "mine_bad:good", "--augment", "cutout"], "which do their own augmentation. Use --augment none."),
        (
            ["--data", "mine_bad:good", "--train-size", "5"],
            "train_size is 5, but mine_bad:good has only 4 such samples",
        ),
        (["--data", "mine_bad:vectors"], "resnet-tiny cannot take a batch of shape (2, 5)"),
        (
            ["--model", "mine_bad:one"],
            'model "mine_bad:one" takes (classes), but it is called with (classes, channels)',
        ),
        (["--model", "mine_bad:nothing"], 'model "mine_bad:nothing" returned a NoneType. Return a torch.nn.Module'),
        (["--model", "mine_bad:wide"], "returns shape (2, 11) for a batch of 2, but the data needs (2, 10)"),
        (["--model", "mine_bad:pair"], "returns a tuple for a batch of 2"),
        (["--model", "absent:net"], 'model "absent:net": there is no module absent in'),
        (["--workers", "-1"], "workers is -1. It must be a whole number >= 0."),
    ],
)
def test_mistakes_in_own_data_and_networks_are_one_clear_line(here, capsys, flags, message):
    (here / "mine_bad.py").write_text(BAD)
    (here / "mine_broken.py").write_text("import not_installed\n")
    (here / "mine_single.py").write_text("import not_installed\ndef data(): pass\ndef _own(): pass\n")
    assert main(["train", "--epochs", "1", "--threads", "1", *flags, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("ausam: ")
    assert message in error
    assert not (here / "run").exists()


def test_a_mistake_costs_no_download(here, capsys, monkeypatch):
    monkeypatch.setattr(download, "fetch", None)
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


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PLENTY", 100_000)
    for name, make in (("trap.tar.gz", tar_gz), ("trap.zip", zipped)):
        path = tmp_path / name
        for size, fine in ((90_000, True), (10_000_000, False)):  # zeros: both pack to a hundredth and less
            path.write_bytes(make({"zeros": bytes(size)}, "inside"))
            out = tmp_path / f"{name}-{size}"
            out.mkdir()
            if fine:
                assert (unpack(path, out, "inside") / "zeros").stat().st_size == size
                continue
            with pytest.raises(DownloadError, match=r"was not unpacked: its .* bytes would become 10,000,0"):
                unpack(path, out, "inside")
            assert not list(out.iterdir())
