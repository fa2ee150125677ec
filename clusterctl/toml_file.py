"""TOML files, for Pythons with and without a reader of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Return a file's content. Raises OSError, and ValueError if it is no TOML."""
    return tomllib.loads(path.read_text(encoding="utf-8"))
