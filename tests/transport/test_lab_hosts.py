"""A real host that dies under a command."""

from __future__ import annotations

import pytest

from clusterctl.domain.timeouts import Timeouts
from tests.lab.running import wait_until

pytestmark = pytest.mark.lab


def test_a_host_that_dies_under_a_command_is_one_line_and_the_other_finishes(pair):
    with pair.access(Timeouts(silence_s=4)) as access:
        dying = access.targets[1].host
        result = access.connections.each(
            access.targets,
            lambda target: access.connections.run(
                target,
                "(sleep 0.3; sudo reboot) >/dev/null 2>&1 & exec sleep 600"
                if target.host == dying
                else "sleep 3; echo done",
            ),
        )
        first, second = result.outcomes
        assert first.value is not None
        assert first.value.stdout == "done\n"
        assert type(second.error).__name__ == "ConnectionLost"
        wait_until(lambda: _answers(access, dying), "it never came back")


def _answers(access, host: str) -> bool:
    [target] = [target for target in access.targets if target.host == host]
    try:
        return access.connections.run(target, "true", timeout_s=20).ok
    except Exception:
        return False
