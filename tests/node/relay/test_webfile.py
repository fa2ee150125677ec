"""A file of a web server: complete, of one version, and resumed where it stopped."""

from __future__ import annotations

import pytest

from clusterctl.node.relay import webfile
from clusterctl.node.relay.base import Failure
from clusterctl.node.relay.webfile import WebFile
from tests.node.relay.webserver import (
    Handler,
    half,
    half_then_reset,
    hang_up,
    junk,
    reset,
    serving,
    status,
    whole_file,
)

BODY = bytes(range(256)) * 4000


@pytest.fixture
def web():
    with serving() as server:
        server.files["/f"] = BODY
        yield server


def pull(web, folder, name="/f"):
    file = WebFile({"url": web.url + name}, f"{folder}/", lambda line: None, lambda wait_s: None)
    file.run()
    return file.progress


def ranges(web):
    return [headers.get("range", "all") for _, _, headers in web.requests]


def test_whole_with_its_time_and_nothing_the_second_time(web, tmp_path):
    assert pull(web, tmp_path).files == 1
    assert (tmp_path / "f").read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert pull(web, tmp_path).files == 0
    assert ranges(web) == ["bytes=0-0", "all", "bytes=0-0"]


@pytest.mark.parametrize("misdeed", [half, half_then_reset, hang_up, reset, junk, status(503)])
def test_it_goes_on_after_a_failure(web, tmp_path, misdeed):
    web.misdeeds.extend([Handler.serve, misdeed])
    pull(web, tmp_path)
    assert (tmp_path / "f").read_bytes() == BODY
    if misdeed is half:
        assert ranges(web)[2] == f"bytes={len(BODY) // 2}-"


def test_a_run_goes_on_where_an_earlier_one_stopped(web, tmp_path, monkeypatch):
    monkeypatch.setattr(webfile, "ATTEMPTS", 1)
    web.misdeeds.extend([Handler.serve, half, hang_up])
    with pytest.raises(Failure, match="gave up"):
        pull(web, tmp_path)
    assert not (tmp_path / "f").exists()
    web.misdeeds.clear()
    pull(web, tmp_path)
    assert (tmp_path / "f").read_bytes() == BODY
    assert ranges(web)[-1] == f"bytes={len(BODY) // 2}-"


def test_what_has_changed_meanwhile_begins_again(web, tmp_path, monkeypatch):
    monkeypatch.setattr(webfile, "ATTEMPTS", 1)
    web.misdeeds.extend([Handler.serve, half, hang_up])
    with pytest.raises(Failure):
        pull(web, tmp_path)
    web.misdeeds.clear()
    web.files["/f"], web.etags["/f"] = BODY[::-1], '"2"'
    pull(web, tmp_path)
    assert (tmp_path / "f").read_bytes() == BODY[::-1]
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_part_of_another_version_is_not_taken(web, tmp_path):
    """The server ignores If-Range."""
    parts = {"Content-Range": f"bytes {len(BODY) // 2}-{len(BODY) - 1}/{len(BODY)}", "ETag": '"2"'}
    other = b"?" * (len(BODY) - len(BODY) // 2)
    web.misdeeds.extend([Handler.serve, half, lambda handler: handler.say(206, other, parts)])
    with pytest.raises(Failure, match="has changed"):
        pull(web, tmp_path)
    assert not (tmp_path / "f").exists()


def test_a_full_disk_is_no_fault_of_the_server(web, tmp_path, monkeypatch):
    web.misdeeds.extend([Handler.serve, half, hang_up])
    monkeypatch.setattr(webfile, "ATTEMPTS", 1)
    with pytest.raises(Failure):
        pull(web, tmp_path)
    monkeypatch.undo()
    web.misdeeds.clear()
    [part] = [path for path in (tmp_path / ".clusterctl-copy").iterdir() if path.name != "lock"]
    part.unlink()
    part.symlink_to("/dev/full")
    asked = len(web.requests)
    with pytest.raises(OSError, match="No space left"):
        pull(web, tmp_path)
    assert len(web.requests) == asked + 2


def test_too_much_is_kept_for_no_other_run(web, tmp_path):
    same = {"ETag": '"1"'}
    web.misdeeds.extend([Handler.serve, lambda handler: handler.say(200, BODY + b"more", same)])
    with pytest.raises(Failure, match="has changed"):
        pull(web, tmp_path)
    pull(web, tmp_path)
    assert (tmp_path / "f").read_bytes() == BODY


@pytest.mark.parametrize("etag", ['W/"1"', ""])
def test_without_a_strong_etag_it_begins_again(web, tmp_path, etag):
    web.etags["/f"] = etag
    web.misdeeds.extend([Handler.serve, half])
    pull(web, tmp_path)
    assert (tmp_path / "f").read_bytes() == BODY
    assert ranges(web) == ["bytes=0-0", "all", "all"]


def test_a_server_that_knows_no_parts_and_an_empty_file(web, tmp_path):
    web.misdeeds.extend([whole_file, half, whole_file])
    pull(web, tmp_path)
    assert (tmp_path / "f").read_bytes() == BODY
    web.files["/empty"] = b""
    pull(web, tmp_path, "/empty")
    assert (tmp_path / "empty").read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "says"),
    [("/nothing", r"has no .*\(404\)"), ("/", "is a folder"), ("/f/..", "is a folder")],
)
def test_what_cannot_be_pulled_is_said(web, tmp_path, name, says):
    with pytest.raises(Failure, match=says):
        pull(web, tmp_path, name)
    assert list(tmp_path.iterdir()) == []
