"""A command that is interrupted or takes too long is ended on its host; what is left is named."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from clusterctl.domain.errors import CommandTimeout, ConnectionLost, Interrupted
from clusterctl.transport import execute
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.keys import KnownHostKeys
from clusterctl.transport.session import Identity
from tests.lab.running import wait_until
from tests.transport.conftest import running_sshd
from tests.transport.sleepers import NUMBERS, sleepers
from tests.variants import usual


@pytest.fixture(scope="module", params=usual(1, ["own", "another"]))
def user_server(request, ssh_server):
    """Yield a server with the user who runs the tests, and for root one of another user."""
    if request.param == "own":
        yield ssh_server
        return
    others = [
        one
        for one in pwd.getpwall()
        if one.pw_uid >= 100 and one.pw_shell.rpartition("/")[2] in ("sh", "bash")
    ]
    if os.getuid() or not others:
        pytest.skip("there is no other user")
    # pytest's own folder is closed to others.
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, others[0].pw_uid, -1)
        with running_sshd(Path(folder), user=others[0].pw_name) as server:
            yield server


COMMANDS = {
    "exec": "echo begun; exec sleep {n}",
    "child": "echo begun; sleep {n}; echo not reached",
    "pipeline": "echo begun; sleep {n} | cat",
    "background": "echo begun; sleep {n} & sleep {n}; wait",
    "leader has ended": "echo begun; sleep {n} & ",
    "nested shells": "sh -c 'echo begun; (sleep {n}; true); true'; true",
    "stopped": (
        "echo begun; sleep {n} & until grep -q sleep /proc/$!/comm; do :; done; kill -STOP $!; wait"
    ),
    "ignores SIGTERM": "trap '' TERM; echo begun; sleep {n}; sleep {n}",
    "flood": "echo begun; sleep {n} & exec yes",
    "closes its output": "echo begun; exec >&- 2>&-; exec sleep {n}",
    "a group of its own": "echo begun; set -m; sleep {n} & wait",
}


@pytest.mark.parametrize("kind", usual(4, COMMANDS))
def test_an_interrupt_ends_a_command_on_its_host(user_server, kind):
    number = next(NUMBERS)
    target = user_server.target()
    errors = []
    command = COMMANDS[kind].format(n=number)

    def run() -> None:
        try:
            connections.run(target, command, sink=lambda *_: None, as_user=True)
        except ConnectionLost as error:
            errors.append(error.message)

    with user_server.connections() as connections:
        connections.run(target, "true")
        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: sleepers(number) or not thread.is_alive(), "the command runs")
        assert connections.interrupt() == {}
        # By now, nothing is left.
        assert sleepers(number) == []
        thread.join(240)
        assert errors == ["interrupted while a command ran"]
        # The connection still works.
        assert connections.run(target, "echo here").stdout == "here\n"


@pytest.mark.parametrize("kind", usual(2, ["ignores SIGTERM", "leader has ended", "flood", "exec"]))
def test_a_timeout_ends_a_command_on_its_host(user_server, kind):
    number = next(NUMBERS)
    command = COMMANDS[kind].format(n=number)
    with user_server.connections() as connections:
        target = user_server.target()
        connections.run(target, "true")
        with pytest.raises(CommandTimeout) as ended:
            connections.run(target, command, timeout_s=0.5, sink=lambda *_: None, as_user=True)
        assert ended.value.message == f"did not end within 0.5 s: {command}"
        assert sleepers(number) == []
        assert connections.run(target, "echo here").stdout == "here\n"


def test_what_has_left_the_session_is_named(user_server):
    number = next(NUMBERS)
    daemon = f"(setsid sleep {number} </dev/null >/dev/null 2>&1 &)"
    target = user_server.target()
    with user_server.connections() as connections:
        # The daemon of an earlier command is none of this one's.
        earlier = next(NUMBERS)
        connections.run(target, daemon.replace(str(number), str(earlier)))
        wait_until(lambda: sleepers(earlier), "the daemon runs")
        # Processes are told apart by their start, in ticks of 10 ms.
        then = time.monotonic()
        wait_until(lambda: time.monotonic() > then + 0.03, "a later tick")
        errors: list[str] = []

        def run() -> None:
            try:
                connections.run(target, f"{daemon}; exec sleep 600")
            except ConnectionLost as error:
                errors.append(error.message)

        thread = threading.Thread(target=run)
        thread.start()
        [left] = wait_until(lambda: sleepers(number), "the other daemon runs")
        named = {target.host: f"still running there: sleep (pid {left})"}
        assert connections.interrupt() == named
        thread.join(240)
        os.kill(left, signal.SIGKILL)
        os.kill(*sleepers(earlier), signal.SIGKILL)
    assert errors == [f"interrupted while a command ran; {named[target.host]}"]


def test_another_command_on_the_connection_goes_on(ssh_server):
    ends, goes_on = next(NUMBERS), next(NUMBERS)
    target = ssh_server.target()
    ended: list[int] = []

    with ssh_server.connections() as connections:
        connections.run(target, "true")
        thread = threading.Thread(
            target=lambda: ended.append(connections.run(target, f"sleep {goes_on}").exit_status)
        )
        thread.start()
        wait_until(lambda: sleepers(goes_on), "the command runs")
        with pytest.raises(CommandTimeout) as late:
            connections.run(target, f"sleep {ends}", timeout_s=1.0)
        assert late.value.message == f"did not end within 1 s: sleep {ends}"
        assert (sleepers(ends), len(sleepers(goes_on))) == ([], 1)
        # Its normal end is still noticed.
        os.kill(sleepers(goes_on)[0], signal.SIGTERM)
        thread.join(240)
    assert ended == [143]


def test_a_server_that_allows_no_second_session(tmp_path):
    number = next(NUMBERS)
    with running_sshd(tmp_path, "MaxSessions 1") as server, server.connections() as connections:
        with pytest.raises(CommandTimeout) as ended:
            connections.run(server.target(), f"exec sleep {number}", timeout_s=1.0)
        assert "; it may still run there: no second SSH session" in ended.value.message
        # A busy machine may start it only now.
        os.kill(*wait_until(lambda: sleepers(number), "the command runs"), signal.SIGKILL)


@pytest.mark.all
def test_a_lost_connection_is_no_proof(ssh_server):
    number = next(NUMBERS)
    target = ssh_server.target()
    with ssh_server.connections() as connections:
        transport = connections.session(target).client.get_transport()

        def cut(*_) -> None:
            transport.packetizer.send_message = lambda message: None

        with pytest.raises(CommandTimeout) as ended:
            connections.run(target, f"echo begun; exec sleep {number}", timeout_s=1.0, sink=cut)
        assert "; it may still run there: " in ended.value.message
        os.kill(*wait_until(lambda: sleepers(number), "the command runs"), signal.SIGKILL)


@pytest.mark.parametrize("as_user", [False, True])
@pytest.mark.parametrize("command", ["if then", "echo a; )", "set -x; true", "'", "exit 3"])
def test_a_command_that_its_shell_cannot_parse_is_the_commands_own_error(
    ssh_server, command, as_user
):
    """A shell's message may show the line, and in it what tells the process."""
    with ssh_server.connections() as connections:
        ran = connections.run(ssh_server.target(), command, as_user=as_user)
        assert ran.exit_status == {"set -x; true": 0, "exit 3": 3}.get(command, ran.exit_status)
        assert connections.run(ssh_server.target(), "echo on").stdout == "on\n"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_host_without_proc_ends_the_process_group(stubborn):
    number = next(NUMBERS)
    trap = "trap '' TERM; " if stubborn else ""
    argv = ["sh", "-c", f"{trap}echo begun; sleep {number}; sleep {number}"]
    group = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE)
    assert group.stdout
    assert group.stdout.readline() == b"begun\n"
    reaper = threading.Thread(target=group.wait)
    reaper.start()
    script = execute.ending_script(group.pid).replace("/proc/", "/nonexistent/")
    done = subprocess.run(["sh", "-s"], input=script, text=True, capture_output=True, check=False)
    assert str(execute.parse_ending(done.stdout)) == ""
    assert sleepers(number) == []
    reaper.join(240)
    group.stdout.close()


@pytest.mark.parametrize("text", ["", "encoding with 'idna' codec failed (KeyboardInterrupt: )"])
def test_what_is_left_is_named_whatever_text_the_interrupt_had(monkeypatch, text):
    """A codec of Python gives one to a Ctrl-C within it."""

    def interrupt(_):
        raise KeyboardInterrupt(text)

    connections = Connections(Identity(()), KnownHostKeys([]))
    monkeypatch.setattr(connections, "interrupt", lambda: {"n0": "still running there: sleep"})
    with pytest.raises(Interrupted, match="n0: still running there: sleep"):
        connections.each([Target("n0", "", "")], lambda target: None, on_outcome=interrupt)
