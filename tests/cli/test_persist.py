"""runclust --persist: a later call uses the connections of the first, whatever happens between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.operations.persist import login_of
from tests.cli.conftest import keepers
from tests.cli.programs import BIN, call
from tests.lab.running import wait_until
from tests.pair import eventually
from tests.transport.conftest import running_sshd
from tests.transport.sleepers import NUMBERS, sleepers


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def pgrep(*words: str) -> list[str]:
    return subprocess.run(
        ["pgrep", *words], capture_output=True, text=True, check=False
    ).stdout.split()


def outcome(done: subprocess.CompletedProcess[str]):
    return done.returncode, sorted(done.stdout.splitlines()), sorted(done.stderr.splitlines())


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["echo one; echo two >&2; printf three"], None),
        (["-b", "case $SSH_CONNECTION in *.2' '*) echo b; exit 4;; *) echo a;; esac"], None),
        (["sort | uniq -c"], b"y\nx\n" * 60_000),
        (["--timeout", "1s", "echo begun; case $SSH_CONNECTION in *.3' '*) sleep 5;; esac"], None),
        (["-n", "wc -c"], b"not for you"),
    ],
)
@pytest.mark.all
def test_a_call_is_as_it_is_without(home, hosts, runtime, words, stdin):
    hosts.write_text(hosts.read_text() + "no-such-host.invalid\n")
    *options, command = words
    plain = call("runclust", *options, hosts, command, stdin=stdin)
    for _ in range(2):
        kept = call("runclust", "--persist", *options, hosts, command, stdin=stdin)
        assert outcome(kept) == outcome(plain)


@pytest.mark.all
def test_json_is_as_it_is_without(home, hosts, runtime):
    hosts.write_text("127.0.0.3\nno-such-host.invalid\n127.0.0.1\n")
    words = ["--json", hosts, "echo out; echo err >&2; exit 2"]
    plain, kept = (call("runclust", *more, *words) for more in ([], ["--persist", "1m"]))
    told = [json.loads(done.stdout) for done in (plain, kept)]
    for one in [*told[0], *told[1]]:
        one.pop("duration_s", None)
    assert told[0] == told[1]
    assert kept.returncode == 255


def test_a_second_call_logs_in_no_more_and_the_keeper_ends_in_time(
    home, hosts, runtime, ssh_server
):
    before = ssh_server.logins
    for words in (["--persist", "2s", hosts, "true"], [hosts, "true", "--persist", "2s"]):
        assert outcome(call("runclust", *words)) == (0, [], [])
        assert ssh_server.logins == before + 4
    [keeper] = keepers(runtime)
    folder = runtime / "clusterctl"
    [path] = [path for path in folder.iterdir() if path.is_socket()]
    assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, path)] == [0o700, 0o600]
    wait_until(lambda: not alive(keeper), "the keeper to end", 20)
    assert not path.exists()
    assert outcome(call("runclust", "--persist=0", hosts, "true")) == (0, [], [])
    assert ssh_server.logins == before + 8
    wait_until(lambda: not path.exists(), "a keeper of no time to end", 10)


@pytest.mark.all
def test_two_first_calls_at_once_share_a_keeper(home, hosts, runtime, ssh_server):
    before = ssh_server.logins
    argv = [BIN / "runclust", "--persist", "-n", hosts, "echo in"]
    calls = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=-2) for _ in range(3)]
    for process in calls:
        out, _ = process.communicate(timeout=240)
        assert (process.returncode, len(out.splitlines())) == (0, 4), out
    assert len(keepers(runtime)) == 1
    assert ssh_server.logins == before + 4


@pytest.mark.all
def test_a_keeper_that_was_killed_is_not_missed(home, hosts, runtime):
    call("runclust", "--persist", hosts, "true")
    [keeper] = keepers(runtime)
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not alive(keeper), "its end")
    assert outcome(call("runclust", "--persist", hosts, "echo in"))[0::2] == (0, [])
    # If it is killed during a command, each host has one line, as if it had gone away.
    running = subprocess.Popen(
        [BIN / "runclust", "--persist", "-n", hosts, "echo begun; exec sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(4):
        assert "begun" in running.stdout.readline()
    for keeper in keepers(runtime):
        os.kill(keeper, signal.SIGKILL)
    _, said = running.communicate(timeout=240)
    assert running.returncode == 255
    assert said.splitlines() == ["127.0.0.[1-4]: the process that keeps its connection has ended"]


@pytest.mark.all
def test_what_it_rests_on_is_looked_at_by_every_call(home, hosts, runtime, ssh_server):
    def lines(*words) -> int:
        done = call("runclust", "--persist", *words, "echo in")
        return done.returncode, len(done.stdout.splitlines())

    assert lines(hosts) == (0, 4)
    hosts.write_text("127.0.0.9\n")
    assert lines(hosts) == (0, 1)
    config = home / ".ssh" / "config"
    known, text = home / "known", config.read_text()
    known.write_text(ssh_server.known_hosts.read_text())
    config.write_text(text.replace(str(ssh_server.known_hosts), str(known)))
    assert lines(hosts) == (0, 1)
    known.write_text("")
    done = call("runclust", "--persist", hosts, "true")
    assert done.returncode == 255
    assert "its host key is unknown" in done.stderr
    # An invalid request leaves no keeper behind.
    hosts.write_text("a\na\n")
    for _ in range(2):
        done = call("runclust", "--persist", hosts, "true")
        assert (done.returncode, "a is on lines 1 and 2" in done.stderr) == (2, True)
    done = call("runclust", "--persist", "--key", "nokey", hosts, "true")
    assert done.returncode == 2
    wait_until(lambda: not keepers(runtime), "keepers to end", 30)


@pytest.mark.parametrize("mode", [0o755, 0o770])
@pytest.mark.all
def test_a_folder_that_others_may_enter_is_refused(home, hosts, runtime, mode):
    (runtime / "clusterctl").mkdir()
    (runtime / "clusterctl").chmod(mode)
    done = call("runclust", "--persist", hosts, "true")
    assert done.returncode == 2
    assert f"{runtime}/clusterctl is not a folder of yours alone" in done.stderr
    # As the message advises.
    (runtime / "clusterctl").rmdir()
    assert call("runclust", "--persist", hosts, "true").returncode == 0


@pytest.mark.all
def test_where_no_keeper_can_be(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(UsageError, match="needs Linux"):
        login_of(tmp_path / "hosts", None, None, tmp_path)


@pytest.mark.all
def test_connections_that_the_hosts_closed_and_jump_hosts(home, hosts, runtime, tmp_path):
    with running_sshd(tmp_path) as server:
        (home / ".ssh" / "config").write_text(
            "Host 127.0.0.1\n ProxyJump none\nHost 127.0.0.*\n ProxyJump 127.0.0.1\n"
            f"Host *\n Port {server.port}\n IdentityFile {server.key}\n"
            f" UserKnownHostsFile {server.known_hosts}\n"
        )
        for logins in (4, 0):
            before = server.logins
            assert call("runclust", "--persist", hosts, "echo in").stdout.count("in") == 4
            assert server.logins - before == logins
        # All connections end, as in a reboot.
        [listening] = pgrep("-f", f"sshd.*{server.folder}/sshd_config")
        for pid in pgrep("-P", listening):
            with contextlib.suppress(ProcessLookupError):  # one may have ended with its jump host
                os.kill(int(pid), signal.SIGKILL)
        done = call("runclust", "--persist", hosts, "echo in")
        assert outcome(done)[0::2] == (0, [])
        assert server.logins - before == 4


@pytest.mark.parametrize("detached", [False, True])
def test_ctrl_c_ends_the_commands_and_names_what_it_could_not_end(home, hosts, runtime, detached):
    number, daemon = next(NUMBERS), next(NUMBERS)
    background = f"(setsid sleep {daemon} </dev/null >/dev/null 2>&1 &)"
    only = f"case $SSH_CONNECTION in *' 127.0.0.2 '*) {background if detached else ':'};; esac"
    process = subprocess.Popen(
        [BIN / "runclust", "--persist", "-n", hosts, f"{only}; echo begun; exec sleep {number}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(4):
        assert "begun" in process.stdout.readline()
    left = wait_until(lambda: sleepers(daemon), "the daemon") if detached else []
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=240)
    assert sleepers(number) == []
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    named = [f"127.0.0.2: still running there: sleep (pid {pid})" for pid in left]
    first = "interrupted; not every command has ended:" if left else "interrupted"
    assert (process.returncode, stderr.strip().split("\n")) == (130, [first, *named])
    # The connections are still kept.
    assert call("runclust", "--persist", hosts, "echo in").stdout.count("in") == 4


@pytest.fixture
def pair_hosts(pair, tmp_path, monkeypatch):
    """Return the hosts file of the cluster of two nodes, as its owner has it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTERCTL_HOME", str(pair.lab.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return pair.lab.home / "pair" / "hosts"


