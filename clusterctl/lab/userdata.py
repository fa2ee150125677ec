"""User data as cloud-init would take it: a script to run, or why the lab cannot."""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class UserData:
    """One of the two is empty; both are where there is nothing to do."""

    script: bytes = b""
    problem: str = ""


def decode(raw: bytes) -> UserData:
    """Undo base64 and gzip, in that order, as cloud-init does, and look at what it is."""
    try:
        content = _inflated(_debased(raw))
    except (OSError, EOFError, zlib.error) as broken:
        return UserData(problem=f"the user data is not valid gzip: {broken}")
    if not content.strip():
        return UserData()
    if content.startswith(b"#!"):
        return UserData(script=content)
    first_line = content.splitlines()[0][:60].decode(errors="replace")
    return UserData(problem=f"the lab runs user data that starts with #!, not {first_line!r}")


def _debased(raw: bytes) -> bytes:
    try:
        return base64.b64decode(raw.strip(), validate=True) if raw.strip() else raw
    except binascii.Error:
        return raw


def _inflated(raw: bytes) -> bytes:
    return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
