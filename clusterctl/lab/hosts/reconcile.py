"""What the supervisor does next for an instance, from the wanted state and the host's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WantedInstance:
    """An instance as the API wants it.

    `held`: a fault delays its boot. `doomed`: a fault ends it while it boots.
    """

    state: str
    reboot: bool = False
    terminate_on_shutdown: bool = False
    held: bool = False
    doomed: bool = False


@dataclass(frozen=True)
class HostStatus:
    """A host as the daemon reports it. `state` is booting, up or off, `why` the reason for off."""

    state: str
    why: str = ""
    ssh: bool = False


@dataclass(frozen=True)
class Decision:
    """The next step: an order to the daemon, or the instance's next state. Empty means none."""

    order: str = ""
    state: str = ""


WAIT = Decision()


def decide(wanted: WantedInstance, host: HostStatus | None) -> Decision:
    """Return the next step for an instance. `host` is None if it has no host."""
    if wanted.state == "pending":
        return _pending(wanted, host)
    if wanted.state == "running":
        return _running(wanted, host)
    if wanted.state == "stopping":
        return _off(host, Decision(state="stopped"))
    if wanted.state == "shutting-down":
        if host is None:
            return Decision(state="terminated")
        return _off(host, Decision(order="remove"))
    return WAIT


def _pending(wanted: WantedInstance, host: HostStatus | None) -> Decision:
    if wanted.held:
        return WAIT
    if wanted.doomed:
        # An instance that has a host was stopped before, and goes back to that.
        return Decision(state="stopping" if host else "shutting-down")
    if host is None:
        return Decision(order="create")
    if host.state == "up":
        return Decision(state="running")
    if host.state == "off":
        failed = host.why.startswith("failed")
        return Decision(state="shutting-down") if failed else Decision(order="start")
    return WAIT


def _running(wanted: WantedInstance, host: HostStatus | None) -> Decision:
    if host is None or host.state == "booting":
        return WAIT
    if host.state == "up":
        return Decision(order="power_off") if wanted.reboot else WAIT
    if host.why == "poweroff":
        return Decision(state="shutting-down" if wanted.terminate_on_shutdown else "stopping")
    return Decision(order="boot")


def _off(host: HostStatus | None, then: Decision) -> Decision:
    """Power the host off first, if it is not off yet, and decide `then` after that."""
    if host is not None and host.state != "off":
        return Decision(order="power_off")
    return then
