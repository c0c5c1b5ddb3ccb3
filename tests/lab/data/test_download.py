"""Downloads over the loopback, and archives that are unpacked in their folder or not at all."""

import os
import random
import tarfile
import zipfile

import pytest

from ausam_lab.cli.main import main
from ausam_lab.data import download
from ausam_lab.data.download import DownloadError, Remote, fetch, unpack
from ausam_lab.data.sources import cifar
from tests.lab.data.archives import md5, remote, tar_gz, zipped


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


# -- unpacking -----------------------------------------------------------------------------------------------------


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
