"""Reboot nodes and see them come back as they were, one after another."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome, last_line
from clusterctl.domain.units import count, format_duration
from clusterctl.operations.logs import refuse_while_training
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.operations.access import Access
    from clusterctl.transport.target import Target

# Made by the kernel, the init system or programs, for their own use.
_PSEUDO = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
        *("devtmpfs", "efivarfs", "fusectl", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal"),
        *("hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs"),
        *("squashfs", "sysfs", "tracefs"),
    )
)
_PASSING = ("/proc", "/sys", "/dev", "/run", "/snap", "/var/lib/docker", "/var/lib/containers")

_SCRIPT = """
printf 'boot-id %s\\n' "$(cat /proc/sys/kernel/random/boot_id)"
if command -v cloud-init >/dev/null 2>&1; then
    cloud-init status {wait} >/dev/null 2>&1 </dev/null
    echo "cloud-init $?"
fi
while read -r line; do echo "mount $line"; done </proc/mounts
if command -v nvidia-smi >/dev/null 2>&1; then
    timeout 20 nvidia-smi -L 2>/dev/null </dev/null | while read -r line; do echo "gpu $line"; done
fi
echo complete
"""


@dataclass(frozen=True)
class Mounted:
    source: str
    kind: str


@dataclass(frozen=True)
class BootState:
    """A node as it is in this boot. `mounts` by where; `cloud_init` is None without cloud-init."""

    boot_id: str
    mounts: Mapping[str, Mounted] = field(default_factory=dict)
    gpus: int = 0
    cloud_init: int | None = None


def boot_state_script(wait: bool) -> str:
    """For `sh -s`. `wait`: until cloud-init has ended."""
    return _SCRIPT.replace("{wait}", "--wait" if wait else "")


def parse_boot_state(host: str, stdout: str) -> BootState:
    """The script's output. Raises CommandFailed where it is not complete."""
    said: dict[str, list[str]] = {}
    for line in stdout.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)
    boot_id = (said.get("boot-id") or [""])[0].strip()
    if "complete" not in said or not boot_id:
        raise CommandFailed(host, "cannot read its boot id and mounts: no plain shell")
    status = (said.get("cloud-init") or [""])[0]
    return BootState(
        boot_id=boot_id,
        mounts=_mounts(said.get("mount", [])),
        gpus=sum(1 for line in said.get("gpu", []) if re.match(r"GPU \d+:", line)),
        cloud_init=int(status) if status.isascii() and status.isdigit() else None,
    )


def _mounts(lines: list[str]) -> dict[str, Mounted]:
    found: dict[str, Mounted] = {}
    for line in lines:
        words = [_plain(word) for word in line.split(" ")]
        if len(words) < 4:
            continue
        source, where, kind = words[:3]
        passing = any(where == one or where.startswith(f"{one}/") for one in _PASSING)
        if kind not in _PSEUDO and not passing:
            # The last one mounted is the one that is seen.
            found[where] = Mounted(source, kind)
    return found


def _plain(word: str) -> str:
    """/proc/mounts writes blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def differences(before: BootState, after: BootState, gpus: int) -> list[str]:
    """What is not as it was, in words. `gpus` is what the node's type has; 0 if that is unknown."""
    said = [
        f"{where} ({was.source}) is not mounted again"
        for where, was in before.mounts.items()
        if where not in after.mounts
    ]
    said += [
        f"{where} is {after.mounts[where].source} now, not {was.source}"
        for where, was in before.mounts.items()
        if where in after.mounts and not _same(was, after.mounts[where])
    ]
    wanted = gpus or before.gpus
    if after.gpus < wanted:
        said.append(f"nvidia-smi sees {after.gpus} of {count(wanted, 'GPU')}")
    if after.cloud_init not in (None, 0, 2) and before.cloud_init in (None, 0, 2):
        said.append(f"cloud-init failed (exit status {after.cloud_init})")
    return said


