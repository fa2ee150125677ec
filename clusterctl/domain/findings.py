"""Results of checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How serious a finding is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    `check_id` is a fixed name, for example `gpu.count`. `host` is None where the result is about no
    single host. `hint` is what to do about it, or empty.
    """

    check_id: str
    severity: Severity
    message: str
    host: str | None = None
    hint: str = ""
