"""Runs on a node: calls one function and prints what it returns. transport/call.py sends it.

    agent MODULE:FUNCTION    stdin: a line with the request as JSON, then the attachment

The function takes one record, `request`, and returns another one. A function with a parameter
`attachment` also gets the bytes that follow the request. The program is packed with the function's
module (packer.py) and never stored on the node. An OSError is one line: `FILE: No such file...`.
"""

from __future__ import annotations

import os
import sys

from clusterctl.node.record import from_json, hints_of, to_json


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    function = getattr(sys.modules[module], name)
    hints = hints_of(function)
    request = from_json(hints["request"], sys.stdin.buffer.readline())
    more = {"attachment": sys.stdin.buffer.read()} if "attachment" in hints else {}
    try:
        response = function(request, **more)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.stdout.write(to_json(response) + "\n")
    sys.stdout.flush()
    os._exit(0)  # taking the interpreter apart would take an eighth of the processor time
