"""`add`, `remove`, `replace`, `stop` and `start` on real hosts, with obstacles."""

from __future__ import annotations

import pytest

from clusterctl.ec2.instances import find_instances
from tests.cli.running import CommandLine, type_on_terminal
from tests.lab.running import client

TYPE = ("--instance-type", "p3.2xlarge")


@pytest.fixture(scope="module")
def ec2(lab):
    return client(lab)


def up(clusterctl, name: str, nodes: int, *more: str) -> None:
    assert clusterctl("up", name, "--nodes", str(nodes), *TYPE, *more).status == 0


def hosts_everywhere(clusterctl, name: str) -> list[str]:
    """Return the hosts file. It has to be the same here and on every node."""
    here = (clusterctl.home / name / "hosts").read_text()
    ran = clusterctl("run", name, "--json", "cat ~/examples/horovod/tensorflow/hosts")
    assert ran.status == 0
    assert {one["stdout"] for one in ran.data["nodes"]} == {here}
    return [line.split()[0] for line in here.splitlines()]


def by_index(ec2, name: str) -> dict[int, str]:
    return {found.node.index: found.node.instance_id for found in find_instances(ec2, name)}


@pytest.mark.all
def test_more_fewer_and_other_nodes(clusterctl, ec2, name):
    up(clusterctl, name, 2, "--max-hours", "8")
    before = by_index(ec2, name)
    assert clusterctl("add", name, "1").status == 0
    assert clusterctl("remove", name, "1", "--yes").status == 0
    assert clusterctl("replace", name, "2", "--yes").status == 0
    after = by_index(ec2, name)
    assert list(after) == [0, 2]
    assert after[0] == before[0]
    assert len(hosts_everywhere(clusterctl, name)) == 2
    guards = clusterctl("run", name, "cat /var/lib/clusterctl/guard.json").out
    assert guards.count("lifetime_s") == 2
    # The lowest free index is used first.
    assert clusterctl("add", name, "1").status == 0
    assert list(by_index(ec2, name)) == [0, 1, 2]


@pytest.mark.all
def test_a_node_that_an_add_never_got_can_be_wanted_no_more(clusterctl, ec2, lab, name, capsys):
    ctl = CommandLine(lab.home, capsys, [])
    up(clusterctl, name, 1)
    before = by_index(ec2, name)
    for command, number, message in (
        ("remove", "0", "is the head node, and cannot be removed"),
        ("remove", "7", "has no node 7"),
        ("replace", "7", "has no node 7"),
        ("add", "0", "0 more nodes make no sense"),
    ):
        clusterctl.ends(2, message, command, name, number)
    assert by_index(ec2, name) == before
    assert ctl("lab", "fault", "capacity", "p3.2xlarge", "us-east-1a", "0").status == 0
    try:
        assert clusterctl("add", name, "1").status == 1
    finally:
        assert ctl("lab", "fault", "clear").status == 0
    clusterctl.ends(2, "head node", "remove", name, "0", "--yes")
    removed = clusterctl("remove", name, "1", "--yes")
    assert (removed.status, removed.out) == (0, f"removed {name}-1\n")
    assert clusterctl("up", name).status == 0
    assert list(by_index(ec2, name)) == [0]


def test_a_stop_that_erases_data_on_an_instance_store_asks_on_a_terminal(
    clusterctl, name, monkeypatch
):
    assert clusterctl("up", name, "--nodes", "2", "--instance-type", "g5.xlarge").status == 0
    filled = "head -c 20M /dev/zero >/opt/dlami/nvme/weights"
    assert clusterctl("run", name, "--nodes", "1", filled).status == 0
    with monkeypatch.context() as there:
        type_on_terminal(there, "n\n")
        refused = clusterctl("stop", name)
    assert refused.status == 130
    assert f"stopping erases 20.0 MiB on the instance store of {name}-1" in refused.err
    assert f"Stop the nodes of {name}?" in refused.err + refused.out
    assert clusterctl("run", name, "true").status == 0
    clusterctl.ends(2, "stopping erases 20.0 MiB", "stop", name)
    assert clusterctl("stop", name, "--force").status == 0
    assert clusterctl("stop", name).err == f"nothing to do: {name} is stopped\n"
    clusterctl.ends(2, f"start it first: clusterctl start {name}", "add", name, "1")


def test_no_such_cluster(clusterctl):
    for command in ("stop", "start", "add 1", "remove 1 --yes", "replace 1"):
        verb, *rest = command.split()
        clusterctl.ends(1, "there is no cluster nobody", verb, "nobody", *rest)
