"""What a cluster's owner keeps between two commands: key, account, lock."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.bootstrap.keypair import new_key_pair
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.ec2.network import is_local
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.views import write_file
from clusterctl.transport.keys import load_key

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


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


def account_of(client: EC2Client) -> str:
    """Region and endpoint, as one line."""
    url = client.meta.endpoint_url
    return f"{client.meta.region_name} at {'a local EC2' if is_local(url) else url}"


def check_account(folder: ClusterFolder, client: EC2Client) -> None:
    """Raises UsageError where the cluster of this folder lives elsewhere.

    Or else `down` with the wrong --region would find nothing, and call that success.
    """
    file = folder.path / "account"
    kept = file.read_text().strip() if file.exists() else ""
    if kept and kept != account_of(client):
        raise UsageError(
            f"cluster {folder.path.name} is in {kept}, not in {account_of(client)}",
            "use the same --region, --profile and --lab as for `up`; "
            f"if that cluster is gone for good, delete {folder.path}",
        )


def keep_account(folder: ClusterFolder, client: EC2Client) -> None:
    """Remember where the cluster is."""
    write_file(folder.path / "account", account_of(client) + "\n")


@contextmanager
def locked(folder: ClusterFolder) -> Iterator[None]:
    """One `up` or `down` at a time. Makes the folder. Raises ClusterctlError."""
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.path.chmod(0o700)
    lock = folder.path / "lock"
    with lock.open("w") as file:
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
