"""`clusterctl lab` as its user sees it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

from clusterctl.domain.files import ClusterFolder
from clusterctl.lab.record import ACCOUNTS, LabOptions, read_record
from clusterctl.operations.site import Site, keep_site
from tests.lab.running import CLUSTERCTL
from tests.ports import free_port
from tests.programs import completed

pytestmark = pytest.mark.lab


def run(home, *arguments, stdin=None):
    environ = {**os.environ, "CLUSTERCTL_HOME": str(home)}
    argv = [CLUSTERCTL, "lab", *arguments]
    return completed(argv, stdin=stdin, env=environ)


def test_the_first_start_and_what_follows(lab_home):
    started = run(lab_home.path, "start")
    record = read_record(lab_home.path)
    assert started.returncode == 0, started.stderr
    assert f"endpoint   {record.endpoint_url}\n" in started.stdout

    again = run(lab_home.path, "start")
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr == f"the lab is already running at {record.endpoint_url}\n"
    assert read_record(lab_home.path) == record
    same = ("--network", record.network, "--data-size", "1GiB", "--region", record.region)
    assert run(lab_home.path, "start", *same, "--port", "0").returncode == 0
    other = "10.200.0.0/16" if record.network != "10.200.0.0/16" else "10.201.0.0/16"
    for option, value in (("--network", other), ("--data-size", "2GiB"), ("--port", "1")):
        refused = run(lab_home.path, "start", option, value)
        assert refused.returncode == 2
        assert f"error: the lab that runs has another {option}: see" in refused.stderr
    assert read_record(lab_home.path) == record

    stopped = run(lab_home.path, "stop")
    assert (stopped.returncode, stopped.stderr) == (
        0,
        "the lab is stopped, and nothing of it is left\n",
    )
    again = run(lab_home.path, "stop")
    assert (again.returncode, again.stderr) == (0, "the lab is not running\n")


@pytest.mark.parametrize("command", ["status", "env"])
def test_without_a_lab(tmp_path, command):
    shown = run(tmp_path, command)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr == (
        "error: the lab is not running\n  hint: start it with `clusterctl lab start`\n"
    )


def test_env_is_for_eval(lab):
    shown = run(lab.home, "env")
    exported = completed(
        ["sh", "-c", f"{shown.stdout}\necho $AWS_ENDPOINT_URL $AWS_DEFAULT_REGION"], check=True
    )
    assert exported.stdout == f"{lab.endpoint_url} us-east-1\n"
    assert json.loads(run(lab.home, "env", "--json").stdout) == lab.environment_of(ACCOUNTS[0])


def test_a_port_that_is_taken(lab_home):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run(lab_home.path, "start", "--port", str(port))
    assert refused.returncode == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n" in refused.stderr
    assert "  hint: choose another --port" in refused.stderr
    assert read_record(lab_home.path) is None


@pytest.mark.all
def test_a_server_that_cannot_start_fails(tmp_path):
    (tmp_path / "lab").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = LabOptions(str(tmp_path), taken.getsockname()[1], "us-east-1")
        argv = [sys.executable, "-m", "clusterctl.lab.server", json.dumps(asdict(options)), "1"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot listen" in done.stdout) == (1, True)


@pytest.mark.all
def test_a_port_of_ones_own(lab_home):
    port = free_port()
    assert run(lab_home.path, "start", "--port", str(port)).returncode == 0
    assert read_record(lab_home.path).endpoint_url == f"http://127.0.0.1:{port}"


BEHIND_A_VPN = """
ip link set lo up
for network in 10.0.0.0/8 0.0.0.0/1 128.0.0.0/1 10.77.3.0/24 10.200.5.0/24; do
    ip route add blackhole $network
done
lab="$0 -m clusterctl lab"
$lab start | grep ^network
$lab stop
$lab start --network 10.200.0.0/16 2>&1
$lab start --network 10.201.0.0/16 | grep ^network
$lab stop
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have another network")
@pytest.mark.all
def test_behind_a_vpn_there_is_a_network_and_one_can_be_chosen(lab_home):
    environ = {**os.environ, "CLUSTERCTL_HOME": str(lab_home.path)}
    argv = ["unshare", "--net", "sh", "-c", BEHIND_A_VPN, sys.executable]
    ran = subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)
    assert ran.stdout.splitlines() == [
        "network    10.78.0.0/16",
        "starting the lab ...",
        "error: 10.200.0.0/16 is in use on this machine, by 10.200.5.0/24",
        "  hint: choose another one with --network, or stop a lab that is no longer needed: "
        "python -m clusterctl lab stop",
        "network    10.201.0.0/16",
    ], ran.stderr


@pytest.mark.parametrize("network", ["10.5.0.0/15", "172.16.0.0/16", "10.5.1.0/16", "all"])
def test_networks_that_a_lab_cannot_have(tmp_path, network):
    refused = run(tmp_path, "start", "--network", network)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert network in refused.stderr


def of_a_cluster(home, name, site):
    folder = ClusterFolder(home / name)
    keep_site(folder, site)
    folder.launch.write_text("[]")
    return folder.path


def test_a_question_that_cannot_be_seen_stops_no_lab_with_clusters(lab):
    folder = of_a_cluster(lab.home, "stays", Site("us-east-1 at a local EC2", "123456789012"))
    ours, theirs = pty.openpty()
    try:
        stopped = run(lab.home, "stop", stdin=theirs)
        assert (stopped.returncode, folder.exists()) == (2, True)
        assert "stays" in stopped.stderr
        assert read_record(lab.home) == lab
    finally:
        shutil.rmtree(folder)
        os.close(ours)
        os.close(theirs)


def test_clusters_of_a_lab_that_is_gone_are_not_listed_any_more(tmp_path):
    gone = of_a_cluster(tmp_path, "gone", Site("us-east-1 at a local EC2", "123456789012"))
    other = of_a_cluster(tmp_path, "other", Site("us-east-1", "123456789012"))
    stopped = run(tmp_path, "stop")
    assert (stopped.returncode, gone.exists(), other.exists()) == (0, False, True)
    assert stopped.stderr.endswith("removed the folders of its clusters: gone\n")
