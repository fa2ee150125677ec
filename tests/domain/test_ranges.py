from __future__ import annotations

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import fold_hosts, format_indices, parse_indices, parse_nodes


@pytest.mark.parametrize(
    ("text", "indices"),
    [("0", (0,)), ("0-3,5", (0, 1, 2, 3, 5)), ("5, 1-2 ,1", (1, 2, 5)), ("7-7", (7,))],
)
def test_indices(text, indices):
    assert parse_indices(text) == indices
    assert parse_indices(format_indices(indices)) == indices


@pytest.mark.parametrize("text", ["", ",", "a", "1-", "-1", "3-1", "1..3", "٣", "0-9999999"])
def test_no_indices(text):
    with pytest.raises(UsageError):
        parse_indices(text)


@pytest.mark.parametrize(
    ("text", "clusters", "indices"),
    [
        ("0-3,5", set(), (0, 1, 2, 3, 5)),
        ("demo-1", {"demo"}, (1,)),
        ("demo-[0-1,3],demo-7", {"demo"}, (0, 1, 3, 7)),
        ("a-0,b-1", {"a", "b"}, (0, 1)),
        # A cluster may be named demo-0: this is its node 2.
        ("demo-0-2", {"demo-0"}, (2,)),
    ],
)
def test_nodes(text, clusters, indices):
    assert parse_nodes(text) == (clusters, indices)


@pytest.mark.parametrize(
    "text", ["", "demo", "demo-", "demo-x", "demo-[]", "demo-[3-1]", "0,demo-1"]
)
def test_no_nodes(text):
    with pytest.raises(UsageError):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("hosts", "folded"),
    [
        ([], ""),
        (["demo-0"], "demo-0"),
        (["demo-0", "demo-1", "demo-3"], "demo-[0-1,3]"),
        (["demo-3", "demo-1", "demo-2"], "demo-[1-3]"),
        (["10.0.0.9", "10.0.0.10"], "10.0.0.[9-10]"),
        (["n01", "n02", "n10"], "n[01-02,10]"),
        (["a1.ec2", "a2.ec2", "b"], "a[1-2].ec2,b"),
        (["fe80::1", "fe80::2"], "fe80::1,fe80::2"),
        (["x", "x"], "x"),
        (["n1", "n01"], "n1,n01"),
        (["9" * 5000, "x"], f"{'9' * 5000},x"),
    ],
)
def test_folded_hosts(hosts, folded):
    assert fold_hosts(hosts) == folded
