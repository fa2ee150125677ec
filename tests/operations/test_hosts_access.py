"""Finding the cluster of the hosts in a hosts file, and the way to reach them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import ClusterctlError, MissingTool, UsageError
from clusterctl.domain.files import ClusterFolder, write_file
from clusterctl.jobs.plan import JobRequest, check_per_host, check_request
from clusterctl.operations.hosts_access import LoginOptions, open_hosts
from clusterctl.operations.local_state import new_key_pair, ssh_config_text
from clusterctl.operations.train import live_hosts, plan_training
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import load_key
from tests.cli.programs import call
from tests.operations.clusters import cluster, node
from tests.transport.test_hosts_login import agent

HEAD = Target("demo-0", "203.0.113.9", "ubuntu")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return the folder of the cluster demo: a head node with a public address, and two without."""
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / "clusters"
    remember(home, "demo", cluster(node(0, "203.0.113.9"), node(1), node(2)))
    return home


def remember(home, name, nodes) -> ClusterFolder:
    folder = ClusterFolder(home / name)
    write_file(folder.key, new_key_pair(name).private)
    write_file(folder.ssh_config, ssh_config_text(nodes, folder))
    return folder


def reached(home, path, text, ssh_config="", user=None, key=None):
    path.write_text(text)
    ssh = home.parent / ".ssh"
    ssh.mkdir(exist_ok=True)
    (ssh / "config").write_text(f"Host *\n User me\n{ssh_config}")
    with open_hosts(path, LoginOptions(user, key), home=home) as access:
        return access


def plain(host):
    return Target(host, host, "me")


@pytest.mark.parametrize(
    "user", ["a b", "-oProxyCommand=touch pwn", "a;reboot", "$(reboot)", "a\n", ""]
)
def test_a_login_user_that_a_shell_could_take_for_more_is_refused(user):
    with pytest.raises(UsageError, match="not a user name"):
        LoginOptions(user)
    assert LoginOptions("DOMAIN\\first.last@site").user


@pytest.mark.parametrize(
    ("text", "ssh_config", "targets"),
    [
        ("10.0.0.4\ndemo-1\n", "", (("10.0.0.4", None), ("demo-1", "10.0.0.5"))),
        ("10.0.0.6 slots=8\n", "", (("10.0.0.6", "10.0.0.6"),)),
        ("203.0.113.9\n", "", (("203.0.113.9", None),)),
        # A host that is not in the cluster, and one that the user has named.
        ("10.0.0.98\n10.0.0.99\n", "", None),
        ("10.0.0.5\n", "Host 10.0.0.5\n", None),
    ],
)
def test_how_the_hosts_of_any_file_are_reached(home, tmp_path, text, ssh_config, targets):
    access = reached(home, tmp_path / "hosts", text, ssh_config)
    if targets is None:
        assert access.targets == tuple(map(plain, text.split()))
        return
    assert access.targets == tuple(
        Target(host, address or HEAD.address, "ubuntu", jump=HEAD if address else None)
        for host, address in targets
    )
    assert access.connections.host_keys.paths == (home / "demo" / "known_hosts",)
    assert len(access.connections.identity.keys) == 1


@pytest.mark.parametrize("text", [None, "", "\n", "10.0.0.5 slots=2\n"])
def test_a_nodes_slots_are_those_of_the_hosts_file_where_it_has_any(tmp_path, text):
    folder = ClusterFolder(tmp_path / "demo")
    if text is not None:
        write_file(folder.hosts, text)
    access = SimpleNamespace(folder=folder, cluster=cluster(node(0), node(1)))
    slots = {one.host: one.slots for one in live_hosts(access).entries}
    assert slots == {"10.0.0.4": 8, "10.0.0.5": 2 if text and text.strip() else 8}


def test_a_node_without_a_gpu_takes_more_ranks_by_its_slots(tmp_path):
    folder = ClusterFolder(tmp_path / "demo")
    nodes = [replace(node(index), gpus=0) for index in range(2)]
    access = SimpleNamespace(folder=folder, cluster=cluster(*nodes))
    for request, says in (
        (JobRequest(4, per_host=2), "a node has 1 slot, and no GPU"),
        (JobRequest(4), "wanted 4 slots, there are 2"),
    ):
        with pytest.raises(ClusterctlError, match=says) as raised:
            plan_training(access, request)
        assert f"slots={request.per_host or 'N'} for each node into {folder.hosts}" in (
            raised.value.hint
        )
    write_file(folder.hosts, "10.0.0.4 slots=2\n10.0.0.5 slots=2\n")
    check_per_host(JobRequest(4, per_host=2), live_hosts(access))
    check_request(JobRequest(4), live_hosts(access).slots, "")


