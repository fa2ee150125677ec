"""The tags on AWS resources: the only record of which clusters exist, and of what they consist. And
the record of what `up` has started to make.

EC2 is eventually consistent: for some seconds a description may lack a resource or a tag that was
just made. A command's own changes of tags count at once, and the next command waits until EC2 shows
what was started. It would else make a second one, or leave the first one behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.domain.cluster import Disk, Limits
from clusterctl.domain.errors import UsageError
from clusterctl.domain.files import write_file
from clusterctl.domain.ranges import fold_hosts, format_indices, parse_indices
from clusterctl.domain.timeouts import Age, Polling, Timeouts
from clusterctl.node.record import RecordError, from_json, to_json

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


CLUSTER = "clusterctl:cluster"
# One RunInstances call gives all its instances the same tags, so a node's index is this number plus
# its AmiLaunchIndex.
FIRST_INDEX = "clusterctl:first-index"
# The node's index where EC2 has given several instances of one launch the same AmiLaunchIndex.
INDEX = "clusterctl:index"
# The indices of the nodes that are wanted: `0-3`, or `0-1 3` after a removal.
NODES = "clusterctl:nodes"
GPUS = "clusterctl:gpus"
USER = "clusterctl:user"
IMAGE = "clusterctl:image"
# The client token of the launch. It finds the instances of a launch whose outcome is unknown.
LAUNCH = "clusterctl:launch"
MARKET = "clusterctl:market"
# The root volume's size, IOPS, MiB/s and KMS key, which nodes launched later get, too.
DISK = "clusterctl:disk"
# Set if only the head node has a public address.
PRIVATE = "clusterctl:private"
LIMITS = "clusterctl:limits"
# The limits before, until all nodes have the new ones; `none` where there were none.
EARLIER_LIMITS = "clusterctl:earlier-limits"
# What a node has cost up to some time. EC2 forgets the node's earlier runs when it starts again
# (see Spent).
SPENT = "clusterctl:spent-usd"
# When a node ends that was started after its end, since `start` or `up` got it ready.
ENDS_AT = "clusterctl:ends-at"
# Set on a node whose replacement is under way.
RETIRED = "clusterctl:retired"
# Set on a node that commands leave out unless it is named; the value is since when, and why.
QUARANTINED = "clusterctl:quarantined"
# What `add`, `remove` and `replace` were to do and have not finished: `add 2-3 remove 1-1`.
UNFINISHED = "clusterctl:unfinished"
# EC2's limit for the value of a tag.
MOST_CHARACTERS = 256


# The keys in the tag LIMITS -> fields of Limits.
_LIMIT_FIELDS = {
    "max-hours": "max_hours",
    "budget": "budget_usd",
    "max-hourly": "max_hourly_usd",
    "idle-minutes": "idle_minutes",
    "stopped-days": "stopped_days",
    "idle-erases-store": "idle_erases_store",
}
_LIMIT = re.compile(r"([a-z-]+)=(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)


def format_limits(limits: Limits) -> str:
    """Return the limits as text for the tag, such as `max-hours=8 budget=500`; empty for none."""
    values = {key: getattr(limits, field) for key, field in _LIMIT_FIELDS.items()}
    return " ".join(f"{key}={_number(value)}" for key, value in values.items() if value)


def parse_limits(text: str) -> Limits:
    """Return the limits of such a tag.

    Tags can be edited by hand: a part that makes no sense is no limit.
    """
    found: dict[str, Any] = {}
    for part in text.split():
        match = _LIMIT.fullmatch(part)
        if match and match[1] in _LIMIT_FIELDS and float(match[2]) > 0:
            found[_LIMIT_FIELDS[match[1]]] = float(match[2])
    if "idle_minutes" not in found:
        found.pop("stopped_days", None)
        found.pop("idle_erases_store", None)
    found["idle_erases_store"] = "idle_erases_store" in found
    return Limits(**found)


def limit_text(limits: Limits, option: str) -> str:
    """Return a limit that ends a cluster as it was given: `--max-hours 8`, `--budget 5`."""
    value = limits.max_hours if option == "--max-hours" else limits.budget_usd
    return f"{option} {_number(value or 0.0)}"


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Unfinished:
    """What earlier commands have not finished: for each command the indices of its nodes."""

    add: tuple[int, ...] = ()
    remove: tuple[int, ...] = ()
    replace: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return any(vars(self).values())

    @property
    def text(self) -> str:
        """The value of the tag. Raises UsageError if it is too long for a tag."""
        requested = ((verb, found) for verb, found in vars(self).items() if found)
        return _fitting(" ".join(f"{verb} {indices_text(found)}" for verb, found in requested))

    def described(self, name: str) -> str:
        """Return text for messages: `add demo-[2-3], remove demo-1`."""
        return ", ".join(
            f"{verb} {fold_hosts([f'{name}-{index}' for index in found])}"
            for verb, found in vars(self).items()
            if found
        )


def read_unfinished(text: str) -> Unfinished:
    """Read the value of such a tag; parts that make no sense are left out."""
    found = re.findall(r"(add|remove|replace) ([\d -]+)", text, re.ASCII)
    return Unfinished(**{verb: read_indices(indices.strip()) for verb, indices in found})


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in the form of EC2's requests."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tag_dict(tags: Iterable[Any] | None) -> dict[str, str]:
    """Return the tags of EC2's answer by key; empty for None."""
    return {tag["Key"]: tag.get("Value", "") for tag in tags or ()}


