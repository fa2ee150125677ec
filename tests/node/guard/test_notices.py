"""What a node keeps of EC2's notices: one for each machine that is taken back."""

from __future__ import annotations

import json

from clusterctl.node.guard import notices as written
from clusterctl.node.guard.clock import GuardFiles
from clusterctl.node.guard.spot import Notices
from clusterctl.node.jobs import recovery

AT, AT_S = "2026-11-28T17:18:03Z", 1795886283


def test_the_notices_of_several_nodes_are_kept(tmp_path, monkeypatch):
    place = GuardFiles(str(tmp_path))
    notices = Notices(place)
    notices.recommended({"action": "rebalance", "time": "t0", "node": "demo-1"})
    for node in ("demo-2", "demo-1", "demo-0"):
        notice = {"action": "terminate", "time": AT, "node": node}
        assert notices.taken(notice, node, signals_rank=False)
        assert not notices.taken(notice, node, signals_rank=False)
    lines = [json.loads(line) for line in place.spot.read_text().splitlines()]
    taken = [one["node"] for one in lines if one["action"] != "rebalance"]
    assert taken == ["demo-2", "demo-1", "demo-0"]
    monkeypatch.setattr(written, "GuardFiles", lambda: place)
    lost = recovery.notices_of(["demo-0", "demo-2", "demo-3"], AT_S)
    assert lost == {name: {"action": "terminate", "time": AT} for name in ("demo-0", "demo-2")}
    # Another machine has taken the name, and an attempt has begun on it.
    assert recovery.notices_of(["demo-2"], AT_S + 1) == {}


def test_a_recommendation_is_no_notice_that_a_node_is_taken(tmp_path, monkeypatch):
    place = GuardFiles(str(tmp_path))
    Notices(place).recommended({"action": "rebalance", "time": "t", "node": "a"})
    assert json.loads(place.spot.read_text())["action"] == "rebalance"
    monkeypatch.setattr(written, "GuardFiles", lambda: place)
    assert recovery.notices_of(["a"], 0) == {}
