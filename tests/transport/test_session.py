"""Real logins and commands: quoting, binary and large output, deadlines, signals, faulty hosts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import resource
import select
import signal
import socket
import subprocess
import tempfile
import threading

import paramiko
import pytest

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    KeyRefused,
    UsageError,
)
from clusterctl.transport.dial import most_hosts
from clusterctl.transport.keys import KnownHostKeys, load_key
from clusterctl.transport.session import Identity, connect
from clusterctl.transport.stdin import CHUNK, IN_MEMORY, StdinFile, StdinSource, StdinStream
from tests.lab.running import wait_until
from tests.ports import free_port
from tests.transport.conftest import keygen, running_sshd


@pytest.mark.parametrize(
    ("command", "status", "stdout", "stderr"),
    [
        ("true", 0, "", ""),
        ("exit 7", 7, "", ""),
        ("echo 'a  b'; echo \"c'd\" >&2; exit 3", 3, "a  b\n", "c'd\n"),
        ("printf 'no newline'", 0, "no newline", ""),
        ("printf '\\303\\251\\n'", 0, "é\n", ""),
        ("printf '\\377\\n'", 0, "\ufffd\n", ""),
        ("printf '\udcff' | od -An -tx1", 0, " ff\n", ""),
        ("kill -TERM $$", 143, "", ""),
        ("kill -KILL $$", 137, "", ""),
        ("nosuchcommand 2>/dev/null", 127, "", ""),
    ],
)
def test_a_command_and_how_it_ends(ssh_server, command, status, stdout, stderr):
    with ssh_server.connections() as connections:
        result = connections.run(ssh_server.target(), command)
    assert (result.exit_status, result.stdout, result.stderr) == (status, stdout, stderr)
    assert (result.host, result.command) == ("host1", command)


def test_a_command_that_is_too_long_to_send_is_no_lost_connection(ssh_server):
    with ssh_server.connections() as connections:
        assert connections.run(ssh_server.target(), ": " + "x" * 130_000, as_user=True).ok
        for size in (131_072, 3_000_000):
            with pytest.raises(CommandFailed, match="bytes, and a shell there takes 131,071") as no:
                connections.run(ssh_server.target(), ": " + "x" * size, as_user=True)
            assert type(no.value) is CommandFailed


def test_both_streams_at_once_and_more_than_the_window(ssh_server):
    """3 MiB on each stream would block a program that reads one stream after the other."""
    command = "head -c 3145728 /dev/zero >&2; head -c 3145728 /dev/zero | tr '\\0' x"
    with ssh_server.connections() as connections:
        result = connections.run(ssh_server.target(), command, timeout_s=60)
    assert len(result.stdout) == 3145728
    assert len(result.stderr) == 3145728
    assert not result.truncated


def test_a_flood_is_cut_and_said(ssh_server):
    with ssh_server.connections() as connections:
        result = connections.run(
            ssh_server.target(), "head -c 20000000 /dev/zero | tr '\\0' x", timeout_s=60
        )
    assert len(result.stdout) == 16 << 20
    assert result.truncated
    assert result.exit_status == 0


def test_standard_input_arrives_whole(ssh_server):
    data = bytes(range(256)) * 20000
    with ssh_server.connections() as connections:
        result = connections.run(ssh_server.target(), "sha256sum", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_command_that_ignores_its_input_ends(ssh_server):
    with ssh_server.connections() as connections:
        result = connections.run(ssh_server.target(), "exit 4", stdin=b"x" * (8 << 20))
    assert result.exit_status == 4


class DamagedInput:
    def read_at(self, offset, wait_s):
        raise OSError(errno.EIO, "no")


@pytest.mark.parametrize(("stdin", "error"), [("text", AttributeError), (DamagedInput(), OSError)])
def test_an_error_of_the_input_is_that_of_the_call(ssh_server, stdin, error):
    """The thread that feeds the command ends by it, and the command would wait for input."""
    with ssh_server.connections() as connections:
        with pytest.raises(error):
            connections.run(ssh_server.target(), "cat", stdin=stdin)
        assert connections.run(ssh_server.target(), "echo next").stdout == "next\n"


def test_output_that_is_no_text_has_its_bytes_too(ssh_server):
    with ssh_server.connections() as connections:
        results = [
            connections.run(ssh_server.target(), rf"printf '{one}\n' >&2")
            for one in (r"\377", r"\376", "ü")
        ]
    assert [one.stderr for one in results] == ["\ufffd\n", "\ufffd\n", "ü\n"]
    assert [one.as_bytes[1] for one in results] == [b"\xff\n", b"\xfe\n", "ü\n".encode()]


def test_input_that_cannot_be_kept_is_an_error_and_no_short_input(monkeypatch):
    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda _: Full())
    read, write = os.pipe()
    os.write(write, b"some")
    source = StdinSource(read)
    with pytest.raises(ClusterctlError, match=f"in {tempfile.gettempdir()}, here: No space left"):
        while source.read_at(0, 5.0) is None:
            pass
    os.close(write)
    os.close(read)


@pytest.mark.parametrize("kind", [StdinStream, StdinSource, StdinFile])
def test_input_that_cannot_be_read_is_an_error_and_not_its_end(tmp_path, kind):
    folder, unreadable = os.open(tmp_path, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)
    with pytest.raises(ClusterctlError, match="cannot read the standard input, here: Is a dir"):
        kind(folder).read_at(0, 5.0)
    if kind is not StdinFile:
        assert kind(unreadable).read_at(0, 5.0) == b"", "as nohup opens it"
    os.close(folder)
    os.close(unreadable)


def test_a_pipe_that_does_not_block_is_not_taken_for_one_at_its_end(monkeypatch):
    read, write = os.pipe()
    os.set_blocking(read, False)
    source = StdinSource(read)
    assert source.read_at(0, 0.05) is None
    with monkeypatch.context() as taken:  # by another reader, as soon as it has arrived
        taken.setattr(select, "select", lambda *_: ([read], [], []))
        assert StdinStream(read).read_at(0, 0.05) is None
    os.write(write, b"later")
    os.close(write)
    assert (source.read_at(0, 10.0), source.read_at(5, 10.0)) == (b"later", b"")
    os.close(read)


def test_a_pipe_is_read_as_fast_as_the_fastest_reader_takes_it():
    """Else `tar c` into a slow link would fill this machine's disk."""
    pieces, written = 3 * IN_MEMORY // CHUNK, 0
    read, write = os.pipe()

    def fill():
        nonlocal written
        for _ in range(pieces):
            written += os.write(write, b"x" * CHUNK)
        os.close(write)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    source, offset, in_pipe = StdinSource(read), 0, 1 << 20
    while chunk := source.read_at(offset, 10.0):
        offset += len(chunk)
        assert written <= offset + IN_MEMORY + in_pipe
        assert source.read_at(0, 10.0)  # for one that is late
    thread.join()
    assert offset == written == pieces * CHUNK
    os.close(read)


