"""Names of jobs: sorted by the time they were made, and safe in a path and on a command line."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

from clusterctl.domain.errors import UsageError

PATTERN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


def new_job_id() -> str:
    """For example `20261120-154501-3f2a`, in UTC."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_job_id(text: str) -> str:
    """The id itself. Raises UsageError."""
    if not PATTERN.fullmatch(text):
        raise UsageError(f"not the id of a job: {text!r}", "see `clusterctl logs NAME --list`")
    return text
