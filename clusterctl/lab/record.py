"""What a running lab leaves for others to find: `HOME/lab/lab.json`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from clusterctl.domain.errors import LabError

VOLUME_BYTES = 2**30
# The second one is there for rehearsals of what another account sees: nothing of the first one's.
ACCOUNTS = ("123456789012", "210987654321")


@dataclass(frozen=True)
class LabOptions:
    """How to start a lab. `home` is absolute; `port` 0, `network` None: a free one."""

    home: str
    port: int
    region: str
    volume_bytes: int = VOLUME_BYTES
    network: str | None = None


@dataclass(frozen=True)
class AccessKey:
    """An account's long-lived key. As on AWS, its id says which account asks."""

    account: str
    id: str
    secret: str


@dataclass(frozen=True)
class LabRecord:
    """A running lab.

    `proxy_command` is for ssh, with %h and %p; None where addresses answer. `storage_url` is where
    hosts reach S3, `tcp` is their congestion control; `cgroups` limit their processes and all their
    memory, to `memory_bytes`, where there are any. `keys` has one for each of ACCOUNTS, in that
    order. `secret` opens the lab's own pages, below /_lab/.
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

    @property
    def environment(self) -> dict[str, str]:
        return self.environment_of(ACCOUNTS[0])

    def environment_of(self, account: str) -> dict[str, str]:
        """What AWS's programs and s5cmd need to talk to the lab as one of its accounts."""
        key = next(key for key in self.keys if key.account == account)
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "S3_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": key.id,
            "AWS_SECRET_ACCESS_KEY": key.secret,
            "AWS_DEFAULT_REGION": self.region,
        }

    def key_named(self, id: str | None) -> AccessKey:
        """The key with this id; the first account's where the lab has none such."""
        return next((key for key in self.keys if key.id == id), self.keys[0])


def folder_of(home: Path) -> Path:
    return home / "lab"


def read_record(home: Path) -> LabRecord | None:
    """The lab that runs for this home; None if none does, whatever a dead one left behind.

    Raises LabError of one that runs and that another version of clusterctl has started.
    """
    try:
        fields = json.loads((folder_of(home) / "lab.json").read_text())
        pid = fields["pid"]
        if process_started(pid) != fields["pid_started"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
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
    """Replace the file in one step: a reader never sees half of it. Its keys are the owner's."""
    folder = folder_of(record.home)
    new = folder / "lab.json.new"
    new.touch(0o600)
    new.write_text(json.dumps({**asdict(record), "home": str(record.home)}, indent=2) + "\n")
    new.replace(folder / "lab.json")


def process_started(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: tells it from another with its old pid."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name, in parentheses, may hold spaces and parentheses.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state == "Z" else int(fields[18])
