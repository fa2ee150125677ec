"""The request for a copy: what, from where, to where, and how. It is checked when it is made."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.domain.errors import UsageError, check_home, is_needed_by_nodes
from clusterctl.domain.units import format_bytes

# Limits of --block-size, in bytes, and of --streams.
LEAST_BLOCK = 64 << 10
MOST_BLOCK = 64 << 20
MOST_STREAMS = 64
_URL = re.compile(r"(s3|https?)://", re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


@dataclass(frozen=True)
class CopyRequest:
    """A copy of SRC to DST, with rsync's meaning of slashes.

    `sources` are paths, globs, or `s3://` or `http(s)://` URLs. Paths are on this machine if
    `from_node` is None, else on the node with that index. `names` (of --files-from) are relative
    to the only source. `port` 0 is any free port. `link_rate` is the rate of the slowest link in
    bytes a second, if the user knows it. Raises UsageError, with what to change.
    """

    sources: tuple[str, ...]
    destination: str
    from_node: int | None = None
    names: tuple[bytes, ...] | None = None
    delete: bool = False
    checksum: bool = False
    dry_run: bool = False
    verify: bool = False
    encrypt: bool = False
    streams: int | None = None
    block_bytes: int | None = None
    port: int = 0
    link_rate: float | None = None

    def __post_init__(self) -> None:
        for check in _CHECKS:
            check(self)

    @property
    def has_urls(self) -> bool:
        return any(map(is_url, self.sources))


def check_endpoint(text: str | None) -> str | None:
    """Return the URL of an S3 endpoint unchanged. Raises UsageError if it is malformed."""
    if text is not None and not re.fullmatch(r"https?://[^/\s@]+/?", text):
        raise UsageError(f"not an endpoint: {text!r}", "write it as https://HOST:PORT")
    return text


def is_url(source: str) -> bool:
    """Return whether a source is an `s3://`, `http://` or `https://` URL, which nodes fetch."""
    return bool(_URL.match(source))


def is_s3(source: str) -> bool:
    return source[:5].lower() == "s3://"


def check_sources_here(request: CopyRequest) -> None:
    """Check the paths on this machine, before any connection is opened. Raises UsageError."""
    if request.from_node is not None or request.has_urls:
        return
    found = [path for source in request.sources for path in _matches(Path(source).expanduser())]
    if request.names is not None and not found[0].is_dir():
        raise UsageError(
            f"--files-from is for a folder, and {request.sources[0]!r} is none",
            "name the folder that the names are below",
        )
    if request.delete and not any(path.is_dir() for path in found):
        raise UsageError(
            f"--delete is for folders, and {request.sources[0]!r} is none", "leave out --delete"
        )


def _matches(path: Path) -> list[Path]:
    if os.path.lexists(path):
        return [path]
    matches = [Path(match) for match in glob.glob(str(path))]  # noqa: PTH207
    if not matches:
        raise UsageError(f"there is nothing at {str(path)!r}", "name an existing file or folder")
    return matches


def _check_paths(request: CopyRequest) -> None:
    if not request.sources:
        raise UsageError("no SRC: there is nothing to copy", "name a file or folder")
    if "" in request.sources:
        raise UsageError("there is nothing at ''", "name an existing file or folder")
    if not request.destination:
        raise UsageError("DST is empty", "name the folder on the nodes, or ~ for the home folder")
    for path in (*request.sources, request.destination):
        if "\0" in path:
            raise UsageError(f"no path has a zero byte: {path!r}")
        check_home(path)
        scheme = _SCHEME.match(path)
        if scheme and not is_url(path):
            raise UsageError(
                f"cannot read {scheme[1]}://, in {path!r}",
                "SRC is a path, or an s3://, http:// or https:// URL",
            )
    if is_url(request.destination):
        raise UsageError(
            f"DST is a path on the nodes, not a URL: {request.destination!r}",
            "data comes from URLs to nodes; to upload, run `aws s3 sync` on a node",
        )


def _check_ways(request: CopyRequest) -> None:
    urls = [source for source in request.sources if is_url(source)]
    if urls and len(urls) < len(request.sources):
        raise UsageError(
            f"SRC mixes paths and URLs: {urls[0]!r} is a URL", "copy them one after the other"
        )
    if urls and request.from_node is not None:
        raise UsageError(
            "--from names the node that has the paths, and URLs are on none", "leave out --from"
        )


def _check_names(request: CopyRequest) -> None:
    if request.names is None:
        return
    if len(request.sources) > 1:
        raise UsageError(
            "--files-from takes one SRC: the folder that the names are relative to",
            f"{len(request.sources)} are given",
        )
    if not request.names:
        raise UsageError("--files-from names no file")
    for name in request.names:
        if not name or b"\0" in name or name.startswith(b"/") or b".." in name.split(b"/"):
            raise UsageError(
                f"--files-from has a name that is not below SRC: {name.decode(errors='replace')!r}",
                "names are relative to SRC, without ..",
            )


def _check_delete(request: CopyRequest) -> None:
    if not request.delete:
        return
    if request.names is not None:
        raise UsageError(
            "--delete and --files-from exclude each other",
            "all that is not named would be deleted on the nodes",
        )
    if is_needed_by_nodes(request.destination):
        raise UsageError(
            f"--delete into {request.destination!r} would delete what the node runs on",
            "copy into a folder of its own",
        )


def _check_numbers(request: CopyRequest) -> None:
    if request.streams is not None and not 1 <= request.streams <= MOST_STREAMS:
        raise UsageError(
            f"{request.streams} streams", f"a hop has 1 to {MOST_STREAMS}; 24 is usual"
        )
    block = request.block_bytes
    if block is not None and not LEAST_BLOCK <= block <= MOST_BLOCK:
        raise UsageError(
            f"a block of {format_bytes(block)}", "blocks have 64KiB to 64MiB; 8MiB is usual"
        )
    if request.port and not 1024 <= request.port <= 65535:
        raise UsageError(
            f"port {request.port} cannot be listened on", "ports are 1024 to 65535; 0 is any"
        )
    if request.link_rate is not None and not request.link_rate > 0:
        raise UsageError("--link-rate is no rate", "write it as 25gbit or 160mbit")
    if request.verify and request.dry_run:
        raise UsageError(
            "--verify and --dry-run exclude each other", "a dry run copies nothing to verify"
        )


_CHECKS: tuple[Callable[[CopyRequest], None], ...] = (
    *(_check_paths, _check_ways, _check_names, _check_delete, _check_numbers),
)
