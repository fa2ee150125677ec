"""Execution of one command on an open SSH channel: its output, its end and its deadline; which
processes it is on its host, ending them, and what is left of them.

sshd sends signals to a command for users other than root only, without saying whether it did, and
closing a channel ends nothing. So each command reports at its start the process that it runs as
(node/framed.py), and a second channel of the same connection ends it: SIGTERM to all processes of
its session, after GRACE_S SIGKILL to those that remain. sshd makes a session for each command.

Processes that have left the session, such as daemons, are not ended. They are found by the variable
SSH_CONNECTION in their environment, and reported.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

import paramiko

from clusterctl.domain.errors import (
    LOGIN_FILES,
    CommandNotRun,
    CommandTimeout,
    ConnectionLost,
    Interrupted,
)
from clusterctl.domain.results import CommandResult
from clusterctl.node.framed import FramedCommand
from clusterctl.transport.stdin import Stdin
from clusterctl.transport.wire import send_signal

# Seconds that a command has to end after SIGTERM.
GRACE_S = 2.0
# Seconds in which a host must have ended a command and have reported it.
WITHIN_S = GRACE_S + 6.0
# Processes that a message names.
MOST_NAMED = 4


@dataclass(frozen=True)
class Ending:
    """What is known of a command after it was ended.

    `left` names the processes that still run. `unknown` is empty, or the reason why it is not known
    whether any do.
    """

    left: tuple[str, ...] = ()
    unknown: str = ""

    def __str__(self) -> str:
        """Return the message about it; empty if nothing is left."""
        if self.unknown:
            return f"it may still run there: {self.unknown}"
        if not self.left:
            return ""
        more = len(self.left) - MOST_NAMED
        names = ", ".join(self.left[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"still running there: {names}"


# Arguments: the process id of the leader of the command's session, and the number of tenths of a
# second between the signals. It uses what any sh has. A process is PID/START,
# so that another one with a used id is not taken for it. The number of a session is not used again
# while a process is in it.
_SCRIPT = r"""
leader=$1 grace=$2

read_stat() {
    line=
    { IFS= read -r line </proc/$1/stat; } 2>/dev/null || return 1
    case $line in *') '*) ;; *) return 1 ;; esac
    name=${line#*\(}
    name=${name%\) *}
    set -f
    set -- ${line##*) }
    set +f
    state=$1 parent=$2 its_session=$4 start=${20}
    # A process goes on without its main thread as long as it has others.
    case $state in Z | X) [ "${18}" -gt 1 ] || return 1 ;; esac
}

pause() { sleep 0.1 2>/dev/null || sleep 1; }

# The processes of the command's session, and when the first of them started.
find_session() {
    found=
    if read_stat "$leader"; then
        # Else its number is that of another process now, or this server makes no sessions.
        [ "$parent" = "$sshd" ] && [ "$its_session" = "$leader" ] || return
        found=$leader/$start
        began=$start
    fi
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        [ "$pid" != "$leader" ] && read_stat "$pid" && [ "$its_session" = "$leader" ] || continue
        found="$found $pid/$start"
        [ "$start" -ge "${began:-$start}" ] || began=$start
    done
}

send() {
    for one in $found; do
        kill "-$1" "${one%/*}" 2>/dev/null
    done
}

# Wait until none is left, at most $1 tenths of a second. Processes that may not be signalled are
# not waited for.
wait_for_all() {
    count=0
    while [ "$count" -lt "$1" ]; do
        waiting=
        for one in $found; do
            pid=${one%/*}
            read_stat "$pid" && [ "$start" = "${one#*/}" ] && kill -0 "$pid" 2>/dev/null &&
                waiting=1
        done
        [ "$waiting" ] || return
        pause
        count=$((count + 1))
    done
}

