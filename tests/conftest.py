"""What tests of several folders share. The lab is the local EC2 (docs/lab.md)."""

from __future__ import annotations

import functools
import os
import signal
from collections import Counter

import botocore.loaders
import hypothesis
import pytest

from tests.lab.running import LabHome, remaining_of, why_no_lab
from tests.pair import pair

__all__ = ["pair"]

# Machines that test are busy: how long an example takes says nothing.
hypothesis.settings.register_profile("suite", deadline=None, database=None)
hypothesis.settings.load_profile("suite")

# A shell starts what runs in its background with SIGINT ignored. Commands inherit that, and no
# Ctrl-C would reach those that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Else every session reads EC2's whole description anew and keeps it: gigabytes after all tests.
botocore.loaders.create_loader = functools.lru_cache(botocore.loaders.create_loader)


# Who asks for one of these waits for hosts, or for TensorFlow.
MARKS = {"lab": "lab", "lab_home": "lab", "training_env": "train"}


@pytest.hookimpl(tryfirst=True)  # before pytest drops what -m does not choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most tests that wait come first: the others fill the gaps at the end."""
    waits = ("lab", "train", "slow")
    for item in items:
        for fixture in MARKS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKS[fixture])
    waiting = Counter(
        item.path for item in items if any(item.get_closest_marker(name) for name in waits)
    )
    items.sort(key=lambda item: -waiting[item.path])


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A running lab in a home of its own: its LabRecord. Nothing of it is left at the end."""
    reason = why_no_lab()
    if reason:
        pytest.skip(reason)
    home = LabHome(tmp_path_factory.mktemp("lab"))
    record = home.start()
    yield record
    processes = home.processes()
    home.stop()
    assert remaining_of(record, processes) == []


@pytest.fixture
def lab_home(tmp_path):
    """A home in which a test starts and stops a lab of its own."""
    reason = why_no_lab()
    if reason:
        pytest.skip(reason)
    home = LabHome(tmp_path)
    yield home
    home.stop()


def pytest_report_header() -> str:
    return f"lab: {why_no_lab() or 'available'}, uid {os.geteuid()}"
