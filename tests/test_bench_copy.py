"""The parts of `./scripts/bench copy` that need no lab: who gives to whom, commands, tables."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

LIB = Path(__file__).parent.parent / "scripts" / "lib"
sys.path.insert(0, str(LIB))

import bench_copy  # noqa: E402
import bench_digest  # noqa: E402
import bench_peers  # noqa: E402
import bench_socket  # noqa: E402
import bench_swarm  # noqa: E402
import bench_tables  # noqa: E402
from bench_scale import FULL, MIB, QUICK, DataSet, fitting  # noqa: E402
from bench_tables import Goal, Sample  # noqa: E402

sys.path.remove(str(LIB))

HOSTS = tuple(f"bench-{number}" for number in range(1, 6))
# What stands in for ssh and rsync: each host is a folder below $HOSTS.
SSH = """#!/bin/bash
echo "ssh $1" >>"$HOSTS/log"
cd "$HOSTS/$1" && shift && exec bash -c "$*"
"""
RSYNC = """#!/bin/bash
for word; do case $word in -*) ;; *) words+=("$word") ;; esac; done
to=${words[1]}
mkdir -p "$HOSTS/${to%%:*}/${to#*:}"
cp -a "${words[0]}." "$HOSTS/${to%%:*}/${to#*:}"
"""


@pytest.mark.parametrize(("hosts", "rounds"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (16, 5)])
def test_a_tree_gives_the_set_to_everyone_once(hosts, rounds):
    found = bench_peers.tree_rounds(hosts)
    assert len(found) == rounds
    have = {0}
    for pairs in found:
        givers, takers = zip(*pairs)
        assert set(givers) <= have
        assert len(set(givers)) == len(givers)
        assert not have & set(takers)
        have.update(takers)
    assert have == set(range(hosts + 1))
    assert sum(map(len, found)) == hosts


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """Five hosts that are folders; yields the folder that holds them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("ssh", SSH), ("rsync", RSYNC)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for host in HOSTS:
        (tmp_path / "hosts" / host).mkdir(parents=True)
    monkeypatch.setenv("HOSTS", str(tmp_path / "hosts"))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path / "hosts"


