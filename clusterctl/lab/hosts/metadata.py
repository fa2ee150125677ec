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
from clusterctl.lab.faults.interruptions import notice_of
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
    """Return the instance's whole tree in its present state."""
    tree: Tree = {
        "meta-data": _meta_data(instance),
        "dynamic": {"instance-identity": {"document": _document(instance)}},
    }
    if instance.user_data:
        tree["user-data"] = base64.b64decode(str(instance.user_data))
    return tree


def _meta_data(instance: LabInstance) -> Tree:
    nic, zone = instance.nics[0], str(instance.availability_zone)
    private, public = instance.private_ip_address or "", instance.public_ip_address or ""
    groups = "\n".join(sorted(group.name for group in nic.group_set))
    found: Tree = {
        "ami-id": instance.image_id,
        "ami-launch-index": str(instance.ami_launch_index),
        "ami-manifest-path": "(unknown)",
        "block-device-mapping": _disks(instance),
        "events": {"maintenance": {"scheduled": _scheduled(instance)}, "recommendations": {}},
        "hostname": instance.private_dns_name,
        "instance-action": "none",
        "instance-id": instance.id,
        "instance-life-cycle": instance.lifecycle or "on-demand",
        "instance-type": instance.instance_type,
        "local-hostname": instance.private_dns_name,
        "local-ipv4": private,
        "mac": nic.mac_address,
        "network": {"interfaces": {"macs": {nic.mac_address: _interface(instance, nic)}}},
        "placement": {
            "availability-zone": zone,
            "availability-zone-id": str(nic.subnet.availability_zone_id),
            "region": instance.region_name,
        },
        "reservation-id": instance.reservation_id,
        "security-groups": groups,
        "services": {"domain": "amazonaws.com", "partition": "aws"},
    }
    if public:
        found |= {"public-hostname": instance.public_dns_name or "", "public-ipv4": public}
    if instance.public_key:
        # The empty name is what the folder itself shows.
        key: Tree = {"openssh-key": instance.public_key}
        found["public-keys"] = {"": f"0={instance.key_name}", "0": key}
    return found | _notices(instance) | _tags(instance) | _profile(instance)


def _disks(instance: LabInstance) -> Tree:
    root = str(instance.root_device_name)
    data = [name for name in instance.block_device_mapping_names if name != root]
    others = {f"ebs{n}": name.rpartition("/")[2] for n, name in enumerate(sorted(data), 1)}
    return {"ami": root, "root": root, **others}


def _interface(instance: LabInstance, nic: Any) -> Tree:
    found: Tree = {
        "device-number": "0",
        "interface-id": nic.id,
        "local-hostname": instance.private_dns_name,
        "local-ipv4s": nic.private_ip_address,
        "mac": nic.mac_address,
        "owner-id": nic.owner_id,
        "security-group-ids": "\n".join(sorted(group.id for group in nic.group_set)),
        "subnet-id": nic.subnet.id,
        "subnet-ipv4-cidr-block": nic.subnet.cidr_block,
        "vpc-id": nic.subnet.vpc_id,
        "vpc-ipv4-cidr-block": nic.ec2_backend.get_vpc(nic.subnet.vpc_id).cidr_block,
    }
    return {**found, "public-ipv4s": nic.public_ip} if nic.public_ip else found


def _notices(instance: LabInstance) -> Tree:
    """Return the entries of a spot interruption; none without a notice.

    Programs check whether these entries exist.
    """
    notice = notice_of(instance.id)
    if notice is None:
        return {}
    ends = notice.ends.strftime(TIME)
    action = json.dumps({"action": "terminate", "time": ends})
    given = json.dumps({"noticeTime": notice.given.strftime(TIME)})
    return {
        "spot": {"instance-action": action, "termination-time": ends},
        "events": {
            "maintenance": {"scheduled": _scheduled(instance)},
            "recommendations": {"rebalance": given},
        },
    }


def _scheduled(instance: LabInstance) -> str:
    """Return the scheduled events, a list in JSON."""
    return json.dumps(
        [
            {
                "NotBefore": event["NotBefore"].strftime("%d %b %Y %H:%M:%S GMT"),
                "Code": event["Code"],
                "Description": event["Description"],
                "EventId": event["InstanceEventId"],
                "State": "active",
            }
            for event in instance.events
        ]
    )


def _tags(instance: LabInstance) -> Tree:
    if instance.metadata_options.instance_metadata_tags != "enabled":
        return {}
    return {"tags": {"instance": {tag["key"]: tag["value"] for tag in instance.get_tags()}}}


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
    lent = KEYS.lend(str(instance.owner_id), instance.id)
    keys = {
        "Code": "Success",
        "LastUpdated": now.strftime(TIME),
        "Type": "AWS-HMAC",
        "AccessKeyId": lent.id,
        "SecretAccessKey": lent.secret,
        "Token": lent.token,
        "Expiration": lent.expires.strftime(TIME),
    }
    roles: Tree = {role.name: json.dumps(keys, indent=2) for role in profile.roles}
    return {"iam": {"info": json.dumps(about, indent=2), "security-credentials": roles}}


def _document(instance: LabInstance) -> str:
    """Return the instance identity document."""
    about = {
        "accountId": instance.owner_id,
        "architecture": instance.architecture,
        "availabilityZone": instance.availability_zone,
        "imageId": instance.image_id,
        "instanceId": instance.id,
        "instanceType": instance.instance_type,
        "pendingTime": instance.launch_time.strftime(TIME),
        "privateIp": instance.private_ip_address,
        "region": instance.region_name,
        "version": "2017-09-30",
    }
    return json.dumps(about, indent=2)


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
        """Return whether the token is valid for the instance."""
        owner, ends = self._known.get(token, ("", 0.0))
        return owner == instance_id and self._clock() < ends


def make_metadata_server(listening: socket.socket) -> BaseWSGIServer:
    """Return the metadata server, on a socket that listens inside the lab."""
    host, port = listening.getsockname()
    answer = metadata_app(Tokens(), instance_at)
    return make_server(host, port, answer, threaded=True, fd=listening.fileno())


def instance_at(address: str) -> LabInstance | None:
    """Return the instance with a private address, or None."""
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
        return _new_token(environ, instance, tokens)
    if method not in ("GET", "HEAD"):
        return NOT_SO, b""
    token = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN")
    if token is None and options.http_tokens == "required":
        return DENIED, b""
    if token is not None and not tokens.admits(token, instance.id):
        return DENIED, b""
    return _read(instance, path)


def _new_token(environ: dict[str, Any], instance: LabInstance, tokens: Tokens) -> tuple[str, bytes]:
    ttl = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS", "")
    # As EC2 does, refuse a request that came through a proxy, which could leak the token.
    if "HTTP_X_FORWARDED_FOR" in environ:
        return FORBIDDEN, b""
    if not (ttl.isascii() and ttl.isdecimal()) or not 1 <= int(ttl) <= LONGEST_TTL_S:
        return BAD, b""
    return OK, tokens.make(instance.id, int(ttl)).encode()


def _read(instance: LabInstance, path: str) -> tuple[str, bytes]:
    version, _, rest = path.lstrip("/").partition("/")
    if not version:
        return OK, b"1.0\n2021-07-15\nlatest"
    found = lookup(tree_of(instance), rest) if VERSION.fullmatch(version) else None
    return (MISSING, b"") if found is None else (OK, found)