def _same(was: Mounted, now: Mounted) -> bool:
    # The numbers of disks are not kept: what was /dev/nvme1n1 may be /dev/nvme2n1 after a boot.
    disks = was.source.startswith("/dev/") and now.source.startswith("/dev/")
    return was.kind == now.kind and (disks or was.source == now.source)


BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
# Returns before the node goes down: a link that is cut under the command would take its answer.
REBOOT = (
    "sudo -n true && { setsid sudo -n sh -c 'sleep 0.5; systemctl reboot || reboot'"
    " </dev/null >/dev/null 2>&1 & }"
)
COMMAND_TIMEOUT_S = 20.0
# nvidia-smi takes its time where a GPU is gone.
LOOK_TIMEOUT_S = 60.0
# A node on its way up lets packets vanish: better ask again soon than wait for one answer.
CONNECT_TIMEOUT_S = 5.0
POLL_S = 0.5
DEFAULT_TIMEOUT_S = 600.0
# Mounts and drivers may come after SSH.
SETTLED_WITHIN_S = 60.0
# Not back yet: the last three are what a host says while it goes down or comes up.
NOT_YET = (HostUnreachable, ConnectionLost, CommandTimeout, KeyRefused)


class NotBack(CommandFailed):
    """The node did not come back in time, or never went."""


class NotAsItWas(CommandFailed):
    """The node is back, and lacks something that it had."""


class NotTouched(CommandFailed):
    """The node was not rebooted, since an earlier one is not back as it was."""


@dataclass(frozen=True)
class Rebooted:
    """A node that was told to reboot; `back_after_s` is None where nobody waited for it."""

    host: str
    back_after_s: float | None = None


Sent = Callable[[str], None]


def reboot(
    access: Access,
    indices: Sequence[int] | None = None,
    *,
    wait: bool = True,
    at_once: int | None = 1,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    force: bool = False,
    on_sent: Sent = lambda host: None,
    on_outcome: Callable[[HostOutcome[Rebooted]], None] = lambda outcome: None,
) -> FanoutResult[Rebooted]:
    """Reboot these nodes or all, the head node last. One outcome per node, in their order.

    `at_once` nodes at a time (None: all), the next ones when these are back as they were; after
    one that is not, the rest is NotTouched. A node that cannot be told to reboot stops nobody.
    Without `wait` all are told at once. `on_sent` hears of a host as it is told.

    Raises UsageError, JobRunning unless `force`, HostError of a head node that cannot be asked.
    """
    targets = access.select(indices)
    if not force:
        refuse_while_training(access, "a reboot ends it")
    done: dict[str, HostOutcome[Rebooted]] = {}
    told: set[str] = set()

    def note(outcome: HostOutcome[Rebooted]) -> None:
        done[outcome.host] = outcome
        on_outcome(outcome)

    def one(target: Target) -> Rebooted:
        sent = _send(access, target, on_sent)
        told.add(target.host)
        return _wait(access, sent, timeout_s) if wait else Rebooted(target.host)

    for batch in batches(targets, access.head, at_once if wait else None):
        fan_out(one, batch, max_workers=len(batch), on_outcome=note)
        late = [host for host in done if host in told and done[host].error]
        if late:
            for target in targets:
                if target.host not in done:
                    note(HostOutcome(target.host, error=_not_touched(target.host, late)))
            break
    return FanoutResult(tuple(done[target.host] for target in targets))


def batches(
    targets: Sequence[Target], head: Target, at_once: int | None
) -> Iterator[Sequence[Target]]:
    """Who is rebooted together, in order: at most `at_once`, the head node among the last."""
    workers = [target for target in targets if target != head]
    heads = [target for target in targets if target == head]
    # While the head node is away, nobody sees those behind it come back.
    apart = any(target.jump for target in workers)
    for group in (workers, heads) if apart else ([*workers, *heads],):
        size = at_once or max(len(group), 1)
        for first in range(0, len(group), size):
            yield group[first : first + size]


