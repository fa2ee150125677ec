"""The command runclust with a hosts file and a real sshd."""

from __future__ import annotations

import ast
import getpass
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.cli.programs import BIN, call, forked
from tests.lab.running import wait_until
from tests.transport.conftest import running_sshd
from tests.transport.sleepers import NUMBERS, sleepers
from tests.variants import usual


def python(program: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def lines(*hosts: int, text: str) -> list[str]:
    return [f"127.0.0.{number}: {text}" for number in hosts]


def test_every_line_has_its_host(home, hosts):
    done = forked("runclust", hosts, "echo one; echo two; echo three >&2")
    assert sorted(done.stdout.splitlines()) == sorted(
        lines(1, 2, 3, 4, text="one") + lines(1, 2, 3, 4, text="two")
    )
    assert sorted(done.stderr.splitlines()) == lines(1, 2, 3, 4, text="three")
    assert done.returncode == 0


def test_hosts_as_clustershell_names_them(home):
    done = forked("runclust", "-w", "127.0.0.[1,3]", "echo one")
    assert sorted(done.stdout.splitlines()) == lines(1, 3, text="one"), done.stderr
    done = forked("runclust", "-w127.0.0.1", "echo", "one", "-e")
    assert "all of COMMAND is quoted: " in done.stderr
    assert " -w127.0.0.1 'echo one -e'" in done.stderr
    done = forked("runclust", "-w127.0.0.1", "id", "-un")
    assert "-un may be COMMAND's" in done.stderr
    assert (done.returncode, "runclust -w127.0.0.1 'id -un'\n" in done.stderr) == (2, True)


def test_a_group_of_clustershell(home):
    config = home / ".config" / "clustershell"
    (config / "groups.d").mkdir(parents=True)
    (config / "groups.conf").write_text("[Main]\ndefault: own\nautodir: $CFGDIR/groups.d\n")
    (config / "groups.d" / "own.yaml").write_text("own:\n  gpu: '127.0.0.[2-3]'\n")
    done = call("runclust", "-w", "@gpu", "echo one")
    assert sorted(done.stdout.splitlines()) == lines(2, 3, text="one"), done.stderr
    for name, refusal in (("@none", "@none names no host"), ("", "'' is empty")):
        none = call("runclust", "-w", name, "echo one")
        assert none.returncode == 2
        assert refusal in none.stderr


def test_a_last_line_without_an_end(home, hosts):
    done = forked("runclust", hosts, "printf x")
    assert sorted(done.stdout.splitlines()) == lines(1, 2, 3, 4, text="x")


def test_identical_output_is_shown_once(home, hosts):
    command = "case $SSH_CONNECTION in *' 127.0.0.2 '*) echo b;; *) echo a;; esac"
    done = forked("runclust", "-b", hosts, command)
    assert done.stderr == ""
    assert done.stdout == (
        "---------------\n127.0.0.[1,3-4] (3)\n---------------\na\n"
        "---------------\n127.0.0.2\n---------------\nb\n"
    )


def test_the_tutorials_third_argument(home, hosts):
    done = forked("runclust", hosts, "true", "verbose")
    assert [line.split(",")[0] for line in sorted(done.stderr.splitlines())] == [
        f"On 127.0.0.{number}: exit status 0" for number in range(1, 5)
    ]


def test_the_highest_exit_status(home, hosts):
    command = "case $SSH_CONNECTION in *' 127.0.0.2 '*) exit 7;; *' 127.0.0.3 '*) exit 3;; esac"
    done = forked("runclust", hosts, command)
    assert done.returncode == 7
    assert done.stderr.splitlines() == ["127.0.0.3: exit status 3", "127.0.0.2: exit status 7"]


def test_one_host_is_bad_and_the_others_finish(home, hosts):
    hosts.write_text(hosts.read_text() + "no-such-host.invalid slots=8\n")
    done = forked("runclust", hosts, "echo ok")
    assert sorted(done.stdout.splitlines()) == lines(1, 2, 3, 4, text="ok")
    assert done.returncode == 255
    [trouble] = done.stderr.splitlines()
    assert trouble.startswith("no-such-host.invalid: its name is not known")


def test_one_host_does_not_end_in_time(home, hosts):
    command = "echo begun; case $SSH_CONNECTION in *' 127.0.0.4 '*) exec sleep 60;; esac"
    done = forked("runclust", "--timeout", "4s", hosts, command)
    assert sorted(done.stdout.splitlines()) == lines(1, 2, 3, 4, text="begun")
    assert done.returncode == 255
    assert done.stderr.startswith("127.0.0.4: did not end within 4 s")


def test_json_has_every_host_in_order(home, hosts):
    hosts.write_text("127.0.0.3\nno-such-host.invalid\n127.0.0.1\n")
    done = forked("runclust", "--json", hosts, "echo out; echo err >&2; exit 2")
    printed = json.loads(done.stdout)
    first, third = printed["nodes"]
    [second] = printed["failures"]
    assert [first["host"], third["host"]] == ["127.0.0.3", "127.0.0.1"]
    assert (first["exit_status"], first["stdout"], first["stderr"]) == (2, "out\n", "err\n")
    assert (second["host"], second["error"]) == ("no-such-host.invalid", "HostUnreachable")
    assert done.returncode == 255


def test_piped_input_goes_to_every_host(home, hosts):
    data = b"line\n" * 100_000
    done = call("runclust", hosts, "wc -l", stdin=data)
    assert sorted(done.stdout.splitlines()) == lines(1, 2, 3, 4, text="100000")
    hosts.write_text("127.0.0.1\n")
    assert call("runclust", hosts, "wc -l", stdin=data).stdout == "127.0.0.1: 100000\n"


@pytest.mark.parametrize("count", [1, 2])
def test_a_file_of_proc_is_input_though_it_has_no_size(home, hosts, count):
    hosts.write_text("".join(f"127.0.0.{number}\n" for number in range(1, count + 1)))
    with open("/proc/cpuinfo", "rb") as file:  # noqa: PTH123
        program = [BIN / "runclust", hosts, "grep -c ^processor"]
        done = subprocess.run(program, stdin=file, capture_output=True, timeout=60, check=True)
    assert len(done.stdout.splitlines()) == count
    assert b" 0\n" not in done.stdout


def test_no_input_when_asked(home, hosts):
    done = call("runclust", "-n", hosts, "wc -c", stdin=b"not for you")
    assert sorted(done.stdout.splitlines()) == lines(1, 2, 3, 4, text="0")


def test_a_command_keeps_its_quotes(home, hosts):
    hosts.write_text("127.0.0.1\n")
    done = forked("runclust", hosts, """echo "a  'b'" '$HOME' ünï; echo \\\\n""")
    assert done.stdout == "127.0.0.1: a  'b' $HOME ünï\n127.0.0.1: \\n\n"


def started(hosts, command: str) -> subprocess.Popen[str]:
    """Start a runclust whose command prints `begun`, and wait until it has on the four hosts."""
    process = subprocess.Popen(
        [BIN / "runclust", hosts, command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(4):
        assert "begun" in process.stdout.readline()
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_commands_on_all_hosts(home, hosts, how):
    number = next(NUMBERS)
    process = started(hosts, f"sleep {number} & echo begun; exec sleep {number}")
    process.send_signal(how)
    process.send_signal(how)
    # Long before the end of the command.
    _, stderr = process.communicate(timeout=240)
    assert sleepers(number) == []
    assert process.returncode == 130
    assert stderr.strip() == "interrupted"


def test_ctrl_c_names_what_it_could_not_end(home, hosts):
    number = next(NUMBERS)
    daemon = f"setsid sleep {number} </dev/null >/dev/null 2>&1 &"
    only = f"case $SSH_CONNECTION in *' 127.0.0.2 '*) ({daemon});; esac"
    process = started(hosts, f"{only}; echo begun; exec sleep 600")
    [left] = wait_until(lambda: sleepers(number), "the daemon")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=240)
    os.kill(left, signal.SIGKILL)
    assert process.returncode == 130
    assert stderr.strip().split("\n") == [
        "interrupted; not every command has ended:",
        f"127.0.0.2: still running there: sleep (pid {left})",
    ]


def test_a_timeout_ends_the_command_on_its_host(home, hosts):
    number = next(NUMBERS)
    done = forked("runclust", "--timeout", "2s", hosts, f"sleep {number}")
    assert sleepers(number) == []
    assert done.returncode == 255
    assert done.stderr == f"127.0.0.[1-4]: did not end within 2 s: sleep {number}\n"


def test_hosts_behind_a_jump_host_share_one_connection_to_it(home, hosts, tmp_path):
    """Its MaxStartups of 2 would refuse most of several `ssh -W`, one for each host."""
    folder = tmp_path / "jump"
    folder.mkdir()
    with running_sshd(folder, "MaxStartups 2") as jump:
        config = home / ".ssh" / "config"
        behind = "".join(f"Host 127.0.0.{n}\n ProxyJump bastion\n" for n in range(2, 26))
        config.write_text(
            f"Host bastion\n HostName 127.0.0.1\n Port {jump.port}\n IdentityFile {jump.key}\n"
            f" UserKnownHostsFile {jump.known_hosts}\n{behind}{config.read_text()}"
        )
        hosts.write_text("".join(f"127.0.0.{n}\n" for n in range(2, 26)))
        key = re.search("IdentityFile (.*/sshd.*)", config.read_text())[1]
        for options in ([], ["--key", key], ["--user", getpass.getuser()]):
            before = jump.logins
            done = forked("runclust", *options, hosts, "echo in")
            assert sorted(done.stdout.splitlines()) == sorted(lines(*range(2, 26), text="in"))
            assert (done.returncode, jump.logins - before) == (0, 1)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["no-such-file", "true"], "there is no hosts file no-such-file"),
        (["--key", "nokey", "HOSTS", "true"], "there is no key file nokey"),
        (["--timeout", "soon", "HOSTS", "true"], "not a duration"),
        (["--timeout", "90", "HOSTS", "true"], "90 has no unit; did you mean 90s?"),
        (["--fanout", "0", "HOSTS", "true"], "0 is not in the range"),
        (["HOSTS", "true", "loudly"], "'loudly' is not 'verbose'"),
        (["HOSTS"], "Missing argument 'COMMAND'"),
        ([".", "true"], "cannot read the hosts file"),
        (["", "true"], "'' is empty"),
        (["HOSTS", "  "], "'  ' is empty"),
    ],
)
def test_requests_that_make_no_sense(home, hosts, argv, says):
    done = forked("runclust", *[hosts if word == "HOSTS" else word for word in argv])
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_host_named_twice(home, hosts):
    hosts.write_text("a slots=8\nb\na\n")
    done = forked("runclust", hosts, "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{hosts}: a is on lines 1 and 3" in done.stderr


@pytest.mark.parametrize("command", ["runclust", "copyclust"])
def test_starting_needs_nothing_large(command):
    """boto3, moto, rich and paramiko each take longer to import than all of --help."""
    program = (
        "import sys; from clusterctl.cli import copyclust, runclust\n"
        f"try: {command}.{command}(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'boto3','botocore','moto','tensorflow','rich','paramiko','fabric'}"
        " & set(sys.modules)))"
    )
    done = python(program)
    assert done.stdout.splitlines()[-1] == "[]"


def test_all_hosts_are_dialled_before_the_ssh_library_is_there(home, hosts):
    program = (
        "import sys; from clusterctl.cli.runclust import runclust\n"
        "dialled = []\n"
        "sys.addaudithook(lambda event, told: event == 'socket.connect' and dialled.append(\n"
        "    (told[1][0], 'cryptography' in sys.modules)))\n"
        f"runclust(['-n', {str(hosts)!r}, 'echo in'], standalone_mode=False)\n"
        "print(sorted(dialled))"
    )
    *said, dialled = python(program).stdout.splitlines()
    assert len(said) == 4
    assert ast.literal_eval(dialled) == [(f"127.0.0.{number}", False) for number in range(1, 5)]


def test_a_named_key_with_a_passphrase_is_the_agents(home, hosts, ssh_server, monkeypatch):
    """The message about a locked key recommends this."""
    locked, config = home / "locked", home / ".ssh" / "config"
    locked.write_bytes(ssh_server.key.read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", locked], check=True)
    config.write_text(config.read_text().replace(str(ssh_server.key), str(locked)))
    refused = forked("runclust", hosts, "true")
    assert (refused.returncode, f"ssh-add {locked}" in refused.stderr) == (2, True)
    sock = home / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        wait_until(sock.exists, "the agent")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        subprocess.run(["ssh-add", "-q", ssh_server.key], check=True)
        assert forked("runclust", hosts, "echo in").stdout.count("in") == 4
    finally:
        agent.terminate()
        agent.wait()


@pytest.mark.parametrize("module", ["hosts_access", "access", "readiness", "copy"])
def test_paramiko_is_never_imported_with_all_of_invoke(module):
    """The replacement in clusterctl/transport has to be imported first."""
    program = f"import sys, clusterctl.operations.{module}; print('invoke' in sys.modules)"
    assert python(program).stdout == "False\n"


def test_json_says_where_output_was_cut(home, hosts):
    hosts.write_text("127.0.0.1\n")
    done = forked("runclust", "--json", hosts, "head -c 17000000 /dev/zero | tr '\\0' x")
    [cut] = json.loads(done.stdout)["nodes"]
    assert (len(cut["stdout"]), cut["truncated"]) == (16 << 20, True)


def test_few_files_may_be_open(home, hosts):
    silent = [f"127.0.9.{number}" for number in range(1, 91)]
    hosts.write_text(hosts.read_text() + "".join(f"{host}\n" for host in silent))
    few = f"ulimit -n 64; exec {BIN}/runclust --connect-timeout 1s {hosts} 'echo in'"
    done = subprocess.run(["bash", "-c", few], capture_output=True, text=True, check=False)
    assert sorted(done.stdout.splitlines())[:4] == lines(1, 2, 3, 4, text="in")
    assert {line.split(": ")[0] for line in done.stderr.splitlines()} <= set(silent)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("options", usual(1, [[], (["-b"],), (["--json"],)]))
def test_a_reader_that_goes_away_is_no_trouble_of_the_hosts(
    home, hosts, options, unbuffered, monkeypatch
):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    argv = [
        str(BIN / "runclust"),
        *options,
        str(hosts),
        "head -c 3000000 /dev/zero | tr '\\0' '\\n'",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(5)
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert complaint == b""
    assert process.wait(timeout=240) == 141
