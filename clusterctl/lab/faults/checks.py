"""Checks that a fault is about something that the lab has. A misspelt one would never strike."""

from __future__ import annotations

import difflib

from moto.core.utils import get_service_model
from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.domain.errors import UsageError
from clusterctl.lab.ec2.capacity import used
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import all_instances
from clusterctl.lab.faults.fields import Fault
from clusterctl.lab.faults.hosts import ALL, Shape
from clusterctl.lab.faults.kinds import ANY, Capacity
from clusterctl.lab.requirements import check_shaping

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
