"""Before an attempt of a job: gives its program to the nodes that lack it. After one has failed:
stops what the job left running on any node, and decides whether the job is started again. It runs
on the head node, in a process of the job's runner.

A job is started again only if it lost a node, at most `retries` times: as soon as all its nodes
answer, or on fewer nodes once enough of them have answered for a minute. Nodes in quarantine are
not in the hosts file. Each failure is recorded as an AttemptData (spec.py).
"""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from clusterctl.node.framed import FramedCommand
from clusterctl.node.guard.notices import notices
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.folder import (
    CODE,
    JOBS,
    LIST_SHIPPED,
    RUNNER_FILE,
    SCRIPT_FOLDERS,
    JobFolder,
    value_in,
)
from clusterctl.node.jobs.spec import JobSpec
from clusterctl.node.paths import CONTRACT, PREPARED
from clusterctl.node.procfs import boot_s
from clusterctl.node.record import to_json
from clusterctl.node.untrusted import text_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
# Timeout of one command on another node.
ANSWER_WITHIN_S = 45.0
# mpirun of Open MPI 5 ends with it, and prints nothing, if a node lacks the folder of --wdir.
NO_FOLDER = 181
# Prints the folder of a job's program if it is not on the node, and of a script-mode program, whose
# channels are next to it, those that are links to folders of the node that are not there.
LACKED = """[ -d "$1" ] || echo "$1"
for one in "$1"/../input/data/*; do [ ! -L "$one" ] || [ -e "$one" ] || readlink "$one"; done"""
# How long enough nodes have to answer before the job starts without the others. A node that reboots
# is back within minutes; a spot node that EC2 took never is.
START_WITH_FEWER_AFTER_S = 60.0
# How long to wait for enough nodes.
WAIT_S = 900.0
POLL_S = 5.0
# SSH connections in parallel.
AT_ONCE = 64
# How EC2 writes the time of a notice. Such texts are in the order of their times.
NOTICE_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that has failed. `began_at` is in seconds since the head node's boot, `earlier`
    the number of attempts before it, `has_lost`: mpirun reported a lost node. `hosts` are its
    nodes, the head node first: names, and addresses of machines that the job did not begin on."""

    exit_status: int
    ranks: int
    began_at: float
    has_lost: bool = False
    earlier: int = 0
    hosts: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        return {
            "ended_at": time.time(),
            "exit_status": self.exit_status,
            "ranks": self.ranks,
            "lost": self.has_lost,
        }


def end_here(job_id: str) -> None:
    """On another node: print how long it has been up, in seconds, and end the job's processes.
    Print a line for each."""
    print(boot_s())
    for one in processes.stop_processes(processes.ProcessQuery(job_id)):
        print(one.pid)


def recover(folder: Path, spec: JobSpec, attempt: FailedAttempt) -> dict[str, Any]:
    """Stop what is left of the job. Return {"attempt": the description of the failure, "again":
    {"argv", "ranks", "hosts"} of the next attempt, or None, "cause": what is known of why there is
    none, "rates": see rates_after}."""
    known, nodes = {node["name"]: node for node in spec.nodes}, nodes_of(spec, attempt.hosts)
    silent, rebooted, killed = sweep(spec.job_id, nodes, attempt.began_at)
    lost = bool(silent or rebooted) or attempt.has_lost
    described = {
        **attempt.as_data(),
        "silent": silent,
        "machines": {
            name: known[name].get("instance_id", "") for name in silent + rebooted if name in known
        },
        "rebooted": rebooted,
        "lost": lost,
        "notices": (noticed := notices_of(silent, time.time() - boot_s() + attempt.began_at)),
        "killed": killed,
    }
    where = ", ".join(silent + rebooted) or "a node"
    for name, number in killed.items():
        plural = "" if number == 1 else "es"
        say(f"ended {number} process{plural} that the job had left on {name}")
    if lost:
        say(f"the job lost {where}")
    for name, notice in noticed.items():
        say(f"EC2 had given notice for {name}: {notice['action']} at {notice['time']}")
    again, why, cause = None, "", ""
    if attempt.exit_status == NO_FOLDER and (cause := lacks(spec, lacked(spec, nodes[1:]))):
        say(cause)
    if spec.retries:
        if not lost:
            why = "not started again: no node was lost"
            why += "" if cause else ", the failure is the job's own"
        elif attempt.earlier >= spec.retries:
            why = f"not started again: it was {attempt.earlier} times, by --retries"
        else:
            again, why = wait_for_nodes(spec, folder)
            cause = "" if again else why
    if why:
        say(why)
    attempt_data = {**described, "retried": bool(again), "message": why or cause}
    rates = rates_after(nodes, noticed)
    return {"attempt": attempt_data, "again": again, "cause": cause, "rates": rates}


def rates_after(
    nodes: list[dict[str, Any]], noticed: dict[str, dict[str, str]]
) -> list[tuple[float, float]]:
    """Return when EC2 took each of the nodes that it has given notice of, in seconds since 1970,
    and what the others cost an hour from then on; empty if a price is not known."""
    prices: dict[str, Any] = {str(node["name"]): node.get("hourly_usd") for node in nodes}
    rates = []
    for name, notice in sorted(noticed.items(), key=lambda one: one[1]["time"]):
        prices.pop(name, None)
        with contextlib.suppress(ValueError, TypeError):
            at = calendar.timegm(time.strptime(notice["time"], NOTICE_TIME))
            rates.append((min(at, time.time()), sum(prices.values())))
    return rates


def say(text: str) -> None:
    print(f"clusterctl: {text}", flush=True)


def notices_of(nodes: list[str], since: float) -> dict[str, dict[str, str]]:
    """Return EC2's notices that these nodes will be taken, by name.

    One for a time before `since`, in seconds since the epoch, was of a machine that had the name
    before. A time that cannot be read counts as later.
    """
    earliest = time.strftime(NOTICE_TIME, time.gmtime(since))
    return {
        one.host: {"action": one.action, "time": one.time}
        for one in notices()
        if one.action != "rebalance" and one.host in nodes and one.time >= earliest
    }


def sweep(job: str, nodes: list[dict[str, Any]], began: float) -> tuple[list, list, dict]:
    """Stop the job's processes on all its nodes. Return the names of the nodes that did not answer,
    the names of those that booted after `began`, and the number of stopped processes by node."""
    here, *others = nodes or [{"name": "the head node"}]
    killed = {here["name"]: len(processes.stop_processes(processes.ProcessQuery(job)))}
    silent, rebooted = [], []
    age = boot_s() - began
    for node, ended_text in zip(others, end_on(others, job)):
        if ended_text is None:
            silent.append(node["name"])
            continue
        uptime, *ended = ended_text.splitlines()
        killed[node["name"]] = len(ended)
        if float(uptime) < age:
            rebooted.append(node["name"])
    return silent, rebooted, {name: count for name, count in killed.items() if count}


def nodes_of(spec: JobSpec, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the nodes of an attempt, all of the job's if there was none. That of a machine that
    the job did not begin on has its address as its name."""
    known = {node["name"]: node for node in spec.nodes}
    return [known.get(host, {"name": host, "address": host}) for host in hosts or known]


