"""The base class of relays, and the errors that relays report."""

from __future__ import annotations

import errno
import gc
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Dict

from clusterctl.node.procfs import boot_id
from clusterctl.node.record import from_json
from clusterctl.node.relay.activity import ACTIVITY
from clusterctl.node.relay.hashing import gmac_is_faster
from clusterctl.node.relay.manifest import BadManifest, text_of
from clusterctl.node.relay.messages import (
    Bye,
    Event,
    Failed,
    Listen,
    Listening,
    Order,
    Progress,
    Stop,
    decode_order,
    encode,
)
from clusterctl.node.relay.scan import SourceError
from clusterctl.node.relay.serve import Server
from clusterctl.node.relay.staging import Busy, Removed, Untrusted, named
from clusterctl.node.relay.wire import Waits, tls_contexts

# System errors: their `kind` in a `Failed` event, and what the user can do.
_KINDS = {
    errno.ENOSPC: ("space", "make room there, and run this again: it goes on where it stopped"),
    errno.EDQUOT: ("space", "the user's quota is used up: make room there"),
    errno.EROFS: ("read-only", "mount it writable, or choose another destination"),
    errno.EACCES: ("permission", "choose a folder that the user may write to"),
    errno.EPERM: ("permission", "choose a folder that the user may write to"),
    errno.ENOTDIR: ("usage", "a part of the path is no folder"),
    errno.EEXIST: ("usage", "something that is no folder is in the way: name another place"),
    errno.ENOENT: ("usage", "no folder can be made there: name another place"),
    errno.EIO: ("disk", "the disk may be failing: read dmesg"),
}
# `Progress.moves` stays a small number.
MOST_MOVES = 1 << 53


