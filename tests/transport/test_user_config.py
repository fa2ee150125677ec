"""Reading ~/.ssh/config like `ssh`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.transport.dial import Target
from clusterctl.transport.user_config import read_user_config, with_jumps


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
    assert found.key_sources(target).files == (Path("~/a").expanduser(),)
    assert found.known_hosts_files(target)[0] == known


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("ProxyCommand nc -X 5 %h %p", "nc -X 5 10.0.0.9 22"),
        ("ProxyCommand sh -c 'echo 100%% %r'", "sh -c 'echo 100% me'"),
        (
            "ProxyCommand ssh -W %h:%p $BASTION 2>/dev/null",
            "ssh -W 10.0.0.9:22 $BASTION 2>/dev/null",
        ),
        ("ProxyCommand none", ""),
        ("ProxyCommand none\n ProxyJump bastion", ""),
        ("ProxyCommand nc %h\n ProxyJump bastion", "nc 10.0.0.9"),
    ],
)
def test_proxies(tmp_path, line, command):
    target = config(tmp_path, f"Host x\n HostName 10.0.0.9\n User me\n {line}\n").target("x")
    assert (target.proxy_command, target.jump) == (command, None)


@pytest.mark.parametrize(
    ("jump", "hops"),
    [
        ("bastion", [("bastion", "192.0.2.1", "jump", 2222)]),
        ("ssh://you@bastion:22", [("bastion", "192.0.2.1", "you", 22)]),
        ("[2001:db8::1]:22", [("2001:db8::1", "2001:db8::1", "me", 22)]),
        # For a jump host, the hosts named before it are used, not its own ProxyJump.
        ("inner", [("inner", "inner", "me", 22), ("bastion", "192.0.2.1", "jump", 2222)]),
        ("a,inner", [("inner", "inner", "me", 22), ("a", "a", "me", 22)]),
        ("none", []),
    ],
)
def test_jump_hosts_are_hosts_of_this_file(tmp_path, jump, hops):
    found = config(
        tmp_path,
        f"Host x\n ProxyJump {jump}\n IdentityFile /nodes\n"
        "Host bastion\n HostName 192.0.2.1\n User jump\n Port 2222\n IdentityFile /bastion\n"
        " UserKnownHostsFile /pinned\n"
        "Host inner\n ProxyJump bastion\n"
        "Host *\n User me\n",
    )
    target = found.target("x", user="root")
    way, hop = [], target.jump
    while hop:
        way.append((hop.host, hop.address, hop.user, hop.port))
        hop = hop.jump
    assert (target.user, way) == ("root", hops)
    reached = with_jumps([target])
    assert [Path("/bastion") in (found.key_sources(one).files or ()) for one in reached] == [
        one.host == "bastion" for one in reached
    ]
    assert [Path("/pinned") in found.known_hosts_files(one) for one in reached] == [
        one.host == "bastion" for one in reached
    ]


def test_a_host_behind_itself_is_said(tmp_path):
    found = config(tmp_path, "Host *\n ProxyJump bastion\n User me\n")
    with pytest.raises(UsageError, match="reaches bastion through itself") as refused:
        found.target("x")
    assert "`Host bastion`" in refused.value.hint
    found = config(tmp_path, "Host bastion\n ProxyJump none\nHost *\n ProxyJump bastion\n User me")
    assert found.target("x").jump == Target("bastion", "bastion", "me")


def test_every_host_is_as_ssh_has_it(tmp_path):
    """Blocks with plain names are only read for these names. The first value still wins."""
    found = config(
        tmp_path,
        "Port 1000\n"
        + "".join(f"Host n{n} 10.0.0.{n}\n HostName 10.1.0.{n}\n" for n in range(40))
        + "Host n1* !n12\n User teen\n"
        + "Host n12 n3\n User late\n Port 12\n"
        + "Match originalhost n5,n6\n User matched\n"
        + "Match host 10.1.0.7\n User seventh\n"
        + "Host *\n User rest\n HostName %h.invalid\n",
    )
    for name in [*(f"n{n}" for n in range(40)), "10.0.0.7", "other", "n40"]:
        argv = ["ssh", "-F", str(tmp_path / "config"), "-G", name]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        told = dict(line.split(" ", 1) for line in said.splitlines())
        target = found.target(name)
        ours = [target.address, target.user, str(target.port)]
        assert ours == [told[key] for key in ("hostname", "user", "port")], name
    assert found.names_any(["x", "n12"])
    assert not found.names_any(["other"])


@pytest.mark.parametrize("text", ["Host\n", "\x00\x01 nonsense", "Port 22 = = 'unclosed\n Host 'x"])
def test_a_config_that_cannot_be_read(tmp_path, text):
    try:
        config(tmp_path, text).target("x", user="me")
    except UsageError as error:
        assert "config" in error.message
