"""runclust and copyclust on the head node of a cluster in the lab, typed as in the tutorial."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clusterctl.bootstrap import head_programs
from clusterctl.bootstrap.head_programs import FOLDER, put_programs
from clusterctl.domain.errors import CommandFailed
from clusterctl.jobs.deploy import HOSTS_PATH
from tests.cli.programs import call
from tests.cli.running import CommandLine

pytestmark = pytest.mark.lab


@pytest.fixture
def hosts(pair):
    """Return a line of output per host of the cluster's hosts file: `ADDRESS: HOSTNAME`."""
    with pair.access() as access:
        nodes = access.cluster.nodes
    return {f"{one.private_ip}: {pair.on(one.index, 'hostname').strip()}" for one in nodes}


def put_anew(pair, tmp_path):
    """Install the programs as `up` does on a head node that has none, or older ones."""
    pair.on(0, f"echo old >{FOLDER}/stamp")
    with pair.access() as access:
        put_programs(access.connections, access.head, HOSTS_PATH, tmp_path, offline=True)
    assert pair.on(0, f"cat {FOLDER}/stamp").strip() == head_programs.own_stamp()


@pytest.mark.all
def test_one_command_over_ssh(pair, hosts):
    status, out, err = pair.ctl("ssh", "--", "runclust", "hosts", "hostname")
    assert (status, set(out.splitlines())) == (0, hosts), err


def test_a_login_shell(pair, hosts):
    typed = f"""\
cd {Path(HOSTS_PATH).parent}
runclust hosts hostname </dev/null
echo given >file
copyclust hosts file '~/a copy' && copyclust verify hosts '~/a copy'
copyclust --credentials mine hosts s3://bucket/key there
echo "ended with $?"
"""
    login = ["ssh", "-T", "-F", pair.lab.home / "pair" / "ssh_config", "pair-0"]
    done = subprocess.run(login, input=typed, capture_output=True, text=True, check=False)
    assert hosts <= set(done.stdout.splitlines()), done.stderr
    assert pair.on(1, "cat 'a copy'") == "given\n"
    # The head node has no boto3, and the message says so.
    assert "ended with 1" in done.stdout
    assert "boto3 is not on this machine" in done.stderr
    assert "Traceback" not in done.stderr


def test_up_again_puts_there_what_has_changed_and_only_that(pair, hosts):
    look = f"stat -c %i {FOLDER}/bin/runclust; sha256sum .bashrc"
    before = pair.on(0, look)
    assert pair.ctl("up", "--nodes", "2")[0] == 0
    assert pair.on(0, look) == before
    pair.on(0, f"echo old >{FOLDER}/stamp; echo raise >{FOLDER}/bin/runclust")
    status, _, err = pair.ctl("up", "--nodes", "2")
    assert (status, "head.programs" in err) == (0, False)
    assert set(pair.on(0, f"{FOLDER}/bin/runclust hosts hostname").splitlines()) == hosts
    assert pair.on(0, look).splitlines()[1] == before.splitlines()[1]


@pytest.mark.all
def test_up_again_with_a_bashrc_of_ones_own(pair, hosts):
    """The .bashrc is written after the first `up`. It prints something and returns early."""
    before, line = pair.on(0, "cat .bashrc"), head_programs._ON_PATH
    try:
        for own in (f"[ x ] && return\n{line}\n", "return\n"):
            pair.on(0, "cat >.bashrc", f"echo Welcome\n{own}".encode())
            status, _, err = pair.ctl("up", "--nodes", "2")
            assert (status, "head.programs" in err) == (0, False), err
            _, out, err = pair.ctl("ssh", "--", "runclust", "hosts", "hostname")
            assert hosts == set(out.splitlines()), err
            assert pair.on(0, "cat .bashrc").count(line) == 1
    finally:
        pair.on(0, "cat >.bashrc", before.encode())


