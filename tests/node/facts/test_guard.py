"""Whether a node's guard is at work."""

from __future__ import annotations

import os
import time

from clusterctl.node.facts import guard
from clusterctl.node.guard.clock import GuardFiles


def test_a_guard_that_writes_no_state_is_silent(tmp_path, monkeypatch):
    place = GuardFiles(str(tmp_path))
    monkeypatch.setattr(guard, "GuardFiles", lambda: place)
    monkeypatch.setattr(guard, "WRITES_WITHIN_S", 0.0)
    monkeypatch.setattr(guard, "boot_s", lambda: 800.0)
    assert guard.guard_silence_s() is None, "it may still boot"
    monkeypatch.setattr(guard, "boot_s", lambda: 1000.0)
    assert guard.guard_silence_s() == 100
    place.state.parent.mkdir(parents=True)
    for content, busy in (("", ()), ('{"busy": 1}', ()), ('{"busy": ["b: x"]}', ("b: x",))):
        place.state.write_text(content)
        assert guard.guard_busy() == busy
    assert guard.guard_silence_s() is None
    # The clock was set to the past meanwhile, or it is dead.
    for age_s in (-3600, 3600):
        os.utime(place.state, (time.time() - age_s,) * 2)
        assert round(guard.guard_silence_s(), -2) == 3600
    stats = iter((5.0, 6.0))
    monkeypatch.setattr(guard, "_written_at", lambda _: next(stats))
    assert guard.guard_silence_s() is None, "it has written meanwhile"
