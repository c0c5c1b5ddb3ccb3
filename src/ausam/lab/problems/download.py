"""Files from the network: resumed, verified, unpacked inside their folder only, and put in place at once."""

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

from ausam.lab.io.files import written
from ausam.lab.io.locks import held

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
GROWTH, PLENTY = 50, 100_000_000  # an archive that unpacks to more times its size, and to more bytes, is a trap
LONGEST = 1024  # bytes of the name of a member; far longer ones break the unpacking, and the tidying up after it
BAD_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.ENOENT)


class DownloadError(RuntimeError):
    """A file could not be had, or is not what was published."""


@dataclass(frozen=True)
class Remote:
    """A published file: where it is and what its digest must be, MD5 or SHA-256."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rpartition("/")[2]

    @property
    def kind(self) -> str:
        """Which digest it is: by its length."""
        return "md5" if len(self.digest) == 32 else "sha256"


def fetch(remote: Remote, folder: Path) -> Path:
    """The verified file in ``folder``, downloaded if it is not there; an interrupted download continues."""
    target = folder / remote.name
    if target.exists():
        if (found := digest(target, remote.kind)) != remote.digest:
            raise DownloadError(
                f"{target} is not the published file: its {remote.kind} is {found}, not {remote.digest}. "
                f"Delete it, or replace it by {remote.url}."
            )
        return target
    part = folder / f"{remote.name}.part"
    with held(folder / f".{remote.name}.lock", wait=True):  # runs that are started together download once
        if not target.exists():  # else another process was faster while this one waited
            _complete(remote, part, target)
            part.replace(target)
    return target


def _complete(remote: Remote, part: Path, target: Path) -> None:
    """Download what is missing of the part; a DownloadError if that fails or is not what was published."""
    with part.open("a+b") as file:
        try:
            resumed = _download(remote, file)
            if (found := _digest(file, remote.kind)) != remote.digest and resumed:
                file.truncate(0)  # the beginning was from another file; once more, from scratch
                _download(remote, file)
                found = _digest(file, remote.kind)
        except (OSError, http.client.HTTPException) as error:
            why = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
            raise DownloadError(
                f"{remote.name} could not be downloaded ({why or type(error).__name__}). "
                "Run the same command to continue where it stopped; "
                f"or get {remote.url} on another machine and put it at {target}."
            ) from error
        if found != remote.digest:
            file.truncate(0)
            raise DownloadError(
                f"{remote.url} is not the published file: its {remote.kind} is {found}, not {remote.digest}. "
                f"It was thrown away. If you have the right one, put it at {target}."
            )


def unpack(archive: Path, folder: Path, inside: str) -> Path:
    """Unpack a tar or zip file whose content is one folder ``inside``, and put that into ``folder`` at once.

    Nothing may leave the folder: absolute names, "..", links and devices are refused before anything is written.
    """
    target = folder / inside
    with tempfile.TemporaryDirectory(prefix=f".{inside}.", dir=folder) as temporary:
        try:
            if zipfile.is_zipfile(archive):
                _unzip(archive, Path(temporary))
            else:
                _untar(archive, Path(temporary))
        except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DownloadError(
                f"{archive} cannot be unpacked ({error}). Delete it to have it downloaded again."
            ) from None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in BAD_NAME:
                with written(target):
                    raise
            why = error.strerror if isinstance(error, OSError) else error
            raise DownloadError(
                f"{archive} was not unpacked: a member has a name that no file can have here ({why}). "
                "Do not use this file."
            ) from None
        made = Path(temporary) / inside
        if not made.is_dir():
            raise DownloadError(f"{archive} holds no folder {inside}. Delete it to have it downloaded again.")
        try:
            made.replace(target)
        except OSError:
            if not target.is_dir():  # else another process was faster; its folder is as good
                raise
    return target


def folder_of(remote: Remote, data_dir: str, inside: str, needed: list[str]) -> Path:
    """The folder DATA_DIR/inside with all the files that are needed: as found there, else downloaded and unpacked."""
    folder = Path(data_dir) / inside
    if not folder.exists():
        unpack(fetch(remote, Path(data_dir)), Path(data_dir), inside)
    if missing := [name for name in needed if not (folder / name).exists()]:
        raise DownloadError(
            f"{folder} lacks {', '.join(missing)}. Complete it from {remote.url}, or delete it to have it downloaded."
        )
    return folder


def digest(path: Path, kind: str) -> str:
    """MD5 or SHA-256 of a file's content: what the publishers give, a guard against damage."""
    with path.open("rb") as file:
        return _digest(file, kind)


def _digest(file: BinaryIO, kind: str) -> str:
    file.seek(0)
    found = hashlib.new(kind, usedforsecurity=False)
    while chunk := file.read(CHUNK):
        found.update(chunk)
    return found.hexdigest()


# -- downloading -----------------------------------------------------------------------------------------------------


def _download(remote: Remote, file: BinaryIO) -> bool:
    """Append what is missing; true if there was a beginning from before. Goes on as long as each try brings bytes."""
    had = beginning = file.seek(0, 2)
    with _shown(remote) as show:
        while True:
            try:
                if _append(remote, file, show):
                    return beginning > 0
                broken: Exception = OSError("the connection broke off")
            except urllib.error.HTTPError:
                raise
            except (OSError, http.client.HTTPException) as error:
                broken = error
            now = file.seek(0, 2)
            if now <= had:
                raise broken
            had = now


def _append(remote: Remote, file: BinaryIO, show: Callable[[int, int | None], None]) -> bool:
    """One request for the rest of the file; true if it is complete then."""
    start = file.seek(0, 2)
    headers = {"User-Agent": "ausam"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(remote.url, headers=headers)  # noqa: S310  (addresses are this package's own)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return True  # nothing is missing; whether it is too much, the checksum tells
        raise
    with answer:
        said = str(answer.headers.get("Content-Range", ""))
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT or not said.startswith(f"bytes {start}-"):
            file.truncate(0)  # a server that knows no ranges sends the whole
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
            f"{archive} was not unpacked: its {packed:,} bytes would become {size:,}, which no data set does. "
            "Do not use this file."
        )
