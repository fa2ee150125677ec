"""A copy to a cluster of which EC2 has lost a node."""

from __future__ import annotations

import json

import pytest

from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import NodeReport, TransferReport
from clusterctl.ec2.instances import find_instances
from clusterctl.operations import copy as operation
from tests.cli.running import launched
from tests.lab.running import wait_until

LINE = "warning: demo-1: it is gone: a request to EC2's API at "


@pytest.fixture
def lacking(clusterctl, client, monkeypatch):
    """Terminate demo-1. The copy to the other nodes succeeds."""

    def copied(access, targets, request, **rest):
        nodes = tuple(NodeReport(target.host, received_bytes=8, files=1) for target in targets)
        return TransferReport(SourceSummary(1, 8, 1), nodes, 1.0, dry_run=request.dry_run)

    launched(clusterctl)
    second = find_instances(client, "demo")[1].node.instance_id
    client.terminate_instances(InstanceIds=[second])
    wait_until(lambda: len(find_instances(client, "demo")) == 1, "the end of demo-1")
    monkeypatch.setattr(operation, "copy_to_cluster", copied)


@pytest.mark.parametrize("options", [(), ("--dry-run", "-q")])
def test_a_missing_node_is_reported_first_and_last_and_the_status_is_1(
    lacking, clusterctl, options
):
    ran = clusterctl("copy", *options, "demo", ".", "to")
    assert ran.status == 1
    first, *_, last = ran.err.splitlines()
    assert first.startswith(LINE)
    assert last.startswith(
        "demo-1: missing, so nothing was copied there (hint: `clusterctl up demo "
    )


def test_a_copy_to_named_nodes_succeeds_with_a_warning(lacking, clusterctl):
    ran = clusterctl("copy", "--nodes", "0", "demo", ".", "to")
    assert (ran.status, ran.err.startswith(LINE), "error" in ran.err) == (0, True, False)
    clusterctl.ends(2, "cluster demo has no node 1", "copy", "--nodes", "1", "demo", ".", "to")


def test_events(lacking, clusterctl):
    ran = clusterctl("copy", "--json", "demo", ".", "to")
    report = json.loads(ran.out.splitlines()[-1])
    assert (report["ok"], report["exit_status"], report["missing"]) == (False, 1, ["demo-1"])
    assert [node["ok"] for node in report["nodes"]] == [True]
