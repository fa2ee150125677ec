"""Download of ImageNet's files: interrupted downloads are resumed, and the files are checked."""

from __future__ import annotations

import base64
import hashlib
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Optional

from progress import Progress
from raw_images import LABELS, TRAIN_TAR, VALIDATION_FOLDERS, VALIDATION_TAR
from shards import DataError, commit_file

BASE_URL = "https://image-net.org/data/ILSVRC/2012/"
LABELS_URL = (
    "https://raw.githubusercontent.com/tensorflow/models/master/research/slim/datasets/" + LABELS[1]
)
PIECE = 1 << 20  # bytes of one read
TIMEOUT_S = 60.0
ATTEMPTS = 6  # attempts in a row that brought no byte
PAUSE_S = 1.0  # before the second attempt


class DownloadError(DataError):
    """A file that could not be downloaded, or that is not the expected one."""


@dataclass(frozen=True)
class Remote:
    """A file on a server. Size in bytes and MD5 are None if they are not known or not checked."""

    url: str
    name: str
    size: Optional[int] = None
    md5: Optional[str] = None


@dataclass(frozen=True)
class Login:
    """An account on the server. The password is left out of `repr`."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ...)"

    @property
    def header(self) -> str:
        """The value of the HTTP header Authorization."""
        pair = f"{self.user}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode("ascii")


def imagenet_files(base_url: str, labels_url: str, check: bool = True) -> list[Remote]:
    """Return the tar files of ILSVRC 2012 below `base_url`, and the validation images' synsets.

    Without `check` the sizes and MD5s of the tar files are left out.
    """
    base = base_url.rstrip("/") + "/"
    tars = (
        (TRAIN_TAR, 147_897_477_120, "1d675b47d978889d74fa0da5fadfb00e"),
        (VALIDATION_TAR, 6_744_924_160, "29b22e2961454d5413ddabcf34fc5622"),
    )
    files = [
        Remote(base + name, name, size if check else None, md5 if check else None)
        for name, size, md5 in tars
    ]
    return [*files, Remote(labels_url, LABELS[0])]


def lacking(files: list[Remote], folder: Path) -> list[Remote]:
    """Return the files that `folder` does not have, neither as downloaded nor extracted."""
    extracted = {
        TRAIN_TAR: ["train"],
        VALIDATION_TAR: list(VALIDATION_FOLDERS),
        LABELS[0]: list(LABELS),
    }
    return [
        file
        for file in files
        if not any((folder / name).exists() for name in [file.name, *extracted.get(file.name, [])])
    ]


def fetch_all(files: list[Remote], folder: Path, login: Login | None) -> None:
    """Download every file that `folder` does not have. Raise DownloadError.

    `login` is not sent for the file of labels, which is on another server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = lacking(files, folder)
    needed = sum((file.size or 0) - size_of(partial(folder, file)) for file in missing)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder} has {free / 1e9:.0f} GB free, the download takes {needed / 1e9:.0f} GB"
        )
    for file in missing:
        fetch(file, folder, login if file.name != LABELS[0] else None)


def fetch(file: Remote, folder: Path, login: Login | None = None, pause_s: float = PAUSE_S) -> Path:
    """Download a file and return its path. An earlier run or a broken connection is resumed.

    The second attempt comes after `pause_s` seconds, each further one after twice as long.

    Raises DownloadError if the server refuses, if several attempts in a row bring nothing, or if
    the size or the MD5 of the file is wrong.
    """
    refuse_open_password(file.url, login)
    path, part = folder / file.name, partial(folder, file)
    progress = Progress(file.size or 0, file.name, unit="bytes")
    progress.resume(size_of(part))
    failures = 0
    try:
        while True:
            before = size_of(part)
            try:
                if fetch_rest(file, part, login, progress):
                    break
                why = "the connection broke off"
            except (OSError, HTTPException) as error:
                why = refusal(file, error)
            failures = 0 if size_of(part) > before else failures + 1
            if failures >= ATTEMPTS:
                raise DownloadError(f"{file.url}: {why}; run it again to go on from here")
            time.sleep(pause_s * 2 ** max(failures - 1, 0))
    finally:
        progress.close()
    check(file, part)
    commit_file(part, path)
    part.with_name(part.name + ".etag").unlink(missing_ok=True)
    return path


