"""The known_hosts files: names, several keys of a host, revoked keys; measured by OpenSSH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import paramiko
import pytest

from clusterctl.domain.errors import HostKeyChanged, HostKeyUnknown
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import KnownHostKeys
from tests.transport.conftest import keygen

KEYS = [paramiko.ECDSAKey.generate() for _ in range(3)]
FIRST, SECOND, THIRD = (f"{key.get_name()} {key.get_base64()}" for key in KEYS)
WEB = Target("web", "web1.corp", "me")


def verdict(path: Path, text: str, key: paramiko.PKey, target: Target = WEB) -> str:
    path.write_text(text)
    try:
        KnownHostKeys([path]).verify(target, key)
    except HostKeyUnknown:
        return "unknown"
    except HostKeyChanged as error:
        return "revoked" if "revoked" in error.message else "changed"
    return "accepted"


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        (f"web1.corp {FIRST}", ["accepted", "changed"]),
        (f"web1.corp {FIRST}\nweb1.corp {SECOND}", ["accepted", "accepted", "changed"]),
        (f"web1.corp {FIRST}\n@revoked * {FIRST}", ["revoked", "changed"]),
        (f"@revoked web1.corp {FIRST}\nweb1.corp {SECOND}", ["revoked", "accepted", "changed"]),
        (f"@revoked other {FIRST}\nweb1.corp {FIRST}", ["accepted"]),
        (f"@revoked * {FIRST}", ["revoked", "unknown"]),
        (f"*.corp {FIRST}", ["accepted", "changed"]),
        (f"other,*.corp,!web1.* {FIRST}", ["unknown"]),
        (f"WEB1.corp {FIRST}", ["accepted"]),
        (f"web?.corp {FIRST}\nweb1.corp {SECOND}", ["accepted", "accepted"]),
        (f"@cert-authority *.corp {FIRST}\n# web1.corp {FIRST}\nweb1.corp\n", ["unknown"]),
        ("web1.corp ecdsa-sha2-nistp256 not*base64", ["unknown"]),
    ],
)
def test_which_keys_count(tmp_path, text, verdicts):
    found = [verdict(tmp_path / "known_hosts", text, key) for key in KEYS[: len(verdicts)]]
    assert found == verdicts


@pytest.mark.parametrize(
    ("line", "target", "expected"),
    [
        (f"[web1.corp]:2222 {FIRST}", Target("web", "web1.corp", "me", 2222), "accepted"),
        (f"[web1.corp]:2222 {FIRST}", WEB, "unknown"),
        # As in OpenSSH, which tries the name without the port if it finds none with it.
        (f"web1.corp {FIRST}", Target("web", "web1.corp", "me", 2222), "accepted"),
        (f"other {FIRST}", Target("web", "web1.corp", "me", host_key_alias="other"), "accepted"),
        (f"web1.corp {FIRST}", Target("web", "web1.corp", "me", host_key_alias="other"), "unknown"),
    ],
)
def test_the_name_that_is_looked_up(tmp_path, line, target, expected):
    assert verdict(tmp_path / "known_hosts", line, KEYS[0], target) == expected


def test_hashed_names(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(f"web1.corp {FIRST}\n[web1.corp]:2222 {SECOND}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    text = path.read_text()
    assert "web1" not in text
    assert verdict(path, text, KEYS[0]) == "accepted"
    assert verdict(path, text, KEYS[1], Target("web", "web1.corp", "me", 2222)) == "accepted"
    assert verdict(path, text, KEYS[1]) == "changed"


@pytest.mark.parametrize("lines", ["OTHER\nOWN", "OWN\nOTHER", "OWN\n@revoked OWN", "@revoked OWN"])
def test_a_real_host_is_accepted_as_ssh_accepts_it(ssh_server, tmp_path, lines):
    keygen(tmp_path / "other")
    name = ssh_server.target().known_hosts_name
    own = " ".join((ssh_server.folder / "host_key.pub").read_text().split()[:2])
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    known = tmp_path / "known_hosts"
    text = lines.replace("OWN", f"{name} {own}").replace("OTHER", f"{name} {other}")
    known.write_text(text + "\n")
    options = {"UserKnownHostsFile": known, "BatchMode": "yes", "IdentityFile": ssh_server.key}
    ssh = shutil.which("ssh")
    assert ssh
    argv = [ssh, "-F", "none", "-p", str(ssh_server.port), "-l", ssh_server.user]
    argv += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    done = subprocess.run([*argv, "127.0.0.1", "true"], capture_output=True, check=False)
    with ssh_server.connections() as connections:
        connections.host_keys = KnownHostKeys([known])
        try:
            ours = connections.run(ssh_server.target(), "true").exit_status
        except (HostKeyChanged, HostKeyUnknown):
            ours = 255
    assert ours == done.returncode
