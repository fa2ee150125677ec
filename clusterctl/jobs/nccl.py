"""The network that NCCL uses between nodes, read from its messages with NCCL_DEBUG=INFO.

The lines are those of NCCL 2.5 to 2.27 and aws-ofi-nccl 1.4 to 1.17; the tests have samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from clusterctl.domain.findings import Finding

DEBUG = (("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV"))
# A job's log is read no further than this: NCCL chooses its network at the start.
MOST_BYTES = 4_000_000

_NETWORK = re.compile(r"NCCL INFO Using network (\S.*?)\s*$", re.MULTILINE)
_PLUGIN = re.compile(r"NET/OFI (?:Initializing|Using) aws-ofi-nccl (\S+)")
_LIBFABRIC = re.compile(r"NET/OFI Using Libfabric version (\S+)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\w+)")
_CARDS = re.compile(r"NET/OFI Selected [Pp]rovider is .*\(found (\d+) nics?\)")
_SEE_EFA = "see `fi_info -p efa` on the nodes: driver, interfaces, the security group's own rule"
_INSTALL = "AWS's Deep Learning Base AMI has it; else install AWS's EFA software on every node"
# Why NCCL does not use EFA: a pattern of its messages, the cause, and a hint. The most specific
# cause is first.
_CAUSES = (
    (
        r"NCCL_NET set by environment to Socket|NCCL_NET_PLUGIN set by environment to none",
        "a variable forbids it",
        "leave NCCL_NET and NCCL_NET_PLUGIN out",
    ),
    (
        r"NET/OFI .*(?:Could not find any optimal provider|No eligible providers)"
        r"|provider efa output empty list",
        "aws-ofi-nccl finds no EFA that it may use",
        _SEE_EFA,
    ),
    (
        r"NET/Plugin ?: Failed to find ncclNetPlugin\w* symbol|NET/OFI .*NCCL .*too old",
        "this NCCL does not know the interface of the node's aws-ofi-nccl",
        "a newer TensorFlow has a newer NCCL: clusterctl env install NAME --tensorflow NEWEST",
    ),
    (
        r"No plugin found|libnccl-net\.so: cannot open shared object file"
        r"|Could not find: libnccl-net\.so",
        "there is no aws-ofi-nccl (libnccl-net.so) in its library path",
        _INSTALL,
    ),
)


@dataclass(frozen=True)
class NcclNetwork:
    """NCCL's choice of network. `network` is NCCL's name: Socket, AWS Libfabric, Libfabric or IB.

    `plugin` (aws-ofi-nccl) and `libfabric` are versions, `cards` is the number of network cards
    that the plugin found. What the log does not have is empty or 0. `cause` and `hint` say why
    NCCL uses sockets; they are empty for other networks.
    """

    network: str
    plugin: str = ""
    libfabric: str = ""
    provider: str = ""
    cards: int = 0
    cause: str = ""
    hint: str = ""

    @property
    def is_efa(self) -> bool:
        """Whether data go through EFA. Old plugins do not log their provider."""
        return "Libfabric" in self.network and self.provider in ("", "efa")


def parse_transport(text: str) -> NcclNetwork | None:
    """Return NCCL's choice in a log, whatever other output is between; None if it is not there."""
    chosen = _NETWORK.search(text)
    if not chosen:
        return None
    before = text[: chosen.end()]
    cause, hint = _cause(before) if chosen[1] == "Socket" else ("", "")
    cards = _CARDS.search(before)
    return NcclNetwork(
        network=chosen[1],
        plugin=_first(_PLUGIN, before),
        libfabric=_first(_LIBFABRIC, before),
        provider=_first(_PROVIDER, before),
        cards=int(cards[1]) if cards else 0,
        cause=cause,
        hint=hint,
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _cause(text: str) -> tuple[str, str]:
    """Return why NCCL uses sockets, and a hint."""
    for pattern, cause, hint in _CAUSES:
        if re.search(pattern, text):
            return cause, hint
    return "NCCL does not say why", "search the log for NET/"


def transport_finding(transport: NcclNetwork, efa: bool) -> Finding:
    """Return the finding about NCCL's network: a warning if the nodes have EFA, unused."""
    if transport.is_efa:
        details = [
            f"aws-ofi-nccl {transport.plugin}" if transport.plugin else "",
            f"libfabric {transport.libfabric}" if transport.libfabric else "",
            f"{transport.cards} cards" if transport.cards > 1 else "",
        ]
        reported = ", ".join(filter(None, details))
        message = "NCCL uses EFA between nodes" + (f" ({reported})" if reported else "")
        return Finding.info("nccl.network", message)
    way = "TCP sockets" if transport.network == "Socket" else transport.network
    if not efa:
        return Finding.info("nccl.network", f"NCCL uses {way} between nodes")
    if transport.network == "Socket":
        message = f"NCCL uses TCP sockets between nodes, not their EFA: {transport.cause}"
    else:
        way = f"{way} ({transport.provider})" if transport.provider else way
        message = f"NCCL uses {way} between nodes, not their EFA"
    return Finding.warning("nccl.network", message, transport.hint or _SEE_EFA)


class TransportWatch:
    """Reads a job's log as it grows, and reports NCCL's network once."""

    def __init__(self, efa: bool, report: Callable[[Finding], None]) -> None:
        self._efa, self._report = efa, report
        self._read = bytearray()
        self._read_until = 0
        self._done = False

    def take(self, chunk: bytes) -> None:
        """Read the next chunk of the log."""
        if self._done:
            return
        self._read += chunk
        # Only complete lines: the name of the network may be split between two chunks.
        end = self._read.rfind(b"\n") + 1
        # Search only the new lines: a job that never uses NCCL may write for days.
        if b"Using network" in self._read[self._read_until : end]:
            transport = parse_transport(self._read[:end].decode(errors="replace"))
            if transport:
                self._report(transport_finding(transport, self._efa))
                self._done = True
        self._read_until = max(self._read_until, end)
        if self._done or len(self._read) > MOST_BYTES:
            self._done = True
            self._read.clear()
