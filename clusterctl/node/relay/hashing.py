"""Digests of many files, side by side."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

PIECE = 1 << 20
SHA256_BYTES = 32
# More than cores where there are few: readers wait for the disk in turn.
LEAST_READERS, MOST_READERS = 4, 32

_own = threading.local()  # a buffer for each thread
Item = TypeVar("Item")
Result = TypeVar("Result")


def digest_of(path: bytes, read: Callable[[int], object] = int, kind: str = "sha256") -> bytes:
    """Of the file's content; `read` hears of the bytes as they are read. Raises OSError.

    Neither a link is followed nor a pipe waited for: what was a file a moment ago may be one now.
    """
    digest = hashlib.new(kind)
    view = getattr(_own, "view", None)
    if view is None:
        # Aligned to pages, which a bytearray is not: copies from the kernel are 3.3 x dearer there.
        view = _own.view = memoryview(mmap.mmap(-1, PIECE))
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb", buffering=0) as file:
        while size := file.readinto(view):
            digest.update(view[:size])
            read(size)
    return digest.digest()


def has_digest(path: bytes, digest: bytes) -> bool:
    """Whether that is the digest of its content: SHA-256, or the MD5 that S3 tells. False where
    there is none, or the file cannot be read.
    """
    try:
        kind = "sha256" if len(digest) == SHA256_BYTES else "md5"
        return bool(digest) and digest_of(path, kind=kind) == digest
    except OSError:
        return False


def digest_or_none(path: bytes) -> bytes:
    """SHA-256, or empty for a file that cannot be read."""
    try:
        return digest_of(path)
    except OSError:
        return b""


def digests_of_files(paths: Iterable[bytes]) -> list[bytes]:
    """In order. Hashing lets go of the interpreter: every core takes part."""
    return side_by_side(digest_or_none, paths)


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """`work` of each item, in their order, by threads that each take the next one.

    A pool's `map` would make an object of 1 KB for each of a million files before it begins.
    Raises what `work` raises.
    """
    waiting, lock = enumerate(items), threading.Lock()
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def take() -> None:
        while not errors:
            with lock:
                number, item = next(waiting, (-1, None))
            if number < 0:
                return
            try:
                results[number] = work(item)  # type: ignore[arg-type]
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

    count = max(LEAST_READERS, min(MOST_READERS, os.cpu_count() or 1))
    threads = [threading.Thread(target=take, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(results))]
