from __future__ import annotations

import pytest

from clusterctl.domain.errors import ClusterctlError
from clusterctl.ec2.launch.attempt import SentLaunch, read_launches, write_launches

REQUEST = {"ClientToken": "abc", "UserData": b"\x00\xff#!/bin/sh", "SecurityGroupIds": ["sg-1"]}


def test_the_exact_request_comes_back_and_the_file_stays_after_the_first(tmp_path):
    path = tmp_path / "made on demand" / "launch.json"
    write_launches(path, [])
    assert not path.exists()
    assert read_launches(path) == ()
    launches = (SentLaunch(REQUEST, 12.5), SentLaunch({**REQUEST, "ClientToken": "d"}, 13.0))
    write_launches(path, launches)
    assert read_launches(path) == launches
    assert [found.name for found in path.parent.iterdir()] == ["launch.json"]
    write_launches(path, [])
    assert path.exists()
    assert read_launches(path) == ()


@pytest.mark.parametrize(
    "content",
    [
        '{"launches": [], "format": 2}',
        '{"launches": [{"request": {"ClientToken": "a"}, "sent_at": 1.0, "why": "x"}]}',
    ],
)
def test_a_file_of_a_newer_version_is_not_written_over(tmp_path, content):
    path = tmp_path / "launch.json"
    path.write_text(content)
    with pytest.raises(ClusterctlError, match="was made by a newer clusterctl") as caught:
        read_launches(path)
    assert "delete" not in caught.value.hint


@pytest.mark.parametrize("content", ["{", "null", '{"launches": [{}]}', '{"launches": 3}', "\x00"])
def test_a_file_nobody_can_read(tmp_path, content):
    path = tmp_path / "launch.json"
    path.write_text(content)
    with pytest.raises(ClusterctlError) as caught:
        read_launches(path)
    assert str(path) in caught.value.message
