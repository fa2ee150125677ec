"""What the lab's WSGI applications share: reading requests, and answering pages in JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusterctl.domain.errors import ClusterctlError

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

# The WSGI variable that tells the API which service the request is signed for.
SERVICE = "clusterctl.service"
# The most bytes of a request's body, for pages and for all services but S3.
BODY_LIMIT = 2**20


def read_body(environ: dict[str, Any]) -> bytes | None:
    """Return the body, and put it back for the next reader; None if it exceeds BODY_LIMIT."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isdecimal() or int(length) > BODY_LIMIT:
        return None
    body: bytes = environ["wsgi.input"].read(int(length))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def read_json(environ: dict[str, Any]) -> Any:
    """Return the body, parsed; None if it is not JSON or too long."""
    try:
        return json.loads(read_body(environ) or b"")
    except ValueError:
        return None


def is_form(environ: dict[str, Any]) -> bool:
    return str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded")


def send_json(start: Callable[..., Any], status: str, content: object) -> Iterable[bytes]:
    start(status, [("Content-Type", "application/json")])
    return [json.dumps(content).encode()]


def pages(served: Mapping[str, Callable[[dict[str, Any]], object]]) -> Wsgi:
    """Return an application that serves pages: path -> function from a request to the answer.

    A function raises ClusterctlError to refuse a request.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        serve = served.get(environ["PATH_INFO"])
        if serve is None:
            problem = {"error": "the lab has no such page", "hint": ""}
            return send_json(start, "404 Not Found", problem)
        try:
            return send_json(start, "200 OK", serve(environ))
        except ClusterctlError as refused:
            problem = {"error": refused.message, "hint": refused.hint}
            return send_json(start, "400 Bad Request", problem)

    return answer
