"""The guard on real hosts, installed over SSH and by user data, and the end of the hosts."""

from __future__ import annotations

import json

import pytest

from clusterctl.bootstrap.guard import guard_update_script, guard_user_data
from clusterctl.node.guard.settings import GuardSettings
from tests.lab.conftest import LabFaults
from tests.lab.running import wait_until
from tests.node.guard.guard_lab import HISTORY, RANK, Launcher

pytestmark = pytest.mark.lab
NOTHING = guard_update_script(GuardSettings("demo"))
BOOT_SCRIPT = "/var/lib/cloud/scripts/per-boot/clusterctl-guard"
PID = "pgrep -f '^python3 -IS .*guard run' || :"
RUNNING = "pgrep -fc '^python3 -IS /usr/local/lib/clusterctl/guard run' || :"


@pytest.fixture(scope="module")
def launch(lab, tmp_path_factory):
    launcher = Launcher(lab, tmp_path_factory.mktemp("guard"))
    yield launcher.up
    launcher.end()


def test_armed_by_user_data_it_ends_a_machine_that_nobody_ever_logged_in_to(launch):
    settings = guard_user_data(GuardSettings("demo", lifetime_s=3))
    node = launch(behaviour="terminate", user_data=settings, await_login=False)
    node.is_off(0, "terminated")


def test_an_event_that_ec2_has_scheduled_is_announced_once(launch, lab):
    node = launch()
    faults = LabFaults(lab)
    faults("event", instance_id=node.nodes[0]["InstanceId"], code="instance-stop", in_s=86400)
    try:
        node.tell(0, lifetime_s=1e6)
        log = "cat /var/log/clusterctl-guard.log 2>/dev/null || :"
        said = "EC2 has scheduled instance-stop for this machine, from "
        wait_until(lambda: said in node.on(0, log), "the event in the log")
        asked = node.state(0)["at"]
        wait_until(lambda: node.state(0)["at"] > asked, "a later state")
        assert node.on(0, log).count(said) == 1
    finally:
        faults.clear()


@pytest.mark.all
def test_installed_again_changed_and_removed(launch):
    node = launch()
    node.tell(0, lifetime_s=1e6)
    first = wait_until(lambda: node.state(0), "a state")
    pid = node.on(0, PID)
    node.tell(0, lifetime_s=1e6)
    node.tell(0, lifetime_s=2e6)
    wait_until(lambda: node.state(0)["left_s"] > 1.5e6, "the new lifetime")
    assert first["left_s"] < 1e6
    assert node.on(0, PID) == pid
    assert node.on(0, NOTHING) == "complete"
    wait_until(lambda: node.on(0, RUNNING) == "0", "the guard to be gone")
    assert node.on(0, f"test ! -e {BOOT_SCRIPT}; echo $?") == "0"
    assert node.state(0) is None
    assert node.on(0, NOTHING) == "complete"


@pytest.mark.all
def test_it_survives_being_killed_and_a_second_start(launch):
    node = launch()
    node.tell(0, lifetime_s=1e6)
    wait_until(lambda: node.on(0, RUNNING) == "1", "a guard")
    node.on(0, f"sudo -n {BOOT_SCRIPT}; sudo -n {BOOT_SCRIPT}")
    wait_until(lambda: node.on(0, RUNNING) == "1", "the others to have ended")
    pid = node.on(0, PID)
    node.on(0, f"sudo -n kill -9 {pid}")
    wait_until(lambda: node.on(0, PID) not in ("", pid), "another guard")
    wait_until(lambda: node.on(0, RUNNING) == "1", "one guard")


@pytest.mark.all
def test_an_image_of_a_node_is_not_ended_by_the_nodes_guard(launch):
    node = launch()
    node.tell(0, lifetime_s=1e6)
    wait_until(lambda: node.state(0), "a state")
    node.on(0, "echo i-another | sudo -n tee /var/lib/clusterctl/guard-instance")
    pid = node.on(0, PID)
    node.on(0, f"sudo -n pkill -f 'per-boot/[c]lusterctl-guard stay'; sudo -n kill {pid}")
    wait_until(lambda: node.on(0, RUNNING) == "0", "the node's own to have ended")
    node.on(0, f"sudo -n {BOOT_SCRIPT}")
    assert node.on(0, RUNNING) == "0"
    # A newly installed guard counts from zero.
    node.tell(0, lifetime_s=1e6)
    wait_until(lambda: node.on(0, RUNNING) == "1", "a guard")


