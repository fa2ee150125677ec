"""Results of checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Optional

from clusterctl.domain.ranges import fold_hosts, grouped


class Severity(Enum):
    """How serious a finding is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Exit statuses of the commands for monitoring (diagnose, doctor, explain): by the worst finding,
# and without a result, as of monitoring plugins.
STATUSES = {Severity.INFO: 0, Severity.WARNING: 1, Severity.ERROR: 2}
NOT_KNOWN = 3


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    `check` is a fixed name, for example `gpu.count`. `host` is None where the result is about no
    single host. `hint` is what to do about it, or empty.
    """

    check: str
    severity: Severity
    message: str
    host: Optional[str] = None
    hint: str = ""

    @classmethod
    def error(cls, check_id: str, message: str, hint: str = "", host: str | None = None) -> Finding:
        """Return a finding about something that does not work."""
        return cls(check_id, Severity.ERROR, message, host, hint)

    @classmethod
    def warning(
        cls, check_id: str, message: str, hint: str = "", host: str | None = None
    ) -> Finding:
        """Return a finding about something that may go wrong."""
        return cls(check_id, Severity.WARNING, message, host, hint)

    @classmethod
    def info(cls, check_id: str, message: str, hint: str = "", host: str | None = None) -> Finding:
        """Return a finding that is good to know."""
        return cls(check_id, Severity.INFO, message, host, hint)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are errors."""
    return [one for one in findings if one.severity is Severity.ERROR]


def as_warning(finding: Finding) -> Finding:
    """Return an error as a warning, and any other finding as it is."""
    is_error = finding.severity is Severity.ERROR
    return replace(finding, severity=Severity.WARNING) if is_error else finding


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings: errors, warnings, information."""
    return tuple(sorted(findings, key=lambda one: -STATUSES[one.severity]))


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """Merge equal findings of several hosts into one."""
    alike = grouped((replace(one, host=None), one.host or "") for one in findings)
    return [
        replace(finding, host=fold_hosts(names) if any(names) else None)
        for finding, names in alike.items()
    ]
