"""Runs on a node: writes files into the home folder. stdin is JSON, compressed by zlib:
{PATH: {"mode": 420, "content": BASE64}}.

A file that the user has made, or changed since it was written, is left as it is, unless the
arguments name it: those are generated files. Prints
{"written": [...], "same": [...], "kept": [...]}.

Every `up` runs this on every node, so it imports nothing that takes long. (tarfile and pathlib take
longer than all of the rest.)
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Checksums of the files as they were written, by path.
SHIPPED = ".clusterctl/shipped.json"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(path: str) -> bytes | None:
    """Return the content of a file; None if there is none."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def put(path: str, content: bytes, mode: int) -> None:
    """Replace the file in one step: mpirun may be reading it."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    new = f"{path}.new-{os.getpid()}"
    try:
        with open(new, "wb") as file:
            file.write(content)
        os.chmod(new, mode)
        os.replace(new, path)
    except OSError:
        if os.path.exists(new):
            os.unlink(new)
        raise


def unpack(files: dict[str, Any], generated: set[str]) -> dict[str, list[str]]:
    """Write the files, and record their checksums. Return what is printed. Raises OSError."""
    try:
        before = json.loads(read(SHIPPED) or b"{}")
    except ValueError:
        before = {}
    report: dict[str, list[str]] = {"written": [], "same": [], "kept": []}
    shipped = dict(before)
    for path, file in files.items():
        content = base64.b64decode(file["content"])
        there = read(path)
        # Without any record, an interrupted first deployment may have left incomplete files.
        is_changed = there is not None and bool(before) and digest(there) != before.get(path)
        if there == content and os.stat(path).st_mode & 0o777 == file["mode"]:
            report["same"].append(path)
        elif is_changed and there != content and path not in generated:
            report["kept"].append(path)
            continue
        else:
            put(path, content, file["mode"])
            report["written"].append(path)
        shipped[path] = digest(content)
    if shipped != before:
        put(SHIPPED, json.dumps(shipped, indent=1).encode(), 0o644)
    return report


def main() -> None:
    os.chdir(os.path.expanduser("~"))
    files = json.loads(zlib.decompress(sys.stdin.buffer.read()))
    try:
        print(json.dumps(unpack(files, set(sys.argv[1:]))))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
