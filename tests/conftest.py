"""Fixtures and settings for all tests. The lab is the local EC2 (docs/lab.md)."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from clusterctl.cli import output
from tests.botocore_shared import share_what_is_always_the_same
from tests.changes import CHECKOUT, changed_files
from tests.lab.running import home_of_lab, remaining_of, why_no_lab
from tests.pair import launched_pair, pair

__all__ = ["launched_pair", "pair"]

# No test that pytest collects becomes garbage, and looking for it among all of them takes half a
# second each time. From `pytest_collection_finish` on, Python looks for other garbage.
gc.disable()

# No deadline for one example: how long it takes depends on what else the machine does.
hypothesis.settings.register_profile("suite", deadline=None, database=None)
hypothesis.settings.load_profile("suite")

# A shell starts background programs with SIGINT ignored, and nohup with SIGHUP. Commands inherit
# that, and the tests could not interrupt them.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

share_what_is_always_the_same()


# Programs with tests that take minutes: those in the training environment run with --all, and where
# the program or its tests have changed.
PROGRAMS = {"examples": ("examples/", "tests/examples/"), "utils": ("utils/", "tests/utils/")}

# Seconds of each file's tests, those of `--rest` apart, as `--record-durations` last wrote them.
DURATIONS = Path(__file__).with_name("durations.json")
# Fixtures, each with the mark of the tests that use it.
MARKS = {
    "lab": "lab",
    "lab_home": "lab",
    "ssh_server": "slow",
    "relays": "slow",
    "homes": "slow",
    "moto_url": "slow",
    "training_env": "train",
}


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, and put the longest files first: short ones fill the gaps."""
    for item in items:
        for fixture in MARKS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKS[fixture])
    same = [
        CHECKOUT / "tests" / name
        for name, folders in PROGRAMS.items()
        if not any(file.startswith(folders) for file in changed_files())
    ]
    for item in items:
        if item.get_closest_marker("train") and any(one in item.path.parents for one in same):
            item.add_marker("all")
    recorded = json.loads(DURATIONS.read_text())[part_of(config)]
    # A new file with hosts may be a long one, which would end the run late.
    with_hosts = {item.path for item in items if item.get_closest_marker("lab")}
    items.sort(
        key=lambda item: (
            -recorded.get(
                str(item.path.relative_to(CHECKOUT)), 10 if item.path in with_hosts else 1
            )
        )
    )


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def part_of(config: pytest.Config) -> str:
    """Return which part of the suite runs: what `./scripts/test --rest` does, or the usual."""
    return "rest" if config.getoption("markexpr") == "all" else "usual"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write how long each file takes into tests/{DURATIONS.name}, which sets the order",
    )


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if not config.getoption("record_durations"):
        return
    took_s: Counter[str] = Counter()
    for kind in ("passed", ""):  # "" has the setups and teardowns
        for report in terminalreporter.stats.get(kind, ()):
            took_s[report.nodeid.partition("::")[0]] += report.duration
    recorded = json.loads(DURATIONS.read_text())
    known = {**recorded[part_of(config)], **took_s}
    # Files that take a few seconds fill the gaps in any order.
    kept = {file: round(seconds) for file, seconds in sorted(known.items()) if seconds > 3}
    DURATIONS.write_text(json.dumps({**recorded, part_of(config): kept}, indent=2) + "\n")


@pytest.fixture(autouse=True)
def first_command_of_a_process():
    """Let no test see what a command in another test typed, as it completes suggestions."""
    output.begin("clusterctl", (), as_json=False)
    output.program = "clusterctl"


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Yield the LabRecord of a running lab in its own home. Nothing of it remains at the end."""
    reason = why_no_lab()
    if reason:
        pytest.skip(reason)
    with home_of_lab(tmp_path_factory.mktemp("lab")) as home:
        record = home.start()
        yield record
        processes = home.processes()
    assert remaining_of(record, processes) == []


@pytest.fixture
def lab_home(tmp_path):
    """Yield a home in which a test starts and stops its own lab."""
    reason = why_no_lab()
    if reason:
        pytest.skip(reason)
    with home_of_lab(tmp_path) as home:
        yield home


def pytest_report_header() -> str:
    return f"lab: {why_no_lab() or 'available'}, uid {os.geteuid()}"
