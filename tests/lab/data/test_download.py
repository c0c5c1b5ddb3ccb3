"""Downloads over the loopback: once, verified, and in place whole or not at all."""

import pytest

from ausam_lab.cli.main import main
from ausam_lab.data import sources
from ausam_lab.data.sources import DownloadError, Remote, fetch, folder_of
from tests.lab.data.archives import md5, remote, tar_gz, zipped


def test_a_file_is_downloaded_once_and_announced_in_a_line(server, tmp_path, capsys):
    path = fetch(remote(server), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "thing.tar.gz"
    assert path.read_bytes() == server.content
    assert [p.name for p in path.parent.iterdir()] == ["thing.tar.gz"]
    assert capsys.readouterr().err == f"Downloading {server.url}\n"
    assert fetch(remote(server), path.parent) == path
    assert server.asked == 1


def test_a_wrong_or_broken_file_is_refused_and_nothing_is_placed(server, tmp_path):
    with pytest.raises(DownloadError, match=f"its MD5 is {md5(server.content)}, not {'0' * 32}"):
        fetch(Remote(server.url, "0" * 32), tmp_path)
    server.break_after = 100_000
    with pytest.raises(DownloadError, match=r"thing.tar.gz is incomplete"):
        fetch(remote(server), tmp_path)
    server.break_after, server.status = None, 404
    with pytest.raises(DownloadError, match="HTTP Error 404"):
        fetch(remote(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_put_there_by_hand_is_checked(server, tmp_path):
    (tmp_path / "thing.tar.gz").write_bytes(b"other")
    with pytest.raises(DownloadError, match=r"thing\.tar\.gz is incomplete or not the published file.* Delete it"):
        fetch(remote(server), tmp_path)
    (tmp_path / "thing.tar.gz").write_bytes(server.content)
    fetch(remote(server), tmp_path)
    assert server.asked == 0


def test_without_a_network_it_says_what_to_put_where(tmp_path, capsys, monkeypatch):
    gone = Remote("http://127.0.0.1:1/cifar-10-binary.tar.gz", "0" * 32)
    monkeypatch.setitem(sources.REMOTES, "cifar10", gone)
    assert main(["train", "--data", "cifar10", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "cifar-10-binary.tar.gz could not be downloaded" in error
    assert f"download {gone.url} on another machine and put it at {tmp_path / 'cifar-10-binary.tar.gz'}." in error


@pytest.mark.parametrize(("make", "name"), [(tar_gz, "thing.tar.gz"), (zipped, "thing.zip")])
def test_an_archive_is_unpacked_into_its_folder(server, tmp_path, make, name):
    server.content = make({"a.txt": b"text"}, "inside")
    folder = folder_of(remote(server, name), str(tmp_path), "inside", ["a.txt"])
    assert (folder / "a.txt").read_bytes() == b"text"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inside", name]
    with pytest.raises(DownloadError, match=r"inside lacks b.txt. Add them from http"):
        folder_of(remote(server, name), str(tmp_path), "inside", ["a.txt", "b.txt"])
    assert server.asked == 1
