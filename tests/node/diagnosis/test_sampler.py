"""Samples of processes and of NCCL's RAS, and which processes count as ranks."""

from __future__ import annotations

import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.node.diagnosis import job, ras, sampler, sockets, stacks, watch
from clusterctl.node.facts import processes as of_jobs
from clusterctl.node.guard import activity
from clusterctl.node.jobs import folder, output, processes, supervisor
from clusterctl.node.jobs.processes import Process, all_processes, read_process
from clusterctl.node.jobs.spec import JobSpec
from tests.lab.running import wait_until
from tests.ports import free_port

SAID = {
    "CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n",
    "SET FORMAT json": "OK\n",
    "VERBOSE STATUS": '{"communicators": []}\n',
}


class Ras(socketserver.StreamRequestHandler):
    """A server that answers like NCCL's src/ras/client_support.cc."""

    def handle(self) -> None:
        for line in self.rfile:
            asked = line.decode().strip()
            if self.server.frozen:
                time.sleep(600)
            said = "OK\n" if asked.startswith("TIMEOUT ") else SAID[asked]
            self.wfile.write(said.encode())
            if asked == "VERBOSE STATUS":
                return


@pytest.fixture
def nccl():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ras) as server:
        server.daemon_threads, server.frozen = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.where = f"localhost:{server.server_address[1]}"
        yield server
        server.shutdown()


def test_ras(nccl):
    where = f"localhost:{free_port()}"
    assert ras.ask_ras([where], 240) == ""
    assert ras.ask_ras([where, nccl.where], 240) == '{"communicators": []}'
    nccl.frozen = True
    with pytest.raises(OSError, match="listens, and does not answer"):
        ras.ask_ras([nccl.where], 0.5)


def test_which_process_is_the_rank(monkeypatch):
    """A script started the rank, and the rank its workers; another job has the same numbers. To
    mpirun a torchrun is one rank, and so are its two."""

    def process(pid, name, rank, space=b"a", **of_torchrun):
        environ = {b"OMPI_COMM_WORLD_RANK": rank, b"PMIX_NAMESPACE": space}
        environ |= {key.encode(): value for key, value in of_torchrun.items()}
        made = Process(pid, 1, name, [name], environ, started_ticks=pid)
        made.role = "rank"
        return made

    found = [
        process(9, "python3", b"0"),
        process(5, "bash", b"0"),
        process(7, "python3", b"0"),
        process(6, "a.out", b"1"),
        process(8, "python3", b"0", b"b"),
        process(20, "python3", b"1", b"t"),
        process(21, "python3", b"1", b"t", TORCHELASTIC_RUN_ID=b"x", RANK=b"2", LOCAL_RANK=b"0"),
        process(22, "python3", b"1", b"t", TORCHELASTIC_RUN_ID=b"x", RANK=b"3", LOCAL_RANK=b"1"),
        process(23, "python3", b"1", b"t", TORCHELASTIC_RUN_ID=b"x", RANK=b"3", LOCAL_RANK=b"1"),
    ]
    sampler.mark_ranks(found)
    roles = {one.pid: one.role for one in found}
    torchs = {20: "child", 21: "rank", 22: "rank", 23: "child"}
    assert roles == {5: "child", 7: "rank", 9: "child", 6: "rank", 8: "rank", **torchs}
    told = [sampler.describe(one) for one in found[6:8]]
    assert [(one["rank"], one["local_rank"], one["gpus"]) for one in told] == [
        (2, 0, [0]),
        (3, 1, [1]),
    ]
    found[6].pid = os.getpid()
    monkeypatch.setattr(sampler.processes, "find_any", lambda: found[6:7])
    assert [one["rank"] for one in watch.counters()["ranks"].values()] == [2]


