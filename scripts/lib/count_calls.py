"""Run one clusterctl command and count its AWS calls: count_calls.py FILE COMMAND..."""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path
from typing import Any

from clusterctl.cli.main import cli, run_command
from clusterctl.ec2 import session


def main() -> int:
    """Count the calls by a hook of every boto3 client that the command makes."""
    file, *argv = sys.argv[1:]
    calls: collections.Counter[str] = collections.Counter()
    make = session.Clients._make

    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        client = make(self, *arguments, **options)
        client.meta.events.register("before-call", lambda model, **_: calls.update([model.name]))
        return client

    session.Clients._make = watched  # type: ignore[method-assign]
    status = run_command(cli, argv)
    Path(file).write_text(json.dumps(calls))
    return status


if __name__ == "__main__":
    sys.exit(main())
