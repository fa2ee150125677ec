"""HTTP requests without a body, over connections that are kept: what urllib has not."""

from __future__ import annotations

import calendar
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from clusterctl.node.relay.failure import Failure

CONNECT_TIMEOUT_S = 10.0
# Of answers that are kept in memory whole: lists of objects, messages.
LONGEST_BODY = 32 << 20
ATTEMPTS = 8
# So many connections that nobody answers are no hiccup: no route leads there.
SILENT_ATTEMPTS = 3
T = TypeVar("T")
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class SourceError(Failure):
    """The URLs cannot be read. `kind`: `gone`, `changed`, `denied`, `parts`, `usage`, `network`."""

    @property
    def why(self) -> str:
        return str(self)


class Broken(Exception):
    """No whole answer came; the same request may work if it is made again."""

    def __init__(self, why: str, got: int = 0) -> None:
        super().__init__(why)
        self.got = got


class Silent(Broken):
    """Nobody has answered to the connection at all."""


class Place(NamedTuple):
    """A server."""

    scheme: str
    host: str
    port: int | None

    @property
    def header(self) -> str:
        """What its Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return host if self.port in (None, usual) else f"{host}:{self.port}"


class Answer(NamedTuple):
    """`body` is empty where the content was for the caller's buffer; `filled` says whether it went
    there. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    filled: bool = False


def place_of(url: str) -> Place:
    """Raises SourceError for what is no http or https URL."""
    try:
        parts = urlsplit(url)
        place = Place(parts.scheme, parts.hostname or "", parts.port)
    except ValueError:
        place = Place("", "", None)
    if place.scheme not in ("http", "https") or not place.host:
        raise SourceError("usage", f"not a URL: {url!r}", "write it as https://HOST/PATH")
    return place


def http_time_ns(text: str) -> int:
    """Nanoseconds since 1970 of `Sat, 21 Nov 2026 19:34:25 GMT`; 0 for what is no such time."""
    told = parsedate(text)
    return 0 if told is None else calendar.timegm(told) * 10**9


def pause_s(attempt: int) -> float:
    """How long to wait before attempt number `attempt`, from 1 on: at most 10 s, never in step."""
    return random.uniform(0.5, 1.0) * min(10.0, 0.2 * 2**attempt)  # noqa: S311 - no secret


class Wire:
    """Connections to any number of servers, each kept for the next request. Safe in threads.

    No proxy is ever asked, whatever the environment says: data sets come straight.
    """

    def __init__(
        self, timeout_s: float = 30.0, connect_timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[Place, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None

    def ask(
        self,
        place: Place,
        method: str,
        target: str,
        headers: Mapping[str, str],
        into: memoryview | None = None,
    ) -> Answer:
        """One request. Content of status 206 or 200 fills `into`, where it is given.

        Raises Broken (with how much came), SourceError where trying again is in vain.
        """
        kept = self._take(place)
        if kept is not None:
            try:
                return self._exchange(place, kept, method, target, headers, into)
            except _Unanswered:
                # The server had closed it in the meantime.
                pass
        try:
            fresh = self._connect(place)
        except ssl.SSLCertVerificationError as error:
            raise SourceError(
                "denied",
                f"the certificate of {place.host} is not trusted: {error.verify_message}",
                "install its authority's certificate on the nodes",
            ) from error
        except OSError as error:
            kind = Silent if isinstance(error, socket.timeout) else Broken
            raise kind(f"no connection to {place.header}: {error.strerror or error}") from error
        try:
            return self._exchange(place, fresh, method, target, headers, into)
        except _Unanswered as error:
            raise Broken(f"{place.header} closed the connection") from error

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _take(self, place: Place) -> http.client.HTTPConnection | None:
        with self._lock:
            idle = self._idle.get(place)
            return idle.pop() if idle else None

    def _connect(self, place: Place) -> http.client.HTTPConnection:
        if place.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                place.host, place.port, timeout=self._connect_timeout_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(
                place.host, place.port, timeout=self._connect_timeout_s
            )
        connection.connect()
        # SO_RCVBUF stays the kernel's: to set it ends its tuning, at a size that is too small.
        connection.sock.settimeout(self._timeout_s)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(
        self,
        place: Place,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        into: memoryview | None,
    ) -> Answer:
        whole = False
        try:
            response = _answered(connection, method, target, headers)
            answer = _read(response, into)
            whole = response.isclosed() and not response.will_close
            return answer
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"{place.header}: {error or type(error).__name__}") from error
        finally:
            if whole:
                with self._lock:
                    self._idle.setdefault(place, []).append(connection)
            else:
                connection.close()


class _Unanswered(Exception):
    """The connection ended before the first byte of an answer."""


def _answered(
    connection: http.client.HTTPConnection, method: str, target: str, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse()
    except _STALE as error:
        raise _Unanswered from error


def _read(response: http.client.HTTPResponse, into: memoryview | None) -> Answer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    if into is None or response.status not in (200, 206):
        return Answer(response.status, headers, _body(response))
    if response.length is not None and response.length != len(into):
        # Nothing of it is taken: it is another range than the asked one.
        if response.status == 200:
            raise SourceError("parts", "the server sends whole files only", "use another mirror")
        return Answer(response.status, headers, b"")
    got = 0
    try:
        while got < len(into):
            count = response.readinto(into[got:])
            if not count:
                raise Broken("the answer was cut short", got)
            got += count
    except (OSError, http.client.HTTPException) as error:
        raise Broken(str(error) or type(error).__name__, got) from error
    response.read()
    return Answer(response.status, headers, b"", filled=True)


def _body(response: http.client.HTTPResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        part = response.read(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > LONGEST_BODY:
            raise Broken("an answer that does not end")
    if response.length:
        raise Broken("the answer was cut short")
    return b"".join(parts)


def persist(work: Callable[[], T]) -> T:
    """What `work` gives, tried again while it is Broken. Raises SourceError at the end of that."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except Broken as error:
            silent = isinstance(error, Silent)
            if attempt == ATTEMPTS or (silent and attempt >= SILENT_ATTEMPTS):
                raise SourceError(
                    "network",
                    f"gave up after {attempt} attempts: {error}",
                    "see whether a route leads there from the node; `clusterctl network s3` makes "
                    "one to S3"
                    if silent
                    else "",
                ) from error
            time.sleep(pause_s(attempt))
    raise AssertionError("unreachable")
