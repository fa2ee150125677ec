"""The cheapest possible copy: sendfile into a TCP connection, recv and write at its other end.

bench_socket.py send SOURCE DESTINATION HOST [CONNECTIONS]    send each file over one connection
bench_socket.py receive DESTINATION CONNECTIONS               print the port, accept connections
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

PIECE_BYTES = 1 << 20
ANY = "0.0.0.0"


def main() -> None:
    word, *rest = sys.argv[1:]
    if word == "send":
        send(*rest)
    else:
        receive(*rest)


def send(source: str, destination: str, host: str, connections: str = "1") -> None:
    """Start the receiver on `host`, and send it every file."""
    command = [sys.executable, __file__, "receive", destination, connections]
    files = sorted(one for one in Path(source).rglob("*") if one.is_file())
    count = int(connections)
    pipe = subprocess.PIPE
    with subprocess.Popen(["ssh", "-n", host, *command], stdout=pipe, text=True) as receiver:
        assert receiver.stdout
        port = int(receiver.stdout.readline())
        address = (socket.gethostbyname(host), port)
        side_by_side(lambda n: send_files(address, source, files[n::count]), count)
    sys.exit(receiver.returncode)


def side_by_side(work: Callable[[int], None], count: int) -> None:
    """Call `work` in parallel, each call in its own process, which is the fastest way."""
    children = []
    for number in range(count):
        if not (child := os.fork()):
            try:
                work(number)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        sys.exit(1)


def send_files(address: tuple[str, int], source: str, files: Sequence[Path]) -> None:
    with socket.create_connection(address) as connection:
        for path in files:
            send_file(connection, path, str(path.relative_to(source)))


def send_file(connection: socket.socket, path: Path, name: str) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        connection.sendall(json.dumps([name, size]).encode() + b"\n")
        sent = 0
        while sent < size:
            sent += os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)


def receive(destination: str, connections: str) -> None:
    """Print the port, and receive files over so many connections."""
    with socket.create_server((ANY, 0)) as server:
        print(server.getsockname()[1], flush=True)
        side_by_side(lambda _: receive_files(server, destination), int(connections))


def receive_files(server: socket.socket, destination: str) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rb", buffering=0) as stream:
        while line := stream.readline():
            name, size = json.loads(line)
            path = Path(destination, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            receive_file(connection, path, size)


def receive_file(connection: socket.socket, path: Path, left: int) -> None:
    piece = memoryview(mmap.mmap(-1, PIECE_BYTES))  # page-aligned: the kernel copies it faster
    with path.open("wb", buffering=0) as file:
        while left:
            got = connection.recv_into(piece, min(left, PIECE_BYTES))
            if not got:
                sys.exit(f"the connection ended {left} bytes before the end of {path}")
            file.write(piece[:got])
            left -= got


if __name__ == "__main__":
    main()
