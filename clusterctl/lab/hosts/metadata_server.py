"""EC2's instance metadata service, version 2 and 1, for the hosts of the lab.

Who asks is told by the address that the connection comes from.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.serving import BaseWSGIServer, make_server

from clusterctl.lab.hosts.instances import LabInstance, all_lab_instances
from clusterctl.lab.hosts.metadata import lookup, tree_of

TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
LONGEST_TTL_S = 21_600
VERSION = re.compile(r"latest|1\.0|20\d\d-\d\d-\d\d")
OK, BAD, DENIED, FORBIDDEN, MISSING, NOT_SO = (
    "200 OK",
    "400 Bad Request",
    "401 Unauthorized",
    "403 Forbidden",
    "404 Not Found",
    "405 Method Not Allowed",
)


class Tokens:
    """Session tokens: each for one instance, until its time is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}

    def make(self, instance_id: str, ttl_s: int) -> str:
        token, now = secrets.token_urlsafe(40), self._clock()
        known = {one: entry for one, entry in list(self._known.items()) if entry[1] > now}
        self._known = {**known, token: (instance_id, now + ttl_s)}
        return token

    def admits(self, token: str, instance_id: str) -> bool:
        owner, ends = self._known.get(token, ("", 0.0))
        return owner == instance_id and self._clock() < ends


def make_metadata_server(listening: socket.socket) -> BaseWSGIServer:
    """On the socket that listens inside the lab."""
    host, port = listening.getsockname()
    answer = metadata_app(Tokens(), instance_at)
    return make_server(host, port, answer, threaded=True, fd=listening.fileno())


def instance_at(address: str) -> LabInstance | None:
    """The instance whose host has the private address."""
    found = (one for one in all_lab_instances() if one.private_ip_address == address)
    return next(found, None)


def metadata_app(
    tokens: Tokens, instance_at: Callable[[str], LabInstance | None]
) -> Callable[..., Iterable[bytes]]:
    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        instance = instance_at(environ.get("REMOTE_ADDR", ""))
        status, content = _serve(environ, instance, tokens) if instance else (MISSING, b"")
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(content)))]
        ttl = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS")
        if status == OK and environ["REQUEST_METHOD"] == "PUT":
            headers.append(("X-aws-ec2-metadata-token-ttl-seconds", str(ttl)))
        start(status, headers)
        return [content]

    return answer


def _serve(environ: dict[str, Any], instance: LabInstance, tokens: Tokens) -> tuple[str, bytes]:
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    options = instance.metadata_options
    if options.http_endpoint == "disabled":
        return FORBIDDEN, b""
    if method == "PUT" and path == TOKEN_PATH:
        return _new_token(environ, instance, tokens)
    if method not in ("GET", "HEAD"):
        return NOT_SO, b""
    token = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN")
    if token is None and options.http_tokens == "required":
        return DENIED, b""
    if token is not None and not tokens.admits(token, instance.id):
        return DENIED, b""
    return _read(instance, path)


def _new_token(environ: dict[str, Any], instance: LabInstance, tokens: Tokens) -> tuple[str, bytes]:
    ttl = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS", "")
    # Not through a proxy: that is what the PUT is for.
    if "HTTP_X_FORWARDED_FOR" in environ:
        return FORBIDDEN, b""
    if not (ttl.isascii() and ttl.isdecimal()) or not 1 <= int(ttl) <= LONGEST_TTL_S:
        return BAD, b""
    return OK, tokens.make(instance.id, int(ttl)).encode()


def _read(instance: LabInstance, path: str) -> tuple[str, bytes]:
    version, _, rest = path.lstrip("/").partition("/")
    if not version:
        return OK, b"1.0\n2021-07-15\nlatest"
    found = lookup(tree_of(instance), rest) if VERSION.fullmatch(version) else None
    return (MISSING, b"") if found is None else (OK, found)
