from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.domain.errors import LabError
from clusterctl.lab.hosts import namespaces
from clusterctl.lab.lifecycle import stop
from clusterctl.lab.record import AccessKey, LabRecord, process_started, read_record, write_record
from tests.programs import completed


@pytest.fixture
def mine(tmp_path):
    """Return a record that claims that this test process is a lab."""
    (tmp_path / "lab").mkdir()
    return LabRecord(
        home=tmp_path,
        endpoint_url="http://127.0.0.1:4000",
        region="us-east-1",
        pid=os.getpid(),
        pid_started=process_started(os.getpid()),
        mode="single",
        proxy_command=("dial", "%h", "%p"),
        network="10.77.0.0/16",
        public_network="198.18.0.0/20",
        link=None,
        started_at="2026-11-20T12:00:00+00:00",
        keys=(AccessKey("123456789012", "AKIA1", "secret"), AccessKey("2", "AKIA2", "other")),
        secret="for pages",
    )


def test_what_is_written_is_read(mine):
    write_record(mine)
    assert read_record(mine.home) == mine
    assert (mine.home / "lab/lab.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network links")
def test_a_link_that_the_kernel_keeps_is_removed_with_its_lab(mine):
    """As it does while a connection has data left for a host that was cut off."""
    link = "clab250"
    pair = ["type", "veth", "peer", "name", "clab251"]
    subprocess.run(["ip", "link", "add", link, *pair], check=True)
    with subprocess.Popen(["sleep", "600"]) as process:
        stop(replace(mine, pid=process.pid, link=link))
    assert not Path("/sys/class/net", link).exists()
    # The next start removes those of labs that were killed, and no others.
    for owner in (process.pid, os.getpid()):
        subprocess.run(["ip", "link", "add", link, *pair], check=True)
        alias = namespaces._owner(owner).replace("None", "1")
        subprocess.run(["ip", "link", "set", link, "alias", alias], check=True)
        namespaces.remove_dead_links()
        assert Path("/sys/class/net", link).exists() == (owner == os.getpid())
    subprocess.run(["ip", "link", "delete", link], check=True)


def test_without_a_record_no_lab_runs(mine):
    assert read_record(mine.home) is None
    assert read_record(mine.home / "not-there") is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"pid": 1}', b"null", b"\xff"])
def test_of_a_damaged_record_it_is_not_known_whether_the_lab_runs(mine, text):
    (mine.home / "lab/lab.json").write_bytes(text)
    with pytest.raises(LabError, match=r"not known: cannot read .*lab.json: it is damaged") as told:
        read_record(mine.home)
    assert f"rm {mine.home}/lab/lab.json" in told.value.hint


def test_a_lab_of_another_version_is_named_and_not_forgotten(mine):
    write_record(mine)
    file = mine.home / "lab/lab.json"
    fields = json.loads(file.read_text())
    del fields["keys"]
    file.write_text(json.dumps(fields))
    with pytest.raises(LabError, match=f"process {os.getpid()}"):
        read_record(mine.home)


def test_a_dead_lab_is_no_lab(mine):
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_started(child.pid) is None  # a zombie counts as dead
    child.wait()
    # Another process with its pid is no lab, either.
    for dead in (replace(mine, pid=child.pid), replace(mine, pid_started=mine.pid_started - 1)):
        write_record(dead)
        assert read_record(mine.home) is None


def test_reading_it_imports_no_moto():
    program = (
        "import clusterctl.lab.record, sys; print('moto' in sys.modules, 'boto3' in sys.modules)"
    )
    done = completed([sys.executable, "-c", program], check=True)
    assert done.stdout.strip() == "False False"