@pytest.mark.all
def test_another_python_with_a_package_index(pair, hosts, tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setattr(head_programs, "UNUSED", ())
    for found in head_programs.installed():
        wheel = as_wheel(found, wheels)
        pair.on(0, f"mkdir -p wheels; cat >wheels/{wheel.name}", wheel.read_bytes())
    monkeypatch.setattr(head_programs, "own_abi", lambda: "cpython-39-darwin")
    pair.on(0, "mkdir -p .config/pip")
    config = b"[global]\nfind-links = /home/ubuntu/wheels\n"
    pair.on(0, "cat >.config/pip/pip.conf", config)
    try:
        put_anew(pair, tmp_path)
        # pip installed the packages: none were copied from this machine.
        assert pair.on(0, f"cat {FOLDER}/lib/paramiko-*/INSTALLER").strip() == "pip"
        assert not list(tmp_path.glob("head-programs*"))
        assert set(pair.on(0, f"{FOLDER}/bin/runclust hosts hostname").splitlines()) == hosts
    finally:
        pair.on(0, "rm -r .config/pip wheels")


def test_another_python_and_no_package_index(pair, monkeypatch, capsys):
    monkeypatch.setattr(head_programs, "own_abi", lambda: "cpython-39-darwin")
    monkeypatch.setenv("CLUSTERCTL_HOME", str(pair.lab.home))
    clusterctl = CommandLine(pair.lab.home, capsys, ["--lab"])
    pair.on(0, f"echo old >{FOLDER}/stamp")
    ran = clusterctl("up", "pair", "--nodes", "2")
    assert ran.status == 0, ran.err
    [warning] = [line for line in ran.err.splitlines() if "[head.programs]" in line]
    assert warning.startswith("warning: pair-0: ")
    # The command in the hint works, and so do the programs that were there before.
    ssh = call("runclust", pair.lab.home / "pair" / "hosts", f"{FOLDER}/bin/runclust -h || true")
    assert ssh.returncode == 0, ssh.stderr
    assert "Run COMMAND on every host" in ssh.stdout


def test_what_cannot_be_unpacked_leaves_what_was_there(pair, tmp_path):
    look = f"cat {FOLDER}/bin/runclust .bashrc; ls {FOLDER}.new 2>/dev/null"
    before = pair.on(0, f"{look}; true")
    (tmp_path / f"head-programs-{head_programs.own_stamp()}.tar.gz").write_bytes(b"cut short")
    with pytest.raises(CommandFailed, match="and pip there: .*No matching distribution"):
        put_anew(pair, tmp_path)
    assert pair.on(0, f"{look}; true") == before


def as_wheel(found, folder: Path) -> Path:
    """Return an installed distribution as a wheel."""
    tag = next(line[5:] for line in found.read_text("WHEEL").splitlines() if line[:5] == "Tag: ")
    path = folder / f"{found.metadata['Name'].replace('-', '_')}-{found.version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in found.files:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                wheel.write(found.locate_file(file), file.as_posix())
    return path


def test_the_reason_can_be_asked_for_twice(tmp_path):
    reason = head_programs.start_installation(None, None, HOSTS_PATH, tmp_path, offline=True)
    assert reason() == reason()
    assert "NoneType" in reason()


def test_the_programs_import_nothing_that_is_not_there():
    """Modules for AWS and the lab (NOT_THERE) are not copied to the head node."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['clusterctl.ec2', 'clusterctl.lab']))\n"
        f"import {', '.join(f'clusterctl.{one}' for one in head_programs.PROGRAMS.values())}\n"
        "import clusterctl.cli.copy.view\n"
        "import clusterctl.operations.copy, clusterctl.operations.verify\n"
        "import clusterctl.operations.hosts_access"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_programs_have_the_data_that_they_read():
    shipped = head_programs.own_files()
    assert "lib/clusterctl/explain/catalogue/forms.toml" in shipped
    for path in (head_programs.PACKAGE / "explain" / "catalogue").glob("*.toml"):
        assert f"lib/clusterctl/explain/catalogue/{path.name}" in shipped
