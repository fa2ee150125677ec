"""User data as cloud-init would take it: files to run, and what the lab cannot do of it."""

from __future__ import annotations

import base64
import binascii
import email
import gzip
import io
import string
import zlib
from dataclasses import dataclass
from email.message import Message

from clusterctl.domain.errors import LabError

# Where cloud-init puts the parts that it runs, below /var/lib/cloud.
FOLDERS = {
    "text/x-shellscript": "instance/scripts",
    "text/x-shellscript-per-instance": "scripts/per-instance",
    "text/x-shellscript-per-once": "scripts/per-once",
    "text/x-shellscript-per-boot": "scripts/per-boot",
    "text/cloud-boothook": "instance/boothooks",
}
# Types that say nothing: the content's first line does.
VAGUE = ("text/plain", "text/x-not-multipart", "application/octet-stream", "application/gzip")
# The 16 KiB that a launch may bring are this much when they are zeros; parts can be packed again.
MOST_INFLATED = 16 * 2**20
BOOTHOOK = b"#cloud-boothook"
IN_NAMES = string.ascii_letters + string.digits + "_-.()"


@dataclass(frozen=True)
class UserData:
    """Files below /var/lib/cloud, in their order, and what of it the lab cannot run."""

    files: tuple[tuple[str, bytes], ...] = ()
    problem: str = ""


def decode(raw: bytes) -> UserData:
    """Undo base64 and gzip, in that order, as cloud-init does, and look at what it is.

    Raises LabError for what takes more stack or memory than a launch may.
    """
    try:
        content = _inflated(_debased(raw), MOST_INFLATED)
        if _is_mime(content):
            return _from_parts(content)
    except RecursionError:
        raise LabError("the parts of the user data are nested too deeply") from None
    except (OSError, EOFError, zlib.error) as broken:
        return UserData(problem=f"the user data is not valid gzip: {broken}")
    return _place("part-001", _type_of(content), content)


def _from_parts(content: bytes) -> UserData:
    parts = [part for part in email.message_from_bytes(content).walk() if not part.is_multipart()]
    found, room = [], MOST_INFLATED
    for number, part in enumerate(parts, start=1):
        found.append(_read(part, number, room))
        room -= sum(len(file) for _, file in found[-1].files)
    problems = [one.problem for one in found if one.problem]
    # A later part with the name of an earlier one takes its place.
    files = {path: file for one in found for path, file in one.files}
    return UserData(tuple(files.items()), "; ".join(problems))


def _read(part: Message, number: int, room: int) -> UserData:
    payload = part.get_payload(decode=True)
    content = _inflated(payload if isinstance(payload, bytes) else b"", room)
    kind = part.get_content_type()
    name = _clean(part.get_filename() or "") or f"part-{number:03d}"
    return _place(name, _type_of(content) if kind in VAGUE else kind, content)


def _place(name: str, kind: str, content: bytes) -> UserData:
    if not content.strip():
        return UserData()
    if kind not in FOLDERS:
        shown = (content.splitlines() or [b""])[0][:60].decode(errors="replace")
        what = shown if kind in VAGUE else kind
        return UserData(problem=f"the lab runs user data that starts with #!, not {what!r}")
    if content.startswith(BOOTHOOK):
        content = content[len(BOOTHOOK) :].lstrip()
    if content.partition(b"\n")[0].endswith(b"\r"):
        content = content.replace(b"\r\n", b"\n")
    return UserData(((f"{FOLDERS[kind]}/{name}", content),))


def _type_of(content: bytes) -> str:
    """What its first line says it is; a vague type where that says nothing to the lab."""
    if content.startswith(b"#!"):
        return "text/x-shellscript"
    return "text/cloud-boothook" if content.startswith(BOOTHOOK) else VAGUE[0]


def _is_mime(content: bytes) -> bool:
    return b"mime-version:" in content[:4096].lower()


def _clean(name: str) -> str:
    """The name as cloud-init makes a file's of it; none where nothing is left."""
    kept = "".join(letter for letter in name.replace("/", "_") if letter in IN_NAMES)
    return kept if kept.strip(".") else ""


def _debased(raw: bytes) -> bytes:
    try:
        return base64.b64decode(raw.strip(), validate=True) if raw.strip() else raw
    except binascii.Error:
        return raw


def _inflated(raw: bytes, most: int) -> bytes:
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
        content = packed.read(most + 1)
    if len(content) > most:
        raise LabError(f"the user data inflates to more than {MOST_INFLATED >> 20} MiB")
    return content
