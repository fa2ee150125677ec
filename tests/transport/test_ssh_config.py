"""ssh_config files are read as OpenSSH reads them: compared with `ssh -G` on generated files."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from pathlib import Path

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.transport.ssh_config import HostSettings, SshConfig, expand_home
from clusterctl.transport.user_config import read_user_config
from tests.transport.ssh_configs import HOSTS, SshConfigWriter, openssh_view

# HostSettings with their values if the file has none; None for those that `ssh -G` then leaves out.
ONE = {
    "hostname": "",
    "user": "",
    "port": "22",
    "identitiesonly": "no",
    "proxyusefdpass": "no",
    "identityagent": None,
    "hostkeyalias": None,
    "proxycommand": None,
    "proxyjump": None,
}
DEFAULT_FILES = {
    "userknownhostsfile": ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"],
}


def read(path: Path) -> SshConfig:
    config = SshConfig()
    config.read(path, path.parent)
    return config


def our_view(found: HostSettings) -> dict[str, str | None]:
    """Return the settings that are used here, in the words of `ssh -G`."""
    view = {name: found.get(name) or missing for name, missing in ONE.items()}
    for name in ("identitiesonly", "proxyusefdpass"):
        view[name] = "yes" if found.is_set(name) else "no"
    # The only setting of ONE that `ssh -G` expands.
    view["identityagent"] = os.path.expandvars(expand_home(view["identityagent"] or "")) or None
    view["hostname"], view["user"] = found.address, found.user
    jump = view["proxyjump"]
    view["proxyjump"] = jump and ",".join(one.removeprefix("ssh://") for one in jump.split(","))
    for name in ("proxycommand", "proxyjump"):
        if (view[name] or "").lower() == "none":
            view[name] = None
    if view["proxyjump"]:
        view["proxyusefdpass"] = "no"
    view["identityfile"] = str(found.values.get("identityfile"))
    for name in ("userknownhostsfile", "globalknownhostsfile"):
        view[name] = " ".join(map(expand_home, found.values.get(name, DEFAULT_FILES[name])))
    return view


def their_view(given: dict[str, list[str]], ours: dict[str, str | None]) -> dict[str, str | None]:
    """Return what ssh printed, with its own defaults where the file has nothing."""
    view: dict[str, str | None] = {name: given[name][0] if name in given else None for name in ONE}
    for name in ("proxycommand", "proxyjump"):
        if (view[name] or "").lower() == "none":
            view[name] = None
    files = given.get("identityfile", [])
    view["identityfile"] = str(None if "~/.ssh/id_rsa" in files else files)
    for name in ("userknownhostsfile", "globalknownhostsfile"):
        view[name] = " ".join(map(expand_home, given[name][0].split(" ")))
    return view


# Each block of generated files, of which the default selection has the first.
BLOCKS = [0, *(pytest.param(n, marks=pytest.mark.all) for n in range(1, 9))]


@pytest.mark.parametrize("block", BLOCKS)
def test_generated_files_are_read_as_openssh_reads_them(tmp_path, monkeypatch, block):
    monkeypatch.setenv("SHELL", "/bin/sh")
    # ssh itself ignores HOME.
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    for seed in range(block * 60, (block + 1) * 60):
        folder = tmp_path / str(seed)
        folder.mkdir()
        config = SshConfigWriter(folder, seed).write()
        for host in (HOSTS[seed % len(HOSTS)], HOSTS[(seed // 8 + 3 * seed) % len(HOSTS)]):
            given = openssh_view(config, host, os.environ)
            assert given is not None, f"ssh refuses the file of seed {seed}"
            ours = our_view(read(config).lookup(host))
            shown = "".join(f"-- {file}\n{file.read_text()}" for file in sorted(folder.glob("*")))
            assert ours == their_view(given, ours), f"seed {seed}, host {host}\n{shown}"


TOKENS = {
    "IdentityFile": ("~/%h-%n-%r", "%d/%p-%u-%%", "/${KEYS}/%i/%L-%l", "/a/~/$KEYS/%k", "none"),
    "ProxyCommand": ("%h", "%p", "%r", "%n", "%k", "100%%", "$KEYS", "~"),
}


@pytest.mark.parametrize("alias", ["", "HostKeyAlias other"])
@pytest.mark.parametrize("host", ["Web1", "127.1", "web2"])
def test_tokens_variables_and_home_are_expanded_as_openssh_does(tmp_path, monkeypatch, host, alias):
    monkeypatch.setenv("HOME", pwd.getpwuid(os.getuid()).pw_dir)
    monkeypatch.setenv("KEYS", "of mine")
    printed = tmp_path / "printed"
    lines = [f"IdentityFile {name}" for name in TOKENS["IdentityFile"]]
    # Its stdout stays open until it has written the file: then ssh ends, and ends it.
    (tmp_path / "script").write_text(f"printf '<%s>' \"$@\" >{printed}")
    command = f"sh {tmp_path}/script {' '.join(TOKENS['ProxyCommand'])}"
    (tmp_path / "config").write_text(
        "\n".join([alias, *lines, f"ProxyCommand {command}", "Host web2", "HostName %h.%%corp"])
        + "\nUser me\nPort 2222\n"
    )
    argv = ["ssh", "-v", "-F", str(tmp_path / "config"), host, "true"]
    log = subprocess.run(argv, capture_output=True, text=True, check=False).stderr
    theirs = re.findall("debug1: identity file (.*) type -?[0-9]+", log)
    theirs = [name for name in theirs if not name.endswith("-cert")]
    assert theirs
    config = read_user_config(tmp_path)
    target = config.target(host)
    assert [str(path) for path in config.key_sources(target).files or ()] == theirs
    by_ssh = printed.read_text()
    printed.unlink()
    subprocess.run(["sh", "-c", f"exec {target.proxy_command}"], check=True)
    assert printed.read_text() == by_ssh


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ProxyCommand nc %h %C", "ProxyCommand of web1: the token %C is not supported"),
        ("IdentityFile /keys/%j", "IdentityFile of web1: the token %j is not supported"),
        ("IdentityFile /keys/${NOT_SET}", "the variable NOT_SET is not set"),
        ("ProxyCommand -", "`ProxyCommand -` of web1 is not supported"),
        ("Match tagged x\n User me", "config line 1: Match tagged is not supported"),
        ("Match localnetwork 10.0.0.0/8\n Include more", "Match localnetwork is not supported"),
        ("Match host", "config line 1: Match host has no value"),
        ("Match user me all host x", "`all` cannot be combined"),
        ("CanonicalizePermittedCNAMEs *:*", "CanonicalizePermittedCNAMEs"),
        ("User 'me", "config line 1: a quote has no end"),
        ("Port 70000", "config line 1: 70000 is not a port"),
        ("\nIdentitiesOnly maybe", "config line 2: identitiesonly must be yes or no, not maybe"),
        ("HostName", "config line 1: hostname has no argument"),
        ("User a b", "user has extra arguments"),
        ("Include config", "more than 16 nested Include lines"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, text, says):
    (tmp_path / "config").write_text(text + "\n")
    with pytest.raises(UsageError) as refused:
        config = read_user_config(tmp_path)
        config.key_sources(config.target("web1"))
    assert says in refused.value.message


def test_a_condition_that_is_not_supported_counts_only_where_it_decides(tmp_path):
    (tmp_path / "config").write_text("Match host db tagged x\n User me\nHost *\n User you\n")
    assert read_user_config(tmp_path).target("web1").user == "you"
    # As the hint says: the first value counts, so that nothing depends on the condition.
    (tmp_path / "config").write_text("Host web*\n User you\nMatch tagged x\n User me\n Port 7\n")
    with pytest.raises(UsageError, match="Match tagged is not supported"):
        read_user_config(tmp_path).target("web1")
    (tmp_path / "config").write_text("Host web*\n User you\nMatch tagged x\n User me\n")
    assert read_user_config(tmp_path).target("web1").user == "you"
    with pytest.raises(UsageError, match="Match tagged is not supported"):
        read_user_config(tmp_path).target("db")
    # Files of keys add up.
    keys = "Host web*\n IdentityFile /a\nMatch tagged x\n IdentityFile {}\n"
    (tmp_path / "config").write_text(keys.format("/b"))
    with pytest.raises(UsageError, match="Match tagged is not supported"):
        read_user_config(tmp_path).target("web1")
    (tmp_path / "config").write_text(keys.format("/a"))
    assert read_user_config(tmp_path).target("web1").host == "web1"


def test_the_systems_file_comes_after_the_users(tmp_path):
    (tmp_path / "ssh_config").write_text("Include more\nUser system\nPort 2222\n")
    (tmp_path / "more").write_text("HostKeyAlias other\n")
    (tmp_path / "config").write_text("User me\n")
    config = read_user_config(tmp_path, system=tmp_path / "ssh_config")
    target = config.target("web1")
    assert (target.user, target.port, target.known_hosts_name) == ("me", 2222, "other")


@pytest.mark.parametrize("which", ["yes", "always"])
def test_canonical_names(tmp_path, which):
    (tmp_path / "config").write_text(
        f"CanonicalizeHostname {which}\nCanonicalDomains no-such-domain.invalid\n"
        "Match canonical host LOCALHOST\n User found\nHost *\n User other\n"
    )
    config = read_user_config(tmp_path)
    # No domain has the name, so it stays. Match and Host apply to it a second time.
    given = openssh_view(tmp_path / "config", "localhost", os.environ)
    assert given
    target = config.target("localhost")
    assert [[target.address], [target.user]] == [given["hostname"], given["user"]]