@pytest.mark.lab
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.all
def test_who_ends_early_ends_the_commands_and_no_connection(pair_hosts, runtime, how):
    def come_from() -> set[str]:
        done = call("runclust", "--persist", pair_hosts, "echo $SSH_CONNECTION")
        return set(done.stdout.splitlines())

    before = come_from()
    assert len(before) == 2
    marker = f"8640{int(how):02d}.{os.getpid()}"
    process = subprocess.Popen(
        [BIN / "runclust", "--persist", "-n", pair_hosts, f"echo begun; exec sleep {marker}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(2):
        assert "begun" in process.stdout.readline()
    assert len(pgrep("-f", f"^sleep {marker}")) == 2
    process.send_signal(how)
    _, said = process.communicate(timeout=240)
    if how == signal.SIGINT:
        assert (process.returncode, said.strip()) == (130, "interrupted")
    wait_until(lambda: not pgrep("-f", f"^sleep {marker}"), "the commands to end", 20)
    assert come_from() == before


@pytest.mark.lab
@pytest.mark.all
def test_hosts_that_are_cut_off_or_boot_between_two_calls(pair, pair_hosts, runtime):
    first, second = (line.split()[0] for line in pair_hosts.read_text().splitlines())

    def boots() -> dict[str, str]:
        done = call(
            *("runclust", "--persist", "--connect-timeout", "3s", "-n", pair_hosts),
            "cat /proc/sys/kernel/random/boot_id",
        )
        assert "Traceback" not in done.stderr
        return dict(line.split(": ") for line in done.stdout.splitlines())

    before = boots()
    assert set(before) == {first, second}
    with pair.fault(1, "cut", "mend"):
        assert boots() == {first: before[first]}
    assert eventually(lambda: boots() == before, "the host to be back")
    pair.on(1, "setsid sudo -n sh -c 'sleep 0.3; reboot' </dev/null >/dev/null 2>&1 &")
    eventually(lambda: boots().get(second, before[second]) != before[second], "another boot")
    after = boots()
    assert after[first] == before[first]
    assert after[second] != before[second]
