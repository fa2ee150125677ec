"""Hosts behind a jump host: one connection to it is shared, and errors name the hop."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace

import paramiko
import pytest

from clusterctl.domain.errors import HostKeyChanged, HostKeyUnknown, HostUnreachable, KeyRefused
from clusterctl.transport.connections import Connections
from clusterctl.transport.fabric import VerifiedConnection
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.keys import KnownHostKeys, load_key
from clusterctl.transport.session import Identity, connect
from tests.lab.running import wait_until
from tests.ports import free_port
from tests.transport.conftest import keygen, running_sshd


def behind(server, number: int = 2, **changes):
    """Return a host that is reached through host1."""
    return server.target(number, **{"jump": server.target(1), **changes})


@contextlib.contextmanager
def silent_listener(backlog: int = 16):
    """Yield a port that accepts connections and sends nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        yield listener


def unreachable(connections, target) -> HostUnreachable:
    with pytest.raises(HostUnreachable) as caught:
        connections.run(target, "true")
    assert caught.value.host == target.host
    return caught.value


def test_one_connection_to_the_jump_host_for_all(ssh_server):
    """This holds above sshd's MaxSessions of 10, which does not count forwarded channels."""
    targets = [behind(ssh_server, number) for number in range(2, 26)]
    before = ssh_server.logins
    with ssh_server.connections() as connections:
        # MaxStartups limits simultaneous logins, and all these hosts are one server.
        result = connections.each(
            targets, lambda one: connections.run(one, "echo $SSH_CONNECTION"), max_workers=8
        )
        assert not result.failures
        assert [value.stdout.split()[2] for value in result.values] == [
            target.address for target in targets
        ]
        wait_until(lambda: ssh_server.logins == before + 1 + len(targets), "as many logins")
        # The jump host can be used like any other host, and is already connected.
        assert connections.run(ssh_server.target(1), "echo in").stdout == "in\n"
        assert ssh_server.logins == before + 1 + len(targets)


def test_large_output_and_input_through_it(ssh_server):
    command = "head -c 3145728 /dev/zero >&2; head -c 3145728 /dev/zero | tr '\\0' x; wc -c"
    with ssh_server.connections() as connections:
        result = connections.run(behind(ssh_server), command, stdin=b"y" * 3000000, timeout_s=60)
    assert len(result.stderr) == 3145728
    assert result.stdout[3145728:].strip() == "3000000"


def test_two_jumps(ssh_server):
    target = behind(ssh_server, 3, jump=behind(ssh_server, 2))
    with ssh_server.connections() as connections:
        assert connections.run(target, "echo in").stdout == "in\n"
        assert connections.session(target).round_trip_s is None, "not known"


@pytest.mark.parametrize("number", [1, 30])
def test_a_jump_host_that_is_down_is_said_for_each_and_asked_once(ssh_server, number):
    with silent_listener() as listener, ssh_server.connections(connect_timeout_s=0.3) as given:
        jump = ssh_server.target(1, port=listener.getsockname()[1])
        targets = [behind(ssh_server, 2 + each, jump=jump) for each in range(number)]
        result = given.run_all(targets, "true")
        for outcome in result.outcomes:
            assert isinstance(outcome.error, HostUnreachable)
            assert outcome.error.host == outcome.host
            assert outcome.error.message.startswith("cannot be reached through host1: takes")
        listener.settimeout(0)
        asked = []
        with contextlib.suppress(BlockingIOError):
            while True:
                asked.append(listener.accept()[0])
        assert len(asked) == 1
        for sock in asked:
            sock.close()


def test_a_jump_host_whose_instance_is_stopped(ssh_server):
    jump = ssh_server.target(1, down="its instance is stopped")
    with ssh_server.connections() as connections:
        error = unreachable(connections, behind(ssh_server, jump=jump))
        assert error.message == "cannot be reached through host1: its instance is stopped"
        stopped = behind(ssh_server, jump=jump, down="its instance is stopping")
        assert unreachable(connections, stopped).message == "its instance is stopping"


