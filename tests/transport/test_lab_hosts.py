"""Tests that need real hosts: commands that are ended there, and a host that dies."""

from __future__ import annotations

import threading

import pytest

from clusterctl.domain.timeouts import Timeouts
from tests.lab.running import wait_until

pytestmark = pytest.mark.lab


def until(true, what: str) -> None:
    wait_until(true, what)


def running(access, marker: str) -> set[str]:
    """Return the hosts on which a process has `marker` in its command line."""
    # The brackets prevent pgrep from finding its own shell.
    result = access.connections.run_all(access.targets, f"pgrep -f '[{marker[0]}]{marker[1:]}'")
    return {value.host for value in result.values if value.ok}


def test_a_command_past_its_time_is_ended_on_its_host(pair):
    with pair.access() as access:
        access.connections.run_all(access.targets, "true")  # log in first, which takes time as well
        for timeout_s in (2, 10, 60):  # until it is enough for a busy host to begin
            result = access.connections.run_all(
                access.targets, "echo begun; exec sleep 86401", timeout_s=timeout_s
            )
            errors = [outcome.error for outcome in result.outcomes]
            assert [type(error).__name__ for error in errors] == ["CommandTimeout"] * 2
            printed = [error.stdout for error in errors]
            if all(printed):
                break
        assert printed == ["begun\n"] * 2
        until(lambda: not running(access, "sleep 86401"), "it still runs")


def test_an_interrupt_ends_the_commands_on_their_hosts(pair):
    with pair.access() as access, pair.access() as watching:

        def interrupt() -> None:
            until(lambda: len(running(watching, "sleep 86402")) == 2, "it never ran")
            access.connections.interrupt()

        threading.Thread(target=interrupt, daemon=True).start()
        result = access.connections.run_all(access.targets, "exec sleep 86402")
        assert ["interrupted" in outcome.error.message for outcome in result.outcomes] == [True] * 2
        until(lambda: not running(watching, "sleep 86402"), "it still runs")


def test_a_host_that_dies_under_a_command_is_one_line_and_the_other_finishes(pair):
    with pair.access(Timeouts(silence_s=4)) as access:
        dying = access.targets[1].host
        result = access.connections.run_all(
            access.targets,
            lambda target: (
                "(sleep 0.3; sudo reboot) >/dev/null 2>&1 & exec sleep 600"
                if target.host == dying
                else "sleep 3; echo done"
            ),
        )
        first, second = result.outcomes
        assert first.value is not None
        assert first.value.stdout == "done\n"
        assert type(second.error).__name__ == "ConnectionLost"
        until(lambda: _answers(access, dying), "it never came back")


def _answers(access, host: str) -> bool:
    [target] = [target for target in access.targets if target.host == host]
    try:
        return access.connections.run(target, "true", timeout_s=20).ok
    except Exception:
        return False
