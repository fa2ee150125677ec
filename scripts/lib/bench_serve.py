"""`scripts/bench serve`: requests to the model server under load, and bare calls of the model."""

from __future__ import annotations

import http.client
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench_training import told, training_python

from clusterctl.bootstrap.training import SHELL
from clusterctl.operations.serving import libraries_here

BARE = Path(__file__).with_name("serve_bare.py")
BATCHES, CONNECTIONS, SECONDS = (1, 16), (1, 8), 5.0
USAGE = "usage: scripts/bench serve"


def bench_serve(words: list[str]) -> None:
    """Time bare calls of the model, and requests to a server with it."""
    if words:
        sys.exit(USAGE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = told([training_python(), BARE, folder / "cifar10", *BATCHES])
        server, port = start(folder)
        try:
            for batch in BATCHES:
                report(port, batch, bare[str(batch)])
        finally:
            server.terminate()
            server.wait()


def start(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server. Return its process and its port."""
    program = folder / "serve.py"
    program.write_text((SHELL / "serve.py").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--model", "cifar10", "--folder", folder / "cifar10", "--port", port]
    words += ["--libraries", libraries_here(folder)]
    line = list(map(str, [training_python(), "-u", program, *words]))
    server = subprocess.Popen(line, stdout=subprocess.PIPE)
    assert server.stdout
    if not any(line.startswith(b"ready: ") for line in server.stdout):
        sys.exit("error: the server did not start")
    return server, port


def report(port: int, batch: int, bare: list[float]) -> None:
    """Print the rates and latencies for one batch size."""
    print(f"\n{batch} image{'s' * (batch > 1)} a request: requests/s, and milliseconds each")
    alone = len(bare) / sum(bare)
    row("the bare call", bare, alone, alone)
    image = [[[random.randrange(256) for _ in range(3)] for _ in range(32)] for _ in range(32)]
    body = json.dumps({"instances": [image] * batch}).encode()
    for connections in CONNECTIONS:
        load(port, body, connections, 1.0)
        found, took_s = load(port, body, connections, SECONDS)
        title = f"{connections} connection{'s' * (connections > 1)}"
        row(title, found, len(found) / took_s, alone)


def row(title: str, found: list[float], rate: float, alone: float) -> None:
    """Print a row: requests/s, the ratio to bare calls, and percentiles of the latency in ms."""
    cuts = statistics.quantiles(found, n=100)
    p50, p95, p99 = (1000 * cuts[n - 1] for n in (50, 95, 99))
    print(
        f"  {title:14} {rate:8.1f}/s, {rate / alone:5.2f} x   p50 {p50:7.2f}  p95 {p95:7.2f}  "
        f"p99 {p99:7.2f}"
    )


def load(port: int, body: bytes, connections: int, seconds: float) -> tuple[list[float], float]:
    """Send requests for `seconds`. Return each one's latency and the total time, in seconds."""
    began = time.perf_counter()

    def one(_: int) -> list[float]:
        taken = []
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while (start := time.perf_counter()) < began + seconds:
            connection.request("POST", "/v1/models/cifar10:predict", body)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            taken.append(time.perf_counter() - start)
        connection.close()
        return taken

    with ThreadPoolExecutor(connections) as pool:
        found = [one for taken in pool.map(one, range(connections)) for one in taken]
    return found, time.perf_counter() - began
