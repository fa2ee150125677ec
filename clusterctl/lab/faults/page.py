"""The page `/_lab/faults`: GET lists the faults, POST sets one, DELETE clears one or all."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from clusterctl.lab.faults import checks
from clusterctl.lab.faults.hosts import HostFault
from clusterctl.lab.faults.kinds import read_fault
from clusterctl.lab.faults.store import FAULTS, ActiveFault
from clusterctl.lab.hosts.instances import LabInstance
from clusterctl.lab.hosts.tracker import TRACKER
from clusterctl.lab.wsgi import read_json

PATH = "/_lab/faults"
# How long a request that sets or clears a host's fault waits for the supervisor to apply it.
HOSTS_WITHIN_S = 3.0


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


def serve(environ: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request for the page, and return its answer. Raise ClusterctlError to refuse."""
    method = environ["REQUEST_METHOD"]
    if method == "POST":
        made = FAULTS.add(checks.admit(read_fault(read_json(environ))))
        if isinstance(made.fault, HostFault):
            TRACKER.wait(LabInstance.changed.set, HOSTS_WITHIN_S)
        return shown(made)
    if method == "DELETE":
        id = parse_qs(environ.get("QUERY_STRING", "")).get("id", [None])[0]
        cleared = FAULTS.clear(id)
        if any(isinstance(one.fault, HostFault) for one in cleared):
            TRACKER.wait(LabInstance.changed.set, HOSTS_WITHIN_S)
        return {"cleared": [shown(one) for one in cleared]}
    return {
        "faults": [shown(one) for one in FAULTS.standing()],
        "visibility_s": FAULTS.visibility_s,
        "console_delay_s": FAULTS.console_delay_s,
    }
