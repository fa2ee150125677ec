"""Reads #cloud-config: what the lab does of it becomes scripts, which run when cloud-init's do.

They call the functions of hosts/files/cloud-config.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

DONE = ("runcmd", "ssh_authorized_keys", "users", "write_files")
DEFAULT_USER = "ubuntu"
ENCODINGS = ("b64", "base64")
FIRST, LAST = "#!/bin/sh\n. /usr/lib/clusterctl-lab/cloud-config\n", "#!/bin/sh\n"


def read(content: bytes) -> tuple[list[tuple[str, bytes]], str]:
    """Return the scripts (path below /var/lib/cloud, content), and what the lab cannot do of it."""
    try:
        config = yaml.safe_load(content)
        if not isinstance(config, dict):
            return [], "the #cloud-config is no mapping"
        first = [*_files(config.get("write_files") or []), *_users(config.get("users") or [])]
        keys = config.get("ssh_authorized_keys") or []
        first += [_call("add_key", DEFAULT_USER, key) for key in keys]
        last = [one if isinstance(one, str) else _call(*one) for one in config.get("runcmd") or []]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as wrong:
        return [], f"the #cloud-config is not valid: {' '.join(str(wrong).split())[:200]}"
    beyond = ", ".join(sorted(str(key) for key in config if key not in DONE))
    problem = f"the lab does {', '.join(DONE)} of #cloud-config, not {beyond}" if beyond else ""
    scripts = ("boothooks/cloud-config", FIRST, first), ("scripts/runcmd", LAST, last)
    texts = ((path, head + "".join(f"{one}\n" for one in body)) for path, head, body in scripts)
    return [(f"instance/{path}", text.encode()) for path, text in texts], problem


def _call(*words: Any) -> str:
    return shlex.join(str(word) for word in words)


def _files(wanted: list[dict[str, Any]]) -> Iterator[str]:
    for one in wanted:
        content = str(one.get("content", ""))
        packed = one.get("encoding") in ENCODINGS
        text = content if packed else base64.b64encode(content.encode()).decode()
        how = one.get("permissions", "0644"), one.get("owner", "root:root")
        yield _call("add_file", one["path"], text, *how, "append" if one.get("append") else "")


def _users(wanted: list[Any]) -> Iterator[str]:
    for one in wanted:
        user = one if isinstance(one, dict) else {"name": one}
        name = user["name"]
        if name == "default":
            continue
        yield _call("add_user", name, user.get("shell", "/bin/sh"))
        groups, rules = user.get("groups") or [], user.get("sudo") or []
        for group in groups.split(",") if isinstance(groups, str) else groups:
            yield _call("add_group", name, str(group).strip())
        for rule in [rules] if isinstance(rules, str) else rules:
            yield _call("add_rule", name, rule)
        for key in user.get("ssh_authorized_keys") or []:
            yield _call("add_key", name, key)
