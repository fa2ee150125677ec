"""However a lab ends, nothing of it remains. Several labs do not disturb each other."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import clusterctl
from clusterctl.lab.record import read_record
from tests.changes import CHECKOUT
from tests.lab.conftest import Instances
from tests.lab.running import LabHome, client, remaining_of
from tests.variants import usual

pytestmark = pytest.mark.lab


def launch_one(record):
    """Launch a host in a lab of the test, so that there is something to leave behind."""
    return Instances(record, client(record), None).up(KeyName=None)[0]


def command_of(pid: int) -> str:
    """Return a process's command line, or "" if it has ended, like short ones of a booting host."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parts_of(home) -> dict[str, int]:
    """Return the lab's own processes: the API, the one that entered the namespaces, the daemon."""
    daemons = [pid for pid in sorted(home.processes()) if "daemon/__main__" in command_of(pid)]
    parents = {
        pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in daemons
    }
    api = read_record(home.path).pid
    entered = next(pid for pid in daemons if parents[pid] == api)
    daemon = next(pid for pid in daemons if parents[pid] == entered)
    return {"api": api, "entered": entered, "daemon": daemon}


@pytest.mark.parametrize("part", usual(1, ["api", "entered", "daemon"]))
def test_killing_any_process_ends_all(lab_home, part):
    record = lab_home.start()
    launch_one(record)
    processes = lab_home.processes()
    assert len(processes) > 4
    os.kill(parts_of(lab_home)[part], signal.SIGKILL)
    assert remaining_of(record, processes) == []
    assert read_record(lab_home.path) is None
    assert lab_home.run("status") == 1


@pytest.mark.all
def test_a_stopped_daemon_does_not_outlive_the_api_and_a_new_lab_starts(lab_home):
    record = lab_home.start()
    processes, parts = lab_home.processes(), parts_of(lab_home)
    os.kill(parts["daemon"], signal.SIGSTOP)
    os.kill(parts["api"], signal.SIGKILL)
    assert remaining_of(record, processes) == []
    assert lab_home.start().pid != record.pid
    assert [folder for folder in record.cgroups if Path(folder).exists()] == []


def test_stop_leaves_nothing(lab_home):
    record = lab_home.start()
    launch_one(record)
    processes = lab_home.processes()
    lab_home.stop()
    assert remaining_of(record, processes, patience_s=0) == []
    left = sorted(path.name for path in (lab_home.path / "lab").iterdir())
    assert left == ["lab.log", "lock"]
    assert [folder for folder in record.cgroups if Path(folder).exists()] == []


TESTS = """
import sys
from pathlib import Path
from tests.lab.running import home_of_lab
with home_of_lab(Path(sys.argv[1])) as home:
    home.start()
    print("running", flush=True)
    sys.stdin.read()
"""


@pytest.mark.all
def test_a_lab_of_tests_that_are_killed_ends(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", TESTS, str(tmp_path)],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert any(line == "running\n" for line in tests.stdout)
        record, processes = read_record(tmp_path), LabHome(tmp_path).processes()
        tests.kill()
    assert remaining_of(record, processes) == []
    assert read_record(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="a user's own folder is open to the user's hosts")
@pytest.mark.all
def test_from_a_folder_that_only_root_can_read(lab_home, tmp_path):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    package = Path(clusterctl.__file__).parent
    shutil.copytree(package, private / "clusterctl", symlinks=True)
    program = "import clusterctl; from clusterctl.cli.main import main; main()"
    environ = {**os.environ, "CLUSTERCTL_HOME": str(lab_home.path), "PYTHONPATH": str(private)}
    argv = [sys.executable, "-c", program, "lab", "start"]
    # With any umask: another user id makes the hosts than makes the folders of their limits.
    subprocess.run(argv, env=environ, cwd="/", check=True, umask=0o077)
    assert any(str(private) in command_of(pid) for pid in lab_home.processes())
    launch_one(read_record(lab_home.path))


@pytest.mark.all
def test_two_labs_at_once(lab, lab_home):
    other = lab_home.start()
    assert (other.network, other.endpoint_url) != (lab.network, lab.endpoint_url)
    if lab.mode == "root":
        assert other.network != lab.network
    here = launch_one(other)
    assert here["InstanceId"] not in str(client(lab).describe_instances())
