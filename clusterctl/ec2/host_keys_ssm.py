"""Host keys over Systems Manager: the second channel, for nodes whose console stays silent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.console import keys_in
from clusterctl.ec2.errors import translated
from clusterctl.ec2.polling import gaps

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

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
