"""A replacement for the connections to one node: its commands run here, in their own home."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.results import CommandResult
from clusterctl.node.framed import FramedCommand
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.local import run_here

HEAD = Target("demo-0", "10.0.0.4", "ubuntu")


@dataclass
class LocalNode:
    """Connections whose `run` and `run_all` use a shell on this machine.

    Each call raises the next error of `trouble` instead of running, until none is left. Commands
    are recorded, and `relays` by process ID. `greeting` is what ~/.bashrc prints before each
    command.
    """

    home: Path
    environ: dict[str, str] = field(default_factory=dict)
    trouble: list[ClusterctlError] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    greeting: bytes = b""
    relays: dict[int, subprocess.Popen] = field(default_factory=dict)

    def run(self, target, command, *, timeout_s=None, stdin=b"", sink=None):
        self.commands.append(command)
        if self.trouble:
            raise self.trouble.pop(0)
        frame = FramedCommand(command)
        environ = {**os.environ, "HOME": str(self.home), **self.environ}
        argv = ["/bin/bash", "-c", frame.line]
        raw = {"stdout": bytearray(self.greeting), "stderr": bytearray()}
        done = run_here(
            target,
            argv,
            frame.stdin + stdin,
            timeout_s,
            environ,
            lambda name, part: raw[name].extend(part),
        )
        out = frame.take("stdout", bytes(raw["stdout"])) + frame.rest("stdout")
        err = frame.take("stderr", bytes(raw["stderr"]))
        if sink:
            sink("stdout", out)
            sink("stderr", err)
        texts = {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}
        return replace(done, command=command, **texts)

    def run_all(self, targets, command, **how):
        return self.each(targets, lambda target: self.run(target, command, **how))

    def each(self, targets, work, **_):
        return fan_out(work, targets)

    def session(self, target):
        """Log in. The session's `run` is that of a relay: its input comes in parts."""
        if self.trouble:
            raise self.trouble.pop(0)
        return LocalSession(self, target)

    def forget(self, target):
        self.commands.append("forget")


@dataclass
class LocalSession:
    """A session with the node, in which one command runs."""

    node: LocalNode
    target: Target

    def run(self, command, *, stdin, sink, started):
        self.node.commands.append(command)
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "HOME": str(self.node.home), **self.node.environ},
            start_new_session=True,
        )
        self.node.relays[process.pid] = process

        def read(name, pipe):
            while chunk := pipe.read1(1 << 16):
                sink(name, chunk)

        pipes = {"stdout": process.stdout, "stderr": process.stderr}
        readers = [threading.Thread(target=read, args=one, daemon=True) for one in pipes.items()]
        for reader in readers:
            reader.start()
        started(LocalExchange(process))
        offset = 0
        with contextlib.suppress(OSError):
            while process.poll() is None and (chunk := stdin.read_at(offset, 0.1)) != b"":
                process.stdin.write(chunk or b"")
                process.stdin.flush()
                offset += len(chunk or b"")
        with contextlib.suppress(OSError):
            process.stdin.close()
        for reader in readers:
            reader.join()
        status = process.wait()
        return CommandResult(
            self.target.host, command, 128 - status if status < 0 else status, "", "", 0.0
        )


@dataclass
class LocalExchange:
    """A command under way."""

    process: subprocess.Popen

    def end(self):
        """Send TERM, as the end of a channel does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
