"""Tiny archives in the official formats, and an address for them."""

import hashlib
import io
import tarfile
import zipfile

import numpy as np

from ausam_lab.data.sources import Remote


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


class Published:
    """A folder whose files have an address."""

    def __init__(self, folder):
        self.folder = folder

    def remote(self, content, name="thing.tar.gz"):
        (self.folder / name).write_bytes(content)
        return Remote((self.folder / name).as_uri(), md5(content))

    def withdraw(self):
        """From now on a download fails."""
        for path in self.folder.iterdir():
            path.unlink()
