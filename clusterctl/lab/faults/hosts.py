"""The faults of running hosts. Each is set for one instance, and undone when it is cleared."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import format_bytes, format_link
from clusterctl.lab.faults.fields import Fault, checked, flag, whole, word

# In the place of an instance id: all hosts.
ALL = "all"
# Bits per second.
SLOWEST_BIT, FASTEST_BIT = 1_000_000, 100_000_000_000
# Bytes.
LARGEST_VOLUME = 2**40

INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")
_INSTANCE_OR_ALL = re.compile(rf"{ALL}|{INSTANCE_ID.pattern}")


@dataclass(frozen=True)
class HostFault(Fault, subject=("instance_id",)):
    """A fault of one host. `effect` is its key in the daemon's `NO_FAULTS`, `degree` the value."""

    instance_id: str = checked(word, "an instance id", INSTANCE_ID)

    effect: ClassVar[str]

    @property
    def degree(self) -> Any:
        """The value of the effect, as the daemon takes it."""
        return True


@dataclass(frozen=True)
class Frozen(HostFault, kind="freeze", effect="frozen", text="{0.instance_id}: stands still"):
    """All processes of a running host are stopped."""


@dataclass(frozen=True)
class Cut(HostFault, kind="cut", effect="cut", text="{0.instance_id}: its link is down"):
    """The network link of a running host is down."""


@dataclass(frozen=True)
class ReadOnly(
    HostFault, kind="readonly", effect="readonly", text="{0.instance_id}: /data is read-only"
):
    """A host's /data is read-only, as after a failure of its volume."""


@dataclass(frozen=True)
class Shape(HostFault, kind="shape", effect="shape"):
    """The rate of a host's link in bits per second, to the host and from it; 0 means no limit.

    The instance `all` stands for every host without a shape of its own, later hosts included.
    """

    instance_id: str = checked(word, "an instance id", _INSTANCE_OR_ALL)
    down: int = 0
    up: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, rate in (("down", self.down), ("up", self.up)):
            if rate != 0:
                whole(f"the rate {what} in bits a second", rate, SLOWEST_BIT, FASTEST_BIT)
        if not (self.down or self.up):
            raise UsageError("no rate is given", "name --rate, or --down and --up")

    @property
    def degree(self) -> Any:
        return [self.down, self.up]

    @property
    def words(self) -> str:
        who = "every host" if self.instance_id == ALL else self.instance_id
        if self.down == self.up:
            return f"{who}: {format_link(self.down / 8)} down and up"
        rates = (("down", self.down), ("up", self.up))
        return f"{who}: " + ", ".join(
            f"{format_link(rate / 8)} {way}" for way, rate in rates if rate
        )


@dataclass(frozen=True)
class Filled(HostFault, kind="fill", effect="left"):
    """A host's /data is full except for `left` bytes, counted when the fault is applied."""

    left: int = checked(whole, "the bytes left", default=0, most=LARGEST_VOLUME)

    @property
    def degree(self) -> Any:
        return self.left

    @property
    def words(self) -> str:
        return f"{self.instance_id}: /data is full but for {format_bytes(self.left)}"


@dataclass(frozen=True)
class BrokenGpu(HostFault, kind="gpu", effect="gpu"):
    """What is wrong with one simulated GPU of a host.

    It is lost, has `ecc` uncorrectable ECC errors, has a memory row to remap, holds `memory` MiB
    that are never freed, or the kernel logs an Xid error for it. Several can be combined.
    """

    gpu: int = checked(whole, "gpu", default=0)
    lost: bool = checked(flag, "lost", default=False)
    ecc: int = checked(whole, "ecc", default=0)
    remap: str = ""
    xid: int = checked(whole, "xid", default=0)
    memory: int = checked(whole, "memory", default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.remap not in ("", "pending", "failed"):
            raise UsageError("a remapped row is pending or failed", "choose one of them")
        if not (self.lost or self.ecc or self.remap or self.xid or self.memory):
            hint = "name --lost, --ecc, --remap, --memory or --xid"
            raise UsageError("nothing is wrong with it", hint)

    @property
    def degree(self) -> Any:
        return {name: value for name, value in asdict(self).items() if name != "instance_id"}

    @property
    def words(self) -> str:
        wrong = (
            "is lost" if self.lost else "",
            f"has {self.ecc} uncorrectable errors" if self.ecc else "",
            f"has a remapped row {self.remap}" if self.remap else "",
            f"holds {self.memory} MiB" if self.memory else "",
            f"Xid {self.xid}" if self.xid else "",
        )
        return f"{self.instance_id}: GPU {self.gpu}: {', '.join(filter(None, wrong))}"
