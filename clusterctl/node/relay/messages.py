"""The messages between a relay and its client: typed values here, lines of JSON on the wire.

Orders go to the relay's standard input, events come from its standard output. A node may send
anything: a line that is no message, or one with a value of the wrong type, is ignored, and does not
end the copy. Texts from nodes may contain control characters: pass them through `printable` before
they are shown.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

from clusterctl.node.record import RecordError, from_data, from_json, to_json

LONGEST_TEXT = 2000
# Warnings in one event. Further ones are only counted.
MOST_WARNINGS = 100
# `Progress.behind` where the relay does not know it.
UNKNOWN = -1


# Events


class Listening(NamedTuple):
    """The relay accepts connections. `cores`: the machine's processors, 0 if not known.

    `client_address` is the client's as the node sees it, "" outside of SSH. `gmac`: on this machine
    GMAC is faster than CRC-32. Relays with the same `host` are on the same machine.
    """

    address: str = ""
    port: int = 0
    client_address: str = ""
    cores: int = 0
    gmac: bool = False
    host: str = ""


class Tools(NamedTuple):
    """The tools for S3 that a node has, and the machine's processor (`uname -m`)."""

    names: tuple[str, ...] = ()
    machine: str = ""


class Listed(NamedTuple):
    """What the source has. `digest` identifies the manifest that relays pass on to each other.

    `left_out` is the number of entries that could not be read; `warnings` name the first of them.
    `single`: the source is one file. From `host` and `roots` a target on the same machine learns
    what it must not delete. `endangered` is a source that --delete would remove there, if any.
    """

    digest: str = ""
    files: int = 0
    bytes: int = 0
    warnings: tuple[str, ...] = ()
    left_out: int = 0
    single: bool = False
    host: str = ""
    roots: tuple[str, ...] = ()
    endangered: str = ""


