"""CRC-32C, against its definition and known answers."""

from __future__ import annotations

import random

import pytest

from clusterctl.node.relay import crc32c
from clusterctl.node.relay.crc32c import fastest, masked
from tests.node.relay.records import slow_crc32c

RANDOM = random.Random(4)
ROUTINES = [crc32c.crc32c, fastest()[1]]
# RFC 3720, appendix B.4, and the usual check value.
KNOWN = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
]


@pytest.mark.parametrize("crc", ROUTINES)
@pytest.mark.parametrize(("data", "value"), KNOWN)
def test_known_answers(crc, data, value):
    assert crc(data) == value == slow_crc32c(data)


def test_every_length_that_folds_otherwise():
    """Where another fold comes in, one bit more or less must not matter."""
    data = RANDOM.randbytes(4000)
    for size in [*range(260), *range(830, 880), *range(1690, 1720), 3999]:
        assert crc32c.crc32c(data[:size]) == slow_crc32c(data[:size]), size


@pytest.mark.parametrize("crc", ROUTINES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [1, 127, 128, 1000, 70_000])
def test_in_pieces_it_is_the_same(crc, kind, size):
    data = RANDOM.randbytes(size)
    cut = RANDOM.randrange(size + 1)
    assert crc(kind(data[cut:]), crc(kind(data[:cut]))) == slow_crc32c(data)


def test_more_than_one_chunk():
    data = RANDOM.randbytes(crc32c._CHUNK * 2 + 77)
    whole = slow_crc32c(data)
    assert [crc(data) for crc in ROUTINES] == [whole, whole]


def test_zeros_count():
    assert len({crc32c.crc32c(bytes(size)) for size in range(1, 3000, 7)}) == len(range(1, 3000, 7))


def test_masked_as_tensorflow_masks():
    # tensorflow/tsl/lib/hash/crc32c_test.cc: masking twice differs from masking once.
    crc = slow_crc32c(b"foo")
    assert masked(crc) not in (crc, masked(masked(crc)))
    assert masked(0) == 0xA282EAD8


def test_without_the_library_it_is_python(monkeypatch):
    monkeypatch.setattr(crc32c, "_LIBRARIES", ("libno-such-thing.so.1", "libc.so.6"))
    assert fastest() == ("python", crc32c.crc32c)