def other_nodes(spec: JobSpec, hosts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the job's nodes but the head node, with the machines among `hosts`, those of its
    latest attempt, that it did not begin on."""
    known = {*spec.hosts, *(node["name"] for node in spec.nodes)}
    return [*spec.nodes[1:], *({"name": one, "address": one} for one in hosts if one not in known)]


def end_elsewhere(job: str, nodes: list[dict[str, Any]]) -> list[str]:
    """Stop the job's processes on these nodes. Return the names of those that did not answer."""
    responses = end_on(nodes, job)
    return [str(node["name"]) for node, text in zip(nodes, responses) if text is None]


def end_on(nodes: list[dict[str, Any]], job: str) -> list[str | None]:
    """Stop the job's processes on these nodes. Return each node's output; None if that failed."""
    argv = ["python3", "-ISu", "-", "end", job]
    try:
        program = (JOBS / job / RUNNER_FILE).read_bytes()
    except OSError:  # of the record only a part is left
        return [None for _ in nodes]
    return ask(nodes, argv, program) if nodes else []


def ask(nodes: list[dict[str, Any]], argv: list[str], stdin: bytes) -> list[str | None]:
    """Return what a command prints on each node; None if the node does not answer or it fails."""

    def one(node: dict[str, Any]) -> str | None:
        try:
            frame = FramedCommand(shlex.join(argv))
            done = subprocess.run(
                [*SSH, node["address"], frame.line],
                input=frame.stdin + stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=ANSWER_WITHIN_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        output = frame.take("stdout", done.stdout)
        return None if frame.status is None else output.decode(errors="replace")

    from concurrent.futures import ThreadPoolExecutor  # takes 5 ms, and is rarely needed

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, nodes))


