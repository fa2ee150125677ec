"""Runs on a node: downloads one file of a web server. A second run goes on where the first stopped.

The configuration is JSON: {"url": U, "dry_run": false, "checksum": false}.
"""

from __future__ import annotations

import calendar
import contextlib
import errno
import hashlib
import http.client
import os
import random
import socket
import ssl
import time
import urllib.error
import urllib.request
from email.utils import parsedate
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from clusterctl.node.objects import TEMPORARY
from clusterctl.node.relay.base import Failure
from clusterctl.node.relay.compare import SECOND_NS, destination
from clusterctl.node.relay.manifest import FILE, Entry, text_of
from clusterctl.node.relay.messages import Event, Listed
from clusterctl.node.relay.s3files import FILE_MODE, Download

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIMEOUT_S = 30.0
# Attempts in a row without progress after which a download fails.
ATTEMPTS = 8
# The same for attempts that time out: each takes long, and the server is probably not reachable.
SILENT_ATTEMPTS = 3
PIECE = 1 << 20
# Errors of writing a file, which have no file name. Errors of connections are never among them.
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class WebFile(Download):
    """The download of one file to a folder, or to a new name. Raises Failure for a folder's URL.

    `sleep` waits so many seconds before another attempt.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        destination: str,
        emit: Callable[[Event], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(config, destination, emit)
        self._sleep = sleep
        parts = urlsplit(str(config["url"]))
        # Users write URLs with blanks and accents, which have to be quoted in a request.
        safe = "/%:@!$&'()*+,;=~-._"
        query = f"?{quote(parts.query, safe=safe + '?')}" if parts.query else ""
        self._url = f"{parts.scheme}://{parts.netloc}{quote(parts.path or '/', safe=safe)}{query}"
        self._name = unquote_to_bytes(parts.path.rpartition("/")[2])
        if not self._name or b"/" in self._name or self._name in (b".", b".."):
            raise Failure(
                "source",
                f"{config['url']} is a folder, and web servers do not list those",
                "name a file",
            )

    def run(self) -> None:
        self.progress.path = self._path()
        size, self._mtime, self._version = self._probe()
        # The server's name of the version (ETag) takes the place of a ctime: a part of another
        # version is not resumed.
        version = hashlib.sha256(f"{self._url}\n{self._version}".encode("utf-8", "surrogateescape"))
        number = int.from_bytes(version.digest()[:6], "big")
        entry = Entry(self._name, FILE, FILE_MODE, self._mtime * SECOND_NS, size, changed_ns=number)
        # Web servers send no digest, so with `checksum` the file always counts as missing. It does,
        # too, if the server sends no time to compare.
        self.config = {**self.config, "checksum": self.config.get("checksum") or not self._mtime}
        self.fill([entry], Listed(files=1, bytes=size, single=True))

    def _path(self) -> str:
        """Return the file's path in terms of DST as given: other nodes may have other homes."""
        path = destination(self.given, os.path.expanduser("~"))
        is_folder = path.endswith(b"/") or os.path.isdir(path)
        return os.path.join(self.given, text_of(self._name)) if is_folder else self.given

    def fetch(self, missing: list[int]) -> None:
        [number] = missing
        entry, staging = self.target.entries[number], self.target.publisher.staging
        if not self._version:
            staging.drop(entry)
        part = staging.part(entry)
        self._pull(part, entry.size)
        if not self._mtime:
            self.target.entries.set_time(number, time.time_ns())
        self.put(number, part)

    def _probe(self) -> tuple[int, int, str]:
        """Return the file's size, its time in seconds or 0, and its strong ETag or "".

        Only a strong ETag can be used with If-Range.
        """

        def ask() -> tuple[int, int, str]:
            with self._open({"Range": "bytes=0-0"}) as answer:
                headers = answer.headers
            total = headers.get("Content-Range", "").rpartition("/")[2]
            size = total if answer.status == 206 else headers.get("Content-Length", "")
            if not (size.isascii() and size.isdecimal()):
                raise Failure("source", f"the server does not say how large {self._url} is")
            when = parsedate(headers.get("Last-Modified", ""))
            etag = headers.get("ETag", "")
            weak = etag.startswith("W/") or answer.status != 206
            return int(size), calendar.timegm(when) if when else 0, "" if weak else etag

        return self._persist(ask)

    def _pull(self, part: bytes, size: int) -> None:
        version = self._version

        def go_on() -> None:
            at = _size(part)
            if at == size:
                return
            headers = {"Range": f"bytes={at}-", "If-Range": version} if at and version else {}
            with self._open(headers) as answer:
                flags = os.O_WRONLY | os.O_CREAT | (0 if answer.status == 206 else os.O_TRUNC)
                etag = answer.headers.get("ETag")
                if answer.status == 206:
                    begin = answer.headers.get("Content-Range", "")
                    if not begin.startswith(f"bytes {at}-"):
                        raise Failure("source", f"the server sends another part of {self._url}", "")
                    # Some servers ignore If-Range and send parts of another version.
                    etag = etag or version
                if version and etag != version:
                    raise Failure(
                        "source",
                        f"{self._url} has changed since its size was read",
                        "copy it again",
                    )
                with os.fdopen(os.open(part, flags, 0o600), "r+b", buffering=0) as file:
                    file.seek(0, os.SEEK_END)
                    for piece in iter(lambda: answer.read(PIECE), b""):
                        file.write(piece)
                        self.progress.bytes = file.tell()
            if _size(part) < size:
                raise OSError("the answer was cut short")
            if _size(part) > size:
                os.unlink(part)  # a later run cannot use it
                raise Failure(
                    "source", f"{self._url} has changed since its size was read", "copy it again"
                )

        self._persist(go_on)

    def _open(self, headers: Mapping[str, str]) -> Any:
        """Return a successful response. Raises Failure, or OSError if another attempt may help."""
        sent = {"Accept-Encoding": "identity", "User-Agent": "clusterctl", **headers}
        try:
            # Proxies from the environment are not used.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            return opener.open(urllib.request.Request(self._url, headers=sent), timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code in TEMPORARY:
                raise OSError(f"the server responded {error.code}") from error
            if error.code == 416 and headers.get("Range") == "bytes=0-0":
                # 416 means that the range is not in the file: it is empty.
                return self._open({})
            refusal = {401: "refuses", 403: "refuses", 404: "has no", 410: "has no"}.get(error.code)
            raise Failure(
                "source",
                f"the server {refusal or 'does not send'} {self._url} ({error.code})",
                "check the URL",
            ) from error

    def _persist(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns; retry after errors of the connection. Raises Failure.

        Attempts are counted again after each one that got more bytes.
        """
        attempt, silent, had = 0, 0, self.progress.bytes
        while True:
            try:
                return work()
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and (error.filename or error.errno in OF_THE_DISK):
                    raise
                attempt = 1 if self.progress.bytes > had else attempt + 1
                had = self.progress.bytes
                why = getattr(error, "reason", error)
                silent = silent + 1 if isinstance(why, (TimeoutError, socket.timeout)) else 0
                if isinstance(why, ssl.SSLCertVerificationError):
                    raise Failure(
                        "source",
                        f"the certificate of {urlsplit(self._url).hostname} is not trusted: "
                        f"{why.verify_message}",
                        "install its authority's certificate on the nodes",
                    ) from error
                if attempt >= ATTEMPTS or silent >= SILENT_ATTEMPTS:
                    raise Failure(
                        "source",
                        f"gave up after {attempt} attempts: {self._url}: "
                        f"{why or type(why).__name__}",
                        "see whether a route leads there from the node",
                    ) from error
                self._sleep(random.uniform(0.5, 1.0) * min(10.0, 0.2 * 2**attempt))  # noqa: S311


def _size(path: bytes) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0
