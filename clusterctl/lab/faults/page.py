"""The page `/_lab/faults`: GET lists the faults, POST sets one, DELETE clears one or all.

A fault has to be about something that the lab has. A misspelt one would never strike.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from moto.core.utils import get_service_model
from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.domain.errors import UsageError
from clusterctl.lab.ec2.capacity import used
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import all_instances
from clusterctl.lab.faults.fields import Fault
from clusterctl.lab.faults.hosts import ALL, HostFault, Shape
from clusterctl.lab.faults.kinds import ANY, Capacity, read_fault
from clusterctl.lab.faults.store import FAULTS, ActiveFault
from clusterctl.lab.hosts.instances import LabInstance
from clusterctl.lab.hosts.tracker import TRACKER
from clusterctl.lab.requirements import check_shaping
from clusterctl.lab.wsgi import read_json

# The services that faults can strike, under botocore's names.
SERVICES = ("ec2", "ssm", "service-quotas", "pricing", "cloudformation", "sts", "iam", "cloudwatch")


def admit(fault: Fault) -> Fault:
    """Check a fault, and return it with the lab's own facts filled in.

    Raise UsageError, or MissingTool or LabError if the machine cannot shape links.
    """
    if isinstance(fault, Capacity):
        kind = fault.instance_type
        if kind not in INSTANCE_TYPES:
            raise UsageError(f"the lab has no instance type {kind}")
        zones = offered_zones(fault.zone[:-1], kind)
        if fault.zone not in zones:
            raise UsageError(
                f"no {kind} is offered in {fault.zone}",
                f"it is in {', '.join(zones)}" if zones else "name a zone, for example us-east-1a",
            )
        return Capacity(kind, fault.zone, fault.left, used(kind, fault.zone))
    instance_id = getattr(fault, "instance_id", ALL)
    states = {ALL: "running", **{one.id: one.state for one in all_instances()}}
    if instance_id not in states:
        raise UsageError(f"no instance {instance_id}", "see `clusterctl lab status`")
    if states[instance_id] != "running":
        raise UsageError(f"{instance_id} is {states[instance_id]}, not running")
    if isinstance(fault, Shape):
        check_shaping()
    action = getattr(fault, "action", ANY)
    names = [get_service_model(one).operation_names for one in SERVICES if action != ANY]
    if names and not any(action in one for one in names):
        near = difflib.get_close_matches(action, {name for one in names for name in one}, n=1)
        raise UsageError(
            f"no API action is called {action}",
            f"did you mean {near[0]}?" if near else "for example RunInstances, or * for all",
        )
    return fault


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
        made = FAULTS.add(admit(read_fault(read_json(environ))))
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
