"""TFRecord files as tests need them, written without the code under test."""

from __future__ import annotations

import struct
from collections.abc import Iterable


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, as the definition has it (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = slow_crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + _masked(packed)


def record(data: bytes) -> bytes:
    return header(len(data)) + data + _masked(data)


def tfrecord(records: Iterable[bytes]) -> bytes:
    """The whole file."""
    return b"".join(map(record, records))
