"""Facts about this machine, and parsers of what programs print about others."""

from __future__ import annotations

import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from clusterctl.cli.kill import how_they_ended, jobs_of, show_held
from clusterctl.domain.results import FanoutResult
from clusterctl.jobs.head_facts import facts_to_read
from clusterctl.node.facts import disks, network, processes, software, training
from clusterctl.node.facts import gpus as gpu_facts
from clusterctl.node.facts import system as system_facts
from clusterctl.node.facts.disks import mount, mount_of, mount_points
from clusterctl.node.facts.gpus import gpus
from clusterctl.node.facts.parts import copy_parts
from clusterctl.node.facts.report import FactReport, ReportRequest, function_of
from clusterctl.node.facts.system import kernel_message, login, system
from clusterctl.node.guard.notices import notices
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery
from clusterctl.node.record import from_json, name_of
from clusterctl.operations.kill import HeldMemory, KillReport, held_memory
from clusterctl.transport.call import read_fact, read_report, read_reports, with_clock
from tests.local_node import HEAD, LocalNode
from tests.pythons import python_or_skip


@pytest.mark.parametrize(
    ("test", "over_ssh", "number"), [("_port_22", False, network.PORTS_AT_ONCE), ("_ssh", True, 8)]
)
def test_peers_are_tested_at_once(test, over_ssh, number, monkeypatch):
    together = threading.Barrier(number, timeout=60)
    monkeypatch.setattr(network, test, lambda peer: "dead" if together.wait() else "")
    peers = [f"10.0.0.{n}" for n in range(number)]
    assert list(network.unreached(peers, over_ssh).values()) == ["dead"] * (number - 1)


@pytest.mark.parametrize(
    ("greetings", "reason"),
    [
        ([b"", b"Exceeded MaxStartups\r\n", b"SSH-2.0-OpenSSH_9.6\r\n"], ""),
        ([b""] * network.TRIES, network.NO_VERDICT),
        ([b"HTTP/1.1 400\r\n"], "port 22 is not SSH's"),
    ],
)
def test_an_sshd_with_too_many_connections_is_asked_again(greetings, reason, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        monkeypatch.setattr(network, "SSH_PORT", server.getsockname()[1])
        monkeypatch.setattr(network, "PAUSE_S", 0.0)

        def serve():
            for greeting in greetings:
                connection, _ = server.accept()
                connection.sendall(greeting)
                connection.close()

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            assert network._port_22("127.0.0.1") == reason
            served.result()


CLOSED = "kex_exchange_identification: Connection closed by remote host"


@pytest.mark.parametrize(
    ("refusals", "line", "reason"),
    [
        (2, CLOSED, ""),
        (network.TRIES, CLOSED, network.NO_VERDICT),
        (1, "ubuntu@n1: Permission denied (publickey).", "Connection closed by n1 port 22"),
    ],
)
def test_a_login_that_sshd_has_no_place_for_is_tried_again(
    programs, tmp_path, refusals, line, reason, monkeypatch
):
    monkeypatch.setattr(network, "PAUSE_S", 0.0)
    tries = tmp_path / "tries"
    programs(
        "ssh",
        f"echo >>{tries}; [ $(wc -l <{tries}) -gt {refusals} ] && exit 0; "
        f"echo '{line}' >&2; echo Connection closed by n1 port 22 >&2; exit 255",
    )
    assert network._ssh("n1") == reason


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "[  100.500000] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
            (900, "NVRM"),
        ),
        ("[100.5] ip-10-0-3-7 kernel: Out of memory: Killed process 7 (python)", (900, "Out")),
        ("Nov 23 00:00:01 Out of memory: Killed process 7", (None, "Nov")),
    ],
)
def test_a_line_of_the_kernel_has_its_age(line, told):
    message = kernel_message(line, 1000.5)
    assert (message.age_s, message.text.split()[0].rstrip(":")) == told


def test_a_report_has_typed_facts_and_the_clock_of_its_node(tmp_path):
    node = LocalNode(tmp_path, greeting=b'{"readings": []} welcome\n{')
    result = read_reports(node, [HEAD], [system, mount, login], "reading its facts")
    assert isinstance(result, FanoutResult)
    [report] = result.values
    assert report.host == "demo-0"
    assert report.get(system).kernel == os.uname().release
    assert report.get(login).home == str(tmp_path)
    assert {one.path for one in report.all(mount)} == set(mount_points())
    # Both clocks are this machine's: they differ by no more than the measurement may be wrong.
    assert abs(report.clock_offset_s) <= report.clock_error_s + 0.05


