"""Downloads: once, verified, and in place whole or not at all."""

import pytest

from ausam_lab.cli.main import main
from ausam_lab.data import sources
from ausam_lab.data.sources import DownloadError, Remote, fetch, folder_of
from tests.lab.data.archives import tar_gz, zipped

CONTENT = bytes(range(256)) * 1000


def test_a_file_is_downloaded_once_and_announced_in_a_line(published, tmp_path, capsys):
    remote = published.remote(CONTENT)
    path = fetch(remote, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "thing.tar.gz"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["thing.tar.gz"]
    assert capsys.readouterr().err == f"Downloading {remote.url}\n"
    published.withdraw()
    assert fetch(remote, path.parent) == path


def test_a_wrong_or_missing_file_is_refused_and_nothing_is_placed(published, tmp_path):
    remote = published.remote(CONTENT)
    with pytest.raises(DownloadError, match=f"its MD5 is {remote.md5}, not {'0' * 32}"):
        fetch(Remote(remote.url, "0" * 32), tmp_path)
    published.withdraw()
    with pytest.raises(DownloadError, match="could not be downloaded"):
        fetch(remote, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_put_there_by_hand_is_checked(published, tmp_path):
    remote = published.remote(CONTENT)
    published.withdraw()
    (tmp_path / "thing.tar.gz").write_bytes(b"other")
    with pytest.raises(DownloadError, match=r"thing\.tar\.gz is incomplete or not the published file.* Delete it"):
        fetch(remote, tmp_path)
    (tmp_path / "thing.tar.gz").write_bytes(CONTENT)
    fetch(remote, tmp_path)


def test_without_a_network_it_says_what_to_put_where(tmp_path, capsys, monkeypatch):
    gone = Remote("http://127.0.0.1:1/cifar-10-binary.tar.gz", "0" * 32)
    monkeypatch.setitem(sources.REMOTES, "cifar10", gone)
    assert main(["train", "--data", "cifar10", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "cifar-10-binary.tar.gz could not be downloaded" in error
    assert f"download {gone.url} on another machine and put it at {tmp_path / 'cifar-10-binary.tar.gz'}." in error


@pytest.mark.parametrize(("make", "name"), [(tar_gz, "thing.tar.gz"), (zipped, "thing.zip")])
def test_an_archive_is_unpacked_into_its_folder(published, tmp_path, make, name):
    remote = published.remote(make({"a.txt": b"text"}, "inside"), name)
    folder = folder_of(remote, str(tmp_path), "inside")
    assert (folder / "a.txt").read_bytes() == b"text"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inside", name]
    published.withdraw()
    assert folder_of(remote, str(tmp_path), "inside") == folder
