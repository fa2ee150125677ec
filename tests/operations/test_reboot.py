"""reboot on the lab: another boot id, one line per node, never under a running job."""

from __future__ import annotations

import json

import pytest

from tests.pair import eventually

pytestmark = [pytest.mark.lab]

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def boot_ids(pair):
    return [pair.on(node, BOOT_ID) for node in (0, 1)]


def test_all_nodes(pair):
    before = boot_ids(pair)
    status, out, err = pair.ctl("reboot")
    assert status == 0, err
    assert sorted(line.partition(" ")[0] for line in out.splitlines()) == ["pair-0:", "pair-1:"]
    assert out.count(": back after ") == 2
    assert not set(before) & set(boot_ids(pair))


def test_one_node(pair):
    before = boot_ids(pair)
    status, out, err = pair.ctl("reboot", "--nodes", "1", "--json")
    assert status == 0, err
    [one] = json.loads(out)
    assert (one["host"], one["back_after_s"] > 0) == ("pair-1", True)
    after = boot_ids(pair)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


def test_a_node_that_stays_away_is_named(pair):
    # A reboot that does nothing: the node never goes down.
    names = "/usr/local/sbin/reboot /usr/local/sbin/systemctl"
    pair.on(1, f"for name in {names}; do sudo -n ln -s /bin/true $name || exit; done")
    try:
        status, out, err = pair.ctl("reboot", "--nodes", "1", "--timeout", "3s")
        assert (status, out) == (1, "")
        assert "pair-1: not back within 3.0 s: it is still up: it never went down" in err
        assert "--timeout" in err
    finally:
        pair.on(1, f"sudo -n rm {names}")


def test_a_node_that_refuses(pair):
    shim = "/usr/local/sbin/sudo"
    says = "#!/bin/sh\\necho sudo: a password is required >&2\\nexit 1\\n"
    pair.on(1, f"/usr/bin/sudo -n sh -c 'printf \"{says}\" >{shim} && chmod +x {shim}'")
    try:
        status, out, err = pair.ctl("reboot", "--nodes", "1")
        assert (status, out) == (1, "")
        assert "pair-1: refused to reboot: sudo: a password is required" in err
    finally:
        pair.on(1, f"/usr/bin/sudo -n rm {shim}")


def test_a_dead_node_is_one_line_and_the_rest_reboot(pair):
    before = boot_ids(pair)
    with pair.cut_off(1):
        status, out, err = pair.ctl("reboot")
        assert status == 255
        assert out.startswith("pair-0: back after ")
        assert "pair-1: did not answer in time" in err
    after = boot_ids(pair)
    assert (after[0] == before[0], after[1] == before[1]) == (False, True)


def test_not_while_an_mpirun_runs(pair):
    pair.on(
        0,
        "cd ~/examples/horovod/tensorflow; setsid /usr/bin/mpirun -np 1 --hostfile hosts"
        " sleep 600 </dev/null >/dev/null 2>&1 & sleep 1",
    )
    try:
        before = boot_ids(pair)
        for command in (["reboot"], ["clean-logs"], ["train", "1", "--script", "x.py"]):
            status, out, err = pair.ctl(*command)
            assert (status, out) == (1, "")
            assert "is running on pair-0, and" in err
            assert "clusterctl kill pair" in err
        assert boot_ids(pair) == before
    finally:
        pair.ctl("kill")


def test_without_waiting(pair):
    before = boot_ids(pair)
    status, out, err = pair.ctl("reboot", "--nodes", "1", "--no-wait")
    assert (status, out) == (0, "pair-1: rebooting\n"), err
    eventually(lambda: pair.answers(1) and boot_ids(pair)[1] != before[1], "the other boot")
