"""The benchmarks' main program, and the benchmarks of runclust, of its start and of `up`.

Commands are measured as a whole, from outside. Every round runs each of them once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_copy import bench_copy
from bench_diagnose import bench_diagnose
from bench_explain import bench_explain
from bench_faults import bench_faults
from bench_input import bench_input
from bench_lab import (
    cluster,
    cores,
    delayed,
    end_when_told,
    lab_cpu_s,
    lab_ec2,
    lab_record,
    quiet,
    running_lab,
)
from bench_launch import bench_launch
from bench_logs import bench_logs
from bench_pipe import bench_pipe
from bench_preprocess import bench_preprocess
from bench_resize import bench_resize
from bench_serve import bench_serve
from bench_step import bench_step

from clusterctl.transport.user_config import read_user_config

ROUNDS = 5
FANOUT = 256
ROUND_TRIP_S = 0.05
# Boot time of hosts that need no CPU of this machine. Instances on EC2 need more.
SLOW_BOOT_S = 20


@dataclass(frozen=True)
class Peer:
    """A command line that is measured, and variables to add to its environment."""

    name: str
    argv: list[str]
    environ: dict[str, str]


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: by the clock, and CPU time of the command and of the lab's hosts."""

    wall_s: float
    client_cpu_s: float
    servers_cpu_s: float


def main() -> None:
    """Run the benchmarks that are named on the command line, or all of them."""
    end_when_told()
    words = sys.argv[1:]
    subjects = {"runclust": bench_runclust, "start": bench_start, "up": bench_up}
    # These parse their own arguments.
    alone = {
        "copy": bench_copy,
        "diagnose": bench_diagnose,
        "explain": bench_explain,
        "faults": bench_faults,
        "input": bench_input,
        "launch": bench_launch,
        "logs": bench_logs,
        "pipe": bench_pipe,
        "preprocess": bench_preprocess,
        "resize": bench_resize,
        "serve": bench_serve,
        "step": bench_step,
    }
    if words and words[0] in alone:
        alone[words[0]](words[1:])
        return
    unknown = [name for name in words if name not in subjects]
    if unknown:
        known = ", ".join([*subjects, *alone])
        sys.exit(f"error: no such benchmark: {' '.join(unknown)} (there are {known})")
    print(f"{os.cpu_count()} CPUs; median of {ROUNDS} rounds; every round runs each command once")
    with tempfile.TemporaryDirectory() as folder, running_lab(Path(folder)):
        for name in words or subjects:
            subjects[name](Path(folder))
    if not words:
        for name, bench_alone in alone.items():
            if name != "faults":  # it takes hours
                bench_alone([])


def bench_runclust(home: Path) -> None:
    """Measure `true` on 32 and 128 hosts by runclust, pdsh, clush and the tutorial's loop."""
    for nodes in (32, 128):
        with cluster(nodes):
            *peers, loop = runclust_peers(home, home / "bench" / "ssh_config", nodes)
            rows = measure([*peers, loop])
            report(f"`true` on {nodes} hosts, cold, fan-out {FANOUT}", rows)
            ours = rows["runclust"]
            floor_s = statistics.median(row.servers_cpu_s for row in ours) / cores()
            ratio = statistics.median(row.wall_s for row in ours) / floor_s
            print(
                f"  limit: the servers' own CPU time on these cores, {floor_s:.2f} s: {ratio:.2f} x"
            )
            if nodes == 128:
                bench_delayed(home, nodes)


def bench_delayed(home: Path, nodes: int) -> None:
    """Measure the same with a round trip of ROUND_TRIP_S to the hosts."""
    given = read_user_config(home / "bench", "ssh_config")
    targets = [given.target(f"bench-{index}") for index in range(nodes)]
    if any(target.proxy_command for target in targets):
        print("  with a delay: not measured, the lab's hosts have no address here without root")
        return
    pins = dict(
        line.split(" ", 1) for line in (home / "bench" / "known_hosts").read_text().splitlines()
    )
    addresses = [(target.address, target.port) for target in targets]
    with delayed(addresses, ROUND_TRIP_S / 2) as ports:
        known, config = home / "delayed-known_hosts", home / "delayed-ssh_config"
        keys = {name: key for names, key in pins.items() for name in names.split(",")}
        known.write_text(
            "".join(f"[127.0.0.1]:{port} {keys[t.address]}\n" for port, t in zip(ports, targets))
        )
        config.write_text(
            "".join(f"Host {t.host}\n Port {port}\n" for port, t in zip(ports, targets))
            + f"Host *\n HostName 127.0.0.1\n User {targets[0].user}\n IdentitiesOnly yes\n"
            f" IdentityFile {home}/bench/id_ed25519\n UserKnownHostsFile {known}\n"
        )
        peers = runclust_peers(home, config, nodes)[:-1]
        ms = round(ROUND_TRIP_S * 1000)
        report(f"`true` on {nodes} hosts, {ms} ms away, fan-out {FANOUT}", measure(peers))


