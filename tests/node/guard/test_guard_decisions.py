"""The guard's pure decisions: when it ends its machine, and what counts as activity."""

from __future__ import annotations

import pytest

from clusterctl.node.guard import guard
from clusterctl.node.guard.activity import JobProcess, NodeActivity, jobs, logins, parse_activity
from clusterctl.node.guard.clock import GuardFiles, Jumps, Moment
from clusterctl.node.guard.decisions import (
    GRACE_S,
    Idleness,
    block_warning,
    end,
    in_words,
    interval_s,
    left_s,
    limit_s,
    next_idleness,
    reasons,
    warning,
)
from clusterctl.node.guard.settings import GuardSettings, Worker
from clusterctl.node.guard.spot import is_rank_0
from clusterctl.node.guard.workers import ssh_argv

DAY = 86400.0


def settings(**limits) -> GuardSettings:
    return GuardSettings("demo", **limits)


@pytest.mark.parametrize(
    ("limits", "now", "expected"),
    [
        ({}, Moment(1e9, 100, 100), None),
        ({"idle_s": 60}, Moment(1e9, 100, 100), None),
        ({"lifetime_s": 3600}, Moment(1e9, 100, 100), 3500),
        # The running time of earlier boots counts; the time between them does not.
        ({"lifetime_s": 3600}, Moment(1e9 + DAY, 100, 1100), 2500),
        ({"lifetime_s": 3600}, Moment(1e9, 3700, 3700), -100),
        # Started after its end: the owner has time to set another end.
        ({"lifetime_s": 3600}, Moment(1e9, 100, 3700), GRACE_S - 100),
        ({"lifetime_s": 3600}, Moment(1e9, GRACE_S + 1, 1e6), -1),
        # The wall clock does not matter.
        ({"lifetime_s": 90}, Moment(-1e9, 100, 100, trusted=False), -10),
    ],
)
def test_seconds_left(limits, now, expected):
    assert left_s(settings(**limits), now) == expected


@pytest.mark.parametrize(
    ("left_s", "lifetime_s", "expected"),
    [
        (60, None, 7060),
        (9000, 20_000, 16_000),
        (90_000, 20_000, 20_000),
        # Its time is over by its own count.
        (90_000, 6000, 6000),
        (60, 20_000, 7060),
    ],
)
def test_the_end_as_running_time_of_a_machine_that_has_run_for_7000_seconds(
    left_s, lifetime_s, expected
):
    assert end(7000, left_s, lifetime_s) == expected


@pytest.mark.parametrize(
    ("left", "due", "words"),
    [
        (7200, None, "in 2.0 hours"),
        (1800, 1800, "in 30 minutes"),
        (601, 1800, "in 10 minutes"),
        (600, 600, "in 10 minutes"),
        (299, 300, "in 5 minutes"),
        (60, 60, "in 60 seconds"),
        (-5, 60, "now"),
    ],
)
def test_warnings(left, due, words):
    assert warning(left) == due
    assert in_words(left) == words


def test_a_clock_that_jumps_is_not_believed_for_a_minute():
    jumps = Jumps()
    seen = [jumps.trusted(*at) for at in ((1000, 0), (1001, 1), (9002, 2), (9003, 3), (9063, 63))]
    assert seen == [True, True, False, False, True]


def test_a_clock_that_keeps_jumping_is_believed_now_and_then():
    jumps = Jumps()
    seen = [jumps.trusted(1000.0 * (boot_s % 7), boot_s) for boot_s in range(600)]
    assert seen.count(True) > 200


def test_suspend_or_slew_is_no_jump():
    jumps = Jumps()
    assert all(jumps.trusted(1e9 + at * 1.0005, at) for at in (0, 1, 2, 3602, 3603))


@pytest.mark.parametrize(
    ("index", "idle_s", "unasked_s", "expected"),
    [
        *((0, 600, 0, 600), (0, None, 1e6, None), (None, 600, 0, 3600), (None, 7200, 0, 7200)),
        # A worker decides once the head node has been silent for the idle time and an hour.
        *((1, 600, 0, None), (1, 600, 4199, None), (1, 600, 4200, 600), (1, None, 1e6, None)),
    ],
)
def test_which_guards_end_a_machine_for_idleness(index, idle_s, unasked_s, expected):
    assert limit_s(settings(index=index, idle_s=idle_s), unasked_s) == expected
    stops = settings(index=index, idle_s=idle_s, at_power_off="stop")
    assert limit_s(stops, unasked_s) == expected
    # If a power-off deletes the disk, idleness does not switch a machine off.
    terminates = settings(index=index, idle_s=idle_s, at_power_off="terminate")
    assert limit_s(terminates, unasked_s) is None


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (100, 10), (1800, 60)])
def test_the_interval_between_checks(limit, expected):
    assert interval_s(limit) == expected


