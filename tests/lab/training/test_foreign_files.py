"""Files that somebody made: images, archives and weights that would hang or end in a traceback."""

import os
import struct
import zipfile
import zlib

import pytest
import torch
from torch import nn

from ausam_lab.data.download import DownloadError, unpack
from ausam_lab.training import weights
from tests.lab.helpers import load


def images(folder):
    from PIL import Image

    for which in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / which / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / which / name / "a.png")
    return folder


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_among_images_is_refused(tmp_path):
    folder = images(tmp_path)
    os.mkfifo(folder / "train" / "cat" / "b.png")
    with pytest.raises(ValueError, match=r"b.png is a pipe or a device"):
        load(f"folder:{folder}@8")


def test_an_image_of_60000_pixels_is_refused(tmp_path):
    folder = images(tmp_path)
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    (folder / "train" / "cat" / "b.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    with pytest.raises(ValueError, match=r"b.png is not a readable image .*Repair or remove it"):
        load(f"folder:{folder}")


@pytest.mark.parametrize(("at", "value"), [(6, 1), (8, 97)], ids=["encrypted", "compressed oddly"])
def test_an_archive_that_cannot_be_read_is_named(tmp_path, at, value):
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("inside/a", "text")
    data = bytearray(archive.read_bytes())
    directory = data.index(b"PK\x01\x02")
    data[at] = data[directory + at + 2] = value  # the flags or the method of the member, in both headers
    archive.write_bytes(bytes(data))
    with pytest.raises(DownloadError, match=r"a.zip cannot be unpacked .*Delete it"):
        unpack(archive, tmp_path, "inside")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda w: w.to_sparse(), "stored as sparse_coo"),
        (lambda w: w.to("meta"), "a meta tensor"),
        (lambda w: w.to(torch.complex64), "complex"),
        (lambda w: w > 0, "of type bool"),
        (lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8), "quantised"),
    ],
    ids=["sparse", "meta", "complex", "bool", "quantised"],
)
@pytest.mark.filterwarnings("ignore")
def test_weights_that_cannot_be_copied_are_refused_and_nothing_changes(tmp_path, make, what):
    torch.save({"weight": make(torch.ones(2, 3)), "bias": torch.ones(2)}, tmp_path / "w.pt")
    model = nn.Linear(3, 2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"(weight is {what})|(cannot be read)"):
        weights.start_from(model, str(tmp_path / "w.pt"))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


class Anything:
    pass


def test_a_pickle_is_refused_without_advice_to_execute_it(tmp_path):
    torch.save({"weight": torch.ones(2, 3), "more": Anything()}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="is not executed") as refused:
        weights.start_from(nn.Linear(3, 2), str(tmp_path / "w.pt"))
    assert "weights_only" not in str(refused.value)
