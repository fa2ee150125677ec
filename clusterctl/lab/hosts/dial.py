"""ssh's way into a user's lab: `ProxyCommand dial.py SOCKET HOST PORT` with `ProxyUseFdpass yes`.

It requests a connection from the lab and passes its descriptor to ssh through stdout. It runs once
for each login, with `python3 -S -E` and few imports, so that it starts fast.
"""

import array
import os
import socket
import sys


def main() -> None:
    path, host, port = sys.argv[1:4]
    # The path of a Unix socket is limited to 107 bytes: go to its folder, and use its name.
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
