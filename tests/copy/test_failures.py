"""The hints of failures: to repeat the copy is suggested only if that can help."""

from __future__ import annotations

import pytest

from clusterctl.copy import failures
from clusterctl.copy.failures import AGAIN
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.topology import SOURCE
from clusterctl.copy.transfer import Transfer
from clusterctl.domain.errors import ClusterctlError, CommandFailed, HostUnreachable, UsageError
from clusterctl.node.relay.messages import Failed
from clusterctl.transport.dial import Target


def said(kind: str, hint: str = "") -> Failed:
    return Failed("it is so", hint, kind)


@pytest.mark.parametrize(
    ("event", "hint"),
    [
        (said("lost"), AGAIN),
        (said("bug"), ""),
        (said("disk"), ""),
        (said("usage"), ""),
        (said("no such kind"), ""),
        (Failed(), ""),
        (said("disk", hint="look at dmesg"), "look at dmesg"),
        (said("busy", hint="wait"), "wait"),
    ],
)
def test_the_hint_of_a_failed_relay(event, hint):
    error = failures.failure_of("demo-1", event)
    assert (error.message, error.hint) == (event.why or "it gave no reason", hint)


@pytest.mark.parametrize(
    ("path", "quoted"),
    [
        ("/home/alice/data/", "'~/data/'"),
        ("/home/alice", "'~'"),
        ("/home/alices/data", ""),
        ("/mnt/home/alice/data", ""),
        ("~/data", ""),
    ],
)
def test_a_tilde_that_the_users_shell_took_is_explained(monkeypatch, path, quoted):
    monkeypatch.setenv("HOME", "/home/alice/")
    is_mine = "/home/alice is your home on this machine: quote the ~, so that the nodes' is meant: "
    denied = failures.with_unquoted_home("look", "/home: Permission denied", ["/data", path])
    assert denied == ("look; or " + is_mine + quoted if quoted else "look")
    assert failures.with_unquoted_home("", "No space left on device", [path]) == ""


def test_only_paths_on_nodes_may_have_been_meant_with_a_tilde():
    request = CopyRequest(("/a",), "/b", 0)
    node = Target("demo-0", "198.51.100.1", "ubuntu")
    assert Transfer(None, (), request, None, node).node_paths == ("/b", "/a")
    assert Transfer(None, (), request, None).node_paths == ("/b",)
    assert Transfer(None, (), request, None, node, to_here=True).node_paths == ()


@pytest.mark.parametrize(
    ("error", "may_have_passed"),
    [
        (failures.died("demo-1"), True),
        (failures.not_responding_error("demo-1", 15.0, listened=True), True),
        (failures.not_responding_error("demo-1", 60.0, listened=False), False),
        (failures.no_data_error("demo-1", 120.0, ""), True),
        (failures.no_data_error("demo-1", 120.0, "it closed the connection"), True),
        (failures.hung_error("demo-1", "comparing", "/data/a\x1b b", 120.0), False),
        (failures.out_of_time("demo-1", 60.0), True),
        (failures.ended_early("demo-1", 137, "", spoke=True), True),
        (failures.ended_early("demo-1", 1, "MemoryError", spoke=True), False),
        (failures.ended_early("demo-1", 127, "sh: python3: not found", spoke=False), False),
        (failures.source_died("demo-1", failures.died(SOURCE)), True),
    ],
)
def test_what_may_have_passed_is_tried_again(error, may_have_passed):
    assert (error.hint == AGAIN) == may_have_passed


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (None, "the source died", AGAIN),
        (ClusterctlError("it hangs", AGAIN), "the source died: it hangs", AGAIN),
        (UsageError("there is nothing at x", "name it"), "there is nothing at x", "name it"),
        (
            CommandFailed("demo-0", "python3 is not installed there", "install it"),
            "the source on demo-0: python3 is not installed there",
            "install it",
        ),
        (HostUnreachable("demo-0", "gone", AGAIN), "the source on demo-0 died: gone", AGAIN),
        (HostUnreachable("demo-0", "no route"), "the source on demo-0: no route", ""),
    ],
)
def test_without_the_source(error, message, hint):
    failed = failures.source_died("demo-1", error)
    assert (failed.message, failed.hint) == (message, hint)
