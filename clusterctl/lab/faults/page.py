"""The page `/_lab/faults`: GET lists the faults, POST sets one, DELETE clears one or all.

`describe` has the text that lists show for a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from clusterctl.lab.faults.hosts import HostFault
from clusterctl.lab.faults.kinds import (
    ANY,
    ApiError,
    Boot,
    Capacity,
    Delay,
    Event,
    Fault,
    ImpairedVolumes,
    Lag,
    LostAnswer,
    QuotaFault,
    SameIndex,
    Throttle,
    kind_of,
    read_fault,
)
from clusterctl.lab.faults.store import FAULTS, ActiveFault
from clusterctl.lab.hosts.tracker import TRACKER
from clusterctl.lab.wsgi import read_json

PATH = "/_lab/faults"
# The fields of a Lag, in words.
_SAME = ("tags", "states", "addresses", "groups", "volumes")
LAGGING = {"visible_s": "instances", "console_s": "consoles"}
LAGGING |= {f"{name}_s": name for name in _SAME} | {"spot_s": "spot requests"}


def shown(one: ActiveFault) -> dict[str, Any]:
    """Return a fault as the page's JSON shows it."""
    return {
        "id": one.id,
        "kind": kind_of(one.fault),
        "text": describe(one.fault),
        "problem": TRACKER.problem(getattr(one.fault, "instance_id", "")),
        **asdict(one.fault),
        "times_left": one.left,
        "skip_left": one.skip,
    }


def serve(
    environ: dict[str, Any], admit: Callable[[Fault], Fault], settle: Callable[[], object]
) -> dict[str, Any]:
    """Carry out a request for the page, and return its answer. Raise ClusterctlError to refuse.

    `admit` checks a fault against what the lab has, and completes it. `settle` waits until the
    faults of hosts are applied.
    """
    method = environ["REQUEST_METHOD"]
    if method == "POST":
        made = FAULTS.add(admit(read_fault(read_json(environ))))
        _settle([made], settle)
        return shown(made)
    if method == "DELETE":
        id = parse_qs(environ.get("QUERY_STRING", "")).get("id", [None])[0]
        cleared = FAULTS.clear(id)
        _settle(cleared, settle)
        return {"cleared": [shown(one) for one in cleared]}
    return {
        "faults": [shown(one) for one in FAULTS.standing()],
        "visibility_s": FAULTS.visibility_s,
        "console_delay_s": FAULTS.console_delay_s,
    }


def _settle(changed: list[ActiveFault], settle: Callable[[], object]) -> None:
    """Wait for the hosts if a fault of a host has changed."""
    if any(isinstance(one.fault, HostFault) for one in changed):
        settle()


def describe(fault: Fault) -> str:
    """Return a fault in words, such as `2 more p3.2xlarge in us-east-1a`."""
    if isinstance(fault, Capacity):
        return f"{fault.left} more {fault.instance_type} in {fault.zone}"
    if isinstance(fault, Throttle):
        return f"{_action(fault.action)}: {fault.rate:g} a second, {fault.burst} at once"
    if isinstance(fault, ApiError):
        when = "carried out, then" if fault.after else "answered with"
        return f"{_action(fault.action)}: {when} {fault.code}"
    if isinstance(fault, LostAnswer):
        return f"{_action(fault.action)}: carried out, never answered"
    if isinstance(fault, Delay):
        return f"{_action(fault.action)}: {fault.seconds:g} s late"
    if isinstance(fault, Boot):
        return _boot(fault)
    if isinstance(fault, Lag):
        late = ", ".join(
            f"{words} {getattr(fault, name):g} s late"
            for name, words in LAGGING.items()
            if getattr(fault, name) is not None
        )
        again = "half of the reads in time" if fault.reordered else ""
        return ", ".join(filter(None, [late, again])) or "reads in order"
    if isinstance(fault, Event):
        return f"{fault.instance_id}: {fault.code} in {fault.in_s:g} s"
    if isinstance(fault, ImpairedVolumes):
        return f"{fault.instance_id}: its attached EBS status check fails"
    if isinstance(fault, SameIndex):
        return "every spot instance has the launch index 0"
    if isinstance(fault, QuotaFault):
        return f"{fault.code} is {fault.value:g}"
    return fault.words


def _action(action: str) -> str:
    return "every action" if action == ANY else action


def _boot(fault: Boot) -> str:
    how = "never starts sshd" if fault.silent else f"{fault.slow_s:g} s late"
    how = f"dies with {fault.dies}" if fault.dies else how
    who = f"node {','.join(map(str, fault.nodes))}" if fault.nodes else "the next host"
    return f"{who}: {how}"
