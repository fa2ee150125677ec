"""Whole copies over real SSH to several hosts on this machine, with faults."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.copy import transfer
from clusterctl.copy import transfer as transfer_module
from clusterctl.copy.plan import CopyFacts, NodeFacts, plan_copy
from clusterctl.copy.report import NodeStage
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.topology import CopyTimeouts
from clusterctl.domain.errors import CommandFailed, CommandTimeout, HostUnreachable, UsageError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.operations.copy import CopyTerms, UrlAccess, copy_to_cluster, copy_to_hosts
from tests.copy.ssh_hosts import ssh_hosts, tree
from tests.lab.running import wait_until
from tests.node.relay.webserver import serving
from tests.variants import usual

pytestmark = pytest.mark.slow

NAMES = [b"plain", b"a b", b"q\"uo'te", b"new\nline", b"\xff\xfe", b"-rf", b"$HOME", b"*"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with ssh_hosts(tmp_path_factory.mktemp("hosts")) as running:
        yield running


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "set"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        (folder / "sub" / os.fsdecode(name)).write_bytes(name * number * 1000)
    (folder / "big").write_bytes(os.urandom(3 << 20))
    (folder / "link").symlink_to("big")
    return folder


def large_file(folder, mib):
    """Return a file that takes long enough to copy for something to happen meanwhile."""
    path, noise = folder / "large", os.urandom((1 << 20) - 8)
    with path.open("wb") as file:
        for number in range(mib):
            file.write(number.to_bytes(8, "big") + noise)  # no two blocks are equal
    return path


def copy(hosts, source, destination, count=3, watch=lambda progress: None, **options):
    request = CopyRequest((str(source),), str(destination))
    terms = CopyTerms(timeout_s=options.pop("timeout_s", 60))
    with hosts.access(count) as access:
        return copy_to_hosts(access, replace(request, **options), watch=watch, terms=terms)


def test_every_host_has_the_same_and_progress_is_told(hosts, data):
    told = []
    report = copy(hosts, f"{data}/", "~/same", watch=told.append)
    assert report.ok
    names = ("host1", "host2", "host3")
    received = {node.host: node.received_bytes for node in report.nodes}
    assert received == dict.fromkeys(names, report.source.bytes)
    for number in (1, 2, 3):
        assert tree(hosts.home(number) / "same") == tree(data)
    assert {node.host for node in told[0].nodes} == {*names}
    assert (told[-1].source, told[-1].plan["way"]) == (report.source, "chain")
    assert [node.stage for node in told[-1].nodes] == [NodeStage.DONE] * 3


def test_again_moves_nothing(hosts, data):
    copy(hosts, f"{data}/", "~/again")
    (data / "big").write_bytes(b"other")
    report = copy(hosts, f"{data}/", "~/again")
    # Whole blocks are sent: the block of the new file has other small files as well.
    assert {node.gap.files for node in report.nodes} == {1}
    assert all(5 <= node.received_bytes < 200_000 for node in report.nodes)
    report = copy(hosts, f"{data}/", "~/again")
    assert [node.gap.bytes for node in report.nodes] == [0, 0, 0]
    assert report.limited_by == "nothing"


def test_a_dry_run_changes_nothing(hosts, data):
    report = copy(hosts, f"{data}/", "~/dry", dry_run=True)
    assert (report.dry_run, report.ok) == (True, True)
    assert {node.gap.bytes for node in report.nodes} == {report.source.bytes}
    assert not (hosts.home(1) / "dry").exists()


@pytest.mark.parametrize("options", [{"encrypt": True}, {"checksum": True}, {"verify": True}])
def test_options(hosts, data, options):
    name = next(iter(options))
    report = copy(hosts, f"{data}/", f"~/{name}", 2, **options)
    assert report.ok
    assert tree(hosts.home(2) / name) == tree(data)


def test_verify_finds_what_became_wrong(hosts, data, monkeypatch):
    true_run = transfer_module.Transfer.run

    def spoil(self):
        report = true_run(self)
        wrong = hosts.home(2) / "spoilt" / "big"
        wrong.write_bytes(wrong.read_bytes()[:-1] + b"?")
        return report

    monkeypatch.setattr(transfer_module.Transfer, "run", spoil)
    report = copy(hosts, f"{data}/", "~/spoilt", 2, verify=True)
    assert [node.host for node in report.failed] == ["host2"]
    assert "big" in report.failed[0].error.message


def test_verify_says_what_is_in_the_way(hosts, data):
    (hosts.home(2) / "blocked" / "big" / "in").mkdir(parents=True)
    (hosts.home(2) / "blocked" / "extra").touch()
    report = copy(hosts, f"{data}/", "~/blocked", 2, verify=True, delete=True)
    [failed] = report.failed
    assert "big" in failed.error.message
    assert failed.error.hint.endswith("remove or rename it")
    assert failed.warnings[1].startswith("nothing was deleted")
    dry = copy(hosts, f"{data}/", "~/blocked", 2, dry_run=True, delete=True)
    assert [(len(node.warnings), node.gap.delete) for node in dry.nodes] == [(0, 0), (2, 0)]
    # The exit status is that of the copy: the file would be left out.
    assert ([node.left_out for node in dry.nodes], dry.exit_status) == ([0, 1], 1)
    assert "big: a folder with something in it is there" in dry.left_out.message


def test_a_verified_file_of_a_web_server_is_the_same_on_all_nodes(hosts, tmp_path):
    with serving() as server, hosts.access(3) as access:
        server.files["/file"] = b"public" * 1000
        report = copy_to_hosts(
            access,
            CopyRequest((f"{server.url}/file",), "~/web/", verify=True),
            watch=lambda progress: None,
            terms=CopyTerms(UrlAccess(tmp_path)),
        )
    assert report.ok, report
    assert {*report.verified} == {"host1", "host2", "host3"}
    assert (report.reread, report.one_copy_s) == (False, None)


def test_a_link_of_unknown_rate_leaves_the_slowest_one_unknown(hosts, data):
    told = []
    with hosts.access(2) as access:
        nodes = [
            SimpleNamespace(name=target.host, index=n, zone="", instance_type=f"t{n}")
            for n, target in enumerate(access.targets)
        ]
        cluster = SimpleNamespace(
            connections=access.connections,
            cluster=SimpleNamespace(nodes=nodes),
            target=lambda node: access.targets[node.index],
            timeouts=Timeouts(),
        )
        request = CopyRequest((f"{data}/",), "~/links")
        rates = {"t0": 1e9}
        report = copy_to_cluster(
            cluster, access.targets, request, watch=told.append, link_rates=lambda: rates
        )
    assert report.ok, report
    assert (told[-1].slowest_link, told[-1].plan["predicted_s"]) == (None, None)


def test_from_a_node(hosts, data):
    (hosts.home(2) / "from").mkdir()
    (hosts.home(2) / "from" / "file").write_bytes(b"of host2")
    report = copy(hosts, "~/from/", "~/from/", from_node=1)
    assert report.ok
    assert (hosts.home(3) / "from" / "file").read_bytes() == b"of host2"


def test_delete_that_would_remove_the_source_is_refused_on_every_host(hosts):
    for number in range(1, 4):
        for name in ("above/set/x", f"above/extra-{number}"):
            (hosts.home(number) / name).parent.mkdir(parents=True, exist_ok=True)
            (hosts.home(number) / name).write_text("x")
    before = [tree(hosts.home(number) / "above") for number in range(1, 4)]
    with pytest.raises(UsageError, match="is what is copied"):
        copy(hosts, "~/above/set/", "~/above/", from_node=0, delete=True)
    assert [tree(hosts.home(number) / "above") for number in range(1, 4)] == before


@pytest.mark.parametrize("source", ["/nothing/there", "/nothing/there/", "~/nothing*"])
def test_nothing_at_the_source(hosts, source):
    with pytest.raises(UsageError, match="nothing"):
        copy(hosts, source, "~/no")


def test_an_unreachable_host_does_not_hold_up_the_others(hosts, data):
    request = CopyRequest((f"{data}/",), "~/unreachable")
    with hosts.access(3) as access:
        gone = replace(access.targets[1], down="it is gone")
        targets = (access.targets[0], gone, access.targets[2])
        report = copy_to_hosts(
            replace(access, targets=targets), request, watch=lambda progress: None
        )
    assert [node.host for node in report.failed] == ["host2"]
    assert isinstance(report.failed[0].error, HostUnreachable)
    assert tree(hosts.home(3) / "unreachable") == tree(data)


def test_nobody_is_reached(hosts, data):
    request = CopyRequest((f"{data}/",), "~/x")
    with hosts.access(2, down="it is gone") as access:
        report = copy_to_hosts(access, request, watch=lambda progress: None)
    assert [type(node.error) for node in report.nodes] == [HostUnreachable] * 2


def test_a_destination_that_is_a_file(hosts, data):
    (hosts.home(2) / "file").write_bytes(b"")
    report = copy(hosts, f"{data}/", "~/file/below")
    assert [node.host for node in report.failed] == ["host2"]
    assert report.failed[0].error.hint
    assert tree(hosts.home(3) / "file" / "below") == tree(data)


GREETINGS = {
    "a greeting": "echo Welcome; echo '{not json'; echo '{\"event\": 3}'; echo '[]'",
    "a huge line": "head -c 3000000 /dev/zero | tr '\\0' x",
    "a huge line of JSON": "printf '{\"event\": \"'; head -c 3000000 /dev/zero | tr '\\0' x; echo",
    "bytes": "head -c 100000 /dev/urandom; echo",
    "noise on stderr": "head -c 3000000 /dev/zero >&2",
}


@pytest.mark.parametrize("name", usual(2, GREETINGS))
def test_a_login_shell_may_say_anything(tmp_path, data, name):
    rc = tmp_path / "rc.sh"
    rc.write_text(f"{GREETINGS[name]}\n" + 'exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    with ssh_hosts(tmp_path, f"ForceCommand /bin/sh '{rc}'") as hosts:
        report = copy(hosts, f"{data}/", "~/greeted", 2)
        assert report.ok, report
        assert tree(hosts.home(2) / "greeted") == tree(data)


# The python3 that comes first on the PATH of one host, and what is said about it.
BROKEN = {
    "too old": ("echo 'python3 is 3.6.9, 3.8 is needed' >&2; exit 1", "too old"),
    "dies": ("echo 'no memory' >&2; exit 9", "no memory"),
    "killed": ("kill -9 $PPID", "137"),
    # It reads until its input ends: a sleep would outlive the test.
    "says nothing": ("cat >/dev/null", "did not start"),
}


@pytest.mark.parametrize("name", usual(len(BROKEN) - 1, BROKEN))
def test_a_relay_that_does_not_start(tmp_path, data, name):
    script, message = BROKEN[name]
    python = tmp_path / "first" / "python3"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    rc = tmp_path / "rc.sh"
    before = f"PATH='{python.parent}':$PATH"
    rc.write_text(f'case $HOME in *home2) {before};; esac\neval "$SSH_ORIGINAL_COMMAND"\n')
    with ssh_hosts(tmp_path, f"ForceCommand /bin/sh '{rc}'") as hosts:
        with hosts.access(3) as access:
            report = transfer_module.Transfer(
                connections=access.connections,
                targets=access.targets,
                request=CopyRequest((f"{data}/",), "~/broken"),
                plan=_plan(access.targets),
                timeouts=CopyTimeouts(start_s=10.0 if name == "says nothing" else 240.0),
            ).run()
        assert [node.host for node in report.failed] == ["host2"], report
        assert message in report.failed[0].error.message
        assert tree(hosts.home(3) / "broken") == tree(data)


def _plan(targets):
    def plan(summary, there):
        nodes = tuple(NodeFacts(target.host) for target in targets if target.host in there)
        return plan_copy(CopyRequest(("x",), "y"), CopyFacts(nodes, summary.bytes, summary.files))

    return plan


def relays_of(mark: str) -> list[int]:
    """Return the relay processes with the mark in their environment, and their children."""
    found = subprocess.run(["pgrep", "-f", "clusterctl:relay"], capture_output=True, check=False)
    return [int(pid) for pid in found.stdout.split() if _environ(int(pid)).find(mark) >= 0]


def _environ(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def test_a_killed_relay_leaves_the_others_whole_and_the_same_copy_completes(hosts, tmp_path):
    large = large_file(tmp_path, 192)
    killed = []

    def kill(progress):
        node = progress.nodes[1]
        if node.bytes and not killed:
            [pid] = relays_of(f"HOME={hosts.home(2)}\0")
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    report = copy(hosts, large, "~/killed/", watch=kill)
    assert killed
    assert [node.host for node in report.failed] == ["host2"]
    assert "killed" in report.failed[0].error.message
    assert "again" in report.failed[0].error.hint
    for number in (1, 3):
        assert tree(hosts.home(number) / "killed")[b"large"] == large.read_bytes()
    report = copy(hosts, large, "~/killed/")
    assert report.ok
    assert tree(hosts.home(2) / "killed")[b"large"] == large.read_bytes()
    assert [node.received_bytes for node in report.nodes][::2] == [0, 0]


@pytest.mark.all
def test_a_frozen_relay_holds_nobody_back(hosts, tmp_path):
    large = large_file(tmp_path, 512)  # not yet complete where the freeze comes late
    frozen = []

    def freeze(progress):
        if progress.nodes[1].bytes and not frozen:
            frozen.extend(relays_of(f"HOME={hosts.home(2)}\0"))
            os.kill(frozen[0], signal.SIGSTOP)

    with hosts.access(3) as access:
        report = transfer_module.Transfer(
            connections=access.connections,
            targets=access.targets,
            request=CopyRequest((str(large),), "~/frozen/"),
            plan=_plan(access.targets),
            timeouts=CopyTimeouts(dead_s=5.0),
            watch=freeze,
        ).run()
    os.kill(frozen[0], signal.SIGKILL)
    assert [node.host for node in report.failed] == ["host2"]
    assert isinstance(report.failed[0].error, CommandTimeout)
    assert tree(hosts.home(3) / "frozen")[b"large"] == large.read_bytes()


@pytest.mark.all
def test_a_file_that_changes_meanwhile_is_left_out_and_told(hosts, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    large = large_file(folder, 160)
    (folder / "small").write_bytes(b"the same")
    changed = []

    def change(progress):
        if progress.source and progress.source.blocks and not changed:
            with large.open("ab") as file:
                changed.append(file.write(b"more"))

    for _ in range(5):  # until it has changed before all of it was read
        shutil.rmtree(hosts.home(1) / "changes", ignore_errors=True)
        shutil.rmtree(hosts.home(2) / "changes", ignore_errors=True)
        changed.clear()
        report = copy(hosts, f"{folder}/", "~/changes", 2, watch=change)
        assert changed
        if report.exit_status:
            break
    assert report.exit_status == 1
    assert [node.left_out for node in report.nodes] == [1, 1]
    assert "large" in report.nodes[0].warnings[0]
    assert list(tree(hosts.home(2) / "changes")) == [b"small"]
    report = copy(hosts, f"{folder}/", "~/changes", 2)
    assert [node.left_out for node in report.nodes] == [0, 0]
    assert tree(hosts.home(2) / "changes") == tree(folder)


def test_too_little_time(hosts, data):
    report = copy(hosts, data / "big", "~/late/", timeout_s=0.0)
    assert {type(node.error) for node in report.nodes} == {CommandTimeout}


@pytest.mark.parametrize(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.all),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.all),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_no_relay_outlives_the_program_and_the_same_copy_goes_on(hosts, tmp_path, number, status):
    large = large_file(tmp_path, 256)
    name = f"interrupted{int(number)}"
    hosts_file = tmp_path / "hosts"
    hosts_file.write_text("host1\nhost2\n")
    home = tmp_path / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(
        "".join(
            f"Host host{n}\n  HostName 127.0.0.{n}\n  Port {hosts.server.port}\n" for n in (1, 2)
        )
        + f"  UserKnownHostsFile {hosts.server.known_hosts}\n"
    )
    (home / ".ssh" / "known_hosts").write_text(hosts.server.known_hosts.read_text())
    staging = hosts.home(2) / name / ".clusterctl-copy"
    for _ in range(5):  # until the signal comes before the end of the copy
        process = subprocess.Popen(
            [sys.executable, "-c", "from clusterctl.cli.copyclust import main; main()"]
            + ["-i", str(hosts.server.key), str(hosts_file), str(large), f"~/{name}/"],
            env={**os.environ, "HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda it=process: it.poll() is not None or staging.exists(), "data comes")
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
        assert "Traceback" not in err
        if process.returncode:
            break
        for one in (1, 2):
            shutil.rmtree(hosts.home(one) / name)
    assert process.returncode == status, (out, err)
    # The source's relay runs on this machine. Without a program, and with silent peers, they would
    # end after a minute or more.
    for mark in (str(hosts.folder), f"HOME={home}\0"):
        wait_until(lambda mark=mark: not relays_of(mark), "all relays ended", 45)
    report = copy(hosts, large, f"~/{name}/", 2)
    assert report.ok
    assert tree(hosts.home(2) / name)[b"large"] == large.read_bytes()


@pytest.mark.all
def test_two_copies_to_one_destination(hosts, tmp_path):
    large = large_file(tmp_path, 128)
    begun = threading.Event()

    def see(progress):
        if any(node.bytes for node in progress.nodes):
            begun.set()

    other = tmp_path / "other"
    other.mkdir()
    (other / "small").write_bytes(b"small")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(copy, hosts, large, "~/two/", 2, watch=see)
        begun.wait(30)
        second = copy(hosts, f"{other}/", "~/two/", 2)
        assert first.result().ok
    for node in second.failed:
        assert "another copy" in node.error.message
        assert node.error.hint
    assert tree(hosts.home(2) / "two")[b"large"] == large.read_bytes()


def test_no_secret_in_any_command_line(hosts, tmp_path, monkeypatch):
    large = large_file(tmp_path, 64)
    secret = "ab" * 32
    monkeypatch.setattr(transfer_module.secrets, "token_hex", lambda size: secret)
    seen = []

    def look(progress):
        listing = subprocess.run(["ps", "auxwwe"], capture_output=True, check=True).stdout
        seen.append(b"clusterctl:relay" in listing)
        assert secret.encode() not in listing

    assert copy(hosts, large, "~/secret/", 2, watch=look).ok
    assert any(seen)


def test_through_ssh_where_the_source_cannot_be_reached(hosts, data, monkeypatch):
    """Nodes reach the source's port only through their SSH connections."""
    true_open, opened = transfer.ReverseTunnels.open, []
    monkeypatch.setattr(transfer.Routes, "_is_direct", lambda self, target, client: False)
    monkeypatch.setattr(
        transfer.ReverseTunnels,
        "open",
        lambda self, target: opened.append(target.host) or true_open(self, target),
    )
    report = copy(hosts, f"{data}/", "~/tunnel")
    assert report.ok
    assert opened == ["host1"]
    assert tree(hosts.home(3) / "tunnel") == tree(data)


