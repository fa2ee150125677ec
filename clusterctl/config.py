"""Where settings come from: flags, then the environment. Read by `cli/` only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What every command needs to know. Empty fields leave the choice to boto3's own chain."""

    home: Path
    lab: bool = False
    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None


def load_settings(
    environ: Mapping[str, str] = os.environ,
    *,
    lab: bool = False,
    region: str | None = None,
    profile: str | None = None,
    endpoint_url: str | None = None,
) -> Settings:
    """Flags beat the environment: CLUSTERCTL_HOME, CLUSTERCTL_LAB; boto3 reads AWS_* itself."""
    home = environ.get("CLUSTERCTL_HOME")
    return Settings(
        home=Path(home) if home else Path.home() / ".clusterctl",
        lab=lab or environ.get("CLUSTERCTL_LAB", "") not in ("", "0"),
        region=region,
        profile=profile,
        endpoint_url=endpoint_url,
    )
