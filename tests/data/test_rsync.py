"""rsync: the whole command line, and what its output and exit status mean."""

from __future__ import annotations

import pytest

from clusterctl.data.rsync import CopyJob, explain, parse_stats, unreachable

SSH = ("ssh", "-F", "/home/me/my clusters/ssh_config", "-o", "BatchMode=yes")


def argv(**changes: str) -> list[str]:
    given = {"host": "demo-0", "remote": "demo-0", "source": "data/", "destination": "~/data/"}
    return CopyJob(**{**given, **changes}, ssh=SSH).argv()


def test_the_whole_line():
    assert argv() == [
        "rsync",
        "--archive",
        "--partial-dir=.clusterctl-partial",
        "--mkpath",
        "--stats",
        "--no-human-readable",
        "--protect-args",
        "--timeout=60",
        "-e",
        "ssh -F '/home/me/my clusters/ssh_config' -o BatchMode=yes",
        "--",
        "data/",
        "demo-0:data/",
    ]


@pytest.mark.parametrize(
    ("given", "last_two"),
    [
        ({"destination": "~"}, ["data/", "demo-0:."]),
        ({"destination": "/data"}, ["data/", "demo-0:/data"]),
        ({"destination": "a b;c"}, ["data/", "demo-0:a b;c"]),
        ({"remote": "fe80::1"}, ["data/", "[fe80::1]:data/"]),
        ({"remote": "ubuntu@2001:db8::1"}, ["data/", "ubuntu@[2001:db8::1]:data/"]),
        ({"source": "a:b"}, ["./a:b", "demo-0:data/"]),
        ({"source": "dir/a:b"}, ["dir/a:b", "demo-0:data/"]),
        ({"source": "-rf"}, ["-rf", "demo-0:data/"]),
    ],
)
def test_paths_and_hosts(given, last_two):
    assert argv(**given)[-2:] == last_two


STATS = """
Number of files: 1,203 (reg: 1,152, dir: 51)
Number of created files: 12
Number of regular files transferred: 1,152
Total file size: 155,000,000,123 bytes
Total transferred file size: 154,000,000,123 bytes
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [(STATS, (1152, 154_000_000_123)), ("", (0, 0)), ("Number of regular files tra", (0, 0))],
)
def test_stats(text, expected):
    assert parse_stats(text) == expected


FULL = """rsync: [receiver] write failed on "/data/x": No space left on device (28)
rsync error: error in file IO (code 11) at receiver.c(381) [receiver=3.2.7]
"""
ABSENT = """bash: line 1: rsync: command not found
rsync: connection unexpectedly closed (0 bytes received so far) [sender]
rsync error: error in rsync protocol data stream (code 12) at io.c(231) [sender=3.2.7]
"""
REFUSED = """ssh: connect to host 10.0.0.4 port 22: Connection refused
rsync: connection unexpectedly closed (0 bytes received so far) [sender]
rsync error: unexplained error (code 255) at io.c(231) [sender=3.2.7]
"""


@pytest.mark.parametrize(
    ("status", "complaint", "expected"),
    [
        (0, "", ""),
        (
            11,
            FULL,
            'could not write there: rsync: [receiver] write failed on "/data/x": '
            "No space left on device (28)",
        ),
        (23, "", "some files could not be copied"),
        (99, "odd\n", "rsync ended with status 99: odd"),
    ],
)
def test_what_a_status_means(status, complaint, expected):
    assert explain(status, complaint) == expected


def test_rsync_missing_there_is_said():
    assert "rsync: command not found" in explain(127, ABSENT.splitlines()[0])


@pytest.mark.parametrize(
    ("status", "complaint", "expected"),
    [
        (255, REFUSED, True),
        (12, REFUSED, True),
        (12, ABSENT, False),
        (12, "Host key verification failed.\n", True),
        (12, "ubuntu@10.0.0.4: Permission denied (publickey).\n", True),
        (23, 'rsync: [receiver] mkstemp "/x" failed: Permission denied (13)\n', False),
        (11, FULL, False),
    ],
)
def test_when_it_was_ssh(status, complaint, expected):
    assert unreachable(status, complaint) is expected
