"""Relays as processes on this machine, which receive orders as from the client."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.node.packer import program_of
from clusterctl.node.relay.manifest import text_of

SECRET = "5e" * 32


class RunningRelay:
    """A running relay. `expect` waits for an event; `tell` sends an order."""

    def __init__(self, config: dict[str, Any], python: str, home: Path) -> None:
        program = program_of("clusterctl.node.relay.relay")
        user = config.pop("user", None)
        self.process = subprocess.Popen(
            # Another user cannot read the virtual environment, but can run the system's Python.
            program.argv(python=python if user is None else "/usr/bin/python3"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(home)},
            cwd="/",
            **({} if user is None else {"user": user, "group": user, "extra_groups": []}),
        )
        config = {
            "secret": SECRET,
            "bind": "127.0.0.1",
            "report_s": 0.05,
            "silence_s": 600,
            **config,
        }
        self.process.stdin.write(program.stdin(config))
        self.process.stdin.flush()
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        listening = self.expect("listening")
        self.address, self.port = listening["address"], listening["port"]
        self.gmac = listening["gmac"]

    def _read(self) -> None:
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put({"event": "eof"})

    def expect(self, name: str, **fields: Any) -> dict[str, Any]:
        """Wait for the next event with this name and fields. Fail if the relay fails."""
        deadline = time.monotonic() + 240  # reports of progress go on whatever else happens
        while True:
            event = self.events.get(timeout=max(0, deadline - time.monotonic()))
            if event["event"] == name and fields.items() <= event.items():
                return event
            assert event["event"] not in ("failed", "eof"), event

    def tell(self, order: str, **fields: Any) -> None:
        self.process.stdin.write(json.dumps({"order": order, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def pull_from(self, other: RunningRelay | FirstPart, name: str = "upstream") -> None:
        self.tell("upstream", name=name, address=other.address, port=other.port)

    def stop(self) -> dict[str, Any]:
        self.tell("stop")
        bye = self.expect("bye")
        assert self.process.wait(20) == 0
        return bye

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class FirstPart:
    """The address of a relay that sends only the first `most` bytes of its data, and then hangs."""

    def __init__(self, relay: RunningRelay, most: int) -> None:
        self._to = relay.address, relay.port
        self._most = most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address, self.port = self._listener.getsockname()
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.create_connection(self._to)
                self._ends += near, far
                threading.Thread(target=self._pass, args=(near, far), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, limited: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if limited:
                    self._most -= len(data)
                    if self._most < 0:
                        return
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in (self._listener, *self._ends):
            end.close()


class Relays:
    """Starts relays, and ends the remaining ones."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.python = sys.executable
        self.running: list[RunningRelay] = []

    def source(self, *paths: bytes | str, **config: Any) -> RunningRelay:
        sources = [text_of(p) if isinstance(p, bytes) else p for p in paths]
        return self._start({"role": "source", "sources": sources, **config})

    def target(self, destination: object, **config: Any) -> RunningRelay:
        return self._start({"role": "target", "destination": str(destination), **config})

    def _start(self, config: dict[str, Any]) -> RunningRelay:
        relay = RunningRelay(config, self.python, self.home)
        self.running.append(relay)
        return relay

    def begin(
        self,
        source: RunningRelay,
        *targets: RunningRelay,
        block_bytes: int = 1 << 16,
        gmac: bool = True,
    ) -> dict[str, Any]:
        """Send the source's manifest to all relays."""
        manifest = source.expect("manifest")
        gmac = gmac and all(relay.gmac for relay in (source, *targets))
        for relay in (source, *targets):
            relay.tell(
                "begin",
                block_bytes=block_bytes,
                streams=3,
                digest=manifest["digest"],
                single=manifest["single"],
                gmac=gmac,
                **{key: manifest[key] for key in ("left_out", "host", "roots")},
            )
        return manifest

    def copy(
        self, source: RunningRelay, *targets: RunningRelay, **options: Any
    ) -> list[dict[str, Any]]:
        """Copy everything along a chain of relays. Return their `done` events."""
        self.begin(source, *targets, **options)
        for upstream, target in zip((source, *targets), targets):
            target.pull_from(upstream)
        return [target.expect("done") for target in targets]


@contextlib.contextmanager
def relays_in(home: Path) -> Iterator[Relays]:
    made = Relays(home)
    try:
        yield made
    finally:
        for relay in made.running:
            relay.close()


def tree(root: Path | bytes) -> dict[bytes, tuple[Any, ...]]:
    """Return everything below a folder: kind, mode, time, content."""
    found = {}
    base = os.fsencode(root)
    for folder, folders, files in os.walk(base):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content: Any = None
            if os.path.islink(path):
                content = os.readlink(path)
            elif name in files:
                with open(path, "rb") as file:
                    content = file.read()
            key = os.path.relpath(path, base)
            found[key] = (oct(status.st_mode), status.st_mtime_ns, content)
    return found


def make(root: Path | bytes, files: dict[bytes, bytes]) -> None:
    """Make files with these names and contents, and their folders."""
    for name, content in files.items():
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
