"""Complete runs of `up` and `down` on the local EC2: real hosts, SSH, and order of cloud-init."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from clusterctl.ec2 import session
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch import execution as launch
from clusterctl.ec2.resources import NOT_TERMINATED, ResourceKind, find_key_pairs, find_resources
from clusterctl.ec2.session import Clients
from clusterctl.lab.record import ACCOUNTS
from tests.lab.running import CLUSTERCTL, account_of, keys_of
from tests.programs import completed

pytestmark = pytest.mark.lab

TYPE = ("--instance-type", "p3.16xlarge")


@pytest.fixture(scope="module")
def clients(lab):
    return Clients(account_of(lab))


@pytest.fixture(scope="module")
def ec2(clients):
    return clients.ec2


names = (f"up{number}" for number in itertools.count())


@pytest.fixture
def name(clusterctl, ec2):
    """Yield a cluster's name. The end of the test removes all that belongs to the cluster."""
    name = next(names)
    yield name
    clusterctl("down", name, "--yes", "--discard-results")
    assert find_instances(ec2, name, NOT_TERMINATED) == ()
    assert find_resources(ec2, name, ResourceKind.SECURITY_GROUP) == ()
    assert find_key_pairs(ec2, name) == ()
    assert not (clusterctl.home / name).exists()


def up(clusterctl, name, nodes, *more):
    ran = clusterctl("up", name, "--nodes", str(nodes), *TYPE, *more)
    assert ran.status == 0, ran.err
    return ran


