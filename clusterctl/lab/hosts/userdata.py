"""Reads user data as cloud-init does: which files to run, and what of it the lab cannot run.

What the lab does of #cloud-config becomes scripts, which run when cloud-init's do. They call the
functions of hosts/files/cloud-config.
"""

from __future__ import annotations

import base64
import binascii
import email
import gzip
import io
import shlex
import string
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

import yaml

from clusterctl.domain.errors import LabError

DONE = ("runcmd", "ssh_authorized_keys", "users", "write_files")
DEFAULT_USER = "ubuntu"
ENCODINGS = ("b64", "base64")
FIRST, LAST = "#!/bin/sh\n. /usr/lib/clusterctl-lab/cloud-config\n", "#!/bin/sh\n"


def read(content: bytes) -> tuple[list[tuple[str, bytes]], str]:
    """Return the scripts (path below /var/lib/cloud, content), and what the lab cannot do of it."""
    try:
        config = yaml.safe_load(content)
        if not isinstance(config, dict):
            return [], "the #cloud-config is no mapping"
        first = [*_files(config.get("write_files") or []), *_users(config.get("users") or [])]
        keys = config.get("ssh_authorized_keys") or []
        first += [_call("add_key", DEFAULT_USER, key) for key in keys]
        last = [one if isinstance(one, str) else _call(*one) for one in config.get("runcmd") or []]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as wrong:
        return [], f"the #cloud-config is not valid: {' '.join(str(wrong).split())[:200]}"
    beyond = ", ".join(sorted(str(key) for key in config if key not in DONE))
    problem = f"the lab does {', '.join(DONE)} of #cloud-config, not {beyond}" if beyond else ""
    scripts = ("boothooks/cloud-config", FIRST, first), ("scripts/runcmd", LAST, last)
    texts = ((path, head + "".join(f"{one}\n" for one in body)) for path, head, body in scripts)
    return [(f"instance/{path}", text.encode()) for path, text in texts], problem


def _call(*words: Any) -> str:
    return shlex.join(str(word) for word in words)


def _files(wanted: list[dict[str, Any]]) -> Iterator[str]:
    for one in wanted:
        content = str(one.get("content", ""))
        packed = one.get("encoding") in ENCODINGS
        text = content if packed else base64.b64encode(content.encode()).decode()
        how = one.get("permissions", "0644"), one.get("owner", "root:root")
        yield _call("add_file", one["path"], text, *how, "append" if one.get("append") else "")


def _users(wanted: list[Any]) -> Iterator[str]:
    for one in wanted:
        user = one if isinstance(one, dict) else {"name": one}
        name = user["name"]
        if name == "default":
            continue
        yield _call("add_user", name, user.get("shell", "/bin/sh"))
        groups, rules = user.get("groups") or [], user.get("sudo") or []
        for group in groups.split(",") if isinstance(groups, str) else groups:
            yield _call("add_group", name, str(group).strip())
        for rule in [rules] if isinstance(rules, str) else rules:
            yield _call("add_rule", name, rule)
        for key in user.get("ssh_authorized_keys") or []:
            yield _call("add_key", name, key)


# Type of a part -> the folder below /var/lib/cloud where cloud-init puts it to run it.
FOLDERS = {
    "text/x-shellscript": "instance/scripts",
    "text/x-shellscript-per-instance": "scripts/per-instance",
    "text/x-shellscript-per-once": "scripts/per-once",
    "text/x-shellscript-per-boot": "scripts/per-boot",
    "text/cloud-boothook": "instance/boothooks",
}
# Generic types: the first line of the content decides about them.
VAGUE = ("text/plain", "text/x-not-multipart", "application/octet-stream", "application/gzip")
# Bytes. The 16 KiB of a launch's user data can inflate to this, and its parts can be compressed
# once more.
MOST_INFLATED = 16 * 2**20
BOOTHOOK = b"#cloud-boothook"
CLOUD_CONFIG = "text/cloud-config"
# The characters that cloud-init keeps in a file's name.
IN_NAMES = string.ascii_letters + string.digits + "_-.()"


@dataclass(frozen=True)
class UserData:
    """The files of user data: (path below /var/lib/cloud, content), in their order.

    `problem` is what the lab cannot run of it; empty if it can run everything.
    """

    files: tuple[tuple[str, bytes], ...] = ()
    problem: str = ""


def decode(raw: bytes) -> UserData:
    """Read user data: undo base64, then gzip, as cloud-init does, and split a MIME message.

    Raise LabError for parts that are nested too deeply or inflate to too much.
    """
    try:
        content = _inflated(_debased(raw), MOST_INFLATED)
        if b"mime-version:" in content[:4096].lower():
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
    """Read the part with this number, which may inflate to `room` bytes."""
    payload = part.get_payload(decode=True)
    content = _inflated(payload if isinstance(payload, bytes) else b"", room)
    kind = part.get_content_type()
    name = _clean(part.get_filename() or "") or f"part-{number:03d}"
    return _place(name, _type_of(content) if kind in VAGUE else kind, content)


def _place(name: str, kind: str, content: bytes) -> UserData:
    """Return a part as the file that cloud-init makes of it, or as a problem."""
    if not content.strip():
        return UserData()
    if kind == CLOUD_CONFIG:
        files, problem = read(content)
        return UserData(tuple(files), problem)
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
    """Return the type that the first line names; a generic one if the lab does not know it."""
    if content.startswith(b"#!"):
        return "text/x-shellscript"
    if content.startswith(b"#cloud-config"):
        return CLOUD_CONFIG
    return "text/cloud-boothook" if content.startswith(BOOTHOOK) else VAGUE[0]


def _clean(name: str) -> str:
    """Return the file name that cloud-init makes of a part's name; empty if nothing is left."""
    kept = "".join(letter for letter in name.replace("/", "_") if letter in IN_NAMES)
    return kept if kept.strip(".") else ""


def _debased(raw: bytes) -> bytes:
    try:
        return base64.b64decode(raw.strip(), validate=True) if raw.strip() else raw
    except binascii.Error:
        return raw


def _inflated(raw: bytes, most: int) -> bytes:
    """Undo gzip, if it is gzip. Raise LabError if the result has more than `most` bytes."""
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
        content = packed.read(most + 1)
    if len(content) > most:
        raise LabError(f"the user data inflates to more than {MOST_INFLATED >> 20} MiB")
    return content