@pytest.mark.parametrize(
    ("before", "now_s", "is_busy", "since"),
    [
        (None, 50, False, 50),
        (None, 50, True, None),
        (Idleness(None, 40), 50, False, 50),
        (Idleness(10, 40), 50, False, 10),
        (Idleness(10, 40), 50, True, None),
        # There was no check for a while.
        (Idleness(10, 40), 500, False, 500),
    ],
)
def test_idle_since(before, now_s, is_busy, since):
    assert next_idleness(before, now_s, now_s, is_busy, 10) == Idleness(since, now_s)


def quiet(cpu_s: float, at_s: float) -> NodeActivity:
    return NodeActivity((), cpu_s, at_s)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, quiet(5, 100), ["n: processor use not known yet"]),
        (quiet(5, 90), quiet(6, 100), []),
        (quiet(5, 90), quiet(15, 100), ["n: 1.0 cores are used"]),
        (quiet(5, 90), NodeActivity(("a", "b"), 5, 100), ["n: a", "n: b"]),
        # It has booted again.
        (quiet(5, 9000), quiet(6, 100), ["n: processor use not known yet"]),
        (quiet(500, 90), quiet(6, 100), ["n: processor use not known yet"]),
    ],
)
def test_reasons(before, now, expected):
    assert reasons("n", before, now) == expected


@pytest.mark.parametrize(
    "data", [{}, {"busy": 3, "cpu_s": 1, "at_s": 1}, {"busy": [], "cpu_s": "x"}]
)
def test_an_invalid_answer_of_a_node_is_refused(data):
    with pytest.raises(ValueError):
        parse_activity(data)


def table(*rows) -> dict[int, JobProcess]:
    """Make a process table from rows of (pid, parent, name, title, *environ)."""
    made = [
        JobProcess(
            *(pid, parent, name, title), dict(word.encode().split(b"=", 1) for word in environ), 0.0
        )
        for pid, parent, name, title, *environ in rows
    ]
    return {process.pid: process for process in made}


SSHD = (1, 0, "sshd", "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups")
PRIV = (2, 1, "sshd", "sshd: ubuntu [priv]")
LOGINS = {
    "a shell on a terminal": ([(3, 2, "sshd", "sshd: ubuntu@pts/0"), (4, 3, "bash", "-bash")], 1),
    "a command": ([(3, 2, "sshd", "sshd: ubuntu@notty"), (4, 3, "sh", "sh -s")], 1),
    "since OpenSSH 9.8": (
        [(3, 2, "sshd-session", "sshd-session: ubuntu@pts/1"), (4, 3, "bash", "-bash")],
        1,
    ),
    "a tunnel, a kept connection": ([(3, 2, "sshd", "sshd: ubuntu@notty")], 0),
    "not yet in": ([(3, 2, "sshd", "sshd: ubuntu [net]")], 0),
    "a process that only says so": ([(3, 2, "bash", "sshd: ubuntu@pts/0")], 0),
    "Systems Manager": ([(3, 1, "ssm-session-wor", "/usr/bin/ssm-session-worker u-0a")], 1),
    "two": ([(3, 2, "sshd", "sshd: ubuntu@pts/0"), (5, 1, "sshd", "sshd: root@pts/1")], 2),
}


@pytest.mark.parametrize(("rows", "count"), LOGINS.values(), ids=LOGINS)
def test_logins(rows, count):
    assert len(logins(table(SSHD, PRIV, *rows), 999)) == count


def test_the_guards_own_session_is_no_login():
    rows = [(3, 2, "sshd", "sshd: ubuntu@notty"), (4, 3, "sudo", ""), (5, 4, "python3", "")]
    assert logins(table(SSHD, PRIV, *rows), 5) == []
    other = [(6, 1, "sshd", "sshd: ubuntu@notty"), (7, 6, "sh", "")]
    assert logins(table(SSHD, PRIV, *rows, *other), 5) == ["ubuntu is logged in (notty)"]


