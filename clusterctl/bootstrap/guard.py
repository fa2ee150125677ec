"""The guard, which switches a cluster off at its limits: its settings, and the scripts that install
it on nodes.

Pure functions: equal settings give equal bytes. cloud-init starts the guard at every boot; the
installation starts it once. The program is a zip file without compression: root on a node can read
what runs there. EC2 limits the size of user data, so the program in it has no comments; `up`
installs the one with comments later.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.bootstrap.trust import NodeIdentity
from clusterctl.domain.cluster import USER_DATA_BYTES, Limits
from clusterctl.domain.errors import UsageError
from clusterctl.node.guard.settings import GuardSettings, Worker
from clusterctl.node.packer import program_of
from clusterctl.node.record import RecordError, from_json

__all__ = ["GuardSettings", "Worker", "first_settings", "joined_settings", "lifetime_s"]


def lifetime_s(limits: Limits, hourly_usd: float | None) -> float | None:
    """Return how many seconds new machines may run in all, by `max_hours` and `budget_usd`; None:
    no limit.

    `hourly_usd` is the price of the whole cluster. A budget without a price sets no limit; the
    caller reports that.
    """
    times = []
    if limits.max_hours is not None:
        times.append(limits.max_hours * 3600)
    if limits.budget_usd is not None and hourly_usd:
        times.append(limits.budget_usd / hourly_usd * 3600)
    return min(times) if times else None


def first_settings(
    cluster: str,
    limits: Limits,
    hourly_usd: float | None = None,
    spot: bool = False,
    at_power_off: str = "",
    block_ends_at: float | None = None,
) -> GuardSettings:
    """Return the settings for the user data: the same for all nodes, as no address is known yet."""
    return GuardSettings(
        cluster,
        lifetime_s=lifetime_s(limits, hourly_usd),
        idle_s=None if limits.idle_minutes is None else limits.idle_minutes * 60,
        spot=spot,
        at_power_off=at_power_off,
        block_ends_at=block_ends_at,
        erases_store=limits.idle_erases_store,
    )


def joined_settings(
    first: GuardSettings, index: int | None, user: str, members: Sequence[NodeIdentity]
) -> GuardSettings:
    """Return the settings of a node that is part of its cluster; in quarantine its `index` is None.

    `members` are the nodes, the head node first.
    """
    workers = tuple(Worker(member.name, member.private_ip) for member in members[1:])
    return replace(first, index=index, user=user, workers=workers if index == 0 else ())


# The first boot of a machine begins at most this long after its launch.
FIRST_BOOT_WITHIN_S = 1800.0
# Time of a boot that the guard has not counted, at most: firmware and memory tests take large
# machines minutes, and the last minute may not have been saved.
UNCOUNTED_S = 600.0


def used_command() -> str:
    """Return a command for a POSIX shell that prints the guard's record of running times."""
    files = "/var/lib/clusterctl/guard-used.json /proc/sys/kernel/random/boot_id /proc/uptime"
    return f"for file in {files}; do cat $file 2>/dev/null; echo; done"


def parse_used_h(stdout: str, made_at: float) -> float | None:
    """Return an upper limit of the hours that a machine has run in all its boots. `made_at` is the
    Unix time of its launch.

    `stdout` is what `used_command` printed. None if no guard has counted since the first boot.
    """
    lines = [line for line in stdout.splitlines() if line]
    if len(lines) != 3:
        return None
    try:
        kept = from_json(_UsedTime, lines[0])
    except RecordError:
        return None
    uptime = lines[2].partition(" ")[0]
    if abs(kept.since - made_at) > FIRST_BOOT_WITHIN_S or not re.fullmatch(r"\d+(\.\d+)?", uptime):
        return None
    before, boots = kept.before_s, kept.boots
    if kept.boot_id != lines[1].strip():
        # The guard of this boot has not saved its time yet.
        before, boots = before + kept.boot_s, boots + 1
    return (before + float(uptime) + boots * UNCOUNTED_S) / 3600


@dataclass(frozen=True)
class _UsedTime:
    """The guard's record of running times, in seconds (node/guard/clock.py, BootClock)."""

    boot_id: str
    before_s: float
    boot_s: float
    since: float
    boots: int

    def __post_init__(self) -> None:
        if not all(0 <= value < 1e12 for value in (self.before_s, self.boot_s, self.boots)):
            raise ValueError("not running times")


GUARD = program_of("clusterctl.node.guard.guard")