@pytest.mark.all
def test_a_job_keeps_it_up_until_it_ends(launch):
    node = launch()
    node.on(0, HISTORY)
    rank = node.on(0, RANK)
    node.tell(0, idle_s=4)

    def by_the_job_alone():
        alone = [one for one in node.history(0) if one.get("busy") and len(one["busy"]) == 1]
        return [one for one in alone if "a job's" in one["busy"][0]]

    wait_until(by_the_job_alone, "a look while nobody is logged in")
    assert {one.get("idle_for_s", 0) for one in by_the_job_alone()} == {0}
    node.on(0, f"kill {rank}")
    node.is_off(0)


@pytest.mark.parametrize("worker", [pytest.param(0, marks=pytest.mark.all), 1])
def test_data_on_an_instance_store_keeps_all_up_unless_the_user_gives_it_up(launch, worker):
    cluster = launch(worker + 1, instance_type="g5.xlarge")
    cluster.joined()
    cluster.on(worker, "head -c 20M /dev/zero >/opt/dlami/nvme/weights; sync")
    cluster.on(0, HISTORY)
    for index in range(worker, -1, -1):
        cluster.tell(index, idle_s=3)

    def by_the_data_alone():
        alone = [one for one in cluster.history(0) if one.get("busy") and len(one["busy"]) == 1]
        return [one for one in alone if "data on /opt/dlami/nvme" in one["busy"][0]]

    wait_until(by_the_data_alone, "a look while nobody is logged in")
    assert {one["idle_for_s"] for one in by_the_data_alone()} == {0}
    assert by_the_data_alone()[0]["busy"][0].startswith(f"demo-{worker}: ")
    for index in range(worker, -1, -1):
        cluster.tell(index, idle_s=3, erases_store=True)
    cluster.is_off(0)


@pytest.mark.all
def test_a_login_keeps_it_up_until_it_ends(launch):
    node = launch()
    # Log in before the limit is set: a login may take longer than the limit.
    show = "echo here; while :; do cat /run/clusterctl/guard-state.json; sleep 1; done"
    session = node.login(0, show)
    assert session.stdout.readline() == "here\n"
    node.tell(0, idle_s=3)
    looks: set[float] = set()
    while len(looks) < 3:
        state = json.loads(session.stdout.readline())
        if state.get("checked_at"):
            looks.add(state["checked_at"])
            assert state["idle_for_s"] == 0
            assert any("ubuntu is logged in" in reason for reason in state["busy"])
    session.kill()
    node.is_off(0)


@pytest.mark.all
def test_a_whole_cluster_idles(launch):
    cluster = launch(2)
    cluster.joined()
    rank = cluster.on(1, RANK)
    cluster.on(0, HISTORY)
    cluster.tell(1, idle_s=4)
    cluster.tell(0, idle_s=4)

    def kept_by(word):
        busy = [one.get("busy") or [] for one in cluster.history(0)]
        return any(
            reason.startswith("demo-1: ") and word in reason for one in busy for reason in one
        )

    wait_until(lambda: kept_by("a job's"), "the worker's rank to be seen from the head node")
    cluster.on(1, f"kill {rank}")
    cluster.is_off(1)
    cluster.is_off(0)


@pytest.mark.all
def test_a_worker_that_does_not_answer_is_no_idle_worker(launch):
    cluster = launch(2)
    cluster.joined()
    cluster.on(0, HISTORY)
    cluster.on(1, "sudo -n rm -rf /usr/local/lib/clusterctl")
    cluster.tell(0, idle_s=2)

    def kept():
        busy = [one.get("busy") or [] for one in cluster.history(0)]
        return [one for one in busy if one and "demo-1: does not answer" in one[0]]

    wait_until(kept, "an answer to be missed")
    cluster.tell(1, lifetime_s=1e6)
    cluster.is_off(0)
    cluster.is_off(1)
