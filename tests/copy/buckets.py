"""moto's S3 on a real socket, with buckets for one test, and a bucket that fails on request."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

KEYS = {"access": "AKIATEST", "secret": "not so secret"}
_numbers = itertools.count()


class S3Server:
    """A server of S3. `bucket` makes a bucket. Nodes read it with the settings in `config`."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.endpoint = endpoint
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["access"],
            aws_secret_access_key=KEYS["secret"],
        )

    def bucket(self, objects: Mapping[str, bytes]) -> str:
        name = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        for key, body in objects.items():
            self.client.put_object(Bucket=name, Key=key, Body=body)
        return name


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@dataclass
class Bucket:
    """The only bucket of a server: its objects, and the time of each object's last change.

    `before` is called with a key and an offset before each 64 KiB of an object are sent. It may
    wait, or change objects. `faults` is called for each GET of an object: a result of 500 or more
    is the status of the answer; any other number drops the connection after that many bytes.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    changed_at: dict[str, int] = field(default_factory=dict)
    before: Callable[[str, int], None] = lambda key, at: None
    requests: list[str] = field(default_factory=list)
    faults: Callable[[], int | None] = lambda: None

    def listing(self, prefix: str) -> bytes:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>{self.etag(key)}</ETag>"
            f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', self.when(key))}"
            "</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key, body in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        more = "<IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{rows}{more}</ListBucketResult>".encode()

    def etag(self, key: str) -> str:
        return f'"{hashlib.md5(self.objects[key]).hexdigest()}"'  # noqa: S324 - as S3 does

    def when(self, key: str) -> time.struct_time:
        return time.gmtime(self.changed_at.get(key, 1_700_000_000))


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        key = unquote(where.path).lstrip("/").partition("/")[2]
        self.bucket.requests.append(f"{self.command} {self.path}")
        if not key:
            prefix = parse_qs(where.query).get("prefix", [""])[0]
            self._say(200, self.bucket.listing(prefix), {"Content-Type": "application/xml"})
        elif key not in self.bucket.objects:
            self._say(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
        else:
            self._object(key)

    do_HEAD = do_GET

    def _object(self, key: str) -> None:
        body, etag, fault = self.bucket.objects[key], self.bucket.etag(key), self.bucket.faults()
        size = len(body)
        if fault is not None and fault >= 500 and self.command == "GET":
            return self._say(fault, b"<Error><Code>SlowDown</Code></Error>", {})
        if self.headers.get("If-Match", etag) != etag:
            return self._say(412, b"<Error><Code>PreconditionFailed</Code></Error>", {})
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin, last = (int(asked[1]), int(asked[2] or size - 1)) if asked else (0, size - 1)
        end = min(last + 1, size)
        headers = {
            "ETag": self.bucket.etag(key),
            "Last-Modified": formatdate(time.mktime(self.bucket.when(key)), usegmt=True),
            "Accept-Ranges": "bytes",
            **({"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if asked else {}),
        }
        self._head(206 if asked else 200, end - begin, headers)
        if self.command == "HEAD":
            return None
        if fault is not None:
            end, self.close_connection = min(end, begin + fault), True
        with contextlib.suppress(OSError):
            for at in range(begin, end, 1 << 16):
                self.bucket.before(key, at)
                self.wfile.write(self.bucket.objects[key][at : min(end, at + (1 << 16))])
        return None

    def _head(self, status: int, size: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _say(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def one_bucket(objects: Mapping[str, bytes]) -> Iterator[Bucket]:
    """Run a server of S3 with a single bucket, under any name."""
    bucket = Bucket(objects=dict(objects))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Own", (_Answers,), {"bucket": bucket}))
    server.daemon_threads = True
    server.block_on_close = False
    bucket.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
