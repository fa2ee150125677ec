"""Fan-out: order, limits, errors as outcomes, bugs as exceptions, interrupts."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from clusterctl.domain.errors import HostUnreachable
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome, exit_status_of
from clusterctl.transport.fanout import fan_out


@dataclass(frozen=True)
class Item:
    host: str


ITEMS = [Item(f"h{number}") for number in range(20)]


@pytest.mark.parametrize("max_workers", [1, 3, 100])
def test_one_outcome_each_in_order(max_workers):
    def work(item: Item) -> str:
        if item.host == "h7":
            raise HostUnreachable(item.host, "gone")
        return item.host.upper()

    seen: list[str] = []
    result = fan_out(
        work, ITEMS, max_workers=max_workers, on_outcome=lambda outcome: seen.append(outcome.host)
    )
    assert [outcome.host for outcome in result.outcomes] == [item.host for item in ITEMS]
    assert [outcome.host for outcome in result.failures] == ["h7"]
    assert len(result.values) == 19
    assert sorted(seen) == sorted(item.host for item in ITEMS)


@pytest.mark.parametrize("max_workers", [1, 4])
def test_a_bug_surfaces_after_everyone_has_ended(max_workers):
    done: list[str] = []

    def work(item: Item) -> None:
        done.append(item.host)
        if item.host == "h3":
            raise ZeroDivisionError("bug")

    with pytest.raises(ZeroDivisionError):
        fan_out(work, ITEMS, max_workers=max_workers)
    assert len(done) == len(ITEMS)


def test_never_more_at_once_than_asked_for():
    running, most = 0, 0
    lock, all_in = threading.Lock(), threading.Barrier(5, timeout=240)

    def work(item: Item) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        all_in.wait()
        with lock:
            running -= 1

    fan_out(work, ITEMS, max_workers=5)
    assert most == 5


def test_an_interrupt_starts_nothing_new_and_goes_on():
    started: list[str] = []
    release = threading.Event()

    def work(item: Item) -> None:
        started.append(item.host)
        if item.host != "h0":
            release.wait(240)

    def interrupt(_: HostOutcome[None]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out(work, ITEMS, max_workers=2, on_outcome=interrupt)
    count = len(started)
    release.set()
    assert count <= 4


def test_nothing_to_do():
    assert fan_out(lambda item: item, []).outcomes == ()


def _result(host: str, status: int, stdout: str = "") -> CommandResult:
    return CommandResult(host, "x", status, stdout, "", 0.1)


@pytest.mark.parametrize(
    ("statuses", "expected"), [([], 0), ([0, 0], 0), ([0, 3, 1], 3), ([0, None, 1], 255)]
)
def test_the_status_for_the_whole(statuses, expected):
    outcomes = [
        HostOutcome(f"h{n}", error=HostUnreachable(f"h{n}", "gone"))
        if status is None
        else HostOutcome(f"h{n}", value=_result(f"h{n}", status))
        for n, status in enumerate(statuses)
    ]
    assert exit_status_of(FanoutResult(tuple(outcomes))) == expected


def test_hosts_with_the_same_output_together():
    outcomes = tuple(
        HostOutcome(host, value=_result(host, 0, text))
        for host, text in [("a", "x"), ("b", "y"), ("c", "x")]
    )
    groups = FanoutResult(outcomes).grouped(lambda value: value.stdout)
    assert groups == [(["a", "c"], "x"), (["b"], "y")]