def _not_touched(host: str, late: Sequence[str]) -> NotTouched:
    return NotTouched(
        host,
        f"not rebooted, since {fold_hosts(late)} is not back as it was",
        "see what is wrong there first; then reboot the rest by their indices",
    )


@dataclass(frozen=True)
class _Sent:
    """The command is out. `before` is what must be there again, but for the boot id."""

    target: Target
    before: BootState
    at: float

    @property
    def host(self) -> str:
        return self.target.host


def _send(access: Access, target: Target, on_sent: Sent) -> _Sent:
    connections = access.connections
    looked = connections.run(
        target, "sh -s", timeout_s=LOOK_TIMEOUT_S, stdin=boot_state_script(wait=False).encode()
    )
    before = parse_boot_state(target.host, looked.stdout)
    at = time.monotonic()
    on_sent(target.host)
    try:
        result = connections.run(target, REBOOT, timeout_s=COMMAND_TIMEOUT_S)
    except (ConnectionLost, CommandTimeout):
        # It went down under the command all the same, which is what was asked for.
        result = None
    if result is not None and not result.ok:
        raise CommandFailed(target.host, f"refused to reboot: {last_line(result.stderr)}")
    connections.forget(target)
    return _Sent(target, before, at)


def _wait(access: Access, sent: _Sent, timeout_s: float) -> Rebooted:
    """Raises NotBack at the deadline, saying what was seen last, NotAsItWas."""
    deadline = sent.at + timeout_s
    seen = "it is still up: it never went down"
    settled_by = None
    while time.monotonic() < deadline:
        try:
            if _boot_id(access, sent.target) != sent.before.boot_id:
                settled_by = settled_by or min(deadline, time.monotonic() + SETTLED_WITHIN_S)
                lacks = _lacks(access, sent, deadline)
                if not lacks:
                    return Rebooted(sent.host, time.monotonic() - sent.at)
                seen = f"it lacks what it had: {'; '.join(lacks)}"
                if time.monotonic() > settled_by:
                    break
        except NOT_YET as error:
            seen = error.message
        time.sleep(POLL_S)
    name = access.cluster.name
    if settled_by:
        raise NotAsItWas(
            sent.host,
            f"back, but {seen}",
            f"log in and look: clusterctl ssh {name} {sent.host.rpartition('-')[2]}",
        )
    raise NotBack(
        sent.host,
        f"not back within {format_duration(timeout_s)}: {seen}",
        f"see `clusterctl status {name}`, or wait longer: --timeout 20m",
    )


def _lacks(access: Access, sent: _Sent, deadline: float) -> list[str]:
    """What the node lacks that it had. Waits for the end of its boot."""
    script = boot_state_script(wait=True).encode()
    left_s = max(1.0, deadline - time.monotonic())
    after = parse_boot_state(sent.host, _fresh(access, sent.target, "sh -s", left_s, script).stdout)
    promised = {node.name: node.gpus for node in access.cluster.nodes}
    return differences(sent.before, after, promised.get(sent.host, 0))


def _boot_id(access: Access, target: Target) -> str:
    result = _fresh(access, target, BOOT_ID, COMMAND_TIMEOUT_S)
    if not result.ok:
        raise CommandFailed(result.host, f"cannot read its boot id: {result.stderr.strip()}")
    return result.stdout.strip()


def _fresh(
    access: Access, target: Target, command: str, timeout_s: float, stdin: bytes = b""
) -> CommandResult:
    # A connection of its own each time: a kept one would not survive the reboot.
    session = access.connections.open_another(target, CONNECT_TIMEOUT_S)
    try:
        return session.run(command, timeout_s=timeout_s, stdin=stdin)
    finally:
        session.close()


def exit_status_of(result: FanoutResult[Rebooted]) -> int:
    """255 if a node could not be reached, 1 if one is not back or refused, else 0."""
    errors: list[ClusterctlError] = [f.error for f in result.failures if f.error]
    return max((error.exit_status for error in errors), default=0)
