"""How the hosts of ~/.ssh/config are logged in to, with real servers: keys, proxies, host keys."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterctl.domain.errors import HostKeyUnknown, HostUnreachable, KeyRefused, UsageError
from clusterctl.operations.hosts_access import LoginOptions, open_hosts
from clusterctl.transport import dial
from tests.lab.running import wait_until
from tests.transport.conftest import SshServer, keygen, running_sshd


@pytest.fixture(autouse=True)
def no_agent(monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Return a ~/.ssh folder with keys k1 to k8."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    for number in range(1, 9):
        keygen(folder / f"k{number}")
    return folder


@pytest.fixture
def strict(tmp_path, ssh):
    """Yield a server that knows key k8 only and allows one attempt."""
    folder = tmp_path / "sshd"
    folder.mkdir()
    with running_sshd(folder, "MaxAuthTries 1") as server:
        shutil.copy(ssh / "k8.pub", folder / "authorized_keys")
        yield server


def block(server: SshServer, number: int, *settings: str) -> str:
    lines = [
        f"Host h{number}",
        f"HostName 127.0.0.{number}",
        f"Port {server.port}",
        f"User {server.user}",
        f"UserKnownHostsFile {server.known_hosts}",
        *settings,
    ]
    return "\n ".join(lines) + "\n"


def outcomes(ssh: Path, config: str, hosts: list[str], **options) -> dict[str, object]:
    """Run `echo in` on the hosts, and return what each gave: its output or its error."""
    (ssh / "config").write_text(config)
    names = ssh / "hosts"
    names.write_text("".join(f"{host}\n" for host in hosts))
    with open_hosts(names, LoginOptions(**options)) as access:
        connections = access.connections
        result = connections.each(
            access.targets, lambda one: connections.run(one, "echo in"), max_workers=2
        )
    return {
        one.host: one.error or (one.value.stdout if one.value else None) for one in result.outcomes
    }


@contextlib.contextmanager
def agent(folder: Path, *keys: Path):
    """Run an agent with these keys, and yield its socket."""
    sock = folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)

    def ask(*words: str | Path) -> int:
        environ = {"SSH_AUTH_SOCK": str(sock)}
        return subprocess.run(["ssh-add", "-q", *words], check=False, env=environ).returncode

    try:
        # The socket is there a moment before the agent listens: until then ssh-add ends with 2.
        wait_until(lambda: ask("-l") != 2, "the agent")
        for key in keys:
            assert ask(key) == 0
        yield sock
    finally:
        process.terminate()
        process.wait()


def test_each_host_is_offered_its_own_keys_only(ssh, strict):
    config = "".join(
        block(strict, number, f"IdentityFile {ssh}/k{number}") for number in range(1, 9)
    )
    found = outcomes(ssh, config, [f"h{number}" for number in range(1, 9)])
    assert found.pop("h8") == "in\n"
    assert {type(error) for error in found.values()} == {KeyRefused}


def test_the_default_keys_are_for_hosts_without_keys_of_their_own(ssh, strict):
    shutil.copy(ssh / "k8", ssh / "id_ed25519")
    config = (
        block(strict, 1, f"IdentityFile {ssh}/k1")
        + block(strict, 2)
        + block(strict, 3, "IdentityFile none")
    )
    found = outcomes(ssh, config, ["h1", "h2", "h3"])
    assert isinstance(found["h1"], KeyRefused)
    assert found["h2"] == "in\n"
    assert "there is no key to offer" in str(found["h3"])


def test_the_keys_of_a_file_go_before_the_agents(ssh, strict, monkeypatch):
    with agent(ssh, ssh / "k1", ssh / "k2") as sock:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        found = outcomes(ssh, block(strict, 1, f"IdentityFile {ssh}/k8"), ["h1"])
    assert found == {"h1": "in\n"}


def test_a_host_that_closes_before_every_key_was_offered_has_not_refused_them(ssh, strict):
    files = "\n ".join(f"IdentityFile {ssh}/k{number}" for number in (1, 2, 8))
    error = outcomes(ssh, block(strict, 1, files), ["h1"])["h1"]
    assert isinstance(error, KeyRefused)
    assert error.message.startswith("closed the connection after 1 of 3 keys for user ")


@pytest.mark.parametrize("kind", ["locked", "public"])
def test_with_identities_only_the_agent_signs_for_the_file_alone(ssh, strict, monkeypatch, kind):
    with agent(ssh, ssh / "k1", ssh / "k2", ssh / "k8") as sock:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", ssh / "k8"], check=True)
        file = ssh / ("k8" if kind == "locked" else "k8.pub")
        if kind == "locked":
            (ssh / "k8.pub").unlink()
        settings = (f"IdentityFile {file}", "IdentitiesOnly yes")
        assert outcomes(ssh, block(strict, 1, *settings), ["h1"]) == {"h1": "in\n"}
        # Without the setting, the other keys of the agent follow; with one of its own, none does.
        others = (f"IdentityFile {ssh}/k3", "IdentitiesOnly yes")
        refused = outcomes(ssh, block(strict, 2, *others), ["h2"])
        assert isinstance(refused["h2"], KeyRefused)
        monkeypatch.delenv("SSH_AUTH_SOCK")
        for own in (sock, "$AGENT", "${AGENT}"):
            monkeypatch.setenv("AGENT", str(sock))
            given = block(strict, 1, *settings, f"IdentityAgent {own}")
            assert outcomes(ssh, given, ["h1"]) == {"h1": "in\n"}
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        with pytest.raises(UsageError, match="passphrase|is a public key") as refused:
            outcomes(ssh, block(strict, 1, *settings, "IdentityAgent none"), ["h1"])
        assert "ssh-add" in refused.value.hint


def test_a_key_that_is_given_is_not_for_jump_hosts(ssh, strict):
    config = block(strict, 1, f"IdentityFile {ssh}/k8") + block(
        strict, 2, "ProxyJump h1", f"IdentityFile {ssh}/k1"
    )
    assert outcomes(ssh, config, ["h2"], key=ssh / "k8") == {"h2": "in\n"}
    refused = outcomes(ssh, config, ["h2"], key=ssh / "k2")["h2"]
    assert isinstance(refused, KeyRefused)
    assert refused.message.startswith("refused every key")


def test_each_host_has_its_own_known_hosts_file(ssh, ssh_server):
    """A key that one host's file has is no reason to trust another host."""
    settings = (f"IdentityFile {ssh_server.key}",)
    config = block(ssh_server, 1, *settings) + block(ssh_server, 2, *settings).replace(
        str(ssh_server.known_hosts), "none"
    )
    found = outcomes(ssh, config, ["h1", "h2"])
    assert found["h1"] == "in\n"
    assert isinstance(found["h2"], HostKeyUnknown)