def test_a_file_is_read_by_each_at_its_own_pace_from_where_it_stands(tmp_path):
    (tmp_path / "file").write_bytes(b"first line\n" + b"x" * (CHUNK + 9))
    with (tmp_path / "file").open("rb", buffering=0) as file:
        file.read(11)
        source = StdinFile(file.fileno())
        assert file.read() == b""  # it counts as read
        for _ in range(2):
            sizes = [len(source.read_at(offset, 0)) for offset in (0, CHUNK, CHUNK + 9)]
            assert sizes == [CHUNK, 9, 0]


def test_the_deadline_keeps_what_came(ssh_server):
    command = "echo trouble >&2; echo begun; exec sleep 600"
    with ssh_server.connections() as connections:
        connections.run(ssh_server.target(), "true")  # log in first, which takes time as well
        for timeout_s in (0.3, 3.0, 30.0):
            with pytest.raises(CommandTimeout) as caught:
                connections.run(ssh_server.target(), command, timeout_s=timeout_s)
            if caught.value.stdout:  # a busy machine may not even begin in the shorter times
                break
        # The connection still works for the next command.
        assert connections.run(ssh_server.target(), "echo next").stdout == "next\n"
    assert (caught.value.stdout, caught.value.stderr) == ("begun\n", "trouble\n")
    assert f"did not end within {timeout_s:g} s" in caught.value.message


