"""Runs on a node: one file of a web server, whole; a second run goes on where the first stopped.

The configuration, JSON that comes on stdin: {"url": U, "dry_run": false, "checksum": false}.
"""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import http.client
import os
import random
import socket
import ssl
import stat
import time
import urllib.error
import urllib.request
from email.utils import parsedate
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from clusterctl.node.relay.s3files import (
    STAGING,
    Progress,
    SourceError,
    check_room,
    leave,
    room_at,
    take_lock,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMEOUT_S = 30.0
ATTEMPTS = 8
# So many connections in a row that nobody answers are no hiccup.
SILENT_ATTEMPTS = 3
PIECE = 1 << 20
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)


class WebFile:
    """One file into one folder, or under a new name. `say` takes lines for the log."""

    def __init__(
        self, config: Mapping[str, Any], destination: bytes, say: Callable[[str], None]
    ) -> None:
        self.progress = Progress()
        self.progress.how = "https"
        self._config, self._given, self._say = config, destination, say
        parts = urlsplit(str(config["url"]))
        # A URL as people write it, with blanks and accents, as it may stand in a request.
        safe = "/%:@!$&'()*+,;=~-._"
        query = f"?{quote(parts.query, safe=safe + '?')}" if parts.query else ""
        self._url = f"{parts.scheme}://{parts.netloc}{quote(parts.path or '/', safe=safe)}{query}"
        self._name = unquote_to_bytes(parts.path.rpartition("/")[2])
        if not self._name or b"/" in self._name or self._name in (b".", b".."):
            raise SourceError(
                f"{config['url']} is a folder, and web servers do not list those", "name a file"
            )

    def run(self) -> None:
        """To the end. Raises SourceError, OSError."""
        target, path = self._target()
        size, mtime, version = self._look()
        progress = self.progress
        progress.path = target
        progress.source_files, progress.source_bytes = 1, size
        progress.present = int(_has(path, size, mtime) and not self._config.get("checksum"))
        progress.total_files = 1 - progress.present
        progress.total_bytes = size * progress.total_files
        root = os.path.dirname(path) or b"."
        progress.free, progress.writable = room_at(root)
        progress.listed = True
        if progress.present or self._config.get("dry_run"):
            return
        staging = os.path.join(root, STAGING)
        lock = take_lock(staging)
        try:
            # Of this version of the file alone; where the server names none, of this run.
            told = f"{self._url}\n{version}\n{size}\n{mtime}".encode("utf-8", "surrogateescape")
            part = os.path.join(staging, b"web-" + hashlib.sha256(told).hexdigest().encode())
            for name in os.listdir(staging):
                other = os.path.join(staging, name)
                if name.startswith(b"web-") and (other != part or not version):
                    os.unlink(other)
            check_room(root, size - _size(part))
            self._fetch(part, size, version)
            _publish(part, path, mtime)
            progress.files, progress.bytes = 1, size
        finally:
            leave(staging, lock)

    def _target(self) -> tuple[str, bytes]:
        """Where the file is to be, as it was given and in full."""
        given, path = self._given, os.path.expanduser(self._given)
        if path.endswith(b"/") or os.path.isdir(path):
            given, path = os.path.join(given, self._name), os.path.join(path, self._name)
        return given.decode("utf-8", "surrogateescape"), path

    def _look(self) -> tuple[int, int, str]:
        """The file's size, time, and what If-Range takes: a strong ETag or nothing."""

        def ask() -> tuple[int, int, str]:
            with self._open({"Range": "bytes=0-0"}) as answer:
                headers = answer.headers
            told = headers.get("Content-Range", "").rpartition("/")[2]
            size = told if answer.status == 206 else headers.get("Content-Length", "")
            if not (size.isascii() and size.isdecimal()):
                raise SourceError(f"the server does not say how large {self._url} is")
            when = parsedate(headers.get("Last-Modified", ""))
            etag = headers.get("ETag", "")
            weak = etag.startswith("W/") or answer.status != 206
            return int(size), calendar.timegm(when) if when else 0, "" if weak else etag

        return self._persist(ask)

    def _fetch(self, part: bytes, size: int, version: str) -> None:
        def go_on() -> None:
            at = _size(part)
            if at == size:
                return
            headers = {"Range": f"bytes={at}-", "If-Range": version} if at and version else {}
            with self._open(headers) as answer:
                flags = os.O_WRONLY | os.O_CREAT | (0 if answer.status == 206 else os.O_TRUNC)
                told = answer.headers.get("ETag")
                if answer.status == 206:
                    begin = answer.headers.get("Content-Range", "")
                    if not begin.startswith(f"bytes {at}-"):
                        raise SourceError(f"the server sends another part of {self._url}", "")
                    # Some servers send parts of another version, whatever If-Range says.
                    told = told or version
                if version and told != version:
                    raise SourceError(
                        f"{self._url} has changed since it was looked at", "copy it again"
                    )
                with os.fdopen(os.open(part, flags, 0o600), "r+b", buffering=0) as file:
                    file.seek(0, os.SEEK_END)
                    for piece in iter(lambda: answer.read(PIECE), b""):
                        file.write(piece)
                        self.progress.bytes = file.tell()
            if _size(part) < size:
                raise OSError("the answer was cut short")
            if _size(part) > size:
                raise SourceError(
                    f"{self._url} has changed since it was looked at", "copy it again"
                )

        self._persist(go_on)

    def _open(self, headers: Mapping[str, str]) -> Any:
        """An answer of success. Raises SourceError, and OSError where another attempt may help."""
        sent = {"Accept-Encoding": "identity", "User-Agent": "clusterctl", **headers}
        try:
            # No proxy is asked, whatever the environment says: data sets come straight.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return opener.open(urllib.request.Request(self._url, headers=sent), timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code in TEMPORARY:
                raise OSError(f"the server says {error.code}") from error
            if error.code == 416 and headers.get("Range") == "bytes=0-0":
                # No byte can be asked of an empty file.
                return self._open({})
            said = {401: "refuses", 403: "refuses", 404: "has no", 410: "has no"}.get(error.code)
            raise SourceError(
                f"the server {said or 'does not send'} {self._url} ({error.code})", "check the URL"
            ) from error

    def _persist(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, tried again while more comes. Raises SourceError."""
        attempt, silent, had = 0, 0, self.progress.bytes
        while True:
            try:
                return work()
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.filename:
                    raise
                attempt = 1 if self.progress.bytes > had else attempt + 1
                had = self.progress.bytes
                why = getattr(error, "reason", error)
                silent = silent + 1 if isinstance(why, (TimeoutError, socket.timeout)) else 0
                if isinstance(why, ssl.SSLCertVerificationError):
                    raise SourceError(
                        f"the certificate of {urlsplit(self._url).hostname} is not trusted: "
                        f"{why.verify_message}",
                        "install its authority's certificate on the nodes",
                    ) from error
                if attempt >= ATTEMPTS or silent >= SILENT_ATTEMPTS:
                    raise SourceError(
                        f"gave up after {attempt} attempts: {self._url}: "
                        f"{why or type(why).__name__}",
                        "see whether a route leads there from the node",
                    ) from error
                self._say(f"{why}: trying again")
                time.sleep(random.uniform(0.5, 1.0) * min(10.0, 0.2 * 2**attempt))  # noqa: S311


def _has(path: bytes, size: int, mtime: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    same = stat.S_ISREG(status.st_mode) and status.st_size == size
    return same and int(status.st_mtime) == mtime != 0


def _size(path: bytes) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0


def _publish(part: bytes, path: bytes, mtime: int) -> None:
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.fchmod(descriptor, 0o644)
        if mtime:
            os.utime(descriptor, (mtime, mtime))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(part, path)