def first_attempt(spec: JobSpec, folder: Path) -> dict[str, Any]:
    """Give a job whose turn in the queue has come what its nodes lack. Return {"argv": its command
    line, "hosts": the names of its nodes, "cause": why it cannot start there, empty if it can}."""
    slots = read_hosts(Path(spec.workdir, "hosts"))
    used = used_by(spec, places_on(spec, slots, {*slots}), spec.ranks)
    nodes = named(spec, used) or nodes_of(spec, ())
    argv, cause = [*spec.argv], ""
    if slots and not used and spec.model_dir is not None:
        gone = [one["name"] for one in spec.nodes if one["address"] not in slots]
        cause = f"{', '.join(gone)} left the hosts file, and no machine with as many slots took "
        cause += "the place: submit the job again with `clusterctl train`"
    elif used and not (cause := provide(spec, nodes)) and spec.model_dir is not None:
        argv = retry_command(spec, spec.ranks, folder, used)
    return {"argv": argv, "hosts": [node["name"] for node in nodes], "cause": cause}


def wait_for_nodes(spec: JobSpec, folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Wait until enough nodes answer, and give them what they lack. Return the next attempt, None
    if there can be none, and a message for the log. The hosts file is read at each poll: `up` may
    add nodes meanwhile."""
    head = spec.nodes[0]["address"] if spec.nodes else ""
    deadline = time.monotonic() + WAIT_S
    enough_since = None
    while True:
        hosts = read_hosts(Path(spec.workdir, "hosts"))
        others = named(spec, [host for host in hosts if host != head])
        # A node that was silent during the first sweep may still have ranks.
        responses = end_on(others, spec.job_id)
        up = {head} | {one["address"] for one, text in zip(others, responses) if text is not None}
        places = places_on(spec, hosts, up)
        ranks = ranks_that_fit(spec, sum(places.values()))
        now = time.monotonic()
        enough_since = (enough_since or now) if ranks else None
        if ranks == spec.ranks or (enough_since and now - enough_since > START_WITH_FEWER_AFTER_S):
            break
        if now > deadline:
            return None, (
                f"not started again: after {WAIT_S / 60:.0f} minutes the nodes that answer take "
                f"{sum(places.values())} of at least {spec.min_ranks} ranks"
            )
        time.sleep(POLL_S)
    used = used_by(spec, places, ranks)
    nodes = named(spec, used)
    if cause := provide(spec, nodes):
        return None, f"not started again: {cause}"
    called = [node["name"] for node in nodes]
    again = {"argv": retry_command(spec, ranks, folder, used), "ranks": ranks, "hosts": called}
    plural = "" if ranks == 1 else "s"
    return again, f"starting again with {ranks} rank{plural} on {', '.join(called)}"


def named(spec: JobSpec, addresses: Iterable[str]) -> list[dict[str, Any]]:
    """Return the names and addresses of nodes. That of a node that the job did not begin on is its
    address."""
    names = {node["address"]: node["name"] for node in spec.nodes}
    return [{"name": names.get(one, one), "address": one} for one in addresses]


def used_by(spec: JobSpec, places: dict[str, int], ranks: int) -> dict[str, int]:
    """Return those of the places that mpirun uses for so many ranks: it fills them in this
    order."""
    used, left = {}, ranks
    for host, most in places.items():
        if left > 0 or spec.maps_ranks:
            used[host] = most
            left -= most
    return used


def provide(spec: JobSpec, nodes: list[dict[str, Any]]) -> str:
    """Give the program that was shipped with the job, with the channels that were, to those of its
    nodes that lack it: new machines. Tell a script-mode program its nodes. Return why it cannot run
    there, as a sentence; empty if nothing is known, also of a node that does not answer."""
    head = [one["address"] for one in spec.nodes[:1]]
    others = [node for node in nodes if node["address"] not in head]
    lacking = lacked(spec, others)
    new = [node for node in others if program_folder(spec) in lacking.get(node["name"], ())]
    problem = give_program(spec, new) if new else ""
    if new:
        lacking = lacked(spec, others)
        whole = {name for name, folders in lacking.items() if program_folder(spec) not in folders}
        given = [node["name"] for node in new if node["name"] in whole]
        if given:
            say(f"the job's program was copied to {', '.join(given)}, which lacked it")
    return lacks(spec, lacking, problem) or name_hosts(spec, nodes)


def name_hosts(spec: JobSpec, nodes: list[dict[str, Any]]) -> str:
    """Write the addresses of a script-mode program's nodes into its contract, which each of them
    has, if others are there. Return why that failed, as a sentence; empty if it did not."""
    contract = CODE / spec.job_id / CONTRACT
    content = value_in(text_in(contract), {}) if spec.model_dir is not None else {}
    hosts = content.get("hosts", [])
    addresses = [node["address"] for node in nodes]
    if len(hosts) != len(nodes) or [one["address"] for one in hosts] == addresses:
        return ""
    for one, address in zip(hosts, addresses):
        one["address"] = address
    text = to_json(content)
    # Where PREPARED is missing, rank.py makes the files of input/config again.
    script = f"cd .clusterctl/code/{spec.job_id} && rm -f {PREPARED} && cat >{CONTRACT}"
    outputs = ask(nodes[1:], ["sh", "-c", script], text.encode())
    missed = [node["name"] for node, output in zip(nodes[1:], outputs) if output is None]
    try:
        if not missed:  # last, and whole or not at all: what is interrupted before is done again
            (contract.parent / PREPARED).unlink(missing_ok=True)
            new = contract.with_suffix(".new")
            new.write_text(text)
            new.replace(contract)
    except OSError:
        missed = [nodes[0]["name"]]
    return f"{', '.join(missed)} did not get the addresses of the job's nodes" if missed else ""


def program_folder(spec: JobSpec) -> str:
    """Return the folder of the program that was shipped with the job, below the home folder."""
    return f".clusterctl/code/{spec.job_id}" + ("" if spec.model_dir is None else "/code")


def lacked(spec: JobSpec, nodes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the folders that each node that answers lacks of those that the job needs on it, by
    the node's name."""
    if not (spec.code and nodes):
        return {}
    outputs = ask(nodes, ["sh", "-c", LACKED, "sh", program_folder(spec)], b"")
    answers = zip(nodes, outputs)
    return {node["name"]: text.splitlines() for node, text in answers if text is not None}


def lacks(spec: JobSpec, lacking: dict[str, list[str]], problem: str = "") -> str:
    """Return what nodes lack, and what to do, as a sentence; empty if they lack nothing. `problem`
    is why they could not be given the program."""
    program = program_folder(spec)
    parts = []
    for name, folders in lacking.items():
        shown = (f"~/{one}, the job's program" if one == program else one for one in folders)
        if folders:
            parts.append(f"{name} lacks {' and '.join(shown)}")
    if not parts:
        return ""
    if any(program in folders for folders in lacking.values()):
        what = problem or "submit the job again with `clusterctl train`"
    else:
        what = "copy it there (`clusterctl copy`), then submit the job again"
    return f"{'; '.join(parts)}: {what}"


def give_program(spec: JobSpec, nodes: list[dict[str, Any]]) -> str:
    """Copy the program from the head node, in script mode with the channels that were copied there,
    to nodes that lack it. Return why not all have it; empty if all do."""
    code, in_script_mode = CODE / spec.job_id, spec.model_dir is not None
    below = "./code/" if in_script_mode else "./"
    names = [below + name for name in (spec.code or {}).get("files", ())]
    if gone := next((name for name in names if not os.path.lexists(code / name)), ""):
        return f"it cannot be copied from the head node, where {code / gone} is missing"
    if in_script_mode:  # with what starts the ranks, the contract, and the channels
        folders = (code / "input" / name for name in ("data", "streamed"))
        own = [*(one for one in code.glob("[!.]*") if one.is_file()), *filter(Path.is_dir, folders)]
        names += [f"./{path.relative_to(code)}" for path in own]
    place = f".clusterctl/code/{spec.job_id}"
    new = f"{place}.new"
    script = f"umask 077; rm -rf {new} && mkdir -p {new} && tar -xf - -C {new} && cd {new} && "
    script += f"{LIST_SHIPPED} && mkdir -p {' '.join(SCRIPT_FOLDERS) if in_script_mode else '.'}"

    def one(node: dict[str, Any]) -> str:
        frame = FramedCommand(shlex.join(["sh", "-c", script]))
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        line = [*SSH, node["address"], frame.line]
        with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=null) as receiver:
            assert receiver.stdin
            with contextlib.suppress(BrokenPipeError):
                receiver.stdin.write(frame.stdin)
                receiver.stdin.flush()
            # Without a limit: channels may be large, and ssh ends if the node falls silent.
            packed = subprocess.run(
                ["tar", "-C", code, "-cf", "-", "--null", "-T", "-"],
                input=b"\0".join(map(os.fsencode, names)),
                stdout=receiver.stdin,
                stderr=pipe,
                check=False,
            )
            output, _ = receiver.communicate()
        frame.take("stdout", output)
        if packed.stderr:
            reason = packed.stderr.decode(errors="replace").partition("\n")[0]
            return f"it cannot be copied from the head node: {reason}"
        if packed.returncode or frame.status != 0:
            return "it could not be copied there from the head node (is the disk full?)"
        return ""

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = list(pool.map(one, nodes))
    # A folder that has its name is whole.
    ask([node for node, why in zip(nodes, problems) if not why], ["mv", "-T", new, place], b"")
    return next(filter(None, problems), "")


