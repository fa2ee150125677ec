"""The generated files: hosts file, ssh_config and known_hosts."""

from __future__ import annotations

import subprocess

import pytest

from clusterctl.domain.cluster import ClusterSpec, NodeState
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import ClusterFolder, write_file
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.operations import members, power
from clusterctl.operations import up as up_module
from clusterctl.operations.known_hosts import LearntHostKeys
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.local_state import (
    follow_addresses,
    follow_members,
    hosts_text,
    locked,
    ssh_config_text,
)
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import KnownHostKeys
from tests.moto_ec2 import clients_with
from tests.operations.clusters import ED25519, OTHER, cluster, node
from tests.variants import usual

WEIRD = ["plain", "with space", "100% %h %%", 'it\'s "quoted"', "#hash", "ünï", "back\\slash"]


@pytest.fixture(params=WEIRD)
def folder(request, tmp_path):
    return ClusterFolder(tmp_path / request.param / "demo")


def test_the_hosts_file():
    nodes = cluster(node(0, "203.0.113.9"), node(1, gpus=4), node(2, gpus=0))
    assert hosts_text(nodes) == "10.0.0.4 slots=8\n10.0.0.5 slots=4\n10.0.0.6 slots=1\n"
    assert hosts_text(nodes, (7, 8, 0)) == "10.0.0.4 slots=7\n10.0.0.5 slots=8\n10.0.0.6 slots=1\n"


def asked(config, host):
    """Return the settings that OpenSSH reads from the file."""
    argv = ["ssh", "-G", "-F", str(config), host]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    lines: dict[str, str] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        lines.setdefault(key, value)
    return lines


def test_openssh_reads_the_ssh_config(folder):
    nodes = cluster(node(0, "203.0.113.9"), node(1))
    write_file(folder.ssh_config, ssh_config_text(nodes, folder))
    assert folder.node_addresses() == {"demo-0": "203.0.113.9", "demo-1": "10.0.0.5"}
    assert folder.node_names() == {
        **dict.fromkeys(("demo-0", "10.0.0.4", "203.0.113.9"), "demo-0"),
        **dict.fromkeys(("demo-1", "10.0.0.5"), "demo-1"),
    }
    text = ssh_config_text(cluster(node(0, "203.0.113.9"), node(1)), folder)
    write_file(folder.ssh_config, text)
    head = asked(folder.ssh_config, "demo-0")
    assert head["hostname"] == "203.0.113.9"
    assert head["user"] == "ubuntu"
    assert head["identitiesonly"] == "yes"
    assert head["stricthostkeychecking"] == "true"
    assert head["serveraliveinterval"] == "10"
    assert "proxycommand" not in head
    assert asked(folder.ssh_config, "demo-1")["hostname"] == "10.0.0.5"
    assert asked(folder.ssh_config, "elsewhere")["identitiesonly"] == "no"


