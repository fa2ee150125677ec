"""The faults of running hosts. Each is set for one instance, and undone when it is cleared."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import format_bytes, format_link
from clusterctl.lab.faults.fields import Fault, flag, whole, word

# In the place of an instance id: all hosts.
ALL = "all"
# Bits per second.
SLOWEST_BIT, FASTEST_BIT = 1_000_000, 100_000_000_000
# Bytes.
LARGEST_VOLUME = 2**40

INSTANCE_ID = re.compile(r"i-[0-9a-f]{8,17}")
_INSTANCE_OR_ALL = re.compile(rf"{ALL}|{INSTANCE_ID.pattern}")


@dataclass(frozen=True)
class HostFault(Fault):
    """A fault of one host. `effect` is its key in the daemon's `NO_FAULTS`, `degree` the value.

    `instances` is the pattern of the instance ids that the kind takes.
    """

    instance_id: str

    subject: ClassVar[tuple[str, ...]] = ("instance_id",)
    effect: ClassVar[str]
    instances: ClassVar[re.Pattern[str]] = INSTANCE_ID

    def __post_init__(self) -> None:
        word("an instance id", self.instance_id, self.instances)

    @property
    def degree(self) -> Any:
        """The value of the effect, as the daemon takes it."""
        return True


@dataclass(frozen=True)
class Frozen(HostFault):
    """All processes of a running host are stopped."""

    kind: ClassVar[str] = "freeze"
    text: ClassVar[str] = "{0.instance_id}: stands still"
    effect: ClassVar[str] = "frozen"


@dataclass(frozen=True)
class Cut(HostFault):
    """The network link of a running host is down."""

    kind: ClassVar[str] = "cut"
    text: ClassVar[str] = "{0.instance_id}: its link is down"
    effect: ClassVar[str] = "cut"


@dataclass(frozen=True)
class Shape(HostFault):
    """The rate of a host's link in bits per second, to the host and from it; 0 means no limit.

    The instance `all` stands for every host without a shape of its own, later hosts included.
    """

    down: int = 0
    up: int = 0

    kind: ClassVar[str] = "shape"
    effect: ClassVar[str] = "shape"
    instances: ClassVar[re.Pattern[str]] = _INSTANCE_OR_ALL

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
class Filled(HostFault):
    """A host's /data is full except for `left` bytes, counted when the fault is applied."""

    left: int = 0

    kind: ClassVar[str] = "fill"
    effect: ClassVar[str] = "left"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("the bytes left", self.left, most=LARGEST_VOLUME)

    @property
    def degree(self) -> Any:
        return self.left

    @property
    def words(self) -> str:
        return f"{self.instance_id}: /data is full but for {format_bytes(self.left)}"


@dataclass(frozen=True)
class ReadOnly(HostFault):
    """A host's /data is read-only, as after a failure of its volume."""

    kind: ClassVar[str] = "readonly"
    text: ClassVar[str] = "{0.instance_id}: /data is read-only"
    effect: ClassVar[str] = "readonly"


@dataclass(frozen=True)
class BrokenGpu(HostFault):
    """What is wrong with one simulated GPU of a host.

    It is lost, has `ecc` uncorrectable ECC errors, has a memory row to remap, holds `memory` MiB
    that are never freed, or the kernel logs an Xid error for it. Several can be combined.
    """

    gpu: int = 0
    lost: bool = False
    ecc: int = 0
    remap: str = ""
    xid: int = 0
    memory: int = 0

    kind: ClassVar[str] = "gpu"
    effect: ClassVar[str] = "gpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("lost", self.lost)
        for what in ("gpu", "ecc", "xid", "memory"):
            whole(what, getattr(self, what))
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


KINDS = (Frozen, Cut, Shape, Filled, ReadOnly, BrokenGpu)
