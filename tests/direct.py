"""Sends a client's requests to a WSGI application in this process, without a network.

A request over HTTP costs a connection, a thread and two parsers: a third of the processor time of
a test that launches a cluster.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from botocore.awsrequest import AWSResponse

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Body(io.BytesIO):
    """A response's body, as botocore reads it."""

    def stream(self, *_: Any, **__: Any) -> list[bytes]:
        return [self.read()]


def send(app: App, request: Any) -> AWSResponse:
    """Return the application's response to a request of botocore."""
    answered: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
        answered.append((int(status.split()[0]), dict(headers)))

    body = b"".join(app(_environ(request), start))
    [(status, headers)] = answered
    return AWSResponse(request.url, status, headers, Body(body))


def connect(client: Any, app: App) -> None:
    """Have `app` answer the client's requests.

    botocore calls all handlers of this event, so no other one can keep a request from `app`.
    """
    client.meta.events.register("before-send", lambda request, **_: send(app, request))


def _environ(request: Any) -> dict[str, Any]:
    url = urlsplit(request.url)
    body = request.body or b""
    if isinstance(body, str):
        body = body.encode()
    environ = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": url.path or "/",
        "QUERY_STRING": url.query,
        "REQUEST_URI": f"{url.path or '/'}?{url.query}" if url.query else url.path or "/",
        "SERVER_NAME": url.hostname,
        "SERVER_PORT": str(url.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": url.netloc,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": url.scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        text = value.decode() if isinstance(value, bytes) else str(value)
        environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = text
    return environ
