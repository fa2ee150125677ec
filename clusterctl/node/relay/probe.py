"""The relay that measures how fast bytes and messages travel from this node to another, and back.

Both nodes of a pair run it; one is ordered to measure and sends requests to the other. Bytes are
counted where they arrive, and discarded in the kernel (MSG_TRUNC, tcp(7)), so that the network is
measured and not the memory of a node. `clusterctl.operations.bench_network` is the client.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from typing import Any

from clusterctl.node.relay.base import Relay
from clusterctl.node.relay.messages import Measure, Measured, Order
from clusterctl.node.relay.serve import Server
from clusterctl.node.relay.wire import CHUNK, REQUEST, Link, PeerError, aligned_buffer, dial

# Requests in addition to those of a copy; their argument is milliseconds. Send each message back;
# count what comes and send the count; send until the other side sends something or closes.
ECHO, COUNT, FLOOD = 16, 17, 18
COUNTED = struct.Struct(">Qd")  # bytes, and the seconds in which they came
MESSAGE_BYTES = 8
MOST_MESSAGES = 5000
# TCP starts slowly: this share of the time is added before counting begins.
WARM_UP = 0.2
# How long a relay waits for the other side.
TIMEOUT_S = 5.0
# For SO_LINGER: close() resets the connection and discards what was not sent.
NO_LINGER = struct.pack("ii", 1, 0)
PERCENTILES = (50, 99)


class ProbeServer(Server):
    """Answers the measuring node of a pair."""

    def _converse(self, link: Link) -> None:
        what, milliseconds = REQUEST.unpack(link.read(REQUEST.size))
        link.set_timeout(TIMEOUT_S)
        if what == ECHO:
            while True:  # the caller ends it
                link.send(link.read(MESSAGE_BYTES))
        elif what == COUNT:
            link.send(COUNTED.pack(*count(link, milliseconds / 1000)))
            drain(link)
        elif what == FLOOD:
            flood(link, time.monotonic() + milliseconds / 1000 + 2 * TIMEOUT_S)


class ProbeRelay(Relay):
    """Measures the connection to another node as ordered, one node at a time."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.server = ProbeServer(self.secret, None)

    def handle(self, order: Order) -> None:
        if isinstance(order, Measure):
            self.guarded(self._measure, order)

    def _measure(self, order: Measure) -> None:
        try:
            figures = self._round_trips(order)
            for word, streams in (("one", 1), ("many", order.streams)):
                figures[f"{word}_out"] = self._rate(order, streams, COUNT)
                figures[f"{word}_back"] = self._rate(order, streams, FLOOD)
        except PeerError as error:
            self.emit(Measured(order.name, str(error)))
        else:
            self.emit(Measured(order.name, figures=figures))

    def _dial(self, order: Measure, what: int) -> Link:
        """Connect and send a request. Raises PeerError."""
        link = dial(order.address, order.port, self.secret, None)
        try:
            link.send(REQUEST.pack(what, int(order.seconds * 1000)))
        except PeerError:
            link.close()
            raise
        return link

    def _round_trips(self, order: Measure) -> dict[str, float]:
        """Return percentiles of the seconds that a message takes there and back."""
        link = self._dial(order, ECHO)
        took: list[float] = []
        message = bytes(MESSAGE_BYTES)
        try:
            until = time.perf_counter() + order.seconds / 2
            while len(took) < MOST_MESSAGES and (began := time.perf_counter()) < until:
                link.send(message)
                link.read(MESSAGE_BYTES)
                took.append(time.perf_counter() - began)
        finally:
            link.close()
        took.sort()
        return {f"rtt_p{one}": took[(len(took) - 1) * one // 100] for one in PERCENTILES}

    def _rate(self, order: Measure, streams: int, what: int) -> float:
        """Return the bytes a second over this many connections at once."""
        links: list[Link] = []
        counted: list[tuple[int, float]] = []
        errors: list[PeerError] = []

        def carry(link: Link) -> None:
            try:
                if what == COUNT:
                    flood(link, time.monotonic() + order.seconds + 2 * TIMEOUT_S)
                    counted.append(COUNTED.unpack(link.read(COUNTED.size)))
                else:
                    counted.append(count(link, order.seconds))
            except PeerError as error:
                errors.append(error)

        try:
            for _ in range(streams):
                links.append(self._dial(order, what))
                links[-1].set_timeout(TIMEOUT_S)
            threads = [threading.Thread(target=carry, args=(link,), daemon=True) for link in links]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for link in links:
                # Data that is still on its way would disturb the next measurement.
                with contextlib.suppress(OSError):
                    link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                link.close()
        if errors:
            raise errors[0]
        return sum(size / seconds for size, seconds in counted)


def count(link: Link, seconds: float) -> tuple[int, float]:
    """Count what comes within `seconds` after the warm-up. Return bytes and seconds.

    Raises PeerError.
    """
    buffer, got, began = bytearray(CHUNK), 0, 0.0
    warm = last = 0.0
    while not last or last < warm + seconds:
        size = _receive(link, buffer)
        last = time.monotonic()
        if not began:
            warm = last + seconds * WARM_UP
        if last < warm or not began:
            began = last
        else:
            got += size
    return got, last - began


def flood(link: Link, deadline: float) -> None:
    """Send until the other side sends its count or closes. Raises PeerError."""
    data = aligned_buffer(CHUNK)
    poller = select.poll()
    poller.register(link.socket, select.POLLIN)
    while not poller.poll(0):
        link.send(data)
        if time.monotonic() > deadline:
            raise PeerError("it does not say what it got", "silent")


def drain(link: Link) -> None:
    """Discard what comes until the other side closes, which raises PeerError."""
    buffer = bytearray(CHUNK)
    while True:
        _receive(link, buffer)


def _receive(link: Link, buffer: bytearray) -> int:
    """Discard what has come, and return how many bytes it was. Raises PeerError."""
    try:
        size: int = link.socket.recv_into(buffer, len(buffer), socket.MSG_TRUNC)
    except BlockingIOError:
        raise PeerError("nothing came any more", "silent") from None
    except OSError as error:
        raise PeerError(error.strerror or str(error)) from None
    if not size:
        raise PeerError("it closed the connection")
    return size
