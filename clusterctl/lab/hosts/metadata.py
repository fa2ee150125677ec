"""The instance metadata service, which hosts read at http://169.254.169.254.

It is a tree of names, as on EC2, with texts as leaves.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, Union

from werkzeug.serving import BaseWSGIServer, make_server

from clusterctl.lab.accounts import KEYS
from clusterctl.lab.data import table
from clusterctl.lab.faults.interruptions import NOTICES
from clusterctl.lab.hosts.instances import LabInstance, all_lab_instances
from clusterctl.lab.wsgi import Wsgi

Tree = dict[str, Union["Tree", str, bytes]]
TIME = "%Y-%m-%dT%H:%M:%SZ"


def lookup(tree: Tree, path: str) -> bytes | None:
    """Return the text at a path such as `meta-data/placement/region`, or the names in a folder.

    Return None if the path does not exist.
    """
    found: Tree | str | bytes | None = tree
    for name in filter(None, path.split("/")):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, dict) and isinstance(found.get(""), str):
        return str(found[""]).encode()
    if isinstance(found, dict):
        names = (f"{name}/" if isinstance(below, dict) else name for name, below in found.items())
        found = "\n".join(sorted(names))
    return found.encode() if isinstance(found, str) else found


def tree_of(instance: LabInstance) -> Tree:
    """Return the instance's whole tree in its present state (metadata.toml)."""
    nic: Any = instance.nics[0]
    values = {
        "one": instance,
        "nic": nic,
        "vpc": nic.ec2_backend.get_vpc(nic.subnet.vpc_id),
        "life_cycle": instance.lifecycle or "on-demand",
        "groups": "\n".join(sorted(group.name for group in nic.group_set)),
        "group_ids": "\n".join(sorted(group.id for group in nic.group_set)),
    }
    found: dict[str, Tree] = {name: {} for name in ("meta-data", "interface", "document")}
    for name, tree in found.items():
        for path, text in table("metadata")[name].items():
            *folders, last = path.split("/")
            folder: Any = tree
            for one in folders:
                folder = folder.setdefault(one, {})
            folder[last] = text.format(**values)
    about, interface = found["meta-data"], found["interface"]
    if instance.public_ip_address:
        about["public-ipv4"] = interface["public-ipv4s"] = instance.public_ip_address
        about["public-hostname"] = instance.public_dns_name or ""
    if instance.public_key:
        # The empty name is what the folder itself shows.
        key: Tree = {"openssh-key": instance.public_key}
        about["public-keys"] = {"": f"0={instance.key_name}", "0": key}
    names = set(instance.block_device_mapping_names) - {str(instance.root_device_name)}
    disks = {f"ebs{n}": name.rpartition("/")[2] for n, name in enumerate(sorted(names), 1)}
    about["block-device-mapping"].update(disks)  # type: ignore[union-attr]
    about["network"] = {"interfaces": {"macs": {nic.mac_address: interface}}}
    about |= _notices(instance) | _profile(instance)
    if instance.metadata_options.instance_metadata_tags == "enabled":
        about["tags"] = {"instance": {tag["key"]: tag["value"] for tag in instance.get_tags()}}
    document = json.dumps(found["document"], indent=2)
    whole: Tree = {"meta-data": about, "dynamic": {"instance-identity": {"document": document}}}
    if instance.user_data:
        whole["user-data"] = base64.b64decode(str(instance.user_data))
    return whole


def _notices(instance: LabInstance) -> Tree:
    """Return the entries of scheduled events, and those of a spot interruption, if there is one.

    Programs check whether the latter exist.
    """
    spot: Tree = {}
    advice: Tree = {}
    if notice := NOTICES.get(instance.id):
        ends = notice.ends.strftime(TIME)
        action = json.dumps({"action": "terminate", "time": ends})
        spot = {"spot": {"instance-action": action, "termination-time": ends}}
        advice = {"rebalance": json.dumps({"noticeTime": notice.given.strftime(TIME)})}
    scheduled = [
        {
            "NotBefore": event["NotBefore"].strftime("%d %b %Y %H:%M:%S GMT"),
            "Code": event["Code"],
            "Description": event["Description"],
            "EventId": event["InstanceEventId"],
            "State": "active",
        }
        for event in instance.events
    ]
    maintenance: Tree = {"scheduled": json.dumps(scheduled)}
    return {**spot, "events": {"maintenance": maintenance, "recommendations": advice}}