def on(clusterctl, host, command, status=0):
    """Return a command's output on a node, by the system's ssh and the generated ssh_config."""
    name = host.rpartition("-")[0]
    argv = ["ssh", "-F", str(clusterctl.home / name / "ssh_config"), host, command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == status, done.stderr
    return done.stdout


def user_data(tmp_path, text) -> tuple[str, str]:
    path = tmp_path / "user-data.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    return "--user-data", str(path)


def test_a_cluster_from_nothing_and_back(clusterctl, name):
    assert up(clusterctl, name, 2, "--json").data["launched"] == [0, 1]
    ran = up(clusterctl, name, 3)  # more nodes
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows[0] == ["NODE", "STATE", "TYPE", "GPUS", "ADDRESS", "ZONE"]
    assert [row[:4] for row in rows[1:]] == [
        [f"{name}-{index}", "running", "p3.16xlarge", "8"] for index in range(3)
    ]
    # This machine uses public addresses; nodes use private ones among themselves.
    addresses = [node["private_ip"] for node in clusterctl("status", name, "--json").data["nodes"]]
    assert [row[4] for row in rows[1:]] != addresses
    folder = clusterctl.home / name
    assert (folder / "hosts").read_text() == "".join(f"{one} slots=8\n" for one in addresses)
    assert clusterctl("hosts", name).out == (folder / "hosts").read_text()
    head = f"{name}-0"
    shipped = on(clusterctl, head, "cat examples/horovod/tensorflow/hosts")
    assert shipped == (folder / "hosts").read_text()
    for index, address in enumerate(addresses):
        assert on(clusterctl, f"{name}-{index}", "hostname -I").strip() == address

    for found in (folder, *folder.iterdir()):
        assert found.stat().st_mode & 0o077 == 0 or found.name == "lock"
    assert not re.search(r"StrictHostKeyChecking\s+no", (folder / "ssh_config").read_text())

    # The head node reaches every node by every name. Workers reach no node.
    dashed = f"ip-{addresses[1].replace('.', '-')}"
    for target in (f"{name}-1", addresses[1], dashed):
        assert on(clusterctl, head, f"ssh {target} hostname").strip() == dashed
    own = on(clusterctl, head, "hostname")
    for target in (head, "localhost", "127.0.0.1", "$(hostname)"):
        assert on(clusterctl, head, f"ssh {target} hostname") == own
    # The private key is on the head node only, and workers have no SSH configuration.
    on(clusterctl, f"{name}-1", "test ! -e .ssh/clusterctl_mpi -a ! -e .ssh/config")
    on(clusterctl, f"{name}-1", f"ssh -o BatchMode=yes {head} true", status=255)

    # `up` again does not change the nodes.
    look = "cat .ssh/authorized_keys .ssh/config .ssh/clusterctl_known_hosts /etc/hosts | sha256sum"
    on(clusterctl, head, "printf 'Host mine\\n  User me\\n' >>.ssh/config")
    before = on(clusterctl, head, look)
    again = up(clusterctl, name, 3)
    assert f"nothing to launch or change in EC2: {name} is up and ready" in again.err
    assert again.out == ran.out
    assert on(clusterctl, head, look) == before
    assert on(clusterctl, head, "ssh -G mine | grep '^user '").strip() == "user me"

    # A node with a lost GPU does not hide the other nodes.
    seven = "#!/bin/sh\\n$smi.all -L | head -n 7\\n"
    lose_one = (
        "smi=$(command -v nvidia-smi) && sudo mv $smi $smi.all && "
        f'printf "{seven}" | sudo tee $smi >/dev/null && sudo chmod 755 $smi'
    )
    on(clusterctl, f"{name}-1", lose_one)
    ran = clusterctl("up", name, "--nodes", "3", *TYPE)
    assert ran.status == 1
    assert f"1 of 3 nodes of {name} is not ready:\n  {name}-1: nvidia-smi sees 7 GPUs" in ran.err
    assert f"{name}-0: checked" in ran.err
    assert f"{name}-2: checked" in ran.err


def test_nodes_that_are_gone_are_replaced_and_the_others_stay(clusterctl, name, ec2, tmp_path):
    up(clusterctl, name, 2)
    before = find_instances(ec2, name)
    ec2.terminate_instances(InstanceIds=[before[1].node.instance_id])
    assert "missing: 1 node (1)" in clusterctl("status", name).err
    ran = up(clusterctl, name, 2, "--json").data
    assert ran["launched"] == [1]
    assert ran["nodes"][0]["instance_id"] == before[0].node.instance_id
    assert on(clusterctl, f"{name}-0", f"ssh {name}-1 hostname") == on(
        clusterctl, f"{name}-1", "hostname"
    )

    # The head node.
    old = tmp_path / "key of the old head node"
    old.touch(0o600)
    old.write_text(on(clusterctl, f"{name}-0", "cat .ssh/clusterctl_mpi"))
    mine = "ssh-ed25519 AAAAmine me"
    on(clusterctl, f"{name}-1", f"echo {mine} >>.ssh/authorized_keys")
    config = (clusterctl.home / name / "ssh_config").read_text().splitlines()
    stolen = tmp_path / "ssh_config"
    ours = [line for line in config if "IdentityFile" not in line]
    stolen.write_text("\n".join([*ours, f'    IdentityFile "{old}"', "    BatchMode yes", ""]))
    login = ["ssh", "-F", str(stolen), f"{name}-1", "true"]
    assert subprocess.run(login, check=False, timeout=240).returncode == 0
    ec2.terminate_instances(InstanceIds=[find_instances(ec2, name)[0].node.instance_id])
    assert up(clusterctl, name, 2, "--json").data["launched"] == [0]
    assert on(clusterctl, f"{name}-0", f"ssh {name}-1 echo hello") == "hello\n"
    assert on(clusterctl, f"{name}-0", "runclust hosts true; runclust hosts 'exit 3'", 3) == ""
    # The key of a removed head node gives no access to any node.
    assert subprocess.run(login, check=False, timeout=240).returncode == 255
    assert mine in on(clusterctl, f"{name}-1", "cat .ssh/authorized_keys").splitlines()


@pytest.mark.all
def test_one_node_without_gpus_other_credentials_a_stop_and_the_folder_lost(
    clusterctl, lab, name, ec2, monkeypatch
):
    wanted = ("up", name, "--nodes", "1", "--instance-type", "c5.large")
    ran = clusterctl(*wanted)
    assert ran.status == 0, ran.err
    assert clusterctl("hosts", name).out.split()[1] == "slots=1"

    # Credentials of another account.
    kept = clusterctl.home / name / "account"
    other = keys_of(lab, ACCOUNTS[1])["aws_access_key_id"]
    own = keys_of(lab, ACCOUNTS[0])["aws_access_key_id"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", other)
    for command in (("down", name, "--yes"), wanted, ("run", name, "true"), ("status", name)):
        clusterctl.ends(2, f"account {ACCOUNTS[1]}", *command)
    assert json.loads(clusterctl("list", "--json").out) == []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", own)
    assert clusterctl("run", name, "true").status == 0
    assert kept.read_text().endswith(f", account {ACCOUNTS[0]}\n")
    assert len(find_instances(ec2, name)) == 1

    known_hosts = clusterctl.home / name / "known_hosts"
    [before] = find_instances(ec2, name)
    ec2.stop_instances(InstanceIds=[before.node.instance_id])
    assert clusterctl("status", name, "--json").data["state"] in ("1 stopping", "1 stopped")
    assert clusterctl(*wanted).status == 0
    [after] = find_instances(ec2, name)
    assert after.node.instance_id == before.node.instance_id
    assert after.node.public_ip != before.node.public_ip
    assert on(clusterctl, f"{name}-0", "hostname").startswith("ip-")

    # A stop and start by other means: the next command writes the files again, with the same keys.
    keys = {line.split()[2] for line in known_hosts.read_text().splitlines()}
    id = [after.node.instance_id]
    ec2.stop_instances(InstanceIds=id)
    ec2.get_waiter("instance_stopped").wait(InstanceIds=id, WaiterConfig={"Delay": 0.1})
    ec2.start_instances(InstanceIds=id)
    ec2.get_waiter("instance_status_ok").wait(InstanceIds=id, WaiterConfig={"Delay": 0.1})
    argv = [CLUSTERCTL, "ssh", name, "--lab", "--", "hostname"]
    login = completed(argv, stdin=subprocess.DEVNULL, check=True, timeout=60)
    assert login.stdout.startswith("ip-")
    assert f"nodes of {name} have new addresses" in login.stderr
    [moved] = find_instances(ec2, name)
    assert moved.node.public_ip in known_hosts.read_text()
    assert {line.split()[2] for line in known_hosts.read_text().splitlines()} == keys
    assert on(clusterctl, f"{name}-0", "hostname").startswith("ip-")
    ran = clusterctl("run", name, "true")
    assert (ran.status, ran.err) == (0, "")

    # Without the folder, logins are impossible, but `down` still finds everything.
    subprocess.run(["rm", "-r", str(clusterctl.home / name)], check=True)
    clusterctl.ends(1, "is not on this machine", *wanted)
    assert not (clusterctl.home / name).exists()
    clusterctl.ends(1, "3 resources not made from here", "down", name, "--yes")
    anyway = ("down", name, "--yes", "--launched-elsewhere")
    ran = clusterctl(*anyway)
    told = "not known what is left there: the key"
    assert (ran.status, told in ran.err, len(find_instances(ec2, name))) == (1, True, 1), ran.err
    ran = clusterctl(*anyway, "--discard-results")
    assert ran.out == f"removed {name}: 1 node, and all that was made for it\n"


def test_user_data_that_fails(clusterctl, name, tmp_path):
    script = user_data(tmp_path, "echo what went wrong; exit 3")
    ran = clusterctl("up", name, "--nodes", "2", *TYPE, *script)
    assert ran.status == 1
    assert f"2 of 2 nodes of {name} are not ready" in ran.err
    assert "what went wrong" in ran.err
    assert f"clusterctl down {name}" in ran.err
    # A login is possible, to find the cause.
    assert "what went wrong" in on(
        clusterctl, f"{name}-1", "sudo cat /var/log/cloud-init-output.log"
    )


@pytest.mark.parametrize(
    "moment",
    [
        "waiting for its host key",
        *(
            pytest.param(moment, marks=pytest.mark.all)
            for moment in (
                *("looking at", "ImportKeyPair", "RunInstances", "starting"),
                *("cloud-init", "waiting for SSH", "counting GPUs", "preparing"),
            )
        ),
    ],
)
def test_ctrl_c_at_any_moment_then_up_then_down(clusterctl, name, tmp_path, moment):
    """The interrupt comes during the moment or after it. `up` and `down` work in either case."""
    argv = [CLUSTERCTL, "up", name, "--nodes", "2", *TYPE, "--lab"]
    script = user_data(tmp_path, "sleep 0.5")
    with subprocess.Popen(
        [*argv, *script],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said = [next(line for line in process.stderr if moment in line)]
        process.send_signal(signal.SIGINT)
        said += process.stderr.readlines()
    assert "Traceback" not in "".join(said)
    if process.returncode:
        assert process.returncode == 130
        assert "to go on: " + shlex.join(["clusterctl", *argv[1:], *script]) in "".join(said)
    up(clusterctl, name, 2, *script)


def test_api_calls_do_not_grow_with_the_nodes(clusterctl, clients, ec2, name, monkeypatch):
    calls: list[str] = []
    ec2.meta.events.register("before-call.ec2", lambda model, **_: calls.append(model.name))
    monkeypatch.setattr(session, "Clients", lambda account: clients)
    monkeypatch.setattr(launch, "without_retries", lambda client: client)
    up(clusterctl, name, 4)
    # The dry run and the launch.
    assert calls.count("RunInstances") == 2
    # The name of each node, which no other call can give.
    assert calls.count("CreateTags") == 4
    # At least one per node, and a few more for nodes that print their keys late.
    assert calls.count("GetConsoleOutput") >= 4
    # Long answers of all instances: the existing ones, those that count in the quota, the new ones.
    assert calls.count("DescribeInstances") <= 4
    looks = ("DescribePlacementGroups", "DescribeInstances", "DescribeInstanceStatus")
    several = (*looks, "GetConsoleOutput", "RunInstances", "CreateTags")
    once = [call for call in calls if call not in several]
    assert len(once) == len(set(once)) == 16
    assert len(calls) - calls.count("GetConsoleOutput") < 60
