"""The guard's settings: the file guard.json, which the launcher writes and the guard reads."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from clusterctl.node.guard.clock import object_in

IMDS = "http://169.254.169.254"
# A machine started after its time is up runs this long, so that its owner can set a new limit.
GRACE_S = 15 * 60.0


@dataclass(frozen=True)
class Worker:
    """A worker node, with its address inside the network."""

    name: str
    address: str


@dataclass(frozen=True)
class GuardSettings:
    """When the guard switches the machine off. None: no such limit.

    `lifetime_s` is the seconds that the machine may run in all its boots together. It does not
    depend on the wall clock, and time in which the machine is stopped does not count, since it is
    not paid for. `idle_s` is how long the cluster may idle. `index` is None until `up` has made
    the node part of its cluster, and in quarantine. The head node (index 0) decides for all its
    `workers` whether the cluster is idle, and logs in to them as `user`. `at_power_off` is what EC2
    does when the machine switches itself off: `stop` keeps the disks, `terminate` deletes them;
    empty if it is not known. `erases_store` is set if idleness may stop a node with data on its
    instance store, which that erases. `block_ends_at` is the Unix time at which EC2 begins to
    terminate the machines of its Capacity Block.
    """

    cluster: str
    index: int | None = None
    lifetime_s: float | None = None
    idle_s: float | None = None
    spot: bool = False
    user: str = ""
    workers: tuple[Worker, ...] = ()
    imds: str = IMDS
    at_power_off: str = ""
    block_ends_at: float | None = None
    erases_store: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if a value is invalid."""
        for name in ("lifetime_s", "idle_s", "block_ends_at"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < 1e12):
                raise ValueError(f"{name} is not a time: {value!r}")
        words = [word for one in self.workers for word in (one.name, one.address)]
        for word in (self.cluster, self.user, *words):
            # They are arguments of ssh, and must not be taken for its options.
            if not isinstance(word, str) or not re.fullmatch(r"|\w[\w.:-]*", word, re.ASCII):
                raise ValueError(f"not a name or address: {word!r}")
        if self.index is not None and not (type(self.index) is int and self.index >= 0):
            raise ValueError(f"not an index: {self.index!r}")
        for name in ("spot", "erases_store"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is true or false, not {getattr(self, name)!r}")
        if self.at_power_off not in ("", "stop", "terminate"):
            raise ValueError(f"at a power-off EC2 stops or terminates: {self.at_power_off!r}")
        if not isinstance(self.imds, str) or not self.imds.startswith("http://"):
            raise ValueError(f"not an address of the metadata service: {self.imds!r}")

    @property
    def guards(self) -> bool:
        """Whether any limit is set."""
        return any((self.lifetime_s, self.block_ends_at, self.idle_s, self.spot))

    @property
    def power_off_effect(self) -> str:
        """What happens to the machine, in words for logged-in users."""
        kept = {
            "stop": "stopped (its volumes stay, an instance store is erased)",
            "terminate": "terminated (with its disks)",
        }
        return kept.get(self.at_power_off, "switched off")

    @property
    def name(self) -> str:
        """The name of the node, or of its cluster before the node is part of it."""
        return self.cluster if self.index is None else f"{self.cluster}-{self.index}"

    def text(self) -> str:
        """Return the content of the file. Equal settings give the same text."""
        default = asdict(GuardSettings(self.cluster))
        changed = {key: value for key, value in asdict(self).items() if value != default[key]}
        return json.dumps({"cluster": self.cluster, **changed}, indent=1, sort_keys=True) + "\n"


def parse_settings(text: str) -> GuardSettings:
    """Return the settings in a file. Raises ValueError. Unknown names, which a newer launcher may
    write, are ignored."""
    found = object_in(text)
    known: dict[str, Any] = {
        name: found[name] for name in GuardSettings.__dataclass_fields__ if name in found
    }
    try:
        known["workers"] = tuple(
            Worker(one["name"], one["address"]) for one in known.get("workers", ())
        )
        return GuardSettings(**known)
    except (KeyError, TypeError) as wrong:
        raise ValueError(f"not the settings of a guard: {wrong}") from None


def _is_number(value: object) -> bool:
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)  # type: ignore[arg-type]