_PLACES = """\
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
lib=/usr/local/lib/clusterctl kept=/var/lib/clusterctl boots=/var/lib/cloud/scripts/per-boot
id=$(cat /var/lib/cloud/data/instance-id 2>/dev/null)
"""
# A shell restarts the guard, so it survives even `pkill -9 python`. On a machine launched from an
# image of this one the script does nothing: the instance ID differs.
BOOT_SCRIPT = (
    """\
#!/bin/sh
# Keeps the guard of this node running: clusterctl ends a cluster whose time is up from inside.
"""
    + _PLACES
    + """\
[ "$id" = "$(cat $kept/guard-instance 2>/dev/null)" ] || exit 0
if [ "$1" != stay ]; then
    cd / && setsid sh "$0" stay </dev/null >/dev/null 2>&1 &
    exit 0
fi
until python3 -IS $lib/guard run; do sleep 5; done
"""
)
# Two commands may send settings at the same time: each has drafts of its own. The state of another
# machine, of which an image was made, is removed. Comments here would take room from user data.
_INSTALL = """\
install_guard() {
    umask 022
    trap 'rm -f $lib/*.$$ $kept/*.$$' EXIT
    mkdir -p $lib $kept $boots &&
    program | base64 -d | gzip -dc >$lib/guard.$$ &&
    settings >$kept/guard.json.$$ || return 1
    [ "$id" = "$(cat $kept/guard-instance 2>/dev/null)" ] || rm -f $kept/guard-*
    python3 -IS $lib/guard.$$ check $kept/guard.json.$$ $left || return 1
    printf '%s\\n' "$id" >$kept/guard-instance &&
    { cmp -s $lib/guard.$$ $lib/guard || mv $lib/guard.$$ $lib/guard; } &&
    mv $kept/guard.json.$$ $kept/guard.json &&
    boot >$kept/boot.$$ && chmod 755 $kept/boot.$$ &&
    mv $kept/boot.$$ $boots/clusterctl-guard &&
    $boots/clusterctl-guard
}
"""
# With these settings there is nothing to guard, and the guard ends by itself.
_REMOVE = """\
rm -f $boots/clusterctl-guard $kept/guard-good.json
[ ! -e $kept ] || { settings >$kept/json.$$ && mv $kept/json.$$ $kept/guard.json; }
"""


_FIRST_LINES = "#!/bin/sh\n# clusterctl's guard of the cluster "


def guard_script(settings: GuardSettings) -> str:
    """Return the user data script, which starts the guard even if `up` never reaches the node."""
    return (
        f"{_FIRST_LINES}{settings.cluster}.\n"
        + _PLACES
        + _functions(settings, GUARD.zipapp(comments=False))
        + _left(None)
        + _INSTALL
        + _or_without_python(settings)
    )


def guard_update_script(settings: GuardSettings, left_s: float | None = None) -> str:
    """Return a script for `sh -s` over SSH that installs or updates the guard, or removes it if no
    limit is set. It can be repeated, and prints `complete`.

    With `left_s`, the node ends in so many seconds of running time, whatever the settings' lifetime
    is. The login user needs `sudo -n`.
    """
    if settings.guards or left_s is not None:
        do = _functions(settings, GUARD.zipapp()) + _left(left_s) + _INSTALL
        do += "install_guard || exit 1\n"
    else:
        do = _prints("settings", settings.text()) + _REMOVE
    script = _PLACES + do + "echo complete\n"
    return (
        'as= && [ "$(id -u)" = 0 ] || as="sudo -n"\n'
        f"$as sh -s <<'CLUSTERCTL_GUARD'\n{script}CLUSTERCTL_GUARD\n"
    )


def guard_end_command(left_s: float, lifetime_s: float | None) -> str:
    """Return a command that has a node's guard end it in so many seconds of running time.

    With `lifetime_s`, the node ends earlier if it has run for that long by its own count. Nothing
    else of its settings changes. The command fails on a node without a guard.
    """
    most = "" if lifetime_s is None else f" {lifetime_s:.0f}"
    return (
        "sudo -n python3 -IS /usr/local/lib/clusterctl/guard check "
        f"/var/lib/clusterctl/guard.json {left_s:.0f}{most}"
    )


def _left(left_s: float | None) -> str:
    return "left=\n" if left_s is None else f"left={left_s:.1f}\n"


def _functions(settings: GuardSettings, program: bytes) -> str:
    """Return shell functions that each print one file."""
    files = {"settings": settings.text(), "boot": BOOT_SCRIPT, "program": _packed(program)}
    return "".join(_prints(name, text) for name, text in files.items())


def _prints(name: str, text: str) -> str:
    return f"{name}() {{\ncat <<'END_OF_{name}'\n{text}END_OF_{name}\n}}\n"


def _packed(content: bytes) -> str:
    return base64.b64encode(_gzip(content)).decode() + "\n"  # line ends would need 170 bytes more


