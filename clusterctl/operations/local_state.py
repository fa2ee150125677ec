"""What a cluster's owner keeps between two commands: key, site, lock, and views of what exists."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Cluster, Node
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file
from clusterctl.ec2.instances import Instance, find_instances
from clusterctl.ec2.network.vpcs import is_local
from clusterctl.operations.access import needs_jump
from clusterctl.operations.folder import ClusterFolder
from clusterctl.transport.keys import load_key

if TYPE_CHECKING:
    from clusterctl.ec2.launch.attempt import SentLaunch
    from clusterctl.ec2.session import Clients


# ssh counts until sshd answers: the kernel of a frozen host still takes connections.
CONNECT_TIMEOUT_S = 10


def hosts_text(cluster: Cluster, gpus: Sequence[int] | None = None) -> str:
    """The hosts file: private addresses, head first. `gpus`: as counted, else as the type has.

    A node without GPU takes one rank: Horovod then runs on its CPU. Of one in quarantine there is a
    comment.
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
    """For `ssh -F`, or an Include line: `ssh demo-0`."""
    # By private address too: that is how the hosts file names them.
    known = [node for node in cluster.nodes if node.address]
    hosts = "".join(
        f"Host {node.name} {node.private_ip}\n    HostName {node.address}\n"
        + _way(node, cluster.head, folder, proxy_command)
        for node in known
    )
    names = " ".join(f"{node.name} {node.private_ip}" for node in known)
    return f"""\
# Written by `clusterctl up {cluster.name}`, and written anew by the next.
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
    if needs_jump(node, head):
        config = str(folder.ssh_config.absolute())
        if re.fullmatch(r"[\w/.+@=-]+", config):
            return f"    ProxyJump {head.name}\n"
        # ProxyJump starts another ssh with this file, whose name it does not quote.
        argv = ["ssh", "-F", config.replace("%", "%%"), "-W", "[%h]:%p", head.name]
        return f"    ProxyCommand {shlex.join(argv)}\n"
    if proxy_command:
        # %h and %p are ssh's; everything is one line for the user's shell.
        return f"    ProxyCommand {shlex.join(proxy_command)}\n    ProxyUseFdpass yes\n"
    return ""


def _quoted(path: Path) -> str:
    """A path as ssh_config takes it: spaces quoted, percent signs doubled."""
    text = str(path.absolute()).replace("%", "%%")
    if any(character in text for character in " \t\"'#\\"):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file in one step, readable by its owner only."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp makes it 0600.
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException as failure:
        Path(draft).unlink(missing_ok=True)
        if isinstance(failure, OSError):
            failure.filename = str(path)  # a full disk does not say which
        raise


@dataclass(frozen=True)
class NewKey:
    """An ed25519 key: the private half as OpenSSH keeps it, the public half as one line."""

    private: bytes
    public: str

    def __repr__(self) -> str:
        return f"NewKey({self.public!r})"


def new_key_pair(comment: str) -> NewKey:
    """A fresh key, without passphrase."""
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
    """The public half of the cluster's key; the private half only while it is not written yet."""

    public: str
    unwritten: bytes | None = None


def local_key(folder: ClusterFolder, name: str) -> LocalKey:
    """The key in the folder, or a fresh one that is nowhere yet. Raises UsageError."""
    comment = f"clusterctl-{name}"
    if folder.key.exists():
        key = load_key(folder.key)
        return LocalKey(f"{key.get_name()} {key.get_base64()} {comment}")
    pair = new_key_pair(comment)
    return LocalKey(pair.public, pair.private)


def keep_key(folder: ClusterFolder, key: LocalKey) -> None:
    """Write the key into the folder, unless it came from there."""
    if key.unwritten is not None:
        write_file(folder.key.with_name(folder.key.name + ".pub"), key.public + "\n")
        write_file(folder.key, key.unwritten)


@dataclass(frozen=True)
class Site:
    """Where a cluster is: EC2's region and endpoint, and the number of the AWS account.

    `account` is empty where an older version of clusterctl did not write it down.
    """

    endpoint: str
    account: str = ""

    def __str__(self) -> str:
        """One line, which parse_site reads."""
        return f"{self.endpoint}, account {self.account}" if self.account else self.endpoint

    def may_be(self, other: Site) -> bool:
        """Whether nothing that is known of the two tells them apart."""
        known = self.account and other.account
        return self.endpoint == other.endpoint and (not known or self.account == other.account)


def parse_site(text: str) -> Site:
    """Read `REGION at ENDPOINT, account NUMBER`. Older versions wrote no account."""
    match = re.fullmatch(r"(.*), account (\d{12})", text.strip(), re.ASCII)
    return Site(match[1], match[2]) if match else Site(text.strip())


def site_of(clients: Clients, instances: Sequence[Instance] = ()) -> Site:
    """Return where these clients ask. Instances of theirs say whose account it is, else STS.

    Raises AwsError.
    """
    account = next((one.owner_id for one in instances if one.owner_id), "")
    return Site(_endpoint(clients), account or clients.account_id)


