"""Tables of AWS's facts that the lab serves or checks, as TOML files."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@functools.cache
def table(name: str) -> dict[str, Any]:
    """Return the content of a file of this folder, by its name without suffix."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
