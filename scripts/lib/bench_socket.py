"""The cheapest copy there is: sendfile into a TCP connection, recv and write out of it.

bench_socket.py send SOURCE DESTINATION HOST      one connection, every file after the other
bench_socket.py receive DESTINATION               print the port, take one connection
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path

PIECE_BYTES = 1 << 20
ANY = "0.0.0.0"


def main() -> None:
    word, *rest = sys.argv[1:]
    if word == "send":
        send(*rest)
    else:
        receive(*rest)


def send(source: str, destination: str, host: str) -> None:
    command = [sys.executable, __file__, "receive", destination]
    pipe = subprocess.PIPE
    with subprocess.Popen(["ssh", "-n", host, *command], stdout=pipe, text=True) as receiver:
        assert receiver.stdout
        port = int(receiver.stdout.readline())
        with socket.create_connection((socket.gethostbyname(host), port)) as connection:
            for path in sorted(one for one in Path(source).rglob("*") if one.is_file()):
                send_file(connection, path, str(path.relative_to(source)))
    sys.exit(receiver.returncode)


def send_file(connection: socket.socket, path: Path, name: str) -> None:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        connection.sendall(json.dumps([name, size]).encode() + b"\n")
        sent = 0
        while sent < size:
            sent += os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)


def receive(destination: str) -> None:
    with socket.create_server((ANY, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection, connection.makefile("rb", buffering=0) as stream:
        while line := stream.readline():
            name, size = json.loads(line)
            path = Path(destination, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            receive_file(connection, path, size)


def receive_file(connection: socket.socket, path: Path, left: int) -> None:
    piece = memoryview(mmap.mmap(-1, PIECE_BYTES))  # at a page: the kernel's copy is cheaper
    with path.open("wb", buffering=0) as file:
        while left:
            got = connection.recv_into(piece, min(left, PIECE_BYTES))
            if not got:
                sys.exit(f"the connection ended {left} bytes before the end of {path}")
            file.write(piece[:got])
            left -= got


if __name__ == "__main__":
    main()
