from __future__ import annotations

import json

import pytest

from clusterctl.copy.plan import (
    PAYLOAD_SHARE,
    CopyFacts,
    CopyPlan,
    NodeFacts,
    choose_block,
    plan_copy,
    predict,
)
from clusterctl.copy.request import CopyRequest

GB = 10**9
GBIT25 = 25e9 / 8
FLOW = 5e9 / 8


def facts(count: int = 8, size: int = 150 * GB, zones: str = "a", **rates) -> CopyFacts:
    nodes = [NodeFacts(f"demo-{n}", zones[n % len(zones)], **rates) for n in range(count)]
    return CopyFacts(tuple(nodes), bytes=size, files=1200, source_zone=zones[0])


def request(**changes) -> CopyRequest:
    return CopyRequest(**{"sources": ("data/",), "destination": "data/", **changes})


def test_a_data_set_to_eight_nodes():
    plan = plan_copy(request(), facts(link_rate=GBIT25, flow_rate=FLOW))
    assert plan == CopyPlan(
        order=tuple(f"demo-{index}" for index in range(8)),
        block_bytes=8 << 20,
        streams=6,
        predicted_s=plan.predicted_s,
        phases=plan.phases,
        limited_by="link",
        reasons=(
            "Every node passes on what it gets, so the source sends each byte once, "
            "however many nodes there are.",
            "How fast the disks read and write is not known: taken as fast enough.",
        ),
    )
    assert set(json.loads(json.dumps(plan.as_data()))) == {*vars(plan), "way"}
    assert plan.predicted_s == pytest.approx(51.6, abs=0.1)
    assert sum(plan.phases.values()) == pytest.approx(plan.predicted_s)


@pytest.mark.parametrize(
    ("nodes", "streams", "flow", "seconds"),
    [
        *((1, 8, FLOW, 48.0), (4, 8, FLOW, 48.1), (8, 8, FLOW, 48.2), (32, 8, FLOW, 48.7)),
        *((8, 1, FLOW, 240.0), (8, 1, 2 * FLOW, 120.0), (8, 1, None, 48.0)),
    ],
)
def test_the_numbers_of_the_model(nodes, streams, flow, seconds):
    """The numbers of docs/copy-model.md, where links and flows carry nothing but data."""
    rates = {"link_rate": GBIT25 / PAYLOAD_SHARE, "flow_rate": flow and flow / PAYLOAD_SHARE}
    plan = plan_copy(request(streams=streams, block_bytes=8 << 20), facts(nodes, **rates))
    assert plan.predicted_s - plan.phases["set-up"] == pytest.approx(seconds, abs=0.12)
    assert plan.limited_by == "link"


def test_small_files_cost_by_the_file():
    small = CopyFacts((NodeFacts("a", link_rate=GBIT25),), 20_000 * 4096, 20_000)
    plan = plan_copy(request(), small)
    assert (plan.limited_by, plan.phases["transfer"]) == ("target disk", pytest.approx(2.8))


def test_a_set_smaller_than_the_blocks_under_way_fills_the_chain_with_itself():
    plan = plan_copy(request(), facts(11, 1000, link_rate=1e6))
    assert plan.phases["fill"] == pytest.approx(10 * 1000 / 1e6 / PAYLOAD_SHARE)
    nothing = plan_copy(request(), CopyFacts((NodeFacts("a", link_rate=1e6),)))
    assert (nothing.predicted_s, nothing.limited_by) == (nothing.phases["set-up"], "")


def test_nothing_is_predicted_of_links_that_nobody_knows():
    known = facts(link_rate=GBIT25)
    one_unknown = CopyFacts((*known.nodes, NodeFacts("x")), known.bytes, known.files)
    for unknown in (facts(), one_unknown):
        plan = plan_copy(request(), unknown)
        assert (plan.predicted_s, dict(plan.phases), plan.limited_by) == (None, {}, "")
        assert "--link-rate" in " ".join(plan.reasons)
        assert plan.as_data()["predicted_s"] is None


