"""Whether a node's guard is at work."""

from __future__ import annotations

import pytest

from clusterctl.node.facts import guard
from clusterctl.node.guard import clock


@pytest.mark.parametrize(
    ("state", "up_s", "silent_s", "busy"),
    [
        (None, 800.0, None, ()),  # it may still boot
        (None, 1000.0, 100.0, ()),
        ("", 1000.0, 100.0, ()),
        ('{"used_s": 7190, "busy": ["b: x"]}', 200.0, None, ("b: x",)),
        ('{"used_s": 7000, "busy": 1}', 200.0, 200.0, ()),
    ],
)
def test_a_guard_that_writes_no_state_is_silent(
    tmp_path, monkeypatch, state, up_s, silent_s, busy
):
    """The node has run for 7,000 s before this boot."""
    place = clock.GuardFiles(str(tmp_path))
    place.used.parent.mkdir(parents=True)
    place.used.write_text('{"boot_id": "earlier", "before_s": 3000, "boot_s": 4000, "boots": 2}')
    if state is not None:
        place.state.parent.mkdir(parents=True)
        place.state.write_text(state)
    for module in (guard, clock):
        monkeypatch.setattr(module, "boot_s", lambda: up_s)
    monkeypatch.setattr(guard, "GuardFiles", lambda: place)
    assert (guard.guard_silence_s(), guard.guard_busy()) == (silent_s, busy)
