"""Late answers: for a while after a change, reads show what was there before it.

EC2 is eventually consistent (EC2's developer guide, "Eventual consistency in the Amazon EC2 API").
Before each change, `remember` keeps a copy of what it may change, as long as a `Lag` needs it. The
methods that answer reads ask `shown` for the part that this request is to show.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from moto.ec2.models import EC2Backend
from moto.ec2.models.elastic_network_interfaces import NetworkInterface

from clusterctl.lab.ec2.completion import LAB, replace, setup

Copier = Callable[[Any], Any]


def _copies(items: dict[str, Any], *lists: str) -> dict[str, Any]:
    """Return copies of the items, with copies of these lists that they have."""
    made = {id: copy.copy(one) for id, one in list(items.items())}
    for one in made.values():
        vars(one).update({name: [*getattr(one, name)] for name in lists})
    return made


def _groups(backend: Any) -> Any:
    rules = ("ingress_rules", "egress_rules")
    return {vpc: _copies(groups, *rules) for vpc, groups in list(backend.groups.items())}


# What a Lag names -> how to copy that part of an account's EC2 in a region.
PARTS: dict[str, Copier] = {
    "tags": lambda backend: {
        **{one.id: {} for one in backend.all_instances()},
        **{id: dict(tags) for id, tags in list(backend.tags.items())},
    },
    "states": lambda backend: {
        one.id: copy.copy(one.true_state) for one in backend.all_instances()
    },
    "addresses": lambda backend: (
        [copy.copy(one) for one in backend.addresses],
        {nic.id: vars(nic).get("_public_ip") for nic in list(backend.enis.values())},
    ),
    "groups": _groups,
    "volumes": lambda backend: _copies(backend.volumes, "modifications"),
    "spot": lambda backend: dict(backend.spot_instance_requests),
}


# A copy of the parts that lag, made just before a change at this time (monotonic).
Past = tuple[float, dict[str, Any]]
_lock = threading.Lock()
_dice = random.Random(0)  # noqa: S311
_request = threading.local()


def remember(backend: Any) -> None:
    """Keep a copy of what is about to change, if a Lag will show it."""
    lags = {what: lag_s for what in PARTS if (lag_s := LAB.lag_s(what))}
    if not lags:
        return
    now = time.monotonic()
    with _lock:
        kept = _kept(backend)
        while kept and kept[0][0] < now - max(lags.values()):
            kept.popleft()
        kept.append((now, {what: PARTS[what](backend) for what in lags}))


def _kept(backend: Any) -> deque[Past]:
    # Kept on the backend, of which moto has one per account and region and which its reset clears.
    kept: deque[Past] = vars(backend).setdefault("lab_past", deque())
    return kept


@contextlib.contextmanager
def reading(backend: Any) -> Iterator[None]:
    """Have `shown` return what a read is to show now, in this thread, inside the `with`."""
    _request.in_time = LAB.reordered() and _dice.random() < 0.5
    _request.parts = {} if _request.in_time else _due(backend)
    try:
        yield
    finally:
        _request.parts, _request.in_time = {}, False


def shown(what: str) -> Any:
    """Return the past part that the read of this thread shows; None where it shows the present."""
    return getattr(_request, "parts", {}).get(what)


def in_time() -> bool:
    """Return whether the read of this thread shows what there is, among others that are late."""
    return getattr(_request, "in_time", False)


def _due(backend: Any) -> dict[str, Any]:
    with _lock:
        kept = [*_kept(backend)]
    now, due = time.monotonic(), {}
    for what in PARTS:
        since = now - LAB.lag_s(what)
        past = [parts[what] for until, parts in kept if until > since and what in parts]
        due.update({what: past[0]} if past else {})
    return due


@setup
def _show_the_past() -> None:
    """Have descriptions of addresses, groups, volumes and spot requests show the past."""

    def public_ip(nic: Any) -> Any:
        then = shown("addresses")
        return then[1].get(nic.id) if then else vars(nic)["_public_ip"]

    def set_public_ip(nic: Any, address: Any) -> None:
        vars(nic)["_public_ip"] = address

    NetworkInterface.public_ip = property(public_ip, set_public_ip)  # type: ignore[assignment]
    for part, attribute in (
        ("addresses", "addresses"),
        ("security_groups", "groups"),
        ("volumes", "volumes"),
        ("spot_instance_requests", "spot_instance_requests"),
    ):
        replace(EC2Backend, f"describe_{part}", functools.partial(_describe, attribute))


def _describe(attribute: str, describe: Any) -> Callable[..., Any]:
    """Return moto's method, for which this attribute of the backend is the past one."""
    part = "spot" if attribute.startswith("spot") else attribute

    def past(backend: Any, *given: Any, **named: Any) -> Any:
        then = shown(part)
        then = then[0] if then and part == "addresses" else then
        stale = backend if then is None else SimpleNamespace(**{attribute: then})
        return describe(stale, *given, **named)

    return past
