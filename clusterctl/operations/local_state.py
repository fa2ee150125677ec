"""The files in a cluster's folder: key, launches, end, lock, and views written from EC2's state.

The views are the hosts file, ssh_config and known_hosts. They follow what was done to the nodes
elsewhere: in AWS's console, or by another machine.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Cluster, Node, NodeState
from clusterctl.domain.errors import ClusterctlError, MissingTool
from clusterctl.domain.files import ClusterFolder, Lock, file_lock, read_file, write_file
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file, parse_hosts_file
from clusterctl.domain.timeouts import Clock
from clusterctl.node.record import from_json, to_json
from clusterctl.node.untrusted import text_in

if TYPE_CHECKING:
    from clusterctl.ec2.launch.attempt import SentLaunch


# Seconds for ssh's ConnectTimeout, which includes the wait for sshd's banner. That notices a frozen
# host, whose kernel still accepts TCP connections.
CONNECT_TIMEOUT_S = 10


def hosts_text(cluster: Cluster, gpus: Sequence[int] | None = None) -> str:
    """Return the hosts file: the private addresses and slots of the nodes in service, head first.

    `gpus` are the GPUs counted on each node in service; None takes those of the instance type. A
    node without a GPU has one slot, for a rank on its CPU. A node in quarantine has a comment line.
    """
    counted = gpus if gpus is not None else [node.gpus for node in cluster.in_service]
    entries = tuple(
        HostSlots(node.private_ip, max(count, 1))
        for node, count in zip(cluster.in_service, counted)
    )
    return format_hosts_file(HostsFile(entries)) + "".join(
        f"# {node.private_ip}: {node.name}, in quarantine since {node.quarantined}\n"
        for node in cluster.nodes
        if node not in cluster.in_service
    )


def ssh_config_text(
    cluster: Cluster, folder: ClusterFolder, proxy_command: tuple[str, ...] = ()
) -> str:
    """Return a configuration for `ssh -F` or an Include line, so that `ssh demo-0` works."""
    # The hosts file has private addresses, so these are names of the nodes, too.
    known = [node for node in cluster.nodes if node.address]
    hosts = "".join(
        f"Host {node.name} {node.private_ip}\n    HostName {node.address}\n"
        + _way(node, cluster.head, folder, proxy_command)
        for node in known
    )
    names = " ".join(f"{node.name} {node.private_ip}" for node in known)
    return f"""\
# Written by `clusterctl up {cluster.name}`, and written again by the next.
{hosts}Host {names}
    User {cluster.ssh_user}
    IdentityFile {_quoted(folder.key)}
    IdentitiesOnly yes
    UserKnownHostsFile {_quoted(folder.known_hosts)}
    StrictHostKeyChecking yes
    ConnectTimeout {CONNECT_TIMEOUT_S}
    ServerAliveInterval 10
    ServerAliveCountMax 3
"""


def _way(node: Node, head: Node, folder: ClusterFolder, proxy_command: tuple[str, ...]) -> str:
    """Return the lines of a node's Host block that say how to connect; empty for a direct dial."""
    if node.needs_jump(head):
        config = str(folder.ssh_config.absolute())
        if re.fullmatch(r"[\w/.+@=-]+", config):
            return f"    ProxyJump {head.name}\n"
        # ProxyJump starts another ssh with this configuration file and does not quote its path.
        argv = ["ssh", "-F", config.replace("%", "%%"), "-W", "[%h]:%p", head.name]
        return f"    ProxyCommand {shlex.join(argv)}\n"
    if proxy_command:
        # ssh fills in %h and %p, and has the user's shell run the line.
        return f"    ProxyCommand {shlex.join(proxy_command)}\n    ProxyUseFdpass yes\n"
    return ""


def _quoted(path: Path) -> str:
    """Return an absolute path as ssh_config needs it: spaces quoted, percent signs doubled."""
    text = str(path.absolute()).replace("%", "%%")
    if any(character in text for character in " \t\"'#\\"):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


@dataclass(frozen=True)
class NewKey:
    """An ed25519 key pair: the private key in OpenSSH's format, the public key as one line."""

    private: bytes
    public: str

    def __repr__(self) -> str:
        # The private key must not get into logs and tracebacks.
        return f"NewKey({self.public!r})"