def test_a_host_key_alias(ssh, ssh_server):
    public = (ssh_server.folder / "host_key.pub").read_text()
    (ssh / "aliases").write_text(f"other {public}")
    config = block(ssh_server, 1, f"IdentityFile {ssh_server.key}", "HostKeyAlias other")
    assert outcomes(ssh, config.replace(str(ssh_server.known_hosts), f"{ssh}/aliases"), ["h1"]) == {
        "h1": "in\n"
    }


def test_a_proxy_command_is_a_command_of_the_shell(ssh, ssh_server, monkeypatch):
    monkeypatch.setenv("BASTION", "127.0.0.2")
    login = (
        f"-F none -i {ssh_server.key} -p {ssh_server.port} -l {ssh_server.user}"
        f" -o UserKnownHostsFile={ssh_server.known_hosts}"
    )
    proxy = f"ProxyCommand ssh -q {login} -W %h:%p $BASTION 2>/dev/null"
    config = block(ssh_server, 1, f"IdentityFile {ssh_server.key}", proxy)
    assert outcomes(ssh, config, ["h1"]) == {"h1": "in\n"}


def test_a_proxy_command_that_ended_before_anything_was_sent_has_a_reason():
    sock = dial._ProxySocket("sh -c 'echo no tunnel >&2'")
    sock._process.wait()
    try:
        sock.send(b"SSH-2.0-x\r\n")  # paramiko would not tell the error of this
        with pytest.raises(ConnectionRefusedError, match="no tunnel"):
            sock.recv(10)
    finally:
        sock.close()


@pytest.mark.parametrize("settings", [(), ("ProxyUseFdpass yes",)])
def test_the_reason_of_a_proxy_command_is_shown(ssh, ssh_server, settings):
    proxy = "ProxyCommand sh -c 'head -c 300000 /dev/zero >&2; echo >&2; echo no tunnel >&2'"
    config = block(ssh_server, 1, f"IdentityFile {ssh_server.key}", proxy, *settings)
    error = outcomes(ssh, config, ["h1"])["h1"]
    assert isinstance(error, HostUnreachable)
    assert "no tunnel" in error.message
    assert settings or error.message == "its ProxyCommand ended: no tunnel"
