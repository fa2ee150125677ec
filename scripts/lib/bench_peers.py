"""Other ways to copy a folder to many hosts, as bash scripts that run on the source host.

A script succeeds only if every host has everything. This module only makes text.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Job:
    """A copy of one folder's content to the same folder on each of these hosts."""

    source: str
    destination: str
    hosts: tuple[str, ...]
    connections: int = 1


@dataclass(frozen=True)
class Peer:
    """Another program's way to copy.

    `needs` is a command that succeeds if `package` is installed. With `each`, the time grows with
    every host, so it copies a smaller data set. `only`, unless it is empty, has the numbers of
    hosts for which it is measured.
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
    """Return the tutorial's `copyclust` without changes."""
    lines = "\n".join(f"{host} slots=1" for host in job.hosts)
    copy = f"rsync -azv {job.source}/ $host:{job.destination}/ >/dev/null || exit 1"
    return (
        f"while read -u 10 host; do host=${{host%% slots*}}; {copy}; done 10<<'END'\n{lines}\nEND"
    )


def rsync_star(job: Job) -> str:
    """Copy by one rsync to each host, all at the same time."""
    return together(f"rsync -a {job.source}/ {host}:{job.destination}/" for host in job.hosts)


def tar_star(job: Job) -> str:
    """Copy by one `tar | ssh` to each host, all at the same time."""
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
    """Copy along a binomial tree: in every round, each host with the data copies it to another."""
    rounds = []
    for pairs in tree_rounds(len(job.hosts)):
        rounds.append(together(tree_copy(job, giver, taker) for giver, taker in pairs))
    return "\n".join(rounds)


def tree_copy(job: Job, giver: int, taker: int) -> str:
    """Return one copy of the tree. 0 is the host that runs the script, 1 the job's first host."""
    to = f"{job.hosts[taker - 1]}:{job.destination}/"
    if giver == 0:
        return f"rsync -a {job.source}/ {to}"
    return f"ssh {job.hosts[giver - 1]} rsync -a {job.destination}/ {to}"


def tree_rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Return the pairs (giver, taker) of each round, until hosts 1..`hosts` have the data of 0."""
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
    """Return the command that leads a BitTorrent swarm with this engine."""
    words = [PYTHON, "/tmp/bench_swarm.py", "lead", engine, job.source, job.destination, *job.hosts]
    return shlex.join(words)


def plain_socket(job: Job) -> str:
    """Copy by sendfile on this host and recv and write on the others, one host after the other."""
    words = [PYTHON, "/tmp/bench_socket.py", "send", job.source, job.destination]
    each = [shlex.join([*words, host, str(job.connections)]) for host in job.hosts]
    return "\n".join(f"{command} || exit 1" for command in each)


def together(commands: Iterable[str]) -> str:
    """Return a script that runs the commands in parallel and fails if one of them fails."""
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
# aria2 needs libtorrent too, which makes the torrent.
WITH_ARIA2 = ("sh", "-c", f"aria2c --version && {PYTHON} -c 'import libtorrent'")
ARIA2 = Peer("aria2 swarm", aria2, "aria2 or python3-libtorrent", WITH_ARIA2, only=(8,))
TAR = Peer("tar | ssh", tar_star, "tar", ("tar", "--version"))
SOCKET = Peer("plain sendfile socket", plain_socket, "python3", (PYTHON, "--version"))
RSYNC = Peer("rsync over ssh", rsync_star, *WITH_RSYNC)

SHAPED = (TREE, LIBTORRENT, ARIA2, LOOP, STAR, CLUSH, PDCP)
SMALL = (TAR, RSYNC)
CPU = (SOCKET, RSYNC)


def one_rsync(job: Job) -> str:
    """Return the copy whose time is T1: one rsync to one host."""
    return f"rsync -a {job.source}/ {job.hosts[0]}:{job.destination}/"
