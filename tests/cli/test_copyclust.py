"""copyclust as a command, on a hosts file, against a real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from tests.cli.programs import BIN, call


@pytest.fixture
def one_host(hosts):
    hosts.write_text("127.0.0.1\n")
    return hosts


@pytest.fixture
def source(tmp_path):
    """A folder with a file of 8 bytes, an empty one, a link and a folder."""
    folder = tmp_path / "src"
    (folder / "below").mkdir(parents=True)
    (folder / "file").write_text("content\n")
    (folder / "below" / "empty").write_bytes(b"")
    (folder / "link").symlink_to("file")
    return folder


def copy_of(folder) -> dict[str, object]:
    """All below a folder: contents of files, targets of links, None for folders."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


@pytest.mark.parametrize("name", ["plain", "with space", "qu'o\"te", "ünï", "a:b", "$HOME", "-rf"])
def test_names_and_contents_are_kept(home, one_host, tmp_path, name):
    source = tmp_path / "src"
    source.mkdir()
    (source / name).write_text("content\n")
    os.utime(source / name, (1e9, 1e9))
    target = tmp_path / f"to {name}"
    done = call("copyclust", one_host, f"{source}/", f"{target}/")
    assert done.returncode == 0, done.stderr
    assert copy_of(target) == {name: b"content\n"}
    assert (target / name).stat().st_mtime == 1e9
    assert done.stdout.startswith("127.0.0.1: 1 file, 8 B in ")
    again = call("copyclust", one_host, f"{source}/", f"{target}/")
    assert again.stdout.startswith("127.0.0.1: up to date (1 file, 8 B), ")


def test_what_slashes_mean(home, one_host, source, tmp_path):
    whole = {"below": None, "below/empty": b"", "file": b"content\n", "link": "file"}
    assert call("copyclust", one_host, f"{source}/", tmp_path / "a").returncode == 0
    assert copy_of(tmp_path / "a") == whole
    assert call("copyclust", one_host, source, tmp_path / "b").returncode == 0
    assert copy_of(tmp_path / "b") == {
        "src": None,
        **{f"src/{name}": content for name, content in whole.items()},
    }
    assert call("copyclust", one_host, source / "file", tmp_path / "c").returncode == 0
    assert (tmp_path / "c").read_text() == "content\n"


def test_several_sources_and_a_glob(home, one_host, source, tmp_path):
    (tmp_path / "one").write_text("1")
    done = call("copyclust", one_host, tmp_path / "one", f"{source}/f*", f"{tmp_path}/to/")
    assert done.returncode == 0, done.stderr
    assert copy_of(tmp_path / "to") == {"file": b"content\n", "one": b"1"}


def test_delete(home, one_host, source, tmp_path):
    target = tmp_path / "to"
    (target / "old").mkdir(parents=True)
    (target / "old" / "file").write_text("x")
    arguments = ("--delete", one_host, f"{source}/", target)
    dry = call("copyclust", "--dry-run", *arguments)
    assert dry.returncode == 0, dry.stderr
    assert "127.0.0.1: 2 files would be deleted\n  old/file\n  old\n" in dry.stdout
    assert sorted(copy_of(target)) == ["old", "old/file"]
    done = call("copyclust", *arguments)
    assert done.returncode == 0, done.stderr
    assert "2 files deleted" in done.stdout
    assert sorted(copy_of(target)) == ["below", "below/empty", "file", "link"]


def test_delete_of_a_single_file(home, one_host, source, tmp_path):
    done = call("copyclust", "--delete", one_host, source / "file", tmp_path / "to")
    assert done.returncode == 2
    assert "--delete" in done.stderr
    assert not (tmp_path / "to").exists()


def test_only_these_names(home, one_host, source, tmp_path):
    arguments = ("--files-from", "-", one_host, f"{source}/", tmp_path / "to")
    done = call("copyclust", *arguments, stdin=b"below/empty\n\n")
    assert done.returncode == 0, done.stderr
    assert copy_of(tmp_path / "to") == {"below": None, "below/empty": b""}