@pytest.mark.parametrize("has_started", [True, False])
def test_a_program_that_a_shell_script_has_started_is_the_rank(monkeypatch, has_started):
    """It is told from what else the script starts by the library of MPI that it has loaded."""
    found = [
        Process(pid, 1, name, [name], {b"OMPI_COMM_WORLD_RANK": b"0"}, started_ticks=pid)
        for pid, name in enumerate(["bash", "sleep", "a.out"], 5)
    ]
    for one in found:
        one.role = "rank"
    maps = "7f00-7f01 r-xp 0 08:01 7  /usr/lib/libmpi.so.40\n" * has_started
    monkeypatch.setattr(sampler, "text_of", lambda path: maps * (path == "/proc/7/maps"))
    sampler.mark_ranks(found)
    assert [one.name for one in found if one.role == "rank"] == ["a.out" if has_started else "bash"]


@pytest.mark.parametrize(
    ("parent", "launcher", "library", "roles"),
    [
        (4, 4, "", ["orphan", "child"]),  # a supervisor, below which mpirun runs
        (4, 3, "", ["rank", "child"]),  # nothing of it runs: it is a rank whose launcher has ended
        (6, 4, "", ["rank", "child"]),  # mpirun's child
        (4, 4, "libmpi.so.40", ["rank", "child"]),
    ],
)
def test_what_a_rank_has_left_running_is_not_the_rank(
    monkeypatch, parent, launcher, library, roles
):
    def process(pid, ppid, role, **environ):
        made = Process(pid, ppid, "sh", ["sh"], {k.encode(): v for k, v in environ.items()})
        made.role = role
        return made

    variables = {"OMPI_COMM_WORLD_RANK": b"1", "PMIX_NAMESPACE": b"a"}
    left = [process(7, parent, "rank", **variables), process(8, 7, "rank", **variables)]
    maps = f"7f00-7f01 r-xp 0 08:01 7  /usr/lib/{library}\n"
    monkeypatch.setattr(sampler, "text_of", lambda path: maps * (path == "/proc/7/maps"))
    found = [process(4, 1, "job"), process(6, launcher, "launcher"), *left]
    sampler.mark_ranks(found)
    assert [one.role for one in left] == roles


@pytest.mark.parametrize(("within_s", "samples"), [(600.0, 3), (0.0, 2)])
def test_who_has_no_time_for_a_third_sample_returns_two(within_s, samples):
    request = sampler.SamplerRequest(spacing_s=0.0, within_s=within_s)
    environ = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    with subprocess.Popen(["sleep", "600"], env=environ) as process:
        wait_until(lambda: read_process(process.pid).name == "sleep", "its program")
        seen, _, _ = sampler.look(request, stacks.PySpy(""))
        process.kill()
    assert [len(one["samples"]) for one in seen if one["pid"] == process.pid] == [samples]


def test_of_other_jobs_than_the_requested_one_no_stacks_are_read():
    """Unless it is known here by no name: its launcher may be on another host."""
    found = [Process(pid, 1, "a.out", ["a.out"], {}, role="rank") for pid in (2, 3, 4)]
    found.append(Process(9, 1, "mpirun", ["mpirun"], {}, role="launcher"))
    groups = {2: "ours", 3: "ours", 4: "theirs", 9: "ours"}
    for name, others in (("9", {4}), ("ours", {4}), ("theirs", {2, 3}), ("77", set()), ("", set())):
        assert sampler.ranks_of_others(found, groups, name) == others, name


def test_a_script_on_a_dead_mount_loses_nothing_else(tmp_path, monkeypatch):
    """A named pipe stands in for it: who opens that waits for ever, as its rank does."""
    script = tmp_path / "train.py"
    os.mkfifo(script)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(sampler, "HOST_FACTS", ())
    environ = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    with subprocess.Popen([sys.executable, script], env=environ) as rank:
        # The kernel shows its words a moment after Popen has returned.
        wait_until(lambda: read_process(rank.pid).argv, "the rank's words")
        monkeypatch.setattr(sampler, "look", lambda *_: ([{"pid": rank.pid}], [], []))
        try:
            host = sampler.sample(sampler.SamplerRequest(within_s=1.0, spacing_s=0.0)).host
        finally:
            rank.kill()
    assert host["processes"] == [{"pid": rank.pid, "sources": {}, "shared_bytes": None}]
    assert "the ranks' scripts: no answer within 1 s" in host["problems"]


