"""CRC-32C (Castagnoli) in NumPy, as TFRecord files hold it.

A CRC is linear: what a byte adds to it depends on the byte and on its distance from the end alone.
So a block of data is cut into stripes; a table gives what each byte of a stripe adds, by its
position, for all stripes at once; another one what each stripe adds to the block, by its place.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # reflected; https://www.rfc-editor.org/rfc/rfc3720#appendix-B.4
STRIPE = 256
STRIPES_AT_ONCE = 63
BLOCK = STRIPES_AT_ONCE * STRIPE  # its arrays stay in the cache
SHORT = 64  # bytes up to which a plain loop is faster
ALL_ONES = 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """The CRC as TFRecord files hold it: rotated, and moved by a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & ALL_ONES


def crc32c(data: bytes) -> int:
    if len(data) <= SHORT:
        crc = ALL_ONES
        for byte in data:
            crc = PYTHON_TABLE[(crc ^ byte) & 255] ^ crc >> 8
        return crc ^ ALL_ONES
    crc, at, end = ALL_ONES, 0, len(data) % BLOCK
    if end < 4:  # a CRC goes on in the first four bytes of what follows
        end += BLOCK
    with SCRATCH:
        while at < len(data):
            crc = of_block(np.frombuffer(data, np.uint8, end - at, at), crc)
            at, end = end, end + BLOCK
    return crc ^ ALL_ONES


def of_block(data: NDArray[np.uint8], crc: int) -> int:
    """The CRC of what comes before, gone on with 4 to BLOCK + 3 bytes."""
    stripes = -(-len(data) // STRIPE)
    # Zeros before the data change nothing, so they fill up the first stripe.
    begin, end = stripes * STRIPE - len(data), stripes * STRIPE
    VALUES[:begin] = 0
    VALUES[begin:end] = data
    VALUES[begin : begin + 4] ^= np.frombuffer(crc.to_bytes(4, "little"), np.uint8)
    added = ADDED[:end]
    BY_POSITION.take(INDICES[:end], mode="wrap", out=added)  # mode "raise" would make a copy
    crcs = np.bitwise_xor.reduce(added.reshape(-1, STRIPE), axis=1)
    parts = crcs.astype("<u4").view(np.uint8).reshape(-1, 4)
    return int(np.bitwise_xor.reduce(BY_STRIPE.take(parts + STRIPES[-stripes:]), axis=None))


def byte_table() -> NDArray[np.uint32]:
    crcs = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = crcs >> 1 ^ np.where(crcs & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return crcs.astype(np.uint32)


def position_table(table: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What byte value b adds at position i of a stripe, at index 256 * i + b."""
    rows = [table]
    for _ in range(STRIPE - 1):
        rows.append(table[rows[-1] & 255] ^ rows[-1] >> 8)
    return np.concatenate(rows[::-1])


def stripe_table(table: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """What byte i of stripe s's CRC adds with value b, at index 1024 * s + 256 * i + b."""
    rows = [np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)]
    over = rows[0]
    for _ in range(STRIPE):
        over = table[over & 255] ^ over >> 8
    for _ in range(STRIPES_AT_ONCE):
        last = rows[-1]
        rows.append(
            over[0][last & 255]
            ^ over[1][last >> 8 & 255]
            ^ over[2][last >> 16 & 255]
            ^ over[3][last >> 24]
        )
    return np.concatenate(rows[::-1]).reshape(-1)


TABLE = byte_table()
PYTHON_TABLE = TABLE.tolist()
BY_POSITION = position_table(TABLE)
BY_STRIPE = stripe_table(TABLE)
STRIPES = np.arange(0, len(BY_STRIPE), 256, dtype=np.intp).reshape(-1, 4)

# Kept from block to block: new arrays of this size would cost more than what is computed in them.
# An index into BY_POSITION is 256 * position + value, so its lowest byte is the value alone.
SCRATCH = threading.Lock()
INDICES = np.tile(np.arange(0, STRIPE * 256, 256, dtype="<i8"), STRIPES_AT_ONCE + 1)
VALUES = INDICES.view(np.uint8)[::8]
ADDED = np.empty(INDICES.shape, np.uint32)
