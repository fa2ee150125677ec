"""The record of a running lab, `HOME/lab/lab.json`, through which other processes find it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterctl.domain.errors import LabError
from clusterctl.domain.files import write_file
from clusterctl.node.procfs import read_stat

FAULTS_PAGE, INTERRUPTIONS_PAGE = "/_lab/faults", "/_lab/interruptions"
# Default size of a host's /data.
VOLUME_BYTES = 2**30
# The second account is for rehearsing access from another account: it sees nothing of the first.
ACCOUNTS = ("123456789012", "210987654321")


@dataclass(frozen=True)
class LabOptions:
    """How to start a lab. `home` is an absolute path. `port` 0 and `network` None: a free one."""

    home: str
    port: int
    region: str
    volume_bytes: int = VOLUME_BYTES
    network: str | None = None


@dataclass(frozen=True)
class AccessKey:
    """An account's long-lived key. As on AWS, a request belongs to the account of its key's id."""

    account: str
    id: str
    secret: str


@dataclass(frozen=True)
class LabRecord:
    """A running lab.

    `pid_started` is in clock ticks since boot. `mode` is root, subuid or single. `proxy_command` is
    ssh's ProxyCommand, with %h and %p; None where the hosts' addresses answer directly. `link` is
    this machine's network link into the lab, None where there is none. `keys` has one key for each
    of ACCOUNTS, in that order. `secret` is the password of the lab's pages, below /_lab/.
    `storage_url` is S3 as hosts reach it. `tcp` is the hosts' congestion control. `cgroups` are the
    folders of the control groups that limit the hosts' processes, and their memory to
    `memory_bytes` together; empty and 0 where the lab has no control groups.
    """

    home: Path
    endpoint_url: str
    region: str
    pid: int
    pid_started: int
    mode: str
    proxy_command: tuple[str, ...] | None
    network: str
    public_network: str
    link: str | None
    started_at: str
    keys: tuple[AccessKey, ...]
    secret: str
    volume_bytes: int = VOLUME_BYTES
    storage_url: str = ""
    tcp: str = ""
    cgroups: tuple[str, ...] = ()
    memory_bytes: int = 0

    def environment_of(self, account: str) -> dict[str, str]:
        """Return the variables through which AWS's programs and s5cmd use the lab as an account."""
        key = next(key for key in self.keys if key.account == account)
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "S3_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": key.id,
            "AWS_SECRET_ACCESS_KEY": key.secret,
            "AWS_DEFAULT_REGION": self.region,
        }

    def key_named(self, id: str | None) -> AccessKey:
        """Return the key with this id, or the first account's key if the lab has no such key."""
        return next((key for key in self.keys if key.id == id), self.keys[0])


def folder_of(home: Path) -> Path:
    return home / "lab"


def read_record(home: Path) -> LabRecord | None:
    """Return the lab that runs for this home; None if none does, even if a record is left.

    Raise LabError if a lab runs but another version of clusterctl wrote its record, and if the
    record cannot be read.
    """
    file = folder_of(home) / "lab.json"
    try:
        fields = json.loads(file.read_text())
        pid = fields["pid"]
        if process_started(pid) != fields["pid_started"]:
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise LabError(
            f"whether the lab runs is not known: cannot read {file}: {what}",
            f"`pgrep -af clusterctl.lab.server` shows each lab with its home: end that of {home}, "
            f"if there is one, with `kill PID`; then: rm {file}",
        ) from None
    try:
        proxy = fields.pop("proxy_command")
        fields["cgroups"] = tuple(fields["cgroups"])
        fields["keys"] = tuple(AccessKey(**key) for key in fields["keys"])
        return LabRecord(
            **{**fields, "home": home, "proxy_command": tuple(proxy) if proxy else None}
        )
    except (KeyError, TypeError, AttributeError):
        raise LabError(
            f"the lab that runs (process {pid}) was started by another version of clusterctl",
            f"end it with `kill {pid}`: its hosts go with it; then `clusterctl lab start`",
        ) from None


def write_record(record: LabRecord) -> None:
    """Replace the record in one step. Only its owner can read it, since it has the lab's keys."""
    text = json.dumps({**asdict(record), "home": str(record.home)}, indent=2)
    write_file(folder_of(record.home) / "lab.json", f"{text}\n")


def process_started(pid: int) -> int | None:
    """Return a process's start in clock ticks since boot; None if it is gone or a zombie.

    Pids are reused. A pid together with its start identifies a process.
    """
    try:
        fields = read_stat(f"/proc/{pid}")[1]
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
