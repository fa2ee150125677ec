"""The stacks of real processes, and what reading them must not do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from clusterctl.diagnosis.evidence import Sample
from clusterctl.diagnosis.tree import joined, main_thread
from clusterctl.node.diagnosis import sampler, stacks
from clusterctl.node.jobs import processes as node_processes
from clusterctl.node.record import from_data
from clusterctl.operations import diagnose
from clusterctl.operations.diagnose import installed_py_spy
from tests.lab.running import wait_until

NAME = "py-spy-0123"
EMPTY = ("stacks", "stack_source", "stack_error")

EXAMPLES = Path(__file__).parents[3] / "examples" / "horovod"
REFUSED = "#!/bin/sh\necho 'Error: Permission Denied (os error 13)' >&2; exit 1\n"
INNER = """
def inner():
    print("here", flush=True)
    time.sleep(600)
inner()
"""
# What is in a file is the user's own code.
JOINS = f"""
import threading, time
exec(compile({INNER[:-8]!r}, "/home/me/train.py", "exec"))
one = threading.Thread(target=inner, daemon=True)
one.start()
one.join()
"""
OFFERS = "import sys, time\nfrom epoch_log import offer_stacks\noffer_stacks()\n" + INNER


class Processes:
    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def python(self, text: str, folder: str = "mnist") -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            cwd=EXAMPLES / folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.all.append(process)
        assert process.stdout.readline() == "here\n"
        return process.pid


@pytest.fixture
def processes():
    made = Processes()
    yield made
    for process in made.all:
        process.kill()
        process.communicate()


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """Return py-spy as on a node."""
    monkeypatch.setattr(stacks, "FOLDER", tmp_path)
    made = stacks.PySpy(NAME)
    assert not made.is_here
    made.put(installed_py_spy().read_bytes())
    assert made.is_here
    return made


@pytest.fixture
def refused(spy):
    """Return a py-spy that may not read processes, not even as root."""
    Path(spy.path).write_text(REFUSED)
    return spy


def sample(pid: int, spy) -> dict:
    found = {"state": sampler.state_of(f"/proc/{pid}"), **dict.fromkeys(EMPTY, "")}
    stacks._fill_one(pid, found, spy)
    return found


def seen(pid: int, spy) -> Sample:
    return from_data(Sample, sample(pid, spy))


def functions(found: dict) -> list[str]:
    return [frame["function"] for frame in found["stacks"][0]["frames"]]


def state(pid: int) -> str:
    return re.search(r"State:\s(\w)", Path(f"/proc/{pid}/status").read_text())[1]


def test_a_stopped_process_is_read_and_stays_as_it_is(processes, spy):
    pid = processes.python("import time" + INNER)
    # On a busy machine it may have printed and not reached its next line.
    wait_until(lambda: state(pid) == "S", "its sleep")
    found = sample(pid, spy)
    assert (found["stack_source"], functions(found)) == ("py-spy", ["<module>", "inner"])
    assert found["stacks"][0]["frames"][1]["line"] == 4
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T", "its stop")
    found = sample(pid, spy)
    assert (found["state"], functions(found)) == ("T", ["<module>", "inner"])
    assert state(pid) == "T"


def test_threads_that_have_not_run_are_not_read_again(processes, spy):
    def read() -> dict:
        found = {"state": "S", **dict.fromkeys(EMPTY, "")}
        stacks.add_stacks([(node_processes.read_process(pid), found)], spy)
        return found

    pid = processes.python(JOINS)
    wait_until(lambda: joined(seen(pid, spy)), "its join", 60)
    program = Path(spy.path).read_bytes()

    def is_kept() -> bool:
        Path(spy.path).write_bytes(program)
        before = read()
        Path(spy.path).write_text(REFUSED)
        return read() == before and len(before["stacks"]) == 2

    # On a busy machine a thread may yet have to come to rest.
    wait_until(is_kept, "a stack that is not read again")
    # After a signal that nobody sees, the main thread has run.
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T", "its stop")
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: "Permission Denied" in read()["stack_error"], "another reading")


def test_the_thread_for_whose_end_the_main_one_waits(processes, spy):
    pid = processes.python(JOINS)
    wait_until(lambda: joined(seen(pid, spy)), "its join", 60)
    calls = [one.function.rpartition(".")[2] for one in main_thread(seen(pid, spy))]
    assert (calls[0], calls[-1]) == ("<module>", "inner")


@pytest.mark.parametrize("folder", ["mnist", "cifar10"])
def test_faulthandler_where_ptrace_is_refused(processes, refused, folder):
    pid = processes.python(OFFERS, folder)
    for _ in range(3):
        found = sample(pid, refused)
        assert (found["stack_source"], functions(found)) == ("faulthandler", ["<module>", "inner"])
        assert len(found["stacks"]) == 1, "what was there before is gone"
        assert found["stack_error"] == ""
    assert processes.all[0].poll() is None


@pytest.mark.parametrize(
    "before",
    [
        "import time",
        # The process uses the signal for its own purpose.
        "import signal, os, time\nsignal.signal(signal.SIGRTMIN + 7, lambda *a: os._exit(3))",
        # The process has the memory file, but no handler of the signal any more.
        "import faulthandler, signal, time\nfrom epoch_log import offer_stacks\noffer_stacks()\n"
        "faulthandler.unregister(signal.SIGRTMIN + 7)",
    ],
)
def test_nobody_else_is_sent_a_signal(processes, refused, monkeypatch, before):
    pid = processes.python(before + INNER)
    sent = []
    with monkeypatch.context() as patch:
        patch.setattr(stacks.os, "kill", lambda *arguments: sent.append(arguments))
        found = sample(pid, refused)
    assert not sent
    assert not found["stacks"]
    assert "Permission Denied" in found["stack_error"]


def test_py_spy_is_kept_once_and_in_memory_where_there_is_no_room(processes, tmp_path, monkeypatch):
    content = installed_py_spy().read_bytes()
    monkeypatch.setattr(stacks, "FOLDER", tmp_path / "here")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "py-spy-older").write_text("")
    stacks.PySpy(NAME).put(content)
    assert [one.name for one in (tmp_path / "here").iterdir()] == [NAME]
    assert stacks.PySpy(NAME).is_here
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(stacks, "FOLDER", tmp_path / "file" / "none")
    spy = stacks.PySpy(NAME)
    spy.put(content)
    assert spy.path.startswith("/proc/")
    pid = processes.python("import time" + INNER)
    assert functions(sample(pid, spy)) == ["<module>", "inner"]


def test_a_python_that_runs_all_the_time(processes, spy):
    deep = "def f(n): return n and f(n - 1)\nprint('here', flush=True)\nwhile True: f(50)\n"
    pid = processes.python(deep)
    for _ in range(5):
        found = sample(pid, spy)
        assert (found["stack_source"], functions(found)[0]) == ("py-spy", "<module>")


def thread(name: str, *functions: str) -> dict:
    return {"thread": name, "frames": [{"function": one} for one in functions]}


def test_a_stack_that_was_cut_while_it_was_read_is_read_again(processes, spy, monkeypatch):
    """If a call of the main thread returns meanwhile, the chain of frames ends there."""
    cut = [thread("pool", "run"), thread("MainThread", "flatten")]
    whole = [thread("MainThread", "<module>", "build", "flatten"), thread("pool", "run")]
    for reads, told in (
        ([cut, cut, whole, cut], whole),
        ([[thread("pool", "run")]], [thread("pool", "run")]),
        ([cut] * stacks.TRIES, cut),
    ):
        given = iter(reads)
        monkeypatch.setattr(spy, "dump", lambda pid, given=given: next(given))
        found = sample(processes.python("import time" + INNER), spy)
        assert (found["stacks"], found["stack_source"]) == (told, "py-spy")


def test_what_faulthandler_writes():
    """The formats of Python 3.8, and of 3.14, which prints names of threads."""
    text = """\
