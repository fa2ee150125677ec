"""The table of all settings of a launch and of its account, the parsers of their values, the spec
that flags, environment and file give together, and misspelt variables of the environment.

The options of `up`, the keys of `clusterctl.yaml`, the environment's variables and the rows of
`clusterctl config show` are made from this table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.domain.cluster import ClusterSpec, Disk, Limits, Market
from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import DURATIONS, as_utf8, parse_duration_s


class ValueKind(Enum):
    """The kind of a setting's value; its text follows "not" in an error message."""

    FLAG = "true or false"
    WHOLE = "a whole number, 1 to 999999999"
    LOAD = "a whole number, 100 to 300, or 0"
    NUMBER = "a number such as 8 or 0.5, above 0 and below 1000000000"
    TEXT = "text"
    DURATION = f"a duration such as {DURATIONS}"
    PATH = "the path of a file"
    LIST = "text or a list of texts"
    TAGS = "a mapping of keys to values"


class TextForm(NamedTuple):
    """What a text has to match, and one that does."""

    pattern: str
    example: str


@dataclass(frozen=True)
class Option:
    """A setting: `--key` on the command line, `key:` in the file, CLUSTERCTL_KEY.

    `field` is the field of ClusterSpec that it sets (`disk.iops`: of its Disk), empty if it sets
    none; the value is divided by `per` first, to change its unit. `form` is that of a text.
    `builtin` describes what applies if the setting is not given. `zero` allows a duration of 0, and
    `unit` is what a number without one probably means.
    """

    key: str
    kind: ValueKind
    help: str
    field: str = ""
    metavar: str = ""
    builtin: str = ""
    form: TextForm | None = None
    per: float = 1
    zero: bool = False
    unit: str = "s"

    @property
    def flag(self) -> str:
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return "CLUSTERCTL_" + self.key.upper().replace("-", "_")

    @property
    def parameter(self) -> str:
        """Its name as a Python parameter."""
        return self.key.replace("-", "_")

    @property
    def several(self) -> bool:
        """Whether it may be given several times."""
        return self.kind in (ValueKind.LIST, ValueKind.TAGS)


_REGION = TextForm(r"[a-z]{2,}(-[a-z]+)+-\d+", "us-east-1")
_TYPE = TextForm(r"[a-z0-9-]+\.[a-z0-9-]+", "p4d.24xlarge")
_RESERVATION = TextForm(r"cr-[0-9a-z]+", "cr-0123456789abcdef0")
_ZONE = TextForm(r"[a-z]{2,}-[a-z0-9-]*\d[a-z]", "us-east-1a")
_SUBNET = TextForm(r"subnet-[0-9a-z]+", "subnet-0123456789abcdef0")
_NETWORK = TextForm(r"[a-z][a-z0-9-]*", "research")
_USER = TextForm(r"[a-z_][a-z0-9_.-]{0,31}", "ubuntu")
_CIDR = TextForm(r"[0-9a-fA-F.:]+(/\d{1,3})?", "203.0.113.0/24")
_PROFILE = TextForm(r"[\w+=,.@:/-]+", "clusterctl-node")
# A bucket's name, and a prefix with characters that an IAM policy can hold.
_PLACE = r"(s3://)?[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.'()/=@:+-]*)?"
_DATA, _CHECKPOINTS = TextForm(_PLACE, "my-data/imagenet"), TextForm(_PLACE, "my-runs/checkpoints")
_KEY = TextForm(
    r"(arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key|alias)/|alias/)[\w/-]{1,150}|[\w-]{36}",
    "alias/clusters",
)

# A table to read: a formatter would give each setting up to ten lines.
# fmt: off
# The settings of the account. Every command that calls AWS takes them.
ACCOUNT = (
    Option("region", ValueKind.TEXT, "AWS region.",
        metavar="REGION", builtin="boto3's own choice", form=_REGION),
    Option("profile", ValueKind.TEXT, "AWS profile.", metavar="NAME", builtin="boto3's own choice"),
    Option("lab", ValueKind.FLAG, "Use the local EC2 (or set CLUSTERCTL_LAB=1).", builtin="false"),
)

