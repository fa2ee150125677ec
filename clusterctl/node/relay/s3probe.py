"""Runs on a node: which tools for S3 it has, and whether it can read what is to be copied.

One line of JSON on stdin, the configuration of `urls.py`; one on stdout.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from clusterctl.node.relay.httpget import SourceError
from clusterctl.node.relay.s3list import list_objects
from clusterctl.node.relay.urls import S3Source, open_sources

TOOL_TIMEOUT_S = 20.0


def version_of(name: str, *arguments: str) -> str:
    """What a tool says of itself; empty where there is none that starts."""
    path = shutil.which(name)
    if path is None:
        return ""
    try:
        told = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = told.stdout.decode("utf-8", "replace").splitlines()
    return lines[0][:100] if lines and told.returncode == 0 else ""


def look(config: dict[str, Any]) -> dict[str, Any]:
    """The first of what each source has. Raises SourceError."""
    objects = []
    for source in open_sources(config):
        if isinstance(source, S3Source):
            first = next(list_objects(source.bucket, source.key, 1), None)
            # What begins with the key need not be the key.
            objects.append(first is not None and first.key == source.key)
        else:
            source.find(0, [] if config.get("names_b64") is not None else None)
            objects.append(True)
    return {"reachable": True, "objects": objects}


def main() -> None:
    config = json.loads(sys.stdin.buffer.readline())
    told: dict[str, Any] = {"reachable": False, "why": "", "hint": ""}
    if config.get("tools"):
        told["s5cmd"] = version_of("s5cmd", "version")
        told["aws"] = version_of("aws", "--version")
    try:
        told.update(look(config))
    except SourceError as error:
        told.update(why=error.why, hint=error.hint, kind=error.kind)
    print(json.dumps(told))
