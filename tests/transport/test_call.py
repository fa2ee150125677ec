"""`call`: a function of clusterctl.node runs on a node, and its record comes back."""

from __future__ import annotations

import pytest

from clusterctl.domain.errors import CommandFailed, CommandNotRun, CommandTimeout, HostUnreachable
from clusterctl.node.jobs.clean import Cleaning, NodeLogs, clean
from clusterctl.operations.hosts_access import AsRoot
from clusterctl.transport.call import NodeCall, call, call_all
from clusterctl.transport.dial import Target
from tests.local_node import HEAD, LocalNode

OTHER = Target("demo-1", "10.0.0.5", "ubuntu")


@pytest.fixture
def node(tmp_path):
    return LocalNode(tmp_path)


def cleaned(node, request=None):
    return call(node, HEAD, NodeCall(clean, request or Cleaning(), "removing", 60.0))


def test_a_function_runs_there_whatever_its_login_prints(node):
    (node.home / "runs").mkdir()
    (node.home / "runs" / "model.ckpt-7.index").write_text("x")
    node.greeting = b'{"folders": []} welcome\n{'
    [folder] = cleaned(node, Cleaning((("~/runs", "log"),))).folders
    assert (folder.path, folder.checkpoints) == (f"{node.home}/runs", 1)
    assert not (node.home / "runs").exists()


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("echo 'MemoryError' >&2; exit 1", CommandFailed, "removing failed: MemoryError"),
        ("exit 3", CommandFailed, "removing failed: python3 there ended with exit 3"),
        ("echo broken; exit 1", CommandFailed, "python3 there ended with exit 1: broken"),
        ("exit 127", CommandFailed, "`command -v python3` and `python3 --version` there"),
        ("echo 'pyenv: python3: command not found' >&2; exit 127", CommandFailed, "127: pyenv: "),
        ("kill -9 $$", CommandFailed, "removing failed: Killed"),
        ("echo python3: not found >&2; exit 127", CommandFailed, "python3 is not installed"),
        ("echo 'python3: Permission denied' >&2; exit 127", CommandFailed, "Permission denied"),
        ("exit 0", CommandNotRun, "unexpected response: not JSON: it is empty"),
        ("echo '{\"folders\": 7}'", CommandNotRun, "folders: expected an array, got 7"),
        ("echo '{}' '{}'", CommandNotRun, "unexpected response: not JSON"),
    ],
)
def test_no_response_or_a_damaged_one_is_an_error_and_never_nothing_found(
    node, tmp_path, script, error, message
):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f"#!/bin/sh\n{script}\n")
    (tools / "python3").chmod(0o755)
    node.environ["PATH"] = f"{tools}:/usr/bin:/bin"
    with pytest.raises(error) as caught:
        cleaned(node)
    assert caught.value.host == "demo-0"
    assert message in f"{caught.value} {caught.value.hint}"


class Late:
    """Connections to a host where no command ends."""

    def run(self, target, command, *, timeout_s, **_):
        raise CommandTimeout(target.host, f"did not end within {timeout_s:g} s: {command}")


def test_a_late_function_is_named_by_what_it_does_and_not_by_its_program():
    for connections in (Late(), AsRoot(Late())):
        with pytest.raises(CommandTimeout) as late:
            cleaned(connections)
        assert late.value.message == "did not end within 60 s: removing"


def test_each_node_has_an_outcome_of_its_own(node):
    node.trouble = [HostUnreachable("demo-0", "no route")]
    asked = []

    def removal(target):
        asked.append(target.host)
        return NodeCall(clean, Cleaning(), "removing", 60.0)

    result = call_all(node, [HEAD, OTHER], removal)
    assert [one.host for one in result.failures] == ["demo-0"]
    assert result.by_host == {"demo-1": NodeLogs()}
    assert set(asked) == {"demo-0", "demo-1"}
