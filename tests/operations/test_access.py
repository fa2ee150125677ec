"""Access to a cluster with nodes that do not run, and the selection of nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from clusterctl.copy.report import NodeReport
from clusterctl.domain.cluster import Cluster, Node, NodeState
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandTimeout,
    HostUnreachable,
    MissingTool,
    UsageError,
)
from clusterctl.domain.files import ClusterFolder
from clusterctl.operations.access import (
    Access,
    cluster_targets,
    log_in_everywhere,
    open_access,
)
from clusterctl.operations.copy import with_reason
from clusterctl.transport.connections import Connections
from clusterctl.transport.keys import KnownHostKeys
from clusterctl.transport.session import Identity
from tests.transport.conftest import running_sshd

NODE = Node(
    index=0,
    name="demo-0",
    instance_id="i-0",
    state=NodeState.RUNNING,
    instance_type="p3.2xlarge",
    gpus=1,
    private_ip="10.0.0.4",
    public_ip=None,
    zone="us-east-1a",
    launched_at=datetime(2026, 11, 1, tzinfo=timezone.utc),
)


def cluster(*states: NodeState) -> Cluster:
    nodes = [
        replace(NODE, index=index, name=f"demo-{index}", private_ip=f"10.0.0.{index}", state=state)
        for index, state in enumerate(states)
    ]
    return Cluster("demo", "us-east-1", "ubuntu", tuple(nodes))


def access(tmp_path, *states: NodeState) -> Access:
    connections = Connections(Identity(()), KnownHostKeys([]))
    return Access(cluster(*states), ClusterFolder(tmp_path), connections)


RUNNING, STOPPED = NodeState.RUNNING, NodeState.STOPPED


@pytest.mark.parametrize(
    ("indices", "hosts"),
    [(None, ["demo-0", "demo-1", "demo-2"]), ((2, 0), ["demo-2", "demo-0"]), ((), [])],
)
def test_choosing_nodes(tmp_path, indices, hosts):
    given = access(tmp_path, RUNNING, RUNNING, RUNNING)
    assert [target.host for target in given.select(indices)] == hosts


@pytest.mark.parametrize(("settings", "why"), [("", None), ("ForceCommand exit 0", "with 0")])
def test_a_login_whose_shell_runs_no_command_is_none(tmp_path, settings, why):
    with running_sshd(tmp_path, settings) as server, server.connections() as connections:
        given = SimpleNamespace(connections=connections, all_targets=[server.target()])
        [found] = log_in_everywhere(given, 60.0).outcomes
    message = why and f"its login shell ended before the command, {why}"
    assert (found.error and found.error.message) == message


def test_a_head_node_that_is_gone_is_no_other_node(tmp_path):
    given = access(tmp_path, RUNNING, RUNNING)
    left = replace(given.cluster, nodes=given.cluster.nodes[1:], wanted=(0, 1))
    lost = replace(given, cluster=left, why_lost=lambda node, *_: f"{node}: lightning")
    assert (given.head_name, lost.head_name) == ("demo-0", "demo-0")
    assert [target.host for target in lost.targets] == ["demo-1"]
    with pytest.raises(HostUnreachable) as caught:
        lost.head  # noqa: B018
    assert caught.value.host == "demo-0"
    assert caught.value.message.endswith("its disk: demo-0: lightning")
    assert "clusterctl up demo" in caught.value.hint


def test_choosing_nodes_that_are_not_there(tmp_path):
    given = access(tmp_path, RUNNING, RUNNING, RUNNING)
    first, _, last = given.cluster.nodes
    removed = replace(given, cluster=replace(given.cluster, nodes=(first, last)))
    with pytest.raises(UsageError, match="cluster demo has no node 1,7") as caught:
        removed.select((0, 1, 7))
    assert caught.value.hint == "its nodes are 0,2"


PUBLIC = "198.51.100.7"


@pytest.mark.parametrize(
    ("head_ip", "node_ip", "jumps"),
    [
        (PUBLIC, None, True),
        (PUBLIC, "", True),
        (PUBLIC, "198.51.100.8", False),
        # No node has a public address: the caller must be in their network.
        (None, None, False),
        (None, "198.51.100.8", False),
    ],
)
def test_private_nodes_are_behind_the_head(head_ip, node_ip, jumps):
    head = replace(NODE, public_ip=head_ip)
    private = replace(NODE, index=1, name="demo-1", private_ip="10.0.0.5", public_ip=node_ip)
    proxy = ("dial", "%h")
    given = Cluster("demo", "us-east-1", "ubuntu", (head, private))
    target_of = cluster_targets(given, proxy)
    first, second = target_of(head), target_of(private)
    assert first.jump is None
    assert second.jump == (first if jumps else None)
    assert second.address == (node_ip or "10.0.0.5")
    # Only connections from this machine go through the proxy.
    assert (first.proxy_command, first.proxy_passes_fd) == (
        "dial 10.0.0.4" if not head_ip else f"dial {head_ip}",
        True,
    )
    assert second.proxy_command == ("" if jumps else f"dial {second.address}")


def test_a_head_that_is_not_running_is_said_by_those_behind_it():
    head = replace(NODE, public_ip=PUBLIC, state=STOPPED)
    private = replace(NODE, index=1, name="demo-1", private_ip="10.0.0.5")
    target = cluster_targets(Cluster("demo", "us-east-1", "ubuntu", (head, private)))(private)
    assert (target.down, target.jump and target.jump.down) == ("", "its instance is stopped")


def test_the_heads_address_as_last_seen():
    private = replace(NODE, index=1, name="demo-1")
    seen = {"demo-0": NODE}
    target_of = cluster_targets(
        Cluster("demo", "us-east-1", "ubuntu", (NODE, private)),
        latest=lambda node: seen.get(node.name, node),
    )
    assert target_of(private).jump is None
    seen["demo-0"] = replace(NODE, public_ip=PUBLIC)
    jump = target_of(private).jump
    assert jump is not None
    assert jump.address == PUBLIC


def test_a_stopped_node_says_so_by_itself(tmp_path):
    first, second = access(tmp_path, RUNNING, STOPPED).targets
    assert (first.down, second.down) == ("", "its instance is stopped")


def test_no_node_runs(tmp_path):
    with pytest.raises(ClusterctlError, match="no node of demo is running") as refused:
        open_access(cluster(STOPPED, STOPPED), ClusterFolder(tmp_path))
    assert refused.value.hint == "start it: clusterctl start demo"


def test_the_key_is_elsewhere(tmp_path):
    with pytest.raises(MissingTool) as caught:
        open_access(cluster(RUNNING), ClusterFolder(tmp_path))
    assert "`clusterctl down " in caught.value.hint


@pytest.mark.parametrize("is_off", [True, False])
def test_a_copy_says_that_a_node_was_stopped_and_else_what_it_saw(tmp_path, is_off):
    silent = CommandTimeout("demo-1", "sent nothing for 5 s (frozen, or cut off)")
    stopped = CommandTimeout("demo-1", "EC2 has i-1 as stopped")
    stopped.is_off = is_off
    there = access(tmp_path, NodeState.RUNNING, NodeState.RUNNING)
    there.connections.explain = lambda target, error: stopped
    targets = {node.index: there.target(node) for node in there.cluster.nodes}
    found = with_reason(there, NodeReport("demo-1", error=silent), targets)
    assert found.error is (stopped if is_off else silent)
