"""Error messages of the programs of utils/."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path

import pytest
from shards import ShardError, naming, writing
from tool import folder, told


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ShardError("2 shards are missing"), "2 shards are missing"),
        (PermissionError(errno.EACCES, "Permission denied", "/a b"), "/a b: Permission denied"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/data/x"),
            "/data/x: No space left on device: make room (df -h shows where), then run the same "
            "command again",
        ),
        (OSError("told in words"), "told in words"),
    ],
)
def test_an_error_is_one_line_that_says_where(error, line):
    assert told(error) == line


def test_a_full_disk_is_told_with_the_file_that_found_no_room(tmp_path):
    with pytest.raises(OSError, match="No space left") as full, writing(tmp_path / "shard"):
        Path("/dev/full").write_bytes(b"x" * 100_000)
    assert full.value.errno == errno.ENOSPC
    assert full.value.filename == str(tmp_path / "shard")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_known_stays():
    with pytest.raises(FileNotFoundError) as missing, naming(Path("/other")):
        Path("/not/there").read_bytes()
    assert missing.value.filename == "/not/there"


def test_a_url_is_no_folder_of_this_machine():
    with pytest.raises(argparse.ArgumentTypeError, match="^s3://bucket/x is no path of this mach"):
        folder("s3://bucket/x")
