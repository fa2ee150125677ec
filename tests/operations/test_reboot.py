"""`reboot` in the lab: a new boot id, one line per node, and never during a running job."""

from __future__ import annotations

import contextlib
import signal
from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import HostError
from clusterctl.domain.results import CommandResult
from clusterctl.domain.timeouts import Timeouts
from clusterctl.node.facts.disks import mounted
from clusterctl.node.facts.gpus import gpus
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.facts.system import System, cloud_init, system
from clusterctl.node.record import name_of, to_json
from clusterctl.operations import reboot as module
from clusterctl.operations.reboot import batches
from clusterctl.transport.dial import Target
from tests.cli.running import CommandLine
from tests.clock import FakeClock
from tests.pair import eventually

HEAD = Target("demo-0", "198.51.100.7", "ubuntu")


@pytest.mark.parametrize(
    ("indices", "at_once", "private", "together"),
    [
        ([0, 1, 2], 1, False, ["1", "2", "0"]),
        ([0, 1, 2], 1, True, ["1", "2", "0"]),
        ([0, 1, 2], None, False, ["120"]),
        # Nodes behind the head node have to be back before the head node reboots.
        ([0, 1, 2], None, True, ["12", "0"]),
        ([0, 1, 2, 3, 4], 2, False, ["12", "34", "0"]),
        ([0, 1, 2, 3], 2, False, ["12", "30"]),
        ([0, 1, 2, 3], 2, True, ["12", "3", "0"]),
        ([0], None, True, ["0"]),
        ([2, 1], 9, True, ["21"]),
        ([], 1, True, []),
    ],
)
def test_who_is_rebooted_together(indices, at_once, private, together):
    jump = HEAD if private else None
    targets = [
        Target(f"demo-{index}", f"10.0.0.{index}", "ubuntu", jump=jump) if index else HEAD
        for index in indices
    ]
    found = batches(targets, HEAD, at_once)
    assert ["".join(one.host[-1] for one in batch) for batch in found] == together


class Rebooting:
    """Connections to a host that answers with the next of its list: output, or exit status."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def open_another(self, target, connect_timeout_s):
        return self

    def run(self, *words, **_):
        answer = self.answers.pop(0)
        status, output = (answer, "") if isinstance(answer, int) else (0, answer)
        return CommandResult(HEAD.host, str(words[-1]), status, output, "", 0.1)

    def close(self):
        pass

    def forget(self, target):
        pass


def report_of(boot_id):
    facts = {
        system: System("demo-0", "6.8", boot_id, 60.0, 8, 0.1),
        mounted: (),
        gpus: None,
        cloud_init: None,
    }
    read = (FactReading(name_of(fact), fact.__name__, value) for fact, value in facts.items())
    return to_json(FactReport(0.0, 0.0, tuple(read))) + "\n"


@pytest.mark.parametrize(
    "while_it_boots",
    [[143], [report_of("new")[:-9]]],
    ids=["the command is killed", "the output is cut"],
)
def test_a_command_that_fails_as_the_host_goes_down_is_tried_again(while_it_boots):
    host = Rebooting(report_of("old"), "", *while_it_boots, report_of("new"))
    access = SimpleNamespace(
        select=lambda indices: (HEAD,),
        head=HEAD,
        head_name=HEAD.host,
        cluster=SimpleNamespace(name="demo", nodes=()),
        connections=host,
        timeouts=Timeouts(FakeClock()),
    )
    assert module.reboot(access, force=True).values[0].back_after_s is not None
    assert not host.answers


BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def boot_ids(pair):
    return [pair.on(node, BOOT_ID) for node in (0, 1)]


def boot_id_now(pair, node) -> str | None:
    """Return the boot id of a node, or None if it is down or goes down during the query."""
    with pair.access() as access, contextlib.suppress(HostError):
        result = access.connections.run(access.targets[node], BOOT_ID, timeout_s=5)
        return result.stdout if result.ok else None
    return None


@pytest.mark.lab
def test_all_nodes(pair):
    before = boot_ids(pair)
    out = pair.ok("reboot", "0", "1")
    order = [line.partition(":")[0] for line in out.splitlines()]
    assert order == ["pair-1", "pair-0"], "the head node last"
    assert out.count(": back after ") == 2
    assert not set(before) & set(boot_ids(pair))


@pytest.fixture
def impatient(pair, monkeypatch, capsys):
    """Run `clusterctl reboot pair ...` with a short timeout for what a boot has not restored."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(pair.lab.home))
    monkeypatch.setenv("CLUSTERCTL_LAB", "1")
    line = CommandLine(pair.lab.home, capsys, [], Timeouts(restored_s=0.5))
    return lambda *words: line("reboot", "pair", *words)


