"""Runs on a node: writes files into the home folder. stdin is JSON, compressed by zlib: a
ShippedFile by each path. Prints DeployedFiles.

A file that the user has made, or changed since it was written, is left as it is, unless the
arguments name it: those are generated files.

Every `up` runs this on every node, so it imports nothing that takes long. (tarfile and pathlib take
longer than all of the rest.)
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import zlib
from dataclasses import dataclass
from typing import Dict

from clusterctl.node.record import RecordError, from_json, to_json

# Checksums of the files as they were written, by path.
SHIPPED = ".clusterctl/shipped.json"


@dataclass(frozen=True)
class ShippedFile:
    """A file to write: its permissions, and its content in base64."""

    mode: int
    content: str


@dataclass(frozen=True)
class DeployedFiles:
    """Result of deploying the files to one node, as paths below its home folder.

    `kept` files were changed there by the user and stay.
    """

    written: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


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


def unpack(files: dict[str, ShippedFile], generated: set[str]) -> DeployedFiles:
    """Write the files, and record their checksums. Raises OSError."""
    record, is_damaged = read(SHIPPED), False
    try:
        before = {} if record is None else from_json(Dict[str, str], record)
    except RecordError:
        before, is_damaged = {}, True
    written, same, kept = [], [], []
    shipped = dict(before)
    for path, file in files.items():
        content = base64.b64decode(file.content)
        there = read(path)
        # Without any record, an interrupted first deployment may have left incomplete files. With
        # a damaged one, any file may have been changed by the user.
        is_known = bool(before) or is_damaged
        is_changed = there is not None and is_known and digest(there) != before.get(path)
        if there == content and os.stat(path).st_mode & 0o777 == file.mode:
            same.append(path)
        elif is_changed and there != content and path not in generated:
            kept.append(path)
            continue
        else:
            put(path, content, file.mode)
            written.append(path)
        shipped[path] = digest(content)
    if shipped != before:
        put(SHIPPED, to_json(shipped).encode(), 0o644)
    return DeployedFiles(tuple(written), tuple(same), tuple(kept))


def main() -> None:
    os.chdir(os.path.expanduser("~"))
    files = from_json(Dict[str, ShippedFile], zlib.decompress(sys.stdin.buffer.read()))
    try:
        print(to_json(unpack(files, set(sys.argv[1:]))))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
