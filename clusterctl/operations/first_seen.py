"""Since when `gc` has seen things that nobody uses and that have no date at EC2.

A file, not a tag: who may only look can remember, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import ClusterctlError
from clusterctl.ec2.gc.orphans import ThingId
from clusterctl.operations.views import write_file

FILE = "gc.json"


def note_alone(
    path: Path,
    accounts: Mapping[str, str],
    alone: Collection[ThingId],
    incomplete: Collection[str],
) -> tuple[Mapping[ThingId, datetime], ClusterctlError | None]:
    """Remember these of the regions in `accounts`, and forget what is not alone any more.

    Nothing is forgotten of the `incomplete` regions, which could not be looked at in full. The
    second is why the file could not be written, if so: all is then seen for the first time.
    """
    kept = _read(path)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    since: dict[ThingId, datetime] = {}
    after = dict(kept)
    for region, account in accounts.items():
        known = kept.get(account, {})
        entries = dict(known) if region in incomplete else {}
        for thing in alone:
            if thing[0] == region:
                label = f"{thing[1].value} {thing[2]}"  # kind and id
                since[thing] = min(_time(known.get(label)) or now, now)
                entries[label] = since[thing].isoformat()
        after[account] = entries
    after = {account: entries for account, entries in after.items() if entries}
    if after == kept:
        return since, None
    try:
        write_file(path, json.dumps({"alone": after}, indent=2) + "\n")
    except OSError as error:
        return since, ClusterctlError(
            f"cannot write {path}: {error}", "groups and addresses stay until it can be written"
        )
    return since, None


def _read(path: Path) -> dict[str, dict[str, str]]:
    """A file that nobody can read has seen nothing: things then stay for longer."""
    try:
        found: Any = json.loads(path.read_text())["alone"]
        return {str(account): _entries(entries) for account, entries in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _entries(found: Any) -> dict[str, str]:
    return {str(label): since for label, since in found.items() if isinstance(since, str)}


def _time(text: str | None) -> datetime | None:
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
