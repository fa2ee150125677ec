"""What a check has to say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """The answer of one check, for example check_id `gpu.count`; `hint` is what to do about it."""

    check_id: str
    severity: Severity
    message: str
    host: str | None = None
    hint: str = ""
