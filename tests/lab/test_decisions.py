from __future__ import annotations

import pytest

from clusterctl.lab.hosts.reconcile import WAIT, Decision, Seen, Wanted, decide

BOOTING, UP, OFF = Seen("booting"), Seen("up"), Seen("off", "off")
POWERED_OFF, REBOOTED, DIED = Seen("off", "poweroff"), Seen("off", "reboot"), Seen("off", "died")
FAILED = Seen("off", "failed: no space")


@pytest.mark.parametrize(
    ("wanted", "seen", "decision"),
    [
        (Wanted("pending"), None, Decision(order="create")),
        (Wanted("pending"), BOOTING, WAIT),
        (Wanted("pending"), UP, Decision(state="running")),
        (Wanted("pending"), OFF, Decision(order="start")),
        (Wanted("pending"), POWERED_OFF, Decision(order="start")),
        (Wanted("pending"), FAILED, Decision(state="shutting-down")),
        (Wanted("pending", held=True), None, WAIT),
        (Wanted("pending", held=True), OFF, WAIT),
        (Wanted("pending", doomed=True), None, Decision(state="shutting-down")),
        (Wanted("pending", doomed=True), OFF, Decision(state="stopping")),
        (Wanted("shutting-down", doomed=True), None, Decision(state="terminated")),
        (Wanted("running", held=True, doomed=True), UP, WAIT),
        (Wanted("running"), UP, WAIT),
        (Wanted("running"), BOOTING, WAIT),
        (Wanted("running", reboot=True), UP, Decision(order="power_off")),
        (Wanted("running"), OFF, Decision(order="boot")),
        (Wanted("running"), REBOOTED, Decision(order="boot")),
        (Wanted("running"), DIED, Decision(order="boot")),
        (Wanted("running"), POWERED_OFF, Decision(state="stopping")),
        (Wanted("running", False, True), POWERED_OFF, Decision(state="shutting-down")),
        (Wanted("stopping"), UP, Decision(order="power_off")),
        (Wanted("stopping"), BOOTING, Decision(order="power_off")),
        (Wanted("stopping"), OFF, Decision(state="stopped")),
        (Wanted("stopped"), OFF, WAIT),
        (Wanted("shutting-down"), UP, Decision(order="power_off")),
        (Wanted("shutting-down"), OFF, Decision(order="remove")),
        (Wanted("shutting-down"), FAILED, Decision(order="remove")),
        (Wanted("shutting-down"), None, Decision(state="terminated")),
        (Wanted("terminated"), None, WAIT),
    ],
)
def test_decide(wanted, seen, decision):
    assert decide(wanted, seen) == decision
