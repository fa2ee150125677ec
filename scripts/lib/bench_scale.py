"""The sizes of benchmarks of copies: data sets, and numbers of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

MIB = 1 << 20
# Memory of a host without its data, and the share of the available memory that may be used.
HOST_BYTES = 40 * MIB
SHARE = 0.75


@dataclass(frozen=True)
class DataSet:
    """Incompressible files of one size in a few folders, on node 0."""

    name: str
    files: int
    file_bytes: int

    @property
    def folder(self) -> str:
        return f"/data/{self.name}"

    @property
    def bytes(self) -> int:
        return self.files * self.file_bytes

    def limit_s(self, rate_mbit: int) -> float:
        """Return the seconds that a link of this rate needs for the data, without headers."""
        return self.bytes * 8 / (rate_mbit * 1e6)

    def script(self) -> str:
        """Return the bash script that makes the set.

        It splits one stream of random bytes for each folder, which is fast for small files too.
        """
        folders = max(2, self.files // 500)
        share = -(-self.files // folders)
        return (
            f"for ((i=0; i<{folders}; i++)); do mkdir -p {self.folder}/part-$i && "
            f"head -c {self.file_bytes * share} /dev/urandom | "
            f"split -a 5 -b {self.file_bytes} - {self.folder}/part-$i/shard- || exit 1; done; "
            f"find {self.folder} -type f | sort | tail -n +{self.files + 1} | xargs -r rm"
        )


@dataclass(frozen=True)
class Scale:
    """The sizes of one run. `reduced` is for peers whose time grows with every node.

    The lab's nodes share this machine's cores, whereas real ones have their own. So `rate_mbit`
    times the number of nodes must stay below what the cores can relay; otherwise the benchmark
    would measure the cores.
    """

    nodes: tuple[int, ...]
    fault_nodes: int
    rounds: int
    unshaped_rounds: int
    rate_mbit: int
    large: DataSet
    reduced: DataSet
    unshaped: DataSet
    small: DataSet
    chain: DataSet
    chain_nodes: int = 32
    small_nodes: tuple[int, ...] = (1, 8)
    # Its time is what a copy costs whatever the size of its data.
    tiny: DataSet = DataSet("tiny", 2, 4096)
    hop: DataSet = DataSet("hop", 32, 128 * MIB)
    without_peers: bool = False


FULL = Scale(
    nodes=(2, 4, 8, 16, 32),
    fault_nodes=8,
    rounds=2,
    unshaped_rounds=3,
    rate_mbit=40,
    large=DataSet("set", 16, 16 * MIB),
    reduced=DataSet("reduced", 2, 16 * MIB),
    unshaped=DataSet("unshaped", 16, 128 * MIB),
    small=DataSet("small", 20_000, 4096),
    chain=DataSet("chain", 16, 4 * MIB),
)
QUICK = Scale(
    nodes=(2, 8),
    fault_nodes=4,
    rounds=1,
    unshaped_rounds=1,
    rate_mbit=160,
    large=DataSet("set", 16, 6 * MIB),
    reduced=DataSet("reduced", 4, 4 * MIB),
    unshaped=DataSet("unshaped", 4, 128 * MIB),
    small=DataSet("small", 5_000, 4096),
    chain=DataSet("chain", 16, MIB),
    chain_nodes=8,
    hop=DataSet("hop", 32, 16 * MIB),
)


def fitting(nodes: Sequence[int], data_bytes: int, available_bytes: int) -> tuple[int, ...]:
    """Return the numbers of nodes whose copies fit into memory together with the source's data."""
    room = available_bytes * SHARE
    return tuple(one for one in nodes if (one + 1) * (data_bytes + HOST_BYTES) <= room)


def fitted(data: DataSet, available_bytes: int) -> DataSet:
    """Return the set, with smaller files if it and a copy of it do not fit into memory."""
    while not fitting([1], data.bytes, available_bytes):
        data = replace(data, file_bytes=data.file_bytes // 2)
    return data