def _profile(instance: LabInstance) -> Tree:
    """Return the entries of the instance profile, with temporary keys for its roles."""
    associations = instance.ec2_backend.iam_instance_profile_associations
    association = associations.get(instance.id)
    if association is None:
        return {}
    profile, now = association.iam_instance_profile, datetime.now(timezone.utc)
    about = {
        "Code": "Success",
        "LastUpdated": now.strftime(TIME),
        "InstanceProfileArn": profile.arn,
        "InstanceProfileId": profile.id,
    }
    key = KEYS.role_key(str(instance.owner_id), instance.id)
    keys = {
        "Code": "Success",
        "LastUpdated": now.strftime(TIME),
        "Type": "AWS-HMAC",
        "AccessKeyId": key.id,
        "SecretAccessKey": key.secret,
        "Token": key.token,
        "Expiration": key.expires.strftime(TIME),
    }
    roles: Tree = {role.name: json.dumps(keys, indent=2) for role in profile.roles}
    return {"iam": {"info": json.dumps(about, indent=2), "security-credentials": roles}}


TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
# Six hours, as on EC2.
LONGEST_TTL_S = 21_600
VERSION = re.compile(r"latest|1\.0|20\d\d-\d\d-\d\d")
OK, BAD, DENIED = "200 OK", "400 Bad Request", "401 Unauthorized"
FORBIDDEN, MISSING, NOT_SO = "403 Forbidden", "404 Not Found", "405 Method Not Allowed"


class Tokens:
    """Session tokens of the metadata service. Each is valid for one instance and a limited time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}

    def make(self, instance_id: str, ttl_s: int) -> str:
        """Return a new token, and drop the expired ones."""
        token, now = secrets.token_urlsafe(40), self._clock()
        # Two requests may do this at the same time, so the dict is changed in place.
        for one, (_, ends) in list(self._known.items()):
            if ends <= now:
                self._known.pop(one, None)
        self._known[token] = (instance_id, now + ttl_s)
        return token

    def admits(self, token: str, instance_id: str) -> bool:
        owner, ends = self._known.get(token, ("", 0.0))
        return owner == instance_id and self._clock() < ends


def make_metadata_server(listening: socket.socket) -> BaseWSGIServer:
    """Return the metadata server, on a socket that listens inside the lab."""
    host, port = listening.getsockname()
    answer = metadata_app(Tokens(), instance_at)
    return make_server(host, port, answer, threaded=True, fd=listening.fileno())


def instance_at(address: str) -> LabInstance | None:
    found = (one for one in all_lab_instances() if one.private_ip_address == address)
    return next(found, None)


def metadata_app(tokens: Tokens, instance_at: Callable[[str], LabInstance | None]) -> Wsgi:
    """Return the metadata service. `instance_at` finds the instance of a request by its address."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        instance = instance_at(environ.get("REMOTE_ADDR", ""))
        status, content = _serve(environ, instance, tokens) if instance else (MISSING, b"")
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(content)))]
        ttl = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS")
        if status == OK and environ["REQUEST_METHOD"] == "PUT":
            headers.append(("X-aws-ec2-metadata-token-ttl-seconds", str(ttl)))
        start(status, headers)
        return [content]

    return answer


def _serve(environ: dict[str, Any], instance: LabInstance, tokens: Tokens) -> tuple[str, bytes]:
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    options = instance.metadata_options
    if options.http_endpoint == "disabled":
        return FORBIDDEN, b""
    if method == "PUT" and path == TOKEN_PATH:
        ttl = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS", "")
        # As EC2 does, refuse a request that came through a proxy, which could leak the token.
        if "HTTP_X_FORWARDED_FOR" in environ:
            return FORBIDDEN, b""
        if not (ttl.isascii() and ttl.isdecimal()) or not 1 <= int(ttl) <= LONGEST_TTL_S:
            return BAD, b""
        return OK, tokens.make(instance.id, int(ttl)).encode()
    if method not in ("GET", "HEAD"):
        return NOT_SO, b""
    token = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN")
    if token is None and options.http_tokens == "required":
        return DENIED, b""
    if token is not None and not tokens.admits(token, instance.id):
        return DENIED, b""
    version, _, rest = path.lstrip("/").partition("/")
    if not version:
        return OK, b"1.0\n2021-07-15\nlatest"
    found = lookup(tree_of(instance), rest) if VERSION.fullmatch(version) else None
    return (MISSING, b"") if found is None else (OK, found)
