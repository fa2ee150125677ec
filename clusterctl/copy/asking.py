"""The program that looks at files, started: on nodes over SSH, here as a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.copy.conversation import PING_S, Conversation, Orders, Watch
from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.packer import program_of
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

PROGRAM = program_of(
    "manifest",
    "crc32c",
    "tfrecord",
    "contents",
    "listing",
    "looking",
    "places",
    "readers",
    "digests",
)
SILENCE_S = 60.0


@dataclass(frozen=True)
class _Asked:
    target: Target
    conversation: Conversation

    @property
    def host(self) -> str:
        return self.target.host


def _first(config: Mapping[str, Any]) -> bytes:
    return PROGRAM.stdin({**config, "silence_s": SILENCE_S})


@contextlib.contextmanager
def on_nodes(
    connections: Connections,
    targets: Sequence[Target],
    config: Mapping[str, Any],
    *,
    watch: Watch | None = None,
    timeout_s: float | None = None,
) -> Iterator[list[Conversation]]:
    """The program on every node at once, for as long as the block takes."""
    first = _first(config)
    items = [_Asked(target, Conversation(target.host, first, watch)) for target in targets]

    def one(asked: _Asked) -> None:
        talk = asked.conversation
        try:
            result = connections.run(
                asked.target,
                PROGRAM.command(),
                stdin=talk.orders,
                sink=talk.take,
                timeout_s=timeout_s,
            )
            talk.ended(result.exit_status)
        except ClusterctlError as error:
            talk.failed(error)
        except BaseException as error:
            # Nobody may wait for its answer; fan_out raises it.
            talk.failed(ClusterctlError(repr(error)))
            raise

    # All at once: no node is asked further before each has said what it has.
    thread = threading.Thread(
        target=lambda: fan_out(one, items, max_workers=max(1, len(items))), daemon=True
    )
    thread.start()
    try:
        yield [item.conversation for item in items]
    except BaseException:
        connections.interrupt()
        raise
    finally:
        for item in items:
            item.conversation.stop()
    thread.join()


@contextlib.contextmanager
def on_this_machine(
    name: str, config: Mapping[str, Any], *, watch: Watch | None = None
) -> Iterator[Conversation]:
    """The same program as a process of this machine, in the current folder."""
    talk = Conversation(name, _first({"base": str(Path.cwd()), **config}), watch)
    process = subprocess.Popen(
        PROGRAM.argv(python=sys.executable),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    threads = [
        threading.Thread(target=_feed, args=(process, talk.orders), daemon=True),
        threading.Thread(target=_read, args=(process, talk), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield talk
    finally:
        talk.stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=PING_S)
        process.kill()
        process.wait()


def _feed(process: subprocess.Popen[bytes], orders: Orders) -> None:
    assert process.stdin
    offset = 0
    with contextlib.suppress(OSError):
        while chunk := orders.read_at(offset, PING_S):
            process.stdin.write(chunk)
            process.stdin.flush()
            offset += len(chunk)
        process.stdin.close()


def _read(process: subprocess.Popen[bytes], talk: Conversation) -> None:
    assert process.stdout and process.stderr
    while chunk := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
        talk.take("stdout", chunk)
    talk.take("stderr", process.stderr.read())
    talk.ended(process.wait())
