from __future__ import annotations

import pytest

from clusterctl.copy.request import CopyRequest, check_sources_here, is_url
from clusterctl.copy.s3 import parse_source
from clusterctl.domain.errors import UsageError


def request(**changes) -> CopyRequest:
    return CopyRequest(**{"sources": ("data/",), "destination": "~/data/", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sources": ("a", "b", "with space", "-rf", "a:b", "new\nline", "\udcff", "*.txt")},
        {"sources": ("~/data",), "destination": "~"},
        {"sources": ("s3://bucket/key/", "s3://bucket/other")},
        {"sources": ("s3:/no/url",)},
        {"from_node": 3},
        {"names": (b"a", b"b/c", b"\xff", b"..a/b..")},
        {"names": (b"a",), "sources": ("s3://b/k/",)},
        {"delete": True, "destination": "/data"},
        {"delete": True, "destination": "~/x"},
        {"delete": True, "destination": "etc"},
        {"delete": True, "destination": "/tmp/set"},
        {"destination": "/"},
        {"streams": 64, "block_bytes": 64 << 20},
        {"port": 65535},
        {"link_rate": 1.0},
    ],
)
def test_valid_requests_are_accepted(changes):
    request(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sources": ()}, "no SRC"),
        ({"sources": ("a", "")}, "nothing at ''"),
        ({"destination": ""}, "DST is empty"),
        ({"destination": "a\0b"}, "zero byte"),
        ({"sources": ("a\0b",)}, "zero byte"),
        ({"destination": "~nobody/x"}, "only your own home folder"),
        ({"sources": ("~nobody/x",)}, "only your own home folder"),
        ({"destination": "s3://bucket/x"}, "DST is a path"),
        ({"sources": ("ftp://host/x",)}, "cannot read ftp://"),
        ({"destination": "ssh://host/x"}, "cannot read ssh://"),
        ({"sources": ("data/", "s3://b/k")}, "mixes paths and URLs"),
        ({"sources": ("s3://b/k",), "from_node": 0}, "--from"),
        ({"names": (b"x",), "sources": ("a", "b")}, "takes one SRC"),
        ({"names": ()}, "names no file"),
        ({"names": (b"",)}, "not below SRC"),
        ({"names": (b"/etc/passwd",)}, "not below SRC"),
        ({"names": (b"a/../../b",)}, "not below SRC"),
        ({"names": (b"a\0b",)}, "not below SRC"),
        ({"names": (b"x",), "delete": True}, "--delete and --files-from"),
        ({"delete": True, "destination": "/"}, "what the node runs on"),
        ({"delete": True, "destination": "~"}, "what the node runs on"),
        ({"delete": True, "destination": "x/.."}, "what the node runs on"),
        ({"delete": True, "destination": "~/.."}, "what the node runs on"),
        ({"delete": True, "destination": "../x/.."}, "what the node runs on"),
        ({"delete": True, "destination": "/etc/"}, "what the node runs on"),
        ({"delete": True, "destination": "//usr"}, "what the node runs on"),
        ({"delete": True, "destination": "/home/ubuntu"}, "what the node runs on"),
        ({"delete": True, "destination": "/root"}, "what the node runs on"),
        ({"delete": True, "destination": "/tmp/"}, "what the node runs on"),
        ({"delete": True, "destination": "/var/tmp"}, "what the node runs on"),
        ({"streams": 0}, "streams"),
        ({"streams": 65}, "streams"),
        ({"block_bytes": (64 << 10) - 1}, "block"),
        ({"block_bytes": (64 << 20) + 1}, "block"),
        ({"port": 80}, "port"),
        ({"port": 65536}, "port"),
        ({"link_rate": 0.0}, "--link-rate"),
        ({"link_rate": float("nan")}, "--link-rate"),
        ({"verify": True, "dry_run": True}, "--verify and --dry-run"),
    ],
)
def test_invalid_requests_are_refused(changes, says):
    with pytest.raises(UsageError) as refused:
        request(**changes)
    assert says in refused.value.message + refused.value.hint
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ("s3://bucket/k", True),
        ("S3://bucket", True),
        ("http://h", True),
        ("s3:b", False),
        ("./s3://b", False),
    ],
)
def test_what_is_a_url(source, url):
    assert is_url(source) is url
    if url:
        assert parse_source(source).is_s3 is (source[0] in "sS")


def test_a_url_whose_name_has_a_zero_byte_is_refused():
    with pytest.raises(UsageError, match="zero byte"):
        parse_source("http://host/a%00b")
    assert parse_source("http://host/a?b=%00")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a current folder with a file, a folder, a broken link and a name like a pattern."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "a[b]").write_text("x")


@pytest.mark.parametrize(
    "changes",
    [
        {"sources": ("file",)},
        {"sources": ("folder/", "broken", "a[b]", "f*", "~/file")},
        {"sources": ("folder/",), "delete": True},
        {"sources": ("file", "folder"), "delete": True},
        {"sources": ("fo*",), "delete": True},
        {"sources": ("folder",), "names": (b"x",)},
        {"sources": ("/no/such",), "from_node": 0},
        {"sources": ("s3://b/k",), "delete": True},
    ],
)
def test_sources_that_are_there(here, changes):
    check_sources_here(request(**changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sources": ("/no/such",)}, "there is nothing at '/no/such'"),
        ({"sources": ("file", "x*")}, "there is nothing at 'x*'"),
        ({"sources": ("file/",), "delete": True}, "--delete is for folders"),
        ({"sources": ("file",), "delete": True}, "--delete is for folders"),
        ({"sources": ("broken",), "delete": True}, "--delete is for folders"),
        ({"sources": ("file",), "names": (b"x",)}, "--files-from is for a folder"),
    ],
)
def test_sources_that_are_not(here, changes, says):
    with pytest.raises(UsageError) as refused:
        check_sources_here(request(**changes))
    assert says in refused.value.message
