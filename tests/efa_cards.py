"""A sysfs with EFA cards, by the names of the driver's files and of the cards of p4d and p5."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

P4D = ("rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27")
P5 = tuple(f"rdmap{bus + n}s0" for bus in (79, 96, 113, 130, 147, 164, 181, 198) for n in range(4))
# In the order of the driver's source. Each driver has some of these: see its versions below.
BASIC = ("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops")
MESSAGES = ("send_bytes", "send_wrs", "recv_bytes", "recv_wrs")
READS = ("rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes")
WRITES = ("rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes")
NETWORK = (
    *("retrans_bytes", "retrans_pkts", "retrans_timeout_events"),
    *("unresponsive_remote_events", "impaired_remote_conn_events"),
)
FIRST_DRIVER, LINUX_6_1 = BASIC, (*BASIC, *MESSAGES, *READS)
NEWEST = (*LINUX_6_1, *WRITES, *NETWORK)


def make_cards(
    folder: Path, cards: Iterable[str], names: Iterable[str] = NEWEST, driver: str = "efa"
) -> Path:
    """Make the folder that is /sys/class/infiniband, with cards whose counters are all 0."""
    drivers = folder.parent / "drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    for card in cards:
        counters = folder / card / "ports/1/hw_counters"
        counters.mkdir(parents=True)
        (folder / card / "device").mkdir()
        (folder / card / "device/driver").symlink_to(drivers)
        (counters / "lifespan").write_text("10\n")
        for name in names:
            (counters / name).write_text("0\n")
    return folder


def add_to(folder: Path, card: str, **amounts: int) -> None:
    """Let counters of a card grow."""
    for name, amount in amounts.items():
        path = folder / card / "ports/1/hw_counters" / name
        path.write_text(f"{int(path.read_text()) + amount}\n")
