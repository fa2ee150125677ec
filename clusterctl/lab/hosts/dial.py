"""ssh's way into an unprivileged lab: `ProxyCommand dial.py SOCKET HOST PORT`, ProxyUseFdpass yes.

Asks the lab for a connection and hands it to ssh through stdout. Run with `python3 -S -E`: it
starts once per login, so it imports little.
"""

import array
import os
import socket
import sys


def main() -> None:
    path, host, port = sys.argv[1:4]
    os.chdir(os.path.dirname(path))  # noqa: PTH120,PLW1514 - pathlib would double the start-up time
    lab = socket.socket(socket.AF_UNIX)
    try:
        lab.connect(os.path.basename(path))  # noqa: PTH119
    except OSError as refused:
        sys.exit(f"the lab does not answer: {refused.strerror}")
    lab.sendall(f"{host} {port}\n".encode())
    answer, descriptors, _, _ = socket.recv_fds(lab, 512, 1)
    if not descriptors:
        sys.exit(answer.decode())
    ssh = socket.socket(fileno=os.dup(1))
    passed = array.array("i", descriptors)
    ssh.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])


main()
