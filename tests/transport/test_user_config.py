"""~/.ssh/config as `ssh` reads it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.transport.dial import proxy_argv
from clusterctl.transport.target import Target
from clusterctl.transport.user_config import read_user_config


def config(folder: Path, text: str):
    (folder / "config").write_text(text)
    return read_user_config(folder)


def test_without_a_config_a_host_is_its_own_address(tmp_path):
    target = read_user_config(tmp_path).target("10.0.0.4", user="ubuntu")
    assert target == Target("10.0.0.4", "10.0.0.4", "ubuntu")


def test_what_the_config_says(tmp_path):
    known = tmp_path / "with space"
    known.touch()
    found = config(
        tmp_path,
        "Host gpu*\n HostName 10.0.0.9\n User ubuntu\n Port 2222\n IdentityFile ~/a\n"
        f' UserKnownHostsFile "{known}"\n',
    )
    target = found.target("gpu1")
    assert target == Target("gpu1", "10.0.0.9", "ubuntu", 2222)
    assert target.known_hosts_name == "[10.0.0.9]:2222"
    assert found.target("gpu1", user="root").user == "root"
    assert found.identity_files(["gpu1", "gpu2"]) == [Path("~/a").expanduser()]
    assert found.known_hosts_files(["gpu1"])[0] == known


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("ProxyCommand nc -X 5 %h %p", ["nc", "-X", "5", "10.0.0.9", "22"]),
        ("ProxyCommand sh -c 'echo 100%% %r'", ["sh", "-c", "echo 100% me"]),
        ("ProxyJump bastion", ["ssh", "-W", "[10.0.0.9]:22", "bastion"]),
        ("ProxyJump a,b", ["ssh", "-J", "a", "-W", "[10.0.0.9]:22", "b"]),
        ("ProxyCommand none", []),
    ],
)
def test_proxies(tmp_path, line, argv):
    target = config(tmp_path, f"Host x\n HostName 10.0.0.9\n User me\n {line}\n").target("x")
    assert proxy_argv(target) == argv


def test_includes_stand_where_they_are_named(tmp_path):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "demo").write_text("Host demo-0\n HostName 10.77.0.4\n User ubuntu\n")
    found = config(tmp_path, "Include clusters/* missing\nInclude config\nHost *\n User me\n")
    assert found.target("demo-0") == Target("demo-0", "10.77.0.4", "ubuntu")
    assert found.target("other").user == "me"


@pytest.mark.parametrize("text", ["Host\n", "\x00\x01 nonsense", "Port 22 = = 'unclosed\n Host 'x"])
def test_a_config_that_cannot_be_read(tmp_path, text):
    try:
        config(tmp_path, text).target("x", user="me")
    except UsageError as error:
        assert "config" in error.message


@pytest.mark.parametrize(("command", "user"), [("true", "matched"), ("false", "me")])
def test_match_exec_still_works(tmp_path, monkeypatch, command, user):
    """It needs invoke, which is not imported before (clusterctl/transport/__init__.py)."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    found = config(tmp_path, f'Match exec "{command}"\n User matched\nHost *\n User me\n')
    assert found.target("x").user == user