def test_nobody_listens_behind_it(ssh_server):
    port = free_port()
    with ssh_server.connections() as connections:
        error = unreachable(connections, behind(ssh_server, port=port))
        assert error.message == f"refused the connection at [127.0.0.2]:{port} through host1"
        assert "still booting" in error.hint
        # The jump host's connection still works.
        assert connections.run(behind(ssh_server), "true").ok


def test_each_of_many_hears_its_own_reason(ssh_server):
    """paramiko stores only one refusal for all channels of a connection."""
    refused = [behind(ssh_server, 2 + n, port=free_port()) for n in range(10)]
    unknown = [behind(ssh_server, 20 + n, address=f"no-such-{n}.invalid") for n in range(10)]
    mixed = [target for pair in zip(refused, unknown) for target in pair]
    with ssh_server.connections() as connections:
        result = fan_out(connections.session, mixed, max_workers=20)
    for target, outcome in zip(mixed, result.outcomes):
        assert isinstance(outcome.error, HostUnreachable)
        assert ("refused" in outcome.error.message) == (target in refused), outcome.error.message


def test_a_host_behind_it_that_never_speaks(ssh_server):
    with silent_listener() as listener, ssh_server.connections() as given:
        given.run(ssh_server.target(1), "true")  # a busy machine may take longer for the login
        given.connect_timeout_s = 0.3
        target = behind(ssh_server, address="127.0.0.1", port=listener.getsockname()[1])
        assert "through host1" in unreachable(given, target).message


