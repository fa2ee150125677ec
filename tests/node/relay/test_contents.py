"""One file: read once, whatever it is and whatever happens meanwhile."""

from __future__ import annotations

import hashlib
import os

import pytest

from clusterctl.node.relay.contents import FileChanged, read_content
from clusterctl.node.relay.crc32c import fastest
from tests.node.relay.records import record, tfrecord

CRC = fastest()[1]
FILES = {
    "empty": b"",
    "text": b"hello\n",
    "large": os.urandom(3_000_001),
    "small records": tfrecord([b"%d" % n for n in range(500)]),
    "large records": tfrecord([bytes(40_000), b"", bytes(60_000), b"x"]),
    "mixed": tfrecord([bytes(33_000), b"a", b"b", bytes(33_000), bytes(33_000)]),
}


def read(path, digest=False, crc=None):
    read_bytes = []
    content = read_content(os.fsencode(path), digest, crc, read_bytes.append)
    return content, sum(read_bytes)


@pytest.mark.parametrize("crc", [None, CRC], ids=["structure", "crc"])
@pytest.mark.parametrize("digest", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_all_kinds(tmp_path, name, digest, crc):
    path = tmp_path / "file"
    path.write_bytes(FILES[name])
    content, size = read(path, digest, crc)
    assert content.sha256 == (hashlib.sha256(FILES[name]).hexdigest() if digest else "")
    assert content.size == len(FILES[name])
    counts = {"small records": 500, "large records": 4, "mixed": 5}
    if name in counts:
        assert (content.records.number, content.records.problem) == (counts[name], "")
    else:
        assert content.records is None
    if digest or (crc and name in counts):
        assert size == len(FILES[name])


def test_the_data_of_large_records_are_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(tfrecord([bytes(100_000)] * 20))
    content, size = read(path)
    assert content.records.number == 20
    assert size < 1000


def test_a_huge_sparse_file_of_one_record(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(record(bytes(10)) + record(b"x"))
    os.truncate(path, 1 << 40)
    content, size = read(path)
    assert content.records.problem.startswith("record 3 (at byte 43) does not begin as a record")
    assert size < 1 << 20


@pytest.mark.parametrize("head", [b"\x1f\x8b\x08", b"\x78\x9c", b"\x28\xb5\x2f\xfd"])
def test_compressed(tmp_path, head):
    path = tmp_path / "file"
    path.write_bytes(head + bytes(20))
    assert read(path)[0].compressed


@pytest.mark.parametrize("size", [0, 1_500_000, 4_000_000])
def test_a_file_that_changes_meanwhile(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(3_000_000))

    def change(_):
        os.truncate(path, size)

    with pytest.raises(FileChanged):
        read_content(os.fsencode(path), True, None, change)


def test_what_is_no_file_by_now_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(OSError):
        read(tmp_path / "pipe")
    with pytest.raises(OSError):
        read(tmp_path / "link")
