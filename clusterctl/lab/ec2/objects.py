"""S3 objects in memory: read without a copy, and limited to half of the machine's memory.

moto copies a whole object for every range that is read of it, and has no limit.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server import werkzeug_app
from moto.moto_server.utilities import RegexConverter
from moto.s3.exceptions import DuplicateTagKeys, InvalidBucketName, MalformedXML, S3ClientError
from moto.s3.models import FakeKey, S3Backend
from moto.s3.responses import S3Response

from clusterctl.lab.ec2.completion import guard, setup

App = Callable[..., Iterable[bytes]]


# S3's rules for the names of buckets (S3 user guide, "General purpose bucket naming rules").
RESERVED = r"(?!xn--|sthree-|amzn-s3-demo-|.*(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)$)"
BUCKET = re.compile(RESERVED + r"[a-z0-9](?!.*\.\.)[a-z0-9.-]{1,61}[a-z0-9]")
# The most objects of one request to delete them (S3's API reference, "DeleteObjects").
MOST_DELETED = 1000


class Room:
    """A limited number of bytes that holders share. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._held: dict[object, int] = {}
        self._taken = 0

    def take(self, holder: object, size: int) -> bool:
        """Set how much the holder holds. Return False, and change nothing, if it is too much."""
        with self._lock:
            taken = self._taken - self._held.get(holder, 0) + size
            if taken > self.most:
                return False
            self._taken, self._held[holder] = taken, size
            return True

    def give_back(self, holder: object) -> None:
        """Free everything that the holder holds."""
        with self._lock:
            self._taken -= self._held.pop(holder, 0)


# For objects and the bodies of requests in progress: half of the machine's memory.
ROOM = Room(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


# What an object takes besides its content, approximately.
KEY_BYTES = 4096


class _KeyConverter(RegexConverter):
    """Matches what moto's does in a URL, also if it has line breaks, as a key may."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.regex = f"(?s:{self.regex})"


@guard(S3Backend)
def create_bucket(backend: Any, bucket_name: str, *given: Any, **named: Any) -> None:
    if not BUCKET.fullmatch(bucket_name) or re.fullmatch(r"[\d.]+", bucket_name):
        raise InvalidBucketName


@guard(S3Backend)
def put_bucket_policy(backend: Any, bucket_name: str, policy: bytes) -> None:
    try:
        json.loads(policy)
    except ValueError:
        raise S3ClientError("MalformedPolicy", "This policy contains invalid Json") from None


@guard(S3Response)
def _bucket_response_delete_keys(response: Any, *_: Any, **__: Any) -> None:
    if len(_keys_in(response)) > MOST_DELETED:
        raise MalformedXML


@guard(S3Response)
def _tagging_from_xml(response: Any) -> None:
    keys = _keys_in(response)
    if len({*keys}) < len(keys):
        raise DuplicateTagKeys


def _keys_in(response: Any) -> list[str]:
    body = response.body
    return re.findall("<Key>(.*?)</Key>", body if isinstance(body, str) else body.decode())


@setup
def _keep_in_room() -> None:
    """Have moto take S3's keys, and keep objects' content in ROOM, to be read without a copy."""
    werkzeug_app.RegexConverter = _KeyConverter  # type: ignore[attr-defined, assignment]
    key: Any = FakeKey
    # moto's list of all objects that were ever made would keep them after they are deleted.
    key.instances_tracked = deque(maxlen=0)
    key.value = property(_read, _write)
    dispose = FakeKey.dispose

    def give_back(key: Any, garbage: bool = False) -> None:
        dispose(key, garbage)
        ROOM.give_back(id(key))

    key.dispose = give_back


def within_room(app: App) -> App:
    """Return `app` behind a check that refuses a body that does not fit into ROOM.

    The check comes before the body is read. As on S3, a request has to name its length.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        length = environ.get("CONTENT_LENGTH") or "0"
        if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
            text = "You must provide the Content-Length HTTP header."
            return _refuse(start, "411 Length Required", "MissingContentLength", text)
        request = object()
        if not ROOM.take(request, int(length) if length.isdecimal() else 0):
            return _refuse(start, "400 Bad Request", "EntityTooLarge", _no_room())
        try:
            return app(environ, start)
        finally:
            ROOM.give_back(request)

    return answer


def _refuse(start: Callable[..., Any], status: str, code: str, message: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/xml"), ("Connection", "close")])
    return [f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()]


def _no_room() -> str:
    return f"S3 holds {ROOM.most:,} bytes here at most: half of this machine's memory."


def _read(key: Any) -> bytes:
    # BytesIO returns the bytes object that it was made of, without a copy, as long as nothing
    # writes to it.
    content: bytes = key._value_buffer.getvalue()
    return content


def _write(key: Any, content: bytes) -> None:
    # moto gives an object that was uploaded in parts an empty text when it copies it for a list.
    content = content or b""
    if not ROOM.take(id(key), KEY_BYTES + len(content)):
        raise S3ClientError("EntityTooLarge", _no_room())
    key._value_buffer.close()
    key._value_buffer = io.BytesIO(content)
    key.contentsize = len(content)