def test_an_orphan_of_a_users_session_has_init_as_its_parent(monkeypatch):
    """systemd --user adopts it there, under a process ID of its own."""
    text_of = sampler.text_of
    names = {"/proc/77/comm": "systemd\n", "/proc/78/comm": "bash\n"}
    monkeypatch.setattr(sampler, "text_of", lambda path: names.get(path) or text_of(path))
    own = read_process(os.getpid())
    for own.ppid, parent in ((77, 1), (78, 78)):
        assert sampler.describe(own)["parent"] == parent


@pytest.mark.parametrize("loaded", [(), (5, 7), (7,), (6,)])
def test_a_program_that_a_wrapper_in_python_has_started_is_the_rank(monkeypatch, loaded):
    """The wrapper runs no collective. Before either has loaded a library, it is the rank."""
    found = [
        Process(pid, 1, name, [name], {b"PMI_RANK": b"0"}, started_ticks=pid)
        for pid, name in enumerate(["python3", "a.out", "python3"], 5)
    ]
    for one in found:
        one.role = "rank"
    monkeypatch.setattr(
        sampler,
        "text_of",
        lambda path: "/torch/lib/libtorch_cpu.so\n" * (int(path.split("/")[2]) in loaded),
    )
    sampler.mark_ranks(found)
    assert [one.pid for one in found if one.role == "rank"] == [*loaded[:1], 5][:1]


# Starts a thread that goes on, and ends the main thread.
WITHOUT_MAIN_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("up", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_goes_on_after_the_end_of_its_main_thread():
    argv = [sys.executable, "-c", WITHOUT_MAIN_THREAD]
    environ = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: stat.read_text().split()[2] == "Z", "the end of its main thread")
        one = read_process(process.pid)
        sample = sampler.sample_of(one, 0.0, {})
        assert process.pid in all_processes()
        assert activity.jobs({process.pid: activity.all_processes()[process.pid]})
        assert processes.lives(process.pid)
        assert process.pid in supervisor.descendants()
        process.kill()
        wait_until(lambda: not processes.lives(process.pid), "its end")
        assert process.pid not in activity.all_processes()
        assert process.pid not in supervisor.descendants()
    assert (one.argv, one.environ[b"OMPI_COMM_WORLD_RANK"]) == (argv, b"0")
    assert (sample["state"], sample["descriptors"] > 0) == ("S", True)


@pytest.mark.parametrize("above", ["launcher", "daemon", "rank", "child"])
def test_a_rank_that_has_written_a_title_over_its_environment(above):
    """A daemon starts nothing but ranks. A rank's script has the rank's variables."""
    variables = {f"V{number}".encode(): b"1" for number in range(9)} | {b"PMI_RANK": b"3"}
    parent = Process(5, 1, "sh", ["sh", "start"], variables, started_ticks=5)
    titled = Process(6, 5, "python3", ["train: epoch 3"], {b"h 3": b"", b"": b""}, started_ticks=6)
    parent.role, titled.role = above, "child"
    sampler.mark_ranks([parent, titled])
    assert titled.role == ("child" if above == "child" else "rank")
    # A connection to another host may have a title, too.
    shared = Process(7, 5, "ssh", ["ssh: /tmp/a [mux]"], {}, started_ticks=7)
    shared.role = "child"
    sampler.mark_ranks([parent, shared])
    assert shared.role == "child"
    assert processes.rank_of(titled) == (3 if above == "rank" else None)
    # Its forked workers have its title.
    if above == "daemon":
        worker = Process(8, 6, "python3", titled.argv, titled.environ, started_ticks=8)
        worker.role = "child"
        sampler.mark_ranks([parent, titled, worker])
        assert (titled.role, worker.role) == ("rank", "child")


