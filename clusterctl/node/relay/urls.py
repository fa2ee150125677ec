"""Data sets at URLs: what there is, and blocks of it by requests for parts of objects.

The configuration, JSON that comes on stdin:

    {"sources": [{"kind": "s3", "bucket": B, "key_b64": K} | {"kind": "http", "url": U}],
     "names_b64": null | [...], "endpoint": null | URL, "region": null | R,
     "credentials": null (the machine's) | "none" | {"access", "secret", "token"},
     "mirror": false (true: the destination is to have what the sources have, and no more),
     "connections": 32, "timeout_s": 30}
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from clusterctl.node.relay.httpget import (
    ATTEMPTS,
    Answer,
    Broken,
    SourceError,
    Wire,
    http_time_ns,
    pause_s,
)
from clusterctl.node.relay.imds import Metadata
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import FILE, Entry
from clusterctl.node.relay.s3bucket import Bucket, endpoint_of
from clusterctl.node.relay.s3list import Listed, find_objects
from clusterctl.node.relay.sigv4 import Keys
from clusterctl.node.relay.urltree import (
    Found,
    Origin,
    how_many_left_out,
    origin_of,
    top_of,
    tree_of,
)
from clusterctl.node.relay.weblist import ask, look, look_at_all

CONNECTIONS = 32
TIMEOUT_S = 30.0
LISTED_AT_ONCE = 16
# What concerns one object and leaves the others alone.
OF_ONE = ("gone", "changed", "denied")
T = TypeVar("T")
U = TypeVar("U")


class Source(Protocol):
    """One of the places: what it has, and a part of that."""

    def find(self, number: int, names: Sequence[bytes] | None) -> tuple[list[Found], list[str]]: ...

    def get(self, place: bytes, headers: Mapping[str, str], into: memoryview) -> Answer: ...


class S3Source(NamedTuple):
    """A prefix, or an object, of a bucket."""

    bucket: Bucket
    key: bytes

    def find(self, number: int, names: Sequence[bytes] | None) -> tuple[list[Found], list[str]]:
        if names is None:
            listed, warnings = find_objects(self.bucket, self.key)
            # The marker of the folder that was asked for has no name below it.
            return [_found(one, number) for one in listed if one.name], warnings
        below = self.key if self.key in (b"",) or self.key.endswith(b"/") else self.key + b"/"
        found = []
        for listed, _ in _side_by_side(lambda n: find_objects(self.bucket, below + n), names):
            found += [_found(one, number)._replace(name=one.key[len(below) :]) for one in listed]
        return found, []

    def get(self, place: bytes, headers: Mapping[str, str], into: memoryview) -> Answer:
        return self.bucket.ask("GET", place, (), headers, into)


class WebSource(NamedTuple):
    """A file of a web server, or its folder where names come beside it."""

    wire: Wire
    url: str

    def find(self, number: int, names: Sequence[bytes] | None) -> tuple[list[Found], list[str]]:
        if names is None:
            return [look(self.wire, number, self.url)], []
        return look_at_all(self.wire, number, self.url, list(names)), []

    def get(self, place: bytes, headers: Mapping[str, str], into: memoryview) -> Answer:
        url = place.decode("utf-8", "surrogateescape")
        return ask(self.wire, "GET", url, headers, into)


def open_sources(config: Mapping[str, Any], wire: Wire | None = None) -> list[Source]:
    """The places of a configuration. Raises SourceError for what none can be."""
    wire = wire or Wire(float(config.get("timeout_s") or TIMEOUT_S))
    metadata = Metadata()
    keys = _keys(config.get("credentials"), metadata)
    endpoint = endpoint_of(config.get("endpoint"))
    region = str(config.get("region") or "")
    sources: list[Source] = []
    for one in config["sources"]:
        if one["kind"] == "http":
            sources.append(WebSource(wire, str(one["url"])))
            continue
        region = region or _region(endpoint, metadata)
        bucket = Bucket(wire, str(one["bucket"]), keys, endpoint, region)
        sources.append(S3Source(bucket, base64.b64decode(one.get("key_b64") or "")))
    return sources


class Listing(NamedTuple):
    """Everything there is to copy, warnings, and of how many files some are: those left out."""

    entries: list[Entry]
    warnings: list[str]
    left_out: int


def list_source(config: Mapping[str, Any]) -> tuple[list[Entry], list[str]]:
    """Everything there is to copy, and warnings of what is not. Raises SourceError."""
    listing = list_all(config)
    return listing.entries, listing.warnings


def list_all(config: Mapping[str, Any]) -> Listing:
    """Raises SourceError."""
    names = config.get("names_b64")
    wanted = None if names is None else [base64.b64decode(name) for name in names]
    found: list[Found] = []
    warnings: list[str] = []
    sources = open_sources(config)
    whole = False
    numbers = range(len(sources))
    for source, (some, said) in zip(
        sources, _side_by_side(lambda n: sources[n].find(n, wanted), numbers)
    ):
        found += some
        warnings += said
        whole = whole or (wanted is None and _is_below(source, some))
    entries, told = tree_of(found)
    left_out = how_many_left_out(found, entries)
    _try_one(sources, entries)
    # A node deletes in folders that are entries.
    if config.get("mirror") and whole and entries:
        entries.insert(0, top_of(entries))
    return Listing(entries, warnings + told, left_out)


def _is_below(source: Source, found: Sequence[Found]) -> bool:
    """Whether this is all that is below a prefix, and not an object or a file."""
    return isinstance(source, S3Source) and all(one.place != source.key for one in found)


def _side_by_side(work: Callable[[T], U], items: Sequence[T]) -> list[U]:
    pool = ThreadPoolExecutor(LISTED_AT_ONCE)
    try:
        return list(pool.map(work, items))
    finally:
        # Not waited for: who is told to end does not wait for a server that says nothing.
        pool.shutdown(wait=False)


def is_single(config: Mapping[str, Any], entries: Sequence[Entry]) -> bool:
    """Whether the only source is one file, so that DST may be its new name."""
    if len(config["sources"]) != 1 or config.get("names_b64") is not None or len(entries) != 1:
        return False
    [one], [entry] = config["sources"], entries
    if entry.kind != FILE or one["kind"] == "http":
        return entry.kind == FILE
    return origin_of(entry).place == base64.b64decode(one.get("key_b64") or "")


def _try_one(sources: Sequence[Source], entries: Sequence[Entry]) -> None:
    """Who may list may not read yet: better known now than once for each object."""
    tried = set()
    for entry in entries:
        if entry.kind == FILE and entry.size:
            number = origin_of(entry).source
            if number not in tried and isinstance(sources[number], S3Source):
                tried.add(number)
                read_part(sources, entry, 0, memoryview(bytearray(1)))


def read_part(sources: Sequence[Source], entry: Entry, offset: int, into: memoryview) -> None:
    """Fill `into` from `offset` of an entry. What came stays when a connection breaks.

    Raises SourceError: of kind `gone`, `changed`, `denied` for this entry alone.
    """
    origin = origin_of(entry)
    done, failures = 0, 0
    while done < len(into):
        try:
            _ask_part(sources, entry, origin, offset + done, into[done:])
            return
        except Broken as error:
            # A server that sends a piece each time gets there.
            failures = 1 if error.got else failures + 1
            done += error.got
            if failures >= ATTEMPTS:
                raise SourceError(
                    "network", f"gave up after {ATTEMPTS} attempts: {error}"
                ) from error
            threading.Event().wait(pause_s(failures))


def _ask_part(
    sources: Sequence[Source], entry: Entry, origin: Origin, offset: int, into: memoryview
) -> None:
    headers = {"range": f"bytes={offset}-{offset + len(into) - 1}"}
    if origin.version:
        headers["if-match"] = origin.version
    answer = sources[origin.source].get(origin.place, headers, into)
    told = answer.headers.get("content-range", "")
    begins, _, size = told.partition(" ")[2].partition("/")
    if size.isdecimal() and int(size) != entry.size:
        raise _changed(entry)
    if not answer.filled or (answer.status == 206 and begins.partition("-")[0] != str(offset)):
        raise Broken(f"another part was sent than the asked one: {told}")
    # Servers that do not know If-Match send what is there now.
    version = answer.headers.get("etag", "")
    if origin.version and version and version != origin.version:
        raise _changed(entry)
    changed_ns = http_time_ns(answer.headers.get("last-modified", ""))
    if not origin.version and changed_ns and entry.mtime_ns not in (0, changed_ns):
        raise _changed(entry)


def _changed(entry: Entry) -> SourceError:
    name = entry.path.decode("utf-8", "backslashreplace")
    return SourceError("changed", f"{name} has changed since it was listed", "copy it again")


class UrlOrigin:
    """The blocks of the data set at the URLs. `read` is safe in threads; as many should call it
    as `config["connections"]` says."""

    def __init__(self, config: Mapping[str, Any], entries: Sequence[Entry], layout: Layout) -> None:
        self.connections = int(config.get("connections") or CONNECTIONS)
        # Entry number -> why it cannot be read.
        self.why: dict[int, SourceError] = {}
        self._entries = entries
        self._layout = layout
        self._wire = Wire(float(config.get("timeout_s") or TIMEOUT_S))
        self._sources = open_sources(config, self._wire)
        # For blocks of many small objects: one after the other they would take a round trip each.
        self._pool = ThreadPoolExecutor(self.connections)

    def read(self, block: int) -> tuple[bytearray, list[int]]:
        """The bytes of a block, and the entries that could not be read: zeros stand for those.

        Raises SourceError when the URLs cannot be read at all.
        """
        content = bytearray(self._layout.length(block))
        view, at = memoryview(content), 0
        work = []
        for number, offset, length in self._layout.extents(block):
            work.append((number, offset, view[at : at + length]))
            at += length
        if len(work) <= 2:
            bad = [self._read(*one) for one in work]
        else:
            bad = list(self._pool.map(lambda one: self._read(*one), work))
        return content, [number for number in bad if number is not None]

    def _read(self, number: int, offset: int, into: memoryview) -> int | None:
        if number not in self.why:
            try:
                read_part(self._sources, self._entries[number], offset, into)
                return None
            except SourceError as error:
                if error.kind not in OF_ONE:
                    raise
                self.why[number] = error
                into[:] = bytes(len(into))
        return number

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._wire.close()


def _found(one: Listed, number: int) -> Found:
    return Found(one.name, number, one.key, one.size, one.mtime_ns, one.version, one.archived)


def _keys(said: Any, metadata: Metadata) -> Callable[[bool], Keys | None]:
    if said is None:
        return metadata.keys
    if said == "none":
        return lambda renew: None
    keys = Keys(str(said["access"]), str(said["secret"]), str(said.get("token") or ""))
    return lambda renew: keys


def _region(endpoint: str, metadata: Metadata) -> str:
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return named or ("" if endpoint else metadata.region()) or "us-east-1"
