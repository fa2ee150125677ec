"""Launches whose outcome is not known yet: written before RunInstances, so that none is lost."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import ClusterctlError

# EC2 shows a new instance to DescribeInstances within seconds. One that is not there after this
# long was never launched.
SETTLED_AFTER_S = 600.0


@dataclass(frozen=True)
class SentLaunch:
    """A RunInstances request as it was sent, its ClientToken in it, and when (Unix time)."""

    request: Mapping[str, Any]
    sent_at: float

    @property
    def token(self) -> str:
        return str(self.request["ClientToken"])

    def asks_for(self, request: Mapping[str, Any]) -> bool:
        """Whether `request` differs in nothing but its token."""
        return _without_token(self.request) == _without_token(request)


def _without_token(request: Mapping[str, Any]) -> str:
    # The token is also in the instances' tags.
    token = str(request["ClientToken"])
    # A request that is only planned may hold references to results: never equal to a sent one.
    return json.dumps(_plain(request), sort_keys=True, default=repr).replace(
        json.dumps(token), '""'
    )


def read_launches(path: Path) -> tuple[SentLaunch, ...]:
    """The launches that are not settled. Raises ClusterctlError for a file nobody can read."""
    try:
        content = json.loads(path.read_text())
        return tuple(
            SentLaunch(_binary(entry["request"]), float(entry["sent_at"]))
            for entry in content["launches"]
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterctlError(
            f"cannot read {path}: {error}",
            "it says which launch was under way; look at `clusterctl status`, then delete it",
        ) from None


def write_launches(path: Path, launches: Sequence[SentLaunch]) -> None:
    """Keep these, and only these. Once a launch was sent the file stays, perhaps with none."""
    if not launches and not path.exists():
        return
    entries = [{"request": _plain(sent.request), "sent_at": sent.sent_at} for sent in launches]
    text = json.dumps({"launches": entries}, indent=2)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.touch(0o600)
    draft.write_text(text + "\n")
    draft.replace(path)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def _binary(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == ["base64"]:
            return base64.b64decode(value["base64"])
        return {key: _binary(part) for key, part in value.items()}
    return [_binary(part) for part in value] if isinstance(value, list) else value
