"""Copies to hosts of the lab that freeze, are cut off, have full disks or slow links."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.config import load_settings
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.s3 import AccessKeys
from clusterctl.domain.timeouts import Timeouts
from clusterctl.operations.copy import CopyTerms, UrlAccess, copy_to_cluster
from tests.cli.forks import run_one
from tests.lab.running import wait_until

pytestmark = pytest.mark.lab

NAME = "copies"
MIB = 1 << 20


class Cluster:
    """Four hosts, and actions on them."""

    def __init__(self, lab):
        self.environ = {**os.environ, "CLUSTERCTL_HOME": str(lab.home), "CLUSTERCTL_LAB": "1"}
        self.keys = AccessKeys(lab.keys[0].id, lab.keys[0].secret)

    def ctl(self, *words):
        done = subprocess.CompletedProcess(words, *run_one(words, self.environ))
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def open(self, timeouts=Timeouts()):
        return AppContext(load_settings(self.environ), timeouts).open(NAME)

    def instance(self, number):
        with self.open() as access:
            return access.cluster.nodes[number].instance_id

    def fault(self, *words):
        done = self.ctl("lab", "fault", *words)
        assert done.returncode == 0, done.stderr

    @property
    def urls(self):
        return UrlAccess(Path(self.environ["CLUSTERCTL_HOME"]) / "cache", self.keys)

    def copy(self, source, destination, watch=lambda progress: None, **options):
        with self.open() as access:
            request = CopyRequest((str(source),), destination, **options)
            return copy_to_cluster(
                *(access, access.targets, request),
                watch=watch,
                terms=CopyTerms(self.urls, timeout_s=120),
            )

    def on(self, number, command):
        with self.open() as access:
            result = access.connections.run(access.targets[number], command, timeout_s=60)
        assert result.ok, result
        return result.stdout

    def digest(self, number, path):
        return self.on(number, f"sha256sum < {path}").split()[0]


@pytest.fixture(scope="module")
def cluster(lab):
    cluster = Cluster(lab)
    up = cluster.ctl("up", NAME, "--nodes", "4", "--instance-type", "p3.2xlarge")
    assert up.returncode == 0, up.stderr
    yield cluster
    cluster.ctl("down", NAME, "--yes", "--discard-results")


@pytest.fixture
def shaped(cluster):
    """Limit all links to 60 Mbit/s, so that there is time for something to happen."""
    instances = [cluster.instance(number) for number in range(4)]
    for instance in instances:
        cluster.fault("shape", instance, "--rate", "60mbit")
    yield instances
    for instance in instances:
        cluster.fault("clear", instance)


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(os.urandom(32 * MIB))
    done = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True)
    return path, done.stdout.split()[0]


def once(reached, deed):
    """Return a watcher that acts when `reached(progress)` is true for the first time."""
    done = []

    def watch(progress):
        if not done and reached(progress):
            done.append(True)
            deed()

    return watch


def begun(progress):
    return all(node.bytes > 4 * MIB for node in progress.nodes)


def test_ec2_is_asked_for_the_links_beside_the_logins(cluster, tmp_path):
    """EC2 answers when relays already run, and the plan uses it. A source in S3 needs no plan."""
    asked = []

    def rates():
        asked.append("ec2")
        wait_until(lambda: cluster.on(0, "pgrep -f [z]lib.decompress || true"), "a relay")
        return {"p3.2xlarge": 3e8}

    def copy(source):
        with cluster.open(Timeouts(link_rates_s=60)) as access:
            request = CopyRequest((source,), "~/links/")
            return copy_to_cluster(
                access,
                access.targets,
                request,
                watch=lambda progress: None,
                terms=CopyTerms(cluster.urls),
                link_rates=rates,
            )

    (tmp_path / "file").write_bytes(b"x")
    report = copy(f"{tmp_path}/file")
    assert report.plan["predicted_s"] > 0
    assert copy("s3://there-is-none/file").failed
    assert asked == ["ec2"]


def test_a_machine_that_is_cut_off(cluster, shaped, large):
    path, digest = large
    watch = once(begun, lambda: cluster.fault("cut", shaped[0]))
    try:
        report = cluster.copy(path, "~/cut/", watch)
    finally:
        cluster.fault("clear", shaped[0])
    assert [node.host for node in report.failed] == [f"{NAME}-0"]
    assert {cluster.digest(number, "cut/large") for number in (1, 2, 3)} == {digest}


@pytest.mark.parametrize(
    ("fault", "said"),
    [("fill", "room"), pytest.param("readonly", "ead-only", marks=pytest.mark.all)],
)
def test_a_disk_that_takes_nothing(cluster, large, fault, said):
    path, digest = large
    node = cluster.instance(2)
    cluster.fault(fault, node)
    try:
        report = cluster.copy(path, f"/data/{fault}/")
    finally:
        cluster.fault("clear", node)
    [failed] = report.failed
    assert failed.host == f"{NAME}-2"
    assert said in (failed.error.hint if fault == "fill" else failed.error.message)
    assert cluster.digest(3, f"/data/{fault}/large") == digest
    assert cluster.copy(path, f"/data/{fault}/").ok


@pytest.mark.all
def test_a_slow_link_holds_nobody_back(cluster, shaped, large):
    path, digest = large
    cluster.fault("shape", shaped[1], "--rate", "12mbit")
    ended = {}

    def watch(progress):
        for node in progress.nodes:
            if node.stage.value == "done":
                ended.setdefault(node.host, progress.elapsed_s)

    report = cluster.copy(path, "~/slow/", watch)
    assert report.ok
    assert {cluster.digest(number, "slow/large") for number in range(4)} == {digest}
    slow = ended.pop(f"{NAME}-1")
    assert max(ended.values()) < slow


@pytest.mark.all
def test_nodes_whose_ports_are_closed_to_each_other(cluster, large):
    """Data comes from the source then, or through SSH if the source's port is closed as well."""
    path, digest = large
    blocks = "sudo -n ip route add blackhole"
    with cluster.open() as access:
        addresses = [node.private_ip for node in access.cluster.nodes]
    for number in range(4):
        for other in addresses[:number] + addresses[number + 1 :]:
            cluster.on(number, f"{blocks} {other}/32")
    try:
        report = cluster.copy(path, "~/closed/")
    finally:
        for number in range(4):
            for other in addresses[:number] + addresses[number + 1 :]:
                cluster.on(number, f"sudo -n ip route del blackhole {other}/32")
    assert report.ok, report
    assert {cluster.digest(number, "closed/large") for number in range(4)} == {digest}
