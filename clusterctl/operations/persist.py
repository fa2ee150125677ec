"""Connections that outlive a call: `runclust --persist`.

The first call forks a background process, the keeper, which logs in and runs the commands. A later
call reaches it through a Unix socket and needs no SSH library itself. OpenSSH's ControlMaster takes
as long for a second call, but it needs a process for each host, logs in half as fast, and does not
end a command when its client is interrupted.

There is one keeper for each hosts file and way to log in. It ends when it has been idle for the
time that its last call gave, or when a file changes that its logins depend on.

Client and keeper exchange frames: a line of JSON with the `size` of the data, then the data. The
client sends one request and then its raw standard input. The keeper answers with the hosts, or with
`outdated` or an error, then sends output and outcomes. A client that is interrupted hangs up, and
asks on another connection what is left of its commands on the hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import clusterctl
from clusterctl.domain import errors
from clusterctl.domain.errors import ClusterctlError, ConnectionLost, UsageError
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.transport.ending import interruption

if TYPE_CHECKING:
    from clusterctl.operations.hosts_access import HostsAccess
    from clusterctl.transport.stdin import Stdin

# How long a keeper may take to greet a client. One that does not is left alone, and another one is
# started. Also how long a new keeper waits for its first call.
GREETING_S = 10.0
# A kept connection that takes no command within this time is replaced by a new one.
DOUBT_AFTER_S = 5.0
# A keeper may be just ending, or find that a file has changed. The call then tries the next keeper.
TRIES = 5
WITHOUT = "run it without --persist"
# Bytes for one read of standard input.
CHUNK = 1 << 16
# The JSON head and the data of one message.
Frame = tuple[dict[str, Any], bytes]


@dataclass(frozen=True)
class Login:
    """The arguments of `open_hosts` that decide how hosts are reached, and the ssh-agent's socket.

    Calls with equal logins share a keeper.
    """

    hosts: str
    user: str | None
    key: str | None
    home: str
    ssh_folder: str
    agent: str = ""

    @property
    def socket_name(self) -> str:
        """The file name of the keeper's socket. Another version of clusterctl gets another one."""
        import hashlib

        versions = [clusterctl.__version__, sys.version, __file__]
        whole = json.dumps([*versions, asdict(self)]).encode(errors="surrogateescape")
        return hashlib.sha256(whole).hexdigest()[:20]


def login_of(hosts: Path, user: str | None, key: Path | None, home: Path) -> Login:
    """Return the login that open_hosts would make with these arguments in this environment.

    Raises UsageError if `hosts` is no regular file, or on another system than Linux.
    """
    if not sys.platform.startswith("linux"):
        # The keeper identifies users by SO_PEERCRED and finds open descriptors in /proc/self/fd.
        raise UsageError("--persist needs Linux on this machine", WITHOUT)
    if hosts.exists() and not hosts.is_file():
        raise UsageError(f"{hosts} is no file", "--persist needs a hosts file that stays")
    return Login(
        str(hosts.absolute()),
        user,
        str(key.absolute()) if key else None,
        str(home.absolute()),
        str(Path.home() / ".ssh"),
        os.environ.get("SSH_AUTH_SOCK", ""),
    )


class KeeperClient:
    """Runs commands through the keeper of a login, with the `run_all` of Connections.

    `persist_s` is how long the keeper stays after this call. `stdin` is the file descriptor whose
    content every host gets as standard input; None for no input.
    """

    def __init__(
        self, login: Login, persist_s: float, connect_timeout_s: float, stdin: int | None
    ) -> None:
        self._login = login
        self._persist_s = persist_s
        self._connect_timeout_s = connect_timeout_s
        self._stdin = stdin

    def run_all(
        self,
        targets: Sequence[Any],
        command: str,
        *,
        timeout_s: float | None = None,
        stdin: Stdin | bytes = b"",
        sink: Callable[[str, str, bytes], None] | None = None,
        max_workers: int = 1,
        on_outcome: Callable[[HostOutcome[CommandResult]], None] | None = None,
        as_user: bool = True,
    ) -> FanoutResult[CommandResult]:
        """Run the command on all hosts of the login. Return one outcome per host.

        `targets`, `stdin` and `as_user` are ignored: the login and the constructor give the first
        two, and the command runs in the login shell. If this call
        ends early, by Ctrl-C or because the reader of its output went away, the keeper ends the
        commands on the hosts. The KeyboardInterrupt names what is left there. Raises UsageError,
        ClusterctlError if no keeper can be reached, and what Connections.run_all raises.
        """
        request = {
            "command": command,
            "timeout_s": timeout_s,
            "live": sink is not None,
            "max_workers": max_workers,
            "stdin": self._stdin is not None,
            "persist_s": self._persist_s,
            "connect_timeout_s": self._connect_timeout_s,
            "call": os.urandom(12).hex(),
        }
        try:
            return self._run_all(request, sink, on_outcome)
        except KeyboardInterrupt:
            left = _left_of(self._login, {"left_of": request["call"], "persist_s": self._persist_s})
            raise interruption(left) from None

    def _run_all(
        self,
        request: dict[str, Any],
        sink: Callable[[str, str, bytes], None] | None,
        on_outcome: Callable[[HostOutcome[CommandResult]], None] | None,
    ) -> FanoutResult[CommandResult]:
        outcomes: dict[str, HostOutcome[CommandResult]] = {}
        with _accepted(self._login, request) as (sock, file, hosts):
            threading.Thread(target=_send_stdin, args=(sock, self._stdin), daemon=True).start()
            for head, data in iter(lambda: _receive(file), None):
                if "stream" in head:
                    assert sink
                    sink(head["host"], head["stream"], data)
                    continue
                outcome = _outcome(head)
                outcomes[outcome.host] = outcome
                if on_outcome:
                    on_outcome(outcome)
        for host in hosts:
            if host not in outcomes:
                lost = ConnectionLost(host, "the process that keeps its connection has ended")
                outcomes[host] = HostOutcome(host, error=lost)
        return FanoutResult(tuple(outcomes[host] for host in hosts))


