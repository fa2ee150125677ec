"""Shares of blocks: all of them, none twice, about as many for each."""

from __future__ import annotations

import pytest

from clusterctl.copy.shares import Shares, split


def blocks(ranges):
    return [block for begin, end in ranges for block in range(begin, end)]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100, 1001])
@pytest.mark.parametrize("parts", [1, 2, 3, 8, 32])
def test_split(count, parts):
    shares = split([(0, count)], parts)
    assert len(shares) == parts
    assert sorted(sum(map(blocks, shares), [])) == list(range(count))
    sizes = [len(blocks(share)) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_split_of_several_ranges():
    ranges = [(5, 7), (20, 21), (30, 60)]
    shares = split(ranges, 4)
    assert sorted(sum(map(blocks, shares), [])) == blocks(ranges)


def test_a_share_is_handed_on():
    shares = Shares(100, exchange=True)
    got = shares.among(["a", "b", "c"])
    lost = blocks(got.pop("b"))
    more = shares.without("b")
    assert sorted(sum(map(blocks, more.values()), [])) == lost
    assert set(more) <= {"a", "c"}
    again = shares.without("a")
    assert sorted(blocks(again["c"]) + blocks(got["c"]) + blocks(more.get("c", []))) == list(
        range(100)
    )
    assert shares.without("c") == {}


def test_direct_needs_no_hand_over():
    shares = Shares(10, exchange=False)
    assert shares.among(["a", "b"]) == {"a": [(0, 10)], "b": [(0, 10)]}
    assert shares.without("a") == {}
    assert shares.also("c") == {"c": [(0, 10)]}
