"""Facts about a node as data, for `doctor`, `watch` and `diagnose`."""

from __future__ import annotations

import time
from functools import partial

from clusterctl.node.facts import disks, gpus, network, report, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

WITHIN_S = 5.0  # timeout of each question, unless the caller has another


def facts(within_s: float = WITHIN_S) -> dict[str, Any]:
    """Return all facts by name. `errors` has the reasons for those that are missing. `clock` has
    the time before the first question and after the last."""
    clock = {"first_s": time.time()}
    every = (
        *(system.system, system.memory, system.limits, network.interfaces, network.efa),
        *(system.kernel_log, gpus.gpus, gpus.nvlink, gpus.fabric_manager),
    )
    questions: dict[str, Callable[[], Any]] = {one.__name__: one for one in every}
    asked = {f"mount {path}": partial(disks.mount, path) for path in disks.mount_points()}
    answers, errors = ask({**questions, **asked}, within_s)
    systems = [answers.pop(name) for name in asked if name in answers]
    clock["last_s"] = time.time()
    return {**answers, "filesystems": systems, "clock": clock, "errors": errors}


def ask(
    questions: Mapping[str, Callable[[], Any]], within_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Answer all questions in parallel. Return the answers by name, and the reasons for those that
    are missing."""
    readings = report.read(
        [report.Question(name, name, one, within_s) for name, one in questions.items()]
    )
    return (
        {one.label: one.value for one in readings if not one.error},
        {one.label: one.error for one in readings if one.error},
    )