def new_key_pair(comment: str) -> NewKey:
    """Return a new key pair without a passphrase."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return NewKey(private, f"{public.decode()} {comment}")


@dataclass(frozen=True)
class LocalKey:
    """The cluster's key: the public half as one line, and the private half while it is in no file.

    `unwritten` is None if the key was read from the folder.
    """

    public: str
    unwritten: bytes | None = None


def local_key(folder: ClusterFolder, name: str) -> LocalKey:
    """Return the key in the folder, or a new one that `keep_key` has to write.

    Raises MissingTool if the key file cannot be used.
    """
    comment = f"clusterctl-{name}"
    if folder.key.exists():
        # It loads paramiko, which takes most of the start of commands that log in nowhere.
        from clusterctl.operations.access import cluster_key

        key = cluster_key(folder)
        return LocalKey(f"{key.get_name()} {key.get_base64()} {comment}")
    pair = new_key_pair(comment)
    return LocalKey(pair.public, pair.private)


def public_key(folder: ClusterFolder) -> str:
    """Return the public half of the key in the folder as one line; empty if there is no such key,
    or it cannot be used: that must not keep `down` from removing instances."""
    with suppress(MissingTool):
        return local_key(folder, folder.name).public if folder.key.exists() else ""
    return ""


def keep_key(folder: ClusterFolder, key: LocalKey) -> None:
    """Write a new key into the folder. A key that was read from there is kept."""
    if key.unwritten is not None:
        write_file(folder.key.with_name(folder.key.name + ".pub"), key.public + "\n")
        write_file(folder.key, key.unwritten)


def sent_launches(folder: ClusterFolder) -> tuple[SentLaunch, ...]:
    """Return the launches whose outcome is not known; none if the file cannot be read.

    An unreadable file must not keep `down` and `gc` from removing instances.
    """
    # Imported here because it imports ten other modules, and every command imports this one.
    from clusterctl.ec2.launch.attempt import read_launches

    try:
        return read_launches(folder.launch)
    except ClusterctlError:
        return ()


def may_be_launching(folder: ClusterFolder) -> bool:
    """Return whether a launch of unknown outcome was sent a short time ago, or may have been: the
    record of launches cannot be read."""
    from clusterctl.ec2.launch.attempt import UNKNOWN_FOR_S, read_launches

    try:
        recent = time.time() - UNKNOWN_FOR_S
        return any(one.sent_at > recent for one in read_launches(folder.launch))
    except ClusterctlError:
        return True


def why_locked(lock: Path) -> str:
    """Return that a command holds the lock, or why that is not known; empty if none does.

    Takes a shared lock for a moment, so that concurrent `gc` runs do not disturb each other.
    """
    at_work = "a clusterctl on this machine is at work on it"
    try:
        with file_lock(lock, shared=True) as state:
            if state is Lock.MISSING:
                return f"whether {at_work} is not known: {lock} cannot be locked"
            return f"{at_work}{_holder(lock)}" if state is Lock.BUSY else ""
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"whether {at_work} is not known: {lock}: {error.strerror}"


def _holder(lock: Path) -> str:
    """Return ` (process 12 on HOST)` for a lock that a command holds; empty if it does not tell."""
    text = text_in(lock)
    return f" ({text})" if re.fullmatch(r"process \d+ on [\w.-]+", text) else ""


def record_removed(folder: ClusterFolder) -> None:
    """Record that nothing launched from this folder exists any more (see `ClusterFolder.launched`).

    Deletes the records of launches and creations, and ssh_config.
    """
    folder.launch.unlink(missing_ok=True)
    folder.creations.unlink(missing_ok=True)
    folder.ssh_config.unlink(missing_ok=True)


@dataclass(frozen=True)
class _LimitEnd:
    """When a limit ends the cluster, and which one: `--budget 5`."""

    ends_at: datetime
    by: str

    def __post_init__(self) -> None:
        if not self.by.isprintable():
            raise ValueError(f"by: not a limit: {self.by!r}")


def keep_end(folder: ClusterFolder, ends_at: datetime | None, by: str) -> None:
    """Record in the folder when a limit ends the cluster; None if no limit does.

    It is for the user's information only: a failure to write raises nothing.
    """
    with suppress(OSError):
        if ends_at is None:
            folder.end.unlink(missing_ok=True)
        else:
            write_file(folder.end, to_json(_LimitEnd(ends_at, by)) + "\n")


def kept_end(folder: ClusterFolder, now: datetime) -> str:
    """Return when a limit would have ended a cluster that is gone, by its folder.

    Empty if no limit would have ended it by `now`.
    """
    try:
        end = read_file(folder.end, partial(from_json, _LimitEnd), "")
    except ClusterctlError as error:
        return f"gone; it is not known when its limit would have ended it: {error.message}"
    if end is None or end.ends_at > now:
        return ""
    option = end.by.partition(" ")[0]
    return f"gone; its {option} would have ended it at {end.ends_at:%Y-%m-%d %H:%M} UTC"


# `gc` takes the lock of every folder, for an instant: that is no reason to refuse a command.
LOCK_WITHIN_S = 0.5


@contextmanager
def locked(folder: ClusterFolder, clock: Clock = Clock()) -> Iterator[None]:
    """Hold the folder's lock, so that one command at a time changes the cluster.

    Creates the folder, and deletes it again if nothing else was written into it. Raises
    ClusterctlError if another command has the lock or the folder cannot be written.
    """
    lock = folder.path / "lock"
    until = clock.monotonic() + LOCK_WITHIN_S
    held = ExitStack()
    while True:
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.path.chmod(0o700)
            state = held.enter_context(file_lock(lock, creates=True))
            if state is Lock.MISSING:
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        except OSError as error:
            # Most often the folder belongs to root. As a ClusterctlError, it does not stop `gc`
            # from going on with other clusters.
            folders = (folder.path, *folder.path.parents)
            there = next(one for one in folders if os.access(one, os.F_OK))
            # Without the cluster's key in it another folder would be of no use.
            home, named = (shlex.quote(str(one)) for one in (folder.home, there))
            copied = f" after cp -r {home} DIR" if folder.path.exists() else ""
            raise ClusterctlError(
                f"cannot write to {folder.path}: {error.strerror}",
                f"see whose it is, and whether its disk is full: ls -ld {named}; or have another "
                f"folder used{copied}: CLUSTERCTL_HOME=DIR",
            ) from None
        if state is Lock.HELD:
            break
        held.close()
        if clock.monotonic() > until:
            holder = _holder(lock)
            hint = f"; if it stands still: ps -fp {holder.split()[1]}" if holder else ""
            raise ClusterctlError(
                f"another clusterctl{holder} is at work on {folder.name}",
                f"wait for it to end{hint}",
            )
        clock.sleep(0.02)
    with held:
        try:
            with suppress(OSError):  # a full disk
                lock.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            yield
        finally:
            with suppress(OSError):
                os.truncate(lock, 0)
            # The command was refused before it wrote anything, so the folder is not needed.
            if [path.name for path in folder.path.glob("*")] == [lock.name]:
                shutil.rmtree(folder.path)


def delete_folder(folder: ClusterFolder) -> None:
    """Delete the folder with all its files."""
    shutil.rmtree(folder.path)


def follow_addresses(
    cluster: Cluster,
    folder: ClusterFolder,
    proxy_command: tuple[str, ...] = (),
    leaving: Sequence[Node] = (),
) -> bool:
    """Write ssh_config and known_hosts again if a running node has another address than there.

    EC2 gives an instance a new public address at each start. The host keys that are known for the
    same instance id stay valid, also those of nodes that are `leaving`. Returns whether the files
    were written: not if another command has the folder's lock, which may be about to write them,
    or if the folder cannot be written.
    """
    if not folder.ssh_config.exists():
        return False
    known = folder.node_addresses()
    running = [node for node in cluster.nodes if node.state is NodeState.RUNNING]
    if all(known.get(node.name, node.address) == node.address for node in running):
        return False
    # Imported here because it imports ten other modules, and only this rare case needs it.
    from clusterctl.operations.known_hosts import LearntHostKeys

    try:
        with locked(folder):
            host_keys = LearntHostKeys(folder.known_hosts)
            write_file(folder.known_hosts, host_keys.text([*cluster.nodes, *leaving]))
            write_file(folder.ssh_config, ssh_config_text(cluster, folder, proxy_command))
    except (ClusterctlError, OSError):
        return False
    return True


def follow_members(cluster: Cluster, folder: ClusterFolder) -> bool:
    """Write the hosts file again if it has a node in quarantine, or one that is no longer in the
    cluster, or lacks one that came back.

    Another machine may have done that. Returns whether the file was written, as follow_addresses.
    """
    text = text_in(folder.hosts)
    resting = set(re.findall(r"^# ([\d.]+): .*, in quarantine since", text, re.MULTILINE))
    service = {node.private_ip for node in cluster.in_service}
    out = {node.private_ip for node in cluster.nodes} - service
    listed = set(re.findall(r"^[\d.]+", text, re.MULTILINE))
    gone = listed - service - out
    if not text or (resting <= out and not out & listed and not gone):
        return False
    try:
        with locked(folder):
            slots = {one.host: one.slots for one in parse_hosts_file(text).entries}
            # A node that another machine has just launched may not be ready, but counts if it may
            # be in the place of one that is gone.
            known = [
                one for one in cluster.nodes if gone or one.private_ip in {*slots, *resting, *out}
            ]
            now = replace(cluster, nodes=tuple(known))
            gpus = [slots.get(node.private_ip, node.gpus) for node in now.in_service]
            write_file(folder.hosts, hosts_text(now, gpus))
    except (ClusterctlError, OSError):
        return False
    return True
