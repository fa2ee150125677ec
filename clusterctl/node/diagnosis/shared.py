"""What ranks of one host send to each other through memory that they share."""

from __future__ import annotations

import contextlib
import re
import time

from clusterctl.node.jobs import launchers, processes

# The memory from which a rank of Open MPI (btl/vader of version 4, btl/sm of 5) sends: its messages
# are written there by the rank itself. The name ends with its number on the host.
SEGMENT = re.compile(r" (/\S+/(?:vader|sm)_segment\.\S+\.(\d+))$", re.M)
# The first page is the queue into which other ranks put what they have sent.
QUEUE_BYTES = PAGE = 4096
LINE = 64
MOST_OF_RANK, MOST_BYTES = 1 << 20, 64 << 20


def sent_bytes(watched_s: float) -> dict[str, int]:
    """Return how many bytes of the memory from which each rank sends have changed within so many
    seconds, in whole lines of LINE bytes, by process ID. Ranks whose memory is not known are left
    out: those of other libraries, of another user, and with xpmem."""
    paths = {}
    for one in processes.find_any():
        place = launchers.rank_identity(one.environ)
        path = place and place.local_rank is not None and segment_of(one.pid, place.local_rank)
        if path:
            paths[one.pid] = path
    before = {pid: _content(path, len(paths)) for pid, path in paths.items()}
    time.sleep(watched_s)
    return {
        str(pid): changed_bytes(before[pid], _content(path, len(paths)))
        for pid, path in paths.items()
    }


def segment_of(pid: int, local_rank: int) -> str:
    """Return the file of a rank's memory; empty if there is none, or several, or if its messages
    prove nothing: Horovod's threads send some while their rank stands still."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as maps:  # noqa: PTH123
        text = maps.read()
        paths = {path for path, number in SEGMENT.findall(text) if int(number) == local_rank}
        if len(paths) == 1 and "/horovod/" not in text:
            return f"/proc/{pid}/root{paths.pop()}"
    return ""


def _content(path: str, ranks: int) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123
        file.seek(QUEUE_BYTES)
        return file.read(min(MOST_OF_RANK, MOST_BYTES // ranks))
    return b""


def changed_bytes(before: bytes, after: bytes) -> int:
    """Return the bytes of all lines that differ."""
    size = min(len(before), len(after))
    pages = (at for at in range(0, size, PAGE) if before[at : at + PAGE] != after[at : at + PAGE])
    lines = (line for at in pages for line in range(at, min(at + PAGE, size), LINE))
    return sum(LINE for at in lines if before[at : at + LINE] != after[at : at + LINE])