@pytest.mark.lab
@pytest.mark.all
def test_at_the_first_that_is_not_as_it_was_the_rest_is_left_alone(pair, impatient):
    """A mount made by hand is not restored by a boot."""
    pair.on(1, "sudo -n mkdir -p /mnt/more && sudo -n mount -t tmpfs more /mnt/more")
    before = boot_ids(pair)
    ran = impatient()
    assert (ran.status, ran.out) == (1, "")
    lacks = "pair-1: back, but not as it was: /mnt/more (more) is not mounted again"
    assert lacks in ran.err
    assert "clusterctl ssh pair 1" in ran.err
    assert "pair-0: not rebooted, since pair-1 is not back as it was" in ran.err
    after = boot_ids(pair)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


@pytest.mark.lab
def test_all_at_once(pair, impatient):
    """Nodes reboot at once: a problem of one does not prevent the report of another."""
    pair.on(1, "sudo -n mkdir -p /mnt/more && sudo -n mount -t tmpfs more /mnt/more")
    before = boot_ids(pair)
    ran = impatient("--at-once", "all", "--json")
    assert ran.status == 1, ran.err
    [head], [second] = ran.data["nodes"], ran.data["failures"]
    assert head["back_after_s"] > 0
    assert second["error"] == "NotAsItWas"
    assert not set(before) & set(boot_ids(pair))


@contextlib.contextmanager
def reboots_that_do_nothing(pair):
    """Make node 1 record the order to reboot, but never go down."""
    names = "/usr/local/sbin/reboot /usr/local/sbin/systemctl"
    for name in names.split():
        shim = f"sudo -n tee {name} && sudo -n chmod +x {name}"
        pair.on(1, shim, b"#!/bin/sh\ntouch /tmp/told\n")
    try:
        yield
    finally:
        pair.on(1, f"sudo -n rm -f {names} /tmp/told")


@pytest.mark.lab
@pytest.mark.all
def test_after_an_interrupt_it_is_said_who_is_rebooting(pair):
    with reboots_that_do_nothing(pair), pair.start("reboot", "--timeout", "5m") as process:
        eventually(lambda: pair.on(1, "ls /tmp").count("told"), "the order to reboot")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "rebooting; the command does not wait: pair-1; the others are as they were" in err


@pytest.mark.lab
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("7",), "has no node 7"),
        (("1", "--nodes", "1"), "exclude each other"),
        (("--no-wait", "--at-once", "2"), "--no-wait reboots all nodes at once"),
        (("--at-once", "0"), "not a number of nodes"),
        (("--at-once", "٣"), "not a number of nodes"),
        (("3-1",), "3-1"),
    ],
)
def test_what_makes_no_sense(pair, words, message):
    status, out, err = pair.ctl("reboot", *words)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.lab
def test_a_node_that_stays_away_is_named(pair):
    with reboots_that_do_nothing(pair):
        status, out, err = pair.ctl("reboot", "--nodes", "1", "--timeout", "3s")
    assert (status, out) == (1, "")
    assert "pair-1: not back within 3.0 s: it is still up: it never went down" in err
    assert "--timeout" in err


@pytest.mark.lab
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


@pytest.mark.lab
@pytest.mark.all
def test_a_dead_node_is_one_line_and_the_rest_reboot(pair):
    before = boot_ids(pair)
    with pair.cut_off(1):
        status, out, err = pair.ctl("reboot")
        assert status == 255
        assert out.startswith("pair-0: back after ")
        assert "pair-1: did not answer in time" in err
    after = boot_ids(pair)
    assert (after[0] == before[0], after[1] == before[1]) == (False, True)


@pytest.mark.lab
@pytest.mark.all
def test_not_while_an_mpirun_runs(pair):
    pair.on(
        0,
        "cd ~/examples/horovod/tensorflow; setsid /usr/bin/mpirun -np 1 --hostfile hosts"
        " sleep 600 </dev/null >/dev/null 2>&1 & sleep 1",
    )
    try:
        before = boot_ids(pair)
        for command in (["reboot"], ["clean-logs"], ["train", "1", "--synthetic"]):
            status, out, err = pair.ctl(*command)
            assert (status, out) == (1, "")
            assert "is running on pair-0, and" in err
            assert "clusterctl cancel pair" in err
        assert boot_ids(pair) == before
    finally:
        pair.ctl("kill")


@pytest.mark.lab
def test_without_waiting(pair):
    before = boot_ids(pair)
    status, out, err = pair.ctl("reboot", "--nodes", "1", "--no-wait")
    assert (status, out) == (0, "pair-1: rebooting\n"), err
    eventually(lambda: boot_id_now(pair, 1) not in (None, before[1]), "the other boot")
