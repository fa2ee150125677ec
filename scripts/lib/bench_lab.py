"""The lab that benchmarks run in: its start and end, clusters, delays, and CPU times."""

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

# Fields of the first line of /proc/stat: user, nice and system; irq and softirq, in which packets
# are received.
COMMANDS, INTERRUPTS = (1, 2, 3), (6, 7)


@contextmanager
def running_lab(home: Path, *options: str) -> Iterator[None]:
    """Start a lab below `home`, and stop it at the end in any case."""
    os.environ.update(CLUSTERCTL_HOME=str(home), CLUSTERCTL_LAB="1")
    try:
        quiet("clusterctl", "lab", "start", *options)
        yield
    finally:
        with undisturbed():
            quiet("clusterctl", "lab", "stop")


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Launch a cluster in the lab, yield its name, and remove it at the end."""
    quiet("clusterctl", "up", "bench", "--nodes", str(nodes), "--instance-type", "p3.2xlarge")
    try:
        yield "bench"
    finally:
        with undisturbed():
            quiet("clusterctl", "down", "bench", "--yes", "--discard-results")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in the block, so that a second Ctrl-C does not stop a clean-up."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def end_when_told() -> None:
    """Handle SIGTERM, SIGHUP and SIGINT by SystemExit, so that the lab is stopped.

    SIGINT needs a handler too: a shell starts background jobs with SIGINT ignored.
    """

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def quiet(*argv: str, environ: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output. End the program if the command fails.

    `environ` is added to the environment.
    """
    process = start(argv, environ)
    with ending(process):
        out, err = process.communicate()
    if process.returncode:
        sys.exit(f"error: {shlex.join(argv)} ended with {process.returncode}: {err or out}")
    return out


def start(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command with pipes for its output."""
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
    """End the process when the block ends: by SIGTERM, and after 10 s by SIGKILL."""
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
    """Return the CPU seconds of the whole machine since its boot."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    return sum(int(words[field]) for field in fields) / os.sysconf("SC_CLK_TCK")


def lab_cpu_s() -> float:
    """Return the CPU seconds of the lab: its API, its daemon, and all processes of its hosts."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The process's name is in parentheses and may have blanks, so fields are counted from
            # its end; see proc(5).
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
    """Yield ports of 127.0.0.1 that lead to these addresses with a delay in each direction.

    The kernel's netem would need no process for this, but not every kernel has it. The cost of this
    process is the same for all programs that are compared.
    """
    loop = asyncio.new_event_loop()
    # Ignore errors of connections that are open when the loop stops.
    loop.set_exception_handler(lambda *_: None)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            data = b"begin"
            while data:
                data = await reader.read(1 << 16)
                # call_later keeps the order, since later data is due later.
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
    """Return the memory that is available for new work, which includes the hosts' volumes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("no MemAvailable in /proc/meminfo")


def cores() -> int:
    return os.cpu_count() or 1


def lab_ec2() -> Any:
    """Return a boto3 client for the lab's EC2."""
    import boto3

    record = lab_record()
    return boto3.client(
        "ec2",
        region_name=record.region,
        endpoint_url=record.endpoint_url,
        aws_access_key_id=record.keys[0].id,
        aws_secret_access_key=record.keys[0].secret,
    )


def lab_record() -> LabRecord:
    record = read_record(Path(os.environ["CLUSTERCTL_HOME"]))
    assert record
    return record
