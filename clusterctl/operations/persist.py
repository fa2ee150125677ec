"""Connections that outlive a call: `runclust --persist`.

The first call forks a keeper, which logs in and runs the commands; a later call finds it by a Unix
socket and needs no SSH library itself. OpenSSH's ControlMaster was measured beside it and takes as
long for a second call, but needs a process for each host, logs in half as fast, and does not end a
command when its client is interrupted.

There is a keeper for each hosts file and way to log in. It ends when it was not used for so long as
its last call said, and as soon as a file changes that its logins rest on.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import clusterctl
from clusterctl.domain import errors
from clusterctl.domain.errors import ClusterctlError, ConnectionLost, UsageError
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome

if TYPE_CHECKING:
    from clusterctl.operations.hosts_access import HostsAccess
    from clusterctl.transport.stdin import Stdin

# So long a keeper may take to say that it is there; one that does not is left alone.
GREETING_S = 10.0
# A kept connection takes a command within this time, or is made anew.
DOUBT_AFTER_S = 5.0
# A keeper may end in the moment that it is asked, or see that files have changed.
TRIES = 5
WITHOUT = "run it without --persist"
CHUNK = 1 << 16
Frame = tuple[dict[str, Any], bytes]


@dataclass(frozen=True)
class Login:
    """What decides how the hosts of a file are reached; see open_hosts."""

    hosts: str
    user: str | None
    key: str | None
    home: str
    ssh_folder: str
    agent: str = ""

    @property
    def socket_name(self) -> str:
        import hashlib

        versions = [clusterctl.__version__, sys.version, __file__]
        whole = json.dumps([*versions, asdict(self)]).encode(errors="surrogateescape")
        return hashlib.sha256(whole).hexdigest()[:20]


def login_of(hosts: Path, user: str | None, key: Path | None, home: Path) -> Login:
    """The login that open_hosts would make from here. Raises UsageError for a pipe, off Linux."""
    if not sys.platform.startswith("linux"):
        # The keeper tells users apart by SO_PEERCRED, and its caller's files by /proc.
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


class KeptConnections:
    """The hosts of a login through its keeper, with Connections' `run_all`.

    `stdin` is the descriptor that every host gets the content of, None for nothing.
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
    ) -> FanoutResult[CommandResult]:
        """The command on all hosts of the login. Raises UsageError, and as Connections.run_all.

        When this call ends early, by Ctrl-C or a reader that went away, the keeper ends the
        commands on the hosts.
        """
        request = {
            "command": command,
            "timeout_s": timeout_s,
            "live": sink is not None,
            "max_workers": max_workers,
            "stdin": self._stdin is not None,
            "persist_s": self._persist_s,
            "connect_timeout_s": self._connect_timeout_s,
        }
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


@contextlib.contextmanager
def _accepted(
    login: Login, request: dict[str, Any]
) -> Iterator[tuple[socket.socket, BinaryIO, list[str]]]:
    """A keeper's connection after it took the request, and its hosts.

    Raises what open_hosts does, ClusterctlError if no keeper lives.
    """
    for _ in range(TRIES):
        with _keeper(login) as sock, sock.makefile("rwb") as file:
            _send(cast("BinaryIO", file), request)
            answer = _receive(cast("BinaryIO", file))
            if answer is None or "outdated" in answer[0]:
                continue  # it ended in this moment: nothing ran
            if "error" in answer[0]:
                raise _error(answer[0])
            yield sock, cast("BinaryIO", file), answer[0]["hosts"]
            return
    raise ClusterctlError("the process that keeps connections ends at once", WITHOUT)


def _keeper(login: Login) -> socket.socket:
    """A connection to the login's keeper, started if there is none that answers."""
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
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(GREETING_S)
    try:
        sock.connect(str(path))
        if _is_own(sock) and sock.recv(1):
            sock.settimeout(None)
            return sock
    except OSError:  # a socket that its keeper left behind, or one that stands still
        pass
    sock.close()
    return None


