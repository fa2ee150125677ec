"""The page `/_lab/faults`: GET lists the faults, POST sets one, DELETE clears one or all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from clusterctl.lab.faults.fields import Fault
from clusterctl.lab.faults.hosts import HostFault
from clusterctl.lab.faults.kinds import read_fault
from clusterctl.lab.faults.store import FAULTS, ActiveFault
from clusterctl.lab.hosts.tracker import TRACKER
from clusterctl.lab.wsgi import read_json

PATH = "/_lab/faults"


def shown(one: ActiveFault) -> dict[str, Any]:
    return {
        "id": one.id,
        "kind": one.fault.kind,
        "text": one.fault.words,
        "problem": TRACKER.problem(getattr(one.fault, "instance_id", "")),
        **asdict(one.fault),
        "times_left": one.left,
        "skip_left": one.skip,
    }


def serve(
    environ: dict[str, Any], admit: Callable[[Fault], Fault], wait_for_hosts: Callable[[], object]
) -> dict[str, Any]:
    """Carry out a request for the page, and return its answer. Raise ClusterctlError to refuse.

    `admit` checks a fault against what the lab has, and completes it. `wait_for_hosts` waits
    until the faults of hosts are applied.
    """
    method = environ["REQUEST_METHOD"]
    if method == "POST":
        made = FAULTS.add(admit(read_fault(read_json(environ))))
        if isinstance(made.fault, HostFault):
            wait_for_hosts()
        return shown(made)
    if method == "DELETE":
        id = parse_qs(environ.get("QUERY_STRING", "")).get("id", [None])[0]
        cleared = FAULTS.clear(id)
        if any(isinstance(one.fault, HostFault) for one in cleared):
            wait_for_hosts()
        return {"cleared": [shown(one) for one in cleared]}
    return {
        "faults": [shown(one) for one in FAULTS.standing()],
        "visibility_s": FAULTS.visibility_s,
        "console_delay_s": FAULTS.console_delay_s,
    }