def test_connections_are_kept(ssh_server):
    with ssh_server.connections() as connections:
        first = connections.run(ssh_server.target(), "echo $SSH_CONNECTION").stdout
        second = connections.run(ssh_server.target(), "echo $SSH_CONNECTION").stdout
    assert first == second


def test_the_round_trip_is_the_links_however_late_the_host_answers(ssh_server):
    with ssh_server.connections() as connections:
        session = connections.session(ssh_server.target())
        assert session.run("sleep 1; echo late").stdout == "late\n"
        assert 0 < session.round_trip_s < 1


def test_a_connection_that_was_kept_and_died_is_made_anew(ssh_server):
    with ssh_server.connections() as connections:
        target = ssh_server.target()
        sock = connections.session(target).client.get_transport().sock
        # Shut down silently: the connection's thread notices when it is used, or just before.
        sock.shutdown(socket.SHUT_RDWR)
        assert connections.run(target, "echo again").stdout == "again\n"


def test_a_connection_is_closed_while_a_channel_of_it_is_being_opened(ssh_server):
    with ssh_server.connections() as connections:
        session = connections.session(ssh_server.target())
        transport = session.client.get_transport()
        # As paramiko's open_channel has it for a moment: listed, and without a transport.
        chanid = transport._next_channel()
        half_open = paramiko.Channel(chanid)
        transport._channels.put(chanid, half_open)
        session.close()
    assert transport.sock.fileno() == -1


@pytest.mark.parametrize("jump", [False, True])
def test_a_kept_connection_that_leads_nowhere_is_made_anew(ssh_server, jump):
    """The host was cut off and came back, without a packet that closes the connection."""
    gone = ssh_server.target(1, jump=ssh_server.target(2) if jump else None)
    with ssh_server.connections() as connections:
        connections.doubt_after_s = 0.5
        connections.session(gone)
        for target in filter(None, (gone, gone.jump)):
            # From now on, sent data is lost.
            transport = connections.session(target).client.get_transport()
            transport.packetizer.send_message = lambda message: None
        assert connections.run(gone, "echo again").stdout == "again\n"


def test_a_server_that_refuses_another_command_keeps_its_connection(tmp_path):
    with running_sshd(tmp_path, "MaxSessions 1") as server, server.connections() as connections:
        connections.doubt_after_s = 5
        session = connections.session(server.target())
        channel = session.client.get_transport().open_session()
        with pytest.raises(HostUnreachable, match="no SSH session"):
            connections.run(server.target(), "true")
        assert connections.session(server.target()) is session
        channel.close()


def test_a_slow_host_keeps_the_connection_that_another_command_uses(ssh_server, monkeypatch):
    def open_no_session(timeout):
        raise paramiko.SSHException("Timeout opening channel.")

    def second_command(stream, chunk):
        with monkeypatch.context() as patch, pytest.raises(HostUnreachable):
            patch.setattr(session.client.get_transport(), "open_session", open_no_session)
            connections.run(target, "true")

    with ssh_server.connections() as connections:
        connections.doubt_after_s = 5
        target = ssh_server.target()
        session = connections.session(target)
        connections.run(target, "echo begun", sink=second_command)
        assert connections.session(target) is session


def test_after_an_interrupt_for_good_no_command_starts(ssh_server):
    with ssh_server.connections() as connections:
        connections.interrupt()
        assert connections.run(ssh_server.target(), "echo on").stdout == "on\n"
        connections.interrupt(for_good=True)
        connections.interrupt()
        with pytest.raises(ConnectionLost, match="interrupted before"):
            connections.run(ssh_server.target(), "true")


