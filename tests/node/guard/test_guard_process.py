"""The guard's program, really run, below its own root folder."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from clusterctl.bootstrap.guard import GUARD
from clusterctl.node.guard.clock import BootClock, GuardFiles
from clusterctl.node.guard.guard import check
from clusterctl.node.guard.settings import GuardSettings, parse_settings
from tests.lab.running import wait_until
from tests.node.guard.guard_process import GuardProcess
from tests.pythons import python_or_skip
from tests.variants import usual

pytestmark = pytest.mark.slow

LONG = GuardSettings("demo", lifetime_s=1e9)


@pytest.fixture
def guard(tmp_path):
    process = GuardProcess(tmp_path)
    yield process
    process.stop()


def over(seconds: float = -1.0) -> GuardSettings:
    """Return settings whose end is `seconds` from now, for a guard that counts from the boot."""
    return GuardSettings("demo", lifetime_s=time.clock_gettime(time.CLOCK_BOOTTIME) + seconds)


def ended(guard):
    return wait_until(lambda: guard.ends, f"an end: {guard.log}")


@pytest.mark.parametrize(
    ("at_power_off", "fate"),
    [
        ("", "switched off"),
        ("stop", "stopped (its volumes stay, an instance store is erased)"),
        ("terminate", "terminated (with its disks)"),
    ],
)
def test_the_end_comes_and_is_announced(guard, at_power_off, fate):
    guard.tell(LONG)
    guard.start()
    guard.await_log("settings: ")
    guard.tell(replace(over(3), at_power_off=at_power_off))
    assert ended(guard) == ["shutdown -P now"]
    console = guard.read("dev/console")
    assert "clusterctl: this machine ends in" in console
    assert f"clusterctl: this machine is {fate} now: its time is up" in console
    wait_until(lambda: guard.state().get("ending") == "its time is up", "the state")


def test_a_shutdown_that_fails_is_followed_by_harder_ones(guard):
    guard.environ["POWER_STATUS"] = "1"
    guard.tell(over())
    guard.start()
    wait_until(lambda: len(guard.ends) == 7, f"seven attempts: {guard.ends}")
    assert guard.ends == [*["shutdown -P now"] * 5, "poweroff -f", "poweroff -f -f"]


BROKEN = ["", "{", "[]", "null", '{"cluster": "demo", "lifetime_s": "soon"}', "{}", "[" * 90000]


@pytest.mark.all
def test_broken_settings_change_nothing(guard):
    guard.tell(over(15))
    guard.start()
    guard.await_log("settings: ")
    for number, broken in enumerate(BROKEN, 1):
        guard.tell(broken)
        wait_until(lambda n=number: guard.log.count("stay as they were") == n, f"{broken[:40]!r}")
    assert ended(guard)


def test_broken_settings_at_the_start_leave_the_last_good_ones(guard):
    guard.tell(LONG)
    first = guard.start()
    guard.await_log("settings: ")
    first.kill()
    first.wait()
    guard.settings.with_name("guard-good.json").write_text(over().text())
    guard.settings.unlink()
    guard.start()
    assert ended(guard)


def test_no_settings_at_all_guard_nothing(guard):
    assert guard.start().wait(timeout=240) == 0
    assert guard.ends == []


def test_limits_removed_end_the_guard_and_not_the_machine(guard):
    guard.tell(LONG)
    process = guard.start()
    wait_until(guard.state, "a state")
    guard.tell(GuardSettings("demo"))
    assert process.wait(timeout=240) == 0
    assert guard.ends == []
    assert guard.state() == {}


def test_one_guard_at_a_time(guard):
    guard.tell(LONG)
    first = guard.start()
    wait_until(guard.state, "a state")
    assert guard.start().wait(timeout=240) == 0
    assert first.poll() is None
    # The kernel releases the lock when its holder ends, however that happens.
    first.kill()
    first.wait()
    guard.tell(over())
    guard.start()
    assert ended(guard)


def test_another_boot_goes_on_counting(guard):
    kept = '{"boot_id": "another", "before_s": 5000, "boot_s": 2000, "since": 7, "boots": 2}'
    guard.tell(GuardSettings("demo", lifetime_s=1e10))
    guard.settings.with_name("guard-used.json").write_text(kept)
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    guard.start()
    state = wait_until(guard.state, "a state")
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before - 1 <= state["used_s"] - 7000 <= after + 1
    kept = json.loads(guard.settings.with_name("guard-used.json").read_text())
    assert (kept["since"], kept["boots"]) == (7, 3)


def test_the_running_time_is_kept_where_no_new_file_can_be_written(guard):
    """As on a full disk. Else a reboot there would set the count back."""
    kept = {"boot_id": "another", "before_s": 5000, "boot_s": 2000, "since": 7, "boots": 2}
    guard.tell(GuardSettings("demo", lifetime_s=1e10))
    used = guard.settings.with_name("guard-used.json")
    used.write_text(json.dumps(kept).ljust(256) + "\n")
    used.with_name("guard-used.json.tmp").mkdir()
    guard.start()
    wait_until(lambda: json.loads(used.read_text())["boots"] == 3, "a new record")
    assert json.loads(used.read_text())["before_s"] == 7000


@pytest.mark.parametrize("record", ["", '{"boot_id": ', "[]", "[" * 100_000])
def test_a_damaged_running_time_is_logged_and_ends_no_guard(tmp_path, record):
    place = GuardFiles(str(tmp_path))
    place.kept.mkdir(parents=True)
    place.used.write_text(record)
    clock = BootClock(place)
    assert clock.used_s() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=60)
    assert "is damaged: the time of earlier boots is not counted" in place.log_file.read_text()
    clock.read()
    assert json.loads(place.used.read_text())["boots"] == 1


def test_the_end_is_written_as_running_time_and_nothing_else_changes(guard):
    kept = '{"boot_id": "another", "before_s": 5000, "boot_s": 2000}'
    guard.tell(GuardSettings("demo", index=1, idle_s=60))
    guard.settings.with_name("guard-used.json").write_text(kept)
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    check(GuardFiles(str(guard.folder)), guard.settings, 600.0)
    after_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    found = parse_settings(guard.settings.read_text())
    assert (found.index, found.idle_s) == (1, 60)
    assert before_s <= found.lifetime_s - 7600 <= after_s


def test_a_changed_program_is_taken_up(guard):
    guard.program.write_bytes(GUARD.zipapp(comments=False))
    guard.tell(LONG)
    process = guard.start()
    wait_until(guard.state, "a state")
    new = guard.folder / "guard.new"
    new.write_bytes(GUARD.zipapp())
    new.replace(guard.program)
    guard.await_log("the program has changed")
    guard.tell(over())
    assert ended(guard)
    assert process.poll() is None


def test_the_guard_ends_its_machine_though_it_can_write_nothing(guard):
    guard.tell(over(3))
    for place in ("run", "var/log"):
        (guard.folder / place).parent.mkdir(exist_ok=True)
        (guard.folder / place).write_text("not a folder")
    guard.settings.with_name("guard-used.json").mkdir()
    guard.settings.with_name("guard-good.json").mkdir()
    guard.start()
    assert ended(guard)


def test_the_log_does_not_grow_without_end(guard):
    log = guard.folder / "var/log/clusterctl-guard.log"
    log.parent.mkdir(parents=True)
    log.write_text("x" * 200_000)
    guard.tell(LONG)
    guard.start()
    wait_until(lambda: 0 < len(guard.log) < 10_000, "a new log")


@pytest.mark.all
def test_hanging_helpers_hold_nothing_up(guard):
    for name in ("nvidia-smi", "wall"):
        guard.command(name, "#!/bin/sh\nexec sleep 60\n")
    guard.tell(replace(over(4), index=0, idle_s=10))
    guard.start()
    assert ended(guard)


@pytest.mark.parametrize(
    ("version", "short"), usual(1, [("3.8", True), ("3.9", False), ("3.13", True)])
)
def test_other_pythons(guard, version, short):
    guard.python = str(python_or_skip(version))
    guard.program.write_bytes(GUARD.zipapp(comments=not short))
    guard.tell(over())
    assert guard.start("check", str(guard.settings)).wait(timeout=240) == 0
    guard.start()
    assert ended(guard)
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    looked = guard.start("poll", str(guard.folder)).communicate(timeout=240)[0]
    assert '"cpu_s"' in looked
    # A worker's guard reads when the head node has asked.
    assert json.loads(guard.read("run/clusterctl/guard-asked"))["at_s"] >= before


def test_check_tells_what_is_wrong(guard):
    guard.tell("{")
    process = guard.start("check", str(guard.settings))
    assert "guard.json" in process.communicate(timeout=240)[1]
    assert process.returncode == 1