def read_hosts(path: Path) -> dict[str, int]:
    """Return the slots of each host, in the file's order; empty if the file cannot be read."""
    found = {}
    for line in text_in(path).splitlines():
        match = re.match(r"\s*([^\s#]+).*?slots\s*=\s*(\d+)", line)
        if match:
            found[match[1]] = int(match[2])
    return found


def places_on(spec: JobSpec, hosts: dict[str, int], up: set[str]) -> dict[str, int]:
    """Return how many of the job's ranks each of the hosts in `up` takes, by address.

    `hosts` are the slots of all hosts of the cluster. Hosts that take no rank are left out.
    """
    slots = {host: count for host, count in hosts.items() if host in up}
    most = spec.per_host
    if spec.model_dir is not None:
        return script_places(spec, hosts, slots)
    if spec.maps_ranks and len(slots) < len(hosts):
        return {}  # only mpirun knows how many each takes
    if spec.torchrun and most:
        return {host: most for host, count in slots.items() if count >= most}
    return {host: min(count, most or count) for host, count in slots.items()}


def script_places(spec: JobSpec, hosts: dict[str, int], up: dict[str, int]) -> dict[str, int]:
    """Return places_on for a script-mode program, which knows its nodes: each in its place, or for
    one that is not among `hosts` any more another in `up` with as many slots."""
    own, found = {node["address"] for node in spec.nodes}, {}
    for node in spec.nodes:
        free = (one for one in up if one not in own and one not in found)
        same = (one for one in free if up[one] == node.get("slots"))
        address = node["address"] if node["address"] in hosts else next(same, "")
        if address not in up:
            return {}
        # More slots than at the submission take no rank from the nodes that follow.
        found[address] = min(up[address], spec.per_host or node.get("slots") or up[address])
    return found


