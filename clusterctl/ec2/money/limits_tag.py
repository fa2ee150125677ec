"""A cluster's limits, as its tag has them: `max-hours=8 budget=100`. Pure."""

from __future__ import annotations

import re

from clusterctl.domain.spec import Limits

_FIELDS = {
    "max-hours": "max_hours",
    "budget": "budget_usd",
    "max-hourly": "max_hourly_usd",
    "idle-minutes": "idle_minutes",
    "stopped-days": "stopped_days",
}
_PART = re.compile(r"([a-z-]+)=(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)


def format_limits(limits: Limits) -> str:
    """The limits that are set; empty without any."""
    values = {key: getattr(limits, field) for key, field in _FIELDS.items()}
    return " ".join(f"{key}={_number(value)}" for key, value in values.items() if value is not None)


def parse_limits(text: str) -> Limits:
    """The limits of such a tag. Tags can be edited by hand: what makes no sense is no limit."""
    found: dict[str, float] = {}
    for part in text.split():
        match = _PART.fullmatch(part)
        if match and match[1] in _FIELDS and float(match[2]) > 0:
            found[_FIELDS[match[1]]] = float(match[2])
    if "idle_minutes" not in found:
        found.pop("stopped_days", None)
    return Limits(**found)


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