# The processes of this connection that are in no session of a command that it runs now.
find_others() {
    [ "$began" ] || return
    for file in $(grep -lzx "SSH_CONNECTION=$SSH_CONNECTION" /proc/[0-9]*/environ 2>/dev/null); do
        pid=${file#/proc/}
        pid=${pid%/environ}
        read_stat "$pid" || continue
        [ "$start" -ge "$began" ] || continue
        its_name=$name
        # This program's own, such as its pauses, have its session.
        [ "$its_session" != "$leader" ] && [ "$its_session" != "$own" ] || continue
        if read_stat "$its_session" && [ "$parent" = "$sshd" ]; then continue; fi
        echo "left $pid $its_name"
    done
}

# A host without /proc: the process group, of which zombies are a part until they are waited for.
end_group() {
    for signal in TERM KILL; do
        kill "-$signal" "-$leader" 2>/dev/null
        count=0
        while kill -0 "-$leader" 2>/dev/null && [ "$count" -lt "$grace" ]; do
            pause
            count=$((count + 1))
        done
    done
    kill -0 "-$leader" 2>/dev/null && echo "left $leader process group"
    echo "done"
}

if ! read_stat $$; then
    end_group
    exit
fi
began=
own=$its_session
read_stat "$own" && sshd=$parent
find_session
if [ -z "$found" ] && read_stat "$leader"; then exit; fi
send TERM
wait_for_all "$grace"
find_session
if [ "$found" ]; then
    send KILL
    wait_for_all 10
    find_session
    for one in $found; do
        read_stat "${one%/*}" && echo "left ${one%/*} $name"
    done
fi
find_others
echo "done"
"""


def ending_script(process: int) -> str:
    """Return the script for a second channel that ends the command of this process."""
    return f"set -- {process} {round(GRACE_S * 10)}\n{_SCRIPT}"


def parse_ending(output: str) -> Ending:
    """Return what the script found."""
    lines = [line.split(" ", 2) for line in output.splitlines()]
    if ["done"] not in lines:
        return Ending(unknown="the host did not report its end")
    return Ending(tuple(f"{name} (pid {pid})" for _, pid, name in lines[:-1]))


def interruption(left: Mapping[str, str]) -> KeyboardInterrupt:
    """Return the exception for a Ctrl-C. Its text is empty, or names what is `left` on hosts."""
    if not left:
        return KeyboardInterrupt()
    named = "".join(f"\n{host}: {text}" for host, text in left.items())
    return Interrupted(f"interrupted; not every command has ended:{named}")


# Called with the stream's name ("stdout" or "stderr") and a chunk of output.
Sink = Callable[[str, bytes], None]


class CommandOptions(TypedDict, total=False):
    """How a command is run on any host; see Session.run."""

    timeout_s: float | None
    stdin: Stdin | bytes
    sink: Sink | None


# Bytes of one read.
CHUNK = 1 << 16
# paramiko wakes a reader by one pipe for stdout and stderr. If one comes just as the other has been
# read, the wake-up is lost (`pipe.OrPipe`), and with it all output until more comes.
POLL_EVERY_S = 0.5
# Seconds for the rest of stderr once a command has reported its exit status.
HELD_S = 1.0
# Bytes of each stream that are kept for the result.
KEPT_BYTES = 16 << 20


@dataclass
class _OutputBuffer:
    """The first KEPT_BYTES of a stream. The rest is read and dropped."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    truncated: bool = False

    def add(self, chunk: bytes) -> None:
        room = KEPT_BYTES - self.size
        self.truncated = self.truncated or len(chunk) > room
        if room > 0:
            self.chunks.append(chunk[:room])
            self.size += len(chunk[:room])

    def content(self) -> bytes:
        return b"".join(self.chunks)

    def text(self) -> str:
        return self.content().decode(errors="replace")


@dataclass
class Exchange:
    """A command on its channel, and its output so far.

    `ending` is set once the command has been ended early.
    """

    host: str
    command: str
    channel: paramiko.Channel
    frame: FramedCommand
    sink: Sink | None = None
    stdout: _OutputBuffer = field(default_factory=_OutputBuffer)
    stderr: _OutputBuffer = field(default_factory=_OutputBuffer)
    interrupted: bool = False
    # The error of the sink or of the input, for example a closed pipe at this program's own stdout.
    # It is not an error of the host.
    own_error: BaseException | None = None
    ending: Ending | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sent: bool = False
    _ending_began: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)

    def send(self) -> None:
        """Send the command to the host. Raise ConnectionLost if it was interrupted before."""
        with self._lock:
            if self.interrupted:
                raise ConnectionLost(self.host, "interrupted before the command ran")
            self._sent = True
        # Arguments may have bytes that are not UTF-8, such as file names. Python holds them as
        # surrogates; this restores the original bytes.
        self.channel.exec_command(self.frame.line.encode(errors="surrogateescape"))

    def end(self) -> None:
        """End the command on its host, in the background, and then close the channel."""
        with self._lock:
            self.interrupted = True
            if self._ending_began:
                return
            self._ending_began = True
            if not self._sent:
                self._ended.set()
                with contextlib.suppress(Exception):
                    self.channel.close()
                return
        threading.Thread(target=self._end, daemon=True).start()

    def wait_ended(self, within_s: float = WITHIN_S) -> Ending | None:
        """Wait until `end` has done its work. Return what is known of the command then.

        None if it had not started.
        """
        if not self._ended.wait(within_s):
            return Ending(unknown=f"the host did not report its end within {within_s:g} s")
        return self.ending

    def _end(self) -> None:
        try:
            self.ending = self._end_on_host(time.monotonic() + WITHIN_S)
            if self.ending.unknown:
                # sshd sends it to the commands of users other than root, and does not say so.
                with contextlib.suppress(Exception):
                    send_signal(self.channel, "TERM")
        finally:
            with contextlib.suppress(Exception):
                self.channel.close()
            self._ended.set()

    def _end_on_host(self, deadline: float) -> Ending:
        transport = self.channel.get_transport()
        # A command that is interrupted at once may not have reported its process yet.
        while self.frame.process is None and time.monotonic() < deadline - GRACE_S:
            if self.channel.closed or self.channel.eof_received:
                break
            time.sleep(0.02)
        if not transport.is_active():
            return Ending(unknown="the connection was lost")
        if self.frame.process is None:
            return Ending(unknown="the host did not report its process")
        try:
            return parse_ending(_output(transport, ending_script(self.frame.process), deadline))
        except (paramiko.SSHException, OSError, EOFError) as error:
            return Ending(unknown=f"no second SSH session: {error or type(error).__name__}")

    def drain(self) -> None:
        """Read the output that has arrived, without blocking."""
        at_end = self.channel.eof_received
        while self.channel.recv_ready():
            self._take("stdout", self.frame.take("stdout", self.channel.recv(CHUNK)))
        while self.channel.recv_stderr_ready():
            self._take("stderr", self.frame.take("stderr", self.channel.recv_stderr(CHUNK)))
        if at_end:
            self._take("stdout", self.frame.rest("stdout"))

    def _take(self, stream: str, chunk: bytes) -> None:
        if not chunk:
            return
        if self.sink:
            try:
                self.sink(stream, chunk)
            except OSError as error:
                self.own_error = error
                raise
        else:
            (self.stdout if stream == "stdout" else self.stderr).add(chunk)


