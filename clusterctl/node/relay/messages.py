"""What a relay and the client of a copy tell each other: typed values here, JSON lines on the wire.

Orders go to the relay's standard input, events come from its standard output. A node may send
anything: `decode` keeps what has the type of the field's default, and nothing else. Texts from
nodes may hold control characters; who shows them uses `printable`.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, Optional, TypeVar, Union

LONGEST_TEXT = 2000
Kind = TypeVar("Kind")
NOT_TOLD = -1


# Events


class Listening(NamedTuple):
    """Other relays may connect. `cores`: processors that the relay may use; 0 is not told.

    `client_address` is the client's as the node sees it, "" outside of SSH. `gmac`: whether that
    is the checksum it would rather take.
    """

    address: str = ""
    port: int = 0
    client_address: str = ""
    cores: int = 0
    gmac: bool = False


class Listed(NamedTuple):
    """What the source has. `digest` names the manifest that relays pass on to each other.

    `left_out` entries could not be read; `warnings` name the first of them. `host` and `roots`
    tell a target on the same machine what it must not delete.
    """

    digest: str = ""
    files: int = 0
    bytes: int = 0
    warnings: tuple[str, ...] = ()
    left_out: int = 0
    single: bool = False
    host: str = ""
    roots: tuple[str, ...] = ()


class Gap(NamedTuple):
    """What one node lacks. `missing` is how many files, folders and links it lacks or has
    otherwise, `delete` how many the source does not have.

    `delete_names` and `missing_names` are the first of these.
    """

    files: int = 0
    bytes: int = 0
    delete: int = 0
    delete_names: tuple[str, ...] = ()
    free_bytes: int = 0
    writable: bool = True
    missing: int = 0
    missing_names: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.bytes)

    @property
    def fits(self) -> bool:
        return self.bytes <= self.free_bytes

    @property
    def can_be_filled(self) -> bool:
        return self.fits and (self.writable or (self.is_empty and not self.delete))


class Progress(NamedTuple):
    """The heartbeat. `blocks` it has, `bytes` it got from others.

    `behind`: blocks that its upstream has and it has not. `files`: those that were looked at to
    be compared. `waits` are seconds of all its threads by kind (clusterctl.node.relay.wire), `cpu`
    the process' seconds, `wall` those of the clock.
    """

    blocks: int = 0
    bytes: int = 0
    behind: int = NOT_TOLD
    waits: dict[str, float] = {}  # never changed
    cpu: float = 0.0
    wall: float = 0.0
    files: int = 0


class Lost(NamedTuple):
    """It gets nothing from there. It goes on trying until it is told otherwise."""

    upstream: str = ""
    why: str = ""
    kind: str = ""


class Done(NamedTuple):
    """Everything is under its name. `left_out` entries are not, `warnings` name the first."""

    files: int = 0
    bytes: int = 0
    deleted: int = 0
    left_out: int = 0
    warnings: tuple[str, ...] = ()


class Looked(NamedTuple):
    """What a node has at a path, to be compared with other nodes: `digest` is its manifest's.

    `others` are neither files, folders nor links; `problems` could not be read.
    """

    digest: str = ""
    files: int = 0
    folders: int = 0
    links: int = 0
    others: int = 0
    bytes: int = 0
    problems: int = 0
    read_bytes: int = 0
    seconds: float = 0.0


class Piece(NamedTuple):
    """Some of what `GetPiece` has asked for, in base64; empty at its end."""

    data: str = ""


class Measured(NamedTuple):
    """What `Measure` has found. `figures`: rtt_p50 and rtt_p99 in seconds; one_out, one_back,
    many_out and many_back in bytes a second, over one connection and over many. `why` not."""

    name: str = ""
    why: str = ""
    figures: dict[str, float] = {}  # never changed


class Failed(NamedTuple):
    """The relay gives up, and ends. For `kind` see clusterctl.node.relay.base."""

    why: str = ""
    hint: str = ""
    kind: str = ""


class Bye(NamedTuple):
    """The relay ends as it was told. `clean`: nothing is left in its folder for parts."""

    clean: bool = True


Event = Union[Listening, Listed, Gap, Progress, Lost, Done, Looked, Piece, Measured, Failed, Bye]


# Orders


class Listen(NamedTuple):
    """For a relay that was started before its address was known."""

    bind: str = ""


class Begin(NamedTuple):
    """How the data is cut into blocks, and summed: by GMAC where all would rather, else by CRC-32.

    The rest is from the source's `Listed`.
    """

    block_bytes: int = 1
    streams: int = 1
    digest: str = ""
    single: bool = False
    left_out: int = 0
    host: str = ""
    roots: tuple[str, ...] = ()
    gmac: bool = False


class PullFrom(NamedTuple):
    """Pull from there from now on; with the name "" from nobody."""

    name: str = ""
    address: str = ""
    port: int = 0


class GetPiece(NamedTuple):
    """Of a relay that looks: some of its `manifest` or `problems`, from this byte on."""

    blob: str = ""
    at: int = 0


class Measure(NamedTuple):
    """Measure the way to this relay and back, each of four ways of sending for so many seconds."""

    name: str = ""
    address: str = ""
    port: int = 0
    streams: int = 1
    seconds: float = 1.0


class Ping(NamedTuple):
    """The client is still there."""


class Stop(NamedTuple):
    """End. What has arrived is kept where a later run can go on from it."""


Order = Union[Listen, Begin, PullFrom, GetPiece, Measure, Ping, Stop]
Message = Union[Event, Order]

EVENTS: dict[str, Any] = {
    "listening": Listening,
    "manifest": Listed,
    "gap": Gap,
    "progress": Progress,
    "lost": Lost,
    "done": Done,
    "looked": Looked,
    "piece": Piece,
    "measured": Measured,
    "failed": Failed,
    "bye": Bye,
}
ORDERS: dict[str, Any] = {
    "listen": Listen,
    "begin": Begin,
    "upstream": PullFrom,
    "get_piece": GetPiece,
    "measure": Measure,
    "ping": Ping,
    "stop": Stop,
}
_WORDS = {kind: ("event", word) for word, kind in EVENTS.items()}
_WORDS.update({kind: ("order", word) for word, kind in ORDERS.items()})
# What every event's line begins with: a login shell may greet first, and not end its line.
BEGINNING = b'{"event": "'


def encode(message: Message) -> bytes:
    """One line."""
    key, word = _WORDS[type(message)]
    return json.dumps({key: word, **message._asdict()}).encode() + b"\n"


def decode_event(line: bytes) -> Optional[Event]:
    """The event in this line; None if there is none."""
    # Inside of an event, quotes are escaped.
    begin = line.rfind(BEGINNING)
    return None if begin < 0 else _decode(line[begin:], "event", EVENTS)


def decode_order(line: bytes) -> Optional[Order]:
    """The order in this line; None if there is none."""
    return _decode(line, "order", ORDERS)


def _decode(line: bytes, key: str, kinds: dict[str, Any]) -> Any:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    word = told.get(key) if isinstance(told, dict) else None
    kind = kinds.get(word) if isinstance(word, str) else None
    return None if kind is None else of_fields(kind, told)


def of_fields(kind: type[Kind], told: Any) -> Kind:
    """A message of this kind, with what of `told` has its fields' names and types."""
    defaults = kind._field_defaults  # type: ignore[attr-defined]
    fields = told if isinstance(told, dict) else {}
    return kind(**{name: _fitting(fields.get(name), one) for name, one in defaults.items()})


def _fitting(value: Any, default: Any) -> Any:
    """The value if its type is the default's, else the default. Numbers are finite, from 0 on."""
    if isinstance(default, (bool, str)):
        return value if type(value) is type(default) else default
    if isinstance(default, (int, float)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return type(default)(value) if number and 0 <= value < math.inf else default
    if isinstance(default, dict):
        pairs = value.items() if isinstance(value, dict) else ()
        return {name: _fitting(one, 0.0) for name, one in pairs}
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def printable(text: str) -> str:
    """At most LONGEST_TEXT characters, none of them controlling a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:LONGEST_TEXT])
