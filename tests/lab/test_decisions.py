from __future__ import annotations

import pytest

from clusterctl.lab.hosts.reconcile import WAIT, Decision, HostStatus, WantedInstance, decide

BOOTING, UP, OFF = HostStatus("booting"), HostStatus("up"), HostStatus("off", "off")
POWERED_OFF, REBOOTED, DIED = (
    HostStatus("off", "poweroff"),
    HostStatus("off", "reboot"),
    HostStatus("off", "died"),
)
FAILED = HostStatus("off", "failed: no space")


@pytest.mark.parametrize(
    ("wanted", "seen", "decision"),
    [
        (WantedInstance("pending"), None, Decision(order="create")),
        (WantedInstance("pending"), BOOTING, WAIT),
        (WantedInstance("pending"), UP, Decision(state="running")),
        (WantedInstance("pending"), OFF, Decision(order="start")),
        (WantedInstance("pending"), POWERED_OFF, Decision(order="start")),
        (WantedInstance("pending"), FAILED, Decision(state="shutting-down")),
        (WantedInstance("pending", held=True), None, WAIT),
        (WantedInstance("pending", held=True), OFF, WAIT),
        (WantedInstance("pending", doomed=True), None, Decision(state="shutting-down")),
        (WantedInstance("pending", doomed=True), OFF, Decision(state="stopping")),
        (WantedInstance("shutting-down", doomed=True), None, Decision(state="terminated")),
        (WantedInstance("running", held=True, doomed=True), UP, WAIT),
        (WantedInstance("running"), UP, WAIT),
        (WantedInstance("running"), BOOTING, WAIT),
        (WantedInstance("running", reboot=True), UP, Decision(order="power_off")),
        (WantedInstance("running"), OFF, Decision(order="boot")),
        (WantedInstance("running"), REBOOTED, Decision(order="boot")),
        (WantedInstance("running"), DIED, Decision(order="boot")),
        (WantedInstance("running"), POWERED_OFF, Decision(state="stopping")),
        (WantedInstance("running", False, True), POWERED_OFF, Decision(state="shutting-down")),
        (WantedInstance("stopping"), UP, Decision(order="power_off")),
        (WantedInstance("stopping"), BOOTING, Decision(order="power_off")),
        (WantedInstance("stopping"), OFF, Decision(state="stopped")),
        (WantedInstance("stopped"), OFF, WAIT),
        (WantedInstance("shutting-down"), UP, Decision(order="power_off")),
        (WantedInstance("shutting-down"), OFF, Decision(order="remove")),
        (WantedInstance("shutting-down"), FAILED, Decision(order="remove")),
        (WantedInstance("shutting-down"), None, Decision(state="terminated")),
        (WantedInstance("terminated"), None, WAIT),
    ],
)
def test_decide(wanted, seen, decision):
    assert decide(wanted, seen) == decision
