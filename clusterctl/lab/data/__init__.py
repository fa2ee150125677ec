"""Tables of AWS's facts that the lab serves or checks, as TOML files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from clusterctl.toml_file import read_toml


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Return the content of a file of this folder, by its name without suffix."""
    return read_toml(Path(__file__).parent / f"{name}.toml")
