"""What the supervisor does next about an instance: the difference of wanted and seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WantedInstance:
    """An instance as the API has it. `held`: it is to boot later; `doomed`: it dies at boot."""

    state: str
    reboot: bool = False
    terminate_on_shutdown: bool = False
    held: bool = False
    doomed: bool = False


@dataclass(frozen=True)
class Seen:
    """Its host as the daemon has it: booting, up, or off and why."""

    state: str
    why: str = ""
    ssh: bool = False


@dataclass(frozen=True)
class Decision:
    """`order` is for the daemon, `state` the instance's next; empty means nothing to do."""

    order: str = ""
    state: str = ""


WAIT = Decision()


def decide(wanted: WantedInstance, seen: Seen | None) -> Decision:
    if wanted.state == "pending":
        return _pending(wanted, seen)
    if wanted.state == "running":
        return _running(wanted, seen)
    if wanted.state == "stopping":
        return _off(seen, Decision(state="stopped"))
    if wanted.state == "shutting-down":
        if seen is None:
            return Decision(state="terminated")
        return _off(seen, Decision(order="remove"))
    return WAIT


def _pending(wanted: WantedInstance, seen: Seen | None) -> Decision:
    if wanted.held:
        return WAIT
    if wanted.doomed:
        return Decision(state="stopping" if seen else "shutting-down")
    if seen is None:
        return Decision(order="create")
    if seen.state == "up":
        return Decision(state="running")
    if seen.state == "off":
        failed = seen.why.startswith("failed")
        return Decision(state="shutting-down") if failed else Decision(order="start")
    return WAIT


def _running(wanted: WantedInstance, seen: Seen | None) -> Decision:
    if seen is None or seen.state == "booting":
        return WAIT
    if seen.state == "up":
        return Decision(order="power_off") if wanted.reboot else WAIT
    if seen.why == "poweroff":
        return Decision(state="shutting-down" if wanted.terminate_on_shutdown else "stopping")
    return Decision(order="boot")


def _off(seen: Seen | None, then: Decision) -> Decision:
    if seen is not None and seen.state != "off":
        return Decision(order="power_off")
    return then
