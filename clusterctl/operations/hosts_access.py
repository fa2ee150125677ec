"""SSH access to the hosts of a hosts file, without EC2.

Hosts are reached as the user's own `ssh` would reach them, or as nodes of a cluster.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandTimeout,
    HostError,
    KeyRefused,
    MissingTool,
    UsageError,
)
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.hostsfile import HostsFile, parse_host, parse_hosts_file
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.transport import dial
from clusterctl.transport.dial import Target
from clusterctl.transport.user_config import SYSTEM_CONFIG, UserConfig, read_user_config, with_jumps

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clusterctl.transport.call import HostConnections, HostLogin
    from clusterctl.transport.connections import Connections
    from clusterctl.transport.execute import CommandOptions

T = TypeVar("T")
SLURM_WITHIN_S = 20.0
# Two hosts with one boot and one table of processes are one machine, or one container.
IDENTITY = "cat /proc/sys/kernel/random/boot_id && readlink /proc/self/ns/pid"
IDENTIFIED_WITHIN_S = 4.0
# No cluster has more hosts. It is a slip, and the list of a million takes seconds to make.
MOST_HOSTS = 10_000


@dataclass(frozen=True)
class HostsAccess:
    """The targets of a hosts file and the connections to them.

    Use as a context manager: leaving it closes the connections.
    """

    targets: tuple[Target, ...]
    connections: Connections

    def __enter__(self) -> HostsAccess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connections.close()


@dataclass(frozen=True)
class AsRoot:
    """Connections whose commands sudo runs, without asking for a password."""

    connections: HostConnections

    def session(self, target: Target) -> HostLogin:
        return self.connections.session(target)

    def run(self, target: Target, command: str, **how: Unpack[CommandOptions]) -> CommandResult:
        line = f"sudo -n /bin/sh -c {shlex.quote(command)}"
        try:
            return self.connections.run(target, line, **how)
        except CommandTimeout as late:
            late.message = late.message.replace(line, command)
            raise

    def each(self, targets: Sequence[Target], work: Callable[[Target], T]) -> FanoutResult[T]:
        return self.connections.each(targets, work)

    def interrupt(self, for_good: bool = False) -> dict[str, str]:
        return self.connections.interrupt(for_good)

    def close(self) -> None:
        self.connections.close()


@dataclass(frozen=True)
class HostSource:
    """Hosts of no cluster, and the connections to them. `options` are those that name them, and
    `user` is the login there if they name one.

    With `slurm_job` only the processes of that job of Slurm are read.
    """

    options: str
    targets: tuple[Target, ...]
    connections: HostConnections
    user: str = ""
    slurm_job: str = ""

    @property
    def as_root(self) -> bool:
        return isinstance(self.connections, AsRoot)


def same_machines(connections: HostConnections, targets: Sequence[Target]) -> dict[str, str]:
    """Return the hosts that are the machine of a host before them, each with that host: a machine
    may be named by its name and its address. A host that does not answer is in none of them."""

    def read(target: Target) -> CommandResult:
        return connections.run(target, IDENTITY, timeout_s=IDENTIFIED_WITHIN_S, stdin=b"")

    if len(targets) < 2:
        return {}
    results = [one for one in connections.each(targets, read).values if one.ok]
    first = {one.stdout: one.host for one in reversed(results)}
    return {one.host: first[one.stdout] for one in results if first[one.stdout] != one.host}


def this_machine() -> Target:
    """Return this machine as a host."""
    return Target(os.uname().nodename, "", "")


def hosts_of_slurm(job_id: str) -> tuple[str, str]:
    """Return the hosts of a job, as Slurm writes them: `node[1-4,7]`, and its states besides
    "running": squeue lists a job that has ended for some minutes. Raise ClusterctlError."""
    if not re.fullmatch(r"\d+", job_id):
        raise UsageError(
            f"{job_id!r} is not the ID of a job of Slurm",
            "a task of a job array has its own, too: squeue --format '%i %A'",
        )
    if not shutil.which("squeue"):
        raise MissingTool(
            "squeue is not on this machine: the job's hosts cannot be read from Slurm",
            "run this where Slurm's commands are, or name the hosts with --hosts or -w",
        )
    argv = ["squeue", "--noheader", "--jobs", job_id, "--states", "all", "--format", "%T %N"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=SLURM_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterctlError(f"squeue did not end within {SLURM_WITHIN_S:g} s") from None
    if done.returncode:
        raise ClusterctlError(f"squeue failed: {done.stderr.strip()[:200]}")
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    hosts = ",".join(words[1] for words in lines if words[1:] not in ([], ["(null)"]))
    if not hosts:
        state = lines[0][0].lower() if lines else "not known to squeue"
        raise UsageError(f"job {job_id} of Slurm has no hosts: it is {state}", "squeue lists jobs")
    states = dict.fromkeys(line[0].lower() for line in lines)
    return hosts, ", ".join(one for one in states if one != "running")


def read_hosts_file(path: Path) -> HostsFile:
    """Read and parse a hosts file. Raises UsageError if it cannot be read or parsed."""
    try:
        return parse_hosts_file(path.read_bytes().decode(), str(path))
    except FileNotFoundError:
        raise UsageError(
            f"there is no hosts file {path}", "write one ADDRESS slots=N per line"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read the hosts file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file") from None


@dataclass(frozen=True)
class LoginOptions:
    """How hosts are logged in to. Without `user` and `key` it is as the hosts' files say.

    Raises UsageError for a user that `ssh` would refuse, or with a blank or a `$`.
    """

    user: str | None = None
    key: Path | None = None
    connect_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        # As valid_ruser of OpenSSH's ssh.c: a ProxyCommand with %r hands it to a shell.
        name = r"(?!-)[^\s\0-\x1f\x7f'\"`;&<>|(){}$]+"
        if self.user is not None and not re.fullmatch(name, self.user):
            raise UsageError(
                f"not a user name: {self.user!r}", "name the login user: --user ubuntu"
            )


def open_hosts(
    hosts: Path | Sequence[str],
    login: LoginOptions = LoginOptions(),
    *,
    home: Path | None = None,
    at_once: int = 0,
) -> HostsAccess:
    """Return access to every host of a hosts file, or to hosts by their names. Raises UsageError.

    `at_once` is how many hosts the caller contacts at the same time. TCP connections to that many
    are started before the SSH library is imported, because the import takes longer than all the
    rest.

    Hosts of a file that are a cluster's nodes are reached with the cluster's key and ssh_config,
    without a call to EC2 (see `cluster_of`; `home` holds the clusters' folders). Other hosts are
    reached as `ssh` reaches them. Each is offered the login's key, or without it the keys that its
    own settings name (see KeyRing); that key is not for jump hosts. Host keys come from its own
    known_hosts files and are never accepted unverified.
    """
    path = hosts if isinstance(hosts, Path) else None
    names = hosts if not isinstance(hosts, Path) else read_hosts_file(hosts).hosts
    config = read_user_config(Path.home() / ".ssh", system=SYSTEM_CONFIG)
    folder = cluster_of(path, names, config, home) if home and path else None
    if folder:
        return open_nodes(folder, names, login, explain=_name_a_key, at_once=at_once)
    targets = tuple(config.target(host, login.user) for host in names)
    dial.start_connecting(targets[:at_once])

    from clusterctl.transport.connections import Connections
    from clusterctl.transport.keys import HostKeysByHost, KeyRing
    from clusterctl.transport.session import Identity

    hops, own = with_jumps(targets), set(targets)
    of_files = {hop: config.key_sources(hop) for hop in hops}
    ring = KeyRing(config.folder)
    keys = {
        hop: [ring.named(login.key, of.agent)] if login.key and hop in own else ring.keys(of)
        for hop, of in of_files.items()
    }
    identity = Identity((), keys)
    host_keys = HostKeysByHost({hop: config.known_hosts_files(hop) for hop in hops})
    old = None
    if home and path and not config.names_any(names):
        old = old_file_error(path, names, home)
    if old and not any(map(identity.keys_for, targets)):
        raise old

    def explain(target: Target, error: HostError) -> HostError:
        if old:
            error.hint = f"{old.message}; {old.hint}"
            return error
        return _name_a_key(target, error) if target in targets else error

    connections = Connections(identity, host_keys, login.connect_timeout_s, explain)
    return HostsAccess(targets, connections)


def hosts_in(nodes: str) -> list[str]:
    """Return the hosts that ClusterShell's NodeSet has for `node[1-9]` or `@group`. Raise
    UsageError, or MissingTool."""
    try:
        from ClusterShell.NodeSet import NodeSet, NodeSetException  # type: ignore[import-untyped]
        from ClusterShell.NodeUtils import (  # type: ignore[import-untyped]
            GroupResolverError,
            GroupSourceError,
        )
    except ImportError:
        # A head node has none (bootstrap/head_programs.py).
        raise MissingTool(
            f"this machine has no ClusterShell, which reads {nodes}", "name the hosts in a file"
        ) from None

    too_many = UsageError(f"{nodes} names more than {MOST_HOSTS} hosts", "name fewer at a time")
    ranges = re.findall(r"[\[,](\d{1,4000})-(\d{1,4000})(?=[],/])", nodes, re.ASCII)
    if any(int(last) - int(first) >= MOST_HOSTS for first, last in ranges):
        raise too_many
    try:
        named = NodeSet(nodes)
        if len(named) > MOST_HOSTS:
            raise too_many
        found = [*named]
    except (NodeSetException, GroupResolverError, GroupSourceError, ValueError) as error:
        raise UsageError(  # a ValueError: a number of thousands of digits
            f"cannot read the hosts {nodes[:200]}: {f'{error}'[:200]}",
            "write them as node[1-9,12] or @GROUP; `nodeset --list` lists ClusterShell's groups",
        ) from None
    if not found:
        raise UsageError(
            f"{shlex.quote(nodes)} names no host", "write them as node[1-9,12] or @GROUP"
        )
    # Group sources and squeue are other people's programs: their names are read as a file's are.
    try:
        return [parse_host(host, f"the hosts {nodes}") for host in found]
    except UsageError as error:
        error.hint = (
            "name only hosts and addresses, as node[1-9,12] or @GROUP; the user is the option "
            "--user, and the port is `Port` in ~/.ssh/config"
        )
        raise


def _name_a_key(target: Target, error: HostError) -> HostError:
    """Return the error of a host that refused every key with the options that name another."""
    # With a cause it is the error of the jump host, for which these options are not.
    if isinstance(error, KeyRefused) and not isinstance(error.__cause__, HostError):
        keys = "name the key and user that the host knows: --key FILE, --user NAME"
        error.hint = "; or ".join(filter(None, [keys, error.hint]))
    return error


def open_nodes(
    folder: ClusterFolder,
    hosts: Sequence[str],
    login: LoginOptions = LoginOptions(),
    *,
    explain: Callable[[Target, HostError], HostError] = lambda target, error: error,
    at_once: int = 0,
) -> HostsAccess:
    """Return access to nodes of a cluster, by the files in its folder and without EC2.

    `explain` is described at Connections, `at_once` at open_hosts. Raises UsageError, MissingTool
    as cluster_key does.
    """
    targets = _nodes(folder, hosts, login.user)
    dial.start_connecting(targets[:at_once])

    from clusterctl.operations.access import cluster_key
    from clusterctl.transport.connections import Connections
    from clusterctl.transport.keys import KeyRing, KnownHostKeys
    from clusterctl.transport.session import Identity

    given = {}
    if login.key:
        key = KeyRing(folder.path).named(login.key, os.environ.get("SSH_AUTH_SOCK", ""))
        given = dict.fromkeys(targets, [key])
    others = [hop for hop in with_jumps(targets) if hop not in given]
    identity = Identity((cluster_key(folder),) if others else (), given)
    host_keys = KnownHostKeys(
        [folder.known_hosts],
        renew=f"run `clusterctl up {folder.name}` again, with its options: "
        "it learns the key from the instance's console",
    )
    connections = Connections(identity, host_keys, login.connect_timeout_s, explain)
    return HostsAccess(targets, connections)


def cluster_of(
    path: Path, hosts: Sequence[str], config: UserConfig, home: Path
) -> ClusterFolder | None:
    """Return the folder of the cluster whose nodes these hosts are.

    None if they are to be reached as in ~/.ssh/config. The hosts file in a cluster's folder
    belongs to that cluster. For any other file, the folder's ssh_config must have all hosts, and
    ~/.ssh/config must name none of them: two networks may have the same addresses. Raises
    UsageError if several clusters have these hosts.
    """
    own = ClusterFolder(path.resolve().parent)
    if own.ssh_config.exists() and own.key.exists() and path.resolve() == own.hosts:
        return own
    if config.names_any(hosts):
        return None
    folders = (ClusterFolder(found.parent) for found in sorted(home.glob("*/ssh_config")))
    found = [folder for folder in folders if folder.node_names().keys() >= set(hosts)]
    if len(found) > 1:
        raise UsageError(
            f"the hosts of {path} are nodes of {' and of '.join(one.name for one in found)}",
            f"name the hosts file that is meant: {' or '.join(str(one.hosts) for one in found)}",
        )
    return found[0] if found else None


def old_file_error(path: Path, hosts: Sequence[str], home: Path) -> UsageError | None:
    """Return the error for a hosts file of which a part are nodes of a cluster: one that was
    printed before a node was replaced, or has other hosts too. None for any other file."""
    for folder in (ClusterFolder(found.parent) for found in sorted(home.glob("*/ssh_config"))):
        names, cluster = folder.node_names(), folder.name
        others = [host for host in hosts if host not in names]
        if own := [host for host in hosts if host in names]:
            are = "is a node" if len(own) == 1 else "are nodes"
            no = "is" if len(others) == 1 else "are"
            return UsageError(
                f"the key of {cluster} is not used: in {path}, {fold_hosts(own)} {are} of "
                f"{cluster}, and {fold_hosts(others)} {no} not",
                f"if the file is older than a node, compare: clusterctl hosts {cluster}; or name a "
                "key that all hosts know: --key FILE",
            )
    return None


def _nodes(folder: ClusterFolder, hosts: Sequence[str], user: str | None) -> tuple[Target, ...]:
    """Return the targets by the cluster's ssh_config, under the names that the caller gave."""
    config = read_user_config(folder.path, folder.ssh_config.name)
    names = folder.node_names()

    return tuple(replace(config.target(names.get(host, host), user), host=host) for host in hosts)