def test_what_the_user_knows_goes_first():
    plan = plan_copy(request(link_rate=2e7), facts(2, 10 * GB, link_rate=GBIT25))
    assert plan.predicted_s == pytest.approx(10 * GB / 2e7 / (1448 / 1538), rel=0.02)


def test_the_slowest_link_sets_the_time():
    nodes = (NodeFacts("a", link_rate=1e9), NodeFacts("b", link_rate=1e8))
    plan = plan_copy(request(), CopyFacts(nodes, bytes=10 * GB))
    assert plan.predicted_s == pytest.approx(106, rel=0.05)


@pytest.mark.parametrize(
    ("rates", "size", "streams"),
    [
        ({"link_rate": GBIT25, "flow_rate": FLOW}, 150 * GB, 6),
        ({"link_rate": GBIT25, "flow_rate": 2 * FLOW}, 150 * GB, 4),
        ({"link_rate": 100e9 / 8, "flow_rate": FLOW}, 150 * GB, 21),
        ({"link_rate": 1e12, "flow_rate": FLOW}, 150 * GB, 64),
        ({"link_rate": 1e8, "flow_rate": FLOW}, 150 * GB, 2),
        ({"link_rate": 2e7}, 150 * GB, 2),
        ({"link_rate": GBIT25}, 150 * GB, 6),
        ({"link_rate": 2.5e9 / 8, "flow_rate": FLOW}, 150 * GB, 4),
        ({}, 150 * GB, 24),
        ({}, 4 * GB, 9),
        ({}, GB // 100, 4),
        ({"link_rate": 2e7}, GB // 100, 2),
    ],
)
def test_streams(rates, size, streams):
    assert plan_copy(request(), facts(8, size, **rates)).streams == streams


@pytest.mark.parametrize(
    ("size", "nodes", "streams", "block"),
    [
        (150 * GB, 8, 8, 8 << 20),
        (150 * GB, 128, 8, 2 << 20),
        (256 << 20, 8, 2, 256 << 10),
        (1 << 30, 8, 2, 1 << 20),
        (1 << 20, 8, 8, 128 << 10),
        (0, 8, 8, 128 << 10),
        (0, 1, 8, 128 << 10),
        (100 * 10**6, 1, 4, 256 << 10),
        (10 * GB, 1, 8, 8 << 20),
    ],
)
def test_blocks_are_as_large_as_filling_the_chain_allows(size, nodes, streams, block):
    assert choose_block(size, nodes, streams) == block
    if 128 << 10 < block < 8 << 20:
        assert nodes * streams * block <= 0.02 * size < nodes * streams * block * 2


def test_zone_by_zone_the_sources_first():
    nodes = tuple(NodeFacts(f"demo-{index}", zone) for index, zone in enumerate("babcab"))
    plan = plan_copy(request(), CopyFacts(nodes, source_zone="a"))
    assert plan.order == ("demo-1", "demo-4", "demo-0", "demo-2", "demo-5", "demo-3")
    assert any("3 zones" in reason for reason in plan.reasons)
    unknown = (NodeFacts("demo-0", "a"), NodeFacts("demo-1"))
    assert not any("zones" in reason for reason in plan_copy(request(), CopyFacts(unknown)).reasons)
    elsewhere = plan_copy(request(), CopyFacts(nodes, source_zone=""))
    assert elsewhere.order == ("demo-0", "demo-2", "demo-5", "demo-1", "demo-4", "demo-3")


def test_the_time_of_what_is_missing():
    whole = plan_copy(request(), facts(link_rate=GBIT25))
    part = predict(whole, request(), facts(size=15 * GB, link_rate=GBIT25))
    assert (part.order, part.reasons) == (whole.order, whole.reasons)
    assert (part.block_bytes, part.streams) == (whole.block_bytes, whole.streams)
    assert part.phases["transfer"] == pytest.approx(whole.phases["transfer"] / 10)
    assert part.predicted_s == pytest.approx(sum(part.phases.values()))
