"""A web server on real sockets that misbehaves on request."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATE = "Sat, 21 Nov 2026 19:34:25 GMT"


class WebServer:
    """A web server for `files`, by path. Each of the first requests gets one of `misdeeds`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.misdeeds: deque[Callable[[Handler], None]] = deque()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.connections = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    web: WebServer

    def setup(self) -> None:
        super().setup()
        self.web.connections += 1

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.web.requests.append((self.command, self.path, headers))
        try:
            misdeed = self.web.misdeeds.popleft()
        except IndexError:
            misdeed = Handler.serve
        misdeed(self)

    do_HEAD = do_PUT = do_GET

    def serve(self) -> None:
        body = self.web.files.get(self.path)
        if body is None:
            self.say(404, b"nothing here")
            return
        etag = self.web.etags.get(self.path, '"1"')
        headers = {"Last-Modified": DATE, "ETag": etag}
        wanted = self.headers.get("Range")
        if wanted and self.headers.get("If-Range", etag) == etag:
            first, last = wanted[6:].split("-")
            if int(first) >= len(body):
                self.say(416, b"", {"Content-Range": f"bytes */{len(body)}"})
                return
            part = body[int(first) : int(last or len(body)) + 1]
            end = int(first) + len(part) - 1
            headers["Content-Range"] = f"bytes {first}-{end}/{len(body)}"
            self.say(206, part, headers)
        else:
            self.say(200, body, headers)

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_now(self) -> None:
        self.wfile.flush()
        self.close_connection = True


def status(code: int, body: bytes = b"", **headers: str) -> Callable[[Handler], None]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.say(code, body, named)


def hang_up(handler: Handler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True


def reset(handler: Handler) -> None:
    """Reset the connection, like a firewall or a crashed server."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True


def cut(
    size: int | None = None, answer: Callable[[Handler], None] = Handler.serve
) -> Callable[[Handler], None]:
    """Send the right answer, but stop after `size` bytes of its content, or after half of it."""

    def misdeed(handler: Handler) -> None:
        whole = handler.wfile

        class Cut:
            def write(self, content: bytes) -> int:
                end = len(content) // 2 if size is None else size
                return whole.write(content if content.startswith(b"HTTP/") else content[:end])

            def flush(self) -> None:
                whole.flush()

        handler.wfile = Cut()  # type: ignore[assignment]
        answer(handler)
        handler.wfile = whole
        handler.end_now()

    return misdeed


half = cut()


def half_then_reset(handler: Handler) -> None:
    half(handler)
    reset(handler)


def junk(handler: Handler) -> None:
    handler.wfile.write(b"\x00\x01 no HTTP at all\r\n\r\n")
    handler.end_now()


def whole_file(handler: Handler) -> None:
    """Answer like a server that does not support ranges."""
    handler.say(200, handler.web.files[handler.path], {"Last-Modified": DATE})


@contextlib.contextmanager
def serving() -> Iterator[WebServer]:
    class Bound(Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    Bound.web = WebServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Bound.web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