def test_a_hosts_file_from_before_a_node_was_replaced(home, tmp_path):
    path = tmp_path / "old hosts"
    with pytest.raises(UsageError) as refused:
        reached(home, path, "10.0.0.4\n10.0.0.99\n")
    assert refused.value.message == (
        f"the key of demo is not used: in {path}, 10.0.0.4 is a node of demo, and 10.0.0.99 is not"
    )
    # The file may be one that was written by hand: nothing may overwrite it.
    assert "compare: clusterctl hosts demo; or name a key" in refused.value.hint
    # Who has a key of their own for these hosts may use the file.
    key = home / "demo/id_ed25519"
    assert len(reached(home, path, "10.0.0.4\n10.0.0.99\n", key=key).targets) == 2
    assert len(reached(home, path, "10.0.0.98\n10.0.0.99\n").targets) == 2


def test_a_key_that_is_given_is_the_only_one_for_the_hosts(home, tmp_path):
    """Else a login would say nothing of the key. The head node, on the way, gets the cluster's."""
    mine = tmp_path / "mine"
    write_file(mine, new_key_pair("mine").private)
    with reached(home, tmp_path / "hosts", "10.0.0.5\n", key=mine) as access:
        offered = access.connections.identity.keys_for
        assert offered(access.targets[0]) == [load_key(mine)]
        assert list(offered(HEAD)) == [load_key(home / "demo/id_ed25519")]
    # Where no other host is on the way, the cluster's key is not needed.
    write_file(home / "demo/id_ed25519", b"")
    [target] = reached(home, tmp_path / "hosts", "203.0.113.9\n", key=mine).targets
    assert target.jump is None
    with pytest.raises(MissingTool, match="cannot be used: .* is not a private key, or is damaged"):
        reached(home, tmp_path / "hosts", "203.0.113.9\n")


def test_the_agent_signs_for_a_cluster_key_with_a_passphrase(home, tmp_path, monkeypatch):
    key = home / "demo/id_ed25519"
    with agent(tmp_path, key) as sock:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        public = load_key(key).asbytes()
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True)
        [key] = reached(home, tmp_path / "hosts", "demo-1\n").connections.identity.keys
        assert key.asbytes() == public


def test_a_key_that_is_given_is_read_once_for_all_hosts(home, tmp_path):
    """An RSA key in PEM takes 30 ms."""
    mine, names = tmp_path / "mine", [f"203.0.113.{number}" for number in range(3)]
    write_file(mine, new_key_pair("mine").private)
    access = reached(home, tmp_path / "hosts", "\n".join([*names, ""]), key=mine)
    keys = {id(key) for one in access.targets for key in access.connections.identity.keys_for(one)}
    assert len(keys) == 1


@pytest.mark.parametrize("host", ["demo-0", "other"])
@pytest.mark.parametrize("suffix", ["", ".pub"])
def test_the_agent_signs_for_a_key_that_is_given(home, tmp_path, monkeypatch, host, suffix):
    mine = tmp_path / "mine"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", mine], check=True)
    public = load_key(mine).asbytes()
    with agent(tmp_path, mine) as sock:
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", mine], check=True)
        hosts, key = (home, tmp_path / "hosts", f"{host}\n"), tmp_path / f"mine{suffix}"
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        with pytest.raises(UsageError, match="has a passphrase|is a public key"):
            reached(*hosts, key=key)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        access = reached(*hosts, key=key)
        [offered] = access.connections.identity.keys_for(access.targets[0])
        assert offered.asbytes() == public


def test_the_user_that_is_given_wins(home, tmp_path):
    [target] = reached(home, tmp_path / "hosts", "10.0.0.5\n", user="root").targets
    assert target == Target("10.0.0.5", "10.0.0.5", "root", jump=HEAD)


def test_addresses_that_two_clusters_have(home, tmp_path):
    other = remember(home, "other", cluster(node(1, "198.51.100.1")))
    with pytest.raises(UsageError) as refused:
        reached(home, tmp_path / "hosts", "10.0.0.5\n")
    assert str(other.hosts) in refused.value.hint
    # As the message advises.
    [target] = reached(home, other.hosts, "10.0.0.5\n").targets
    assert target == Target("10.0.0.5", "198.51.100.1", "ubuntu")


@pytest.mark.lab
def test_the_hosts_file_that_up_wrote_and_a_copy_of_a_part_of_it(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTERCTL_HOME", str(pair.lab.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    written = pair.lab.home / "pair" / "hosts"
    first, second = (line.split()[0] for line in written.read_text().splitlines())
    ran = call("runclust", written, "hostname")
    assert sorted(ran.stdout.splitlines()) == sorted(
        [
            f"{first}: {pair.on(0, 'hostname').strip()}",
            f"{second}: {pair.on(1, 'hostname').strip()}",
        ]
    ), ran.stderr
    part = tmp_path / "part"
    part.write_text(f"{second} slots=1\n")
    assert call("copyclust", part, part, "~/part of it").returncode == 0
    assert pair.on(1, "cat 'part of it'") == part.read_text()
    assert call("copyclust", "verify", part, "~/part of it").returncode == 0
