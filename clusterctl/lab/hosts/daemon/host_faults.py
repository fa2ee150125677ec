"""The faults of a running host, and what each degree of one means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.lab.hosts.daemon import freezing, network, shaping, volumes

# Fault -> its degree where a host has not got it.
UNHARMED: Mapping[str, Any] = {
    "frozen": False,
    "cut": False,
    "shape": None,  # or bits a second down and up, 0 for no limit
    "left": None,  # or bytes
    "readonly": False,
}
# These are gone with its processes, its link and its mounts. The others it keeps.
ENDED_WITH_THE_BOOT: Mapping[str, Any] = {"frozen": False, "cut": False, "readonly": False}


@dataclass(frozen=True)
class HostState:
    """A host that runs: its PID 1, the other end of its link, and the volume of its /data."""

    pid: int
    link: str
    data: Path = Path()


def freeze(host: HostState, frozen: bool) -> None:
    (freezing.freeze if frozen else freezing.thaw)(host.pid)


def cut(host: HostState, down: bool) -> None:
    network.ip_batch([f"link set {host.link} {'down' if down else 'up'}"], check=False)


def shape(host: HostState, rates: list[int] | None) -> None:
    shaping.shape(host.link, host.pid, *(rates or (0, 0)))


def fill(host: HostState, left: int | None) -> None:
    volumes.fill(host.data, left)


def set_readonly(host: HostState, readonly: bool) -> None:
    volumes.set_readonly(host.pid, readonly)


APPLY_FAULT: Mapping[str, Callable[[HostState, Any], None]] = {
    "frozen": freeze,
    "cut": cut,
    "shape": shape,
    "left": fill,
    "readonly": set_readonly,
}