def test_refused_at_first_then_through_ssh(hosts, data, monkeypatch):
    def listens(self, told):
        true_listens(self, told)
        self._port = 1  # nothing listens there; the tunnel leads to the right port

    true_listens = transfer.Routes.source_listens
    monkeypatch.setattr(transfer.Routes, "source_listens", listens)
    report = copy(hosts, f"{data}/", "~/refused", 2)
    assert report.ok, report
    assert tree(hosts.home(2) / "refused") == tree(data)


def test_no_way_to_the_source(tmp_path, data, monkeypatch):
    monkeypatch.setattr(transfer.Routes, "_is_direct", lambda self, target, client: False)
    with ssh_hosts(tmp_path, "AllowTcpForwarding no") as hosts, hosts.access(2) as access:
        report = transfer_module.Transfer(
            connections=access.connections,
            targets=access.targets,
            request=CopyRequest((f"{data}/",), "~/nowhere"),
            plan=_plan(access.targets),
            timeouts=CopyTimeouts(cut_s=0.2, grace_s=0.2),
        ).run()
    assert not report.ok
    assert "cannot connect to the source" in report.nodes[0].error.message


def test_a_fault_of_this_program_is_an_error_with_a_message(hosts, tmp_path, monkeypatch):
    """The relays end, and the received data is kept."""
    large = large_file(tmp_path, 128)
    true_tick = transfer_module.Coordinator.tick

    def tick(self, now):
        if any(peer.bytes for peer in self.targets):
            raise KeyError("n3")
        return true_tick(self, now)

    monkeypatch.setattr(transfer_module.Coordinator, "tick", tick)
    report = copy(hosts, large, "~/fault/", 2)
    assert [type(node.error) for node in report.failed] == [CommandFailed] * 2
    assert "KeyError" in report.failed[0].error.message
    assert not report.ok
    monkeypatch.undo()
    assert copy(hosts, large, "~/fault/", 2).ok
