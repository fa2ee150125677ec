"""CRC-32C (Castagnoli), which TFRecords carry and the standard library does not have.

`fastest()` is e2fsprogs' routine where the node has its library (about 1.9 GB/s), else Python
(about 0.5 GB/s). Both were measured on one core; docs/verify.md says with what.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Union

    Data = Union[bytes, bytearray, memoryview]
    # crc(data, so_far=0) -> the CRC of everything so far.
    Crc = Callable[..., int]

POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
# Python integers are longest at their best where they fit into a core's cache.
_CHUNK = 1 << 18
_LIBRARIES = ("libext2fs.so.2",)

# Multiples of the polynomial with few terms: x^degree = the sum of x^e, modulo CRC-32C. Squared k
# times, both sides' exponents are 2^k times as large, so that the same few shifts fold thousands
# of bits at once. (HD=6 up to 5,243 bits: no multiple with four terms has a degree below that.)
_SPARSE = (
    (6777, (484, 100, 0)),
    (563, (109, 58, 53, 31, 0)),
)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def crc32c(data: Data, so_far: int = 0) -> int:
    """In Python alone."""
    view = memoryview(data)
    for at in range(0, len(view), _CHUNK):
        so_far = _chunk(view[at : at + _CHUNK], so_far)
    return so_far


def masked(crc: int) -> int:
    """As TFRecords store it."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ONES


def _chunk(data: memoryview, so_far: int) -> int:
    crc = so_far ^ _ONES
    if len(data) >= 128:
        # Bit i of `number` is the coefficient of x^(bits - 1 - i): the first byte comes lowest.
        number = int.from_bytes(data, "little") ^ crc
        number, bits = _folded(number, len(data) * 8)
        data = memoryview(number.to_bytes(-(-bits // 8), "little"))
        crc = 0
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _ONES


def _folded(number: int, bits: int) -> tuple[int, int]:
    """A shorter polynomial with the same remainder: whole bytes, under 600 bits."""
    for degree, exponents in _SPARSE:
        for fold in _folds(bits, degree, exponents):
            top = number & ((1 << fold.taken) - 1)
            number >>= fold.taken
            for shift in fold.shifts:
                number ^= top << shift
            bits -= fold.taken
    # What comes first may be padded with zeros.
    padding = -bits % 8
    return number << padding, bits + padding


class _Fold(NamedTuple):
    taken: int
    shifts: Sequence[int]


def _folds(bits: int, degree: int, exponents: Sequence[int]) -> list[_Fold]:
    """How to come from so many bits to about `degree`: each fold takes the most that it can."""
    folds = []
    while bits > degree:
        scale = taken = 0
        for power in range((bits // degree).bit_length()):
            can = min((degree - exponents[0]) << power, bits - (degree << power))
            if can > taken:
                scale, taken = power, can
        shifts = [((degree - exponent) << scale) - taken for exponent in exponents]
        folds.append(_Fold(taken, shifts))
        bits -= taken
    return folds


def fastest() -> tuple[str, Crc]:
    """The fastest that this machine has, and its name."""
    for name in _LIBRARIES:
        try:
            routine = _of_library(name)
        except (OSError, AttributeError):
            continue
        if routine(b"123456789") == routine(b"6789", routine(b"12345")) == 0xE3069283:
            return name, routine
    return "python", crc32c


def _of_library(name: str) -> Crc:
    routine = ctypes.CDLL(name).ext2fs_crc32c_le
    routine.restype = ctypes.c_uint32
    routine.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)

    def crc(data: Data, so_far: int = 0) -> int:
        view = memoryview(data)
        if view.readonly or not len(view):
            address: object = bytes(view)
        else:
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        return int(routine(so_far ^ _ONES, address, len(view))) ^ _ONES

    return crc