def test_checksum_finds_what_size_and_time_do_not(home, one_host, source, tmp_path):
    arguments = (one_host, f"{source}/", tmp_path / "to")
    call("copyclust", *arguments)
    copied, status = tmp_path / "to" / "file", (source / "file").stat()
    copied.write_text("kontent\n")
    os.utime(copied, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert "up to date" in call("copyclust", *arguments).stdout
    assert call("copyclust", "-c", *arguments).stdout.startswith("127.0.0.1: 1 file, 8 B in ")
    assert copied.read_text() == "content\n"


def test_what_cannot_be_copied_is_named(home, one_host, source, tmp_path):
    os.mkfifo(source / "pipe")
    done = call("copyclust", one_host, f"{source}/", tmp_path / "to")
    assert done.returncode == 1
    assert "left out: " in done.stderr
    assert "pipe" in done.stderr
    assert "file" in copy_of(tmp_path / "to")


def test_one_host_is_bad_and_the_other_gets_it(home, hosts, source, tmp_path):
    hosts.write_text("127.0.0.1\nno-such-host.invalid\n")
    done = call("copyclust", "--json", hosts, source / "file", tmp_path / "copy")
    report = json.loads(done.stdout.splitlines()[-1])
    good, bad = report["nodes"]
    assert (report["event"], report["ok"], report["exit_status"]) == ("report", False, 255)
    assert (good["ok"], good["files"], good["bytes"]) == (True, 1, 8)
    assert (bad["host"], bad["error"]) == ("no-such-host.invalid", "HostUnreachable")
    assert done.returncode == 255
    assert (tmp_path / "copy").read_text() == "content\n"


def test_into_something_that_is_no_folder(home, one_host, tmp_path):
    (tmp_path / "file").write_text("x")
    done = call("copyclust", one_host, tmp_path / "file", f"{tmp_path}/file/below/it")
    assert done.returncode == 1
    assert "127.0.0.1: " in done.stderr
    assert "Traceback" not in done.stderr


def test_from_a_host_of_the_file(home, hosts, source, tmp_path):
    hosts.write_text("127.0.0.1\n127.0.0.2\n")
    arguments = (hosts, f"{source}/", tmp_path / "to")
    for place in ("1", "127.0.0.2"):
        done = call("copyclust", "--dry-run", "--from", place, *arguments)
        assert done.returncode == 0, done.stderr
        assert "would be copied" in done.stdout


def test_the_plan_is_shown(home, one_host, source, tmp_path):
    done = call(
        *("copyclust", "--plan", "--link-rate", "1gbit"),
        *(one_host, f"{source}/", tmp_path / "to"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plan: a chain")
    assert "\n  predicted: " in done.stdout
    assert "\nmeasured: " in done.stdout


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["no-such-file", "a", "b"], "there is no hosts file no-such-file"),
        (["HOSTS", "/no/such/source", "x"], "there is nothing at"),
        (["HOSTS", "", "x"], "there is nothing at ''"),
        (["HOSTS", ".", ""], "DST is empty"),
        (["HOSTS", ".", "~nobody/x"], "only your own home folder"),
        (["HOSTS", "."], "Missing argument 'SRC...'"),
        (["HOSTS"], "Missing argument"),
        (["HOSTS", ".", "s3://bucket/x"], "DST is a path on the nodes"),
        (["HOSTS", ".", "s3://bucket/x", "to"], "mixes paths and URLs"),
        (["--from", "9", "HOSTS", ".", "to"], "no such host"),
        (["--from", "x", "HOSTS", ".", "to"], "no such host"),
        (["--delete", "HOSTS", "./", "~"], "what the node runs on"),
        (["--streams", "99", "HOSTS", ".", "to"], "1 to 64"),
        (["--block-size", "1KiB", "HOSTS", ".", "to"], "64KiB to 64MiB"),
        (["--files-from", "/no/such", "HOSTS", ".", "to"], "cannot read the list of names"),
    ],
)
def test_requests_that_make_no_sense(home, hosts, argv, says):
    done = call("copyclust", *[hosts if word == "HOSTS" else word for word in argv])
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("source", [("/no/such",), ("--from", "0", "/no/such")])
def test_a_refused_request_as_json(home, one_host, source):
    done = call("copyclust", "--json", *source[:-1], one_host, source[-1], "to")
    report = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, report["exit_status"], report["error"]) == (2, 2, "UsageError")
    assert "there is nothing at" in report["message"]


def test_what_was_verified_is_said(home, one_host, source, tmp_path):
    done = call("copyclust", "--verify", one_host, f"{source}/", tmp_path / "to")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("127.0.0.1: verified, the same content as SRC\n")
    assert done.stderr == ""


def test_ctrl_c_leaves_what_can_go_on(home, one_host, tmp_path):
    """Interrupted in the middle of 64 MiB, which then are made whole."""
    source, target = tmp_path / "big", tmp_path / "to"
    source.write_bytes(os.urandom(1 << 20) * 64)
    process = subprocess.Popen(
        [BIN / "copyclust", "--json", one_host, source, target],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "node" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted"
    assert not target.exists()
    assert call("copyclust", one_host, source, target).returncode == 0
    assert target.read_bytes() == source.read_bytes()
    assert not (tmp_path / ".clusterctl-copy").exists()
