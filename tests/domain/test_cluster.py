from __future__ import annotations

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import UsageError


def spec(**changes):
    return ClusterSpec(**{"name": "demo", "nodes": 2, "instance_type": "p3.2xlarge", **changes})


@pytest.mark.parametrize("name", ["a", "demo", "x1-2", "a" * 40])
def test_names(name):
    assert spec(name=name).name == name


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(
            ({"name": name}, "not a cluster name")
            for name in ("", "A", "1a", "-a", "a-", "a_b", "a/b", "..", "a b", "ä", "a" * 41, "a\n")
        ),
        ({"name": "lab"}, "cannot be called lab"),
        ({"nodes": 0}, "0 nodes makes no sense"),
        ({"nodes": -1}, "makes no sense"),
        *(({"ssh_user": user}, "not a user name") for user in ("", "a b;", "Root", "-l", "a\n")),
        *(
            ({"instance_type": kind}, "not an instance type")
            for kind in ("", "p3", "p3.2xlarge ", "p3.2XLARGE", "$(reboot).x")
        ),
    ],
)
def test_specs_that_make_no_sense(changes, says):
    with pytest.raises(UsageError, match=says):
        spec(**changes)