class Failure(Exception):
    """An error for the user: the message is what happened, `hint` what to do.

    `kind` is that of a `Failed` event: one of `_KINDS`, or busy, lost, source, bug, absent.
    """

    def __init__(self, kind: str, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.kind, self.hint = kind, hint


def failure_of(error: BaseException, place: str = "") -> Failure:
    """Return the Failure for an error. `place` is the path to name if the error has none."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, Busy):
        hint = "wait for it to end, then run this again"
        return Failure("busy", f"another copy to this destination is running ({error})", hint)
    if isinstance(error, Removed):
        return Failure("lost", f"{error}: what had come was removed by another program")
    if isinstance(error, Untrusted):
        hint = "see what it is and remove it, or choose a folder that only this user may write to"
        return Failure("permission", f"{error}: files that are not whole are kept there", hint)
    if isinstance(error, SourceError):
        return Failure("source", str(error))
    if isinstance(error, BadManifest):
        return Failure("bug", f"the manifest cannot be used: {error}")
    if isinstance(error, OSError) and error.errno is not None:
        kind, hint = _KINDS.get(error.errno, ("disk", ""))
        name = error.filename or place
        where = f"{text_of(named(name)) if isinstance(name, bytes) else name}: " if name else ""
        return Failure(kind, f"{where}{error.strerror}", hint)
    return Failure("bug", f"{type(error).__name__}: {error}")


class Stopped(BaseException):
    """Raised in the main thread when a signal ends the relay."""


class Relay:
    """The base class of relays: obeys orders, serves other relays, sends the heartbeat.

    The configuration has "secret", and may have "tls", "port", "report_s" (the interval of
    heartbeats) and "silence_s" (the relay ends if the client is silent for longer).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.secret = bytes.fromhex(config["secret"])
        pem = (config.get("tls") or {}).get("pem")
        self.server_tls: ssl.SSLContext | None = None
        self.caller_tls: ssl.SSLContext | None = None
        if pem:
            self.server_tls, self.caller_tls = tls_contexts(pem)
        self.server = Server(self.secret, self.server_tls)
        self.waits = Waits()
        self._out, self._ended = threading.Lock(), threading.Lock()
        self._stopping = False
        self._began = self._last_order = time.monotonic()

    def listen(self, bind: str = "") -> None:
        """Accept connections of other relays, and report the address. Raises OSError.

        Without `bind` the address is this node's end of the SSH connection.
        """
        words = os.environ.get("SSH_CONNECTION", "").split()
        own, client = (words[2], words[0]) if len(words) == 4 else ("127.0.0.1", "")
        address, port = self.server.listen(bind or own, self.config.get("port", 0))
        cores = os.cpu_count() or 0
        self.emit(Listening(address, port, client, cores, gmac_is_faster(), host_identity()))

    def emit(self, event: Event) -> None:
        """Send an event to the client. If the client is gone, end the relay."""
        try:
            with self._out:
                sys.stdout.buffer.write(encode(event))
                sys.stdout.buffer.flush()
        except OSError:
            self.end(code=1)

    def fail(self, error: BaseException) -> None:
        """Report the error and end the relay."""
        if self._stopping:
            return  # a thread that goes on finds nothing any more: `leave` has removed it
        failure = failure_of(error, self.config.get("destination", ""))
        self.emit(Failed(str(failure), failure.hint, failure.kind))
        self.end(code=1)

    def guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run `work` on a thread of its own. An exception in it ends the relay."""

        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001
                self.fail(error)

        threading.Thread(target=run, daemon=True).start()

    def run(self) -> None:
        """Handle the client's orders until it sends Stop, closes the input, or falls silent."""
        self.guarded(self._beat)
        self.guarded(self.start)
        for line in sys.stdin.buffer:
            self._last_order = time.monotonic()
            order = decode_order(line)
            if isinstance(order, Stop):
                self._stopping = True
                self.emit(Bye(clean=self.leave()))
                self.end(code=0)
            if isinstance(order, Listen):
                self.listen(order.bind)
            elif order:
                self.handle(order)
        self.end(code=0)

    def _beat(self) -> None:
        """Send Progress when figures change, at least each second; end if the client is silent."""
        every_s, last, sent_at = self.config.get("report_s", 0.25), Progress(), 0.0
        while True:
            time.sleep(every_s)
            now = time.monotonic()
            if now - self._last_order > self.config.get("silence_s", 60):
                self.end(code=1)
            figures = self.figures()
            step = ACTIVITY.longest()
            if figures != last or now - sent_at >= 1.0:
                last, sent_at = figures, now
                self.emit(
                    figures._replace(
                        waits=self.waits.seconds(),
                        cpu=round(time.process_time(), 3),
                        wall=round(now - self._began, 3),
                        step=step.name,
                        path=text_of(step.path) if isinstance(step.path, bytes) else step.path,
                        moves=ACTIVITY.moves(step) % MOST_MOVES,
                        arrived=ACTIVITY.arrived,
                    )
                )

    def end(self, code: int) -> None:
        """End the process here, whatever its threads are doing."""
        with self._ended:
            self.leave()
            os._exit(code)

    def start(self) -> None: ...

    def handle(self, order: Order) -> None:
        """Carry out an order other than Listen and Stop."""

    def figures(self) -> Progress:
        """Return how far the relay is, without the times."""
        return Progress()

    def leave(self) -> bool:
        """Release what should not stay on the node. Return whether nothing stays."""
        return True


def run_relay(make: Callable[[dict[str, Any]], Relay]) -> None:
    """Run the relay that `make` makes of the configuration, the first line of stdin. Usually the
    process ends in `Relay.end`."""
    # The process is too short-lived for cycles to matter, and a data set has many objects to visit.
    gc.disable()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _stop)
    relay = None
    try:
        config = from_json(Dict[str, Any], sys.stdin.buffer.readline())
        relay = make(config)
        if not config.get("later"):
            relay.listen(config.get("bind", ""))
        relay.run()
    except Stopped:
        if relay:
            relay.end(code=1)
    except BaseException as error:  # noqa: BLE001
        if relay:
            relay.fail(error)
        failure = failure_of(error)
        print(encode(Failed(str(failure), failure.hint, failure.kind)).decode(), end="", flush=True)
    sys.exit(1)


def _stop(*_: object) -> None:
    raise Stopped


def host_identity() -> str:
    """Return a text that is the same for two processes that see the same files, as far as known.

    It is made of the boot ID and the host name.
    """
    return f"{boot_id() or os.urandom(8).hex()} {os.uname().nodename}"