def _left_of(login: Login, request: dict[str, Any]) -> dict[str, str]:
    """Return, by host, what is left of the commands of an interrupted call, if anything."""
    sock = _greeted(_folder() / login.socket_name)
    if sock is None:
        return {"all hosts": "the commands may still run: no process keeps connections any more"}
    with sock, sock.makefile("rwb") as file:
        _send(cast("BinaryIO", file), request)
        answer = _receive(cast("BinaryIO", file))
    return answer[0]["left"] if answer else {}


@contextlib.contextmanager
def _accepted(
    login: Login, request: dict[str, Any]
) -> Iterator[tuple[socket.socket, BinaryIO, list[str]]]:
    """Yield the socket and file of a keeper that has accepted the request, and its hosts.

    Raises what open_hosts raises, and ClusterctlError if every keeper ends at once.
    """
    for _ in range(TRIES):
        with _keeper(login) as sock, sock.makefile("rwb") as file:
            _send(cast("BinaryIO", file), request)
            answer = _receive(cast("BinaryIO", file))
            if answer is None or "outdated" in answer[0]:
                continue  # the keeper is ending and has run nothing
            if "error" in answer[0]:
                raise _error(answer[0])
            yield sock, cast("BinaryIO", file), answer[0]["hosts"]
            return
    raise ClusterctlError("the process that keeps connections ends at once", WITHOUT)


def _keeper(login: Login) -> socket.socket:
    """Return a connection to the login's keeper. Starts a keeper if none answers."""
    folder = _folder()
    path = folder / login.socket_name
    with _locked(folder):
        sock = _greeted(path)
        if sock is None:
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(64)
            _fork(listener, login)
            listener.close()
            sock = _greeted(path)
    if sock is None:
        raise ClusterctlError(f"no process came to listen at {path}", WITHOUT)
    return sock


def _greeted(path: Path) -> socket.socket | None:
    """Return a connection to the keeper at `path` that has greeted; None if none does in time."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(GREETING_S)
    try:
        sock.connect(str(path))
        if _is_own(sock) and sock.recv(1):
            sock.settimeout(None)
            return sock
    except OSError:  # the keeper was killed and left its socket, or it hangs
        pass
    sock.close()
    return None


def _is_own(sock: socket.socket) -> bool:
    """Return whether the process at the other end runs as this user."""
    # struct ucred: process id, user id, group id.
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _folder() -> Path:
    """Return the folder of the sockets, creating it if needed.

    Raises UsageError if others can enter it: whoever opens a socket can use the connections.
    """
    given = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    if given.is_dir() and given.stat().st_uid == os.getuid():
        folder = given / "clusterctl"
    else:
        folder = Path(f"/tmp/clusterctl-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{folder} is not a folder of yours alone",
            "remove it, or name another place in XDG_RUNTIME_DIR, or run it without --persist",
        )
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock under which one call at a time finds or starts a keeper, and keepers end."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fork(listener: socket.socket, login: Login) -> None:
    """Start a keeper as a process of its own that keeps none of the caller's files open."""
    if os.fork():
        return
    status = 1
    try:
        import signal

        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # A program that reads the caller's output, as in `runclust ... | less`, waits until all
        # processes have closed it, so the keeper must not keep it open.
        nothing = os.open(os.devnull, os.O_RDWR)
        kept = os.dup(listener.fileno())
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in (0, 1, 2, kept):
                with contextlib.suppress(OSError):
                    os.close(int(name))
        listener.detach()
        os.chdir("/")
        _Keeper(socket.socket(fileno=kept), login).serve()
        status = 0
    finally:
        os._exit(status)


