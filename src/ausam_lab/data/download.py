"""Downloads: resumed, verified, unpacked inside their folder only, and put in place atomically."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import http.client
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import BinaryIO

from rich import progress as rich
from rich.console import Console

from ausam_lab.records.files import written
from ausam_lab.records.locks import file_lock

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
GROWTH, PLENTY = 50, 100_000_000  # an archive that grows by more than this factor, to more than these bytes, is a bomb
LONGEST = 1024  # bytes in the name of a member; much longer names break unpacking and the cleanup after it
BAD_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.ENOENT)


class DownloadError(RuntimeError):
    """A file could not be downloaded, or is not the published one."""


@dataclass(frozen=True)
class Remote:
    """A published file: its address and its digest, MD5 or SHA-256."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]

    @property
    def kind(self) -> str:
        """The kind of digest, inferred from its length."""
        return "md5" if len(self.digest) == 32 else "sha256"


def fetch(remote: Remote, folder: Path) -> Path:
    """The verified file in ``folder``, downloaded if it is missing; an interrupted download continues."""
    target = folder / remote.name
    if target.exists():
        if (actual := digest(target, remote.kind)) != remote.digest:
            raise DownloadError(
                f"{target} is not the published file: its {remote.kind} is {actual}, not {remote.digest}. "
                f"Delete it, or replace it with {remote.url}."
            )
        return target
    part = folder / f"{remote.name}.part"
    with file_lock(folder / f".{remote.name}.lock", wait=True):  # runs that start together download once
        if not target.exists():  # otherwise another process downloaded it while this one waited
            _complete(remote, part, target)
            part.replace(target)
    return target


def _complete(remote: Remote, part: Path, target: Path) -> None:
    """Download the missing rest of a partial file; a DownloadError if that fails or the digest is wrong."""
    with part.open("a+b") as file:
        try:
            resumed = _download(remote, file)
            if (actual := _digest(file, remote.kind)) != remote.digest and resumed:
                file.truncate(0)  # the beginning came from a different file: start again from scratch
                _download(remote, file)
                actual = _digest(file, remote.kind)
        except (OSError, http.client.HTTPException) as error:
            why = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
            raise DownloadError(
                f"{remote.name} could not be downloaded ({why or type(error).__name__}). "
                "Run the same command again to continue where it stopped, "
                f"or download {remote.url} on another machine and put it at {target}."
            ) from error
        if actual != remote.digest:
            file.truncate(0)
            raise DownloadError(
                f"{remote.url} is not the published file: its {remote.kind} is {actual}, not {remote.digest}. "
                f"It was deleted. If you have the right file, put it at {target}."
            )