def runclust_peers(home: Path, config: Path, nodes: int) -> list[Peer]:
    """Return the command lines that run `true` on all hosts of an ssh_config."""
    names = [f"bench-{index}" for index in range(nodes)]
    hosts = home / "bench-hosts"
    hosts.write_text("".join(f"{name} slots=1\n" for name in names))
    user = home / f"user-of-{config.stem}"
    (user / ".ssh").mkdir(parents=True, exist_ok=True)
    (user / ".ssh" / "config").write_text(config.read_text())
    loop = (
        "while read -u 10 host; do host=${host%% slots*}; "
        f"ssh -F {config} $host true; done 10<{hosts}"
    )
    group = ",".join(names)
    return [
        Peer(
            "runclust",
            ["runclust", str(hosts), "true"],
            {"HOME": str(user), "CLUSTERCTL_HOME": str(user)},
        ),
        Peer(
            "pdsh",
            ["pdsh", "-R", "ssh", "-f", str(FANOUT), "-w", group, "true"],
            {"PDSH_SSH_ARGS_APPEND": f"-F {config}"},
        ),
        Peer("clush", ["clush", "-f", str(FANOUT), "-o", f"-F {config}", "-w", group, "true"], {}),
        Peer("the tutorial's loop", ["bash", "-c", loop], {}),
    ]


def bench_start(home: Path) -> None:
    """Measure runclust on one host, and what the interpreter and paramiko take of it."""
    with cluster(1):
        config = home / "bench" / "ssh_config"
        runclust = runclust_peers(home, config, 1)[0]
        python = sys.executable
        peers = [
            runclust,
            Peer("runclust --help", ["runclust", "--help"], {}),
            Peer("ssh", ["ssh", "-F", str(config), "bench-0", "true"], {}),
            Peer("python -c pass", [python, "-c", "pass"], {}),
            Peer("python -c 'import paramiko'", [python, "-c", "import paramiko"], {}),
        ]
        report("one host, and what the interpreter costs", measure(peers))


def bench_up(home: Path) -> None:
    for nodes in (32, 128):
        bench_up_of(home, nodes)


def bench_up_of(home: Path, nodes: int) -> None:
    """Measure `clusterctl up` of so many nodes, and count its AWS calls and those of `status`."""
    print(f"\n`clusterctl up` of {nodes} nodes (CPU: of the lab and of who asks it)")
    compare_boots(nodes, 3)
    # The lab's hosts boot in a second and need this machine's cores for it. EC2's instances do not.
    compare_boots(nodes, 1, SLOW_BOOT_S)
    print(f"  its AWS calls: {calls_of(home, *up_argv(nodes)[1:])}")
    status_s = timed(lambda: quiet("clusterctl", "status", "bench"))
    print(f"  clusterctl status: {status_s:.2f} s, AWS calls: {calls_of(home, 'status', 'bench')}")
    quiet("clusterctl", "down", "bench", "--yes", "--discard-results")


def compare_boots(nodes: int, rounds: int, slow_s: int = 0) -> None:
    """Measure `up` and the local EC2 alone in turn. `slow_s` is the hosts' boot time."""
    rows = []
    for _ in range(rounds):
        row = []
        for work in (boot_alone, up_and_down):
            if slow_s:
                slow = ["--slow", f"{slow_s}s", "--times", str(nodes)]
                quiet("clusterctl", "lab", "fault", "boot", *slow)
            row.append(with_cpu(functools.partial(work, nodes)))
        rows.append(row)
    (boot_s, boot_cpu_s), (up_s, up_cpu_s) = (
        [statistics.median(values) for values in zip(*row)] for row in zip(*rows)
    )
    what = f", machines that boot for {slow_s} s" if slow_s else f" (median of {rounds})"
    print(f"  the local EC2 alone, RunInstances to the last sshd that answers{what}:")
    print(f"    {boot_s:.2f} s, CPU {boot_cpu_s:.2f} s; clusterctl up, every node ready:", end=" ")
    print(f"{up_s:.2f} s, CPU {up_cpu_s:.2f} s: {up_s / boot_s:.2f} x, {up_s - boot_s:.2f} s more")