@dataclass
class _Call:
    """A call that the keeper serves, and what is left of its commands after it hung up."""

    left: dict[str, str] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)


class _Keeper:
    """Serves the calls of one login until it is idle for long enough or its files change."""

    def __init__(self, listener: socket.socket, login: Login) -> None:
        self._listener = listener
        self._login = login
        self._path = Path(listener.getsockname())
        self._inode = self._path.stat().st_ino
        self._access: HostsAccess | None = None
        # The state of the files that the logins depend on, as of the first call.
        self._marks: list[object] = []
        # Guards all that follows, and the access.
        self._changing = threading.Lock()
        self._calls = 0
        # When the keeper ends if no call runs; seconds of the monotonic clock.
        self._until = time.monotonic() + GREETING_S
        self._served: dict[str, _Call] = {}
        # True once the keeper takes no further call.
        self._over = False

    def serve(self) -> None:
        """Accept and serve calls until the keeper may end."""
        while True:
            self._listener.settimeout(max(0.0, min(1.0, self._until - time.monotonic())))
            try:
                self._take(self._listener.accept()[0])
            except (TimeoutError, BlockingIOError):
                if self._may_end():
                    return

    def _take(self, sock: socket.socket) -> None:
        if _is_own(sock):
            with contextlib.suppress(OSError):
                sock.sendall(b"\n")
            with self._changing:
                self._calls += 1
            threading.Thread(target=self._serve_one, args=(sock,), daemon=True).start()

    def _may_end(self) -> bool:
        """Return whether the keeper can end. Deletes its socket in that case."""
        with self._changing:
            if self._calls or not (self._over or time.monotonic() >= self._until):
                return False
        if self._over:
            return True
        with _locked(self._path.parent):
            # Under the lock no client can connect. One that did just before it is served.
            self._listener.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                self._take(self._listener.accept()[0])
                return False
            # A keeper that hung has been replaced: the socket at its path is another keeper's.
            if self._path.exists() and self._path.stat().st_ino == self._inode:
                self._path.unlink()
            return True

    def _serve_one(self, sock: socket.socket) -> None:
        """Serve one client, in a thread of its own."""
        persist_s = 0.0
        try:
            with sock, sock.makefile("rwb") as file:
                call = _receive(cast("BinaryIO", file))
                if call:
                    persist_s = call[0]["persist_s"]
                    self._answer(sock, cast("BinaryIO", file), call[0])
        except (OSError, ValueError):  # its client went away
            pass
        finally:
            with self._changing:
                self._calls -= 1
                self._until = time.monotonic() + persist_s

    def _answer(self, sock: socket.socket, file: BinaryIO, request: dict[str, Any]) -> None:
        if "left_of" in request:
            interrupted = self._served.get(request["left_of"])
            if interrupted:
                interrupted.ended.wait()
                self._served.pop(request["left_of"], None)
            _send(file, {"left": interrupted.left if interrupted else {}})
            return
        call = self._served[request["call"]] = _Call()
        try:
            self._run(sock, file, request, call)
        finally:
            call.ended.set()
            if not call.left:
                self._served.pop(request["call"], None)

    def _run(
        self, sock: socket.socket, file: BinaryIO, call: dict[str, Any], served: _Call
    ) -> None:
        """Run a client's command on all hosts, and send it the output and outcomes."""
        try:
            access = self._open(call["max_workers"])
        except ClusterctlError as error:
            # A keeper without hosts is useless. The next call starts another one.
            self._end()
            _send(file, _error_data(error))
            return
        if access is None:
            _send(file, {"outdated": True})
            return
        from clusterctl.transport.stdin import StdinSource

        connections = access.connections.with_own_commands()
        connections.connect_timeout_s = call["connect_timeout_s"]
        _send(file, {"hosts": [target.host for target in access.targets]})
        ours, theirs = os.pipe()
        source = StdinSource(ours) if call["stdin"] else b""

        def interrupt() -> None:
            served.left = connections.interrupt(for_good=True)

        watching = threading.Thread(
            target=_watch, args=(file, sock, theirs, interrupt), daemon=True
        )
        watching.start()
        sending = threading.Lock()

        def send(head: dict[str, Any], data: bytes = b"") -> None:
            with sending:
                _send(file, head, data)

        def sink(host: str, stream: str, chunk: bytes) -> None:
            send({"host": host, "stream": stream}, chunk)

        try:
            connections.run_all(
                access.targets,
                call["command"],
                timeout_s=call["timeout_s"],
                stdin=source,
                sink=sink if call["live"] else None,
                max_workers=call["max_workers"],
                on_outcome=lambda outcome: send(_outcome_data(outcome)),
                as_user=True,
            )
        finally:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            watching.join()
            os.close(ours)

    def _open(self, at_once: int) -> HostsAccess | None:
        """Return the access, which the first call opens; None if a file that it uses has changed.

        In that case the keeper takes no further call. Raises what open_hosts raises.
        """
        with self._changing:
            if self._over or (self._access and self._marks != _marks(self._access.sources)):
                self._leave()
                return None
            if self._access is None:
                from clusterctl.operations.hosts_access import open_hosts

                login = self._login
                access = open_hosts(
                    Path(login.hosts),
                    user=login.user,
                    key=Path(login.key) if login.key else None,
                    home=Path(login.home),
                    ssh_folder=Path(login.ssh_folder),
                    at_once=at_once,
                )
                access.connections.doubt_after_s = DOUBT_AFTER_S
                self._marks = _marks(access.sources)
                self._access = access
            return self._access

    def _end(self) -> None:
        """Take no further call."""
        with self._changing:
            self._leave()

    def _leave(self) -> None:
        """Delete the socket, so that clients find no keeper here. Running calls go on.

        The caller holds `_changing`.
        """
        if not self._over:
            self._over = True
            self._path.unlink(missing_ok=True)