LAUNCH = (
    Option("nodes", ValueKind.WHOLE, "How many machines.", "nodes", "N"),
    Option("instance-type", ValueKind.TEXT, "For example p4d.24xlarge.",
        "instance_type", "TYPE", form=_TYPE),
    Option("or-type", ValueKind.LIST,
        "Take this type where no zone has enough of the first; may be repeated.",
        "or_types", "TYPE", "none", _TYPE),
    Option("min-nodes", ValueKind.WHOLE, "Accept this many where there are not more.",
        "min_nodes", "M", "all of them"),
    Option("spot", ValueKind.FLAG, "Take spot machines, which AWS may end.",
        "spot", builtin="false"),
    Option("capacity-reservation", ValueKind.TEXT,
        "Launch into this Capacity Reservation or Capacity Block.",
        "capacity_reservation", "ID", "any open one", _RESERVATION),
    Option("placement-group", ValueKind.FLAG, "Place the nodes close to each other.",
        "placement_group", builtin="where it helps"),
    Option("efa", ValueKind.FLAG, "Use the Elastic Fabric Adapter.",
        "efa", builtin="where there is one"),
    Option("zone", ValueKind.TEXT, "Launch in this availability zone.",
        "zone", "ZONE", "any that has the machines", _ZONE),
    Option("subnet", ValueKind.TEXT, "Launch in this subnet.",
        "subnet_id", "ID", "the default VPC's", _SUBNET),
    Option("network", ValueKind.TEXT, "Launch in the network of this name (clusterctl network up).",
        "network", "NAME", "the default VPC", _NETWORK),
    Option("private", ValueKind.FLAG, "Give no node but the head node a public address.",
        "private", builtin="false"),
    Option("image", ValueKind.TEXT,
        "An AMI id, the name of an SSM parameter, or a pattern of names.",
        "image", "IMAGE", "the Deep Learning AMI for the type"),
    Option("user", ValueKind.TEXT, "The login user.", "ssh_user", "USER", "the image's own", _USER),
    Option("ssh-from", ValueKind.TEXT, "Who may log in.",
        "ssh_from", "CIDR", "this machine only", _CIDR),
    Option("user-data", ValueKind.PATH,
        "A script or cloud-config that every node runs at its first boot.",
        "user_data", "FILE", "none"),
    Option("instance-profile", ValueKind.TEXT,
        "The instance profile that the nodes get; new: one of the cluster's own, to read S3.",
        "instance_profile", "NAME|new", "none", _PROFILE),
    Option("data-bucket", ValueKind.LIST,
        "With the profile new: what nodes may read in S3; may be repeated.",
        "data_buckets", "BUCKET[/PREFIX]", "every bucket", _DATA),
    Option("checkpoint-prefix", ValueKind.LIST,
        "With the profile new: where nodes may write in S3; may be repeated.",
        "checkpoint_prefixes", "BUCKET[/PREFIX]", "nowhere", _CHECKPOINTS),
    Option("disk-gib", ValueKind.WHOLE, "Size of a node's disk in GiB.",
        "disk.size_gib", "GIB", "chosen by the plan"),
    Option("disk-iops", ValueKind.WHOLE, "Operations per second of a node's disk.",
        "disk.iops", "N", "chosen by the plan"),
    Option("disk-throughput", ValueKind.WHOLE, "MiB per second of a node's disk.",
        "disk.throughput_mib_s", "N", "chosen by the plan"),
    Option("disk-load", ValueKind.LOAD,
        "MiB/s at which EC2 fills the disk from the image: 100 to 300, or 0.",
        "disk.load_mib_s", "N", "chosen by the plan"),
    Option("kms-key", ValueKind.TEXT, "The key that encrypts the disks: an id, an alias or an ARN.",
        "disk.kms_key", "KEY", "the account's for EBS", _KEY),
    Option("tag", ValueKind.TAGS, "Tag all that is made; may be repeated.",
        "tags", "KEY=VALUE", "none"),
    Option("max-hours", ValueKind.NUMBER, "The nodes end themselves after so many hours.",
        "limits.max_hours", "H", "no limit"),
    Option("budget", ValueKind.NUMBER, "The nodes end themselves when they have cost so many USD.",
        "limits.budget_usd", "USD", "no limit"),
    Option("max-hourly", ValueKind.NUMBER, "Launch nothing that costs more USD an hour.",
        "limits.max_hourly_usd", "USD", "no limit"),
    Option("idle-stop", ValueKind.DURATION, "Stop the cluster when it has been idle for so long.",
        "limits.idle_minutes", "DURATION", "never", per=60, unit="m"),
    Option("idle-stop-erases-store", ValueKind.FLAG,
        "Idleness stops nodes whose instance store holds data, too, and so erases it.",
        "limits.idle_erases_store", builtin="false"),
    Option("stopped-days", ValueKind.NUMBER,
        "A cluster that idleness has stopped is due for removal after so many days.",
        "limits.stopped_days", "D", "never"),
    Option("capacity-timeout", ValueKind.DURATION,
        "How long to wait for machines when no zone has any.",
        metavar="DURATION", builtin="0", zero=True, unit="m"),
    Option("timeout", ValueKind.DURATION, "How long nodes may take to get ready.",
        metavar="DURATION", builtin="10m, and 30m from 4 GPUs a node on and for metal", unit="m"),
)
# fmt: on

