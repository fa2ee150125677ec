"""The guard beside the user's own user data, as cloud-init takes it. Pure, deterministic."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import zlib

from clusterctl.bootstrap.guard.install import guard_script
from clusterctl.domain.errors import UsageError
from clusterctl.node.guard.settings import GuardSettings

MAX_BYTES = 16 * 1024  # EC2's limit, before base64
MAX_INFLATED_BYTES = 4 * 1024 * 1024
# How cloud-init tells what a text is; the longer of two that begin alike comes first.
TYPES = (
    ("#!", "text/x-shellscript"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("#cloud-config-archive", "text/cloud-config-archive"),
    ("#cloud-config", "text/cloud-config"),
    ("#include", "text/x-include-url"),
    ("#part-handler", "text/part-handler"),
    ("## template: jinja", "text/jinja2"),
)


def guard_user_data(settings: GuardSettings) -> bytes:
    """For RunInstances where the user has none: a script."""
    return _fitting(guard_script(settings).encode(), b"")


def with_guard(user_data: bytes, settings: GuardSettings) -> bytes:
    """The user's own user data and the guard's script, which runs before the user's scripts.

    The user's is left as it is where nothing is to be guarded. Raises UsageError where the whole
    is more than EC2 takes, or where the user's part cannot be read.
    """
    if not settings.guards:
        return user_data
    content = _inflated(_debased(user_data))
    if not content.strip():
        return guard_user_data(settings)
    # Scripts run in the order of their names; cloud-init's own are part-001 and so on.
    disposition = 'Content-Disposition: attachment; filename="00-clusterctl-guard"\n'
    script = guard_script(settings).encode()
    parts = [disposition.encode() + _part("text/x-shellscript", script), _user_part(content)]
    boundary = b"clusterctl-" + hashlib.sha256(b"".join(parts)).hexdigest()[:32].encode()
    head = b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="%s"\n\n' % boundary
    middle = b"".join(b"--%s\n%s\n" % (boundary, part) for part in parts)
    return _fitting(head + middle + b"--%s--\n" % boundary, content)


def _user_part(content: bytes) -> bytes:
    # A multipart message is a part as it stands: cloud-init walks into it.
    if b"mime-version:" in content[:4096].lower():
        return content
    text = content.lstrip().decode(errors="replace").lower()
    kind = next((kind for start, kind in TYPES if text.startswith(start)), "text/plain")
    return _part(kind, content)


def _part(kind: str, content: bytes) -> bytes:
    if content.isascii():
        return f'Content-Type: {kind}; charset="us-ascii"\n\n'.encode() + content
    # cloud-init reads other characters rightly in this form only.
    header = f'Content-Type: {kind}; charset="utf-8"\nContent-Transfer-Encoding: base64\n\n'
    return header.encode() + base64.encodebytes(content)


def _fitting(content: bytes, user: bytes) -> bytes:
    if len(content) <= MAX_BYTES:
        return content
    packed = _gzip(content)
    if len(packed) > MAX_BYTES:
        room = MAX_BYTES - len(_gzip(content.replace(user, b"", 1)))
        raise UsageError(
            f"the user data does not fit: {len(packed)} bytes with the guard, compressed, and EC2"
            f" takes {MAX_BYTES}",
            f"keep it under {room} bytes compressed: let it fetch what is large from S3",
        )
    return packed


def _gzip(content: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(content) + packer.flush()


def _debased(raw: bytes) -> bytes:
    """cloud-init undoes base64 on EC2, so that it may be given twice."""
    try:
        return base64.b64decode(raw.strip(), validate=True)
    except binascii.Error:
        return raw


def _inflated(raw: bytes) -> bytes:
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            content = file.read(MAX_INFLATED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as broken:
        raise UsageError(
            f"the user data is not valid gzip: {broken}", "give it uncompressed"
        ) from None
    if len(content) > MAX_INFLATED_BYTES:
        raise UsageError("the user data is too large once it is uncompressed", "make it smaller")
    return content
