"""The kinds of faults. Each raises UsageError when it is made with values that make no sense."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from clusterctl.domain.errors import UsageError
from clusterctl.lab.faults import hosts
from clusterctl.lab.faults.fields import MOST, Fault, flag, number, text, whole, word
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
class Capacity(Fault):
    """A zone has `left` more machines of a type, beside the `used` ones that run there already."""

    instance_type: str
    zone: str
    left: int
    used: int = 0

    kind: ClassVar[str] = "capacity"
    text: ClassVar[str] = "{0.left} more {0.instance_type} in {0.zone}"
    subject: ClassVar[tuple[str, ...]] = ("instance_type", "zone")

    def __post_init__(self) -> None:
        word("an instance type", self.instance_type, _TYPE)
        word("an availability zone", self.zone, _ZONE)
        whole("machines left", self.left)
        whole("machines used", self.used)


@dataclass(frozen=True)
class ActionFault(Fault):
    """A fault of the requests for an API action, or for all of them (ANY)."""

    action: str

    def __post_init__(self) -> None:
        word("an API action", self.action, _ACTION)

    def is_for(self, action: str) -> bool:
        return self.action in (ANY, action)

    @property
    def requests(self) -> str:
        return "every action" if self.action == ANY else self.action


@dataclass(frozen=True)
class Throttle(ActionFault):
    """A token bucket for each action: `burst` requests at once, and `rate` more each second."""

    rate: float
    burst: int

    kind: ClassVar[str] = "throttle"
    text: ClassVar[str] = "{0.requests}: {0.rate:g} a second, {0.burst} at once"
    subject: ClassVar[tuple[str, ...]] = ("action",)

    def __post_init__(self) -> None:
        super().__post_init__()
        number("the rate", self.rate, MOST)
        whole("the burst", self.burst, least=1)


@dataclass(frozen=True)
class ApiError(ActionFault):
    """An error as the answer to a request, which is carried out first if `after` is set.

    The fault lets `skip` requests pass and then strikes `times` requests; `times` 0 means until it
    is cleared. An empty message and status 0 stand for AWS's own for that code.
    """

    code: str
    message: str = ""
    status: int = 0
    after: bool = False
    times: int = 1
    skip: int = 0

    kind: ClassVar[str] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        word("an error code", self.code, _CODE)
        text("the message", self.message)
        if self.status != 0 and not 400 <= whole("the HTTP status", self.status) <= 599:
            raise UsageError(f"an error's HTTP status is from 400 to 599, not {self.status}")
        flag("after", self.after)
        whole("times", self.times)
        whole("skip", self.skip)

    @property
    def words(self) -> str:
        how = "carried out, then" if self.after else "answered with"
        return f"{self.requests}: {how} {self.code}"


@dataclass(frozen=True)
class LostAnswer(ActionFault):
    """A request is carried out, and then the connection is closed without an answer."""

    times: int = 1
    skip: int = 0

    kind: ClassVar[str] = "lost"
    text: ClassVar[str] = "{0.requests}: carried out, never answered"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("times", self.times)
        whole("skip", self.skip)


@dataclass(frozen=True)
class Delay(ActionFault):
    """Each request waits so many seconds before it is carried out."""

    seconds: float

    kind: ClassVar[str] = "delay"
    text: ClassVar[str] = "{0.requests}: {0.seconds:g} s late"
    subject: ClassVar[tuple[str, ...]] = ("action",)

    def __post_init__(self) -> None:
        super().__post_init__()
        number("the delay", self.seconds, LONGEST_S)


@dataclass(frozen=True)
class Boot(Fault):
    """How the next hosts boot: late, without sshd, or not at all.

    `dies` is the code of the StateReason of an instance whose host does not boot. `nodes` are the
    indices of the nodes that the fault is for; empty means all nodes.
    """

    slow_s: float = 0.0
    silent: bool = False
    dies: str = ""
    nodes: tuple[int, ...] = ()
    times: int = 1

    kind: ClassVar[str] = "boot"

    def __post_init__(self) -> None:
        number("the time of a slow boot", self.slow_s, LONGEST_S)
        flag("silent", self.silent)
        if self.dies != "":
            word("a StateReason code", self.dies, _CODE)
        if sum((self.slow_s > 0, self.silent, self.dies != "")) != 1:
            raise UsageError("a boot is slow, or silent, or dies", "choose one of them")
        if not isinstance(self.nodes, (tuple, list)):
            raise UsageError(f"nodes is a list of indices, not {self.nodes!r}")
        object.__setattr__(self, "nodes", tuple(whole("a node index", n) for n in self.nodes))
        whole("times", self.times)

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
class Lag(Fault):
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

    kind: ClassVar[str] = "lag"
    subject: ClassVar[tuple[str, ...]] = ()

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
class Event(Fault):
    """EC2 has scheduled an event for an instance, which begins `in_s` seconds after it was set.

    It is only shown: nothing happens to the instance.
    """

    instance_id: str
    code: str
    in_s: float = 0.0

    kind: ClassVar[str] = "event"
    text: ClassVar[str] = "{0.instance_id}: {0.code} in {0.in_s:g} s"

    def __post_init__(self) -> None:
        word("an instance id", self.instance_id, INSTANCE_ID)
        if self.code not in EVENTS:
            raise UsageError(f"no event {self.code!r:.80}", f"there are {', '.join(EVENTS)}")
        number("the time until the event", self.in_s, 30 * LONGEST_S)


@dataclass(frozen=True)
class ImpairedVolumes(Fault):
    """EC2 shows that an instance does not reach its EBS volumes. It does reach them."""

    instance_id: str

    kind: ClassVar[str] = "volumes"
    text: ClassVar[str] = "{0.instance_id}: its attached EBS status check fails"

    def __post_init__(self) -> None:
        word("an instance id", self.instance_id, INSTANCE_ID)


@dataclass(frozen=True)
class SameIndex(Fault):
    """All spot instances of a launch have the AmiLaunchIndex 0."""

    kind: ClassVar[str] = "same-index"
    text: ClassVar[str] = "every spot instance has the launch index 0"
    subject: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class QuotaFault(Fault):
    """The value of the service quota with a code such as `L-417A185B`."""

    code: str
    value: float

    kind: ClassVar[str] = "quota"
    text: ClassVar[str] = "{0.code} is {0.value:g}"
    subject: ClassVar[tuple[str, ...]] = ("code",)

    def __post_init__(self) -> None:
        word("a quota code such as L-417A185B", self.code, _QUOTA)
        number("the quota", self.value, 1e9)


KINDS: dict[str, type[Fault]] = {
    one.kind: one
    for one in (
        *(Capacity, Throttle, ApiError, LostAnswer, Delay, Boot, Lag, Event, ImpairedVolumes),
        *(SameIndex, QuotaFault, *hosts.KINDS),
    )
}


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
