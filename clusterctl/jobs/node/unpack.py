"""Runs on a node: put the files of the tar archive on stdin into the home folder.

A file that the user changed since it was put there stays as it is, unless it is named in the
arguments (files that are generated). Prints {"written": [...], "same": [...], "kept": [...]}.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

SHIPPED = Path(".clusterctl/shipped.json")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all: mpirun may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        with new.open("wb") as file:
            file.write(content)
        new.chmod(mode)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def unpack(archive: tarfile.TarFile, generated: set[str]) -> dict[str, list[str]]:
    try:
        before = json.loads(SHIPPED.read_text())
    except (OSError, ValueError):
        before = {}
    report: dict[str, list[str]] = {"written": [], "same": [], "kept": []}
    shipped = dict(before)
    for member in archive:
        path = Path(member.name)
        content = archive.extractfile(member).read()  # type: ignore[union-attr]
        there = digest(path.read_bytes()) if path.is_file() else None
        if there == digest(content) and path.stat().st_mode & 0o777 == member.mode:
            report["same"].append(member.name)
        elif there not in (None, digest(content), before.get(member.name, there)) and (
            member.name not in generated
        ):
            report["kept"].append(member.name)
            continue
        else:
            put(path, content, member.mode)
            report["written"].append(member.name)
        shipped[member.name] = digest(content)
    if shipped != before:
        put(SHIPPED, json.dumps(shipped, indent=1).encode(), 0o644)
    return report


def main() -> None:
    os.chdir(Path.home())
    stream = io.BytesIO(sys.stdin.buffer.read())
    try:
        with tarfile.open(fileobj=stream) as archive:
            print(json.dumps(unpack(archive, set(sys.argv[1:]))))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))


main()
