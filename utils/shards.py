"""Shards: the numbered files that hold a data set between them, as train-00000-of-01024.

Names and finding them, sharing records out, and writing a file whole or not at all. To make many
shards over processes see shard_jobs.py; to check them, verify.py; for what is inside, records.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"(?P<subset>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})")
SUBSETS = ("train", "validation")
CLASSES = 1000  # labels are 1 to this; 0 is left for "none of them"


class DataError(Exception):
    """What the tools of this folder say in one line: `error: ...`."""


class ShardError(DataError):
    """Shards that are missing, mixed up or in the way."""


def shard_name(subset: str, index: int, count: int) -> str:
    """The name of shard `index`, counted from 0."""
    return f"{subset}-{index:05d}-of-{count:05d}"


def find_shards(folder: Path, subset: str) -> list[Path]:
    """All shards of a subset, in order: from `folder` itself, or else from `folder`/`subset`.

    They are numbered from 0, or from 1 as the first resizer of this format did. Raises ShardError
    when there are none, some are missing, or two sets of them lie in one folder.
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
    missing = sorted(set(range(first, first + count)) - indexes)
    if missing:
        name = shard_name(subset, missing[0], count)
        raise ShardError(f"{where} lacks {len(missing)} of {count} {subset} shards: {name} ...")
    return [found[index, count] for index in range(first, first + count)]


def shards_in(folder: Path, subset: str) -> dict[tuple[int, int], Path]:
    """The shards that lie in `folder`, by number and how many there should be."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = NAME.fullmatch(path.name)
        if match and match["subset"] == subset:
            found[int(match["index"]), int(match["count"])] = path
    return found


def share_out(records: int, shards: int) -> list[int]:
    """How many records each shard gets: all the same, only the last one other.

    Trainers count records(first) x (shards - 1) + records(last), so it must be the last. It is the
    smaller one (1252 and 371 of ImageNet's), or the larger where rounding up would leave it empty.
    """
    if shards < 1 or records < shards:
        raise ShardError(f"{records} records do not fill {shards} shards: ask for fewer shards")
    each = -(-records // shards)
    if each * (shards - 1) >= records:
        each = records // shards
    return [each] * (shards - 1) + [records - each * (shards - 1)]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block ends well, and vanishes when not.

    The data is on the disk before the name changes, and the name before this returns, so that no
    power cut leaves half a file under the name of a whole one.
    """
    temporary = temporary_of(path)
    try:
        with naming(path):
            yield temporary
        settle(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the system within, such as a full disk, says which file it was about."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def temporary_of(path: Path) -> Path:
    """Hidden, so that no reader's train-* finds it."""
    return path.with_name(f".{path.name}.partial")


def settle(temporary: Path, path: Path) -> None:
    """Give a finished file its name, durably."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0))


def fingerprint(*parts: object) -> str:
    """A digest of plain values (numbers, texts, lists of them): equal parts, equal digest."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
