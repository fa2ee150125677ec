"""The state that is stored between commands, and the lock between commands."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from clusterctl.domain.errors import ClusterctlError, MissingTool, UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.operations.local_state import delete_folder, keep_key, local_key, locked
from clusterctl.operations.site import Site, check_site, keep_site, kept_site, parse_site, site_of
from tests import moto_ec2
from tests.clock import FakeClock


@pytest.fixture
def folder(tmp_path):
    return ClusterFolder(tmp_path / "demo")


def test_a_fresh_key_is_nowhere_until_it_is_kept(folder):
    key = local_key(folder, "demo")
    assert key.unwritten
    assert not folder.path.exists()
    keep_key(folder, key)
    assert folder.key.read_bytes() == key.unwritten
    assert folder.key.stat().st_mode & 0o777 == 0o600
    again = local_key(folder, "demo")
    assert (again.public, again.unwritten) == (key.public, None)
    keep_key(folder, again)
    assert folder.key.read_bytes() == key.unwritten


def test_a_key_file_that_is_broken_is_not_replaced(folder):
    folder.path.mkdir()
    folder.key.write_text("not a key")
    with pytest.raises(MissingTool, match="is not a private key, or is damaged"):
        local_key(folder, "demo")


@pytest.mark.parametrize(
    ("text", "site"),
    [
        (
            "us-east-1 at https://ec2.example, account 123456789012\n",
            ("us-east-1 at https://ec2.example", "123456789012"),
        ),
        ("us-east-1 at a local EC2\n", ("us-east-1 at a local EC2", "")),
        ("us-east-1 at x, account 12345", ("us-east-1 at x, account 12345", "")),
    ],
)
def test_a_site_is_one_line(text, site):
    assert parse_site(text) == Site(*site)
    assert f"{Site(*site)}" == text.strip()


def test_a_cluster_is_in_one_region_only(folder, moto_url):
    clients = moto_ec2.clients_of(moto_url)
    check_site(folder, clients)
    keep_site(folder, site_of(clients))
    assert kept_site(folder) == Site("us-east-1 at a local EC2", "123456789012")
    check_site(folder, clients)
    with pytest.raises(UsageError) as caught:
        check_site(folder, clients.in_region("eu-west-1"))
    assert "is in us-east-1 at a local EC2, account 123456789012" in caught.value.message
    assert "not in eu-west-1 at a local EC2" in caught.value.message
    assert "--region" in caught.value.hint


def test_a_local_ec2_may_be_started_on_another_port(folder, moto_url):
    here = moto_ec2.clients_of(moto_url)
    keep_site(folder, site_of(here))
    elsewhere = moto_ec2.clients_of(moto_url.replace("127.0.0.1", "localhost"))
    check_site(folder, elsewhere)


def test_one_command_at_a_time(folder):
    program = (
        "import sys, pathlib\n"
        "from clusterctl.domain.files import ClusterFolder\n"
        "from clusterctl.operations.local_state import locked\n"
        "with locked(ClusterFolder(pathlib.Path(sys.argv[1]))):\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", program, str(folder.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(ClusterctlError) as caught, locked(folder):
            pass
        assert "at work on demo" in caught.value.message
        other.kill()
    with locked(folder):
        pass


def test_a_look_at_the_lock_refuses_no_command(folder):
    """`gc` holds the lock for an instant, and a command that ends deletes the opened lock file."""
    lock = folder.path / "lock"
    folder.path.mkdir(parents=True)
    looks = lock.open("w")
    fcntl.flock(looks, fcntl.LOCK_SH)

    def look_ends(waits):
        lock.unlink(missing_ok=True)
        looks.close()

    with locked(folder, FakeClock(look_ends)), lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_without_locks_in_the_file_system_no_other_command_is_blamed(folder, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ClusterctlError, match="demo: No locks available"), locked(folder):
        pass


def test_anyone_may_see_whether_the_folder_is_locked(folder):
    """`gc` of the folder's owner, after a command by sudo."""
    before = os.umask(0o022)
    with locked(folder):
        assert (folder.path / "lock").stat().st_mode & 0o444 == 0o444
    os.umask(before)


def test_what_was_refused_leaves_no_folder(folder):
    with pytest.raises(UsageError), locked(folder):
        raise UsageError("no")
    assert not folder.path.exists()


def test_the_folder_stays_once_something_is_in_it(folder):
    with locked(folder):
        keep_key(folder, local_key(folder, "demo"))
    assert folder.key.exists()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with locked(folder):
        delete_folder(folder)
    assert not folder.path.exists()