def _or_without_python(settings: GuardSettings) -> str:
    """Return the end of the script: if the guard cannot run on the node, `shutdown` switches it off
    in time, until its next boot."""
    lines = ["install_guard && exit 0", "echo 'clusterctl: the guard could not be installed' >&2"]
    if settings.lifetime_s is not None:
        lines.append(f"shutdown -P +{int(settings.lifetime_s) // 60 + 1}")
    return "\n".join([*lines, "exit 1"]) + "\n"


MAX_INFLATED_BYTES = 4 * 1024 * 1024
# How cloud-init recognizes the type of a text. If two starts match, the longer comes first.
TYPES = (
    ("#!", "text/x-shellscript"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("#cloud-config-archive", "text/cloud-config-archive"),
    ("#cloud-config", "text/cloud-config"),
    ("#include", "text/x-include-url"),
    ("#part-handler", "text/part-handler"),
    ("## template: jinja", "text/jinja2"),
)


def guard_user_data(settings: GuardSettings) -> bytes:
    """Return the user data of a launch for which the user has none: a script."""
    return _fitting(guard_script(settings).encode(), b"")


def with_guard(user_data: bytes, settings: GuardSettings) -> bytes:
    """Return the user's own user data together with the guard's script, which runs before the
    user's scripts, and in place of another guard's script that is there.

    Without limits it is returned unchanged. Raises UsageError if the result is larger than EC2
    accepts, or if the user's part cannot be read.
    """
    if not settings.guards:
        return user_data
    content = _inflated(_debased(user_data))
    if not content.strip() or content.startswith(_FIRST_LINES.encode()):
        return guard_user_data(settings)
    # cloud-init runs scripts by name, and names those without a name part-001 and so on.
    disposition = 'Content-Disposition: attachment; filename="00-clusterctl-guard"\n'
    script = guard_script(settings).encode()
    parts = [disposition.encode() + _part("text/x-shellscript", script), _user_part(content)]
    boundary = b"clusterctl-" + hashlib.sha256(b"".join(parts)).hexdigest()[:32].encode()
    head = b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="%s"\n\n' % boundary
    middle = b"".join(b"--%s\n%s\n" % (boundary, part) for part in parts)
    return _fitting(head + middle + b"--%s--\n" % boundary, content)


def _user_part(content: bytes) -> bytes:
    ours = re.match(rb'MIME-Version: 1\.0\n.*boundary="(clusterctl-[0-9a-f]{32})"\n\n', content)
    if ours:
        _, _, user, _ = content.split(b"--" + ours[1])
        return user[1:-1]
    # cloud-init reads a multipart message inside another one.
    if b"mime-version:" in content[:4096].lower():
        return content
    text = content.lstrip().decode(errors="replace").lower()
    kind = next((kind for start, kind in TYPES if text.startswith(start)), "text/plain")
    return _part(kind, content)


def _part(kind: str, content: bytes) -> bytes:
    if content.isascii():
        return f'Content-Type: {kind}; charset="us-ascii"\n\n'.encode() + content
    # cloud-init reads other characters correctly only in base64.
    header = f'Content-Type: {kind}; charset="utf-8"\nContent-Transfer-Encoding: base64\n\n'
    return header.encode() + base64.encodebytes(content)


def _fitting(content: bytes, user: bytes) -> bytes:
    """Compress the user data if it is too large. Raises UsageError if that is not enough."""
    if len(content) <= USER_DATA_BYTES:
        return content
    packed = _gzip(content)
    if len(packed) > USER_DATA_BYTES:
        room = USER_DATA_BYTES - len(_gzip(content.replace(user, b"", 1)))
        raise UsageError(
            f"the user data does not fit: {len(packed)} bytes with the guard, compressed, and EC2"
            f" takes {USER_DATA_BYTES}",
            f"keep it under {room} bytes compressed: let it fetch what is large from S3",
        )
    return packed


def _gzip(content: bytes) -> bytes:
    # Without a time stamp: the same bytes each time.
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(content) + packer.flush()


def _debased(raw: bytes) -> bytes:
    """Undo base64: cloud-init accepts user data that is encoded twice, so users may give it so."""
    try:
        return base64.b64decode(raw.strip(), validate=True)
    except binascii.Error:
        return raw


def _inflated(raw: bytes) -> bytes:
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            content = file.read(MAX_INFLATED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as broken:
        raise UsageError(
            f"the user data is not valid gzip: {broken}", "give it uncompressed"
        ) from None
    if len(content) > MAX_INFLATED_BYTES:
        raise UsageError("the user data is too large once it is uncompressed", "make it smaller")
    return content