@pytest.mark.parametrize(
    ("row", "count"),
    [
        ((9, 1, "python3", "python3 train.py", "OMPI_COMM_WORLD_RANK=0"), 1),
        ((9, 1, "python3", "", "PMIX_RANK=3"), 1),
        ((9, 1, "sh", "", "A=b", "CLUSTERCTL_JOB=20260101-000000-aa"), 1),
        ((9, 1, "mpirun", "mpirun -np 2 x"), 1),
        ((9, 1, "prted", ""), 1),
        ((9, 1, "vim", "vim mpirun.txt", "NOTE=OMPI_COMM_WORLD_RANK=0"), 0),
        ((9, 1, "python3", "jupyter"), 0),
    ],
)
def test_jobs(row, count):
    assert len(jobs(table(SSHD, row))) == count


def test_the_way_to_a_worker_whole():
    argv = ssh_argv("/home/ubuntu", "ubuntu", Worker("demo-1", "10.0.0.5"), "echo 'a b'")
    assert argv == [
        *("ssh", "-F", "/dev/null", "-i", "/home/ubuntu/.ssh/clusterctl_mpi"),
        *("-o", 'UserKnownHostsFile="/home/ubuntu/.ssh/clusterctl_known_hosts"'),
        *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"),
        *("-o", "LogLevel=ERROR", "-o", "GlobalKnownHostsFile=/dev/null"),
        *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
        "ubuntu@10.0.0.5",
        "echo 'a b'",
    ]


@pytest.mark.parametrize(
    ("left", "due"),
    [(7200, None), (2401, None), (2400, 2400), (1000, 2400), (900, 900), (600, 600), (-5, 600)],
)
def test_the_end_of_a_capacity_block_is_announced_in_time(left, due):
    now = Moment(1e9, 100, 100)
    assert block_warning(settings(block_ends_at=1e9 + left), now) == due
    # It ends the machine by itself, and the guard does not.
    assert left_s(settings(block_ends_at=1e9 + left), now) is None
    assert block_warning(settings(), now) is None


@pytest.mark.parametrize(
    ("environ", "is_0"),
    [
        ((b"OMPI_COMM_WORLD_RANK=0",), True),
        ((b"OMPI_COMM_WORLD_RANK=1", b"OMPI_COMM_WORLD_LOCAL_RANK=0"), False),
        ((b"PMIX_RANK=0",), True),
        ((b"PMIX_RANK=10",), False),
        # torchrun's
        ((b"RANK=0", b"LOCAL_RANK=0", b"CLUSTERCTL_JOB=x"), True),
        ((b"RANK=8", b"LOCAL_RANK=0", b"CLUSTERCTL_JOB=x"), False),
        # A program of another kind has such a variable.
        ((b"RANK=0",), False),
        ((), False),
    ],
)
def test_which_rank_saves(environ, is_0):
    assert is_rank_0(dict(one.split(b"=") for one in environ)) == is_0


def test_gpus_that_do_not_say_whether_they_are_used_keep_no_cluster_for_ever(tmp_path, monkeypatch):
    """A GPU that has fallen off the bus: nvidia-smi fails from then on."""
    now = [0.0]
    lost = ("nvidia-smi fails: Unable to determine the device handle",)
    monkeypatch.setattr(
        guard, "node_activity", lambda keeps_store: NodeActivity((), 0.0, now[0], lost)
    )
    watch = guard.IdleWatch(GuardFiles(str(tmp_path)), clock=lambda: now[0])
    settings = GuardSettings("demo", index=0, idle_s=1800.0, user="root")
    why = ""
    while not why:
        pause_s, why = watch.step(settings)
        now[0] += pause_s
        assert now[0] < 4 * 3600
    assert now[0] > 1800 + 3600, "it counts as use at first"


def test_a_check_that_takes_long_is_no_suspension(tmp_path, monkeypatch):
    now = [0.0]

    def look(keeps_store):
        now[0] += 300.0
        return NodeActivity((), 0.0, now[0])

    monkeypatch.setattr(guard, "node_activity", look)
    watch = guard.IdleWatch(GuardFiles(str(tmp_path)), clock=lambda: now[0])
    why = ""
    while not why:
        pause_s, why = watch.step(GuardSettings("demo", index=0, idle_s=1800.0, user="root"))
        now[0] += pause_s
        assert now[0] < 7200
