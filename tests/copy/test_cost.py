from __future__ import annotations

import pytest

from clusterctl.copy import cost
from clusterctl.copy.cost import Hops, Overheads

NONE = Overheads(0.0, 0.0, 0.0)
GBIT25 = 25e9 / 8
SET = 150_000_000_000
# An MTU whose headers are nothing, to compare with formulas that leave them out.
BARE = 10**9


@pytest.mark.parametrize(("mtu", "share"), [(1500, 1448 / 1538), (9001, 8949 / 9039), (BARE, 1.0)])
def test_share_of_payload(mtu, share):
    assert cost.payload_share(mtu) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("hops", "streams", "rate"),
    [
        (Hops(link=1000.0, mtu=BARE), 1, 1000),
        (Hops(link=1000.0, flow=200.0, mtu=BARE), 1, 200),
        (Hops(link=1000.0, flow=200.0, mtu=BARE), 4, 800),
        (Hops(link=1000.0, flow=200.0, mtu=BARE), 8, 1000),
        (Hops(link=1538.0), 1, 1448),
    ],
)
def test_a_hop_is_as_fast_as_its_link_or_its_flows(hops, streams, rate):
    assert cost.hop_rate(hops, streams) == pytest.approx(rate)


def test_a_link_that_nobody_knows_gives_no_time():
    nothing = Hops(flow=200.0, read=1e9, write=1e9)
    assert cost.hop_rate(nothing, 8) is None
    estimate = cost.chain(SET, 1, 4, nothing, 8, 1 << 20)
    assert (estimate.seconds, dict(estimate.phases), estimate.limited_by) == (None, {}, "")


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 48.0), (4, 48.1), (8, 48.2), (32, 48.7)])
def test_150_gb_at_25_gbit_through_a_chain(nodes, seconds):
    """The numbers of docs/copy-model.md."""
    found = cost.chain(SET, 0, nodes, Hops(GBIT25, mtu=BARE), 8, 8 << 20, NONE)
    assert found.seconds == pytest.approx(seconds, abs=0.05)
    assert found.limited_by == "link"


@pytest.mark.parametrize(("flow", "seconds"), [(5e9 / 8, 240.0), (10e9 / 8, 120.0)])
def test_one_stream_is_as_slow_as_one_flow(flow, seconds):
    found = cost.chain(SET, 0, 8, Hops(GBIT25, flow, mtu=BARE), 1, 1 << 20, NONE)
    assert found.seconds == pytest.approx(seconds, rel=0.001)


@pytest.mark.parametrize(
    ("hops", "limit", "seconds"),
    [
        (Hops(GBIT25, write=125e6, mtu=BARE), "target disk", 1200),
        (Hops(GBIT25, read=1e9, mtu=BARE), "source disk", 150),
        (Hops(GBIT25, read=1e10, write=1e10, mtu=BARE), "link", 48),
    ],
)
def test_the_slowest_stage_sets_the_pace(hops, limit, seconds):
    found = cost.chain(SET, 0, 1, hops, 8, 1 << 20, NONE)
    assert (found.limited_by, found.seconds) == (limit, pytest.approx(seconds))


def test_small_files_cost_by_the_file():
    hops = Hops(GBIT25, mtu=BARE)
    found = cost.chain(20_000 * 4096, 20_000, 2, hops, 4, 128 << 10, Overheads(1.0, 0.0, 1e-3))
    assert found.phases["set-up"] == 1.0
    assert found.phases["transfer"] == pytest.approx(20.0)
    assert found.limited_by == "target disk"


def test_phases_add_up():
    found = cost.chain(SET, 1200, 8, Hops(GBIT25, 5e9 / 8, 1e9, 2e9), 6, 8 << 20)
    assert set(found.phases) == {"set-up", "transfer", "fill"}
    assert sum(found.phases.values()) == pytest.approx(found.seconds)


def test_a_set_smaller_than_the_blocks_under_way_fills_with_itself():
    hops = Hops(1e6, mtu=BARE)
    assert cost.chain(1000, 1, 11, hops, 8, 8 << 20, NONE).seconds == pytest.approx(0.011)


def test_nothing_to_copy_takes_the_set_up():
    found = cost.chain(0, 0, 8, Hops(GBIT25), 8, 8 << 20)
    assert found.seconds == cost.DEFAULT_OVERHEADS.setup_s
    assert found.limited_by == ""