def calls_of(home: Path, *argv: str) -> str:
    """Return how many AWS calls a clusterctl command makes.

    GetConsoleOutput, one call for each node, is counted separately.
    """
    file = home / "calls.json"
    quiet(sys.executable, str(Path(__file__).with_name("count_calls.py")), str(file), *argv)
    calls = json.loads(file.read_text())
    consoles = calls.pop("GetConsoleOutput", 0)
    return f"{sum(calls.values())}" + (f", and {consoles} GetConsoleOutput" if consoles else "")


def up_argv(nodes: int) -> list[str]:
    return ["clusterctl", "up", "bench", "--nodes", str(nodes), "--instance-type", "p3.2xlarge"]


def up_and_down(nodes: int) -> None:
    """Launch the cluster; it is removed after the clock has stopped."""
    quiet(*up_argv(nodes))
    after.append(lambda: quiet("clusterctl", "down", "bench", "--yes", "--discard-results"))


def with_cpu(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of `work`, and the CPU seconds of this program, its commands and the lab.

    Other programs on this machine lengthen the seconds, but hardly the CPU seconds.
    """
    began = own_cpu_s() + lab_cpu_s()
    cpu: list[float] = []
    # The CPU time is read before the functions in `after` run.
    took_s = timed(lambda: (work(), cpu.append(own_cpu_s() + lab_cpu_s() - began)))
    return took_s, cpu[0]


def own_cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def boot_alone(nodes: int) -> None:
    """Launch the same instances by the API alone, and wait until every sshd answers."""
    ec2 = lab_ec2()
    image = ec2.describe_images(Owners=["898082745236"])["Images"][0]["ImageId"]
    made = ec2.run_instances(
        ImageId=image, InstanceType="p3.2xlarge", MinCount=nodes, MaxCount=nodes
    )
    ids = [instance["InstanceId"] for instance in made["Instances"]]
    after.append(lambda: terminate(ec2, ids))
    # Without root the hosts have no address on this machine. The lab reports the status "ok" when
    # sshd listens.
    direct = lab_record().mode == "root"
    waiter = ec2.get_waiter("instance_running" if direct else "instance_status_ok")
    waiter.wait(InstanceIds=ids, WaiterConfig={"Delay": 0.1, "MaxAttempts": 1000})
    if direct:
        found = ec2.describe_instances(InstanceIds=ids)["Reservations"]
        for host in (host for one in found for host in one["Instances"]):
            await_ssh(host["PublicIpAddress"])


def await_ssh(address: str) -> None:
    """Wait until an SSH server answers."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, 22), 1) as sock:
            if sock.recv(4) == b"SSH-":
                return
        time.sleep(0.02)


# What measured work leaves to be done after the clock has stopped; see `timed`.
after: list[Callable[[], None]] = []


def terminate(ec2: Any, ids: list[str]) -> None:
    ec2.terminate_instances(InstanceIds=ids)
    ec2.get_waiter("instance_terminated").wait(
        InstanceIds=ids, WaiterConfig={"Delay": 0.2, "MaxAttempts": 1000}
    )


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of `work`. Then call the functions that it added to `after`."""
    began = time.monotonic()
    work()
    took = time.monotonic() - began
    while after:
        after.pop()()
    return took


def measure(peers: list[Peer]) -> dict[str, list[Timing]]:
    """Run every command once in each round, and return their timings by name."""
    rows: dict[str, list[Timing]] = {peer.name: [] for peer in peers}
    for round_number in range(ROUNDS + 1):
        for peer in peers:
            timing = run_once(peer)
            if round_number:  # the first round warms the caches
                rows[peer.name].append(timing)
    return rows


def run_once(peer: Peer) -> Timing:
    """Run one command. End the program if it fails."""
    before, servers = resource.getrusage(resource.RUSAGE_CHILDREN), lab_cpu_s()
    began = time.monotonic()
    done = subprocess.run(
        peer.argv,
        env={**os.environ, **peer.environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    wall_s = time.monotonic() - began
    if done.returncode:
        sys.exit(f"error: {peer.name} ended with {done.returncode}: {done.stderr.decode()}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    client = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall_s, client, lab_cpu_s() - servers)


def report(title: str, rows: dict[str, list[Timing]]) -> None:
    """Print the median time of each command, and its ratio to the first one."""
    print(f"\n{title}")
    first = statistics.median(row.wall_s for row in next(iter(rows.values())))
    for name, timings in rows.items():
        walls = [timing.wall_s for timing in timings]
        median, cpu = statistics.median(walls), statistics.median(t.client_cpu_s for t in timings)
        spread = f"{min(walls):.2f}-{max(walls):.2f}"
        print(
            f"  {name:28} {median:7.2f} s ({spread}), client CPU {cpu:5.2f} s,"
            f" {median / first:6.2f} x"
        )


if __name__ == "__main__":
    main()