@pytest.mark.parametrize("timeout_s", [1.0, 60.0, 600.0, None])
def test_no_fact_may_take_as_long_as_the_whole_report(timeout_s, tmp_path):
    class Node(LocalNode):
        def run(self, target, command, *, timeout_s, stdin):
            request = stdin[stdin.rindex(b'{"facts"') :]  # behind the program
            assert from_json(ReportRequest, request).within_s < timeout_s
            return super().run(target, command, timeout_s=240.0, stdin=stdin)

    report = read_report(Node(tmp_path), HEAD, [system], "reading", timeout_s)
    assert report.host == HEAD.host


def test_a_clock_is_off_by_what_the_way_does_not_explain():
    # Sent at 100, received at 102. The node's clock was at 200.4 to 200.8: 1.6 s were on the way.
    report = with_clock(FactReport(200.4, 200.8, ()), 100.0, 102.0)
    assert (round(report.clock_offset_s, 6), round(report.clock_error_s, 6)) == (99.6, 0.8)


def test_a_path_that_is_not_there_yet_is_on_the_file_system_of_the_folder_above(tmp_path):
    (tmp_path / "link").symlink_to("/dev/shm")  # noqa: S108
    places = [str(tmp_path / "no/such"), str(tmp_path / "link/sub"), "~/below"]
    there, linked, home = (
        read_fact(LocalNode(tmp_path), [HEAD], partial(mount_of, path=path), "reading").values[0]
        for path in places
    )
    assert (linked.path, there.path) == ("/dev/shm", home.path)  # noqa: S108
    assert Path(there.path).stat().st_dev == tmp_path.stat().st_dev


FACTS = (
    *facts_to_read(),
    *(system_facts.memory, system_facts.limits, system_facts.kernel_log, system_facts.in_lab),
    notices,
    *(partial(system_facts.cloud_init, wait=False), gpu_facts.nvlink, gpu_facts.fabric_manager),
    *(gpu_facts.dcgm, network.interfaces, mount, copy_parts, disks.mounted),
    partial(network.connect_attempts, endpoints=("127.0.0.1:1",)),
    *(partial(disks.growth, during_s=0.1), partial(mount_of, path="~/x")),
    partial(disks.largest_folders, used_share=0.0, walk_s=0.2),
    partial(network.unreached, peers=("127.0.0.1",), over_ssh=False),
    *(software.mpirun_on_path, software.scripts, partial(software.data, folder="/none")),
    partial(software.versions, python=sys.executable, mpirun="/usr/bin/mpirun"),
    *(partial(processes.job_processes, query=ProcessQuery("x")), processes.active_jobs),
    processes.hidden_users,
    *(partial(one, folder="/none") for one in (training.training_files, training.training_log)),
    partial(training.script_error, path=""),
)