def fetch_rest(file: Remote, part: Path, login: Login | None, progress: Progress) -> bool:
    """Request the bytes that `part` lacks, once. Return whether the file is complete."""
    etag_file = part.with_name(part.name + ".etag")
    have = size_of(part)
    request = urllib.request.Request(file.url)
    if login:  # unredirected: it is not sent to another host after a redirect
        request.add_unredirected_header("Authorization", login.header)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if etag_file.exists():
            request.add_header("If-Range", etag_file.read_text())
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        total = total_of(error.headers.get("Content-Range", ""))
        if error.code == 416 and have and total == have:
            return True  # nothing was missing
        if error.code == 416:
            part.unlink()
            return False
        raise
    with response:
        begin, total = extent(response, have)
        if begin not in (0, have):
            raise OSError(f"the server sent bytes from {begin}, not from {have}")
        note_etag(etag_file, response)
        with part.open("ab" if begin else "wb") as out:
            while data := response.read(PIECE):
                out.write(data)
                progress.total = total or 0
                progress.update(out.tell())
    return total is None or size_of(part) >= total


def extent(response: HTTPResponse, have: int) -> tuple[int, int | None]:
    """Return the offset of a response's first byte, and the size of the whole file if known."""
    if response.status == 206:
        said = response.headers.get("Content-Range", "")
        begin = said.removeprefix("bytes ").partition("-")[0]
        return (int(begin) if begin.isdigit() else have), total_of(said)
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def total_of(content_range: str) -> int | None:
    """Return the total in the header Content-Range: 9 for `bytes 3-8/9`. None if there is none."""
    total = content_range.rpartition("/")[2]
    return int(total) if total.isdigit() else None


def note_etag(path: Path, response: HTTPResponse) -> None:
    """Keep the ETag of the version that is being downloaded, so that versions are not mixed.

    A weak ETag is not kept: two versions with different bytes may share it (RFC 9110, 8.8.1).
    """
    etag = response.headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        path.write_text(etag)
    else:
        path.unlink(missing_ok=True)


def refusal(file: Remote, error: Exception) -> str:
    """Return a text about a temporary error. Raise DownloadError for a permanent one."""
    if not isinstance(error, urllib.error.HTTPError):
        return str(error) or type(error).__name__
    if error.code in (401, 403):
        raise DownloadError(
            f"{file.url}: the server wants a login ({error.code}): --imagenet_username and "
            "--imagenet_access_key of an account that accepted the licence at image-net.org"
        ) from None
    if error.code < 500 and error.code not in (408, 429):
        raise DownloadError(f"{file.url}: {error.code} {error.reason}") from None
    return f"{error.code} {error.reason}"


def refuse_open_password(url: str, login: Login | None) -> None:
    """Raise DownloadError if the password would be sent over a network without encryption."""
    parts = urllib.parse.urlsplit(url)
    if login and parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1"):
        raise DownloadError(f"{url}: an access key is sent over https only")


def check(file: Remote, part: Path) -> None:
    """Raise DownloadError if the size or the MD5 is not the expected one."""
    size = size_of(part)
    if file.size is not None and size != file.size:
        raise DownloadError(
            f"{file.name} has {size:,} bytes, not {file.size:,}: the server has another file; "
            f"remove {part} and give its right address"
        )
    if file.md5 is not None and (found := md5_of(part)) != file.md5:
        raise DownloadError(
            f"{file.name} came damaged (its MD5 is {found}, not {file.md5}): "
            f"remove {part} and run it again"
        )


def md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(PIECE):
            digest.update(data)
    return digest.hexdigest()


def partial(folder: Path, file: Remote) -> Path:
    """Return the hidden name of a file while it is downloaded."""
    return folder / f".{file.name}.partial"


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
