"""The record files of a data set: their names, completeness, and numbers of records."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

import tensorflow as tf

SHARD = re.compile(r"(?P<subset>\w+)-(?P<index>\d{5,})-of-(?P<count>\d{5,})")
# Parts of TensorFlow's error messages that tell a user nothing.
NOISE = re.compile(
    r"\{\{.*?\}\}|\[\[.*?\]\]|\[Op:\w+\]|\bname: *$|\s+"
    # Newer versions of TensorFlow start with this.
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+"
)
TOGETHER = "all training and validation files belong into one folder"


class DataError(Exception):
    """The data cannot be used. The text has the reason and a remedy."""


def files_of(data_dir: str, subset: str) -> list[str]:
    """Return the paths of the "train" or "validation" files, sorted, as train-00000-of-01024.

    `data_dir` is a folder or a URL that TensorFlow can list. Files may be counted from 0 or from 1.
    Raise DataError if there are no files, if one is missing, or if files of two sets are in the
    folder.
    """
    folder = data_dir.rstrip("/") or "/"
    if "://" not in folder:
        folder = os.path.expanduser(folder)  # noqa: PTH111 (pathlib would also tidy the path)
    names = listed(folder)
    shards = [match for match in map(SHARD.fullmatch, names) if match and match["subset"] == subset]
    if not shards:
        within = f" but a folder {subset}/: {TOGETHER}" if subset in names else ""
        raise DataError(f"no files {subset}-00000-of-... in {folder}{within}")
    problem = incomplete(subset, shards)
    if problem:
        raise DataError(f"{problem} in {folder}")
    return sorted(f"{folder}/{match[0]}" for match in shards)


def listed(folder: str) -> list[str]:
    """Return the names in the folder. Raise DataError if it cannot be listed."""
    try:
        # Raises UnimplementedError for an unknown scheme, where listdir raises NotFoundError.
        tf.io.gfile.exists(folder)
        return [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
    except tf.errors.NotFoundError:
        raise DataError(f"there is no folder {folder}") from None
    except tf.errors.UnimplementedError:
        scheme = folder.partition("://")[0]
        raise DataError(
            f"this TensorFlow cannot read {scheme}:// (install tensorflow-io, or copy the data)"
        ) from None
    except tf.errors.OpError as error:
        raise DataError(f"{folder} cannot be listed: {reason(error)}") from None


def incomplete(subset: str, shards: list[re.Match[str]]) -> str | None:
    """Return what is wrong with this set of files, or None."""
    counts = sorted({match["count"] for match in shards})
    if len(counts) > 1:
        return f"{subset} files of two sets (-of-{counts[0]} and -of-{counts[-1]}) lie together"
    count = int(counts[0])
    found = {int(match["index"]) for match in shards}
    if {0, count} <= found:
        return f"{subset} files counted from 0 and files counted from 1 lie together"
    base = 1 if count in found else 0
    missing = sorted(set(range(base, base + count)) - found)
    if missing:
        name = f"{subset}-{missing[0]:05}-of-{counts[0]}"
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        return f"{len(found)} of {count} {subset} files: {name}{more} missing"
    return None if found == set(range(base, base + count)) else f"{subset} files beyond {count}"


def count_records(files: list[str]) -> int:
    """Return the number of records in all files. Only the first and the last file are counted.

    All other files are taken to have as many records as the first. Raise DataError if one of the
    two is truncated or cannot be read.
    """
    return records_in(files[0]) * (len(files) - 1) + records_in(files[-1])


def records_in(path: str) -> int:
    """Return the number of records in a file. Raise DataError if it is truncated or unreadable."""
    if "://" not in path:
        try:
            with Path(path).open("rb", buffering=0) as file:
                return count_lengths(file, path)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from None
    try:
        # A remote file is read whole: reading the lengths alone takes thousands of small requests.
        records = tf.data.TFRecordDataset(path, buffer_size=8 << 20)
        return int(records.reduce(0, lambda count, _: count + 1))
    except tf.errors.OpError as error:
        raise DataError(f"{path}: {reason(error)}") from None


def count_lengths(file: BinaryIO, path: str) -> int:
    """Return the number of records, reading their lengths alone. Raise DataError if truncated.

    A record is its length (8 bytes), a checksum (4 bytes), the data, and another checksum (4).
    """
    end = os.fstat(file.fileno()).st_size
    at = count = 0
    while at < end:
        length = os.pread(file.fileno(), 8, at)
        at += 8 + 4 + int.from_bytes(length, "little") + 4
        count += 1
        if len(length) < 8 or at > end:
            raise DataError(f"{path} is cut short, or is no TFRecord file: copy or make it again")
    return count


def reason(error: tf.errors.OpError) -> str:
    """Return the part of TensorFlow's message that matters to a user, as one line."""
    return " ".join(NOISE.sub(" ", str(error.message)).split())
