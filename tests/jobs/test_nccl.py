"""The transport that NCCL uses, read from real logs (samples/nccl-*.txt).

p4d-2.9: github.com/NVIDIA/nccl/issues/527; p5en: .../issues/1597; no-plugin-2.18:
github.com/NVIDIA/nccl-tests/issues/188; no-efa-2.21: github.com/aws/aws-ofi-nccl/issues/889 (it
ends before NCCL's choice, which the test adds); p4d-2.27 and no-plugin-2.21: logs in users'
repositories. All are shortened. None was made by this project, which had no GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.domain.findings import Finding, Severity
from clusterctl.jobs.nccl import NcclNetwork, TransportWatch, parse_transport, transport_finding

SAMPLES = Path(__file__).parent / "samples"
SOCKET = "node:1:2 [0] NCCL INFO Using network Socket\n"
NO_PLUGIN = "there is no aws-ofi-nccl (libnccl-net.so) in its library path"


def sample(name: str) -> str:
    return (SAMPLES / f"nccl-{name}.txt").read_text()


@pytest.mark.parametrize(
    ("log", "transport"),
    [
        (sample("p4d-2.9"), NcclNetwork("AWS Libfabric", provider="efa")),
        (
            sample("p4d-2.27"),
            NcclNetwork("Libfabric", plugin="1.16.2", libfabric="2.1", provider="efa", cards=1),
        ),
        (sample("p5en"), NcclNetwork("Libfabric", provider="efa", cards=16)),
        ("no NCCL at all\n", None),
        (sample("no-efa-2.21"), None),
    ],
)
def test_the_transport_is_read_from_the_log(log, transport):
    assert parse_transport(log) == transport


# Logs, and whether the nodes' EFA is used. Only of TCP sockets is it known what helps.
LOGS = (
    (sample("p4d-2.27"), True),
    (sample("p5en"), True),
    (sample("no-plugin-2.18"), False),
    (sample("no-plugin-2.21"), False),
    (sample("no-efa-2.21") + SOCKET, False),
    ("NCCL INFO NCCL_NET set by environment to Socket.\n" + SOCKET, False),
    (SOCKET, False),
    (sample("p5en").replace("is efa", "is tcp"), False),
)


@pytest.mark.parametrize(("log", "uses_efa"), LOGS)
def test_the_finding_of_each_transport(log, uses_efa):
    transport = parse_transport(log)
    finding = transport_finding(transport, True)
    assert finding.severity is (Severity.INFO if uses_efa else Severity.WARNING)
    assert bool(finding.hint) != uses_efa
    # On a type without EFA, this is no loss.
    assert transport_finding(transport, False).severity is Severity.INFO


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_a_log_in_pieces_is_told_of_once(piece):
    told: list[Finding] = []
    watch = TransportWatch(True, told.append)
    log = (sample("no-plugin-2.21") + SOCKET + "1 2.0 3.0\n").encode()
    for start in range(0, len(log), piece):
        watch.take(log[start : start + piece])
    assert [finding.check for finding in told] == ["nccl.network"]
    assert NO_PLUGIN in told[0].message