OPTIONS = {option.key: option for option in (*LAUNCH, *ACCOUNT)}


# Prefix of a tag's key in `Values`.
TAG = "tag."
_FLAGS = {"true": True, "yes": True, "on": True, "1": True}
_FLAGS.update({"false": False, "no": False, "off": False, "0": False})


# Values by option key. Each tag has its own key, `tag.team`, so that layers override single tags.
# None (`null` in the file) restores the built-in value over earlier layers.
Values = Mapping[str, Any]


def merged(*layers: Values) -> Values:
    """Merge layers; a later one overrides those before it. A null stays, as None."""
    found: dict[str, Any] = {}
    for layer in layers:
        if "tag" in layer:
            # `tag: null` drops all tags of the layers before.
            found = {key: value for key, value in found.items() if not key.startswith(TAG)}
        found.update(layer)
    return found


def parse_value(option: Option, text: str) -> Any:
    """Return the value that `text` stands for; of a list, that of one item. Raises UsageError."""
    try:
        return _PARSERS[option.kind](option, text)
    except ValueError:
        raise UsageError(f"not {option.kind.value}: {text[:80]!r}") from None


def parse_tag(text: str) -> tuple[str, str]:
    """Return key and value of `team=nlp`. Raises UsageError."""
    key, equals, value = as_utf8(text).partition("=")
    if not equals:
        raise UsageError(f"not KEY=VALUE: {text!r}")
    return check_tag(key, value)


def check_tag(key: str, value: str) -> tuple[str, str]:
    """Return the tag. Raises UsageError if EC2 would refuse it or its key is reserved.

    EC2 allows keys of 128 and values of 256 characters; AWS reserves keys that begin with `aws:`.
    """
    if not key or len(key) > 128 or len(value) > 256 or not (key + value).isprintable():
        raise UsageError(
            f"not a tag: {key[:130]!r}: {value[:260]!r}; a key has 1 to 128 characters, "
            "a value up to 256"
        )
    if key.lower().startswith(("clusterctl:", "aws:")) or key == "Name":
        raise UsageError(f"the tag {key!r} is not free: Name, aws:… and clusterctl:… are taken")
    return key, value


def environment_values(environ: Mapping[str, str], keys: tuple[Option, ...] = LAUNCH) -> Values:
    """Return the values that environment variables give to these options. Raises UsageError.

    An empty variable counts as not set. Lists and tags are separated by spaces.
    """
    found: dict[str, Any] = {}
    for option in keys:
        text = environ.get(option.variable, "")
        if not text:
            continue
        try:
            found.update(values_of(option, text.split() if option.several else text))
        except UsageError as error:
            raise UsageError(f"{option.variable}: {error.message}", error.hint) from None
    return found


def values_of(option: Option, text: Any) -> Values:
    """Parse one text, or for lists and tags a list of texts, into values by key."""
    if option.kind is ValueKind.TAGS:
        return {TAG + key: value for key, value in map(parse_tag, text)}
    if option.kind is ValueKind.LIST:
        return {option.key: tuple(parse_value(option, one) for one in text)}
    return {option.key: parse_value(option, text)}


