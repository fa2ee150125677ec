"""The lab's page `/_lab/faults`: GET lists the faults set, POST sets one, DELETE clears."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from clusterctl.domain.errors import ClusterctlError
from clusterctl.lab.faults.hosts import HostFault
from clusterctl.lab.faults.kinds import Fault, kind_of, read_fault
from clusterctl.lab.faults.store import FAULTS, Standing
from clusterctl.lab.faults.words import describe
from clusterctl.lab.hosts.tracker import LOOKS

PATH = "/_lab/faults"
BODY_LIMIT = 65536

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def with_fault_page(
    api: Wsgi, admit: Callable[[Fault], Fault], settle: Callable[[], object]
) -> Wsgi:
    """The page before an API.

    `admit` checks a fault against what the lab has, and completes it; `settle` waits until hosts
    are as the faults have it.
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
    """A fault as JSON has it."""
    return {
        "id": one.id,
        "kind": kind_of(one.fault),
        "text": describe(one.fault),
        "problem": LOOKS.problem(getattr(one.fault, "instance_id", "")),
        **asdict(one.fault),
        "times_left": one.left,
        "skip_left": one.skip,
    }


def _serve(
    environ: dict[str, Any], admit: Callable[[Fault], Fault], settle: Callable[[], object]
) -> dict[str, Any]:
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
    if any(isinstance(one.fault, HostFault) for one in changed):
        settle()


def _body(environ: dict[str, Any]) -> object:
    """What was sent; None if it is not JSON."""
    length = environ.get("CONTENT_LENGTH") or "0"
    content = environ["wsgi.input"].read(min(int(length), BODY_LIMIT)) if length.isdigit() else b""
    try:
        value: object = json.loads(content)
    except ValueError:
        return None
    return value
