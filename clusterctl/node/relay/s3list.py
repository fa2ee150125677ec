"""What a bucket has below a prefix, as the entries of a manifest."""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

from clusterctl.node.relay.httpget import Broken, SourceError, http_time_ns, persist
from clusterctl.node.relay.s3bucket import Bucket

ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")
# What a listing may come to: more objects than anybody has on a node's disk.
MOST_OBJECTS = 10_000_000


class Listed(NamedTuple):
    """An object. `version` is its ETag, as If-Match takes it. `name` is below the asked place."""

    name: bytes
    key: bytes
    size: int
    mtime_ns: int
    version: str
    archived: bool = False


class Page(NamedTuple):
    """One answer to ListObjectsV2. `more` continues it; empty at the end."""

    objects: list[Listed]
    more: str


def parse_page(body: bytes, prefix: bytes) -> Page:
    """Raises Broken for what is no whole listing."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Broken(f"a listing that is cut short ({error})") from None
    if not _is(root, "ListBucketResult"):
        raise SourceError("usage", "the endpoint is not S3's: it sends no list of objects")
    # Names with control characters come through XML only where they are encoded.
    encoded = _text(root, "EncodingType") == "url"
    try:
        objects = [_object(child, encoded, prefix) for child in root if _is(child, "Contents")]
    except ValueError as error:
        raise Broken(f"a listing that makes no sense ({error})") from None
    truncated = _text(root, "IsTruncated") == "true"
    more = _text(root, "NextContinuationToken") if truncated else ""
    if truncated and not more:
        raise Broken("a listing that is cut short")
    return Page(objects, more)


def _object(contents: ElementTree.Element, encoded: bool, prefix: bytes) -> Listed:
    text = _text(contents, "Key")
    key = unquote_to_bytes(text.replace("+", " ")) if encoded else text.encode()
    if not key.startswith(prefix):
        raise ValueError("an object that nobody asked for")
    return Listed(
        key[len(prefix) :],
        key,
        int(_text(contents, "Size")),
        parse_time_ns(_text(contents, "LastModified")),
        _text(contents, "ETag"),
        _text(contents, "StorageClass") in ARCHIVED,
    )


def parse_time_ns(text: str) -> int:
    """`2026-11-21T19:34:25.000Z`. Raises ValueError."""
    whole, _, part = text.rstrip("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return seconds * 10**9 + int(f"{part[:9]:0<9}")


def list_objects(bucket: Bucket, prefix: bytes, page_size: int = 1000) -> Iterator[Listed]:
    """All objects whose keys begin so, in the order of their bytes. Raises SourceError."""
    query = [
        ("list-type", "2"),
        ("encoding-type", "url"),
        ("max-keys", str(page_size)),
        ("prefix", prefix.decode("utf-8", "surrogateescape")),
    ]
    more, seen = "", 0
    while True:
        following = [*query, ("continuation-token", more)] if more else query
        page = _page(bucket, following, prefix)
        yield from page.objects
        seen += len(page.objects)
        if not page.more:
            return
        if seen > MOST_OBJECTS or page.more == more:
            what = f"s3://{bucket.name} has more than {MOST_OBJECTS} objects there"
            raise SourceError("usage", what, "copy it in parts")
        more = page.more


def _page(bucket: Bucket, query: Sequence[tuple[str, str]], prefix: bytes) -> Page:
    return persist(lambda: parse_page(bucket.ask("GET", b"", query).body, prefix))


def find_objects(bucket: Bucket, key: bytes) -> tuple[list[Listed], list[str]]:
    """What `s3://BUCKET/KEY` means: that object, else what is below `KEY/`, with warnings.

    With a slash at its end, and without a key, it is always what is below. Raises SourceError
    where there is nothing.
    """
    found, refused = (None, None) if key == b"" or key.endswith(b"/") else _head(bucket, key)
    below = key if key == b"" or key.endswith(b"/") else key + b"/"
    what = f"s3://{bucket.name}/{key.decode('utf-8', 'backslashreplace')}"
    if found is not None:
        try:
            more = next(list_objects(bucket, below, 1), None)
        except SourceError:
            more = None
        also = f"{what} is one object; for those below it write {what}/"
        return [found], [also] if more else []
    listed = list(list_objects(bucket, below))
    if not listed and refused:
        raise refused
    if not listed:
        raise SourceError("usage", f"there is nothing at {what}", f"aws s3 ls s3://{bucket.name}/")
    return listed, []


def _head(bucket: Bucket, key: bytes) -> tuple[Listed | None, SourceError | None]:
    """An object, or that S3 does not say whether there is one."""
    try:
        answer = persist(lambda: bucket.ask("HEAD", key))
    except SourceError as error:
        # Without the right to list, S3 says 403 of what is not there. The listing will tell.
        if error.kind in ("gone", "denied"):
            return None, error if error.kind == "denied" else None
        raise
    headers = answer.headers
    found = Listed(
        key.rpartition(b"/")[2],
        key,
        int(headers.get("content-length", "0")),
        http_time_ns(headers.get("last-modified", "")),
        headers.get("etag", ""),
        headers.get("x-amz-storage-class", "") in ARCHIVED,
    )
    return found, None


def _is(element: ElementTree.Element, name: str) -> bool:
    return element.tag.rpartition("}")[2] == name


def _text(parent: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in parent if _is(child, name)), "")
