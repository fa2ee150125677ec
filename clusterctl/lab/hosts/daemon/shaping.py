"""A rate for a host's link: token buckets at its two ends.

What the bridge sends into the link is the host's download, what its eth0 sends its upload. A rate
counts whole Ethernet frames, as a link's does: of 1514 bytes 1448 are data.
"""

from __future__ import annotations

import subprocess

# So much may pass at once: little enough that a transfer of a tenth of a second shows the rate,
# enough that none is lost when a busy machine is late.
BURST_S = 0.004
LEAST_BURST = 4096  # two frames
# The packets of 64 KiB that the kernel joins (GSO) pass whole, at a tenth of the work; a queue with
# a smaller burst cuts them. Slower links keep the small burst: there it would be felt.
WHOLE_BURST = 68 * 1024
WHOLE_FROM_BIT = 30_000_000
# How long what comes too fast waits; what does not fit is dropped, and TCP slows down.
QUEUE_S = 0.05
LEAST_QUEUED, MOST_QUEUED = 128 * 1024, 64 * 1024 * 1024  # at the least two such packets


def shape_of(rate_bit: int) -> str:
    """The queue of a link's end as `tc` takes it."""
    least = WHOLE_BURST if rate_bit >= WHOLE_FROM_BIT else LEAST_BURST
    burst = max(least, int(rate_bit * BURST_S / 8))
    queued = min(MOST_QUEUED, max(LEAST_QUEUED, int(rate_bit * QUEUE_S / 8)))
    return f"tbf rate {rate_bit}bit burst {burst}b limit {burst + queued}b"


def shape(link: str, pid: int, down_bit: int, up_bit: int) -> None:
    """Give the link of the host of `pid` these rates; 0: as fast as it can."""
    _set(link, down_bit)
    _set("eth0", up_bit, inside=pid)


def _set(link: str, rate_bit: int, inside: int = 0) -> None:
    enter = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside else []
    # A link without a queue of its own has nothing that could be deleted: it gets the usual one.
    queue = shape_of(rate_bit) if rate_bit else "noqueue"
    command = ["tc", "qdisc", "replace", "dev", link, "root", *queue.split()]
    subprocess.run([*enter, *command], check=True)
