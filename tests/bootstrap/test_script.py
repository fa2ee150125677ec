"""The script that joins a node to its cluster, run twice by a real shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import paramiko
import pytest

from clusterctl.bootstrap.trust import (
    BEGIN,
    END,
    NodeIdentity,
    cluster_known_hosts,
    cluster_ssh_config,
    etc_hosts,
    node_script,
)
from tests.variants import usual

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGpKsSb4iRTaMhcPcU3cYKcwWxW8oXhGJFRSgkE3Jd2k"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAMurDY1ljmtMV8d9sHhDgH0pT0Yc3bMgmu0NGQ2vkuA"
MPI_KEY = f"{OTHER} clusterctl-mpi"
MEMBERS = [
    NodeIdentity("demo-0", "10.0.0.4", "203.0.113.9", "ip-10-0-0-4", (ED25519,)),
    NodeIdentity("demo-1", "10.0.0.5", None, "a-name-of-its-own", (OTHER,)),
]


def join(node, head=True, members=MEMBERS, mpi_key=MPI_KEY):
    done = node.run(node_script(members, mpi_key, "ubuntu", head))
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.endswith("complete\n")
    return done.stdout


def files(node):
    return {
        path.name: path.read_text() for path in (node.home / ".ssh").iterdir() if path.is_file()
    }


def test_the_texts_whole():
    assert cluster_known_hosts(MEMBERS) == (
        "10.0.0.4,demo-0,ip-10-0-0-4,203.0.113.9,localhost,127.0.0.1,::1 " + ED25519 + "\n"
        "10.0.0.5,demo-1,ip-10-0-0-5,a-name-of-its-own " + OTHER + "\n"
    )
    assert etc_hosts(MEMBERS) == "10.0.0.4 demo-0 ip-10-0-0-4\n10.0.0.5 demo-1 ip-10-0-0-5\n"
    assert cluster_ssh_config(MEMBERS, "ubuntu") == (
        "Host 10.0.0.4 demo-0 ip-10-0-0-4 203.0.113.9 10.0.0.5 demo-1 ip-10-0-0-5"
        " a-name-of-its-own localhost 127.0.0.1\n"
        "    User ubuntu\n"
        "    IdentityFile ~/.ssh/clusterctl_mpi\n"
        "    IdentitiesOnly yes\n"
        "    StrictHostKeyChecking yes\n"
        "    UserKnownHostsFile ~/.ssh/clusterctl_known_hosts\n"
        "    BatchMode yes\n"
        "    ConnectTimeout 20\n"
        "    ServerAliveInterval 10\n"
        "    ServerAliveCountMax 3\n"
        "Host *\n"
    )


def test_a_new_head_node_and_again_with_other_members(node):
    def expected(members):
        return {
            "authorized_keys": f"{BEGIN}\n{MPI_KEY}\n{END}\n",
            "clusterctl_known_hosts": cluster_known_hosts(members),
            "config": f"{BEGIN}\n{cluster_ssh_config(members, 'ubuntu')}{END}\n",
        }

    join(node, head=False)
    assert list(files(node)) == ["authorized_keys"], "a worker gets no way to the others"
    for members in (MEMBERS, MEMBERS, MEMBERS[:1]):
        join(node, members=members)
        assert files(node) == expected(members)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (node.home / ".ssh").iterdir()}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    "own",
    [
        "ssh-ed25519 AAAAown me\n",
        "ssh-ed25519 AAAAown no newline at the end",
        "",
        "# a remark\n\n",
        f"{BEGIN}\nssh-ed25519 AAAAown a block without an end\n",
    ],
)
def test_the_users_keys_stay_and_those_of_earlier_head_nodes_go(node, own):
    (node.home / ".ssh").mkdir()
    authorized_keys = node.home / ".ssh" / "authorized_keys"
    authorized_keys.write_text(own)
    block = [BEGIN, MPI_KEY, END]
    join(node, mpi_key=f"{ED25519} clusterctl-mpi")
    for _ in range(2):
        join(node)
        assert files(node)["authorized_keys"].splitlines() == [*own.splitlines(), *block]


OWN_CONFIGS = {
    "global options first": "ForwardAgent no\nHost github.com\n    User git\n",
    "no newline at the end": "Host x\n    User y",
    "percent and backslash": "Host \\x\n    ControlPath ~/.ssh/%C\\n\n",
    "quotes": 'Host "it\'s"\n    User `id`$HOME\n',
    "unicode": "# \N{SNOWMAN}\nHost ü\n",
    "our begin without an end": f"Host a\n{BEGIN}\nHost mine\n    User me\n",
    "our end without a begin": f"Host a\n{END}\nHost mine\n    User me\n",
}


@pytest.mark.parametrize("own", usual(4, OWN_CONFIGS))
def test_the_users_config_stays(node, own):
    (node.home / ".ssh").mkdir()
    own = OWN_CONFIGS[own]
    (node.home / ".ssh" / "config").write_text(own)
    for _ in range(3):
        join(node)
    block = f"{BEGIN}\n{cluster_ssh_config(MEMBERS, 'ubuntu')}{END}\n"
    text = files(node)["config"]
    assert text == block + own.rstrip("\n") + "\n"


def test_openssh_understands_the_config_and_the_users_global_options_stay_global(node):
    config = node.home / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text("ServerAliveInterval 77\nHost else\n    User me\n")
    join(node)

    def asked(host):
        argv = ["ssh", "-G", "-F", str(config), host]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())

    assert asked("demo-1")["stricthostkeychecking"] == "true"
    ours = asked("10.0.0.4")
    assert [ours[key] for key in OPTIONS] == ["yes", "10", "ubuntu"]
    assert [asked("else")[key] for key in OPTIONS] == ["no", "77", "me"]
    understood = paramiko.SSHConfig.from_path(str(config))
    assert understood.lookup("else")["serveraliveinterval"] == "77"
    assert understood.lookup("10.0.0.5")["serveraliveinterval"] == "10"


OPTIONS = ("identitiesonly", "serveraliveinterval", "user")


def with_sudo(node, log: Path, status=0):
    """Add a sudo that writes its input to a file of the test instead of /etc."""
    node.program("sudo", f'echo "sudo $*" >>"{log}.argv"; cat >"{log}"; exit {status}')


def test_names_go_to_etc_hosts(node, tmp_path):
    log = tmp_path / "etc-hosts"
    with_sudo(node, log)
    assert "note" not in join(node)
    assert Path(f"{log}.argv").read_text() == "sudo -n tee /etc/hosts\n"
    own = Path("/etc/hosts").read_text().rstrip("\n")
    assert log.read_text() == f"{own}\n{BEGIN}\n{etc_hosts(MEMBERS)}{END}\n"


def test_without_sudo_the_names_are_left_out(node, tmp_path):
    assert "note /etc/hosts unchanged: no sudo" in join(node)
    with_sudo(node, tmp_path / "etc-hosts", status=1)
    assert "note /etc/hosts unchanged: no sudo" in join(node)


@pytest.mark.parametrize("name", ["authorized_keys", "clusterctl_known_hosts.new"])
def test_a_file_that_cannot_be_written_is_noticed(node, name):
    (node.home / ".ssh").mkdir()
    (node.home / ".ssh" / name).symlink_to("/no such folder/file")
    done = node.run(node_script(MEMBERS, MPI_KEY, "ubuntu", True))
    assert done.returncode != 0
    assert done.stderr
    assert "complete" not in done.stdout
