"""The command copyclust with a hosts file and a real sshd."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.cli.programs import BIN, forked
from tests.lab.running import wait_until


@pytest.fixture
def one_host(hosts):
    hosts.write_text("127.0.0.1\n")
    return hosts


@pytest.fixture
def source(tmp_path):
    """Return a folder with a file of 8 bytes, an empty file, a link and a folder."""
    folder = tmp_path / "src"
    (folder / "below").mkdir(parents=True)
    (folder / "file").write_text("content\n")
    (folder / "below" / "empty").write_bytes(b"")
    (folder / "link").symlink_to("file")
    return folder


def copy_of(folder) -> dict[str, object]:
    """Return {path below a folder: content of a file, target of a link, or None for a folder}."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def test_names_and_contents_are_kept(home, one_host, tmp_path):
    source, target = tmp_path / "src", tmp_path / "to 'ü'"
    source.mkdir()
    for name in ("plain", "with space", "qu'o\"te", "ünï", "a:b", "$HOME", "-rf"):
        (source / name).write_text("content\n")
        os.utime(source / name, (1e9, 1e9))
    done = forked("copyclust", one_host, f"{source}/", f"{target}/")
    assert done.returncode == 0, done.stderr
    assert copy_of(target) == copy_of(source)
    assert {path.stat().st_mtime for path in target.iterdir()} == {1e9}
    assert done.stdout.startswith("127.0.0.1: 7 files, 56 B in ")
    again = forked("copyclust", one_host, f"{source}/", f"{target}/")
    assert again.stdout.startswith("127.0.0.1: up to date (7 files, 56 B), ")


def test_one_host_is_bad_and_the_other_gets_it(home, hosts, source, tmp_path):
    hosts.write_text("127.0.0.1\nno-such-host.invalid\n")
    done = forked("copyclust", "--json", hosts, source / "file", tmp_path / "copy")
    report = json.loads(done.stdout.splitlines()[-1])
    [good], [bad] = report["nodes"], report["failures"]
    assert (report["event"], report["ok"], report["exit_status"]) == ("report", False, 255)
    assert (good["ok"], good["files"], good["bytes"]) == (True, 1, 8)
    assert (bad["host"], bad["error"]) == ("no-such-host.invalid", "HostUnreachable")
    assert done.returncode == 255
    assert (tmp_path / "copy").read_text() == "content\n"


def test_from_a_host_of_the_file(home, hosts, source, tmp_path):
    hosts.write_text("127.0.0.1\n127.0.0.2\n")
    arguments = (hosts, f"{source}/", tmp_path / "to")
    for place in ("1", "127.0.0.2"):
        done = forked("copyclust", "--dry-run", "--from", place, *arguments)
        assert done.returncode == 0, done.stderr
        assert "would be copied" in done.stdout


def test_hosts_as_clustershell_names_them(home, source, tmp_path):
    named = ("-w", "127.0.0.[1]")
    done = forked("copyclust", *named, source / "file", tmp_path / "to")
    assert ((tmp_path / "to").read_text(), done.returncode) == ("content\n", 0), done.stderr
    done = forked("copyclust", "verify", *named, tmp_path / "to")
    assert (done.returncode, "the same on all" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["-w", "n1", "x"], "copyclust x '~/' -w n1"),
        (["no-such-file", "a", "b"], "there is no hosts file no-such-file"),
        (["HOSTS", "/no/such/source", "x"], "there is nothing at"),
        (["HOSTS", "", "x"], "'SRC...': '' is empty"),
        (["HOSTS", ".", ""], "'DST': '' is empty"),
        (["HOSTS", ".", "~nobody/x"], "only your own home folder"),
        (["HOSTS", "."], "DST is missing"),
        (["HOSTS", ".", "s3://bucket/x"], "DST is a path on the nodes"),
        (["HOSTS", ".", "s3://bucket/x", "to"], "mixes paths and URLs"),
        (["--from", "9", "HOSTS", ".", "to"], "no such host"),
        (["--delete", "HOSTS", "./", "~"], "what the node runs on"),
        (["--delete", "HOSTS", "/etc/hostname", "to"], "--delete"),
    ],
)
def test_requests_that_make_no_sense(home, hosts, argv, says):
    done = forked("copyclust", *[hosts if word == "HOSTS" else word for word in argv])
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "status", "error"), [((), 2, "UsageError"), (("--from", "0"), 1, "NotFound")]
)
def test_nothing_at_the_source_as_json(home, one_host, options, status, error):
    """It is no request that makes no sense if a node had to be asked."""
    done = forked("copyclust", "--json", *options, one_host, "/no/such", "to")
    report = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, report["exit_status"], report["error"]) == (status, status, error)
    assert "there is nothing at" in report["message"]


def test_ctrl_c_leaves_what_can_go_on(home, one_host, tmp_path):
    """A copy is interrupted as it begins to write. The next one completes it."""
    source, target, parts = tmp_path / "big", tmp_path / "to", tmp_path / ".clusterctl-copy"
    # A quick machine may have copied the first of these before the signal comes.
    for size in (192, 384, 768):
        source.write_bytes(os.urandom(1 << 20) * size)  # a file of holes is copied at once
        # What a run before this one left says nothing about this one.
        target.unlink(missing_ok=True)
        shutil.rmtree(parts, ignore_errors=True)
        process = subprocess.Popen(
            [BIN / "copyclust", "--json", one_host, source, target],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: parts.exists() or target.exists(), "the copy to begin")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=240)
        if process.returncode == 130 and not target.exists():
            break
    assert process.returncode == 130
    *_, last, continues = stderr.splitlines()
    assert (last, continues.startswith("to go on: copyclust --json ")) == ("interrupted", True)
    assert not target.exists()
    assert forked("copyclust", one_host, source, target).returncode == 0
    assert filecmp.cmp(source, target, shallow=False)
    assert not parts.exists()