def test_a_process_that_ends_while_it_is_looked_at():
    argv = [sys.executable, "-c", "print('up', flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"up\n"
        one = read_process(process.pid)
        sample = sampler.sample_of(one, 0.0, {})
        assert (sample["rss_bytes"] > 0, sample["descriptors"]) == (True, 3)
        process.kill()
        process.wait()
        with pytest.raises(OSError):
            sampler.sample_of(one, 1.0, {})
        assert sampler.call_of(process.pid, "0 0x3 0x1", {3: "/a b"}) in ("read /a b", "call 0")


def test_what_the_main_thread_has_done_itself():
    """Another thread writes on, while the main one waits for its input."""
    text = (
        "import threading, os, sys\nprint('up', flush=True)\nsys.stdin.buffer.read(5)\n"
        "def writes():\n    while os.write(file, bytes(1 << 20)): pass\n"
        "file = os.open('/dev/null', os.O_WRONLY)\n"
        "threading.Thread(target=writes, daemon=True).start()\nsys.stdin.buffer.read(5)\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", text], stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"up\n"
        one = read_process(process.pid)
        first = sampler.sample_of(one, 0.0, {})
        process.stdin.write(b"begin")
        process.stdin.flush()
        written = 8 << 20 | first["written_bytes"]
        wait_until(
            lambda: sampler.sample_of(one, 1.0, {})["written_bytes"] > written, "the other's bytes"
        )
        last = sampler.sample_of(one, 1.0, {})
        process.kill()
    assert 0 < last["main_read_bytes"] - first["main_read_bytes"] < 1 << 20
    assert last["main_written_bytes"] - first["main_written_bytes"] < 1 << 20
    assert last["main_runs"] > first["main_runs"] > 0


@pytest.mark.parametrize(
    ("top", "file", "freeze", "thaw"),
    [
        ("", "cgroup.freeze", "1", "0"),
        ("/unified", "cgroup.freeze", "1", "0"),
        ("/freezer", "freezer.state", "FROZEN", "THAWED"),
    ],
)
def test_a_process_that_its_cgroup_has_frozen_is_not_asleep(top, file, freeze, thaw):
    """As that of a paused container."""
    group = Path(f"/sys/fs/cgroup{top}/clusterctl-test-{os.getpid()}")
    try:
        group.mkdir()
        knob = group / file
        if not knob.exists():
            group.rmdir()
            raise FileNotFoundError
    except OSError:
        pytest.skip("needs root, and this version of cgroups")
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            wait_until(lambda: "nanosleep" in sampler.wait_of(process.pid)[2], "its sleep")
            (group / "cgroup.procs").write_text(str(process.pid))
            knob.write_text(freeze)
            wait_until(lambda: sampler.wait_of(process.pid)[0] == "F", "the freeze")
            assert sampler.sample_of(read_process(process.pid), 0.0, {})["state"] == "F"
        finally:
            knob.write_text(thaw)
            process.kill()
            process.wait()
            wait_until(lambda: not (group / "cgroup.procs").read_text(), "its end")
            group.rmdir()


def test_who_waits_for_a_page_of_memory_is_in_no_system_call():
    assert sampler.call_of(os.getpid(), "-1 0x7ffc 0x7f01", {}) == ""
    assert sampler.call_of(os.getpid(), "running", {}) == "running"


def test_what_no_rank_can_be_numbered_with_ends_no_look():
    """A program may have any environment."""
    digits = b"9" * 5000
    environ = {b"OMPI_COMM_WORLD_RANK": digits, b"CUDA_VISIBLE_DEVICES": digits + b",1"}
    one = Process(os.getpid(), 1, "train", ["train"], environ | {b"PMIX_LOCAL_RANK": digits})
    one.role = "rank"
    sampler.mark_ranks([one])
    found = sampler.describe(one)
    assert (found["rank"], found["size"], found["gpus"]) == (None, None, [1])


def test_a_container_that_does_not_permit_netlink(monkeypatch):
    def refused():
        raise PermissionError("not permitted")

    monkeypatch.setattr(sockets, "tcp_sockets", refused)
    request = sampler.SamplerRequest(samples=2, spacing_s=0.0, within_s=240.0)
    with subprocess.Popen(["sleep", "240"], env={**os.environ, "CLUSTERCTL_JOB": "j"}) as job_of:
        # While a program is executed, its files in /proc are those of no program for a moment.
        environ = Path(f"/proc/{job_of.pid}/environ")
        wait_until(lambda: b"CLUSTERCTL_JOB=j" in environ.read_bytes(), "the program")
        one = {job_of.pid: read_process(job_of.pid)}
        monkeypatch.setattr(sampler.processes, "all_processes", lambda **_: one)
        found = sampler.sample(request).host
        job_of.kill()
    assert [len(one["samples"]) for one in found["processes"]] == [2]
    assert found["problems"] == ["TCP connections: not permitted"]


def test_a_socket_with_its_queues_and_what_has_passed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = "{}:{}".format(*server.getsockname())
        with socket.create_connection(server.getsockname()) as client, server.accept()[0]:
            client.send(b"x" * 1000)
            mine = sockets.tcp_sockets()
            of = {path[8:-1] for path in sampler.descriptors(os.getpid()).values()}
            other = next(
                one
                for inode, one in mine.items()
                if inode in of and one and one["local"] == where and one["state"] == "ESTAB"
            )
    assert other["receive_queue_bytes"] == 1000
    sent = next(one for one in mine.values() if one and one["local"] == other["peer"])
    assert sent["acked_bytes"] >= 1000 > other["acked_bytes"]
    assert (sent["sent_segments"], other["received_segments"]) == (1, 1)
    assert (sent["received_segments"], other["sent_segments"]) == (0, 0)
    assert 0 < sent["rtt_s"] < 1 > sent["sending_s"]
    assert sockets.endpoint(socket.AF_INET6, bytes(15) + b"\1", 80) == "[::1]:80"
    mapped = bytes(10) + b"\xff\xff\x7f\0\0\1"
    assert sockets.endpoint(socket.AF_INET6, mapped, 80) == "127.0.0.1:80"


@pytest.mark.parametrize("ahead_s, silent_s", [(-60.0, 60.0), (0.2, 0.0), (3600.0, None)])
def test_a_log_from_the_future_was_not_written_just_now(tmp_path, ahead_s, silent_s):
    """As after a clock was set back: the log may have been silent for long."""
    log, now = tmp_path / "log", time.time()
    log.write_text("step 7 loss 0.1\n")
    os.utime(log, (now + ahead_s, now + ahead_s))
    said = job._log(log, 10)["log_silent_s"]
    assert said == (silent_s if silent_s is None else pytest.approx(silent_s, abs=30.0))


def test_when_the_lines_of_a_log_were_written(tmp_path, monkeypatch):
    """Of more lines than the ring has times for, and than are asked for."""
    log = tmp_path / "log"
    (tmp_path / output.TIMES).write_text(" " * output.TIME_BYTES * output.MOST_TIMES)
    logs, clock = output.Logs(tmp_path), iter(range(1000, 3000))
    monkeypatch.setattr(output, "time", SimpleNamespace(time=lambda: next(clock)))
    for number in range(output.MOST_TIMES + 50):
        text = b"step %d\nloss\n" % number if number % 2 else b"no end"
        logs.add(iter([(b"0", text)]))
    monkeypatch.setattr(job, "time", SimpleNamespace(time=lambda: 1400.0))
    found = job._log(log, 11)
    assert (found["log"][0], found["log"][-1]) == ("loss", "loss")
    assert found["log_writes"] == [(105 - 2 * at, 1 if at < 1 else 2) for at in range(6)]
    every = job._log(log, 1000)
    assert every["log"][0] == "no endstep 1"
    assert sum(lines for _, lines in every["log_writes"]) == 256
    (tmp_path / output.TIMES).unlink()
    logs.add(iter([(None, b"more\n")]))
    assert job._log(log, 11)["log_writes"] == []


def test_a_job_that_is_asked_for_beside_one_that_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "JOBS", tmp_path)
    monkeypatch.setattr(job, "JOBS", tmp_path)
    by_hand = []  # ignore mpiruns on this machine that were started by hand
    monkeypatch.setattr(job.processes, "find_any", lambda *of, **_: by_hand)
    ended, runs, queued = (f"20261123-00000{number}-abcd" for number in range(3))
    for name in (ended, runs, queued):
        one = folder.JobFolder(tmp_path / name)
        one.create(JobSpec(name, workdir=str(tmp_path), log_dir="logs"), [runs])
        if name != queued:
            one.append("running")
        if name != ended:
            assert one.take()
        else:
            one.append("ended", state="failed", exit_status=1, reason="", cleanup={})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.jsonl").write_text('{"kind": "train", "step": 7}\n')
    looked = {name: job.collect(name, 9) for name in (None, ended, queued)}
    by_hand = [Process(1, 0, "mpirun", ["mpirun"], {})]
    by_hand[0].role = "launcher"
    beside = job.collect(ended, 9)["others"]
    assert {name: look["found"]["spec"]["job_id"] for name, look in looked.items()} == {
        None: runs,
        ended: ended,
        queued: queued,
    }
    assert beside == [runs, ""]
    assert [look["others"] for look in looked.values()] == [[], [runs], [runs]]
    rows = [look["found"]["row"].get("step") for look in looked.values()]
    assert rows == [7, None, None], "a row is of the one that runs"
    assert [len(look["metrics"]) for look in looked.values()] == [1, 0, 0]
    with (tmp_path / "logs" / "metrics.jsonl").open("a") as rows:
        rows.write('{"kind": "begin", "run": "next"}\n')
    found = job.collect(None, 9)["found"]["row"]
    assert found.get("step") is None, "a job that goes on has made no step yet"
    assert job.collect("20261123-000009-abcd", 9)["found"] is None


