from __future__ import annotations

import pytest

from clusterctl.domain.errors import ClusterctlError
from clusterctl.ec2.launch.attempt import SentLaunch, read_launches, write_launches

REQUEST = {
    "ClientToken": "abc",
    "UserData": b"\x00\xff#!/bin/sh",
    "MinCount": 2,
    "SecurityGroupIds": ["sg-1"],
    "TagSpecifications": [{"Tags": [{"Key": "clusterctl:launch", "Value": "abc"}]}],
}


def test_the_exact_request_comes_back(tmp_path):
    path = tmp_path / "made on demand" / "launch.json"
    launches = (SentLaunch(REQUEST, 12.5), SentLaunch({**REQUEST, "ClientToken": "d"}, 13.0))
    write_launches(path, launches)
    assert read_launches(path) == launches
    assert [found.name for found in path.parent.iterdir()] == ["launch.json"]


def test_no_file_before_the_first_launch_and_one_ever_after(tmp_path):
    path = tmp_path / "launch.json"
    write_launches(path, [])
    assert not path.exists()
    assert read_launches(path) == ()
    write_launches(path, [SentLaunch(REQUEST, 1.0)])
    write_launches(path, [])
    assert path.exists()
    assert read_launches(path) == ()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"launches": [{}]}', '{"launches": 3}', '{"launches": [3]}', "\x00"],
)
def test_a_file_nobody_can_read(tmp_path, content):
    path = tmp_path / "launch.json"
    path.write_text(content)
    with pytest.raises(ClusterctlError) as caught:
        read_launches(path)
    assert str(path) in caught.value.message


def test_the_same_request_but_for_its_token():
    tagged = [{"Tags": [{"Key": "clusterctl:launch", "Value": "new"}]}]
    again = {**REQUEST, "ClientToken": "new", "TagSpecifications": tagged}
    assert SentLaunch(REQUEST, 1.0).asks_for(again)
    assert not SentLaunch(REQUEST, 1.0).asks_for({**again, "MinCount": 3})
    assert not SentLaunch(REQUEST, 1.0).asks_for({**again, "UserData": b"x"})
