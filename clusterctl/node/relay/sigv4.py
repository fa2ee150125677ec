"""AWS's signature of a request, version 4, in its headers. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
ALGORITHM = "AWS4-HMAC-SHA256"


class Keys(NamedTuple):
    """An access key, its secret, and the session's token where it is a temporary one."""

    access: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        # Whatever prints it by mistake prints no secret.
        return f"Keys({self.access!r})"


def encoded_path(path: bytes) -> str:
    """A path as it stands in the request and is signed: S3 has each octet escaped once."""
    return quote(path, safe="/-_.~")


def encoded_query(pairs: Iterable[tuple[str, str]]) -> str:
    """In the order of its names, as it is signed."""
    return "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in sorted(pairs))


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~", errors="surrogateescape")


def signed_headers(
    method: str,
    host: str,
    path: str,
    query: str,
    keys: Keys,
    region: str,
    now: str,
    headers: Mapping[str, str] | None = None,
    service: str = "s3",
) -> dict[str, str]:
    """All headers of a request without a body: `headers` and what signs them.

    `path` and `query` are encoded as above, `now` is written `20130524T000000Z`, in UTC.
    """
    signed = {name.lower(): " ".join(value.split()) for name, value in (headers or {}).items()}
    signed.update({"host": host, "x-amz-content-sha256": EMPTY_SHA256, "x-amz-date": now})
    if keys.token:
        signed["x-amz-security-token"] = keys.token
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = "\n".join([method, path, query, lines, names, EMPTY_SHA256])
    scope = f"{now[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = _signing_key(keys.secret, now[:8], region, service)
    signature = _hmac(key, "\n".join([ALGORITHM, now, scope, digest])).hex()
    signed["authorization"] = (
        f"{ALGORITHM} Credential={keys.access}/{scope},SignedHeaders={names},Signature={signature}"
    )
    return signed


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


@lru_cache(maxsize=16)
def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = _hmac(b"AWS4" + secret.encode(), day)
    for text in (region, service, "aws4_request"):
        key = _hmac(key, text)
    return key
