"""Nodes' SSH host keys, read from their EC2 console or through Systems Manager's agent."""

from __future__ import annotations

import base64
import binascii
import re
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.domain.timeouts import Clock, Polling
from clusterctl.ec2.errors import paged, throttled, translated
from clusterctl.ec2.instances import batches

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ssm import SSMClient


# cloud-init prints the host keys between these lines.
_BEGIN, _END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"
# The lookbehind excludes longer names of key types: sk-ssh-..., ...-cert-v01@openssh.com.
_KEY = re.compile(
    r"(?<![\w@.-])(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]+=*)"
)
# The length of an uncompressed point on each curve.
_POINT_BYTES = {b"nistp256": 65, b"nistp384": 97, b"nistp521": 133}
# The least length of an RSA modulus: 1024 bits.
_RSA_BYTES = 128


# GetConsoleOutput returns the console of one instance per call. An account has a bucket of about
# 100 such calls, refilled at 20 a second (EC2 API throttling). This is half of both, because other
# programs of the account call it too.
AT_ONCE, PER_S = 50, 10.0


class Consoles:
    """Reads the consoles of a cluster's instances, within one rate limit for all threads.

    The limit is a token bucket of AT_ONCE requests that is refilled at PER_S requests a second.
    """

    def __init__(self, client: EC2Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        # The time at which the last reserved turn ends. It counts as at least the clock minus
        # AT_ONCE turns, so that after a pause AT_ONCE requests may be sent at once.
        self._taken_until = float("-inf")
        # Instances whose latest console was empty: the next poll requests the older copy.
        self._was_empty: set[str] = set()
        # Instances for which EC2 has only the older copy: every poll requests it.
        self._without_latest: set[str] = set()

    def turn_s(self) -> float:
        """Take the next turn and return in how many seconds it begins. Turns go out in order."""
        with self._lock:
            now = self._clock()
            begin = max(self._taken_until, now - AT_ONCE / PER_S)
            self._taken_until = begin + 1 / PER_S
            return max(0.0, self._taken_until - now)

    def read(self, instance_id: str) -> str:
        """Return the console's text so far; empty if there is none, or EC2 throttles this call.

        `Latest` reads from the hypervisor and works on Nitro instances only. On others EC2 returns
        its own, older copy. Where the latest is empty, the next poll requests the older copy.
        Raises AwsError.
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
                return self.read(instance_id)
            raise
        text: str = answer.get("Output", "")
        if latest and not text:
            self._was_empty.add(instance_id)
        return text

    def now(self, instance_id: str) -> str:
        """Return the console's text from either copy: two polls where the first finds nothing."""
        return self.read(instance_id) or self.read(instance_id)


def parse_host_keys(console: str) -> tuple[str, ...]:
    """Return the host keys that cloud-init printed, as `TYPE BASE64`; none before it is done.

    Of several blocks the last counts, because a later boot may generate new keys. Each line may
    carry a logger's prefix. A key that another message interrupts is left out.
    """
    before, end, _ = console.rpartition(_END)
    # A block that a reboot cut short has no end. `rpartition` for the beginning keeps the end of
    # the next block from closing it.
    _, begin, block = before.rpartition(_BEGIN)
    return keys_in(block.partition(_END)[0]) if begin and end else ()


def keys_in(text: str) -> tuple[str, ...]:
    """Return the complete public keys in a text, each once, as `TYPE BASE64`."""
    found = (match.groups() for match in _KEY.finditer(text))
    return tuple(dict.fromkeys(f"{kind} {body}" for kind, body in found if _whole(kind, body)))


def _whole(kind: str, body: str) -> bool:
    """Return whether the base64 is a complete key of this type.

    A key is a sequence of fields, each with its length in front (RFC 4253, section 6.6); the first
    is the type.
    """
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
    """Return whether a key's fields, without the type, have the sizes that its type demands."""
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
# The most instances that SendCommand takes in one call, and the largest page of the listings.
AT_A_TIME = 50
# SendCommand's TimeoutSeconds; it takes no less.
DELIVERED_WITHIN_S = 30
ANSWERED_WITHIN_S = 45.0
# The final states of a command on one instance.
_ENDED = frozenset(("Success", "Cancelled", "TimedOut", "Failed"))

NOT_MANAGED = "no agent of Systems Manager answers there"


@dataclass(frozen=True)
class HostKeyAnswers:
    """Host keys as `TYPE BASE64`, or the reason why there are none, each by instance id."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


def ask_host_keys(
    client: SSMClient,
    instance_ids: Sequence[str],
    within_s: float = ANSWERED_WITHIN_S,
    clock: Clock = Clock(),
) -> HostKeyAnswers:
    """Read the host keys of these instances through Systems Manager, 50 instances per command.

    Waits up to `within_s` for each command. Raises no AwsError: a refusal becomes the reason of
    each instance without keys.
    """
    keys: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    for group in batches(instance_ids, AT_A_TIME):
        try:
            _ask(client, group, within_s, clock, keys, reasons)
        except AwsError as error:
            reasons.update((one, error.message) for one in group if one not in keys)
    return HostKeyAnswers(keys, reasons)


def _ask(
    client: SSMClient,
    group: Sequence[str],
    within_s: float,
    clock: Clock,
    keys: dict[str, tuple[str, ...]],
    reasons: dict[str, str],
) -> None:
    # SendCommand refuses the whole command if one instance has no agent.
    online = _online(client, group)
    reasons.update((one, NOT_MANAGED) for one in group if one not in online)
    requested = [one for one in group if one in online]
    if not requested:
        return
    with translated():
        sent = client.send_command(
            InstanceIds=requested,
            DocumentName=DOCUMENT,
            Comment="clusterctl: host keys",
            TimeoutSeconds=DELIVERED_WITHIN_S,
            Parameters={"commands": [COMMAND]},
        )
    ended = _await(client, sent["Command"]["CommandId"], len(requested), within_s, clock)
    for one in requested:
        found = keys_in(_output(ended[one])) if one in ended else ()
        if found:
            keys[one] = found
        else:
            reasons[one] = _reason(ended.get(one))


def _online(client: SSMClient, group: Sequence[str]) -> set[str]:
    found = paged(
        *(client, "describe_instance_information", "InstanceInformationList"),
        Filters=[{"Key": "InstanceIds", "Values": list(group)}],
        PaginationConfig={"PageSize": AT_A_TIME},
    )
    return {one["InstanceId"] for one in found if one.get("PingStatus") == "Online"}


def _await(
    client: SSMClient, command_id: str, count: int, within_s: float, clock: Clock
) -> dict[str, Any]:
    """Return the invocations that have ended within `within_s`, by instance id.

    Returns early once all `count` have ended. Raises AwsError.
    """
    polling = Polling(clock, within_s, 0.5)
    while True:
        # Right after SendCommand the listing may still be empty.
        ended = {
            one["InstanceId"]: one
            for one in paged(
                *(client, "list_command_invocations", "CommandInvocations"),
                CommandId=command_id,
                Details=True,
                PaginationConfig={"PageSize": AT_A_TIME},
            )
            if one.get("Status") in _ENDED
        }
        if len(ended) >= count or polling.left_s <= 0:
            return ended
        polling.wait()


def _output(invocation: Any) -> str:
    """Return the command's output. AWS cuts it at 2,500 characters; host keys have half of that."""
    return "\n".join(one.get("Output", "") for one in invocation.get("CommandPlugins", ()))


def _reason(invocation: Any) -> str:
    if invocation is None:
        return "its agent has not answered in time"
    status = invocation.get("StatusDetails") or invocation["Status"]
    if invocation["Status"] == "Success":
        return "its agent sent no host key"
    return f"its agent could not read them: {status}"
