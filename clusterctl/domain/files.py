"""Files on this machine, and the folder of a cluster, ~/.clusterctl/NAME. `down` works without
it."""

from __future__ import annotations

import enum
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.domain.errors import ClusterctlError

T = TypeVar("T")


class MadeByNewer(ValueError):
    """A file has a part that only a newer clusterctl can have written."""


def check_known(data: Any, known: Any) -> None:
    """Raise MadeByNewer if a file's JSON data has a key that `known`, what was read of it, has not:
    it would be lost when the file is written again."""
    if isinstance(data, dict) and isinstance(known, dict):
        for key in data:
            if key not in known:
                raise MadeByNewer(f"{key!r} is not known here")
            check_known(data[key], known[key])
    elif isinstance(data, list) and isinstance(known, list):
        for pair in zip(data, known):
            check_known(*pair)


def read_file(path: Path, parse: Callable[[bytes], T], hint: str) -> T | None:
    """Return what `parse` makes of a file's content; None without the file.

    Raises ClusterctlError with the file's name, the reason and `hint` if it cannot be read or
    `parse` raises ValueError: a damaged file is not an empty one, and MadeByNewer is not damage.
    """
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except MadeByNewer as error:
        raise ClusterctlError(
            f"{path} was made by a newer clusterctl: {error}",
            "use that version here, too: this one would lose what it does not know",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterctlError(f"cannot read {path}: {reason}", hint) from None


class Lock(enum.Enum):
    """Whether this process has a lock, or another one. The file system may have no such locks: NFS
    has none of folders, since flock becomes a record lock there, of a file open for writing."""

    HELD = enum.auto()
    BUSY = enum.auto()
    MISSING = enum.auto()


@contextmanager
def file_lock(
    path: Path, *, creates: bool = False, shared: bool = False, waits: bool = False
) -> Iterator[Lock]:
    """Lock a file or folder against other processes for the block. With `creates` the path is that
    of a file, which is made if there is none.

    Yields whether it is locked: with `waits` this waits for another process. Raises OSError if it
    cannot be opened.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT if creates else os.O_RDONLY, 0o666)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(opened, kind if waits else kind | fcntl.LOCK_NB)
            # Who had it may have deleted the file: whoever comes next makes a new one, and a lock
            # of the old file would keep no one out.
            is_same = os.path.samestat(os.fstat(opened), path.stat())
            state = Lock.HELD if is_same else Lock.BUSY
        except (BlockingIOError, FileNotFoundError):
            state = Lock.BUSY
        except OSError:
            state = Lock.MISSING
        yield state
    finally:
        os.close(opened)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file that only its owner can read, on disk when this returns.

    It is one write, so that the lines of two commands do not get mixed. A last line that a crash
    has cut short stays a line of its own. Raises OSError.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.lseek(file, 0, os.SEEK_END)
        is_cut = size and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, b"\n" * bool(is_cut) + f"{line}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file atomically. Only its owner can read it. Raises OSError with its path."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp creates the file with mode 0600.
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
            failure.filename = str(path)  # a write to a full disk raises OSError without a path
        raise


@dataclass(frozen=True)
class ClusterFolder:
    """The paths of the files in one cluster's folder. This class writes none of them."""

    path: Path

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.path.name

    @property
    def home(self) -> Path:
        """The folder that holds the folders of all clusters, and what is kept for all of them."""
        return self.path.parent

    @property
    def key(self) -> Path:
        """The private key that logs in to the nodes (0600); the public half is in `key`.pub."""
        return self.path / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The nodes' known host keys, with the id of the instance that each belongs to."""
        return self.path / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """How `ssh` reaches the nodes."""
        return self.path / "ssh_config"

    @property
    def hosts(self) -> Path:
        """The hosts file: private addresses and slots of the nodes in service."""
        return self.path / "hosts"

    @property
    def site(self) -> Path:
        """The region, endpoint and account that the cluster is in, on one line."""
        return self.path / "account"

    @property
    def launch(self) -> Path:
        """The RunInstances requests whose outcome is not known.

        The file exists, even with no request in it, from the first launch until `down` has found
        that nothing of the cluster is left.
        """
        return self.path / "launch.json"

    @property
    def creations(self) -> Path:
        """When `up` last began to make a key pair, a group or an address, as JSON."""
        return self.path / "creations.json"

    @property
    def end(self) -> Path:
        """When a limit ends the cluster, as JSON; there is no such file without a limit."""
        return self.path / "end.json"

    @property
    def fetched(self) -> Path:
        """Into which folders of this machine `fetch` put which jobs: a line of JSON each."""
        return self.path / "fetched.jsonl"

    def failed_job(self, job_id: str) -> Path:
        """What was fetched by itself of a failed job. It is no cluster's folder: `down` deletes
        that, and this may be the only copy of the log."""
        return self.home / "failed_jobs" / job_id

    @property
    def launched(self) -> bool:
        """Whether a launch was sent from here and `down` has not yet removed all of the cluster."""
        return self.launch.exists() or self.ssh_config.exists()

    def node_addresses(self) -> dict[str, str]:
        """Return the address in ssh_config of each node, by its name. Raises OSError."""
        return {node: names[-1] for node, names in self._nodes().items()}

    def node_names(self) -> dict[str, str]:
        """Return the node's name for each name and address in ssh_config. Raises OSError."""
        return {name: node for node, names in self._nodes().items() for name in names}

    def _nodes(self) -> dict[str, list[str]]:
        """Return all names of each node in ssh_config, the address last, by the first of them."""
        found: dict[str, list[str]] = {}
        names: list[str] = []
        for line in self.ssh_config.read_text(errors="replace").splitlines():
            word, *values = line.split() or [""]
            if word == "Host":
                names = values
            elif word == "HostName" and names:  # the last block is of all nodes, without one
                found[names[0]] = [*names, *values]
        return found