@pytest.mark.parametrize("name", ["run.o12345", "out.1", "results.dat", "job.log"])
def test_what_an_mpirun_writes_to_is_its_log_whatever_its_name(tmp_path, monkeypatch, name):
    log = tmp_path / name
    line = ["sh", "-c", "echo step 1; read word", "mpirun"]
    with log.open("w") as out, subprocess.Popen(line, stdin=subprocess.PIPE, stdout=out) as program:
        wait_until(log.read_text, "its first line")
        launcher = Process(program.pid, 0, "mpirun", ["mpirun"], {})
        launcher.role = "launcher"
        monkeypatch.setattr(job.processes, "find_any", lambda *of, **_: [launcher])
        monkeypatch.setattr(job, "JOBS", tmp_path / "none")
        monkeypatch.setattr(folder, "JOBS", tmp_path / "none")
        assert job.collect(None, 9)["log"] == ["step 1"]
        program.communicate(b"\n")


@pytest.mark.parametrize(
    ("path", "said", "seconds"),
    [
        ("", "usage_usec 5\nthrottled_usec 2500000\n", 2.5),
        ("cpu,cpuacct/", "nr_periods 3\nthrottled_time 1500000000\n", 1.5),
        ("", "usage_usec 5\n", None),
    ],
)
def test_how_long_a_cgroup_was_throttled(tmp_path, monkeypatch, path, said, seconds):
    """A limit of a cgroup above counts, too."""
    controllers = path.rstrip("/")
    folder = tmp_path / f"{path}jobs"
    (folder / "rank").mkdir(parents=True)
    (folder / "cpu.stat").write_text(said)
    real = sampler.text_of
    told = {"/proc/7/cgroup": f"9:memory:/x\n0:{controllers}:/jobs/rank\n"}
    monkeypatch.setattr(sampler, "text_of", lambda name: told.get(name) or real(name))
    assert sampler.throttled_s(7, str(tmp_path)) == seconds