def test_all_facts_are_read_with_the_oldest_python(tmp_path):
    (tmp_path / "python3").symlink_to(python_or_skip("3.8"))
    node = LocalNode(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    report = read_report(node, HEAD, FACTS, "reading", 240.0)
    refused = {"kernel_log"}  # to a user who is not root
    assert {one.label: one.error for one in report.failed() if one.label not in refused} == {}
    assert all(report.has(function_of(one)) for one in FACTS if one is not system_facts.kernel_log)
    modules = (system_facts, gpu_facts, network, disks, software, processes, training)
    every = {
        f"{module.__name__}:{name}"
        for module in modules
        for name, one in vars(module).items()
        if callable(one) and hasattr(one, "within_s") and one.__module__ == module.__name__
    }
    assert every <= {name_of(function_of(one)) for one in FACTS}, "a fact without a test"


REPORT = """<?xml version="1.0" ?><nvidia_smi_log><driver_version>580.95.05</driver_version>
<gpu id="00000000:17:00.0"><fb_memory_usage><used>14 MiB</used></fb_memory_usage>
<processes><process_info><pid>7</pid><used_memory>N/A</used_memory></process_info></processes>
</gpu></nvidia_smi_log>"""


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (f"cat <<'END'\n{REPORT}\nEND", (14.0, [(7.0, None)])),
        # It exits with 14 for a broken infoROM, with a warning after the report.
        (f"cat <<'END'\n{REPORT}\nWARNING: infoROM\nEND\nexit 14", (14.0, [(7.0, None)])),
        ("echo No devices were found; exit 6", "nvidia-smi -q -x: No devices were found"),
        ("exit 15", "nvidia-smi -q -x: no output"),
        ("echo '<nvidia_smi_log><gpu>'; exit 15", "nvidia-smi -q -x: <nvidia_smi_log><gpu>"),
        ("echo '<gpu></nvidia_smi_log>'", "mismatched tag"),
    ],
)
def test_what_nvidia_smi_reports(tmp_path, script, outcome):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    node = LocalNode(tmp_path, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    [one] = read_fact(node, [HEAD], gpus, "reading the GPUs").outcomes
    if isinstance(outcome, str):
        assert outcome in one.error.message
    else:
        [gpu] = one.value.gpus
        shown = [(process.pid, process.memory_mib) for process in gpu.processes]
        assert (gpu.memory_used_mib, shown) == outcome


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a function that puts a shell script in the place of a program."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return put


def test_nvlinks_of_which_nvidia_smi_says_nothing_are_not_known(programs, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_facts, "DRIVER", str(tmp_path))
    programs("nvidia-smi", "printf 'GPU 0: V100\\n Link 0: 25 GB/s\\n Link 1: <inactive>\\n'")
    assert gpu_facts.nvlink() == {"0": (1,)}
    links = "Link 0: 25 GB/s\\n Link 1: 25 GB/s\\n"
    none = "NVML: Unable to retrieve NVLink information as all links are inActive"
    programs("nvidia-smi", f"printf 'GPU 0: V100\\n {links}GPU 1: V100\\n{none}\\n'")
    assert gpu_facts.nvlink() == {"1": (0, 1)}
    programs("nvidia-smi", f"printf 'GPU 0: A10G\\n{none}\\nGPU 1: A10G\\n{none}\\n'")
    assert not gpu_facts.nvlink()
    programs("nvidia-smi", "")
    assert gpu_facts.nvlink() is None
    programs("nvidia-smi", "echo Unable to determine the device handle; exit 15")
    with pytest.raises(OSError, match="nvidia-smi nvlink -s failed"):
        gpu_facts.nvlink()


def test_a_kernel_log_that_is_not_shown_is_not_called_empty(programs):
    for refused in ("dmesg", "sudo"):
        programs(refused, "exit 1")
    programs(
        "journalctl", "echo '[    1.500000] host kernel: NVRM: Xid (PCI:0000:17:00): 79, gone'"
    )
    assert [one.text[:9] for one in system_facts.kernel_log()] == ["NVRM: Xid"]
    programs("journalctl", "echo '-- No entries --'")
    with pytest.raises(PermissionError):
        system_facts.kernel_log()
    programs("dmesg", "")
    assert system_facts.kernel_log() == ()


def test_memory_of_a_gpu_that_is_not_known_is_not_called_free(programs, capsys):
    programs("nvidia-smi", f"cat <<'END'\n{REPORT.replace('14 MiB', 'N/A')}\nEND")
    held = tuple(held_memory("demo-0", gpus()))
    ended = (NodeProcess("demo-0", 7, 0, "rank", "x", 1.0, ("python",), "killed"),)
    report = KillReport(ended, ended, (), ("demo-0",), (), held)
    assert "free" not in how_they_ended(report)
    assert report.exit_status == 0
    show_held(held, "demo")
    assert "the memory of GPU 0 is free is not known" in capsys.readouterr().err


def test_kill_names_the_jobs_of_processes_each_on_one_line():
    alone = NodeProcess("demo-1", 7, None, "rank", None, 9, ("python",))
    jobs = [replace(alone, job_id=one) for one in ("a", "b\n\x1b[31m", "a")]
    assert jobs_of([alone]) == jobs_of([]) == ""
    assert jobs_of(jobs[:1]) == "of these jobs: a"
    assert jobs_of([*jobs, alone]) == "of these jobs: a, b\\n\\x1b[31m, and processes of no job"


def test_the_hint_for_memory_that_stays_begins_with_the_harmless_step(capsys):
    show_held([HeldMemory("demo-1", 0, 9000, ())], "demo")
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: demo-1: GPU 0 still holds 9000 MiB, of no process that is there"
    assert hint.startswith("  hint: run `nvidia-smi` there again: a driver may need a minute")
    assert hint.endswith("the driver does not free the memory: clusterctl reboot demo 1")