def _is_own(sock: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    _, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _folder() -> Path:
    """The sockets' folder, which is the user's alone. Raises UsageError."""
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
    """One call at a time starts a keeper, and none while a keeper ends."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fork(listener: socket.socket, login: Login) -> None:
    """The keeper as a process of its own, which holds none of the caller's files."""
    if os.fork():
        return
    status = 1
    try:
        import signal

        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # Whoever waits for the end of the caller's output must not wait for the keeper.
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


class _Keeper:
    """Serves the calls of one login until it is not needed."""

    def __init__(self, listener: socket.socket, login: Login) -> None:
        self._listener = listener
        self._login = login
        self._path = Path(listener.getsockname())
        self._access: HostsAccess | None = None
        self._marks: list[object] = []
        self._changing = threading.Lock()
        self._calls = 0
        self._until = time.monotonic() + GREETING_S
        self._over = False

    def serve(self) -> None:
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
        with self._changing:
            if self._calls or not (self._over or time.monotonic() >= self._until):
                return False
        if self._over:
            return True
        with _locked(self._path.parent):
            # Nobody can come now; who came in the last moment is served.
            self._listener.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                self._take(self._listener.accept()[0])
                return False
            self._path.unlink(missing_ok=True)
            return True

    def _serve_one(self, sock: socket.socket) -> None:
        persist_s = 0.0
        try:
            with sock, sock.makefile("rwb") as file:
                call = _receive(cast("BinaryIO", file))
                if call:
                    persist_s = call[0]["persist_s"]
                    self._run(sock, cast("BinaryIO", file), call[0])
        except (OSError, ValueError):  # its client went away
            pass
        finally:
            with self._changing:
                self._calls -= 1
                self._until = time.monotonic() + persist_s

    def _run(self, sock: socket.socket, file: BinaryIO, call: dict[str, Any]) -> None:
        try:
            access = self._open(call["max_workers"])
        except ClusterctlError as error:
            self._end()
            _send(file, _error_data(error))
            return
        if access is None:
            _send(file, {"outdated": True})
            return
        from clusterctl.transport.stdin import StdinSource

        connections = access.connections.apart()
        connections.connect_timeout_s = call["connect_timeout_s"]
        _send(file, {"hosts": [target.host for target in access.targets]})
        ours, theirs = os.pipe()
        source = StdinSource(ours) if call["stdin"] else b""
        watching = threading.Thread(
            target=_watch, args=(file, sock, theirs, connections.interrupt), daemon=True
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
            )
        finally:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            watching.join()
            os.close(ours)

    def _open(self, at_once: int) -> HostsAccess | None:
        """The access, opened by the first call; None if it rests on files that have changed."""
        with self._changing:
            agent = [Path(self._login.agent)] if self._login.agent else []
            if self._over or (
                self._access and self._marks != _marks([*self._access.sources, *agent])
            ):
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
                self._marks = _marks([*access.sources, *agent])
                self._access = access
            return self._access

    def _end(self) -> None:
        with self._changing:
            self._leave()

    def _leave(self) -> None:
        """Be found no more. Calls that run go on."""
        if not self._over:
            self._over = True
            self._path.unlink(missing_ok=True)


def _marks(paths: Sequence[Path]) -> list[object]:
    """What tells whether files have changed since."""
    marks: list[object] = []
    for path in paths:
        try:
            found = path.stat()
            marks.append((found.st_ino, found.st_mtime_ns, found.st_size))
        except OSError:
            marks.append(None)
    return marks


def _watch(
    file: BinaryIO, sock: socket.socket, stdin: int, interrupt: Callable[[bool], None]
) -> None:
    """Pass on the standard input; when the client has gone, end what runs."""
    with contextlib.suppress(OSError, ValueError):
        while True:
            chunk = file.read1(CHUNK)  # type: ignore[attr-defined]
            if not chunk:
                break
            os.write(stdin, chunk)
    os.close(stdin)
    hung_up = select.poll()
    hung_up.register(sock, 0)
    hung_up.poll()
    interrupt(True)


def _send_stdin(sock: socket.socket, descriptor: int | None) -> None:
    with contextlib.suppress(OSError):
        while descriptor is not None:
            chunk = os.read(descriptor, CHUNK)
            if not chunk:
                break
            sock.sendall(chunk)
        sock.shutdown(socket.SHUT_WR)


def _send(file: BinaryIO, head: dict[str, Any], data: bytes = b"") -> None:
    file.write(json.dumps({**head, "size": len(data)}).encode() + b"\n" + data)
    file.flush()


def _receive(file: BinaryIO) -> Frame | None:
    """A frame; None at the end."""
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
    known = next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
    return {"error": known, "fields": vars(error)}


def _error(head: dict[str, Any]) -> ClusterctlError:
    kind = getattr(errors, head["error"])
    error = cast("ClusterctlError", kind.__new__(kind, head["fields"]["message"]))
    vars(error).update(head["fields"])
    return error
