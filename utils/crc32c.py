"""CRC-32C (Castagnoli) in NumPy, as TFRecord files hold it.

A CRC is linear: what a byte adds to it depends on the byte and on its distance from the end alone.
So the data is cut into stripes; a table per position gives what each byte of a stripe adds, all
stripes at once; then neighbours are joined in pairs, the left one advanced over the right one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # reflected; https://www.rfc-editor.org/rfc/rfc3720#appendix-B.4
STRIPE = 256
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
    # Zeros before the data change nothing, so they fill up the first stripe.
    padding = -len(data) % STRIPE
    padded = np.zeros(padding + len(data), np.uint8)
    padded[padding:] = np.frombuffer(data, np.uint8)
    padded[padding : padding + 4] ^= 255  # the CRC starts with ones
    stripes = padded.reshape(-1, STRIPE)
    crcs = np.bitwise_xor.reduce(BY_POSITION.take(stripes + OFFSETS), axis=1)
    level = 0
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([[np.uint32(0)], crcs])
        crcs = advanced(crcs[::2], over_stripes(level)) ^ crcs[1::2]
        level += 1
    return int(crcs[0]) ^ ALL_ONES


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


def advanced(crcs: NDArray[np.uint32], tables: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """`crcs` after as many zero bytes as `tables` (one row per byte of a CRC) stand for."""
    return (
        tables[0][crcs & 255]
        ^ tables[1][crcs >> 8 & 255]
        ^ tables[2][crcs >> 16 & 255]
        ^ tables[3][crcs >> 24]
    )


def over_stripes(level: int) -> NDArray[np.uint32]:
    """Tables that advance over 2**level stripes."""
    while len(OVER_STRIPES) <= level:
        OVER_STRIPES.append(advanced(OVER_STRIPES[-1], OVER_STRIPES[-1]))
    return OVER_STRIPES[level]


def over_one_stripe(table: NDArray[np.uint32]) -> NDArray[np.uint32]:
    crcs = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], np.uint32)
    for _ in range(STRIPE):
        crcs = table[crcs & 255] ^ crcs >> 8
    return crcs


TABLE = byte_table()
PYTHON_TABLE = TABLE.tolist()
BY_POSITION = position_table(TABLE)
OFFSETS = np.arange(0, STRIPE * 256, 256, dtype=np.intp)
OVER_STRIPES = [over_one_stripe(TABLE)]
