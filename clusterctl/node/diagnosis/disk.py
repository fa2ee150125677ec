"""Runs on a node: how full its file systems are, how fast they grow, and which folders fill those
that are nearly full. JSON in, JSON out.

stdin: {"apart_s": SECONDS, "walk_s": SECONDS, "full": SHARE}. Prints {"filesystems": [...],
"errors": {...}}. A file system has what `host.filesystem` returns, and "grows" in bytes per second,
measured over `apart_s`. If it is at least as full as SHARE, it also has "fills": [[FOLDER, BYTES]],
largest first, and "whole": whether all folders were read within `walk_s`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

from clusterctl.node.diagnosis import host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_FOLDERS = 5
# If one subfolder has at least this share of a folder, the subfolder is named in its place.
MOST_OF_IT = 0.8


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what is printed."""
    first, _ = _systems()
    began = time.monotonic()
    time.sleep(asked["apart_s"])
    last, errors = _systems()
    apart_s = time.monotonic() - began
    for path, system in last.items():
        before = first.get(path)
        system["grows"] = (system["used_bytes"] - before["used_bytes"]) / apart_s if before else 0.0
    full = [path for path, system in last.items() if share(system) >= asked["full"]]
    walks = {path: partial(largest, path, asked["walk_s"]) for path in full}
    answers, more = host.ask(walks, asked["walk_s"] + host.WITHIN_S)
    for path, answer in answers.items():
        last[path].update(answer)
    return {"filesystems": list(last.values()), "errors": {**errors, **more}}


def _systems() -> tuple[dict[str, Any], dict[str, str]]:
    return host.ask({path: partial(host.filesystem, path) for path in host.mounts()}, host.WITHIN_S)


def share(system: dict[str, Any]) -> float:
    """Return the used share of the space that a user has, as df shows it."""
    room = system["used_bytes"] + system["free_bytes"]
    return system["used_bytes"] / room if room else 0.0


def largest(top: str, within_s: float) -> dict[str, Any]:
    """Return the largest folders below `top` on its file system, as far as read in `within_s`."""
    deadline = time.monotonic() + within_s
    device = os.lstat(top).st_dev
    sizes: dict[str, int] = {}
    waiting = [top]
    while waiting and time.monotonic() < deadline:
        folder = waiting.pop()
        own = 0
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    state = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        if state.st_dev == device:
                            waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        own += state.st_blocks * 512
        except OSError:
            continue
        # Its bytes also count in all folders above, up to `top`.
        while own:
            sizes[folder] = sizes.get(folder, 0) + own
            if folder == top:
                break
            folder = os.path.dirname(folder)  # noqa: PTH120
    return {"fills": _telling(sizes, top), "whole": not waiting}


def _telling(sizes: dict[str, int], top: str) -> list[list[object]]:
    """Return the largest folders. A folder that one subfolder nearly fills is replaced by its
    subfolders, and so is `top`."""
    told: list[list[object]] = []
    below: dict[str, list[str]] = {}
    for path in sizes:
        if path != top:
            below.setdefault(os.path.dirname(path), []).append(path)  # noqa: PTH120
    waiting = [top] if top in sizes else []
    while waiting and len(told) < MOST_FOLDERS:
        waiting.sort(key=lambda path: sizes[path])
        path = waiting.pop()
        inside = below.get(path, ())
        heavy = max((sizes[one] for one in inside), default=0)
        if heavy >= MOST_OF_IT * sizes[path] or (path == top and inside):
            waiting += inside
        else:
            told.append([path, sizes[path]])
    return told


def main() -> None:
    print(json.dumps(look(json.loads(sys.stdin.buffer.read()))))
