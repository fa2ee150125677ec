"""Queries NCCL's RAS: since NCCL 2.24 every process that uses NCCL listens for such queries.

A node has one socket, shared by its ranks; ranks of separate jobs have separate addresses. The
protocol is lines of text over TCP: src/ras/client_support.cc of NCCL.
"""

from __future__ import annotations

import contextlib
import socket
import time

MOST_BYTES = 1 << 20


def ask_ras(addresses: list[str], within_s: float) -> str:
    """Return the first answer: JSON if NCCL has that (2.28.7 and later), else text; empty if no
    process listens. Raises OSError if one listens and does not answer: it may be frozen."""
    deadline = time.monotonic() + within_s
    silent = ""
    for address in addresses:
        try:
            answer = _ask(address, deadline)
        except ConnectionRefusedError:
            continue
        except (ValueError, OverflowError, socket.gaierror) as error:
            silent = f"{address} is no address ({error})"
            continue
        except OSError as error:
            silent = f"{address} listens, and does not answer ({error})"
            continue
        if answer:
            return answer
        silent = f"{address} listens, and ends the connection"
    if silent:
        raise OSError(silent)
    return ""


def _ask(address: str, deadline: float) -> str:
    name, _, port = address.rpartition(":")
    left_s = lambda: max(0.05, deadline - time.monotonic())  # noqa: E731
    with socket.create_connection((name.strip("[]"), int(port)), left_s()) as connection:
        lines = connection.makefile("rwb")

        def say(text: str) -> str:
            connection.settimeout(left_s())
            lines.write(text.encode() + b"\n")
            lines.flush()
            return lines.readline(MOST_BYTES).decode(errors="replace").strip()

        if not say("CLIENT PROTOCOL 2").startswith("SERVER PROTOCOL"):
            return ""
        # RAS's own timeout for the processes that it queries in turn.
        say(f"TIMEOUT {max(1, int(left_s()) - 1)}")
        say("SET FORMAT json")
        lines.write(b"VERBOSE STATUS\n")
        lines.flush()
        answer = bytearray()
        with contextlib.suppress(socket.timeout):
            while len(answer) < MOST_BYTES and deadline > time.monotonic():
                connection.settimeout(left_s())
                chunk = lines.read1(1 << 16)
                if not chunk:
                    break
                answer += chunk
        return answer.decode(errors="replace").strip()
