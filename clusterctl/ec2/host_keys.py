"""Nodes' host keys, as their console or the agent of Systems Manager tells them."""

from __future__ import annotations

import base64
import binascii
import re
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import gaps, throttled, translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ssm import SSMClient


_BEGIN, _END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
# Not within a longer name: sk-ssh-..., ...-cert-v01@openssh.com.
_KEY = re.compile(
    r"(?<![\w@.-])(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]+=*)"
)
_POINT_BYTES = {b"nistp256": 65, b"nistp384": 97, b"nistp521": 133}
_RSA_BYTES = 128


# EC2 is asked for one console at a time. An account has about 100 such requests at once and 20 a
# second (EC2 API throttling); others ask, too.
AT_ONCE, PER_S = 50, 10.0


class Consoles:
    """The consoles of a cluster's instances: one request per look, all at one pace."""

    def __init__(self, client: EC2Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        # When the last of the turns that were given away is over, less those at once.
        self._taken_until = float("-inf")
        # Of the first the next look asks for the older copy, of the others every look.
        self._was_empty: set[str] = set()
        self._without_latest: set[str] = set()

    def turn_s(self) -> float:
        """Take the next turn; in how many seconds it is. Each comes to those who wait in order."""
        with self._lock:
            now = self._clock()
            begin = max(self._taken_until, now - AT_ONCE / PER_S)
            self._taken_until = begin + 1 / PER_S
            return max(0.0, self._taken_until - now)

    def look(self, instance_id: str) -> str:
        """The console so far; empty while there is none, or none in this look. Raises AwsError.

        `Latest` asks the hypervisor and is for Nitro only; else EC2's own, older copy has to do.
        Where the latest has nothing, the next look asks for the older one.
        """
        older = instance_id in self._without_latest or instance_id in self._was_empty
        self._was_empty.discard(instance_id)
        latest = {} if older else {"Latest": True}
        try:
            with translated():
                answer = self._client.get_console_output(InstanceId=instance_id, **latest)
        except AwsError as error:
            if throttled(error) or error.code.startswith("InvalidInstanceID"):
                return ""
            if latest and error.code in ("UnsupportedOperation", "Unsupported"):
                self._without_latest.add(instance_id)
                return self.look(instance_id)
            raise
        text: str = answer.get("Output", "")
        if latest and not text:
            self._was_empty.add(instance_id)
        return text

    def now(self, instance_id: str) -> str:
        """What either of both has."""
        return self.look(instance_id) or self.look(instance_id)


def parse_host_keys(console: str) -> tuple[str, ...]:
    """The host keys cloud-init printed, as `TYPE BASE64`; none before the block is complete.

    Of several blocks the last counts: keys may be made anew at a later boot. Each line may carry a
    logger's prefix. A key broken up by another message is left out.
    """
    before, end, _ = console.rpartition(_END)
    # One that a reboot cut short has no end, and the next one's must not be taken for it.
    _, begin, block = before.rpartition(_BEGIN)
    return keys_in(block.partition(_END)[0]) if begin and end else ()


def keys_in(text: str) -> tuple[str, ...]:
    """The complete public keys in a text, each once, as `TYPE BASE64`."""
    found = (match.groups() for match in _KEY.finditer(text))
    return tuple(dict.fromkeys(f"{kind} {body}" for kind, body in found if _whole(kind, body)))


def _whole(kind: str, body: str) -> bool:
    """Whether the base64 is a complete key of this type: a row of length-prefixed fields."""
    try:
        blob = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        return False
    fields = []
    while len(blob) >= 4:
        (size,) = struct.unpack(">I", blob[:4])
        if size > len(blob) - 4:
            return False
        fields.append(blob[4 : 4 + size])
        blob = blob[4 + size :]
    return not blob and fields[:1] == [kind.encode()] and _fits(kind, fields[1:])


def _fits(kind: str, fields: list[bytes]) -> bool:
    """Whether the numbers of a key have the size that its type promises."""
    if kind == "ssh-ed25519":
        return [len(field) for field in fields] == [32]
    if kind == "ssh-rsa":
        return len(fields) == 2 and len(fields[0]) > 0 and len(fields[1]) >= _RSA_BYTES
    curve = kind.rpartition("-")[2].encode()
    return (
        len(fields) == 2
        and fields[0] == curve
        and len(fields[1]) == _POINT_BYTES[curve]
        and fields[1][:1] == b"\x04"
    )


DOCUMENT = "AWS-RunShellScript"
COMMAND = "cat /etc/ssh/ssh_host_*_key.pub"
# What the API takes in one call, and gives on one page.
AT_A_TIME = 50
# The least that SendCommand takes.
DELIVERED_WITHIN_S = 30
ANSWERED_WITHIN_S = 45.0
_ENDED = frozenset(("Success", "Cancelled", "TimedOut", "Failed"))

NOT_MANAGED = "no agent of Systems Manager answers there"


@dataclass(frozen=True)
class HostKeyAnswers:
    """By instance id: the host keys as `TYPE BASE64`, or the reason why there are none."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


def ask_host_keys(
    client: SSMClient, instance_ids: Sequence[str], within_s: float = ANSWERED_WITHIN_S
) -> HostKeyAnswers:
    """Ask these instances for their host keys, 50 per command. What AWS refuses is a reason."""
    keys: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    for group in _groups(instance_ids):
        try:
            _ask(client, group, within_s, keys, reasons)
        except AwsError as error:
            reasons.update((one, error.message) for one in group if one not in keys)
    return HostKeyAnswers(keys, reasons)


def _groups(instance_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(instance_ids), AT_A_TIME):
        yield instance_ids[first : first + AT_A_TIME]


def _ask(
    client: SSMClient,
    group: Sequence[str],
    within_s: float,
    keys: dict[str, tuple[str, ...]],
    reasons: dict[str, str],
) -> None:
    # One instance without an agent would have the command refused for all.
    online = _online(client, group)
    reasons.update((one, NOT_MANAGED) for one in group if one not in online)
    asked = [one for one in group if one in online]
    if not asked:
        return
    with translated():
        sent = client.send_command(
            InstanceIds=asked,
            DocumentName=DOCUMENT,
            Comment="clusterctl: host keys",
            TimeoutSeconds=DELIVERED_WITHIN_S,
            Parameters={"commands": [COMMAND]},
        )
    ended = _await(client, sent["Command"]["CommandId"], len(asked), within_s)
    for one in asked:
        found = keys_in(_output(ended[one])) if one in ended else ()
        if found:
            keys[one] = found
        else:
            reasons[one] = _reason(ended.get(one))


def _online(client: SSMClient, group: Sequence[str]) -> set[str]:
    with translated():
        pages = client.get_paginator("describe_instance_information").paginate(
            Filters=[{"Key": "InstanceIds", "Values": list(group)}],
            PaginationConfig={"PageSize": AT_A_TIME},
        )
        return {
            one["InstanceId"]
            for page in pages
            for one in page["InstanceInformationList"]
            if one.get("PingStatus") == "Online"
        }


def _await(client: SSMClient, command_id: str, count: int, within_s: float) -> dict[str, Any]:
    """The invocations that have ended, by instance id; all of them, or those there are in time."""
    deadline = time.monotonic() + within_s
    for gap_s in gaps(0.5, 1.4, 5.0):
        # Right after the command there may be none yet.
        ended = {
            one["InstanceId"]: one
            for one in _invocations(client, command_id)
            if one.get("Status") in _ENDED
        }
        if len(ended) >= count or time.monotonic() + gap_s > deadline:
            return ended
        time.sleep(gap_s)
    raise AssertionError("unreachable")


def _invocations(client: SSMClient, command_id: str) -> Iterable[Any]:
    with translated():
        pages = client.get_paginator("list_command_invocations").paginate(
            CommandId=command_id, Details=True, PaginationConfig={"PageSize": AT_A_TIME}
        )
        return [one for page in pages for one in page["CommandInvocations"]]


def _output(invocation: Any) -> str:
    """The first 2,500 characters of what the command wrote: a host's keys are half of that."""
    return "\n".join(one.get("Output", "") for one in invocation.get("CommandPlugins", ()))


def _reason(invocation: Any) -> str:
    if invocation is None:
        return "its agent has not answered in time"
    status = invocation.get("StatusDetails") or invocation["Status"]
    if invocation["Status"] == "Success":
        return "its agent sent no host key"
    return f"its agent could not read them: {status}"
