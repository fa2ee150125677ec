"""The kinds of faults. Each raises UsageError when it is made with values that make no sense."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.domain.errors import UsageError
from clusterctl.lab.faults.fields import (
    KINDS,
    MOST,
    Fault,
    checked,
    flag,
    number,
    text,
    whole,
    word,
)
from clusterctl.lab.faults.hosts import INSTANCE_ID

# In the place of an action: all of them.
ANY = "*"
LONGEST_S = 86400.0

_CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,99}")
_ACTION = re.compile(r"\*|[A-Z][A-Za-z0-9]{0,99}")
_TYPE = re.compile(r"[a-z0-9-]{1,40}\.[a-z0-9-]{1,40}")
_ZONE = re.compile(r"[a-z0-9-]{1,40}")
_QUOTA = re.compile(r"L-[0-9A-F]{8}")


@dataclass(frozen=True)
class Capacity(
    Fault,
    kind="capacity",
    text="{0.left} more {0.instance_type} in {0.zone}",
    subject=("instance_type", "zone"),
):
    """A zone has `left` more machines of a type, beside the `used` ones that run there already."""

    instance_type: str = checked(word, "an instance type", _TYPE)
    zone: str = checked(word, "an availability zone", _ZONE)
    left: int = checked(whole, "machines left")
    used: int = checked(whole, "machines used", default=0)


@dataclass(frozen=True)
class ActionFault(Fault):
    """A fault of the requests for an API action, or for all of them (ANY)."""

    action: str = checked(word, "an API action", _ACTION)

    def is_for(self, action: str) -> bool:
        return self.action in (ANY, action)

    @property
    def requests(self) -> str:
        return "every action" if self.action == ANY else self.action


@dataclass(frozen=True)
class Throttle(
    ActionFault,
    kind="throttle",
    text="{0.requests}: {0.rate:g} a second, {0.burst} at once",
    subject=("action",),
):
    """A token bucket for each action: `burst` requests at once, and `rate` more each second."""

    rate: float = checked(number, "the rate", MOST)
    burst: int = checked(whole, "the burst", least=1)


@dataclass(frozen=True)
class ApiError(ActionFault, kind="error"):
    """An error as the answer to a request, which is carried out first if `after` is set.

    The fault lets `skip` requests pass and then strikes `times` requests; `times` 0 means until it
    is cleared. An empty message and status 0 stand for AWS's own for that code.
    """

    code: str = checked(word, "an error code", _CODE)
    message: str = checked(text, "the message", default="")
    status: int = checked(whole, "the HTTP status", default=0)
    after: bool = checked(flag, "after", default=False)
    times: int = checked(whole, "times", default=1)
    skip: int = checked(whole, "skip", default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status != 0 and not 400 <= self.status <= 599:
            raise UsageError(f"an error's HTTP status is from 400 to 599, not {self.status}")

    @property
    def words(self) -> str:
        how = "carried out, then" if self.after else "answered with"
        return f"{self.requests}: {how} {self.code}"


@dataclass(frozen=True)
class LostAnswer(ActionFault, kind="lost", text="{0.requests}: carried out, never answered"):
    """A request is carried out, and then the connection is closed without an answer."""

    times: int = checked(whole, "times", default=1)
    skip: int = checked(whole, "skip", default=0)


@dataclass(frozen=True)
class Delay(
    ActionFault, kind="delay", text="{0.requests}: {0.seconds:g} s late", subject=("action",)
):
    """Each request waits so many seconds before it is carried out."""

    seconds: float = checked(number, "the delay", LONGEST_S)


@dataclass(frozen=True)
class Boot(Fault, kind="boot"):
    """How the next hosts boot: late, without sshd, or not at all.

    `dies` is the code of the StateReason of an instance whose host does not boot. `nodes` are the
    indices of the nodes that the fault is for; empty means all nodes.
    """

    slow_s: float = checked(number, "the time of a slow boot", LONGEST_S, default=0.0)
    silent: bool = checked(flag, "silent", default=False)
    dies: str = ""
    nodes: tuple[int, ...] = ()
    times: int = checked(whole, "times", default=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dies != "":
            word("a StateReason code", self.dies, _CODE)
        if sum((self.slow_s > 0, self.silent, self.dies != "")) != 1:
            raise UsageError("a boot is slow, or silent, or dies", "choose one of them")
        if not isinstance(self.nodes, (tuple, list)):
            raise UsageError(f"nodes is a list of indices, not {self.nodes!r}")
        object.__setattr__(self, "nodes", tuple(whole("a node index", n) for n in self.nodes))

    @property
    def words(self) -> str:
        how = "never starts sshd" if self.silent else f"{self.slow_s:g} s late"
        how = f"dies with {self.dies}" if self.dies else how
        who = f"node {','.join(map(str, self.nodes))}" if self.nodes else "the next host"
        return f"{who}: {how}"


# The fields of a Lag, in words.
_SAME = ("tags", "states", "addresses", "groups", "volumes")
LAGGING = {"visible_s": "instances", "console_s": "consoles"} | {f"{one}_s": one for one in _SAME}
LAGGING |= {"spot_s": "spot requests", "places_s": "free places"}


@dataclass(frozen=True)
class Lag(Fault, kind="lag", subject=()):
    """How many seconds late EC2 shows what there is. None leaves a time unchanged.

    `visible_s` is for new instances and `console_s` for consoles. The others are for what has
    changed: tags, the states of instances, elastic addresses and who has them, security groups,
    volumes, spot requests, the free places of reservations. `reordered`: half of the reads show
    what there is at once, so that an answer may be older than the one before it.
    """

    visible_s: float | None = None
    console_s: float | None = None
    tags_s: float | None = None
    states_s: float | None = None
    addresses_s: float | None = None
    groups_s: float | None = None
    volumes_s: float | None = None
    spot_s: float | None = None
    places_s: float | None = None
    reordered: bool | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            raise UsageError("nothing lags", "name what does, such as --visible or --tags")
        if self.reordered is not None:
            flag("reordered", given.pop("reordered"))
        for name, value in given.items():
            number(name.removesuffix("_s"), value, LONGEST_S)

    @property
    def words(self) -> str:
        late = [
            f"{words} {getattr(self, name):g} s late"
            for name, words in LAGGING.items()
            if getattr(self, name) is not None
        ]
        again = ["half of the reads in time"] if self.reordered else []
        return ", ".join(late + again) or "reads in order"


# EC2's codes of scheduled events.
EVENTS = (
    *("instance-retirement", "instance-stop", "instance-reboot"),
    *("system-reboot", "system-maintenance"),
)


@dataclass(frozen=True)
class Event(Fault, kind="event", text="{0.instance_id}: {0.code} in {0.in_s:g} s"):
    """EC2 has scheduled an event for an instance, which begins `in_s` seconds after it was set.

    It is only shown: nothing happens to the instance.
    """

    instance_id: str = checked(word, "an instance id", INSTANCE_ID)
    code: str = ""
    in_s: float = checked(number, "the time until the event", 30 * LONGEST_S, default=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.code not in EVENTS:
            raise UsageError(f"no event {self.code!r:.80}", f"there are {', '.join(EVENTS)}")


@dataclass(frozen=True)
class ImpairedVolumes(
    Fault, kind="volumes", text="{0.instance_id}: its attached EBS status check fails"
):
    """EC2 shows that an instance does not reach its EBS volumes. It does reach them."""

    instance_id: str = checked(word, "an instance id", INSTANCE_ID)


@dataclass(frozen=True)
class SameIndex(
    Fault, kind="same-index", text="every spot instance has the launch index 0", subject=()
):
    """All spot instances of a launch have the AmiLaunchIndex 0."""


@dataclass(frozen=True)
class QuotaFault(Fault, kind="quota", text="{0.code} is {0.value:g}", subject=("code",)):
    """The value of the service quota with a code such as `L-417A185B`."""

    code: str = checked(word, "a quota code such as L-417A185B", _QUOTA)
    value: float = checked(number, "the quota", 1e9)


def read_fault(value: object) -> Fault:
    """Return the fault that a parsed JSON object describes: its `kind` and the kind's fields.

    Raise UsageError if it describes none.
    """
    if not isinstance(value, dict):
        raise UsageError(f"a fault is an object with a kind, not {value!r:.80}")
    fields = dict(value)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(f"no kind of fault: {kind!r:.80}", f"there are {', '.join(KINDS)}")
    try:
        return KINDS[kind](**fields)
    except TypeError as wrong:  # "Boot.__init__() got an unexpected keyword argument ..."
        raise UsageError(f"{kind}: {str(wrong).partition('__init__() ')[2] or wrong}") from None
