"""The program as it is sent to nodes: on the oldest Python, and without a client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.copy.asking import PROGRAM
from tests.node.relay.records import tfrecord
from tests.pythons import python_or_skip

STOP = b'{"order":"stop"}\n'


def events(python, config, after=STOP):
    process = subprocess.Popen(
        PROGRAM.argv(python=str(python)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.write(PROGRAM.stdin(config) + after)
    process.stdin.flush()
    # The input stays open: its end would be the program's.
    lines = process.stdout.read().splitlines()
    assert process.wait(timeout=60) == 0
    return [json.loads(line) for line in lines]


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "new\nline").write_text("x")
    (tmp_path / "b" / "records").write_bytes(tfrecord([b"x" * 200, b"y"]))
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_every_python_says_the_same(tree, version):
    config = {"path": str(tree), "content": True, "crc": True}
    orders = [
        {"order": "folders", "first": 0, "number": 9},
        {"order": "rows", "folder": "b", "first": 1, "number": 9},
        {"order": "rows", "folder": "not there", "first": 0, "number": 9},
        {"order": "stop"},
    ]
    lines = b"\n".join(json.dumps(order).encode() for order in orders) + b"\n"
    total, folders, rows, none = events(python_or_skip(version), config, lines)
    own = events(sys.executable, config)[0]
    assert total["digest"] == own["digest"]
    assert total["counts"] == own["counts"]
    assert (own["counts"]["others"], own["counts"]["records"]) == (1, 2)
    assert [path for path, _ in folders["items"]] == ["", ".", "b"]
    assert [row[0] for row in rows["items"]] == ["records"]
    assert none["items"] == []


def test_too_old_a_python_says_so(tree):
    argv = PROGRAM.argv(python=str(python_or_skip("3.7")))
    done = subprocess.run(
        argv, input=PROGRAM.stdin({}), capture_output=True, text=False, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("python3 is 3.7")
    assert b"Traceback" not in done.stderr


def begun(tree, **config):
    process = subprocess.Popen(
        PROGRAM.argv(python=sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.write(PROGRAM.stdin({"path": str(tree), **config}))
    process.stdin.flush()
    return process


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize("busy", [False, True])
def test_it_ends_when_nobody_speaks_to_it(tree, busy):
    if busy:
        with (tree / "huge").open("w") as file:
            file.truncate(1 << 42)
    process = begun(tree, content=busy, silence_s=3.0)
    process.stdout.readline()
    readers = children_of(process.pid)
    assert len(readers) >= 4
    assert process.wait(timeout=30) == 0
    assert not any(Path("/proc", pid).exists() for pid in readers)


def test_it_ends_with_its_input(tree):
    with (tree / "huge").open("w") as file:
        file.truncate(1 << 42)
    process = begun(tree, content=True)
    process.stdout.readline()
    readers = children_of(process.pid)
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    assert not any(Path("/proc", pid).exists() for pid in readers)


def test_a_reader_that_is_killed_is_said(tree):
    with (tree / "huge").open("w") as file:
        file.truncate(1 << 42)
    process = begun(tree, content=True)
    process.stdout.readline()
    for pid in children_of(process.pid):
        os.kill(int(pid), 9)
    *_, last = process.communicate(timeout=30)[0].splitlines()
    assert json.loads(last) == {
        "event": "failed",
        "kind": "bug",
        "why": "a process that read files was ended",
    }


def test_killed_itself_it_leaves_no_reader(tree):
    process = begun(tree, silence_s=60)
    process.stdout.readline()
    readers = children_of(process.pid)
    process.kill()
    process.wait()
    # Its output ends when the last that holds it does.
    assert process.stdout.read() == b""
    assert len(readers) >= 4