def ranks_that_fit(spec: JobSpec, places: int) -> int:
    """Return the largest number of ranks that fits into `places` and suits the job; 0 if none does.

    The trainer goes on from a checkpoint with as many images per step as before, so the number of
    ranks has to divide them. torchrun has as many ranks on each node.
    """
    if places >= spec.ranks:
        return spec.ranks
    images = (spec.batch_size or 0) * spec.ranks  # 0 is divided by every number
    step = (spec.per_host or 1) if spec.torchrun else 1
    fewer = range(places, max(spec.min_ranks, 1) - 1, -step)
    return next((ranks for ranks in fewer if images % ranks == 0), 0)


def retry_command(spec: JobSpec, ranks: int, folder: Path, slots: dict[str, int]) -> list[str]:
    """Return the job's command line for these hosts. It continues from the trainer's checkpoint."""
    argv = list(spec.argv)
    if ranks < spec.ranks:
        # With torchrun, mpirun starts one process on each node.
        each = (spec.per_host or 1) if spec.torchrun else 1
        argv[argv.index("-np") + 1] = str(ranks // each)
        if spec.batch_size:
            # The last one counts, however the one before is spelled.
            argv += ["-b", str(spec.batch_size * spec.ranks // ranks)]
    if "--hostfile" in argv:
        text = "".join(f"{host} slots={count}\n" for host, count in slots.items())
        (folder / "hosts").write_text(text)
        argv[argv.index("--hostfile") + 1] = str(folder / "hosts")
    # Once the job has written its log, the log folder has its own checkpoints, which --clear_log
    # would delete. Before that the folder has those of an earlier run and is still to be cleared.
    job = JobFolder(folder)
    if spec.log_name in job.written(spec, job.status()):
        argv = [word for word in argv if word != "--clear_log"]
    return argv
