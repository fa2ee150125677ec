"""What is to be copied, from where, to where, and how. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Way(Enum):
    """How the bytes get to the nodes (docs/copy.md, docs/s3.md)."""

    CHAIN = "chain"  # the source to the first node, and each node to the next
    DIRECT = "direct"  # every node pulls everything from the URLs itself
    EXCHANGE = "exchange"  # every node pulls its share, and gets the rest from the others
    TOOL = "tool"  # s5cmd or aws on every node


@dataclass(frozen=True)
class CopyRequest:
    """SRC to DST, with rsync's meaning of slashes.

    `sources` are paths, globs, `s3://` or `http(s)://` URLs. They are paths of this machine where
    `from_node` is None, else of the node with that index. `names` (of --files-from) are taken
    relative to the only source. `link_rate` is what the slowest link carries, in bytes a second,
    where the user knows it.
    """

    sources: tuple[str, ...]
    destination: str
    from_node: int | None = None
    names: tuple[bytes, ...] | None = None
    delete: bool = False
    checksum: bool = False
    dry_run: bool = False
    verify: bool = False
    encrypt: bool = False
    way: Way | None = None
    streams: int | None = None
    block_bytes: int | None = None
    port: int = 0
    link_rate: float | None = None
