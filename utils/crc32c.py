"""CRC-32C (Castagnoli) in NumPy, as TFRecord files contain it.

A CRC is linear: the contribution of a byte depends only on its value and its distance from the end.
So a block of data is cut into stripes. One table has the contribution of each byte to its stripe's
CRC, by its position in the stripe, and is applied to all stripes at once. A second table has the
contribution of each stripe's CRC to the block's CRC, by the stripe's place in the block.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # reflected; https://www.rfc-editor.org/rfc/rfc3720#appendix-B.4
STRIPE = 256  # bytes
STRIPES_AT_ONCE = 63
BLOCK = STRIPES_AT_ONCE * STRIPE  # bytes; the arrays of this size stay in the processor's cache
SHORT = 64  # bytes up to which a plain loop is faster
ALL_ONES = 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC of TFRecord files: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & ALL_ONES


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data`. Thread-safe."""
    if len(data) <= SHORT:
        crc = ALL_ONES
        for byte in data:
            crc = PYTHON_TABLE[(crc ^ byte) & 255] ^ crc >> 8
        return crc ^ ALL_ONES
    crc, at, end = ALL_ONES, 0, len(data) % BLOCK
    if end < 4:  # the CRC so far is mixed into the first four bytes of a block
        end += BLOCK
    with SCRATCH:
        while at < len(data):
            crc = of_block(np.frombuffer(data, np.uint8, end - at, at), crc)
            at, end = end, end + BLOCK
    return crc ^ ALL_ONES


def of_block(data: NDArray[np.uint8], crc: int) -> int:
    """Return the CRC `crc` of the preceding data, continued with 4 to BLOCK + 3 bytes."""
    stripes = -(-len(data) // STRIPE)
    # Zeros before the data do not change the CRC, so they pad the first stripe.
    begin, end = stripes * STRIPE - len(data), stripes * STRIPE
    VALUES[:begin] = 0
    VALUES[begin:end] = data
    VALUES[begin : begin + 4] ^= np.frombuffer(crc.to_bytes(4, "little"), np.uint8)
    added = ADDED[:end]
    BY_POSITION.take(INDICES[:end], mode="wrap", out=added)  # with "raise" take() makes a copy
    crcs = np.bitwise_xor.reduce(added.reshape(-1, STRIPE), axis=1)
    parts = crcs.astype("<u4").view(np.uint8).reshape(-1, 4)
    return int(np.bitwise_xor.reduce(BY_STRIPE.take(parts + STRIPES[-stripes:]), axis=None))


def byte_table() -> NDArray[np.uint32]:
    """Return the usual table for a CRC byte by byte: entry b is the state b after eight shifts."""
    crcs = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = crcs >> 1 ^ np.where(crcs & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return crcs.astype(np.uint32)


def position_table(table: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return what byte value b at position i of a stripe adds, at index 256 * i + b."""
    rows = [table]
    for _ in range(STRIPE - 1):
        rows.append(table[rows[-1] & 255] ^ rows[-1] >> 8)
    return np.concatenate(rows[::-1])


def stripe_table(table: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return what byte i, of value b, of the CRC of stripe s adds, at 1024 * s + 256 * i + b."""
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

# Arrays that are reused for every block, under a lock: allocating them takes longer than computing
# in them. An index into BY_POSITION is 256 * position + value, so its lowest byte is the value.
# VALUES is a view of these lowest bytes: writing the data into it makes the indices.
SCRATCH = threading.Lock()
INDICES = np.tile(np.arange(0, STRIPE * 256, 256, dtype="<i8"), STRIPES_AT_ONCE + 1)
VALUES = INDICES.view(np.uint8)[::8]
ADDED = np.empty(INDICES.shape, np.uint32)