class Gap(NamedTuple):
    """What one node lacks. `files` and `bytes` have to come.

    `missing` is the number of files, folders and links that it lacks or that differ, `delete` that
    of paths that the source does not have. `missing_names` and `delete_names` are the first of
    them. `free_bytes` and `writable` are those of the destination. `elsewhere` are those of `bytes`
    that go to other disks, which links in the destination lead to; `full` is which of these lacks
    room. `blocked` is the number of files and links where a folder with content is, and of folders
    where something else stays. `warnings` are those of a dry run, these first; those of a download
    do not make it incomplete. `unread` is the number of `missing` ones that may be the same, named
    last: their content cannot be read.
    """

    files: int = 0
    bytes: int = 0
    delete: int = 0
    delete_names: tuple[str, ...] = ()
    free_bytes: int = 0
    writable: bool = True
    missing: int = 0
    missing_names: tuple[str, ...] = ()
    blocked: int = 0
    warnings: tuple[str, ...] = ()
    elsewhere: int = 0
    full: str = ""
    unread: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no file has to come."""
        return not (self.files or self.bytes)

    @property
    def fits(self) -> bool:
        """Whether there is enough room at the destination, on each of its disks."""
        return self.bytes - self.elsewhere <= self.free_bytes and not self.full

    @property
    def can_be_filled(self) -> bool:
        """Whether there is room, and the destination is writable or nothing has to be changed."""
        return self.fits and (self.writable or (self.is_empty and not self.delete))


class Progress(NamedTuple):
    """The heartbeat: the relay has `blocks`, and received `bytes`.

    `behind` is the number of blocks that its upstream has and it lacks. `files` and `bytes` of a
    relay that verifies are what it has read; of one that downloads, what has come. Times are in
    seconds: `waits` of all its threads by kind (clusterctl.node.relay.wire.KINDS), `cpu` of the
    process, `wall` since its start. `step` is what one of its threads does with the file `path` for
    a second or longer, the longest such step; `moves` changes while any of them goes on. `arrived`
    are the bytes that have come, those of the manifest, of unfinished and of damaged blocks
    included.
    """

    blocks: int = 0
    bytes: int = 0
    behind: int = UNKNOWN
    waits: dict[str, float] = {}  # shared, and never modified
    cpu: float = 0.0
    wall: float = 0.0
    files: int = 0
    step: str = ""
    path: str = ""
    moves: int = 0
    arrived: int = 0


class Lost(NamedTuple):
    """No connection of the relay to its upstream works, or a damaged block came from there.

    It retries until it is ordered otherwise. `kind` is that of a PeerError: refused, denied,
    silent, closed or corrupt. All connections have failed for `for_s` seconds; `worked`: one could
    be opened since the order to pull.
    """

    upstream: str = ""
    why: str = ""
    kind: str = ""
    for_s: float = 0.0
    worked: bool = False


class Done(NamedTuple):
    """Everything is published but `left_out` entries. `warnings` name the first of these.

    `path` is where the file of a web server is, in terms of DST as given.
    """

    files: int = 0
    bytes: int = 0
    deleted: int = 0
    left_out: int = 0
    warnings: tuple[str, ...] = ()
    path: str = ""
    links: int = 0


class VerifiedTree(NamedTuple):
    """The totals of what a node has at a verified path. `digest` is that of its manifest.

    `others` are neither files, folders nor links; `problems` could not be read. `read_bytes` were
    read for digests.
    """

    digest: str = ""
    files: int = 0
    folders: int = 0
    links: int = 0
    others: int = 0
    bytes: int = 0
    problems: int = 0
    read_bytes: int = 0
    duration_s: float = 0.0


class Piece(NamedTuple):
    """A part of what `GetPiece` requested, in base64; empty at the end."""

    data: str = ""


class Measured(NamedTuple):
    """The result of `Measure`. `why` is the reason if it failed.

    `figures` has rtt_p50 and rtt_p99 in seconds, and one_out, one_back, many_out and many_back in
    bytes a second, over one connection and over many.
    """

    name: str = ""
    why: str = ""
    figures: dict[str, float] = {}  # shared, and never modified


class Failed(NamedTuple):
    """The relay has failed and ends. For `kind` see clusterctl.node.relay.base.Failure."""

    why: str = ""
    hint: str = ""
    kind: str = ""


class Bye(NamedTuple):
    """The relay ends as ordered. `clean`: it leaves nothing unpublished on the node."""

    clean: bool = True


Event = Union[
    Listening, Tools, Listed, Gap, Progress, Lost, Done, VerifiedTree, Piece, Measured, Failed, Bye
]


# Orders


class Listen(NamedTuple):
    """Listen on the address `bind`. For a relay that was started before its address was known."""

    bind: str = ""


class Begin(NamedTuple):
    """Begin the copy, with blocks of this size, and this many connections to the upstream.

    `gmac`: blocks are summed by GMAC, since it is faster on all machines, else by CRC-32. The other
    fields are from the source's `Listed`.
    """

    block_bytes: int = 1
    streams: int = 1
    digest: str = ""
    single: bool = False
    left_out: int = 0
    host: str = ""
    roots: tuple[str, ...] = ()
    gmac: bool = False


class Fetch(NamedTuple):
    """Download by this tool of the node: `s5cmd` or `aws`; the file of a web server by none."""

    tool: str = ""


class PullFrom(NamedTuple):
    """Pull from this relay instead of the previous one; with an empty name from none."""

    name: str = ""
    address: str = ""
    port: int = 0


class GetPiece(NamedTuple):
    """Send a piece of the `manifest` or the `problems`, from byte `at` on. For verifying relays."""

    blob: str = ""
    at: int = 0


class Measure(NamedTuple):
    """Measure round trips and rates to this relay and back, each rate for this many seconds."""

    name: str = ""
    address: str = ""
    port: int = 0
    streams: int = 1
    seconds: float = 1.0


class Ping(NamedTuple):
    """The client is still there."""


class Stop(NamedTuple):
    """End. What has arrived is kept, so that a later copy goes on from it."""


Order = Union[Listen, Begin, Fetch, PullFrom, GetPiece, Measure, Ping, Stop]
Message = Union[Event, Order]

EVENTS: dict[str, Any] = {
    "listening": Listening,
    "tools": Tools,
    "manifest": Listed,
    "gap": Gap,
    "progress": Progress,
    "lost": Lost,
    "done": Done,
    "verified_tree": VerifiedTree,
    "piece": Piece,
    "measured": Measured,
    "failed": Failed,
    "bye": Bye,
}
ORDERS: dict[str, Any] = {
    "listen": Listen,
    "begin": Begin,
    "fetch": Fetch,
    "upstream": PullFrom,
    "get_piece": GetPiece,
    "measure": Measure,
    "ping": Ping,
    "stop": Stop,
}
_WORDS = {kind: ("event", word) for word, kind in EVENTS.items()}
_WORDS.update({kind: ("order", word) for word, kind in ORDERS.items()})
# How every event begins. A login shell may print something first and not end its line.
BEGINNING = b'{"event": "'


def encode(message: Message) -> bytes:
    """Return the message as one line of JSON."""
    key, word = _WORDS[type(message)]
    fields = to_json(message)[1:]
    comma = "" if fields == "}" else ", "
    return f'{{"{key}": "{word}"{comma}{fields}\n'.encode()


def decode_event(line: bytes) -> Optional[Event]:
    """Return the event in this line; None if there is none."""
    # The last match is the event's beginning: quotes in its texts are escaped.
    begin = line.rfind(BEGINNING)
    return None if begin < 0 else _decode(line[begin:], "event", EVENTS)


def decode_order(line: bytes) -> Optional[Order]:
    """Return the order in this line; None if there is none."""
    return _decode(line, "order", ORDERS)


def _decode(line: bytes, key: str, kinds: dict[str, Any]) -> Any:
    try:
        fields = from_json(Any, line)
        word = fields.get(key) if isinstance(fields, dict) else None
        kind = kinds.get(word) if isinstance(word, str) else None
        message = None if kind is None else from_data(kind, fields)
    except RecordError:
        return None
    return None if message is None or _is_negative(message) else message


def _is_negative(message: Any) -> bool:
    """Return whether a number of the message is negative, which none is but UNKNOWN."""
    for name, one in zip(message._fields, message):
        least = UNKNOWN if name == "behind" else 0
        for value in one.values() if isinstance(one, dict) else (one,):
            if isinstance(value, (int, float)) and value < least:
                return True
    return False


def printable(text: str) -> str:
    """Return at most LONGEST_TEXT characters, with `?` for those that may control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:LONGEST_TEXT])
