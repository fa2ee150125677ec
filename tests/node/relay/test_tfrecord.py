"""TFRecord files: whole, broken in every way, and fed in pieces of every size."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from clusterctl.node.relay.crc32c import crc32c
from clusterctl.node.relay.tfrecord import RecordParser, begins_record
from tests.node.relay.records import header, record, tfrecord

DATA = [b"first", b"", b"x" * 300, b"last"]
WHOLE = tfrecord(DATA)
THIRD = len(tfrecord(DATA[:2]))


def parse(content: bytes, piece: int = 1 << 20, crc=None):
    """As a reader does: skip what need not be read, feed the rest in pieces."""
    parser = RecordParser(len(content), crc)
    at = 0
    while at < len(content):
        over = min(parser.skippable, len(content) - at)
        if over:
            parser.skip(over)
            at += over
            continue
        parser.feed(memoryview(content)[at : at + piece])
        at += piece
    return parser.end()


def changed(content: bytes, at: int, to: bytes) -> bytes:
    return content[:at] + to + content[at + len(to) :]


@pytest.mark.parametrize("piece", [1, 3, 12, 16, 17, 4096])
@pytest.mark.parametrize("crc", [None, crc32c], ids=["structure", "crc"])
@pytest.mark.parametrize("records", [[], [b""], DATA, [b"y"] * 50, [bytes(70_000)]])
def test_whole_files(records, crc, piece):
    found = parse(tfrecord(records), piece, crc)
    assert (found.number, found.problem) == (len(records), "")
    assert found.frame == parse(tfrecord(records)).frame


BROKEN = [
    ("cut in the data", WHOLE[:-6], 3, "record 4 (at byte 353) is cut short: 14 of 20 bytes"),
    ("cut in the CRC", WHOLE[:-1], 3, "record 4 (at byte 353) is cut short: 19 of 20 bytes"),
    ("cut after a length", WHOLE[: THIRD + 12], 2, "record 3 (at byte 37) is cut short: 12 of 316"),
    ("cut in a length", WHOLE[: THIRD + 5], 2, "record 3 (at byte 37) is cut short: 5 bytes are"),
    ("corrupt length", changed(WHOLE, THIRD, b"\xff"), 2, "record 3 (at byte 37) does not begin"),
    ("corrupt length CRC", changed(WHOLE, THIRD + 9, b"\1\2"), 2, "record 3 (at byte 37) does not"),
    ("huge length", record(b"a") + header(1 << 62) + b"b", 1, "record 2 (at byte 17) is cut short"),
    ("garbage behind", WHOLE + b"garbage garbage", 4, "record 5 (at byte 373) does not begin"),
    ("a little behind", WHOLE + b"\n", 4, "record 5 (at byte 373) is cut short: 1 bytes are left"),
    ("zeros behind", WHOLE + bytes(4096), 4, "record 5 (at byte 373) does not begin as a record"),
]


@pytest.mark.parametrize("piece", [1, 7, 4096])
@pytest.mark.parametrize("crc", [None, crc32c], ids=["structure", "crc"])
@pytest.mark.parametrize(
    ("content", "count", "says"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
)
def test_broken_files(content, count, says, crc, piece):
    found = parse(content, piece, crc)
    assert found.problem.startswith(says)
    assert found.number == count


def test_data_that_are_not_what_was_written():
    content = changed(changed(WHOLE, THIRD + 20, b"y"), len(WHOLE) - 5, b"T")
    assert parse(content).problem == ""
    assert parse(content).frame == parse(WHOLE).frame
    found = parse(content, crc=crc32c)
    assert found.number == 4
    assert found.problem == (
        "record 3 (at byte 37) has other data than were written: its CRC is wrong (and 1 more)"
    )


def test_other_data_of_the_same_length_have_another_frame():
    assert parse(tfrecord([b"abc"])).frame != parse(tfrecord([b"abd"])).frame


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (WHOLE, True),
        (record(b"")[:12], True),
        (WHOLE[:11], False),
        (b"", False),
        (bytes(12), False),
        (b"\x89PNG\r\n\x1a\n0000", False),
        (struct.pack("<QI", 5, 0), False),
    ],
)
def test_recognised_by_content(head, is_one):
    assert begins_record(head) is is_one


def test_a_huge_claimed_length_takes_no_memory():
    parser = RecordParser(1 << 50, crc32c)
    tracemalloc.start()
    parser.feed(memoryview(header(1 << 49)))
    for _ in range(100):
        parser.feed(memoryview(bytes(1 << 12)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert parser.end().problem.endswith("is cut short")