@pytest.mark.parametrize(
    ("current", "most", "reached"), [("4", "4", 4), ("3", "4", None), ("4", "max", None)]
)
def test_how_many_threads_a_cgroup_may_have_if_it_has_them(
    tmp_path, monkeypatch, current, most, reached
):
    folder = tmp_path / "pids/jobs"
    (folder / "rank").mkdir(parents=True)
    (folder / "pids.current").write_text(f"{current}\n")
    (folder / "pids.max").write_text(f"{most}\n")
    real = sampler.text_of
    told = {"/proc/7/cgroup": "8:pids:/jobs/rank\n0:cpu:/\n"}
    monkeypatch.setattr(sampler, "text_of", lambda name: told.get(name) or real(name))
    assert sampler.most_tasks(7, str(tmp_path)) == reached


def test_users_who_may_have_a_job_here(tmp_path, monkeypatch):
    """A launcher of somebody else is told by its name: its environment cannot be read."""
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\nread word\n")
    program.chmod(0o755)
    mine = of_jobs.user_name(os.geteuid())
    with subprocess.Popen([program], stdin=subprocess.PIPE) as process:
        wait_until(lambda: read_process(process.pid).name == "mpirun", "its start")
        assert mine not in of_jobs.hidden_users()
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert mine in of_jobs.hidden_users()
        process.communicate(b"\n")


