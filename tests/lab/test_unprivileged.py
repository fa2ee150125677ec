"""The lab without root: with subordinate ids if the machine has some, otherwise with one id."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from clusterctl.lab.record import read_record
from tests.lab.conftest import LabFaults, with_key
from tests.lab.running import (
    descendants,
    make_key,
    processes_of_hosts,
    real_uids,
    remaining_of,
    shared_with_hosts,
    ssh,
    wait_until,
    why_no_lab,
)

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-"),
]

UID = 54321
SUBIDS = f"labtest:{700_000}:65536\n"


def as_user(home: Path, *command: str, with_subids: bool) -> subprocess.CompletedProcess:
    """Run `clusterctl lab ...` as a separate user, who exists only in a changed view of /etc."""
    environ = ["env", f"HOME={home}", f"CLUSTERCTL_HOME={home}"]
    drop = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    program = [sys.executable, "-m", "clusterctl", "lab", *command]
    argv = [*drop, *environ, *program]
    if with_subids:
        files = {
            "passwd": Path("/etc/passwd").read_text() + f"labtest:x:{UID}:{UID}::{home}:/bin/sh\n"
        }
        files |= {"subuid": SUBIDS, "subgid": SUBIDS}
        binds = []
        for name, text in files.items():
            (home / name).write_text(text)
            binds.append(f"mount --bind {shlex.quote(f'{home}/{name}')} /etc/{name}")
        argv = ["unshare", "--mount", "sh", "-c", " && ".join([*binds, 'exec "$@"']), "-", *argv]
    return subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False)


@pytest.fixture(scope="module", params=["subuid", pytest.param("single", marks=pytest.mark.all)])
def user_lab(request):
    if request.param == "subuid" and not shutil.which("newuidmap"):
        pytest.skip("no newuidmap on this machine")
    probe = subprocess.run(
        ["setpriv", "--reuid", str(UID), "--clear-groups", "unshare", "-Ur", "true"],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip("users cannot make user namespaces on this machine")
    # Not pytest's own folder, which only the user of the tests can enter. ssh replaces %h by the
    # host's address in its options, which must not happen to this path.
    home = Path(tempfile.mkdtemp(prefix="clusterctl lab's %h-"))
    os.chown(home, UID, UID)
    started = as_user(home, "start", with_subids=request.param == "subuid")
    assert started.returncode == 0, started.stderr
    record = read_record(home)
    assert record is not None
    assert record.mode == request.param
    yield record
    processes = descendants(record.pid)
    stopped = as_user(home, "stop", with_subids=False)
    left = sorted(path.name for path in (home / "lab").iterdir())
    shutil.rmtree(home)
    assert stopped.returncode == 0, stopped.stderr
    assert left == ["lab.log", "lock"]
    assert remaining_of(record, processes) == []


@pytest.fixture(scope="module")
def made(user_lab, tmp_path_factory):
    return with_key(user_lab, make_key(tmp_path_factory.mktemp("key"), "key"))


def test_its_network_is_in_nobodys_way(lab, user_lab):
    """It overlaps no route of this machine, which include those of the root's lab beside it."""
    assert user_lab.network == "10.77.0.0/16"


def test_a_host_of_an_unprivileged_lab(user_lab, made, tmp_path):
    script = "#!/bin/sh\nid -un >/home/ubuntu/ran-as\n"
    asked = {"InstanceType": "p3.8xlarge", "UserData": script, "MinCount": 2, "MaxCount": 2}
    (one, other), key = made.up(**asked), made.key
    second = other["PrivateIpAddress"]
    private, first = one["PrivateIpAddress"], one["PublicIpAddress"]
    assert ssh(user_lab, key, private, "hostname -I").stdout.strip() == private

    def output(command: str) -> str:
        done = ssh(user_lab, key, first, command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    root = "0" if user_lab.mode == "subuid" else "1000"
    assert output("id -u; sudo -n id -u") == f"1000\n{root}"
    output("cloud-init status --wait")
    assert output("cat ran-as") == ("root" if user_lab.mode == "subuid" else "ubuntu")
    assert len(output("nvidia-smi -L").splitlines()) == 4
    assert shared_with_hosts(user_lab) == set()
    # With subordinate ids, a host cannot reach the user's own files.
    uids = real_uids(processes_of_hosts(user_lab))
    assert min(uids) >= 700_000 if user_lab.mode == "subuid" else uids == {UID}
    assert output("sudo touch /opt/here && ls /opt/here") == "/opt/here"
    assert not Path("/opt/here").exists()
    there = (
        f'python3 -c "import socket; print(socket.create_connection((\\"{second}\\", 22)).recv(3))"'
    )
    assert output(there) == "b'SSH'"

    s3 = "import os, urllib.request as u; u.urlopen(os.environ['S3_ENDPOINT_URL'])"
    assert "403" in ssh(user_lab, key, first, f'python3 -c "{s3}"').stderr  # without a key

    boot_id = output("cat /proc/sys/kernel/random/boot_id")
    ssh(user_lab, key, first, "sudo reboot")

    def rebooted():
        seen = ssh(user_lab, key, first, "cat /proc/sys/kernel/random/boot_id")
        return seen.returncode == 0 and seen.stdout.strip() != boot_id

    wait_until(rebooted, "another boot id")
    refused = ssh(user_lab, make_key(tmp_path, "other"), first, "true")
    assert (refused.returncode, "Permission denied" in refused.stderr) == (255, True)
    away = ssh(user_lab, key, str(first).rsplit(".", 1)[0] + ".250", "true")
    assert away.returncode == 255


@pytest.mark.all
def test_faults_of_the_hosts_of_an_unprivileged_lab(user_lab, made):
    key, faults = made.key, LabFaults(user_lab)

    def answers(one):
        try:
            return ssh(user_lab, key, one["PublicIpAddress"], "true", timeout_s=3).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    faults("boot", silent=True)
    silent, one = made.up()[0], made.up()[0]
    assert not answers(silent)
    for kind in ("freeze", "cut"):
        wait_until(lambda: answers(one), "a login")
        faults(kind, instance_id=one["InstanceId"])
        wait_until(lambda: not answers(one), f"no login after {kind}")
        faults.clear()
    wait_until(lambda: answers(one), "a login")
    for kind, fields, command in (
        ("shape", {"up": 10**8, "down": 10**9}, "! /sbin/tc qdisc show dev eth0 | grep tbf"),
        ("fill", {"left": 4096}, "head -c 1M /dev/zero >/data/a"),
        ("readonly", {}, "touch /data/b"),
    ):
        faults(kind, instance_id=one["InstanceId"], **fields)
        assert ssh(user_lab, key, one["PublicIpAddress"], command).returncode == 1, kind
        faults.clear()
        assert ssh(user_lab, key, one["PublicIpAddress"], command).returncode == 0, kind
    made.ec2.terminate_instances(InstanceIds=made.ids)
