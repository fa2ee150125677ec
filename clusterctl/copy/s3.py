"""Data sets at URLs, this machine's side: what the nodes are told, and the tools' command lines.
Pure, but for what asks the nodes."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union
from urllib.parse import urlsplit

from clusterctl.domain.errors import UsageError

BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", re.ASCII)
CONNECTIONS = 32
# s5cmd's own: requests at once, and those for parts of one object.
S5CMD_WORKERS = 64
S5CMD_PARTS = 8


@dataclass(frozen=True)
class LentKeys:
    """Keys that go to the nodes over SSH, and are written down nowhere."""

    access: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return f"LentKeys({self.access!r})"

    def as_config(self) -> dict[str, str]:
        return {"access": self.access, "secret": self.secret, "token": self.token}


# Whose keys the nodes use: None for their instance profile's, "none" for a public bucket.
Credentials = Union[LentKeys, str, None]


@dataclass(frozen=True)
class UrlSource:
    """One SRC: a bucket with a prefix or an object's key, or a file of a web server."""

    url: str
    bucket: str = ""
    key: bytes = b""

    @property
    def is_s3(self) -> bool:
        return bool(self.bucket)

    @property
    def is_folder(self) -> bool:
        """Whether it is surely no single object."""
        return self.is_s3 and (not self.key or self.key.endswith(b"/"))

    def as_config(self) -> dict[str, str]:
        if not self.is_s3:
            return {"kind": "http", "url": self.url}
        key = base64.b64encode(self.key).decode()
        return {"kind": "s3", "bucket": self.bucket, "key_b64": key}


def is_url(text: str) -> bool:
    return text.startswith(("s3://", "http://", "https://"))


def parse_source(text: str) -> UrlSource:
    """`s3://BUCKET/PREFIX` or `https://HOST/FILE`. Raises UsageError."""
    if text.startswith("s3://"):
        bucket, _, key = text[5:].partition("/")
        if not BUCKET.fullmatch(bucket):
            raise UsageError(
                f"not a bucket: {bucket!r}" if bucket else f"no bucket is named: {text!r}",
                "write it as s3://BUCKET/PREFIX: names have 3 to 63 letters (a-z), digits, . or -",
            )
        return UrlSource(text, bucket, key.encode("utf-8", "surrogateescape"))
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not is_url(text) or not host:
        raise UsageError(f"not a URL of data: {text!r}", "write it as s3://BUCKET/PREFIX")
    if parts.username or parts.password:
        raise UsageError(
            f"a password in the URL of {host} would be seen in lists of processes", "leave it out"
        )
    return UrlSource(text)


def check_endpoint(text: str | None) -> str | None:
    """The URL itself. Raises UsageError."""
    if text is not None and not re.fullmatch(r"https?://[^/\s@]+/?", text):
        raise UsageError(f"not an endpoint: {text!r}", "write it as https://HOST:PORT")
    return text


def urls_config(
    sources: Sequence[UrlSource],
    *,
    names: Sequence[bytes] | None = None,
    credentials: Credentials = None,
    endpoint: str | None = None,
    region: str | None = None,
    connections: int = CONNECTIONS,
    mirror: bool = False,
) -> dict[str, Any]:
    """What a node is told: it may hold keys, and goes to nodes' stdin only."""
    lent = credentials.as_config() if isinstance(credentials, LentKeys) else credentials
    return {
        "sources": [source.as_config() for source in sources],
        "names_b64": None if names is None else [base64.b64encode(n).decode() for n in names],
        "credentials": lent,
        "endpoint": check_endpoint(endpoint),
        "region": region,
        "connections": connections,
        "mirror": mirror,
    }


def without_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The same, fit to be shown."""
    lent = isinstance(config.get("credentials"), dict)
    return {**config, "credentials": "lent"} if lent else config


def s5cmd_line(
    source: UrlSource,
    destination: str,
    one: bool,
    endpoint: str | None = None,
    public: bool = False,
) -> list[str]:
    """s5cmd, for all that is below a prefix, or for one object."""
    base = ["s5cmd", "--log", "error", "--numworkers", str(S5CMD_WORKERS)]
    base += ["--endpoint-url", endpoint] if endpoint else []
    base += ["--no-sign-request"] if public else []
    if one:
        return [*base, "cp", "--concurrency", str(S5CMD_PARTS), source.url, destination]
    # Its names are patterns; no star means no folder to it.
    return [*base, "sync", f"{_slashed(source.url)}*", _slashed(destination)]


def aws_line(
    source: UrlSource,
    destination: str,
    one: bool,
    endpoint: str | None = None,
    public: bool = False,
) -> list[str]:
    """aws-cli, for all that is below a prefix, or for one object."""
    verb = "cp" if one else "sync"
    line = ["aws", "s3", verb, "--only-show-errors", source.url, destination]
    line += ["--endpoint-url", endpoint] if endpoint else []
    return line + (["--no-sign-request"] if public else [])


def _slashed(text: str) -> str:
    return text if text.endswith("/") else text + "/"
