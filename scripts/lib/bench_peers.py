"""How others copy a folder to many hosts: bash for the host that has it. Pure text.

Every script ends with success only if every host has everything.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Job:
    """The content of one folder, to the same folder on each of these hosts."""

    source: str
    destination: str
    hosts: tuple[str, ...]
    connections: int = 1


@dataclass(frozen=True)
class Peer:
    """Somebody else's way. `each`: its time grows with every host, so it copies a smaller set.

    `needs` is a command that succeeds where `package` is installed. `only`, where there are any,
    are the numbers of hosts that it is worth the time for.
    """

    name: str
    script: Callable[[Job], str]
    package: str
    needs: tuple[str, ...]
    each: bool = False
    only: tuple[int, ...] = ()
    most_hosts: int = 16

    def measured_with(self, hosts: int) -> bool:
        return hosts <= self.most_hosts and (not self.only or hosts in self.only)


def tutorial_loop(job: Job) -> str:
    """The tutorial's `copyclust`, as it is."""
    lines = "\n".join(f"{host} slots=1" for host in job.hosts)
    copy = f"rsync -azv {job.source}/ $host:{job.destination}/ >/dev/null || exit 1"
    return (
        f"while read -u 10 host; do host=${{host%% slots*}}; {copy}; done 10<<'END'\n{lines}\nEND"
    )


def rsync_star(job: Job) -> str:
    return together(f"rsync -a {job.source}/ {host}:{job.destination}/" for host in job.hosts)


def tar_star(job: Job) -> str:
    unpack = f"mkdir -p {job.destination} && tar -C {job.destination} -xf -"
    pack = f"tar -C {job.source} -cf - ."
    return together(f"{pack} | ssh {host} {shlex.quote(unpack)}" for host in job.hosts)


def clush(job: Job) -> str:
    hosts = ",".join(job.hosts)
    return f"clush -S -f 64 -w {hosts} --copy {job.source} --dest {job.destination}"


def pdcp(job: Job) -> str:
    hosts = ",".join(job.hosts)
    folder = f"pdsh -S -R ssh -f 64 -w {hosts} mkdir -p {job.destination}"
    return f"{folder} && pdcp -R ssh -f 64 -r -w {hosts} {job.source} {job.destination}"


def rsync_tree(job: Job) -> str:
    """In every round, each that has the set gives it to one that has it not."""
    rounds = []
    for pairs in tree_rounds(len(job.hosts)):
        rounds.append(together(tree_copy(job, giver, taker) for giver, taker in pairs))
    return "\n".join(rounds)


def tree_copy(job: Job, giver: int, taker: int) -> str:
    """Number 0 is the host that runs the script, number 1 the first of the job's hosts."""
    to = f"{job.hosts[taker - 1]}:{job.destination}/"
    if giver == 0:
        return f"rsync -a {job.source}/ {to}"
    return f"ssh {job.hosts[giver - 1]} rsync -a {job.destination}/ {to}"


def tree_rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Who gives to whom, round by round, until 0's set is on 1..hosts: a binomial tree."""
    rounds = []
    have = 1
    while have <= hosts:
        taking = range(have, min(2 * have, hosts + 1))
        rounds.append([(taker - have, taker) for taker in taking])
        have += len(taking)
    return rounds


def libtorrent(job: Job) -> str:
    return swarm("libtorrent", job)


def aria2(job: Job) -> str:
    return swarm("aria2", job)


def swarm(engine: str, job: Job) -> str:
    words = [PYTHON, "/tmp/bench_swarm.py", "lead", engine, job.source, job.destination, *job.hosts]
    return shlex.join(words)


def plain_socket(job: Job) -> str:
    """Nothing but sendfile here and recv and write there, to one host after the other."""
    words = [PYTHON, "/tmp/bench_socket.py", "send", job.source, job.destination]
    each = [shlex.join([*words, host, str(job.connections)]) for host in job.hosts]
    return "\n".join(f"{command} || exit 1" for command in each)


def together(commands: Iterable[str]) -> str:
    """Run the commands side by side; fail if one of them does."""
    started = [f"({command}) & pids+=($!)" for command in commands]
    wait = 'for pid in "${pids[@]}"; do wait "$pid" || exit 1; done'
    return "\n".join(["pids=()", *started, wait])


WITH_RSYNC = ("rsync", ("rsync", "--version"))
LOOP = Peer("the tutorial's loop (rsync -azv)", tutorial_loop, *WITH_RSYNC, each=True)
STAR = Peer("rsync to all at once", rsync_star, *WITH_RSYNC, each=True)
CLUSH = Peer("clush --copy", clush, "clustershell", ("clush", "--version"), each=True)
PDCP = Peer("pdcp", pdcp, "pdsh", ("pdcp", "-V"), each=True)
TREE = Peer("binomial tree of rsyncs", rsync_tree, *WITH_RSYNC)
LIBTORRENT = Peer(
    "libtorrent swarm", libtorrent, "python3-libtorrent", (PYTHON, "-c", "import libtorrent")
)
# libtorrent makes the torrent for it, too.
WITH_ARIA2 = ("sh", "-c", f"aria2c --version && {PYTHON} -c 'import libtorrent'")
ARIA2 = Peer("aria2 swarm", aria2, "aria2 or python3-libtorrent", WITH_ARIA2, only=(8,))
TAR = Peer("tar | ssh", tar_star, "tar", ("tar", "--version"))
SOCKET = Peer("plain sendfile socket", plain_socket, "python3", (PYTHON, "--version"))
RSYNC = Peer("rsync over ssh", rsync_star, *WITH_RSYNC)

SHAPED = (TREE, LIBTORRENT, ARIA2, LOOP, STAR, CLUSH, PDCP)
SMALL = (TAR, RSYNC)
CPU = (SOCKET, RSYNC)


def one_rsync(job: Job) -> str:
    """T1: what one copy to one host takes."""
    return f"rsync -a {job.source}/ {job.hosts[0]}:{job.destination}/"
