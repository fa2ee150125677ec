"""What a guard is told: the file guard.json, also as the launcher writes it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

IMDS = "http://169.254.169.254"


@dataclass(frozen=True)
class Worker:
    """A node that the head node asks, under its address inside the network."""

    name: str
    address: str


@dataclass(frozen=True)
class GuardSettings:
    """When to end. None: no such limit.

    `lifetime_s` counts the seconds that the machine has run since it was made, in all its boots;
    the time for which it was stopped is not counted, since it is not paid for. `ends_at` is a
    Unix time. The earlier of the two holds. `index` is None until `up` has made the node part of
    its cluster, and in quarantine; the head node (0) judges for all its `workers` whether the
    cluster idles.
    `at_power_off` is what EC2 does when the machine switches itself off: `stop` keeps the disks,
    `terminate` deletes them; empty where nobody has said.
    """

    cluster: str
    index: int | None = None
    lifetime_s: float | None = None
    ends_at: float | None = None
    idle_s: float | None = None
    spot: bool = False
    user: str = ""
    workers: tuple[Worker, ...] = ()
    imds: str = IMDS
    at_power_off: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError where a value makes no sense."""
        for name in ("lifetime_s", "ends_at", "idle_s"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < 1e12):
                raise ValueError(f"{name} is not a time: {value!r}")
        words = [self.cluster, self.user, *(word for one in self.workers for word in _words(one))]
        for word in words:
            # They end up on ssh's command line, where none may look like an option.
            if not isinstance(word, str) or not re.fullmatch(r"|\w[\w.:-]*", word, re.ASCII):
                raise ValueError(f"not a name or address: {word!r}")
        if self.index is not None and not _is_index(self.index):
            raise ValueError(f"not an index: {self.index!r}")
        if not isinstance(self.spot, bool):
            raise ValueError(f"spot is true or false, not {self.spot!r}")
        if self.at_power_off not in ("", "stop", "terminate"):
            raise ValueError(f"at a power-off EC2 stops or terminates: {self.at_power_off!r}")
        if not isinstance(self.imds, str) or not self.imds.startswith("http://"):
            raise ValueError(f"not an address of the metadata service: {self.imds!r}")

    @property
    def guards(self) -> bool:
        """Whether there is anything to watch."""
        return any((self.lifetime_s, self.ends_at, self.idle_s, self.spot))

    @property
    def fate(self) -> str:
        """What becomes of the machine, for those who are logged in."""
        kept = {"stop": "stopped (its disk stays)", "terminate": "terminated (with its disk)"}
        return kept.get(self.at_power_off, "switched off")

    @property
    def name(self) -> str:
        return self.cluster if self.index is None else f"{self.cluster}-{self.index}"

    def text(self) -> str:
        """The file: the same text for the same settings."""
        default = asdict(GuardSettings(self.cluster))
        said = {key: value for key, value in asdict(self).items() if value != default[key]}
        return json.dumps({"cluster": self.cluster, **said}, indent=1, sort_keys=True) + "\n"


def parse_settings(text: str) -> GuardSettings:
    """The settings in a file. Raises ValueError; what a newer launcher may add is passed over."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
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


def _words(worker: Worker) -> tuple[str, str]:
    return worker.name, worker.address


def _is_number(value: object) -> bool:
    is_plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_plain and math.isfinite(value)  # type: ignore[arg-type]


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