def test_openssh_finds_the_key(folder):
    write_file(folder.ssh_config, ssh_config_text(cluster(node(0)), folder))
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder.key)], check=True
    )
    # A server that only sends its banner: by then, ssh has read its files.
    options = [
        "-v",
        "-o",
        r"ProxyCommand=printf 'SSH-2.0-x\r\n'; head -c 1 >/dev/null",
        "-o",
        "BatchMode=yes",
    ]
    argv = ["ssh", "-F", str(folder.ssh_config), *options, "demo-0"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stderr
    # -v prints the identity file with its type: 3 is ed25519, -1 a missing file.
    assert [line for line in said.splitlines() if line.endswith(" type 3")] != [], said


def test_the_way_through_a_proxy(tmp_path):
    folder = ClusterFolder(tmp_path / "demo")
    proxy = ("/opt/my python", "-m", "dial", "%h", "%p", "it's")
    write_file(folder.ssh_config, ssh_config_text(cluster(node(0)), folder, proxy))
    said = asked(folder.ssh_config, "demo-0")
    assert said["proxycommand"] == "'/opt/my python' -m dial %h %p 'it'\"'\"'s'"
    assert said["proxyusefdpass"] == "yes"


def test_private_nodes_are_reached_through_the_head(tmp_path):
    private = cluster(node(0, "203.0.113.9"), node(1), node(2, "203.0.113.10"))
    folder = ClusterFolder(tmp_path / "demo")
    write_file(folder.ssh_config, ssh_config_text(private, folder, ("dial", "%h", "%p")))
    behind = asked(folder.ssh_config, "demo-1")
    assert (behind["hostname"], behind["proxyjump"]) == ("10.0.0.5", "demo-0")
    # The proxy is only for nodes that this machine connects to directly.
    assert "proxycommand" not in behind
    assert behind.get("proxyusefdpass", "no") == "no"
    for host in ("demo-0", "demo-2"):
        direct = asked(folder.ssh_config, host)
        assert (direct["proxycommand"], direct["proxyusefdpass"]) == ("dial %h %p", "yes")
        assert "proxyjump" not in direct


def test_the_way_through_the_head_from_any_folder(folder):
    """The second ssh reads the same file, whatever the file's name is."""
    private = cluster(node(0, "127.0.0.1"), node(1))
    text = ssh_config_text(private, folder)
    write_file(folder.ssh_config, text.replace("HostName 127.0.0.1", "HostName nowhere.invalid"))
    argv = ["ssh", "-F", str(folder.ssh_config), "-o", "BatchMode=yes", "demo-1", "true"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stderr
    assert "nowhere.invalid" in said, said


def test_a_node_without_an_address_yet_is_left_without(tmp_path):
    text = ssh_config_text(cluster(node(0, private_ip="")), ClusterFolder(tmp_path))
    assert "HostName" not in text


def test_a_file_is_replaced_whole_and_private(tmp_path):
    path = tmp_path / "new folder" / "file"
    write_file(path, "one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_file(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_file(path, "\ud800")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_pins_are_found_under_every_name(tmp_path):
    path = tmp_path / "known_hosts"
    pins = LearntHostKeys(path)
    head = node(0, "203.0.113.9")
    pins.learn(head, [ED25519])
    write_file(path, pins.text([head]))
    assert path.read_text() == f"10.0.0.4,demo-0,ip-10-0-0-4,203.0.113.9 {ED25519} i-0\n"
    from_file = KnownHostKeys([path])
    for name in ("10.0.0.4", "demo-0", "ip-10-0-0-4", "203.0.113.9"):
        target = Target("demo-0", name, "ubuntu")
        assert pins.algorithms(target) == from_file.algorithms(target) == ("ssh-ed25519",)


def test_pins_belong_to_an_instance_not_to_an_address(tmp_path):
    path = tmp_path / "known_hosts"
    earlier = LearntHostKeys(path)
    earlier.learn(node(0), [ED25519])
    write_file(path, earlier.text([node(0)]))
    now = LearntHostKeys(path)
    assert now.recall(node(0)) == (ED25519,)
    assert now.recall(node(0, instance_id="i-9")) == ()
    # Before the new machine's key is known, the old key is not trusted for the address.
    target = Target("demo-0", "10.0.0.4", "ubuntu")
    assert now.algorithms(target) == ()
    now.learn(node(0, instance_id="i-9"), [OTHER])
    assert now.text([node(0, instance_id="i-9")]) == f"10.0.0.4,demo-0,ip-10-0-0-4 {OTHER} i-9\n"


def test_pins_of_nodes_that_were_not_reached_stay(tmp_path):
    """An instance prints its keys only at its first boot: without the pin, logins would fail."""
    path = tmp_path / "known_hosts"
    earlier = LearntHostKeys(path)
    earlier.learn(node(0), [ED25519])
    earlier.learn(node(1), [OTHER], unverified=True)
    write_file(path, earlier.text([node(0), node(1)]))
    interrupted = LearntHostKeys(path)
    assert [interrupted.was_unverified(node(index)) for index in (0, 1)] == [False, True]
    moved = node(0, "203.0.113.7")
    assert interrupted.text([moved, node(1)]) == (
        f"10.0.0.4,demo-0,ip-10-0-0-4,203.0.113.7 {ED25519} i-0\n"
        f"10.0.0.5,demo-1,ip-10-0-0-5 {OTHER} i-1 unverified\n"
    )


def test_pins_of_nodes_that_are_gone_go(tmp_path):
    pins = LearntHostKeys(tmp_path / "known_hosts")
    for index in range(3):
        pins.learn(node(index), [ED25519])
    text = pins.text([node(2, state=NodeState.RUNNING), node(0)])
    assert [line.split()[-1] for line in text.splitlines()] == ["i-2", "i-0"]


@pytest.mark.parametrize(
    ("state", "instance", "pins"),
    [(NodeState.RUNNING, "i-0", 3), (NodeState.RUNNING, "i-9", 2), (NodeState.STOPPED, "i-0", 3)],
)
def test_the_files_follow_an_instance_to_its_new_address(tmp_path, state, instance, pins):
    """Its host keys are those of before; another instance has to be learnt by `up`."""
    folder = ClusterFolder(tmp_path / "demo")
    assert not follow_addresses(cluster(node(0)), folder), "there are no files"
    were = cluster(node(0, "203.0.113.7"), node(1))
    keys = LearntHostKeys(folder.known_hosts)
    keys.learn(were.nodes[0], [ED25519])
    keys.learn(were.nodes[1], [OTHER])
    leaving = node(1, instance_id="i-7", private_ip="10.0.0.77")
    keys.learn(leaving, [OTHER])
    write_file(folder.known_hosts, keys.text([*were.nodes, leaving]))
    write_file(folder.ssh_config, ssh_config_text(were, folder))
    assert not follow_addresses(were, folder)
    now = cluster(node(0, "203.0.113.9", state=state, instance_id=instance), node(1))
    with locked(folder):
        assert not follow_addresses(now, folder), "another command is about to write them"
    assert follow_addresses(now, folder, leaving=[leaving]) is (state is NodeState.RUNNING)
    host = asked(folder.ssh_config, "demo-0")["hostname"]
    assert host == ("203.0.113.9" if state is NodeState.RUNNING else "203.0.113.7")
    assert len(folder.known_hosts.read_text().splitlines()) == pins
    assert not follow_addresses(now, folder)


def test_the_hosts_file_follows_what_another_machine_did(tmp_path):
    folder = ClusterFolder(tmp_path / "demo")
    all_in = cluster(node(0), node(1), node(2))
    assert not follow_members(all_in, folder), "there is no file"
    before = hosts_text(all_in, [8, 7, 8])
    write_file(folder.hosts, before)
    assert not follow_members(all_in, folder)
    # Another machine has launched one more, which is not ready.
    out = cluster(node(0), node(1), node(2, quarantined="2026-11-21T12:00:00Z a reason"), node(3))
    with locked(folder):
        assert not follow_members(out, folder), "another command is about to write it"
    assert follow_members(out, folder)
    assert folder.hosts.read_text() == (
        "10.0.0.4 slots=8\n10.0.0.5 slots=7\n"
        "# 10.0.0.6: demo-2, in quarantine since 2026-11-21T12:00:00Z a reason\n"
    )
    assert not follow_members(out, folder)
    assert follow_members(all_in, folder)
    assert folder.hosts.read_text() == before
    replaced = cluster(node(0), node(1), node(2, instance_id="i-9", private_ip="10.0.0.9"))
    assert follow_members(replaced, folder)
    assert folder.hosts.read_text() == before.replace("10.0.0.6", "10.0.0.9")
    assert not follow_members(replaced, folder)
    assert follow_members(cluster(node(0), node(1)), folder)
    assert folder.hosts.read_text() == "10.0.0.4 slots=8\n10.0.0.5 slots=7\n"


@pytest.mark.parametrize("line", ["", "#", "x y z", "10.0.0.4 ssh-ed25519 !!! i-0", "\x00"])
def test_a_known_hosts_file_that_somebody_edited(tmp_path, line):
    path = tmp_path / "known_hosts"
    path.write_text(f"{line}\n10.0.0.5,demo-1 {ED25519} i-1\n")
    assert LearntHostKeys(path).recall(node(1)) == (ED25519,)


WRITERS = {
    "up": lambda launcher: up_module.up(
        launcher, fixed_request(ClusterSpec("demo", 2, "g5.xlarge"))
    ),
    "add": lambda launcher: members.add(launcher, 1),
    "remove": lambda launcher: members.remove(launcher, [1]),
    "replace": lambda launcher: members.replace_nodes(launcher, [1]),
    "start": power.start,
}


@pytest.mark.parametrize("command", usual(2, WRITERS))
def test_what_a_tag_says_is_no_setting_of_ssh(client, tmp_path, command):
    """A user who may tag instances cannot run commands on the machine of a user who logs in."""
    launcher = Launcher(
        clients_with(client), ClusterFolder(tmp_path / "demo"), timeout_s=0.2, capacity_timeout_s=0
    )
    # Without hosts, no node gets ready, but all files have been written.
    with pytest.raises(ClusterctlError):
        WRITERS["up"](launcher)
    ran = tmp_path / "ran"
    ids = [found.node.instance_id for found in find_instances(client, "demo")]
    if command == "start":
        client.stop_instances(InstanceIds=ids)
    hostile = f'ubuntu\nMatch exec "touch {ran}"\n    ProxyCommand touch {ran}\n'
    for tag in (tags.USER, tags.GPUS, tags.LAUNCH, tags.DISK, tags.LIMITS, tags.PRIVATE, "own"):
        client.create_tags(Resources=ids, Tags=[{"Key": tag, "Value": hostile}])
    launcher.folder.ssh_config.unlink()
    with pytest.raises(ClusterctlError):
        WRITERS[command](launcher)
    assert asked(launcher.folder.ssh_config, "demo-0")["user"] == "ubuntu"
    texts = [path.read_text() for path in launcher.folder.path.iterdir() if path.name != "lock"]
    written = [text for text in texts if "touch" in text]
    assert (written, ran.exists()) == ([], False)


def test_a_plan_is_made_of_one_look_at_the_cluster(client, tmp_path):
    """The request is settled from the same instances from which the plan is made."""
    folder = ClusterFolder(tmp_path / "demo")
    launcher = Launcher(clients_with(client), folder, timeout_s=0.2)
    with pytest.raises(ClusterctlError):
        WRITERS["up"](launcher)
    looks: list[object] = []

    def count(params, **_):
        looks.extend(one for one in params["Filters"] if one["Name"] == f"tag:{tags.CLUSTER}")

    event = "provide-client-params.ec2.DescribeInstances"
    client.meta.events.register(event, count)
    try:
        plan = members.plan_add(launcher, 1)
    finally:
        client.meta.events.unregister(event, count)
    assert (plan.missing, plan.spec.nodes, len(looks)) == ((2,), 3, 1)
