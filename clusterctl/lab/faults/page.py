"""The page `/_lab/faults`: GET lists the faults, POST sets one, DELETE clears one or all.

`describe` has the text that lists show for a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from clusterctl.domain.errors import ClusterctlError
from clusterctl.lab.faults.hosts import HostFault
from clusterctl.lab.faults.kinds import (
    ANY,
    ApiError,
    Boot,
    Capacity,
    Delay,
    Fault,
    Lag,
    LostAnswer,
    QuotaFault,
    Throttle,
    kind_of,
    read_fault,
)
from clusterctl.lab.faults.store import FAULTS, Standing
from clusterctl.lab.hosts.tracker import TRACKER

PATH = "/_lab/faults"
BODY_LIMIT = 65536

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def with_fault_page(
    api: Wsgi, admit: Callable[[Fault], Fault], settle: Callable[[], object]
) -> Wsgi:
    """Return an application that answers requests for the page, and passes others to `api`.

    `admit` checks a fault against what the lab has, and completes it. `settle` waits until the
    faults of hosts are applied.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != PATH:
            return api(environ, start)
        try:
            status, said = "200 OK", _serve(environ, admit, settle)
        except ClusterctlError as refused:
            status, said = "400 Bad Request", {"error": refused.message, "hint": refused.hint}
        start(status, [("Content-Type", "application/json")])
        return [json.dumps(said).encode()]

    return answer


def shown(one: Standing) -> dict[str, Any]:
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


def _serve(
    environ: dict[str, Any], admit: Callable[[Fault], Fault], settle: Callable[[], object]
) -> dict[str, Any]:
    """Carry out a request for the page, and return its answer. Raise ClusterctlError to refuse."""
    method = environ["REQUEST_METHOD"]
    if method == "POST":
        made = FAULTS.add(admit(read_fault(_body(environ))))
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


def _settle(changed: list[Standing], settle: Callable[[], object]) -> None:
    """Wait for the hosts if a fault of a host has changed."""
    if any(isinstance(one.fault, HostFault) for one in changed):
        settle()


def _body(environ: dict[str, Any]) -> object:
    """Return the request's body, parsed; None if it is not JSON."""
    length = environ.get("CONTENT_LENGTH") or "0"
    content = environ["wsgi.input"].read(min(int(length), BODY_LIMIT)) if length.isdigit() else b""
    try:
        value: object = json.loads(content)
    except ValueError:
        return None
    return value


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
        return ", ".join(
            f"{what} {seconds:g} s late"
            for what, seconds in (("instances", fault.visible_s), ("consoles", fault.console_s))
            if seconds is not None
        )
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
