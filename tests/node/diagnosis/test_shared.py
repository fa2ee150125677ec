"""What ranks of one host send to each other through memory, as their files of Open MPI show it."""

from __future__ import annotations

import mmap
import os
from types import SimpleNamespace

import pytest

from clusterctl.node.diagnosis import shared
from clusterctl.node.jobs import processes

ENVIRON = {b"OMPI_COMM_WORLD_RANK": b"5", b"OMPI_COMM_WORLD_LOCAL_RANK": b"1"}
AT = shared.QUEUE_BYTES


@pytest.mark.parametrize(
    ("folder", "number", "writes", "found"),
    [
        ("", 1, {AT + 64: 640, AT + 9999: 1}, {704}),
        ("", 1, {}, {0}),
        ("", 1, {0: AT}, {0}),  # the others have put something into its queue
        ("", 0, {AT: 640}, set()),  # another rank's
        ("horovod", 1, {AT: 640}, set()),  # its threads send while the rank stands still
    ],
)
def test_how_much_a_rank_has_sent(tmp_path, monkeypatch, folder, number, writes, found):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / f"vader_segment.night-1.1000.5f1a0001.{number}"
    path.write_bytes(bytes(1 << 16))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        rank = processes.read_process(os.getpid())
        rank.environ = ENVIRON

        def sends(_: float) -> None:
            for at, size in writes.items():
                memory[at : at + size] = b"x" * size

        monkeypatch.setattr(processes, "find_any", lambda: [rank])
        monkeypatch.setattr(shared, "time", SimpleNamespace(sleep=sends))
        assert {*shared.sent_bytes(3.0).values()} == found
