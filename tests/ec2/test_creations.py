from __future__ import annotations

import pytest

from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.tags import Creations
from tests.clock import FakeClock


@pytest.mark.parametrize("content", ["", "{", "[]", '{"import_key_pair": "now"}', "\0"])
def test_a_damaged_record_proves_nothing_and_what_it_may_have_held_is_waited_for(tmp_path, content):
    path, clock = tmp_path / "creations.json", FakeClock()
    path.write_text(content)
    creations = Creations(path, Timeouts(clock))
    assert creations.started == frozenset()
    assert creations.began("create_role")
    assert creations.find("create_role", lambda: ["role"] if clock.waits else []) == ("role",)
    assert creations.find("create_role", list) == ()
    assert sum(clock.waits) > creations.timeouts.shown_s
    creations.begin("create_role")
    assert Creations(path).started == {"create_role"}
