from __future__ import annotations

import os
import subprocess
import sys

import pytest

from clusterctl.lab.hosts.modes import IdMap, SubIds, map_for_root, map_for_user, parse_subids

ANN = SubIds("ann", 100_000, 65_536)


def test_parse_subids():
    assert parse_subids("# comment\n\nann:100000:65536\nbroken\nbob:x:1\n") == [ANN]


@pytest.mark.parametrize(
    ("taken", "first"),
    [
        ([], 100_000),
        ([ANN], 165_536),
        ([ANN, SubIds("bob", 165_536, 65_536)], 231_072),
        ([SubIds("bob", 165_536, 65_536), ANN], 231_072),
        ([SubIds("low", 1000, 10)], 100_000),
        ([SubIds("half", 150_000, 100)], 150_100),
    ],
)
def test_root_takes_ids_that_are_nobodys(taken, first):
    expected = IdMap(first, first, 65_536)
    assert map_for_root(taken, []) == map_for_root([], taken) == expected


@pytest.mark.parametrize("owner", ["ann", "1007"])
def test_a_user_takes_subordinate_ids(owner):
    ids = [SubIds("bob", 1, 65_536), SubIds(owner, 300_000, 65_536)]
    assert map_for_user(1007, "ann", ids, ids) == IdMap(300_000, 300_000, 65_536)
    # With too few subordinate ids there is no map.
    assert map_for_user(1007, "ann", ids, []) is None
    assert map_for_user(1007, "ann", ids[:1], ids) is None
    assert map_for_user(1007, "ann", [SubIds(owner, 5, 10)], ids) is None


GIVE_UP = """
import os, sys
from pathlib import Path
from clusterctl.lab.hosts.modes import give_up_root

def reads(name):
    try:
        return Path(closed, name).read_text()
    except OSError as refused:
        return type(refused).__name__

closed, sample = map(Path, sys.argv[1:])
done = give_up_root(100_000, [closed / "python"], [sample])
print(done, os.getuid(), *(reads(name) for name in ("python/module", "secret", "python/kept")))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give it up")
@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        # The server runs as another user, and can read only Python in a folder of root.
        ("python/module", "True 100000 read FileNotFoundError PermissionError"),
        # Python's own files are readable only by their owner: the server remains root.
        ("python/kept", "False 0 read FileNotFoundError read"),
    ],
)
def test_the_server_gives_up_root_and_keeps_its_python(tmp_path, sample, expected):
    closed = tmp_path / "closed"
    (closed / "python").mkdir(parents=True)
    closed.chmod(0o700)
    for name, mode in (("python/module", 0o644), ("python/kept", 0o600), ("secret", 0o644)):
        (closed / name).write_text("read")
        (closed / name).chmod(mode)
    argv = [sys.executable, "-c", GIVE_UP, str(closed), str(closed / sample)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (expected, "")