def unpack(archive: Path, folder: Path, inside: str) -> Path:
    """Unpack a tar or zip file whose content is one folder ``inside``, and move that into ``folder`` atomically.

    Nothing is written outside the folder: absolute names, "..", links and devices are refused beforehand.
    """
    target = folder / inside
    with tempfile.TemporaryDirectory(prefix=f".{inside}.", dir=folder) as temporary:
        try:
            if zipfile.is_zipfile(archive):
                _unzip(archive, Path(temporary))
            else:
                _untar(archive, Path(temporary))
        except DownloadError:
            raise
        # RuntimeError: a member is encrypted; NotImplementedError, which is one too: an unknown compression
        except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
            raise DownloadError(
                f"{archive} cannot be unpacked ({error}). Delete it, and it will be downloaded again."
            ) from None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in BAD_NAME:
                with written(target):
                    raise
            why = error.strerror if isinstance(error, OSError) else error
            raise DownloadError(
                f"{archive} was not unpacked: a member has a name that is not valid on this system ({why}). "
                "Do not use this file."
            ) from None
        made = Path(temporary) / inside
        if not made.is_dir():
            raise DownloadError(f"{archive} has no folder {inside}. Delete it, and it will be downloaded again.")
        try:
            made.replace(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster, and its folder is as good
                raise
    return target


def folder_of(remote: Remote, data_dir: str, inside: str, needed: list[str]) -> Path:
    """The folder DATA_DIR/inside with all required files: as found there, or downloaded and unpacked."""
    folder = Path(data_dir) / inside
    if not folder.exists():
        unpack(fetch(remote, Path(data_dir)), Path(data_dir), inside)
    if missing := [name for name in needed if not (folder / name).exists()]:
        raise DownloadError(
            f"{folder} lacks {', '.join(missing)}. Add them from {remote.url}, or delete the folder, and it will be "
            "downloaded again."
        )
    return folder


def digest(path: Path, kind: str) -> str:
    """MD5 or SHA-256 of a file's content, as published: a guard against damage."""
    with path.open("rb") as file:
        return _digest(file, kind)


def _digest(file: BinaryIO, kind: str) -> str:
    file.seek(0)
    hasher = hashlib.new(kind, usedforsecurity=False)
    while chunk := file.read(CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


# -- downloading -----------------------------------------------------------------------------------------------------


def _download(remote: Remote, file: BinaryIO) -> bool:
    """Append the missing rest; true if the file had a beginning. Retries as long as each attempt brings bytes."""
    had = beginning = file.seek(0, 2)
    with _shown(remote) as show:
        while True:
            try:
                if _append(remote, file, show):
                    return beginning > 0
                broken: Exception = OSError("the connection was lost")
            except urllib.error.HTTPError:
                raise
            except (OSError, http.client.HTTPException) as error:
                broken = error
            now = file.seek(0, 2)
            if now <= had:
                raise broken
            had = now


def _append(remote: Remote, file: BinaryIO, show: Callable[[int, int | None], None]) -> bool:
    """Request the rest of the file once; true if it is then complete."""
    start = file.seek(0, 2)
    headers = {"User-Agent": "ausam"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(remote.url, headers=headers)  # noqa: S310  (addresses are this package's own)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return True  # nothing is missing; the checksum will tell if there is too much
        raise
    with answer:
        said = str(answer.headers.get("Content-Range", ""))
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT or not said.startswith(f"bytes {start}-"):
            file.truncate(0)  # a server without support for ranges sends the whole file
            start = 0
            if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
                raise OSError(f'the server answered with the wrong range "{said}"')
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        show(start, total)
        while chunk := answer.read(CHUNK):
            start += file.write(chunk)
            show(start, total)
        file.flush()
        return total is None or start == total


@contextlib.contextmanager
def _shown(remote: Remote) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal, one line elsewhere, on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"Downloading {remote.url}", highlight=False, soft_wrap=True)
        yield lambda done, total: None  # noqa: ARG005
        return
    columns = rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn()
    with rich.Progress(rich.TextColumn(remote.name), rich.BarColumn(), *columns, console=console) as bar:
        task = bar.add_task(remote.name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# -- unpacking -------------------------------------------------------------------------------------------------------


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            _check(archive, member.name, ordinary=member.isreg() or member.isdir())
        _check_size(archive, sum(member.size for member in members))
        tar.extractall(folder, members, filter="data")


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as content:
        members = content.infolist()
        for member in members:
            kind = stat.S_IFMT(member.external_attr >> 16)
            _check(archive, member.filename, ordinary=kind in (0, stat.S_IFREG, stat.S_IFDIR))
        _check_size(archive, sum(member.file_size for member in members))
        content.extractall(folder)  # noqa: S202  (every name was checked)


def _check(archive: Path, name: str, ordinary: bool) -> None:
    windows = PureWindowsPath(name)
    if len(name.encode(errors="replace")) > LONGEST or any(
        len(p.encode(errors="replace")) > 255 for p in windows.parts
    ):
        raise DownloadError(f'{archive} was not unpacked: the name "{name[:40]}..." is too long. Do not use this file.')
    outside = PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts
    if outside or not ordinary:
        why = "leaves the folder" if outside else "is a link or a device"
        raise DownloadError(f'{archive} was not unpacked: its member "{name}" {why}. Do not use this file.')


def _check_size(archive: Path, size: int) -> None:
    packed = archive.stat().st_size
    if size > max(PLENTY, GROWTH * packed):
        raise DownloadError(
            f"{archive} was not unpacked: its {packed:,} bytes would become {size:,}, far too many for a data set. "
            "Do not use this file."
        )