WAITS = """
import os, select, signal, subprocess, threading
child = subprocess.Popen(["sleep", "600"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
for wait in (
    lambda: select.select([os.pipe()[0]], [], []),
    lambda: os.waitid(os.P_PID, child.pid, os.WEXITED),
    lambda: signal.sigwait([signal.SIGUSR2]),
    lambda: os.read(os.pipe()[0], 1),
):
    threading.Thread(target=wait).start()
"""


@pytest.mark.parametrize(
    ("wait", "call"),
    [
        ("select.select([0], [], [])", r"p?select6? pipe:\[\d+\]"),
        ("one.poll()", r"p?poll pipe:\[\d+\]"),
        ("one.register(os.pipe()[0], select.POLLIN); one.poll()", "p?poll"),
    ],
    ids=["input() with readline", "a socket with a timeout", "for one of two"],
)
def test_for_which_descriptor_alone_a_process_waits(wait, call):
    text = "import os, select; one = select.poll(); one.register(0, select.POLLIN); "
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", text + wait], stdin=pipe, stdout=pipe) as process:

        def waits() -> bool:
            return bool(re.fullmatch(call, sampler.wait_of(process.pid)[2]))

        try:
            wait_until(waits, f"{call}, but it is {sampler.wait_of(process.pid)}")
        finally:
            process.kill()


def test_calls_in_which_a_thread_waits_have_their_names():
    """Newer C libraries make select() of pselect6."""
    with subprocess.Popen([sys.executable, "-c", WAITS], start_new_session=True) as process:

        def calls() -> set[str]:
            tasks = Path(f"/proc/{process.pid}/task")
            texts = [(task / "syscall").read_text() for task in tasks.iterdir()]
            return {sampler.call_of(process.pid, text, {}).partition(" ")[0] for text in texts}

        def wait_in_all() -> bool:
            found = calls()
            return (
                bool(found & {"select", "pselect6"})
                and {*("waitid", "rt_sigtimedwait", "read")} <= found
            )

        try:
            wait_until(wait_in_all, "that all threads wait")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
