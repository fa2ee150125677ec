"""Shards: the numbered files of a data set, for example train-00000-of-01024.

This module names and finds shards, divides records among them, and writes files atomically.
shard_jobs.py makes shards with several processes, verify.py checks them, and records.py reads and
writes their content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

NAME = re.compile(r"(?P<subset>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})")
SUBSETS = ("train", "validation")
CLASSES = 1000  # labels are 1 to CLASSES; 0 means "none of them"


class DataError(Exception):
    """Base class of errors that the tools in this folder print in one line, `error: ...`."""


class ShardError(DataError):
    """Shards that are missing, mixed up, or would be replaced."""


def shard_name(subset: str, index: int, count: int) -> str:
    """Return the name of shard `index`, counted from 0."""
    return f"{subset}-{index:05d}-of-{count:05d}"


def find_shards(folder: Path, subset: str) -> list[Path]:
    """Return all shards of a subset in order, from `folder` or else from `folder`/`subset`.

    Raises ShardError if some are missing, and as shards_there does.
    """
    found, problem = shards_there(folder, subset)
    if problem:
        raise ShardError(problem)
    return [path for path in found if path]


def shards_there(folder: Path, subset: str) -> tuple[list[Path | None], str]:
    """Return the shards as find_shards does, with None for each missing one, and which are missing,
    or "".

    They are numbered from 0, or from 1 as by the original resizer. Raises ShardError if there are
    none, or if a folder has two sets of them.
    """
    where, found = folder, shards_in(folder, subset)
    if not found:
        where = folder / subset
        found = shards_in(where, subset)
    if not found:
        raise ShardError(f"no {subset} shards in {folder} ({shard_name(subset, 0, 128)} or alike)")
    counts = sorted({count for _, count in found})
    if len(counts) > 1:
        several = " and of ".join(map(str, counts))
        raise ShardError(f"{where} mixes two sets of {subset} shards: of {several}")
    count = counts[0]
    indexes = {index for index, _ in found}
    if 0 in indexes and count in indexes:
        raise ShardError(f"{where} mixes {subset} shards that are numbered from 0 and from 1")
    first = 1 if count in indexes else 0
    wanted = range(first, first + count)
    missing = [shard_name(subset, index, count) for index in wanted if index not in indexes]
    named = ", ".join(missing[:3]) + ", ..." * (len(missing) > 3)
    problem = f"{where} lacks {len(missing)} of {count} {subset} shards: {named}"
    return [found.get((index, count)) for index in wanted], problem if missing else ""


def shards_in(folder: Path, subset: str) -> dict[tuple[int, int], Path]:
    """Return the shards in `folder`, by (index, count) in their names."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = NAME.fullmatch(path.name)
        if match and match["subset"] == subset:
            found[int(match["index"]), int(match["count"])] = path
    return found


def share_out(records: int, shards: int) -> list[int]:
    """Return the number of records of each shard: the same for all shards but the last.

    Trainers compute the total as records(first) x (shards - 1) + records(last), so only the last
    may differ. It is smaller (for ImageNet 371 against 1252), or larger where rounding up would
    leave it empty. Raises ShardError if there are fewer records than shards.
    """
    if shards < 1 or records < shards:
        raise ShardError(f"{records} records do not fill {shards} shards: ask for fewer shards")
    each = -(-records // shards)
    if each * (shards - 1) >= records:
        each = records // shards
    return [each] * (shards - 1) + [records - each * (shards - 1)]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path. It is renamed to `path` after the block, or removed after an error.

    The data is on the disk before the file is renamed, and the new name before this returns. So a
    power cut cannot leave an incomplete file under the final name.
    """
    temporary = temporary_of(path)
    try:
        with naming(path):
            yield temporary
        commit_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_list(path: Path, lines: Sequence[str]) -> None:
    """Write a file of these lines, or remove it if there are none."""
    if not lines:
        path.unlink(missing_ok=True)
        return
    with writing(path) as temporary:
        text = "".join(f"{line}\n" for line in lines)
        # Lines may have file names, whose bytes may not be UTF-8.
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Set the file name of an OSError in the block that has none, such as "disk full"."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def temporary_of(path: Path) -> Path:
    """Return the temporary name of a file. It is hidden, so that patterns like train-* skip it."""
    return path.with_name(f".{path.name}.partial")


def commit_file(temporary: Path, path: Path) -> None:
    """Rename a finished file. Return when the data and the new name are on the disk."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Write a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def fingerprint(*parts: object) -> str:
    """Return a digest of plain values (numbers, strings, lists of them)."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