def _flag(option: Option, text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _whole(option: Option, text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _load(option: Option, text: str) -> int:
    if not re.fullmatch(r"0|[12]\d\d|300", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _number(option: Option, text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d+)?([eE][-+]?\d{1,2})?", text, re.ASCII):
        raise ValueError(text)
    if not 0 < float(text) < 1e9:
        raise ValueError(text)
    return float(text)


def _text(option: Option, text: str) -> str:
    form = option.form
    if form and not re.fullmatch(form.pattern, text, re.ASCII):
        if form is _TYPE and text.startswith("ml."):
            raise UsageError(f"EC2 calls {text[:40]!r} {text[3:40]!r}: leave out `ml.`")
        raise UsageError(f"not what {option.key} takes: {text!r}; it is like {form.example}")
    if not text.strip() or not text.isprintable():
        raise ValueError(text)
    return text


def _duration(option: Option, text: str) -> float:
    try:
        duration_s = parse_duration_s(text, option.unit)
    except UsageError as error:
        raise UsageError(f"{error.message}; {error.hint}") from None
    if not duration_s and not option.zero:
        raise UsageError(f"no time at all: {text!r}; write it as {DURATIONS}")
    return duration_s


_PARSERS: dict[ValueKind, Any] = {
    ValueKind.FLAG: _flag,
    ValueKind.WHOLE: _whole,
    ValueKind.LOAD: _load,
    ValueKind.NUMBER: _number,
    ValueKind.TEXT: _text,
    ValueKind.LIST: _text,
    ValueKind.DURATION: _duration,
    ValueKind.PATH: _text,
}


PREFIX = "CLUSTERCTL_"
# Variables that are read but belong to no option.
_OTHERS = ("CLUSTERCTL_HOME", "CLUSTERCTL_CONFIG")
# difflib's ratio above which a name is a misspelling: a letter too many, too few or swapped. Names
# that merely have a part in common are below it.
_NEAR = 0.8


def misspelt(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each variable that is ignored and resembles one that is read."""
    known = [*_OTHERS, *(option.variable for option in OPTIONS.values())]
    short = [name[len(PREFIX) :] for name in known]
    messages = []
    for name in sorted(environ):
        if name in known or not re.fullmatch(PREFIX + r"\w{1,40}", name, re.ASCII):
            continue
        # A name that resembles none may belong to another program: it gets no warning.
        near = difflib.get_close_matches(name[len(PREFIX) :].upper(), short, 1, _NEAR)
        if near:
            messages.append(f"{name} is no setting; did you mean {PREFIX}{near[0]}?")
    return tuple(messages)


@dataclass(frozen=True)
class SpecDraft:
    """The settings of a cluster that flags, environment and file give. It may be incomplete.

    `values` has the settings that were given, by option key (configuration/options.py).
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, *layers: Values) -> SpecDraft:
        """Merge the layers; a later one overrides those before it."""
        values = merged(*layers)
        return cls(name, {key: value for key, value in values.items() if value is not None})

    def spec(self, *, nodes: int | None = None, instance_type: str | None = None) -> ClusterSpec:
        """Return the spec. `nodes` and `instance_type` are used if no layer gives them; a caller
        takes them from an existing cluster.

        Raises UsageError if either is missing, if a setting makes no sense, or if the user data
        cannot be read.
        """
        fields: dict[str, Any] = {"nodes": nodes, "instance_type": instance_type}
        parts: dict[str, dict[str, Any]] = {"disk": {}, "limits": {}}
        for option in LAUNCH:
            if not option.field or option.key not in self.values:
                continue
            value = self.values[option.key]
            value = value / option.per if option.per != 1 else value
            group, dot, name = option.field.partition(".")
            (parts[group] if dot else fields)[name if dot else group] = value
        self._require(fields)
        fields["market"] = Market.SPOT if fields.pop("spot", False) else Market.ON_DEMAND
        fields["tags"] = tuple(
            (key[len(TAG) :], value) for key, value in self.values.items() if key.startswith(TAG)
        )
        if "user_data" in fields:
            fields["user_data"] = read_user_data(Path(fields["user_data"]).expanduser())
        return ClusterSpec(
            name=self.name, disk=Disk(**parts["disk"]), limits=Limits(**parts["limits"]), **fields
        )

    def _require(self, fields: Mapping[str, Any]) -> None:
        missing = [
            option
            for option in LAUNCH
            if option.key in ("nodes", "instance-type") and fields[option.field] is None
        ]
        if missing:
            flags = " and ".join(f"{option.flag} {option.metavar}" for option in missing)
            keys = " and ".join(f"`{option.key}:`" for option in missing)
            raise UsageError(
                f"a new cluster {self.name} needs {flags}",
                f"give {flags}, or write {keys} under `clusters: {self.name}:` in clusterctl.yaml",
            )


def read_user_data(path: Path) -> bytes:
    """Return the content of a user-data file. Raises UsageError if it cannot be read."""
    try:
        # Reading a named pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise UsageError(f"the user data is not a file: {path}")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the user data {path}: {error.strerror}", "check --user-data"
        ) from None


def shown(option: Option, value: Any) -> str:
    """Return a setting's value as a person would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(value)
    if option.kind is ValueKind.DURATION:
        return _length_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _length_text(seconds: float) -> str:
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length_s == 0:
            return f"{seconds / length_s:g}{unit}"
    return f"{seconds:g}s"
