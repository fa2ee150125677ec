"""Fixtures and settings for all tests. The lab is the local EC2 (docs/lab.md)."""

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

# No deadline for one example: how long it takes depends on what else the machine does.
hypothesis.settings.register_profile("suite", deadline=None, database=None)
hypothesis.settings.load_profile("suite")

# A shell starts background programs with SIGINT ignored. Commands inherit that, and the tests
# could not interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without this cache, every boto3 session reads and keeps EC2's whole API description: gigabytes
# after all tests.
botocore.loaders.create_loader = functools.lru_cache(botocore.loaders.create_loader)


# Fixtures, each with the mark of the tests that use it.
MARKS = {"lab": "lab", "lab_home": "lab", "training_env": "train"}


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with the most waiting tests first: short tests fill the gaps at the end."""
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
    """Yield the LabRecord of a running lab in its own home. Nothing of it remains at the end."""
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
    """Yield a home in which a test starts and stops its own lab."""
    reason = why_no_lab()
    if reason:
        pytest.skip(reason)
    home = LabHome(tmp_path)
    yield home
    home.stop()


def pytest_report_header() -> str:
    return f"lab: {why_no_lab() or 'available'}, uid {os.geteuid()}"
