"""What holds in the end: flags, then the environment, the file, what is built in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.configuration.options import LAUNCH, TAG, Option, ValueKind, Values, merged
from clusterctl.domain.cluster import ClusterSpec, Disk, Limits, Market
from clusterctl.domain.errors import UsageError


@dataclass(frozen=True)
class SpecDraft:
    """What was asked of a cluster, by flags, environment and file, before all of it is known.

    `values` are by option key, those only that somebody set.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, *layers: Values) -> SpecDraft:
        """From what the layers say, the strongest last."""
        values = merged(*layers)
        said = {key: value.value for key, value in values.items() if value.value is not None}
        return cls(name, said)

    def spec(self, *, nodes: int | None = None, instance_type: str | None = None) -> ClusterSpec:
        """The spec. `nodes` and `instance_type` stand in where nobody says them: they are what
        an existing cluster has.

        Raises UsageError, for a file that cannot be read too.
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

    def duration_s(self, key: str) -> float | None:
        """A setting that is no part of the spec, such as `timeout`; None where nobody has said."""
        value: float | None = self.values.get(key)
        return value


def read_user_data(path: Path) -> bytes:
    """Raises UsageError."""
    try:
        # A pipe or a device may never end.
        if path.exists() and not path.is_file():
            raise UsageError(f"the user data is not a file: {path}")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot read the user data {path}: {error.strerror}", "check --user-data"
        ) from None


def shown(option: Option, value: Any) -> str:
    """A value as a person would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(value)
    if option.kind is ValueKind.DURATION:
        return _duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length_s == 0:
            return f"{seconds / length_s:g}{unit}"
    return f"{seconds:g}s"