def _marks(paths: Sequence[Path]) -> list[object]:
    """Return values that differ once a file or folder has changed; None for one that is absent."""
    marks: list[object] = []
    for path in paths:
        try:
            found = path.stat()
            marks.append((found.st_ino, found.st_mtime_ns, found.st_size))
        except OSError:
            marks.append(None)
    return marks


def _watch(file: BinaryIO, sock: socket.socket, stdin: int, interrupt: Callable[[], None]) -> None:
    """Pass the client's standard input on; when the client has gone, end the running commands."""
    with contextlib.suppress(OSError, ValueError):
        while True:
            chunk = file.read1(CHUNK)  # type: ignore[attr-defined]
            if not chunk:
                break
            os.write(stdin, chunk)
    os.close(stdin)
    # End of input alone is no hang-up. POLLHUP, which needs no registration, comes when the client
    # has closed both directions, or when `_run` has shut the socket down.
    hung_up = select.poll()
    hung_up.register(sock, 0)
    hung_up.poll()
    interrupt()


def _send_stdin(sock: socket.socket, descriptor: int | None) -> None:
    """Send all of the input to the keeper, then its end."""
    with contextlib.suppress(OSError):
        while descriptor is not None:
            chunk = os.read(descriptor, CHUNK)
            if not chunk:
                break
            sock.sendall(chunk)
        sock.shutdown(socket.SHUT_WR)


def _send(file: BinaryIO, head: dict[str, Any], data: bytes = b"") -> None:
    """Write one frame."""
    file.write(json.dumps({**head, "size": len(data)}).encode() + b"\n" + data)
    file.flush()


def _receive(file: BinaryIO) -> Frame | None:
    """Read one frame; None at the end of the connection."""
    try:
        line = file.readline()
        if not line.endswith(b"\n"):
            return None
        head = json.loads(line)
        data = file.read(head.pop("size"))
    except ConnectionError:
        return None
    return head, data


def _outcome_data(outcome: HostOutcome[CommandResult]) -> dict[str, Any]:
    if outcome.error:
        return {"host": outcome.host, **_error_data(outcome.error)}
    return {"host": outcome.host, "value": asdict(cast("CommandResult", outcome.value))}


def _outcome(head: dict[str, Any]) -> HostOutcome[CommandResult]:
    if "error" in head:
        return HostOutcome(head["host"], error=_error(head))
    return HostOutcome(head["host"], value=CommandResult(**head["value"]))


def _error_data(error: ClusterctlError) -> dict[str, Any]:
    """Return an error as JSON data, under the nearest class that domain/errors.py has."""
    known = next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
    return {"error": known, "fields": vars(error)}


def _error(head: dict[str, Any]) -> ClusterctlError:
    """Return the error that `_error_data` described."""
    # The classes' constructors have different arguments; the fields are all that they would set.
    kind = getattr(errors, head["error"])
    error = cast("ClusterctlError", kind.__new__(kind, head["fields"]["message"]))
    vars(error).update(head["fields"])
    return error
