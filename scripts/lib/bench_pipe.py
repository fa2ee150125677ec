"""Pipe Mode beside plain copies of the same objects, and beside downloading first, from moto's S3.

Every round runs every way once. Ratios are medians of the ratios within each round. CPU seconds are
the client's. Objects are small, since moto reads a whole object for every range of it.

    ./scripts/bench pipe [--rounds N] [--sizes MIB,MIB,MIB]
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clusterctl.node.packer import program_of

BUCKET, SHARD_MIB = "bench", 16
SET_CHILD_SUBREAPER = 36  # prctl(2)
BATCH = 1 << 20
READ = """\
import os, time
with open(os.environ["FIFO"], "rb", 0) as file:
    file.read(1)
    if os.environ.get("FIRST"):
        left = int(os.environ["FIRST"]) - 1
        while left > 0: left -= len(file.read(left))
    else:
        while file.read(1 << 20): pass
"""
FEED = """\
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from clusterctl.node.scripts.pipe import feed, list_channel
channel = {"source": sys.argv[2], "mode": "Pipe"}
channel.update(list_channel(channel))
feed({"channels": {"train": channel}}, Path(sys.argv[3]), 0, 1)
os.execv(sys.executable, [sys.executable, "-IS", sys.argv[4]])
"""


def bench_pipe(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="bench pipe", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="32,128,512", help="of the data set in MiB")
    args = parser.parse_args(words)
    sizes = [int(size) for size in args.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="bench-pipe-") as name:
        folder = Path(name)
        (folder / "read.py").write_text(READ)
        (folder / "feed.pyz").write_bytes(program_of("clusterctl.node.scripts.pipe").zipapp())
        (folder / "feed.py").write_text(FEED)
        environ, server = s3_server()
        try:
            for size in sizes:
                upload(environ, size)
                measure(folder, environ, size, args.rounds)
        finally:
            server.terminate()
            server.wait()


def s3_server() -> tuple[dict[str, str], subprocess.Popen[bytes]]:
    """Start moto's S3. Return the environment for its clients, and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(600):
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    url = f"http://127.0.0.1:{port}"
    return {**os.environ, **keys, "AWS_ENDPOINT_URL_S3": url, "S3_ENDPOINT_URL": url}, server


def upload(environ: dict[str, str], size: int) -> None:
    """Put a data set of `size` MiB into the bucket, in objects of SHARD_MIB."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=environ["AWS_ENDPOINT_URL_S3"],
        aws_access_key_id="a",
        aws_secret_access_key="b",  # noqa: S106 - of a server that asks for none
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    for number in range(size // SHARD_MIB):
        key, body = f"set-{size}/{number:04}", os.urandom(SHARD_MIB << 20)
        client.put_object(Bucket=BUCKET, Key=key, Body=body)


def measure(folder: Path, environ: dict[str, str], size: int, rounds: int) -> None:
    """Run every way once in each round, and print medians and ratios."""
    url, fifos, there = f"s3://{BUCKET}/set-{size}/", folder / "0", folder / "there"

    def pipe(**more: str) -> None:
        argv = [sys.executable, "-IS", str(folder / "feed.py"), str(folder / "feed.pyz"), url]
        env = {**environ, "FIFO": str(fifos / "train_0"), **more}
        subprocess.run([*argv, str(fifos), str(folder / "read.py")], env=env, check=True)

    def shell(line: str) -> None:
        subprocess.run(["bash", "-o", "pipefail", "-c", line], env=environ, check=True)

    def download_first(read: str) -> None:
        shell(f"s5cmd --log error cp '{url}*' {there}/ && {read} {there}/* >/dev/null")
        shutil.rmtree(there)

    ways: dict[str, Callable[[], None]] = {
        "pipe": pipe,
        "s5cmd cat | cat": lambda: shell(f"s5cmd cat '{url}*' | cat >/dev/null"),
        "download, then read": lambda: download_first("cat"),
    }
    shards = " ".join(f"{number:04}" for number in range(size // SHARD_MIB))
    if shutil.which("aws"):
        ways["aws s3 cp - | cat"] = lambda: shell(
            f"for n in {shards}; do aws s3 cp {url}$n -; done | cat >/dev/null"
        )
    ways["first batch: pipe"] = lambda: pipe(FIRST=str(BATCH))
    ways["first batch: download first"] = lambda: download_first(f"head -c {BATCH}")
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            took[name].append(timed(way))
    print(f"{size} MiB, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    for name, samples in took.items():
        wall, cpu = (statistics.median(one[n] for one in samples) for n in (0, 1))
        than = "first batch: pipe" if name.startswith("first") else "pipe"
        ratio = statistics.median(theirs[0] / ours[0] for theirs, ours in zip(samples, took[than]))
        print(
            f"  {name:28} {wall:6.2f} s   processor {cpu:5.2f} s   {ratio:5.2f} of {than}'s time",
            flush=True,
        )
    print(json.dumps({"mib": size, "seconds": took}), file=sys.stderr)


def timed(way: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of `way`, and the CPU seconds of all processes that it started."""
    reads, tells = os.pipe()
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        # Feeders that outlive their parent become children of this process, so that their CPU time
        # counts.
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
        try:
            way()
            os.write(tells, b"%f" % (time.monotonic() - began))
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.wait()
        finally:
            os._exit(0)
    os.close(tells)
    with os.fdopen(reads) as told:
        took = float(told.read() or "nan")
    os.waitpid(child, 0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
