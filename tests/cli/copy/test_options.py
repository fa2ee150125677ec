"""The options of a copy, and the requests that result from them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from clusterctl.cli.copy.options import CopyOptions, copy_options, request_of, url_access
from clusterctl.cli.copyclust import copyclust, place_of
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.s3 import AccessKeys
from clusterctl.domain.errors import UsageError


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """Make `data/` in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()


def parsed(*argv: str) -> CopyOptions:
    found = []

    @click.command()
    @copy_options
    def command(options: CopyOptions) -> None:
        found.append(options)

    done = CliRunner().invoke(command, argv, catch_exceptions=False)
    if done.exit_code:
        raise UsageError(done.output)
    return found[0]


def made(*argv: str) -> CopyRequest:
    return request_of(parsed(*argv), ("data/",), "data/", None)


@pytest.mark.parametrize(
    ("argv", "changes"),
    [
        ([], {}),
        (["--delete"], {"delete": True}),
        (["-c"], {"checksum": True}),
        (["--dry-run"], {"dry_run": True}),
        (["--verify"], {"verify": True}),
        (["--encrypt"], {"encrypt": True}),
        (["--streams", "4"], {"streams": 4}),
        (["--block-size", "8MiB"], {"block_bytes": 8 << 20}),
        (["--port", "7000"], {"port": 7000}),
        (["--link-rate", "25gbit"], {"link_rate": 3.125e9}),
        (["--link-rate", "160 Mbit/s"], {"link_rate": 2e7}),
    ],
)
def test_one_option_each(argv, changes):
    assert made(*argv) == CopyRequest(**{"sources": ("data/",), "destination": "data/", **changes})


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--block-size", "many"], "not a size"),
        (["--block-size", "1KiB"], "64KiB to 64MiB"),
        (["--link-rate", "fast"], "not a rate"),
        (["--link-rate", "25"], "not a rate"),
        (["--link-rate", "0gbit"], "--link-rate is no rate"),
        (["--streams", "0"], "1 to 64"),
        (["--streams", "x"], "not a valid integer"),
        (["--port", "22"], "1024"),
        (["--timeout", "soon"], "not a duration"),
        (["--fanout", "0"], "not in the range"),
        (["-0"], "--files-from"),
        (["--files-from", "/no/such/file"], "cannot read the list of names"),
        (["--files-from", "/"], "cannot read the list of names"),
        (["--files-from", "/dev/null"], "names no file"),
        (["--verify", "--dry-run"], "exclude"),
    ],
)
def test_options_that_make_no_sense(argv, says):
    with pytest.raises(UsageError) as refused:
        made(*argv)
    assert says in refused.value.message + refused.value.hint


def test_names_from_a_file(tmp_path):
    listed = tmp_path / "list"
    listed.write_bytes(b"a\n\n b c \r\n\xff")
    assert made("--files-from", str(listed)).names == (b"a", b" b c ", b"\xff")
    listed.write_bytes(b"a\nb\0\0c\0")
    assert made("-0", "--files-from", str(listed)).names == (b"a\nb", b"c")


def test_names_from_the_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\nb")))
    found = request_of(CopyOptions(files_from="-"), ("data/",), "data/", None)
    assert found.names == (b"a", b"b")


@pytest.mark.parametrize(
    ("argv", "credentials", "asked"),
    [
        ([], None, 0),
        (["--credentials", "none"], "none", 0),
        (["--credentials", "mine"], AccessKeys("key", "secret", "token"), 1),
        # A web server needs no credentials.
        (["--credentials", "mine", "https://mirror/a"], None, 0),
    ],
)
def test_whose_keys_the_nodes_use(argv, credentials, asked, capsys):
    clients = []

    def make():
        clients.append(SimpleNamespace(frozen_keys=lambda: ("key", "secret", "token")))
        return clients[-1]

    sources = [word for word in argv if "://" in word] or ["s3://bucket/a"]
    options = [word for word in argv if "://" not in word]
    options = parsed(*options, "--s3-endpoint", "http://s3", "--s3-region", "x-1")
    found = url_access(options, sources, make, Path("/home"))
    assert capsys.readouterr().err.count("[s3.temporary_keys]") == asked
    assert (found.credentials, found.endpoint, found.region) == (credentials, "http://s3", "x-1")
    assert len(clients) == asked


def test_an_endpoint_that_is_none():
    with pytest.raises(UsageError, match="not an endpoint"):
        url_access(parsed("--s3-endpoint", "s3"), (), lambda: None, Path())


@pytest.mark.parametrize(
    ("word", "hosts", "place"),
    [
        ("b", ["a", "b"], 1),
        ("0", ["a", "b"], 0),
        ("1", ["a", "b"], 1),
        ("0", ["1", "0"], 1),  # a host's name takes precedence over an index
        ("10.0.0.7", ["10.0.0.6", "10.0.0.7"], 1),
    ],
)
def test_the_place_of_a_host(word, hosts, place):
    assert place_of(word, hosts) == place


@pytest.mark.parametrize("word", ["2", "-1", "c", "", "٠", "99999999999999999999"])
def test_no_such_host(word):
    with pytest.raises(UsageError, match="no such host"):
        place_of(word, ["a", "b"])


def test_verify_is_a_word_of_its_own():
    ran = CliRunner().invoke(copyclust, ["./verify", "a", "b"])
    assert "no hosts file verify" in str(ran.exception)
    helped = CliRunner().invoke(copyclust, ["verify", "--help"])
    assert helped.exit_code == 0
    assert "copyclust verify" in helped.output
