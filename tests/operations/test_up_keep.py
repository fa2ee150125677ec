"""What is kept between two commands, and what keeps two commands apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.keep import (
    account_of,
    check_account,
    forget,
    keep_account,
    keep_key,
    local_key,
    locked,
)
from tests import moto_ec2


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
    with pytest.raises(UsageError):
        local_key(folder, "demo")


class Client:
    class meta:  # noqa: N801
        region_name = "eu-west-1"
        endpoint_url = "https://ec2.eu-west-1.amazonaws.com"


def test_a_cluster_is_in_one_account_only(folder, moto_client):
    check_account(folder, moto_client)
    keep_account(folder, moto_client)
    assert account_of(moto_client) == "us-east-1 at a local EC2"
    check_account(folder, moto_client)
    with pytest.raises(UsageError) as caught:
        check_account(folder, Client())
    assert "is in us-east-1 at a local EC2" in caught.value.message
    assert "eu-west-1 at https://ec2.eu-west-1.amazonaws.com" in caught.value.message
    assert "--region" in caught.value.hint


def test_a_local_ec2_may_be_started_on_another_port(folder, moto_client):
    keep_account(folder, moto_client)
    check_account(folder, moto_ec2.client_of("http://127.0.0.1:9"))


def test_one_command_at_a_time(folder):
    program = (
        "import sys, pathlib\n"
        "from clusterctl.operations.folder import ClusterFolder\n"
        "from clusterctl.operations.keep import locked\n"
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
        forget(folder)
    assert not folder.path.exists()