def test_an_interrupt_at_the_worst_moment_leaves_the_connection_usable(ssh_server):
    interrupted = threading.Event()

    def interrupt_once(*_):
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    with ssh_server.connections() as connections, contextlib.ExitStack() as stack:
        before = signal.signal(signal.SIGINT, interrupt_once)
        stack.callback(signal.signal, signal.SIGINT, before)
        target = ssh_server.target()
        connections.run(target, "true")
        packetizer = connections.session(target).client.get_transport().packetizer
        lock = packetizer._Packetizer__write_lock

        class Interrupting:
            """Where SIGINT comes right after the lock was taken, before `try`."""

            release = staticmethod(lock.release)

            def acquire(self):
                lock.acquire()
                packetizer._Packetizer__write_lock = lock
                # Only a signal to the main thread itself ends its wait, and one that comes just
                # before the wait begins is not noticed.
                while not interrupted.is_set():
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                    interrupted.wait(0.05)

        with pytest.raises(KeyboardInterrupt):
            packetizer._Packetizer__write_lock = Interrupting()
            connections.run(target, "sleep 1000")
        # In another thread: it would hang.
        said = []
        again = threading.Thread(
            target=lambda: said.append(connections.run(target, "echo here").stdout), daemon=True
        )
        again.start()
        again.join(240)
        assert said == ["here\n"]


def test_more_hosts_than_files_may_be_open(ssh_server):
    targets = [ssh_server.target(number) for number in range(1, 10)]
    with ssh_server.connections() as connections:
        connections.most_hosts = 3
        result = connections.run_all(targets, "echo in")
        assert not result.failures
        assert not connections._sessions


def test_how_many_hosts_the_limit_on_files_allows(monkeypatch):
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.__setitem__(0, both))
    assert most_hosts() == (4096 - 64) // 3
    assert limits == [(4096, 4096)]


def test_nobody_listens(ssh_server):
    target = ssh_server.target(port=free_port())
    with ssh_server.connections() as connections, pytest.raises(HostUnreachable) as caught:
        connections.run(target, "true")
    assert "refused the connection at [127.0.0.1]:" in caught.value.message


def test_a_listener_that_never_speaks(ssh_server):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        target = ssh_server.target(port=listener.getsockname()[1])
        connections = ssh_server.connections(connect_timeout_s=0.3)
        with connections, pytest.raises(HostUnreachable) as caught:
            connections.run(target, "true")
    assert caught.value.host == "host1"
    assert caught.value.message.startswith("takes connections and answers none in time")


