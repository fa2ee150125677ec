"""The settings of a cluster, merged from flags, environment and file, as a ClusterSpec."""

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
        return _duration(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length_s == 0:
            return f"{seconds / length_s:g}{unit}"
    return f"{seconds:g}s"