def _endpoint(clients: Clients) -> str:
    meta = clients.ec2.meta
    url = meta.endpoint_url
    return f"{meta.region_name} at {'a local EC2' if is_local(url) else url}"


def kept_site(folder: ClusterFolder) -> Site | None:
    """Return where the cluster of this folder is; None where the folder does not say."""
    try:
        text = folder.site.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return parse_site(text) if text else None


def keep_site(folder: ClusterFolder, site: Site) -> None:
    """Remember where the cluster is."""
    write_file(folder.site, f"{site}\n")


def sent_launches(folder: ClusterFolder) -> tuple[SentLaunch, ...]:
    """The launches that are not settled. A file that nobody can read keeps no instance alive."""
    # Every command reads this module, and launches import ten others.
    from clusterctl.ec2.launch.attempt import read_launches

    try:
        return read_launches(folder.launch)
    except ClusterctlError:
        return ()


def note_end_seen(folder: ClusterFolder) -> None:
    """Nothing runs any more of what was launched from this folder: `down` has seen that."""
    folder.launch.unlink(missing_ok=True)
    folder.ssh_config.unlink(missing_ok=True)


def check_site(
    folder: ClusterFolder, clients: Clients, instances: Sequence[Instance] | None = None
) -> None:
    """Raises UsageError where the cluster of this folder is in another region or account.

    Otherwise `down` with the wrong --profile would find nothing and take that for success, and
    `up` would launch a second cluster. `instances`: what was found, where someone has looked.
    Raises AwsError where nobody says which account it is.
    """
    kept = kept_site(folder)
    if kept is None:
        return
    if kept.endpoint != _endpoint(clients):
        raise _elsewhere(folder, kept, Site(_endpoint(clients)))
    here = site_of(clients, instances or ())
    if not kept.may_be(here):
        raise _elsewhere(folder, kept, here)
    if not kept.account:
        _complete(folder, clients, here, instances)


def check_account(folder: ClusterFolder, clients: Clients) -> None:
    """Raises UsageError where the cluster of this folder is known to be in another account.

    For commands that look in several regions.
    """
    kept = kept_site(folder)
    if kept and kept.account not in ("", clients.account_id):
        raise _elsewhere(folder, kept, Site(kept.endpoint, clients.account_id))


def _elsewhere(folder: ClusterFolder, kept: Site, here: Site) -> UsageError:
    name = folder.path.name
    if kept.endpoint == here.endpoint:
        message = f"cluster {name} is in account {kept.account}, not in account {here.account}"
    else:
        message = f"cluster {name} is in {kept}, not in {here}"
    return UsageError(
        message,
        "use the same --region, --profile, credentials and --lab as for `up`; "
        f"if that cluster is gone for good, delete {folder.path}",
    )


def _complete(
    folder: ClusterFolder, clients: Clients, here: Site, found: Sequence[Instance] | None
) -> None:
    """Add the account to a folder of an older version, once something proves that it is this one.

    Names are no proof: another account may have a cluster of the same name.
    """
    from clusterctl.ec2.cluster_resources import find_key_pairs

    name = folder.path.name
    instances = find_instances(clients.ec2, name) if found is None else found
    pinned = folder.known_hosts.read_text().split() if folder.known_hosts.exists() else ()
    own = any(one.node.instance_id in pinned for one in instances)
    if not own and folder.key.exists():
        key = local_key(folder, name).public
        own = any(pair.holds(key) for pair in find_key_pairs(clients.ec2, name))
    if not own:
        raise UsageError(
            f"{folder.site}, which an older version of clusterctl wrote, does not say in which "
            f"account cluster {name} is, and account {here.account} has no node and no key pair "
            "that is known to be of it",
            "use the same --profile or credentials as for `up`; "
            f"if that cluster is gone for good, delete {folder.path}",
        )
    keep_site(folder, here)


@contextmanager
def locked(folder: ClusterFolder) -> Iterator[None]:
    """One `up` or `down` at a time. Makes the folder. Raises ClusterctlError."""
    lock = folder.path / "lock"
    try:
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.path.chmod(0o700)
        opened = lock.open("w")
    except OSError as error:
        # Another user's, most often root's: `gc` goes on with the other clusters.
        raise ClusterctlError(
            f"cannot write to {folder.path}: {error.strerror}",
            f"see whose it is, and whether its disk is full: ls -ld {folder.path}",
        ) from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClusterctlError(
                f"another clusterctl is at work on {folder.path.name}", "wait for it to end"
            ) from None
        try:
            yield
        finally:
            # Refused before anything was made: leave no trace.
            if [path.name for path in folder.path.glob("*")] == [lock.name]:
                shutil.rmtree(folder.path)


def forget(folder: ClusterFolder) -> None:
    """Remove the folder and all that is in it."""
    shutil.rmtree(folder.path, ignore_errors=False)
