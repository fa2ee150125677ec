"""Host keys on real hosts: changed, of an earlier machine, accepted unverified, compared later."""

from __future__ import annotations

import re
import subprocess

import pytest

from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.instances import find_instances
from clusterctl.operations.known_hosts import UNVERIFIED
from tests.cli.running import CommandLine
from tests.lab.running import client, make_profile, once_client, wait_until
from tests.pair import LabCluster

pytestmark = pytest.mark.lab
TYPE = ("--instance-type", "g5.xlarge")
# New keys, as of an attacker or of a reinstalled machine.
OTHER_KEYS = """\
set -e
sudo rm /etc/ssh/ssh_host_*; sudo ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
sudo cp /etc/ssh/ssh_host_ed25519_key /etc/ssh/ssh_host_rsa_key
sudo pkill -HUP -o -x sshd
"""


@pytest.fixture(scope="module")
def shared(lab):
    """Return the name of a cluster. `up` repairs it if a test has changed it."""
    cluster = LabCluster(lab, "keys")
    yield cluster.name
    cluster.ctl("down", "--yes", "--discard-results")


@pytest.fixture
def lag(clusterctl, monkeypatch):
    """Delay the output of consoles."""

    fault = CommandLine(clusterctl.home, clusterctl._capsys, ["fault"])

    def late(duration):
        ran = fault("lab", "lag", "--console", duration)
        assert ran.status == 0, ran.err

    yield late
    fault("lab", "clear")


def up(clusterctl, name, *more):
    return clusterctl("up", name, "--nodes", "2", *TYPE, *more)


def pins_of(clusterctl, name) -> str:
    return (clusterctl.home / name / "known_hosts").read_text()


def test_a_node_with_other_keys_than_its_console_has(clusterctl, shared, tmp_path):
    name = shared
    assert up(clusterctl, name).status == 0
    ran = clusterctl("run", name, "-n", "--nodes", "1", OTHER_KEYS)
    assert ran.status == 0, ran.err
    shown = "is the same instance as before and shows another host key"
    # For a moment sshd, which starts anew, refuses connections.
    run = lambda: clusterctl("run", name, "-n", "hostname")  # noqa: E731
    ran = wait_until(
        lambda: found if shown in (found := run()).err else None, "the other key to be shown"
    )
    assert ran.status == 255
    assert f"{name}-1: i-" in ran.err
    assert len(set(re.findall(r"SHA256:\S{43}", ran.err))) == 2
    assert "Do not delete the known key" in ran.err
    # The other node answered.
    assert f"{name}-0" in ran.out

    (tmp_path / "file").write_text("x")
    for command in (("copy", name, str(tmp_path / "file"), "file"), ("ssh", name, "1")):
        clusterctl.ends(255, shown, *command)

    before = pins_of(clusterctl, name)
    for more in ((), ("--accept-new-host-keys",)):
        ran = up(clusterctl, name, *more)
        assert ran.status == 1
        assert f"{name}-1: its host key is not its own: it shows ssh-ed25519 SHA256:" in ran.err
        assert "neither its console nor its agent knows of another" in ran.err
        assert "clusterctl replace" in ran.err
        assert pins_of(clusterctl, name) == before
    assert clusterctl("replace", name, "1", "--yes", "--force").status == 0
    assert clusterctl("run", name, "-n", "hostname").status == 0


def test_pins_that_are_wrong_are_mended_from_the_console_with_a_warning(clusterctl, shared):
    name = shared
    assert up(clusterctl, name).status == 0
    pins = clusterctl.home / name / "known_hosts"
    right = pins.read_text()
    keys = dict(re.findall(rf"{name}-(\d),\S+ ssh-ed25519 (\S+)", right))
    pins.write_text(re.sub(r"\S+ (?:ecdsa|ssh-rsa).*\n", "", right).replace(keys["1"], keys["0"]))
    assert clusterctl("run", name, "-n", "hostname").status == 255
    argv = ["ssh", "-F", str(clusterctl.home / name / "ssh_config"), f"{name}-1", "true"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 255
    ran = up(clusterctl, name)
    assert ran.status == 0, ran.err
    assert "[hostkey.renewed]" in ran.err
    assert pins.read_text().splitlines()[1:] == right.splitlines()[2:]


@pytest.fixture
def without_consoles(clusterctl, name, lag, lab):
    """Bring the nodes up except for their keys.

    Then the end of an `up` with short timeouts and without consoles depends only on the keys.
    """
    lag("1h")
    clusterctl.timeouts = Timeouts(console_only_s=1.0)

    def start(*more):
        assert up(clusterctl, name, "--timeout", "1s", *more).status == 1
        ids = [one.node.instance_id for one in find_instances(client(lab), name)]
        waiter = client(lab).get_waiter("instance_status_ok")
        waiter.wait(InstanceIds=ids, WaiterConfig={"Delay": 1})

    return start


@pytest.mark.all
def test_keys_are_accepted_unverified_with_the_flag_only_and_compared_later(
    clusterctl, name, lag, without_consoles
):
    without_consoles()
    ran = up(clusterctl, name, "--timeout", "3s")
    assert ran.status == 1
    assert f"{name}-[0-1]: not ready after 3.0 s: waiting for its host key" in ran.err
    assert "--accept-new-host-keys" in ran.err
    assert pins_of(clusterctl, name) == ""

    ran = up(clusterctl, name, "--accept-new-host-keys")
    assert ran.status == 0, ran.err
    assert ran.err.count("ACCEPTED UNCHECKED") == 2
    unverified = pins_of(clusterctl, name).splitlines()
    assert [line.split()[-1] for line in unverified] == [UNVERIFIED, UNVERIFIED]
    assert clusterctl("run", name, "-n", "hostname").status == 0

    lag("0.1s")
    ran = up(clusterctl, name)
    assert ran.status == 0, ran.err
    assert "ACCEPTED UNCHECKED" not in ran.err
    compared = pins_of(clusterctl, name)
    assert UNVERIFIED not in compared
    assert all(line.removesuffix(f" {UNVERIFIED}") in compared for line in unverified)


@pytest.mark.all
def test_the_reason_of_the_second_channel_is_in_the_message(
    clusterctl, name, lab, without_consoles
):
    make_profile(once_client(lab, "iam"), "without-ssm")
    profile = ("--instance-profile", "without-ssm")
    without_consoles(*profile)
    ran = up(clusterctl, name, "--timeout", "6s", *profile)
    assert ran.status == 1
    assert "waiting for its host key on the console; over Systems Manager: " in ran.err
