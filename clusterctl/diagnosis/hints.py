"""Hints for hosts without a cluster: what only a cluster's nodes have is left out."""

from __future__ import annotations

import re

# Commands that take `--hosts` and its like, as `diagnose` does.
_TAKES_HOSTS = ("diagnose",)


def without_cluster(hint: str, source: str) -> str:
    """Return a hint without the steps that need a cluster. `source` is the options that name the
    hosts, and stands in the hint in the place of a cluster's name.

    A step ends at a semicolon. `clusterctl cancel` is said in words.
    """
    named = re.escape(source)
    hint = re.sub(rf"\s*\(clusterctl cancel {named}\)", "", hint)
    hint = re.sub(rf"clusterctl cancel {named}", "end the job", hint)
    steps = re.split(r"; ", hint)
    return "; ".join(step for step in steps if not _needs_cluster(step, named))


def _needs_cluster(step: str, named: str) -> bool:
    commands = re.findall(rf"clusterctl ([\w-]+) {named}", step)
    return any(one not in _TAKES_HOSTS for one in commands)
