"""A fault in words, for lists."""

from __future__ import annotations

from clusterctl.lab.faults.kinds import (
    ANY,
    ApiError,
    Boot,
    Capacity,
    Delay,
    Fault,
    Lag,
    Lost,
    Quota,
    Throttle,
)


def describe(fault: Fault) -> str:
    """`2 more p3.2xlarge in us-east-1a`."""
    if isinstance(fault, Capacity):
        return f"{fault.left} more {fault.instance_type} in {fault.zone}"
    if isinstance(fault, Throttle):
        return f"{_action(fault.action)}: {fault.rate:g} a second, {fault.burst} at once"
    if isinstance(fault, ApiError):
        when = "carried out, then" if fault.after else "answered with"
        return f"{_action(fault.action)}: {when} {fault.code}"
    if isinstance(fault, Lost):
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
    if isinstance(fault, Quota):
        return f"{fault.code} is {fault.value:g}"
    return fault.words


def _action(action: str) -> str:
    return "every action" if action == ANY else action


def _boot(fault: Boot) -> str:
    how = "never starts sshd" if fault.silent else f"{fault.slow_s:g} s late"
    how = f"dies with {fault.dies}" if fault.dies else how
    who = f"node {','.join(map(str, fault.nodes))}" if fault.nodes else "the next host"
    return f"{who}: {how}"
