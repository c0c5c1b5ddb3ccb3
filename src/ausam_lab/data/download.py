"""Published files: downloaded once, checked against their checksum, and put in place atomically."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import wrap_file

from ausam_lab.records.files import RunError

TIMEOUT = 30.0  # seconds without a byte


class DownloadError(RunError):
    """A file could not be downloaded, or is not the published one."""


@dataclass(frozen=True)
class Remote:
    """A published file: its address and its checksum."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


def fetch(remote: Remote, folder: Path) -> Path:
    """The file in ``folder``, downloaded if it is missing; a DownloadError unless it is the published one."""
    target = folder / remote.name
    if target.exists():
        _verify(target, remote, target)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{remote.name}.", dir=folder) as temporary:
        part = Path(temporary) / remote.name
        try:
            _download(remote, part)
        except (OSError, http.client.HTTPException) as error:
            raise DownloadError(
                f"{remote.name} could not be downloaded ({error}). Run the same command again, or download "
                f"{remote.url} on another machine and put it at {target}."
            ) from error
        _verify(part, remote, target)
        part.replace(target)
    return target


def _download(remote: Remote, path: Path) -> None:
    console = Console(stderr=True)
    console.print(f"Downloading {remote.url}", highlight=False, soft_wrap=True)
    request = urllib.request.Request(remote.url, headers={"User-Agent": "ausam"})  # noqa: S310  (our own addresses)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response, path.open("wb") as file:  # noqa: S310
        size = int(response.headers.get("Content-Length", 0))
        with wrap_file(response, size, console=console, disable=not console.is_terminal) as shown:
            shutil.copyfileobj(shown, file)


def _verify(path: Path, remote: Remote, target: Path) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if actual != remote.md5:
        raise DownloadError(
            f"{target} is incomplete or not the published file: its MD5 is {actual}, not {remote.md5}. Delete it if it "
            f"exists and try again, or put {remote.url} there."
        )


def folder_of(remote: Remote, data_dir: str, inside: str, needed: list[str]) -> Path:
    """The folder DATA_DIR/inside of an archive: as found there, or downloaded and unpacked."""
    folder = Path(data_dir) / inside
    if not folder.exists():
        archive = fetch(remote, Path(data_dir))
        with tempfile.TemporaryDirectory(prefix=f".{inside}.", dir=data_dir) as temporary:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as content:
                    content.extractall(temporary)  # noqa: S202  (its checksum is the published one)
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(temporary, filter="data")
            with contextlib.suppress(OSError):  # another process was faster, and its folder is as good
                (Path(temporary) / inside).replace(folder)
    if missing := [name for name in needed if not (folder / name).exists()]:
        raise DownloadError(
            f"{folder} lacks {', '.join(missing)}. Add them from {remote.url}, or delete the folder: it is then "
            "downloaded again."
        )
    return folder