def _output(transport: paramiko.Transport, script: str, deadline: float) -> str:
    """Run a script on another channel, and return what it wrote on stdout until the deadline."""
    with transport.open_session(timeout=max(0.1, deadline - time.monotonic())) as channel:
        frame = FramedCommand(script)
        channel.exec_command(frame.line.encode())
        channel.sendall(frame.stdin)
        channel.shutdown_write()
        chunks = []
        with contextlib.suppress(TimeoutError):
            while frame.status is None:
                channel.settimeout(max(0.1, deadline - time.monotonic()))
                chunk = channel.recv(CHUNK)
                if not chunk:
                    break
                chunks.append(frame.take("stdout", chunk))
        return b"".join(chunks).decode(errors="replace")


def execute(exchange: Exchange, timeout_s: float | None, stdin: Stdin | bytes) -> CommandResult:
    """Run the command to its end. Raise CommandTimeout, ConnectionLost or paramiko.SSHException,
    and CommandNotRun if its login shell did not run it, or not to its end.

    `timeout_s` None means no deadline. A command that does not end before it is ended on the host;
    the error names what is left of it. Errors of the sink are raised as they are.
    """
    began = time.monotonic()
    deadline = began + timeout_s if timeout_s is not None else None
    frame, channel = exchange.frame, exchange.channel
    exchange.send()
    # Input is sent from a thread: a command that blocks on its output may read no input meanwhile.
    threading.Thread(target=_feed, args=(exchange, stdin), daemon=True).start()
    try:
        ended = _follow(exchange, deadline) and (
            frame.status is not None or channel.status_event.wait(_left(deadline))
        )
        if not ended:
            exchange.end()
            # Its last output is read, so that it can end.
            _follow(exchange, time.monotonic() + WITHIN_S)
    except BaseException:
        exchange.end()
        exchange.wait_ended()
        raise
    left = ""
    if not ended or exchange.interrupted:
        left = str(exchange.wait_ended() or "")
    if not ended:
        raise _timeout(exchange, f"within {timeout_s:g} s", left)
    exchange.drain()
    status = channel.exit_status if frame.status is None else frame.status
    channel.close()
    if status < 0 or exchange.interrupted:
        what = "interrupted" if exchange.interrupted else "the connection was lost"
        raise ConnectionLost(exchange.host, f"{what} while a command ran" + (left and f"; {left}"))
    trouble = frame.trouble(status)
    if trouble:
        raise CommandNotRun(exchange.host, trouble)
    stdout, stderr = exchange.stdout, exchange.stderr
    texts = stdout.text(), stderr.text()
    return CommandResult(
        exchange.host,
        exchange.command,
        status,
        *texts,
        duration_s=time.monotonic() - began,
        truncated=stdout.truncated or stderr.truncated,
        raw=(stdout.content(), stderr.content()) if any("\ufffd" in one for one in texts) else None,
    )


