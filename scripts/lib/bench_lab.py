"""The lab that benchmarks run in: started for them, a cluster in it, its hosts' links shaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterctl.lab.record import LabRecord, read_record

# Of /proc/stat's first line: user, nice, system; interrupts are where packets are received.
COMMANDS, INTERRUPTS = (1, 2, 3), (6, 7)


@contextmanager
def running_lab(home: Path, *options: str) -> Iterator[None]:
    """A lab of its own below `home`, gone at the end, whatever ends it."""
    os.environ.update(CLUSTERCTL_HOME=str(home), CLUSTERCTL_LAB="1")
    try:
        quiet("clusterctl", "lab", "start", *options)
        yield
    finally:
        with undisturbed():
            quiet("clusterctl", "lab", "stop")


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    quiet("clusterctl", "up", "bench", "--nodes", str(nodes), "--instance-type", "p3.2xlarge")
    try:
        yield "bench"
    finally:
        with undisturbed():
            quiet("clusterctl", "down", "bench", "--yes")


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep the first from being cleaned up after."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def end_when_told() -> None:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that the lab goes.

    And Ctrl-C does, too, in a shell's background, where it is ignored unless asked for.
    """

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def quiet(*argv: str, environ: Mapping[str, str] | None = None) -> str:
    """The standard output of a command, which has to succeed; `environ` adds to its environment."""
    process = start(argv, environ)
    with ending(process):
        out, err = process.communicate()
    if process.returncode:
        sys.exit(f"error: {shlex.join(argv)} ended with {process.returncode}: {err or out}")
    return out


def start(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A command that runs, and whose output is kept."""
    return subprocess.Popen(
        argv,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """However the block ends, the process does: told first, killed when that is not enough."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()


def machine_cpu_s(fields: Sequence[int] = COMMANDS) -> float:
    """CPU seconds of everything on this machine."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    return sum(int(words[field]) for field in fields) / os.sysconf("SC_CLK_TCK")


def lab_cpu_s() -> float:
    """CPU seconds of the lab: its API, its daemon, and all that has ever run on its hosts."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, which may have blanks, is in parentheses; proc(5) counts from it.
            words = file.read_text().rpartition(") ")[2].split()
            number = int(file.parent.name)
            children.setdefault(int(words[1]), []).append(number)
            used[number] = sum(map(int, words[11:15]))
    todo = [lab_record().pid]
    for number in todo:
        todo += children.get(number, [])
    return sum(used.get(number, 0) for number in todo) / os.sysconf("SC_CLK_TCK")


@contextmanager
def delayed(addresses: Sequence[tuple[str, int]], one_way_s: float) -> Iterator[list[int]]:
    """Ports of 127.0.0.1 that lead to these addresses, and take so long each way.

    netem would be without a process, but not every kernel has it. That process is the same for all
    that is compared.
    """
    loop = asyncio.new_event_loop()
    # What is under way when the loop stops is of no interest.
    loop.set_exception_handler(lambda *_: None)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            data = b"begin"
            while data:
                data = await reader.read(1 << 16)
                # Later ones are due later: the order stays.
                if data:
                    loop.call_later(one_way_s, writer.write, data)
            loop.call_later(one_way_s, writer.close)

    async def serve(address: tuple[str, int]) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(2 * one_way_s)  # the handshake of TCP
            back, there = await asyncio.open_connection(*address)
            await asyncio.gather(carry(reader, there), carry(back, writer))

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
        return int(server.sockets[0].getsockname()[1])

    async def serve_all() -> list[int]:
        return [await serve(address) for address in addresses]

    threading.Thread(target=loop.run_forever, daemon=True).start()
    try:
        yield asyncio.run_coroutine_threadsafe(serve_all(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)


def available_bytes() -> int:
    """Memory that new work can have, hosts' volumes included."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("no MemAvailable in /proc/meminfo")


def cores() -> int:
    return os.cpu_count() or 1


def lab_ec2() -> Any:
    """boto3's client for the lab."""
    import boto3

    record = lab_record()
    return boto3.client(
        "ec2",
        region_name=record.region,
        endpoint_url=record.endpoint_url,
        aws_access_key_id=record.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=record.environment["AWS_SECRET_ACCESS_KEY"],
    )


def lab_record() -> LabRecord:
    record = read_record(Path(os.environ["CLUSTERCTL_HOME"]))
    assert record
    return record