def test_what_opens_after_one_gave_up_is_closed(ssh_server):
    """A booting host answers late: half-open logins would use up its sshd's MaxStartups."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(silent_listener(backlog=0))
        connections = stack.enter_context(ssh_server.connections())
        connections.run(ssh_server.target(1), "true")
        connections.connect_timeout_s = 2.0
        port = listener.getsockname()[1]
        # When the queue is full, the kernel drops new connections, and TCP tries again.
        filler = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        target = behind(ssh_server, address="127.0.0.1", port=port)
        assert "did not answer in time" in unreachable(connections, target).message
        listener.settimeout(120)
        stack.enter_context(listener.accept()[0])
        late = stack.enter_context(listener.accept()[0])
        late.settimeout(120)
        assert late.recv(1) == b""
        filler.close()


def test_a_jump_host_that_forwards_nothing(tmp_path):
    settings = "AllowTcpForwarding no"
    with running_sshd(tmp_path, settings) as server, server.connections() as connections:
        error = unreachable(connections, behind(server))
    assert error.message == "host1 lets no connection through to 127.0.0.2"
    assert "AllowTcpForwarding" in error.hint


@pytest.mark.parametrize(
    ("pinned", "kind", "says"),
    [
        # The host's own key is checked, whatever the way to it is.
        (["127.0.0.1"], HostKeyUnknown, "its host key is unknown: [127.0.0.2]"),
        (["127.0.0.1", "!127.0.0.2"], HostKeyChanged, "its host key is not the one in"),
        # This host's key is known, but that of the jump host is not.
        (["127.0.0.2"], HostUnreachable, "cannot be reached through host1: its host key is unk"),
        (["!127.0.0.1", "127.0.0.2"], HostKeyChanged, "cannot be reached through host1: its host"),
    ],
)
def test_both_hosts_are_verified(ssh_server, tmp_path, pinned, kind, says):
    keygen(tmp_path / "other")
    other = (tmp_path / "other.pub").read_text()
    right = ssh_server.known_hosts.read_text().split(" ", 1)[1]
    lines = [
        f"[{name.lstrip('!')}]:{ssh_server.port} {other if name.startswith('!') else right}"
        for name in pinned
    ]
    (tmp_path / "known_hosts").write_text("".join(lines))
    identity = Identity((load_key(ssh_server.key),))
    host_keys = KnownHostKeys([tmp_path / "known_hosts"])
    for attempt in (Connections(identity, host_keys).session, None):
        with pytest.raises(kind) as caught:
            if attempt:
                attempt(behind(ssh_server))
            else:
                connect(behind(ssh_server), identity, host_keys)
        assert type(caught.value) is kind
        assert caught.value.host == "host2"
        assert caught.value.message.startswith(says)


def test_a_key_that_the_jump_host_refuses(ssh_server, tmp_path):
    keygen(tmp_path / "stranger")
    identity = Identity((load_key(tmp_path / "stranger"),))
    with pytest.raises(KeyRefused) as caught:
        connect(behind(ssh_server), identity, KnownHostKeys([ssh_server.known_hosts]))
    assert caught.value.message.startswith("cannot be reached through host1: refused every key")


def test_without_the_jump_host_its_hosts_are_gone_and_come_back(ssh_server):
    source = "echo $SSH_CONNECTION"
    with ssh_server.connections() as connections:
        first = connections.run(behind(ssh_server), source).stdout
        connections.forget(ssh_server.target(1))
        again = connections.run(behind(ssh_server), source).stdout
        assert again != first
        connections.forget(behind(ssh_server))
        assert connections.run(behind(ssh_server), source).stdout != again


def test_a_jump_host_that_goes_ends_what_runs_behind_it(ssh_server):
    with ssh_server.connections() as connections:
        ended: list[object] = []

        def run() -> None:
            result = fan_out(
                lambda target: connections.run(target, "echo in; exec sleep 60", sink=heard),
                [behind(ssh_server)],
            )
            ended.append(result.outcomes[0].error)

        began = threading.Event()

        def heard(stream: str, chunk: bytes) -> None:
            began.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert began.wait(20)
        connections.forget(ssh_server.target(1))
        thread.join(20)
        assert [type(error).__name__ for error in ended] == ["ConnectionLost"]


def test_a_connection_of_its_own_leaves_nothing_open(ssh_server):
    def transports() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if isinstance(each, paramiko.Transport)}

    before = transports()
    identity, pins = Identity((load_key(ssh_server.key),)), KnownHostKeys([ssh_server.known_hosts])
    session = connect(behind(ssh_server), identity, pins)
    assert session.run("echo in").stdout == "in\n"
    session.close()
    with VerifiedConnection(behind(ssh_server), identity, pins) as opened:
        assert opened.run("echo in", hide=True, in_stream=False).stdout == "in\n"
    with pytest.raises(HostUnreachable):
        connect(behind(ssh_server, port=free_port()), identity, pins)
    # Connections of other tests may end meanwhile.
    wait_until(lambda: transports() <= before, "all connections to be closed")


def test_the_same_host_with_and_without_jump_are_two_ways(ssh_server):
    direct = ssh_server.target(2)
    assert direct != behind(ssh_server)
    assert replace(behind(ssh_server), jump=None) == direct


def test_the_jump_hosts_connection_ends_under_a_login(ssh_server):
    """The hosts behind it share one new connection to it, and continue."""
    with ssh_server.connections() as connections:
        first = connections.session(ssh_server.target(1))
        open_tunnel = first.client.get_transport().open_tunnel
        before = ssh_server.logins

        def dies(*arguments):
            first.client.close()
            return open_tunnel(*arguments)

        first.client.get_transport().open_tunnel = dies
        result = connections.run_all([behind(ssh_server, n) for n in range(2, 8)], "echo in")
        assert [value.stdout for value in result.values] == ["in\n"] * 6
        wait_until(lambda: ssh_server.logins == before + 1 + 6, "one login more")


def test_a_host_that_failed_is_not_asked_again_where_told_so(ssh_server):
    with silent_listener() as listener, ssh_server.connections(connect_timeout_s=0.3) as given:
        given.ask_again = False
        silent = ssh_server.target(1, port=listener.getsockname()[1])
        said = unreachable(given, silent).message
        assert unreachable(given, silent).message == said
        listener.settimeout(0)
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()