def indices_text(indices: Iterable[int]) -> str:
    """Return the tag's value for these indices: `0-1 3`.

    It has blanks instead of commas, which some of AWS's tools do not accept. Raises UsageError if
    it is too long for a tag.
    """
    return _fitting(format_indices(indices).replace(",", " "))


def _fitting(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise UsageError(
            "the nodes' indices would have too many gaps: a tag of EC2 keeps them, which holds "
            f"{MOST_CHARACTERS} characters and not {len(text)}",
            "name fewer nodes at a time, or such that are neighbours: 64-127",
        )
    return text


def read_indices(text: str) -> tuple[int, ...]:
    """Return the indices in such a tag; empty if it makes no sense."""
    try:
        return parse_indices(text.replace(" ", ","))
    except UsageError:
        return ()


def disk_text(disk: Disk) -> str:
    """Return the tag's value for a disk: GiB, IOPS, MiB/s, and the KMS key if there is one.

    For example `500 6000 500`. 0 stands for a value that is not set.
    """
    numbers = (str(part or 0) for part in (disk.size_gib, disk.iops, disk.throughput_mib_s))
    return " ".join((*numbers, *([disk.kms_key] if disk.kms_key else [])))


def read_disk(text: str) -> Disk:
    """Return the disk in such a tag; an empty Disk if the tag makes no sense."""
    if not re.fullmatch(r"\d{1,6} \d{1,6} \d{1,6}( [\w:/-]+)?", text, re.ASCII):
        return Disk()
    size, iops, throughput, *key = text.split()
    return Disk(
        int(size) or None, int(iops) or None, int(throughput) or None, key[0] if key else None
    )


@dataclass(frozen=True)
class Spent:
    """What a node has cost, and for how many hours it has run, up to the time `until`.

    `at_least`: it has cost more, but how much is unknown. `at_most`: it may have cost less, as the
    node's guard has counted its time, with what a boot takes at most.
    """

    usd: float
    ran_h: float
    until: datetime
    at_least: bool = False
    at_most: bool = False


def spent_text(spent: Spent) -> str:
    """Return the tag's value: `41.0000 for 4.0100 h until 2026-11-21T12:00:00Z at least`."""
    text = f"{spent.usd:.4f} for {spent.ran_h:.4f} h until {time_text(spent.until)}"
    return text + " at least" * spent.at_least + " at most" * spent.at_most


def read_spent(text: str) -> Spent | None:
    """Read the value of such a tag; None if it makes no sense."""
    found = re.fullmatch(
        r"(\d{1,9}(?:\.\d{1,6})?) for (\d{1,7}\.\d{4}) h "
        r"until (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)( at least)?( at most)?",
        text,
        re.ASCII,
    )
    if not found:
        return None
    usd, ran_h, until, at_least, at_most = found.groups()
    when = read_time(until)
    return Spent(float(usd), float(ran_h), when, bool(at_least), bool(at_most)) if when else None


def time_text(at: datetime) -> str:
    """Return a tag's value for a time in UTC: `2026-11-21T12:00:00Z`."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def read_time(text: str) -> datetime | None:
    """Return the time in such a tag; None if it makes no sense."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def of_cluster(name: str) -> dict[str, Any]:
    """Return the EC2 filter for everything that belongs to a cluster."""
    return {"Name": f"tag:{CLUSTER}", "Values": [name]}


def resource_name(name: str) -> str:
    """Return the name of a cluster's key pair, security group and placement group."""
    return f"clusterctl-{name}"


_CREATE, _DELETE = "ec2.CreateTags", "ec2.DeleteTags"


class _OwnTags:
    """The tags that a client has set and removed. Its methods are called by events of botocore."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        # Instance id -> key -> value, and since when; None for a tag that was removed.
        self._written: dict[str, dict[str, tuple[str | None, Age]]] = {}

    def begin(self, params: Any, context: dict[str, Any], **_: Any) -> None:
        """Forget these tags: without a response, only EC2 knows whether they have changed."""
        keys = {tag["Key"] for tag in params["Tags"]}
        before = {id: dict(self._written.get(id, {})) for id in params["Resources"]}
        for id, labels in before.items():
            self._written[id] = {key: value for key, value in labels.items() if key not in keys}
        context["own_tags"] = params, before

    def note(
        self, parsed: Any, context: dict[str, Any], http_response: Any, event_name: str, **_: Any
    ) -> None:
        params, before = context.pop("own_tags")
        if "Error" in parsed:
            if http_response.status_code < 500:
                self._written.update(before)
            return
        keep = event_name.endswith(_CREATE)
        age = Age(self._timeouts.clock)
        labels = {
            tag["Key"]: (tag.get("Value", "") if keep else None, age) for tag in params["Tags"]
        }
        for id in params["Resources"]:
            self._written.setdefault(id, {}).update(labels)

    def show(self, parsed: Any, **_: Any) -> None:
        for reservation in parsed.get("Reservations", ()):
            for instance in reservation["Instances"]:
                if own := {
                    key: value
                    for key, (value, age) in self._written.get(instance["InstanceId"], {}).items()
                    if age.seconds < self._timeouts.holds_s
                }:
                    shown = tag_dict(instance.get("Tags")) | own
                    kept = {key: value for key, value in shown.items() if value is not None}
                    instance["Tags"] = tag_list(kept)


@contextmanager
def own_tags_count(client: EC2Client, timeouts: Timeouts) -> Iterator[None]:
    """Let DescribeInstances show all tags that this client has set and removed since.

    EC2 is eventually consistent (EC2's developer guide, "Eventual consistency"): for some seconds
    after CreateTags, a read may show the tags of before, also after another read that showed the
    new ones. A command that decides by tags that it has just written would decide by the old ones.
    After `holds_s` EC2's count: another command may have changed them.
    """
    own = _OwnTags(timeouts)
    handlers: list[tuple[str, Callable[..., None]]] = [
        *((f"before-parameter-build.{event}", own.begin) for event in (_CREATE, _DELETE)),
        *((f"after-call.{event}", own.note) for event in (_CREATE, _DELETE)),
        ("after-call.ec2.DescribeInstances", own.show),
    ]
    events = client.meta.events
    for event, handler in handlers:
        events.register_last(event, handler)
    try:
        yield
    finally:
        for event, handler in handlers:
            events.unregister(event, handler)


# boto3's methods that make what a cluster has one of, and what that is.
CREATIONS = {
    "import_key_pair": "key pair",
    "create_security_group": "security group",
    "create_placement_group": "placement group",
    "allocate_address": "elastic address",
    "create_role": "role",
    "create_instance_profile": "instance profile",
}

Found = TypeVar("Found")


@dataclass(frozen=True)
class Creations:
    """The record in `path` of when each of CREATIONS was sent. No file is an empty record.

    A record that cannot be read must not keep `down` from removing a cluster: then anything may
    have been sent just now, and nothing is proved. `notify` receives a line of progress about what
    is waited for.
    """

    path: Path
    timeouts: Timeouts = field(default_factory=Timeouts)
    notify: Callable[[str], None] = lambda text: None

    @property
    def started(self) -> frozenset[str]:
        """The operations that were sent and not refused."""
        return frozenset(self._sent() or ())

    def begin(self, operation: str) -> None:
        """Record, before an operation is sent, that it may have been carried out."""
        self._write({**(self._sent() or {}), operation: self.timeouts.clock.time()})

    def end(self, *operations: str) -> None:
        """Record that these operations were refused, or that what they made is gone."""
        sent = self._sent() or {}
        left = {one: at for one, at in sent.items() if one not in operations}
        if left != sent:
            self._write(left)

    def began(self, operation: str) -> bool:
        """Return whether an operation was sent and may have been carried out."""
        sent = self._sent()
        return sent is None or operation in sent

    def find(self, operation: str, poll: Callable[[], Sequence[Found]]) -> tuple[Found, ...]:
        """Return what `poll` finds, looking again while EC2 may not show what was started.

        Raises what `poll` raises.
        """
        clock, sent = self.timeouts.clock, self._sent()
        began = clock.time() if sent is None else sent.get(operation, 0.0)
        polling = Polling(clock, began + self.timeouts.shown_s - clock.time())
        is_first = True
        while not (found := tuple(poll())) and polling.left_s > 0:
            if is_first:
                self.notify(f"waiting for AWS to show the {CREATIONS[operation]}, if there is one")
            is_first = False
            polling.wait()
        return found

    def _sent(self) -> dict[str, float] | None:
        """Return the times by operation; None if the record cannot be read."""
        try:
            return from_json(dict[str, float], self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, RecordError):
            return None

    def _write(self, sent: dict[str, float]) -> None:
        if sent:
            write_file(self.path, to_json(sent) + "\n")
        else:
            self.path.unlink(missing_ok=True)