def _timeout(exchange: Exchange, within: str, left: str) -> CommandTimeout:
    what = f"did not end {within}: {exchange.command}"
    hint = ""
    if exchange.frame.process is None:
        # The host is too busy, or a login file waits for something.
        what, hint = f"{what}; its login shell has not started it", LOGIN_FILES
    return CommandTimeout(
        exchange.host,
        what + (left and f"; {left}"),
        exchange.stdout.text(),
        exchange.stderr.text(),
        hint,
    )


def _follow(exchange: Exchange, deadline: float | None) -> bool:
    """Read output until its end and return True. Return False if the deadline passes first.

    A process that a login file left in the background may hold the output open. So HELD_S after a
    command has reported its exit status its output counts as ended.
    """
    channel = exchange.channel
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    status_at = None
    while not (channel.eof_received or channel.closed):
        left = _left(deadline)
        if exchange.own_error:
            raise exchange.own_error
        if exchange.frame.status is not None:
            status_at = status_at or time.monotonic()
            if time.monotonic() > status_at + HELD_S:
                break
        if left == 0:
            return False
        poller.poll(1000 * (POLL_EVERY_S if left is None else min(left, POLL_EVERY_S)))
        exchange.drain()
    exchange.drain()
    return True


def _left(deadline: float | None) -> float | None:
    """Return the seconds until the deadline, 0 if it has passed, None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _feed(exchange: Exchange, stdin: Stdin | bytes) -> None:
    """Send the command's input. An error of the input, in this thread, becomes the exchange's."""
    channel = exchange.channel
    try:
        for chunk in _chunks(exchange, stdin):
            # A command may end before it has read its input. The channel then closes.
            try:
                channel.sendall(chunk)
            except (OSError, paramiko.SSHException, EOFError):
                return
        with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
            channel.shutdown_write()
    except BaseException as error:
        exchange.own_error = error


def _chunks(exchange: Exchange, stdin: Stdin | bytes) -> Iterator[bytes]:
    first = exchange.frame.stdin
    if isinstance(stdin, bytes):
        yield first + stdin
        return
    yield first
    offset = 0
    while not exchange.channel.closed:
        chunk = stdin.read_at(offset, wait_s=0.5)
        if chunk == b"":
            return
        if chunk:
            yield chunk
            offset += len(chunk)