SCRIPTS = {
    "loop": bench_peers.tutorial_loop,
    "star": bench_peers.rsync_star,
    "tar": bench_peers.tar_star,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_peer_reaches_every_host(name, hosts, tmp_path):
    source = tmp_path / "set"
    source.mkdir()
    (source / "shard").write_bytes(b"\0\xff")
    done = run(SCRIPTS[name](bench_peers.Job(str(source), "out", HOSTS)))
    assert done.returncode == 0, done.stderr
    for host in HOSTS:
        assert (hosts / host / "out" / "shard").read_bytes() == b"\0\xff"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_peer_fails_if_one_host_does(name, hosts, tmp_path):
    (tmp_path / "set").mkdir()
    (hosts / HOSTS[1] / "out").write_text("in the way")
    done = run(SCRIPTS[name](bench_peers.Job(str(tmp_path / "set"), "out", HOSTS)))
    assert done.returncode != 0


def run(script: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-o", "pipefail", "-c", script]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_a_tree_has_hosts_give_what_they_got():
    job = bench_peers.Job("/data/set", "/data/out", ("a", "b", "c"))
    assert bench_peers.tree_copy(job, 0, 1) == "rsync -a /data/set/ a:/data/out/"
    assert bench_peers.tree_copy(job, 1, 3) == "ssh a rsync -a /data/out/ c:/data/out/"


@pytest.mark.parametrize(("files", "size"), [(1, 10), (5, 3), (1201, 7)])
def test_a_set_has_its_files_and_no_other(files, size, tmp_path):
    data = DataSet("set", files, size)
    done = run(data.script().replace("/data/", f"{tmp_path}/"))
    assert done.returncode == 0, done.stderr
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in found] == [size] * files
    assert len({path.read_bytes() for path in found}) == files


def test_a_digest_is_of_names_and_contents_wherever_they_are(tmp_path):
    def digest_of(folder: str, files: dict[str, bytes]) -> str:
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return bench_digest.digest(str(tmp_path / folder))

    base = digest_of("1", {"a/b": b"x", "c": b"y"})
    assert digest_of("elsewhere/2", {"c": b"y", "a/b": b"x"}) == base
    assert digest_of("3", {"a/b": b"y", "c": b"x"}) != base
    assert digest_of("4", {"a/b": b"x"}) != base
    assert digest_of("5", {"a/c": b"x", "c": b"y"}) != base


def test_a_limit_counts_payload():
    assert DataSet("set", 2, 10_000_000).limit_s(160) == 1.0


@pytest.mark.parametrize(
    ("gib", "counts"), [(64, (2, 4, 8, 16, 32)), (8, (2, 4, 8, 16)), (2, (2, 4)), (0, ())]
)
def test_what_does_not_fit_into_memory_is_left_out(gib, counts):
    assert fitting(FULL.nodes, 256 * MIB, gib << 30) == counts


def test_a_table_is_aligned():
    assert bench_tables.table(["", "N=2"], [["ours", "1.02"], ["the others", "12.00"]]) == [
        "                N=2",
        "  ours         1.02",
        "  the others  12.00",
    ]


@pytest.mark.parametrize(
    ("measured", "word"), [(1.10, "met"), (1.11, "MISSED"), (None, "not measured")]
)
def test_goals(measured, word):
    line = Goal("N=8: T/T1", measured, 1.10).line()
    assert line.startswith(f"  goal   {word:12}  N=8: T/T1: at most 1.10")


def sample(wall_s: float, predicted_s: float | None = None) -> Sample:
    return Sample(wall_s, 1.0, 0.25, 0.0, predicted_s)


def test_cells():
    samples = [sample(10.0), sample(12.0, 11.0), sample(11.0, 12.1)]
    assert bench_tables.ratio_cell(samples, 10.0, 8.0) == "1.10 (1.38)"
    assert bench_tables.spread_cell(samples) == "11.00 s (10.00-12.00)"
    assert bench_tables.spread_cell(samples[:1]) == "10.00 s"
    assert bench_tables.busy_cell(samples) == "25%"
    assert bench_tables.prediction_cell(samples[:1]) == "-"
    assert bench_tables.prediction_cell(samples[2:]) == "1.10"
    assert bench_tables.prediction_goal("all", samples).measured == pytest.approx(10)
    assert bench_tables.prediction_goal("all", samples[:1]).measured is None


@pytest.mark.parametrize(
    ("seconds", "percent"), [({2: 10.0, 4: 99.0, 12: 11.0}, 1.0), ({2: 10.0}, None), ({}, None)]
)
def test_growth_is_for_each_node_more(seconds, percent):
    found = bench_tables.growth(seconds)
    assert found == (None if percent is None else pytest.approx(percent))


@pytest.mark.parametrize(
    ("out", "seconds"),
    [
        ('{"event": "progress"}\n{"event": "report", "plan": {"predicted_s": 1.5}}\n', 1.5),
        ('{"event": "report", "plan": {"predicted_s": null}}\n', None),
        ('{"event": "report", "plan": {}}\n', None),
        ("sent 1 file\n", None),
        ("12\n", None),
        ("", None),
    ],
)
def test_what_was_predicted(out, seconds):
    assert bench_tables.predicted_s(out) == seconds


def test_the_command_line():
    options = bench_copy.parse(["shaped", "cpu", "--quick", "--nodes", "4,2", "--rounds", "2"])
    assert options.parts == ["shaped", "cpu"]
    assert (options.scale.nodes, options.scale.rounds) == ((2, 4), 2)
    assert options.scale.large == QUICK.large
    assert bench_copy.parse([]).scale == FULL


@pytest.mark.parametrize("words", [["fast"], ["--nodes", "0"], ["--nodes", "a"]])
def test_a_wrong_command_line(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        bench_copy.parse(words)
    assert "error:" in capsys.readouterr().err


def test_the_plain_socket_brings_a_file_whole(tmp_path):
    source, got = tmp_path / "source", tmp_path / "got"
    source.write_bytes(bytes(itertools.islice(itertools.cycle(range(251)), 3_000_000)))
    left, right = socket.socketpair()
    with left, right:
        sender = threading.Thread(target=bench_socket.send_file, args=(left, source, "name"))
        sender.start()
        with right.makefile("rb", buffering=0) as stream:
            name, size = json.loads(stream.readline())
        bench_socket.receive_file(right, got, size)
        sender.join()
    assert name == "name"
    assert got.read_bytes() == source.read_bytes()


def test_the_plain_socket_notices_an_end_before_the_end(tmp_path):
    left, right = socket.socketpair()
    with right:
        left.close()
        with pytest.raises(SystemExit, match="5 bytes before the end"):
            bench_socket.receive_file(right, tmp_path / "got", 5)


def test_the_tracker_names_those_who_asked():
    with bench_swarm.Tracker("127.0.0.1", 0) as tracker:
        thread = threading.Thread(target=tracker.serve_forever)
        thread.start()
        try:
            for port in (6881, 6882, 6881):
                body = announce(tracker.server_address[1], port)
        finally:
            tracker.shutdown()
            thread.join()
    first, second = (b"\x7f\0\0\x01" + port.to_bytes(2, "big") for port in (6881, 6882))
    assert body.endswith(b"5:peers12:" + first + second + b"e")


def announce(tracker_port: int, port: int) -> bytes:
    url = f"http://127.0.0.1:{tracker_port}/announce?info_hash=%ff%00&port={port}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
        return answer.read()
