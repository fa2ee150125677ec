"""The counters of EFA cards, over a sysfs made up with the names of the driver's files."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from clusterctl.node.facts import network
from clusterctl.node.facts.network import EFA_COUNTERS, EfaCard, efa_cards, moved
from clusterctl.node.record import from_json, to_json
from tests.efa_cards import FIRST_DRIVER, LINUX_6_1, NEWEST, P4D, P5, add_to, make_cards


def grow_meanwhile(monkeypatch, change):
    """Let `change` happen between the two readings, which take no time."""
    clock = SimpleNamespace(sleep=lambda _: change(), monotonic=time.monotonic)
    monkeypatch.setattr(network, "time", clock)


@pytest.mark.parametrize("cards", [P4D, P5])
def test_what_each_card_has_moved(tmp_path, monkeypatch, cards):
    folder = make_cards(tmp_path / "infiniband", cards)
    for card in cards:
        add_to(folder, card, tx_bytes=7, retrans_timeout_events=3)
    grow_meanwhile(monkeypatch, lambda: add_to(folder, cards[1], tx_bytes=500, rx_bytes=300))
    found = {one.name: one for one in efa_cards(3.0, str(folder))}
    assert sorted(found) == sorted(cards)
    assert {name: one.moved_bytes for name, one in found.items()} == {
        **dict.fromkeys(cards, 0),
        cards[1]: 800,
    }
    assert found[cards[1]].counters["tx_bytes"] == 507
    assert found[cards[0]].counters["retrans_timeout_events"] == 3
    assert found[cards[0]].grown["retrans_timeout_events"] == 0


def test_the_counters_are_those_of_the_newest_driver():
    assert set(EFA_COUNTERS) <= set(NEWEST)


@pytest.mark.parametrize("names", [FIRST_DRIVER, LINUX_6_1, NEWEST])
def test_a_counter_that_a_driver_lacks_is_not_known(tmp_path, names):
    folder = make_cards(tmp_path / "infiniband", P4D, names)
    for card in efa_cards(0.001, str(folder)):
        known = set(EFA_COUNTERS) & set(names)
        assert set(card.counters) == set(card.grown) == known
        assert card.moved_bytes == 0


def test_a_card_that_gives_no_counters_is_there_and_has_moved_nobody_knows_what(tmp_path):
    folder = make_cards(tmp_path / "infiniband", P4D, ())
    make_cards(folder, ["mlx5_0"], NEWEST, driver="mlx5_core")
    (folder / P4D[0] / "ports/1/hw_counters/tx_bytes").write_text("N/A\n")
    assert efa_cards(0.001, str(folder))
    assert {one.name for one in efa_cards(0.0, str(folder))} == set(P4D)
    assert {one.moved_bytes for one in efa_cards(0.001, str(folder))} == {None}


def test_a_driver_that_was_loaded_anew_has_counted_nothing_that_is_known(tmp_path, monkeypatch):
    folder = make_cards(tmp_path / "infiniband", P4D)
    add_to(folder, P4D[0], tx_bytes=900, rx_bytes=5)
    grow_meanwhile(monkeypatch, lambda: add_to(folder, P4D[0], tx_bytes=-800, rx_bytes=5))
    [card] = [one for one in efa_cards(1.0, str(folder)) if one.name == P4D[0]]
    assert (card.grown, card.moved_bytes, card.counters["tx_bytes"]) == ({}, None, 100)


def test_without_cards_nobody_waits(tmp_path, monkeypatch):
    grow_meanwhile(monkeypatch, lambda: pytest.fail("it waits"))
    assert efa_cards(9.0, str(tmp_path / "infiniband")) == ()


def test_bytes_of_operations_count_where_the_card_has_none_of_them():
    assert moved({"tx_bytes": 3, "rx_bytes": 4, "send_bytes": 2}) == 7
    assert moved({"tx_bytes": 3, "rx_bytes": 4, "rdma_read_bytes": 900}) == 900
    assert moved({"tx_bytes": 3}) is None


def test_a_card_comes_whole_out_of_a_bundle(tmp_path):
    cards = efa_cards(0.001, str(make_cards(tmp_path / "infiniband", P4D)))
    assert from_json(tuple[EfaCard, ...], to_json(cards)) == cards
