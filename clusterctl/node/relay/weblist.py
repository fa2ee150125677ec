"""Files of a web server: how large they are, and whether they can be read in parts."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, unquote_to_bytes, urljoin, urlsplit

from clusterctl.node.relay.httpget import (
    Answer,
    Broken,
    SourceError,
    Wire,
    http_time_ns,
    persist,
    place_of,
)
from clusterctl.node.relay.urltree import Found

MOST_REDIRECTS = 5
AT_ONCE = 16
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)


def ask(
    wire: Wire,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    into: memoryview | None = None,
) -> Answer:
    """One answer of success, wherever it is redirected to. Raises Broken, SourceError."""
    where = url
    for _ in range(MOST_REDIRECTS + 1):
        place, parts = place_of(where), urlsplit(where)
        target = _target(parts.path or "/", parts.query)
        sent = {"host": place.header, "accept-encoding": "identity", **(headers or {})}
        answer = wire.ask(place, method, target, sent, into)
        if answer.status not in (301, 302, 303, 307, 308):
            return _checked(url, answer)
        where = urljoin(where, answer.headers.get("location", ""))
    raise SourceError("usage", f"{url} is redirected again and again")


def _target(path: str, query: str) -> str:
    # A URL as people write it, with blanks and accents, as it may stand in a request.
    safe = "/%:@!$&'()*+,;=~-._"
    return quote(path, safe=safe) + (f"?{quote(query, safe=safe + '?')}" if query else "")


def _checked(url: str, answer: Answer) -> Answer:
    if answer.status < 300:
        return answer
    if answer.status in _TEMPORARY:
        raise Broken(f"the server says {answer.status}")
    if answer.status in (412, 416):
        raise SourceError("changed", f"{url} has changed since it was looked at", "copy it again")
    if answer.status in (401, 403):
        raise SourceError("denied", f"the server refuses {url} ({answer.status})")
    if answer.status in (404, 410):
        raise SourceError("gone", f"{url} is not there ({answer.status})", "check the URL")
    raise SourceError("usage", f"the server answers {answer.status} for {url}")


def look(wire: Wire, number: int, url: str, name: bytes | None = None) -> Found:
    """One file: its size, time and version. Raises SourceError."""
    place = place_of(url)
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise SourceError("usage", f"a password in the URL of {place.host}", "leave it out")
    if name is None:
        name = unquote_to_bytes(parts.path.rpartition("/")[2])
    if not name:
        raise SourceError(
            "usage",
            f"{url} is a folder, and web servers do not list those",
            "name its files: --files-from FILE",
        )
    headers, size = _size(wire, url)
    return Found(
        name,
        number,
        url.encode("utf-8", "surrogateescape"),
        size,
        http_time_ns(headers.get("last-modified", "")),
        version_of(headers),
    )


def _size(wire: Wire, url: str) -> tuple[Mapping[str, str], int]:
    """A file's headers and size, of a server that sends parts of it."""
    # Few servers say beforehand that they do; so one byte is asked for.
    one = {"range": "bytes=0-0"}
    try:
        headers = persist(lambda: ask(wire, "GET", url, one, memoryview(bytearray(1)))).headers
        size = headers.get("content-range", "").rpartition("/")[2] or "1"
    except SourceError as error:
        if error.kind not in ("changed", "parts"):
            raise
        # No byte can be asked of an empty file.
        headers = persist(lambda: ask(wire, "HEAD", url)).headers
        size = headers.get("content-length", "")
        if size != "0":
            raise SourceError(
                "usage",
                f"{place_of(url).host} does not send parts of {url}",
                "fetch it to the head node, and copy it from there: --from 0",
            ) from error
    if not (size.isascii() and size.isdecimal()):
        raise SourceError("usage", f"{place_of(url).host} does not say how large {url} is")
    return headers, int(size)


def version_of(headers: Mapping[str, str]) -> str:
    """What If-Match takes: a strong ETag, or nothing."""
    version = headers.get("etag", "")
    return "" if version.startswith("W/") else version


def look_at_all(wire: Wire, number: int, url: str, names: list[bytes]) -> list[Found]:
    """The files of these names below the folder at `url`. Raises SourceError."""
    base = url if url.endswith("/") else url + "/"
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda name: look(wire, number, base + quote(name), name), names))