Thread 0x00007f02 (most recent call first):
  File "/usr/lib/threading.py", line 324 in wait
  File "a b.py", line ?? in f

Current thread 0x00007f01 [worker 1] (most recent call first):
  File "x.py", line 3 in <module>
"""
    [waits, current] = stacks.read_faulthandler(text)
    assert [(one["function"], one["line"]) for one in waits["frames"]] == [("f", 0), ("wait", 324)]
    assert (waits["thread"], current["thread"]) == ("", "worker 1")


def test_py_spy_for_each_kind_of_machine(tmp_path, monkeypatch):
    own = diagnose.installed_py_spy()
    machine = diagnose.machine_of(own)
    spies = diagnose.PySpies(tmp_path)
    spy, why = spies.of(machine)
    assert (zlib.decompress(spy.packed), why) == (own.read_bytes(), "")
    assert list(tmp_path.iterdir()) == [], "nothing was fetched"

    wheel = diagnose.download_py_spy
    monkeypatch.setattr(diagnose, "installed_py_spy", lambda: None)
    monkeypatch.setattr(diagnose, "download_py_spy", lambda machine, path: path.write_bytes(b"x"))
    again = diagnose.PySpies(tmp_path)
    assert again.of("riscv64")[0].content == b"x"
    assert [one.name for one in tmp_path.iterdir()] == ["py-spy-riscv64"]

    monkeypatch.setattr(diagnose, "download_py_spy", wheel)
    refused = subprocess.CompletedProcess([], 1, b"", b"ERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: refused)
    found, why = again.of("s390x")
    path = tmp_path / "py-spy-s390x"
    assert found is None
    assert why == (
        "there is no py-spy for s390x: pip: ERROR: no network; "
        f"put one there, of the wheel that PyPI has: {path}"
    )


def test_py_spy_is_not_sent_over_a_slow_link(tmp_path):
    machine = diagnose.machine_of(diagnose.installed_py_spy())
    spies = diagnose.PySpies(tmp_path)
    # All links are long, as from another continent; then one to a near node.
    for nearest_s, round_trip_s, is_slow in [
        *((None, None, False), (0.25, 0.3, False), (0.25, 2.6, True)),
        *((0.001, 0.19, False), (0.001, 0.21, True), (0.001, None, False)),
    ]:
        spy, why, sent = spies.for_node(machine, [], nearest_s)
        assert (why, sent) == ("", spy.packed)
        _, why, sent = spies.for_node(machine, [], round_trip_s)
        assert (bool(sent), "too slow" in why) == (not is_slow, is_slow)
        # A node that has it is sent nothing.
        assert spies.for_node(machine, [spy.name], round_trip_s) == (spy, "", b"")


def test_threads_that_could_not_be_started_do_not_push_out_the_main_thread():
    """Python keeps an entry without calls for each: they come first, and have its name."""
    frame = {"name": "<module>", "filename": "train.py", "line": 3}
    failed = {"thread_name": "MainThread", "os_thread_id": 7, "frames": []}
    main = {**failed, "frames": [frame]}
    threads = stacks._read_py_spy(json.dumps([*[failed] * 500, main]))
    assert len(threads) == stacks.MOST_THREADS
    assert threads[0]["frames"][0]["function"] == "<module>"
    assert stacks.is_whole(threads)
    assert not stacks.is_whole(stacks._read_py_spy(json.dumps([failed])))
