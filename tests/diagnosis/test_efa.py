"""Findings on EFA cards: of a job's look, of `doctor`, and what `watch` shows of them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from clusterctl.cli.watch import cells_of, node_troubles
from clusterctl.diagnosis.drift import check
from clusterctl.diagnosis.evidence import Evidence
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.diagnosis import sampler, watch
from clusterctl.node.facts import network
from clusterctl.node.facts.network import EFA_COUNTERS, EfaCard, efa_cards
from clusterctl.node.record import from_json, to_json
from clusterctl.operations.watch import WatchedNode
from tests.diagnosis.made_up import job_of, with_host
from tests.diagnosis.test_drift import nodes
from tests.efa_cards import P4D, P5, add_to, make_cards

GIB = 1 << 30
BUSY = {**dict.fromkeys(EFA_COUNTERS, 0), "tx_bytes": GIB, "rx_bytes": GIB, "tx_pkts": 10**6}


def cards_of(names=P5, grown=BUSY, **changed):
    """Return the cards of a host, of which the first has counted something else."""
    first = EfaCard(names[0], {}, {**grown, **changed}, 3.0)
    return (first, *(EfaCard(name, {}, dict(grown), 3.0) for name in names[1:]))


def job(names=P5, hosts=4, grown=BUSY, **changed):
    """Return a job that runs on hosts with EFA. `changed` is, by host, of its first card."""
    evidence = job_of(hosts, quiet_s=1.0)
    for index in range(hosts):
        cards = cards_of(names, grown, **changed.get(f"demo_{index}", {}))
        evidence = with_host(evidence, index, efa=cards)
    return evidence


def found_in(evidence):
    return [(one.check, one.host) for one in diagnose(evidence).findings]


IDLE = {"tx_bytes": 0, "rx_bytes": 0, "tx_pkts": 0}


@pytest.mark.parametrize("names", [P4D, P5])
def test_a_job_whose_cards_are_well(names):
    assert (found_in(job(names)), diagnose(job(names)).exit_status) == ([], 0)


@pytest.mark.parametrize(
    "counted",
    [
        {"impaired_remote_conn_events": 6},
        {"unresponsive_remote_events": 6},
        {"retrans_pkts": 32 * 20_000},
    ],
)
def test_a_host_with_trouble_to_all_others_is_named(counted):
    alone = job(demo_2=counted)
    assert found_in(alone) == [("link.slow", "demo-2")]
    assert diagnose(alone).exit_status == 1
    little = {name: number // 3 for name, number in counted.items()}
    others = {f"demo_{index}": little for index in (0, 1, 3)}
    assert found_in(job(demo_2=counted, **others)) == [("link.slow", "demo-2")]


def test_of_hosts_with_equal_trouble_all_are_told_and_of_two_both():
    event = {"unresponsive_remote_events": 1}
    found = diagnose(job(demo_0=event, demo_1=event)).findings
    assert [(one.check, one.host) for one in found] == [("link.slow", None)]
    assert "of demo-0 (10.0.0.5), demo-1 (10.0.0.6) are in trouble" in found[0].message
    [found] = diagnose(job(hosts=2, demo_0=event)).findings
    assert "demo-0" in found.message
    assert "demo-1" in found.message
    assert (
        "EFA of demo-0, in 3.0 s: remotes without an answer: 1, packets sent: 32000000"
        in found.evidence[0]
    )


def test_few_retransmissions_and_drops_are_no_trouble():
    counted = {"retrans_pkts": 900, "retrans_timeout_events": 2, "rx_drops": 5}
    assert found_in(job(demo_2=counted)) == []


@pytest.mark.parametrize("names", [P4D, P5])
def test_a_card_that_moves_nothing_while_the_others_do(names):
    evidence = job(names, demo_1=IDLE)
    assert found_in(evidence) == [("link.idle", "demo-1")]
    [found] = diagnose(evidence).findings
    assert f"EFA card {names[0]} of demo-1" in found.message
    assert "moved nothing in 3.0 s, and the others 2.0 GiB each" in found.message


def test_cards_that_a_job_does_not_use_are_no_finding():
    few = job(P4D, demo_1=IDLE)
    host = few.hosts[1]
    assert found_in(with_host(few, 1, slots=8)) == []
    quiet = {**BUSY, "tx_bytes": 500, "rx_bytes": 500}
    assert found_in(job(P4D, grown=quiet, demo_1=IDLE)) == []
    most = tuple(replace(one, grown={**BUSY, **IDLE}) for one in host.efa[:3])
    assert found_in(with_host(few, 1, efa=(*most, host.efa[3]))) == []


def test_what_an_older_driver_does_not_count_is_not_known():
    unknown = tuple(EfaCard(name, {}, {}, 3.0) for name in P4D)
    assert found_in(with_host(job(P4D), 1, efa=unknown)) == []
    half = (*unknown[:1], *cards_of(P4D)[1:])
    assert found_in(with_host(job(P4D), 1, efa=half)) == []


def test_a_bundle_has_the_cards():
    evidence = job(P4D, demo_2={"impaired_remote_conn_events": 6})
    assert found_in(from_json(Evidence, to_json(evidence))) == [("link.slow", "demo-2")]


def test_a_look_at_a_node_has_its_cards(tmp_path, monkeypatch):
    folder = str(make_cards(tmp_path / "infiniband", P4D))
    monkeypatch.setattr(network, "efa_cards", lambda span_s: efa_cards(span_s, folder))
    monkeypatch.setattr(sampler, "HOST_FACTS", ())
    monkeypatch.setattr(sampler.os, "nice", lambda _: None)
    found = sampler.sample(sampler.SamplerRequest(2, 0.01, 20.0)).host
    cards = from_json(tuple[EfaCard, ...], to_json(found["efa"]))
    assert [one.name for one in cards] == sorted(P4D)
    assert {one.moved_bytes for one in cards} == {0}
    assert all(one.span_s >= 0.01 for one in cards)


def examined(cards):
    return nodes(2, n1={efa_cards: tuple(replace(one, counters=one.grown) for one in cards)})


def test_doctor_tells_of_a_card_that_has_moved_nothing():
    [found] = check(examined(cards_of(P5, **IDLE)))
    assert (found.check, found.host, found.severity.value) == ("efa.idle", "demo-1", "warning")
    assert "1 EFA card moved nothing since the driver was loaded" in found.message
    assert P5[0] in found.message
    assert check(examined(cards_of(P5))) == []
    assert check(examined([EfaCard(name) for name in P5])) == []


def test_doctor_tells_what_a_card_has_counted_without_blame():
    [found] = check(examined(cards_of(P4D, unresponsive_remote_events=3, rx_drops=2)))
    assert (found.check, found.severity.value) == ("efa.counters", "info")
    assert found.message.endswith("remotes without an answer: 3, packets dropped on arrival: 2")


def test_watch_shows_what_the_cards_move(tmp_path):
    folder = make_cards(tmp_path / "infiniband", P4D)
    before = efa_cards(0.0, str(folder))
    add_to(folder, P4D[0], tx_bytes=8 << 20, rx_bytes=16 << 20, impaired_remote_conn_events=2)
    now = tuple(
        replace(one, at_s=first.at_s + 2.0)
        for one, first in zip(efa_cards(0.0, str(folder)), before)
    )
    told = watch.efa_of(network.grown_since(before, now))
    assert (set(told["efa"]["cards"]), told["efa"]["span_s"]) == (set(P4D), 2.0)
    said = {"cpu": 0.5, "net": [0, 0], "disk": [0, 0], **told}
    node = WatchedNode("demo-0", said, time.monotonic())
    assert "0 B/s/0 B/s EFA 8.0 MiB/s/4.0 MiB/s" in cells_of(node, time.monotonic(), 2.0)
    assert node_troubles(node) == [f"EFA {P4D[0]}: connections impaired: 2"]


def test_watch_shows_no_rate_of_cards_whose_bytes_are_not_known(tmp_path):
    cards = efa_cards(0.0, str(make_cards(tmp_path / "infiniband", P4D, ())))
    first = watch.efa_of(network.grown_since((), cards))
    said = {"cpu": 0.5, "net": [0, 0], "disk": [0, 0]}
    for told in (first, watch.efa_of(network.grown_since(cards, cards)), watch.efa_of(())):
        node = WatchedNode("demo-0", {**said, **told}, time.monotonic())
        assert not any("EFA" in cell for cell in cells_of(node, time.monotonic(), 2.0))