def test_a_name_that_nobody_knows(ssh_server, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    target = ssh_server.target(address="no-such-host.invalid")
    with ssh_server.connections() as connections, pytest.raises(HostUnreachable) as caught:
        connections.run(target, "true")
    assert "its name is not known" in caught.value.message


def test_an_unknown_host_key_is_refused(ssh_server, tmp_path):
    identity = Identity((load_key(ssh_server.key),))
    with pytest.raises(HostKeyUnknown) as caught:
        connect(ssh_server.target(), identity, KnownHostKeys([tmp_path / "none"]))
    assert "known_hosts" in caught.value.hint


def test_a_changed_host_key_stops_with_the_reason_and_the_hint_drops_it_where_it_is(
    ssh_server, tmp_path
):
    """That may be any of the files, or several: the first one often has other hosts only."""
    keygen(tmp_path / "other")
    public = (tmp_path / "other.pub").read_text()
    name = ssh_server.target().known_hosts_name
    files = [tmp_path / f"known_{number}" for number in range(3)]
    for path, host in zip(files, ("else", name, name)):
        path.write_text(f"{host} {public}")
    identity = Identity((load_key(ssh_server.key),))
    with pytest.raises(HostKeyChanged) as caught:
        connect(ssh_server.target(), identity, KnownHostKeys(files))
    assert "SHA256:" in caught.value.message
    assert "ssh-keygen -R" in caught.value.hint
    drop = caught.value.hint.partition("drop the old key: ")[2]
    subprocess.run(["sh", "-ec", drop], check=True)
    assert [path.read_text() for path in files] == [f"else {public}", "", ""]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_key_that_the_host_does_not_know(ssh_server, tmp_path, kind):
    keygen(tmp_path / "stranger", kind)
    identity = Identity((load_key(tmp_path / "stranger"),))
    with pytest.raises(KeyRefused):
        connect(ssh_server.target(), identity, KnownHostKeys([ssh_server.known_hosts]))


def test_the_second_key_may_be_the_right_one(ssh_server, tmp_path):
    keygen(tmp_path / "stranger")
    keys = (load_key(tmp_path / "stranger"), load_key(ssh_server.key))
    session = connect(ssh_server.target(), Identity(keys), KnownHostKeys([ssh_server.known_hosts]))
    assert session.run("echo in").stdout == "in\n"
    session.close()


def test_no_key_at_all(ssh_server):
    with pytest.raises(KeyRefused) as caught:
        connect(ssh_server.target(), Identity(()), KnownHostKeys([ssh_server.known_hosts]))
    assert "ssh-add FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a private key"),
        (b"hello\n", "is not a private key"),
        (b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n", "is not a private key"),
        (b"\xff\xfe\x00", "is not a private key"),
    ],
)
def test_files_that_are_no_keys(tmp_path, content, says):
    path = tmp_path / "a key"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        load_key(path)


def test_a_key_with_a_passphrase_names_the_agent(tmp_path):
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(tmp_path / "locked")]
    subprocess.run(argv, check=True)
    with pytest.raises(UsageError) as caught:
        load_key(tmp_path / "locked")
    assert "ssh-add" in caught.value.hint


def test_a_missing_key_file(tmp_path):
    with pytest.raises(UsageError, match="there is no key file"):
        load_key(tmp_path / "nothing")


def test_keys_of_a_cluster_are_renewed_by_up(ssh_server, tmp_path):
    host_keys = KnownHostKeys([tmp_path / "none"], renew="run `clusterctl up demo` again")
    with pytest.raises(HostKeyUnknown) as caught:
        connect(ssh_server.target(), Identity((load_key(ssh_server.key),)), host_keys)
    assert caught.value.hint == "run `clusterctl up demo` again"


def test_what_comes_too_late_for_its_channel_does_not_end_the_connection(ssh_server):
    """OpenSSH disconnects whoever speaks on a channel that both sides have closed."""
    from paramiko.common import cMSG_CHANNEL_EOF

    with ssh_server.connections() as connections:
        session = connections.session(ssh_server.target())
        transport = session.client.get_transport()
        channel = transport.open_session()
        channel.exec_command("true")
        assert channel.recv_exit_status() == 0
        other = transport.open_session()
        channel.close()
        number = channel.chanid
        wait_until(lambda: transport._channels.get(number) is None, "the server closes it too")
        # After a round trip, the server has forgotten the channel.
        other.exec_command("cat")
        other.sendall(b"x")
        assert other.recv(1) == b"x"
        late = paramiko.Message()
        late.add_byte(cMSG_CHANNEL_EOF)
        late.add_int(channel.remote_chanid)
        transport._send_user_message(late)
        for _ in range(3):
            assert session.run("echo still here").stdout == "still here\n"


def test_a_pipe_that_broke_here_is_no_trouble_of_the_hosts(ssh_server):
    def nobody_reads(*chunk):
        raise BrokenPipeError(32, "Broken pipe")

    targets = [ssh_server.target(number) for number in (1, 2)]
    with ssh_server.connections() as connections:
        with pytest.raises(BrokenPipeError):
            connections.run(targets[0], "yes", sink=nobody_reads, timeout_s=60)
        with pytest.raises(BrokenPipeError):
            connections.run_all(targets, "yes", sink=nobody_reads, timeout_s=60)
        # The connection still works.
        assert connections.run(targets[0], "echo here").stdout == "here\n"
